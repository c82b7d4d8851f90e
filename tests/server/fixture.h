// SPDX-License-Identifier: Apache-2.0
//
// A tokenizer whose ids are bytes (256 of them, then three special tokens), a small chat template,
// a front in its own thread with a scripted engine at the other end of its channel, and an HTTP
// client on plain sockets.
#ifndef MSGL_TESTS_SERVER_FIXTURE_H
#define MSGL_TESTS_SERVER_FIXTURE_H

#include <pthread.h>

#include "front/front.h"

enum { ID_IM_START = 256, ID_IM_END = 257, ID_EOS = 258, VOCAB = 259, CONTEXT = 4096 };

typedef struct text_fixture {
    msgl_tokenizer *tokenizer;
    msgl_chat_templates *templates;
} text_fixture;
// A model folder with these two; dir is a template as for mkdtemp.
void text_write_dir(char *dir);
void text_remove_dir(const char *dir);
void text_open(text_fixture *t);
void text_close(text_fixture *t);

typedef struct server_fixture {
    text_fixture text;
    msgl_front_config cfg;
    msgl_front *front;
    pthread_t thread;
    msgl_channel *engine; // our end; functions that begin with engine_ speak for this one
    // Of replicas 1, 2, ...: to speak for one, copy the fixture and make this the copy's engine.
    msgl_channel *others[7];
    int port;
    int32_t pooled_size; // of READY
    bool reranks;        // the same: these are scores
} server_fixture;

// cfg: NULL for defaults. ready: send the engine's READY and wait until /health says so.
void server_open(server_fixture *s, const msgl_front_config *cfg, bool ready);
void server_close(server_fixture *s); // stops it gracefully and checks that it told the engine
// READY of an engine that makes tokens.
msgl_msg ready_message(int32_t max_running, int32_t num_pages);
void engine_say_ready(server_fixture *s);

// Receives the next message, which must be of this type.
msgl_msg engine_expect(server_fixture *s, msgl_msg_type type);
// No message comes within some milliseconds.
void engine_expect_nothing(server_fixture *s);
// What a request's ids are of: bytes, { for im_start, } for im_end, EOS.
void expect_prompt(const msgl_msg_request *q, const char *text);
void engine_token(server_fixture *s, uint64_t uid, int32_t token, msgl_finish finish);
void engine_text(server_fixture *s, uint64_t uid, const char *text); // one token per byte
void engine_send_event(server_fixture *s, const msgl_token_event *e);
// Sends e again and again, the position of its row (or NULL) counting up, until the front has the
// engine abort that request.
void engine_send_until_abort(server_fixture *s, const msgl_token_event *e,
                             msgl_token_logprobs *row);

typedef struct response {
    int status;
    char *head; // status line and headers
    char *body; // de-chunked
    size_t len;
} response;
void response_free(response *r);
const char *header_of(const response *r, const char *name, char buf[256]); // NULL: none

int client_open(const server_fixture *s);
int client_open_from(const server_fixture *s, int last); // from 127.0.0.LAST
void client_send(int fd, const char *text);
void client_post(int fd, const char *path, const char *body);
response client_read(int fd); // one whole response
// Reads raw bytes until `text` has come; the bytes so far (static buffer of the call's fd use).
void client_read_until(int fd, msgl_strbuf *seen, const char *text);
bool client_closed(int fd); // the server closes within some seconds (pending bytes are read over)
response client_request(const server_fixture *s, const char *method, const char *path,
                        const char *body); // on a connection of its own
// A connection that has asked /v1/completions, and the uid (NULL: not wanted) of the engine's first
// request for it.
int client_ask(server_fixture *s, const char *body, uint64_t *uid);

void expect_status(response r, int status); // frees r
// An error answer with this status and code (NULL: any), which it frees.
void expect_error(response *r, int status, const char *code);
// A plain request of another client is served.
void expect_alive(server_fixture *s);

// The child of a process that was started first, `skip` aside; 0: none. Of a server it is its
// engine, of that its second rank.
pid_t first_child(pid_t of, pid_t skip);

#endif
