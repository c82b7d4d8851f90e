// SPDX-License-Identifier: Apache-2.0
//
// Text to token ids and back, from a Hugging Face tokenizer.json as it stands, or from the metadata
// of a GGUF file. Equal, id for id, to
// the `tokenizers` library on any valid UTF-8. A loaded tokenizer is immutable and may be used by
// any number of threads at once.
#ifndef MSGL_TOKENIZER_TOKENIZER_H
#define MSGL_TOKENIZER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "utils/strbuf.h"

typedef struct msgl_tokenizer msgl_tokenizer;

// A growing array of token ids; zero-initialised is empty.
typedef struct msgl_ids {
    int32_t *data;
    size_t len, cap;
} msgl_ids;
int msgl__ids_push(msgl_ids *v, int32_t id); // 0 or MSGL_ENOMEM
void msgl__ids_free(msgl_ids *v);

// Loads `dir`/tokenizer.json (and tokenizer_config.json's added_tokens_decoder where it adds to
// it), or the tokenizer of a GGUF file (utils/gguf.h says what is one). On success *out is owned by
// the caller (msgl__tokenizer_free). MSGL_ENOENT, MSGL_EFORMAT (names the file and the field),
// MSGL_EUNSUPPORTED (names the component type and those known), MSGL_ENOMEM.
int msgl__tokenizer_load(const char *dir, msgl_tokenizer **out, msgl_err *err);
void msgl__tokenizer_free(msgl_tokenizer *t);

typedef struct msgl_encode_opts {
    int add_special; // run the post-processor (BOS and the like)
    // Spans of the text that did not come from the model's own template, sorted and disjoint. In
    // them tokens flagged special are not recognised: one needs all of its bytes outside.
    const msgl_text_span *untrusted;
    size_t num_untrusted;
    // Spans, most likely of these, in which the other added tokens are not recognised either, but
    // for those that are only blanks. Without any they are recognised everywhere, as in HF.
    const msgl_text_span *foreign;
    size_t num_foreign;
    size_t max_ids; // 0: no limit; else MSGL_ELIMIT once more ids would be made
} msgl_encode_opts;

// Appends the ids of text[0, len) to *out: equal to encode() of `tokenizers` without its truncation
// and padding, which a file may ask for and which are left to the caller. MSGL_EFORMAT for invalid
// UTF-8 (names the byte offset); *out is then as before. opts NULL: no specials added, all trusted.
int msgl__tokenizer_encode(const msgl_tokenizer *t, const char *text, size_t len,
                           const msgl_encode_opts *opts, msgl_ids *out, msgl_err *err);

// The same of a pair of texts, with what the file puts around two of them. *pair_from: the first of
// the ids (from 0) that is of the second text's type, or how many they are. MSGL_EUNSUPPORTED: the
// file does not say what stands around a pair. No spans are read: both texts are untrusted.
int msgl__tokenizer_encode_pair(const msgl_tokenizer *t, const char *a, size_t a_len, const char *b,
                                size_t b_len, const msgl_encode_opts *opts, msgl_ids *out,
                                size_t *pair_from, msgl_err *err);

// Appends the text of ids[0, n). As `tokenizers`' decode(skip_special_tokens): bytes that are not
// UTF-8 become U+FFFD. Ids out of range are MSGL_EINVAL.
int msgl__tokenizer_decode(const msgl_tokenizer *t, const int32_t *ids, size_t n, int skip_special,
                           msgl_strbuf *out, msgl_err *err);

int msgl__tokenizer_vocab_size(const msgl_tokenizer *t);                  // largest id + 1
int32_t msgl__tokenizer_id(const msgl_tokenizer *t, const char *content); // exact token; -1: none
int msgl__tokenizer_is_special(const msgl_tokenizer *t, int32_t id);
// The raw bytes that `id` stands for in a decoded text, for OpenAI's logprobs.bytes: written to buf
// (at most cap), the full length returned; -1 for an id out of range.
int msgl__tokenizer_token_bytes(const msgl_tokenizer *t, int32_t id, char *buf, size_t cap);

// The first id of those that both have which means something else to a than to b; -1: none does.
int32_t msgl__tokenizer_differs(const msgl_tokenizer *a, const msgl_tokenizer *b);

// Streaming detokenization of one sequence: feeding ids one by one, the pieces concatenate to
// exactly what msgl__tokenizer_decode gives for all of them, and no piece ends inside a UTF-8
// character. O(1) amortised per token; the only heap memory is the state's own buffer, bounded by
// the longest token and, where byte-fallback tokens (<0xNN>) are decoded, by the longest run of
// them: one bad byte turns a whole run into U+FFFD, so that a run is held back until something else
// follows.
typedef struct msgl_detok msgl_detok;
msgl_detok *msgl__detok_create(const msgl_tokenizer *t, int skip_special); // NULL: out of memory
void msgl__detok_destroy(msgl_detok *d);
// Appends what became certain by `id` to *out (perhaps nothing). 0, MSGL_EINVAL, MSGL_ENOMEM.
int msgl__detok_push(msgl_detok *d, int32_t id, msgl_strbuf *out);
// The end: appends what was held back (incomplete bytes as U+FFFD).
int msgl__detok_finish(msgl_detok *d, msgl_strbuf *out);

#endif
