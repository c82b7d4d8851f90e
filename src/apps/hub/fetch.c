// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "http/curl.h"
#include "apps/hub/sha.h"
#include "utils/file.h"

enum {
    MAX_HOPS = 8,        // redirects of one request
    MAX_TRIES = 5,       // in a row that bring nothing
    FIRST_WAIT_MS = 500, // then twice as long each time
    MAX_WAIT_MS = 60000, // also when the server asks for more
    CONNECT_S = 20,
    STALL_S = 60, // without a byte
};

struct msgl_fetch {
    msgl_fetch_config cfg;
    const msgl_curl *curl;
    CURL *easy;
    char origin[512]; // scheme, host and port of the endpoint
    char auth[4200];  // the headers, or ""
    char cookie[4200];
    char detail[CURL_ERROR_SIZE];
};

// An answer that is to be had, with as many attempts as it takes.
struct transfer {
    msgl_fetch *f;
    const char *what;
    msgl_strbuf *text; // the answer goes here,
    int fd;            // or into this file,
    msgl_sha sha;      // whose `done` bytes this has seen
    uint64_t done, size;
    msgl_sha_kind kind;
    bool range;     // this request asked for what is behind `done`
    bool restarted; // and one was answered with something else
    int write_error;
    bool too_long;
    long status;
    uint64_t range_start; // Content-Range
    char code[64];        // X-Error-Code: why the hub refuses
};

// ---- the file ----

static void start_hash(struct transfer *t)
{
    msgl__sha_start(&t->sha, t->kind);
    if (t->kind != MSGL_SHA1) return;
    char head[40]; // git hashes this before a file's bytes
    const int n = snprintf(head, sizeof head, "blob %" PRIu64, t->size);
    msgl__sha_add(&t->sha, head, (size_t)n + 1);
}

static bool empty_file(struct transfer *t)
{
    t->done = 0;
    start_hash(t);
    if (ftruncate(t->fd, 0) == 0 && lseek(t->fd, 0, SEEK_SET) == 0) return true;
    t->write_error = errno;
    return false;
}

// Reads and hashes what an earlier attempt has left in the file.
static int take_up(struct transfer *t, const char *path, msgl_err *err)
{
    static char buf[1 << 16];
    start_hash(t);
    for (;;) {
        if (*t->f->cfg.interrupted) return msgl__err_set(err, MSGL_EABORTED, "interrupted");
        const ssize_t n = read(t->fd, buf, sizeof buf);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return msgl__err_set(err, MSGL_EIO, "%.160s: %s", path, strerror(errno));
        if (n == 0) return 0;
        msgl__sha_add(&t->sha, buf, (size_t)n);
        t->done += (uint64_t)n;
        if (t->done > t->size) {
            if (empty_file(t)) return 0;
            return msgl__err_set(err, MSGL_EIO, "%.160s: %s", path, strerror(t->write_error));
        }
    }
}

static bool add_to_file(struct transfer *t, const char *data, size_t n)
{
    if (n > t->size - t->done) {
        t->too_long = true;
        return false;
    }
    for (size_t at = 0; at < n;) {
        const ssize_t got = write(t->fd, data + at, n - at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            t->write_error = errno;
            return false;
        }
        msgl__sha_add(&t->sha, data + at, (size_t)got);
        t->done += (uint64_t)got;
        at += (size_t)got;
    }
    const msgl_fetch_config *c = &t->f->cfg;
    if (c->progress != NULL) c->progress(c->ctx, t->done);
    return true;
}

// ---- one request ----

static size_t on_body(char *data, size_t one, size_t n, void *ctx)
{
    (void)one; // is 1
    struct transfer *t = ctx;
    long status = 0;
    t->f->curl->getinfo(t->f->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206) return n; // a page about an error
    if (t->text != NULL) {
        if (msgl__strbuf_add(t->text, data, n) == 0) return n;
        t->too_long = true;
        return 0;
    }
    if (t->range) { // the first bytes of the answer: is it what was asked for?
        t->range = false;
        const bool right = status == 206 && t->range_start == t->done;
        if (!right && status == 206) { // another part: everything, next time
            t->restarted = true;
            return 0;
        }
        if (!right && !empty_file(t)) return 0;
    }
    return add_to_file(t, data, n) ? n : 0;
}

// The value of the header line if it is that of this header; else NULL.
static const char *header_value(const char *line, const char *name)
{
    const size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':') return NULL;
    return line + n + 1 + strspn(line + n + 1, " \t");
}

static size_t on_header(char *data, size_t one, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    char line[256];
    (void)one;
    (void)snprintf(line, sizeof line, "%.*s", (int)(n < 255 ? n : 255), data);
    line[strcspn(line, "\r\n")] = '\0';
    const char *v = header_value(line, "x-error-code");
    if (v != NULL) msgl__printable(v, t->code, sizeof t->code);
    v = header_value(line, "content-range");
    if (v != NULL && strncasecmp(v, "bytes ", 6) == 0) {
        t->range_start = (uint64_t)strtoull(v + 6, NULL, 10);
    }
    return n;
}

static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    const struct transfer *t = ctx;
    return *t->f->cfg.interrupted ? 1 : 0;
}

// Whether the address is the endpoint's own, which may see the token: with https://hub.example,
// "https://hub.example/x" is, and "https://hub.example.evil/" is not.
static bool is_endpoint(const msgl_fetch *f, const char *url)
{
    const size_t n = strlen(f->origin);
    return strncmp(url, f->origin, n) == 0 && (url[n] == '/' || url[n] == '?' || url[n] == '\0');
}

// The file with the certificates of authorities; NULL: libcurl's own default. That is the place of
// the system that libcurl was built for, and the one of a wheel runs on others.
static const char *ca_file(void)
{
    static const char *const USUAL[] = {
        "/etc/ssl/certs/ca-certificates.crt", // Debian
        "/etc/pki/tls/certs/ca-bundle.crt",   // Fedora
        "/etc/ssl/ca-bundle.pem",             // openSUSE
        "/etc/ssl/cert.pem",                  // Alpine, Arch
    };
    const char *said = getenv("SSL_CERT_FILE"); // OpenSSL's variable
    if (said != NULL && *said != '\0') return said;
    for (size_t i = 0; i < MSGL_COUNT(USUAL); i++) {
        if (access(USUAL[i], R_OK) == 0) return i == 0 ? NULL : USUAL[i];
    }
    return NULL;
}

static CURLcode one_request(msgl_fetch *f, const char *url, struct transfer *t)
{
    const msgl_curl *c = f->curl;
    struct curl_slist *headers = NULL;
    char range[32];
    t->status = 0;
    t->code[0] = '\0';
    t->range_start = UINT64_MAX;
    t->range = t->text == NULL && t->done > 0;
    f->detail[0] = '\0';
    c->reset(f->easy); // the connection stays
    c->setopt(f->easy, CURLOPT_URL, url);
    c->setopt(f->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    c->setopt(f->easy, CURLOPT_FOLLOWLOCATION, 0L); // each hop is looked at here
    c->setopt(f->easy, CURLOPT_NOSIGNAL, 1L);
    c->setopt(f->easy, CURLOPT_USERAGENT, "minisgl/" MSGL_VERSION);
    c->setopt(f->easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    c->setopt(f->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    c->setopt(f->easy, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    c->setopt(f->easy, CURLOPT_BUFFERSIZE, 262144L);
    c->setopt(f->easy, CURLOPT_ERRORBUFFER, f->detail);
    c->setopt(f->easy, CURLOPT_WRITEFUNCTION, on_body);
    c->setopt(f->easy, CURLOPT_WRITEDATA, (void *)t);
    c->setopt(f->easy, CURLOPT_HEADERFUNCTION, on_header);
    c->setopt(f->easy, CURLOPT_HEADERDATA, (void *)t);
    c->setopt(f->easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    c->setopt(f->easy, CURLOPT_XFERINFODATA, (void *)t);
    c->setopt(f->easy, CURLOPT_NOPROGRESS, 0L);
    if (ca_file() != NULL) c->setopt(f->easy, CURLOPT_CAINFO, ca_file());
    if (t->range) {
        (void)snprintf(range, sizeof range, "%" PRIu64 "-", t->done);
        c->setopt(f->easy, CURLOPT_RANGE, range);
    }
    if (f->auth[0] != '\0' && is_endpoint(f, url)) headers = c->append(NULL, f->auth);
    if (headers != NULL && f->cookie[0] != '\0') (void)c->append(headers, f->cookie);
    c->setopt(f->easy, CURLOPT_HTTPHEADER, headers);
    const CURLcode code = c->perform(f->easy);
    c->getinfo(f->easy, CURLINFO_RESPONSE_CODE, &t->status);
    c->free_all(headers);
    return code;
}

// Follows redirects, but none from https to http.
static CURLcode with_redirects(msgl_fetch *f, const char *url, struct transfer *t)
{
    char here[8192];
    if (strlen(url) >= sizeof here) return CURLE_URL_MALFORMAT;
    (void)snprintf(here, sizeof here, "%s", url);
    for (int hop = 0; hop < MAX_HOPS; hop++) {
        const CURLcode code = one_request(f, here, t);
        if (code != CURLE_OK || t->status < 300 || t->status > 399) return code;
        char *next = NULL;
        f->curl->getinfo(f->easy, CURLINFO_REDIRECT_URL, &next);
        if (next == NULL) return code;
        if (strlen(next) >= sizeof here ||
            (strncmp(here, "https:", 6) == 0 && strncmp(next, "https:", 6) != 0)) {
            return CURLE_URL_MALFORMAT;
        }
        (void)snprintf(here, sizeof here, "%s", next);
    }
    return CURLE_TOO_MANY_REDIRECTS;
}

// ---- attempts ----

static bool is_passing(CURLcode code, long status)
{
    switch (code) {
    case CURLE_OK:
        return status == 408 || status == 429 || status == 500 || (status >= 502 && status <= 504);
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: return true;
    default: return false;
    }
}

static int refused(const struct transfer *t, msgl_err *err)
{
    const msgl_fetch *f = t->f;
    const char *hub = f->origin, *code = t->code[0] != '\0' ? t->code : "no reason given";
    const msgl_hub_kind *kind = f->cfg.kind;
    if (t->status == 401 || t->status == 403) {
        char token[120];
        if (f->auth[0] == '\0') {
            (void)snprintf(token, sizeof token, "set %s to a token that may read it",
                           kind->token_var);
        } else {
            (void)snprintf(token, sizeof token, "the token of %s may not read it",
                           kind->token_from);
        }
        return msgl__err_set(err, MSGL_EINVAL,
                             "%.70s: %.50s answers %ld (%s): no such model, or a gated one whose "
                             "terms have to be accepted there; %s",
                             t->what, hub, t->status, code, token);
    }
    if (t->status == 404) {
        const bool hidden = kind->hides && f->auth[0] == '\0';
        return msgl__err_set(err, MSGL_ENOENT, "%.110s: not found at %.60s (404, %s)%s%s", t->what,
                             hub, code, hidden ? "; if it is private, set " : "",
                             hidden ? kind->token_var : "");
    }
    return msgl__err_set(err, t->status == 400 ? MSGL_EINVAL : MSGL_EIO,
                         "%.110s: %.60s answers %ld (%s)", t->what, hub, t->status, code);
}

static int failed(const struct transfer *t, CURLcode code, msgl_err *err)
{
    const msgl_fetch *f = t->f;
    if (*f->cfg.interrupted) return msgl__err_set(err, MSGL_EABORTED, "interrupted");
    if (t->write_error != 0) {
        return msgl__err_set(err, MSGL_EIO, "%.120s: cannot be written: %s", t->what,
                             strerror(t->write_error));
    }
    if (t->too_long) {
        return msgl__err_set(err, MSGL_EFORMAT, "%.120s: longer than %s", t->what,
                             t->text != NULL ? "allowed" : "the hub says");
    }
    if (code == CURLE_OK && t->status != 200 && t->status != 206) return refused(t, err);
    return msgl__err_set(err, MSGL_EIO, "%.90s: %.50s: %.100s", t->what, f->origin,
                         f->detail[0] != '\0' ? f->detail : f->curl->strerror(code));
}

// Sleeps, until an interruption at most.
static void pause_ms(const msgl_fetch *f, long ms)
{
    for (; ms > 0 && !*f->cfg.interrupted; ms -= 50) {
        const struct timespec t = {.tv_nsec = (ms < 50 ? ms : 50) * 1000000};
        nanosleep(&t, NULL);
    }
}

static void wait_for_next(msgl_fetch *f, const struct transfer *t, CURLcode code, int tries)
{
    curl_off_t asked = 0;
    if (code == CURLE_OK) f->curl->getinfo(f->easy, CURLINFO_RETRY_AFTER, &asked);
    long ms = (long)FIRST_WAIT_MS << (tries - 1);
    if (asked > 0) ms = asked > MAX_WAIT_MS / 1000 ? MAX_WAIT_MS : (long)asked * 1000;
    msgl_err why;
    char line[400];
    (void)failed(t, code, &why);
    (void)snprintf(line, sizeof line, "%s; again in %.1f s", why.text, (double)ms / 1000);
    if (f->cfg.log != NULL && !*f->cfg.interrupted) f->cfg.log(f->cfg.ctx, line);
    pause_ms(f, ms);
}

// Makes requests until the transfer is complete, or MAX_TRIES in a row have brought nothing.
static int run(msgl_fetch *f, const char *url, struct transfer *t, msgl_err *err)
{
    for (int tries = 1;; tries++) {
        const uint64_t before = t->done;
        CURLcode code = with_redirects(f, url, t);
        if (t->restarted || (t->status == 416 && t->done > 0)) { // ranges are no use here
            t->restarted = false;
            if (!empty_file(t)) return failed(t, code, err);
            code = CURLE_PARTIAL_FILE;
        }
        const bool fine = code == CURLE_OK && (t->status == 200 || t->status == 206);
        if (fine && (t->text != NULL || t->done == t->size)) return 0;
        if (fine) code = CURLE_PARTIAL_FILE;
        if (t->done > before) tries = 1;
        // If the hub cannot be reached for a list, which comes first, there is probably no network
        // at all, and waiting is of little use.
        const bool unreachable = t->text != NULL && (code == CURLE_COULDNT_RESOLVE_HOST ||
                                                     code == CURLE_COULDNT_CONNECT);
        const int most = unreachable ? 2 : MAX_TRIES;
        if (*f->cfg.interrupted || t->write_error != 0 || t->too_long || tries >= most ||
            !is_passing(code, t->status)) {
            return failed(t, code, err);
        }
        wait_for_next(f, t, code, tries);
        if (t->text != NULL) msgl__strbuf_clear(t->text);
    }
}

int msgl__fetch_text(msgl_fetch *f, const char *url, const char *what, msgl_strbuf *out,
                     msgl_err *err)
{
    struct transfer t = {.f = f, .what = what, .text = out, .fd = -1};
    return run(f, url, &t, err);
}

int msgl__fetch_file(msgl_fetch *f, const msgl_fetch_file *file, msgl_err *err)
{
    struct transfer t = {.f = f, .what = file->what, .size = file->size};
    t.kind = strlen(file->checksum) == 40 ? MSGL_SHA1 : MSGL_SHA256;
    t.fd = open(file->partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (t.fd < 0) {
        return msgl__err_set(err, MSGL_EIO, "%.160s: %s", file->partial, strerror(errno));
    }
    int rc = take_up(&t, file->partial, err);
    if (rc == 0 && (t.done < t.size || t.size == 0)) rc = run(f, file->url, &t, err);
    if (close(t.fd) != 0 && rc == 0) {
        rc = msgl__err_set(err, MSGL_EIO, "%.160s: %s", file->partial, strerror(errno));
    }
    if (rc == 0) {
        char sum[65];
        msgl__sha_end(&t.sha, sum);
        if (t.sha.failed) {
            rc = msgl__err_set(err, MSGL_ENOMEM, "%.100s: no memory for its checksum", file->what);
        } else if (strcmp(sum, file->checksum) != 0) {
            rc = msgl__err_set(err, MSGL_EFORMAT,
                               "%.100s: what came is not what the hub says: checksum %.12s..., "
                               "expected %.12s...; removed",
                               file->what, sum, file->checksum);
        }
    }
    msgl__sha_free(&t.sha);
    if (rc == MSGL_EFORMAT) (void)unlink(file->partial);
    return rc;
}

// ---- opening ----

int msgl__fetch_open(const msgl_fetch_config *cfg, msgl_fetch **out, msgl_err *err)
{
    const char *url = cfg->endpoint;
    const size_t scheme = strncmp(url, "https://", 8) == 0  ? 8
                          : strncmp(url, "http://", 7) == 0 ? 7
                                                            : 0;
    const size_t host = scheme > 0 ? strcspn(url + scheme, "/?#") : 0;
    if (host == 0 || scheme + host >= sizeof((msgl_fetch *)0)->origin ||
        memchr(url, '@', scheme + host) != NULL) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "the hub's address is \"%.100s\"; allowed: https://HOST or "
                             "http://HOST[:PORT], as %s",
                             url, cfg->kind->endpoint_vars[0]);
    }
    const msgl_curl *curl;
    const int rc = msgl__curl_open("downloading", &curl, err);
    if (rc != 0) return rc;
    msgl_fetch *f = msgl__calloc(1, sizeof *f);
    if (f == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    f->cfg = *cfg;
    f->curl = curl;
    (void)snprintf(f->origin, sizeof f->origin, "%.*s", (int)(scheme + host), url);
    if (cfg->token != NULL) {
        (void)snprintf(f->auth, sizeof f->auth, "Authorization: Bearer %s", cfg->token);
        const char *cookie = cfg->kind->cookie;
        if (cookie != NULL) {
            (void)snprintf(f->cookie, sizeof f->cookie, "Cookie: %s=%s", cookie, cfg->token);
        }
    }
    f->easy = curl->init();
    if (f->easy == NULL) {
        msgl__free(f);
        return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    }
    *out = f;
    return 0;
}

void msgl__fetch_close(msgl_fetch *f)
{
    if (f == NULL) return;
    f->curl->cleanup(f->easy);
    msgl__free(f);
}
