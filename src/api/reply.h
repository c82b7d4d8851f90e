// SPDX-License-Identifier: Apache-2.0
//
// What the bodies of answers have in common: parts of JSON objects and SSE events. No sockets.
#ifndef MSGL_API_REPLY_H
#define MSGL_API_REPLY_H

#include "api/sequence.h"

typedef struct msgl_reply {
    const msgl_gen_request *req;
    const char *id;    // "chatcmpl-...", "cmpl-..."
    const char *model; // served name
    const char *weight_version;
    int64_t created; // Unix time
    int num_choices;
    int64_t prompt_tokens;             // summed over prompts
    const msgl_ids *prompt_ids;        // of the first prompt
    int64_t reasoning_tokens;          // summed over choices; -1: answers that do not count them
    int64_t drafted, accepted;         // summed over choices, as a sequence has them
    const msgl_sequence *first_choice; // as far as it has come; NULL: there is none yet
    // Since the request was read: until its first token (now, if there was none), and until now.
    int64_t first_ns, total_ns;
} msgl_reply;

// All of these append to *out and return 0 or the buffer's failure. cached and completion: summed.

// One SSE event of arbitrary text: each of its lines is a data line.
int msgl__sse_put(msgl_strbuf *out, const char *text, size_t len);
// The event that ends OpenAI's streams, and all of ours.
int msgl__reply_done(msgl_strbuf *out);

// Appends the bytes of all parts of a kind, one behind the other.
int msgl__reply_join(const msgl_parts *parts, msgl_part_kind kind, msgl_strbuf *all);
typedef struct msgl_usage {
    int64_t prompt, cached, completion;
    int64_t reasoning;         // how many of the completion's tokens were thoughts; -1: left out
    int64_t drafted, accepted; // drafts computed; of the completion's tokens those that were drafts
} msgl_usage;

// "usage":{...}; without drafts nothing of them.
int msgl__reply_usage(const msgl_usage *u, msgl_strbuf *out);
// ,"finish_reason":... NULL: null
int msgl__reply_finish(const char *finish, msgl_strbuf *out);
// ,"logprobs":... those that s has now, which it then has no more
int msgl__reply_logprobs(msgl_sequence *s, msgl_strbuf *out);

// With return_ids: ,"token_ids":[...] those that s has now, which it then has no more
int msgl__reply_ids(const msgl_reply *r, msgl_sequence *s, msgl_strbuf *out);
// With return_ids: ,"prompt_token_ids":[...] once for s.
int msgl__reply_prompt_ids(const msgl_reply *r, msgl_sequence *s, msgl_strbuf *out);
// ,"NAME":[...]
int msgl__reply_put_ids(const char *name, const msgl_ids *ids, msgl_strbuf *out);

// With prompt_logprobs: ,"prompt_logprobs":[...] of s.
int msgl__reply_prompt_logprobs(const msgl_sequence *s, msgl_strbuf *out);

// A call's arguments as they are if they are an object, else as a string inside of one: what the
// model wrote is not lost, and the client gets the JSON that it expects.
int msgl__reply_arguments(const char *data, size_t len, msgl_strbuf *out);

// OpenAI's objects, whose "object" is given. A whole one up to its model; up to its choices; and
// from behind them.
int msgl__reply_head(const msgl_reply *r, const char *object, msgl_strbuf *out);
int msgl__reply_begin(const msgl_reply *r, const char *object, msgl_strbuf *out);
int msgl__reply_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out);
// The event with a part of choice `index`: up to its fields, and from behind them.
int msgl__reply_chunk_begin(const msgl_reply *r, const char *object, int index, msgl_strbuf *out);
int msgl__reply_chunk_end(const msgl_reply *r, msgl_sequence *s, msgl_strbuf *out);
// Whether an event without text is one all the same: it has ids or counts that were asked for.
bool msgl__reply_counts(const msgl_reply *r);
// In the place of one that would say nothing: a comment, by which a proxy sees that the stream
// lives.
int msgl__reply_silent(msgl_strbuf *out);
// The event with the usage if it was asked for, and the end of the stream.
int msgl__reply_stream_end(const msgl_reply *r, const char *object, int64_t cached,
                           int64_t completion, msgl_strbuf *out);
// An error inside of a stream, and its end.
int msgl__reply_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out);

#endif
