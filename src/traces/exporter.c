// SPDX-License-Identifier: Apache-2.0
#include "traces/exporter.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/mem.h"
#include "http/curl.h"
#include "utils/clock.h"
#include "utils/json.h"
#include "utils/packet.h"
#include "utils/random.h"
#include "utils/strbuf.h"

enum {
    QUEUE = 2048, // requests; OpenTelemetry's default of a batch processor, as is the next
    BATCH = 512,
    SOCKET_BYTES = 1 << 20,
    MAX_TRIES = 5,
    FIRST_WAIT_MS = 1000, // then twice as long each time
    MAX_WAIT_MS = 30000,  // also when the collector asks for more
    ANSWER_MAX = 64 * 1024,
    LOG_EVERY_S = 60, // between lines while the collector does not take spans
};

struct msgl_exporter {
    msgl_exporter_config cfg;
    const msgl_curl *curl;
    CURLM *multi;
    CURL *easy;
    struct curl_slist *headers;
    char detail[CURL_ERROR_SIZE];

    msgl_span *queue; // [QUEUE], a ring
    int first, count;
    uint64_t due_ns; // when the oldest of them has to go
    bool closing;    // nobody sends any more
    uint64_t end_ns; // of what is left then

    // The batch at the queue's head that is being exported:
    char *body; // NULL: none
    int in_batch, tries;
    bool posting;       // the request is under way
    uint64_t retry_ns;  // else: when it is made again
    msgl_strbuf answer; // the beginning of it
    uint64_t told_ns;   // when the log last said that spans are not taken; 0: they are
    uint64_t random;
};

// --- the front's side ---

int msgl__traces_open(int fd[2], msgl_traces_counts **counts, msgl_err *err)
{
    const int bytes = SOCKET_BYTES;
    void *p =
        mmap(NULL, sizeof **counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return msgl__err_set(err, MSGL_ENOMEM, "traces: no memory to share");
    *counts = p; // zero
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd) != 0) {
        msgl__traces_counts_free(p);
        *counts = NULL;
        return msgl__err_set(err, MSGL_EIO, "socketpair: %s", strerror(errno));
    }
    // As much of it as the system gives.
    (void)setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    return 0;
}

void msgl__traces_counts_free(msgl_traces_counts *counts)
{
    if (counts != NULL) (void)munmap(counts, sizeof *counts);
}

static void add(_Atomic uint64_t *counter, int n)
{
    atomic_fetch_add_explicit(counter, (uint64_t)n, memory_order_relaxed);
}

void msgl__traces_send(const msgl_traces *t, const msgl_span *s)
{
    if (msgl__packet_send(t->fd, s, sizeof *s, -1) == 0) return;
    add(&t->counts->dropped, msgl__span_count(s));
}

// --- the queue ---

static msgl_span *queued(const msgl_exporter *e, int i)
{
    return &e->queue[(e->first + i) % QUEUE];
}

static uint64_t after_ms(uint64_t now, int64_t ms)
{
    return now + (uint64_t)ms * 1000000u;
}

static void take_span(msgl_exporter *e, const msgl_span *from)
{
    msgl_span s = *from;
    msgl__span_check(&s);
    const int n = msgl__span_count(&s);
    if (e->count == QUEUE) {
        add(&e->cfg.counts->dropped, n);
        return;
    }
    if (e->count == e->in_batch) {
        e->due_ns = after_ms(msgl__now_ns(), e->cfg.settings->delay_ms);
    }
    *queued(e, e->count++) = s;
    add(&e->cfg.counts->queued, n);
}

static void take_spans(msgl_exporter *e)
{
    msgl_span s;
    int passed;
    ssize_t n;
    while ((n = msgl__packet_recv(e->cfg.fd, &s, sizeof s, &passed)) > 0) {
        if (passed >= 0) close(passed);
        if (n == (ssize_t)sizeof s) take_span(e, &s);
    }
    if (n == 0 || e->closing) return;
    e->closing = true;
    e->end_ns = after_ms(msgl__now_ns(), e->cfg.linger_ms);
}

// --- a batch ---

static int batch_spans(const msgl_exporter *e)
{
    int n = 0;
    for (int i = 0; i < e->in_batch; i++) n += msgl__span_count(queued(e, i));
    return n;
}

// The batch is over: so many of its spans were taken.
static void end_batch(msgl_exporter *e, int64_t exported)
{
    const int n = batch_spans(e);
    const int good = exported < 0 ? 0 : exported > n ? n : (int)exported;
    add(&e->cfg.counts->exported, good);
    add(&e->cfg.counts->dropped, n - good);
    atomic_fetch_sub_explicit(&e->cfg.counts->queued, (uint64_t)n, memory_order_relaxed);
    e->first = (e->first + e->in_batch) % QUEUE;
    e->count -= e->in_batch;
    e->in_batch = e->tries = 0;
    msgl__free(e->body);
    e->body = NULL;
}

// Says that spans are not taken, now and then.
static void tell(msgl_exporter *e, const char *what, const char *why)
{
    const uint64_t now = msgl__now_ns();
    if (e->told_ns != 0 && now < e->told_ns + (uint64_t)LOG_EVERY_S * 1000000000u) return;
    e->told_ns = now;
    msgl__log(e->cfg.log, MSGL_LOG_WARN, "traces: %s: %s", what, why);
}

static void tell_good(msgl_exporter *e)
{
    if (e->told_ns == 0) return;
    e->told_ns = 0;
    const uint64_t n = atomic_load_explicit(&e->cfg.counts->dropped, memory_order_relaxed);
    msgl__log(e->cfg.log, MSGL_LOG_INFO, "traces: the collector takes spans again; %llu dropped",
              (unsigned long long)n);
}

// partialSuccess of an answer: how many it refused.
static int64_t refused_of(msgl_exporter *e)
{
    json_t *o = msgl__json_loadb(msgl__strbuf_str(&e->answer), e->answer.len, 0, NULL, NULL);
    const json_t *p = json_object_get(o, "partialSuccess");
    const json_t *n = json_object_get(p, "rejectedSpans"),
                 *why = json_object_get(p, "errorMessage");
    const int64_t refused =
        json_is_string(n) ? strtoll(json_string_value(n), NULL, 10) : json_integer_value(n);
    if (refused > 0 || json_string_length(why) > 0) {
        tell(e, "the collector says",
             json_is_string(why) ? json_string_value(why) : "some spans are refused");
    }
    json_decref(o);
    return refused < 0 ? 0 : refused;
}

static bool may_retry(CURLcode code, long status)
{
    if (code != CURLE_OK) return code != CURLE_WRITE_ERROR;
    return status == 429 || status == 502 || status == 503 || status == 504;
}

static void retry_later(msgl_exporter *e, CURLcode code)
{
    curl_off_t asked = 0;
    if (code == CURLE_OK) e->curl->getinfo(e->easy, CURLINFO_RETRY_AFTER, &asked);
    int64_t ms = (int64_t)FIRST_WAIT_MS << (e->tries - 1);
    if (ms > MAX_WAIT_MS) ms = MAX_WAIT_MS;
    // Servers that lost the same collector do not come back to it all at once.
    ms = ms * 4 / 5 + (int64_t)((float)ms * 0.4f * msgl__random_unit(&e->random));
    if (asked > 0) ms = asked > MAX_WAIT_MS / 1000 ? MAX_WAIT_MS : (int64_t)asked * 1000;
    e->retry_ns = after_ms(msgl__now_ns(), ms);
}

static void posted(msgl_exporter *e, CURLcode code)
{
    long status = 0;
    char why[CURL_ERROR_SIZE + 64];
    e->curl->getinfo(e->easy, CURLINFO_RESPONSE_CODE, &status);
    (void)e->curl->multi_remove(e->multi, e->easy);
    e->posting = false;
    if (code == CURLE_OK && status >= 200 && status < 300) {
        const int64_t refused = refused_of(e);
        if (refused == 0) tell_good(e);
        end_batch(e, batch_spans(e) - refused);
        return;
    }
    if (code == CURLE_OK) {
        (void)snprintf(why, sizeof why, "it answers with status %ld", status);
    } else {
        (void)snprintf(why, sizeof why, "%s",
                       e->detail[0] != '\0' ? e->detail : e->curl->strerror(code));
    }
    tell(e, "the collector does not take spans", why);
    if (!may_retry(code, status) || e->tries >= MAX_TRIES) {
        end_batch(e, 0);
    } else {
        retry_later(e, code);
    }
}

static size_t on_answer(char *data, size_t one, size_t n, void *ctx)
{
    msgl_exporter *e = ctx;
    (void)one;
    return msgl__strbuf_add(&e->answer, data, n) == 0 ? n : 0; // too long: the transfer fails
}

static void post(msgl_exporter *e)
{
    const msgl_curl *c = e->curl;
    msgl__strbuf_clear(&e->answer);
    e->detail[0] = '\0';
    e->tries++;
    c->setopt(e->easy, CURLOPT_POSTFIELDS, e->body);
    c->setopt(e->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(e->body));
    e->posting = c->multi_add(e->multi, e->easy) == CURLM_OK;
    if (!e->posting) end_batch(e, 0);
}

// The oldest spans, of a queue that has some.
static void begin_batch(msgl_exporter *e)
{
    static msgl_span batch[BATCH]; // without the ring's end in it
    const msgl_span_origin from = {e->cfg.model, e->cfg.scheme, e->cfg.settings->resource};
    e->in_batch = e->count < BATCH ? e->count : BATCH;
    for (int i = 0; i < e->in_batch; i++) batch[i] = *queued(e, i);
    e->body = msgl__spans_encode(&from, batch, e->in_batch);
    if (e->body != NULL) {
        post(e);
    } else {
        end_batch(e, 0);
    }
}

// --- life ---

static bool set_options(msgl_exporter *e)
{
    const msgl_curl *c = e->curl;
    const msgl_traces_settings *s = e->cfg.settings;
    struct curl_slist *list = c->append(NULL, "Content-Type: application/json");
    // No "Expect: 100-continue", for which some collectors keep a body waiting.
    struct curl_slist *more = list == NULL ? NULL : c->append(list, "Expect:");
    for (int i = 0; i < s->num_headers && more != NULL; i++) more = c->append(list, s->headers[i]);
    e->headers = list;
    if (more == NULL) return false;
    c->setopt(e->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    c->setopt(e->easy, CURLOPT_FOLLOWLOCATION, 0L);
    c->setopt(e->easy, CURLOPT_NOSIGNAL, 1L);
    c->setopt(e->easy, CURLOPT_USERAGENT, "OTel-OTLP-Exporter-minisgl/" MSGL_VERSION);
    c->setopt(e->easy, CURLOPT_TIMEOUT_MS, (long)s->timeout_ms);
    c->setopt(e->easy, CURLOPT_ERRORBUFFER, e->detail);
    c->setopt(e->easy, CURLOPT_WRITEFUNCTION, on_answer);
    c->setopt(e->easy, CURLOPT_WRITEDATA, (void *)e);
    c->setopt(e->easy, CURLOPT_HTTPHEADER, e->headers);
    c->setopt(e->easy, CURLOPT_POST, 1L);
    if (s->ca_file != NULL) c->setopt(e->easy, CURLOPT_CAINFO, s->ca_file);
    return c->setopt(e->easy, CURLOPT_URL, s->url) == CURLE_OK;
}

// Without what could be secret: a user's part in front of the host, a query.
static void tell_where(const msgl_exporter_config *cfg)
{
    const char *url = cfg->settings->url, *host = strstr(url, "://") + 3;
    const int scheme = (int)(host - url);
    const char *at = memrchr(host, '@', strcspn(host, "/?#"));
    if (at != NULL) host = at + 1;
    msgl__log(cfg->log, MSGL_LOG_INFO, "traces: spans of requests go to %.*s%.*s", scheme, url,
              (int)strcspn(host, "?#"), host);
}

int msgl__exporter_create(const msgl_exporter_config *cfg, msgl_exporter **out, msgl_err *err)
{
    msgl_exporter *e = msgl__calloc(1, sizeof *e);
    if (e == NULL) return msgl__err_set(err, MSGL_ENOMEM, "traces: out of memory");
    e->cfg = *cfg;
    e->random = msgl__now_ns();
    msgl__strbuf_init(&e->answer, ANSWER_MAX);
    int rc = msgl__curl_open("exporting traces", &e->curl, err);
    if (rc == 0) {
        e->multi = e->curl->multi_init();
        e->easy = e->curl->init();
        e->queue = msgl__calloc(QUEUE, sizeof *e->queue);
        if (e->multi == NULL || e->easy == NULL || e->queue == NULL || !set_options(e)) {
            rc = msgl__err_set(err, MSGL_ENOMEM, "traces: out of memory");
        }
    }
    if (rc != 0) {
        msgl__exporter_destroy(e);
        return rc;
    }
    tell_where(cfg);
    *out = e;
    return 0;
}

void msgl__exporter_destroy(msgl_exporter *e)
{
    if (e == NULL) return;
    if (e->posting) (void)e->curl->multi_remove(e->multi, e->easy);
    if (e->easy != NULL) e->curl->cleanup(e->easy);
    if (e->multi != NULL) (void)e->curl->multi_cleanup(e->multi);
    if (e->headers != NULL) e->curl->free_all(e->headers);
    msgl__free(e->body);
    msgl__strbuf_free(&e->answer);
    msgl__free(e->queue);
    msgl__free(e);
}

// Begins what is to be done now.
static void act(msgl_exporter *e, uint64_t now)
{
    if (e->posting) return;
    if (e->body != NULL) {
        if (now >= e->retry_ns) post(e);
    } else if (e->count > 0 && (e->count >= BATCH || e->closing || now >= e->due_ns)) {
        begin_batch(e);
    }
}

// Waits for spans, for the collector, or until there is something to do.
static void await(msgl_exporter *e)
{
    const uint64_t now = msgl__now_ns();
    uint64_t until = after_ms(now, 3600 * 1000);
    if (e->closing && e->end_ns < until) until = e->end_ns;
    if (!e->posting && e->body != NULL && e->retry_ns < until) until = e->retry_ns;
    if (!e->posting && e->body == NULL && e->count > 0 && e->due_ns < until) until = e->due_ns;
    const int ms = until <= now ? 0 : (int)((until - now) / 1000000u) + 1;
    if (e->posting) {
        struct curl_waitfd w = {.fd = e->cfg.fd, .events = CURL_WAIT_POLLIN};
        int n;
        (void)e->curl->multi_wait(e->multi, &w, e->closing ? 0 : 1, ms < 1000 ? ms : 1000, &n);
        if (e->closing && n == 0) (void)poll(NULL, 0, 10); // it does not wait for nothing
        return;
    }
    struct pollfd p = {.fd = e->closing ? -1 : e->cfg.fd, .events = POLLIN};
    (void)poll(&p, 1, ms);
}

static void perform(msgl_exporter *e)
{
    int n;
    if (!e->posting) return;
    (void)e->curl->multi_perform(e->multi, &n);
    const CURLMsg *m = e->curl->multi_info_read(e->multi, &n);
    if (m != NULL && m->msg == CURLMSG_DONE) posted(e, m->data.result);
}

// Nobody sends any more, and nothing is left or can be done in time.
static bool is_over(const msgl_exporter *e, uint64_t now)
{
    if (!e->closing) return false;
    const bool late = e->body != NULL && !e->posting && e->retry_ns >= e->end_ns;
    return e->count == 0 || now >= e->end_ns || late;
}

void msgl__exporter_run(msgl_exporter *e)
{
    for (;;) {
        take_spans(e);
        perform(e);
        const uint64_t now = msgl__now_ns();
        if (is_over(e, now)) break;
        act(e, now);
        await(e);
    }
    if (e->count == 0) return;
    e->in_batch = e->count;
    tell(e, "spans are lost", "the server stops");
    end_batch(e, 0);
}
