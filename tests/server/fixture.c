// SPDX-License-Identifier: Apache-2.0
#include "server/fixture.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <limits.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/mem.h"
#include "http/tcp_socket.h"
#include "program/endpoints.h"

// What takes longer hangs: seconds, of which a sanitizer on a busy machine needs some ten.
enum { HANGS_S = 60 };

static const char chat_template[] =
    "{% if tools %}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    // Not as one text, by which the form of the model's thoughts would be chosen.
    "{% if enable_thinking %}{{ '<thi' ~ 'nk>\\n' }}{% endif %}{{ tail }}"
    "{% if messages[0].content == 'boom' %}{{ raise_exception('no booms here') }}{% endif %}";

// GPT-2's printable stand-in for each byte, as UTF-8.
static void byte_name(int byte, int next_free, char out[8])
{
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    const int cp = printable ? byte : 256 + next_free;
    if (cp == '"' || cp == '\\') {
        (void)snprintf(out, 8, "\\%c", cp);
    } else if (cp < 128) {
        (void)snprintf(out, 8, "%c", cp);
    } else {
        (void)snprintf(out, 8, "%c%c", 0xc0 | cp >> 6, 0x80 | (cp & 63));
    }
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static void write_tokenizer(const char *dir)
{
    msgl_strbuf b;
    msgl__strbuf_init(&b, 1 << 20);
    msgl__strbuf_adds(&b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
                          "\"added_tokens\":[");
    const char *const special[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
    for (int i = 0; i < 3; i++) {
        msgl__strbuf_addf(&b,
                          "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                          "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                          i == 0 ? "" : ",", 256 + i, special[i]);
    }
    msgl__strbuf_adds(&b, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                          "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},"
                          "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
                          "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
                          "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                          "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                          "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,"
                          "\"vocab\":{");
    int next_free = 0;
    for (int i = 0; i < 256; i++) {
        char name[8];
        const bool printable =
            (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || (i >= 174 && i <= 255);
        byte_name(i, next_free, name);
        if (!printable) next_free++;
        msgl__strbuf_addf(&b, "%s\"%s\":%d", i == 0 ? "" : ",", name, i);
    }
    assert_int_equal(msgl__strbuf_adds(&b, "},\"merges\":[]}}"), 0);
    write_file(dir, "tokenizer.json", b.data);
    msgl__strbuf_free(&b);
}

void text_write_dir(char *dir)
{
    assert_non_null(mkdtemp(dir));
    write_tokenizer(dir);
    write_file(dir, "chat_template.jinja", chat_template);
}

void text_remove_dir(const char *dir)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    (void)snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    unlink(path);
    rmdir(dir);
}

void text_open(text_fixture *t)
{
    char dir[] = "/tmp/msgl-test-XXXXXX";
    text_write_dir(dir);
    msgl_err err = {0};
    if (msgl__tokenizer_load(dir, &t->tokenizer, &err) != 0) fail_msg("%s", err.text);
    if (msgl__chat_templates_load(dir, &t->templates, &err) != 0) fail_msg("%s", err.text);
    text_remove_dir(dir);
    assert_int_equal(msgl__tokenizer_vocab_size(t->tokenizer), VOCAB);
}

void text_close(text_fixture *t)
{
    msgl__tokenizer_free(t->tokenizer);
    msgl__chat_templates_free(t->templates);
}

// --- the server ---

static void *run_front(void *arg)
{
    return msgl__front_run(arg) == 0 ? NULL : arg;
}

msgl_msg ready_message(int32_t max_running, int32_t num_pages)
{
    return (msgl_msg){.type = MSGL_MSG_READY,
                      .u.ready = {.max_seq_len = CONTEXT,
                                  .max_running = max_running,
                                  .num_pages = num_pages,
                                  .page_size = 16,
                                  .vocab_size = VOCAB,
                                  .attention = "fa",
                                  .device = "test",
                                  .embed_size = 64}};
}

void engine_say_ready(server_fixture *s)
{
    msgl_msg m = ready_message(256, 1000);
    if (s->pooled_size > 0) m.u.ready.pooling = s->reranks ? MSGL_POOL_SCORE : MSGL_POOL_EMBED;
    m.u.ready.pooled_size = s->pooled_size;
    assert_int_equal(msgl__channel_send(s->engine, &m), 0);
    for (int i = 0; i < 500; i++) {
        response r = client_request(s, "GET", "/health", NULL);
        const int status = r.status;
        response_free(&r);
        if (status == 200) return;
        usleep(10000);
    }
    fail_msg("the server did not get ready");
}

void server_open(server_fixture *s, const msgl_front_config *cfg, bool ready)
{
    *s = (server_fixture){0};
    text_open(&s->text);
    s->cfg = cfg != NULL ? *cfg : msgl__front_config_default();
    if (s->cfg.endpoints == NULL) s->cfg.endpoints = msgl__endpoints;
    s->cfg.batches = msgl__program_batches;
    s->cfg.model_name = "test-model";
    s->cfg.model_path = "/models/org/test-model/";
    s->cfg.tokenizer = s->text.tokenizer;
    s->cfg.templates = s->text.templates;
    if (cfg == NULL) s->cfg.stop_timeout_ms = 2000;
    int fd;
    msgl_err err = {0};
    msgl_channel *ours;
    assert_int_equal(msgl__tcp_listen("127.0.0.1", 0, &fd, &s->port, &err), 0);
    assert_int_equal(msgl__front_create(&s->cfg, fd, &s->front, &err), 0);
    assert_int_equal(msgl__channel_pair_local(&ours, &s->engine, &err), 0);
    assert_int_equal(msgl__front_set_channel(s->front, 0, ours), 0);
    for (int i = 1; i < s->cfg.num_replicas; i++) {
        assert_int_equal(msgl__channel_pair_local(&ours, &s->others[i - 1], &err), 0);
        assert_int_equal(msgl__front_set_channel(s->front, i, ours), 0);
    }
    assert_int_equal(pthread_create(&s->thread, NULL, run_front, s->front), 0);
    if (ready) engine_say_ready(s);
}

// Engines that are there (not NULL) are told to exit.
static void expect_exit(msgl_channel *engine)
{
    msgl_msg m;
    bool seen = false;
    if (engine == NULL) return;
    while (msgl__channel_recv(engine, 0, &m) == 1) seen = seen || m.type == MSGL_MSG_EXIT;
    assert_true(seen);
}

void server_close(server_fixture *s)
{
    msgl__front_stop(s->front);
    void *rc;
    assert_int_equal(pthread_join(s->thread, &rc), 0);
    assert_null(rc);
    expect_exit(s->engine);
    for (int i = 0; i < s->cfg.num_replicas - 1; i++) expect_exit(s->others[i]);
    msgl__front_destroy(s->front);
    msgl__channel_destroy(s->engine);
    for (int i = 0; i < s->cfg.num_replicas - 1; i++) msgl__channel_destroy(s->others[i]);
    text_close(&s->text);
}

// --- the engine's part ---

msgl_msg engine_expect(server_fixture *s, msgl_msg_type type)
{
    msgl_msg m = {0};
    assert_int_equal(msgl__channel_recv(s->engine, HANGS_S * 1000, &m), 1);
    assert_int_equal(m.type, type);
    return m;
}

void expect_prompt(const msgl_msg_request *q, const char *text)
{
    static const char *const marks[] = {"{", "}", "EOS"};
    char got[1024] = "";
    size_t n = 0;
    for (int32_t i = 0; i < q->num_ids && n < sizeof got; i++) {
        n += (size_t)(q->ids[i] < 256
                          ? snprintf(got + n, sizeof got - n, "%c", (char)q->ids[i])
                          : snprintf(got + n, sizeof got - n, "%s", marks[q->ids[i] - 256]));
    }
    assert_string_equal(got, text);
}

void engine_expect_nothing(server_fixture *s)
{
    msgl_msg m;
    assert_int_equal(msgl__channel_recv(s->engine, 50, &m), 0);
}

void engine_send_event(server_fixture *s, const msgl_token_event *e)
{
    const msgl_msg m = {.type = MSGL_MSG_TOKENS, .u.tokens = {1, e}};
    assert_int_equal(msgl__channel_send(s->engine, &m), 0);
}

void engine_token(server_fixture *s, uint64_t uid, int32_t token, msgl_finish finish)
{
    const msgl_token_event e = {.uid = uid,
                                .tokens = &token,
                                .num_tokens = 1,
                                .finish = finish,
                                .prompt_tokens = 3,
                                .cached_tokens = 2};
    engine_send_event(s, &e);
}

void engine_text(server_fixture *s, uint64_t uid, const char *text)
{
    for (; *text != '\0'; text++) engine_token(s, uid, (unsigned char)*text, MSGL_FINISH_NONE);
}

void engine_send_until_abort(server_fixture *s, const msgl_token_event *e, msgl_token_logprobs *row)
{
    msgl_msg m;
    int rc = 0;
    for (int i = 0; i < 200000 && rc == 0; i++) {
        engine_send_event(s, e);
        if (row != NULL) row->position++;
        rc = msgl__channel_recv(s->engine, 0, &m);
    }
    if (rc == 0) rc = msgl__channel_recv(s->engine, 20000, &m); // all is sent, not all is read
    assert_int_equal(rc, 1);
    assert_int_equal(m.type, MSGL_MSG_ABORT);
    assert_true(m.u.abort_uid == e->uid);
}

// --- the client ---

void response_free(response *r)
{
    msgl__free(r->head);
    msgl__free(r->body);
    *r = (response){0};
}

const char *header_of(const response *r, const char *name, char buf[256])
{
    const size_t n = strlen(name);
    for (const char *line = strstr(r->head, "\r\n"); line != NULL; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') {
            const char *v = line + n + 1 + strspn(line + n + 1, " ");
            (void)snprintf(buf, 256, "%.*s", (int)strcspn(v, "\r"), v);
            return buf;
        }
    }
    return NULL;
}

int client_open_from(const server_fixture *s, int last)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    const struct timeval tv = {HANGS_S, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    const struct sockaddr_in a = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)s->port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = a;
    from.sin_port = 0;
    from.sin_addr.s_addr = htonl((INADDR_LOOPBACK & ~0xffu) | (uint32_t)last);
    assert_int_equal(bind(fd, (const struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

int client_open(const server_fixture *s)
{
    return client_open_from(s, 1);
}

static void send_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        const ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0) return; // the server has closed: the test looks at what it answered
        data += n;
        len -= (size_t)n;
    }
}

void client_send(int fd, const char *text)
{
    send_all(fd, text, strlen(text));
}

void client_post(int fd, const char *path, const char *body)
{
    char head[512];
    (void)snprintf(head, sizeof head,
                   "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n\r\n",
                   path, strlen(body));
    client_send(fd, head);
    client_send(fd, body);
}

// Reads exactly one byte, -1 at the end.
static int read_byte(int fd)
{
    unsigned char c;
    const ssize_t n = recv(fd, &c, 1, 0);
    return n == 1 ? c : -1;
}

static void read_line(int fd, msgl_strbuf *b)
{
    for (int c; (c = read_byte(fd)) >= 0;) {
        msgl__strbuf_addc(b, (char)c);
        if (c == '\n') return;
    }
}

static void read_n(int fd, msgl_strbuf *b, size_t n)
{
    assert_int_equal(msgl__strbuf_reserve(b, n), 0);
    while (n > 0) {
        const ssize_t got = recv(fd, b->data + b->len, n, 0);
        if (got <= 0) fail_msg("the response ended early");
        b->len += (size_t)got;
        b->data[b->len] = '\0';
        n -= (size_t)got;
    }
}

static void read_chunks(int fd, msgl_strbuf *body)
{
    for (;;) {
        msgl_strbuf line;
        msgl__strbuf_init(&line, 100);
        read_line(fd, &line);
        const size_t n = strtoul(msgl__strbuf_str(&line), NULL, 16);
        msgl__strbuf_free(&line);
        if (n > 0) read_n(fd, body, n);
        if (read_byte(fd) != '\r' || read_byte(fd) != '\n') fail_msg("a chunk ended badly");
        if (n == 0) return;
    }
}

response client_read(int fd)
{
    response r = {0};
    msgl_strbuf head, body;
    msgl__strbuf_init(&head, 1 << 16);
    msgl__strbuf_init(&body, 1 << 28);
    size_t before;
    do {
        before = head.len;
        read_line(fd, &head);
    } while (head.len > before && strcmp(head.data + before, "\r\n") != 0);
    if (head.len == 0 || sscanf(head.data, "HTTP/1.1 %d", &r.status) != 1) {
        fail_msg("no response: '%s'", msgl__strbuf_str(&head));
    }
    r.head = msgl__strbuf_take(&head);
    char buf[256];
    const char *length = header_of(&r, "Content-Length", buf);
    if (length != NULL) {
        read_n(fd, &body, strtoul(length, NULL, 10));
    } else if (header_of(&r, "Transfer-Encoding", buf) != NULL) {
        read_chunks(fd, &body);
    } else if (r.status != 100 && r.status != 204 && r.status != 304) {
        for (int c; (c = read_byte(fd)) >= 0;) msgl__strbuf_addc(&body, (char)c);
    }
    r.len = body.len;
    r.body = msgl__strbuf_take(&body);
    return r;
}

void client_read_until(int fd, msgl_strbuf *seen, const char *text)
{
    while (strstr(msgl__strbuf_str(seen), text) == NULL) {
        const int c = read_byte(fd);
        if (c < 0) fail_msg("'%s' did not come after '%s'", text, msgl__strbuf_str(seen));
        assert_int_equal(msgl__strbuf_addc(seen, (char)c), 0);
    }
}

bool client_closed(int fd)
{
    char buf[4096];
    ssize_t n;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0) {
    }
    return n == 0;
}

response client_request(const server_fixture *s, const char *method, const char *path,
                        const char *body)
{
    const int fd = client_open(s);
    if (body != NULL) {
        client_post(fd, path, body);
    } else {
        char head[512];
        (void)snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n", method,
                       path);
        client_send(fd, head);
    }
    response r;
    if (strcmp(method, "HEAD") == 0) {
        client_send(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        r = client_read(fd); // the caller looks at the head only
        (void)client_closed(fd);
    } else {
        r = client_read(fd);
    }
    close(fd);
    return r;
}

int client_ask(server_fixture *s, const char *body, uint64_t *uid)
{
    const int fd = client_open(s);
    client_post(fd, "/v1/completions", body);
    const msgl_msg m = engine_expect(s, MSGL_MSG_REQUEST);
    if (uid != NULL) *uid = m.u.request.uid;
    return fd;
}

void expect_status(response r, int status)
{
    if (r.status != status) fail_msg("%d instead of %d: %.300s", r.status, status, r.body);
    response_free(&r);
}

void expect_error(response *r, int status, const char *code)
{
    if (r->status != status) fail_msg("%d instead of %d: %.300s", r->status, status, r->body);
    json_t *j = json_loadb(r->body, r->len, 0, NULL);
    const json_t *e = json_object_get(j, "error");
    if (json_string_length(json_object_get(e, "message")) == 0 ||
        json_string_length(json_object_get(e, "type")) == 0) {
        fail_msg("not an error: %.300s", r->body);
    }
    const char *given = json_string_value(json_object_get(e, "code"));
    if (code != NULL && (given == NULL || strcmp(given, code) != 0)) {
        fail_msg("the code is not %s: %.300s", code, r->body);
    }
    const msgl_api_code *row = msgl__api_codes; // what docs/http.md has of it
    while (given != NULL && row->code != NULL && strcmp(row->code, given) != 0) row++;
    if (row->code == NULL) fail_msg("msgl__api_codes has no row of it: %.300s", r->body);
    const msgl_api_status *known = msgl__api_statuses;
    while (known->status != 0 && known->status != status) known++;
    if (known->status == 0) fail_msg("msgl__api_statuses has no row of %d", status);
    json_decref(j);
    char buf[256];
    const bool later = status == 429 || status == 503;
    assert_int_equal(header_of(r, "Retry-After", buf) != NULL, later);
    response_free(r);
}

void expect_alive(server_fixture *s)
{
    uint64_t uid;
    const int fd = client_ask(s, "{\"prompt\":\"x\",\"max_tokens\":1}", &uid);
    engine_token(s, uid, 'y', MSGL_FINISH_LENGTH);
    response r = client_read(fd);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "\"text\":\"y\""));
    response_free(&r);
    close(fd);
}

// Not every kernel lists children.
pid_t first_child(pid_t of, pid_t skip)
{
    DIR *proc = opendir("/proc");
    assert_non_null(proc);
    unsigned long long first = ULLONG_MAX;
    pid_t engine = 0;
    for (const struct dirent *d = readdir(proc); d != NULL; d = readdir(proc)) {
        char path[300], line[1024];
        (void)snprintf(path, sizeof path, "/proc/%s/stat", d->d_name);
        FILE *f = d->d_name[0] >= '1' && d->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        if (f == NULL) continue; // no process, or it has ended since
        const size_t n = fread(line, 1, sizeof line - 1, f);
        (void)fclose(f);
        line[n] = '\0';
        int parent = 0;
        unsigned long long started = 0;
        const char *end = strrchr(line, ')'); // of the name, which may hold anything
        if (end != NULL &&
            sscanf(end,
                   ") %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d "
                   "%llu",
                   &parent, &started) == 2 &&
            parent == of && started < first && atoi(d->d_name) != skip) {
            first = started;
            engine = (pid_t)atoi(d->d_name);
        }
    }
    (void)closedir(proc);
    return engine;
}
