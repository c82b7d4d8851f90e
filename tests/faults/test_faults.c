// SPDX-License-Identifier: Apache-2.0
//
// Every allocation of a command, of a server's start and of a request fails, one at a time:
// test_faults PROGRAM MODEL FIRST SAMPLE [CASE] tries the first FIRST of each case one by one, then
// SAMPLE of those behind them, drawn with a fixed seed. PROGRAM is minisgl with fail_alloc.c. Each
// try has to end in the right answer or in an error that says something; nothing crashes or hangs,
// a server goes on serving, and one that does not start leaves nothing behind. 5000 and 0 are all
// that there are with the demo model.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "faults/fail_alloc.h"
#include "utils/random.h"
#include "utils/strbuf.h"

enum { HANG_S = 60, MAX_TEXT = 1 << 20 };

static const char *program, *model;
static faults *shared;
static int g_input;        // what a program reads
static const char *g_only; // the one case to try; NULL: all

static int g_failures;

// How the tries of a case ended.
static struct {
    long right, errors, restarts;
} g_ends;

static void complain(const char *what, long nth, const char *text)
{
    printf("%s, allocation %ld: %.2000s\n", what, nth, text);
    g_failures++;
}

static _Noreturn void fail(const char *what, long nth, const char *text)
{
    complain(what, nth, text);
    exit(1);
}

static char g_now[128]; // what is being tried

static void on_alarm(int sig)
{
    (void)sig;
    static const char text[] = ": hangs\n";
    if (write(STDOUT_FILENO, g_now, strlen(g_now)) < 0) _exit(2);
    if (write(STDOUT_FILENO, text, sizeof text - 1) < 0) _exit(2);
    _exit(1);
}

// Starts the program; *out and *err are files that it writes to.
static pid_t start(const char *const *argv, FILE **out, FILE **err)
{
    *out = tmpfile();
    *err = tmpfile();
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (lseek(g_input, 0, SEEK_SET) == 0) dup2(g_input, STDIN_FILENO);
        dup2(fileno(*out), STDOUT_FILENO);
        dup2(fileno(*err), STDERR_FILENO);
        execv(program, (char *const *)argv);
        _exit(127);
    }
    if (*out == NULL || *err == NULL || pid < 0) fail("start", 0, strerror(errno));
    return pid;
}

// What the file has by now from its byte `from` on; the caller frees it.
static char *read_from(FILE *f, off_t from)
{
    char *text = calloc(1, MAX_TEXT);
    if (text == NULL) exit(2);
    const ssize_t n = pread(fileno(f), text, MAX_TEXT - 1, from);
    if (n < 0) exit(2);
    return text;
}

static char *read_all(FILE *f)
{
    return read_from(f, 0);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void check_log(const char *what, long nth, const char *log)
{
    const bool bad = strstr(log, "killed by signal") != NULL;
    if (bad) complain(what, nth, log);
}

// --- cases ---

// The allocations to be tried: 0 at the end. count: of all there are.
static long next_nth(long i, long first, long sample, long count)
{
    static uint64_t rng = 35;
    if (i < first) return i < count ? i + 1 : 0;
    if (i >= first + sample || count <= first) return 0;
    return first + 1 + (long)msgl__random_below(&rng, (uint32_t)(count - first));
}

static bool wanted(const char *name)
{
    return g_only == NULL || strcmp(g_only, name) == 0;
}

static const long ALL = 1L << 40;

// Those that were counted since *shared was set to ALL.
static long counted(void)
{
    return ALL - atomic_load(&shared->left);
}

typedef struct how_many {
    long first, sample;
} how_many;

// Tries a case's allocations by `try`.
static void try_all(const char *name, how_many n, long count, void (*try)(void *ctx, long nth),
                    void *ctx)
{
    if (n.first + n.sample == 0) return;
    const double began = now_s();
    long tries = 0;
    memset(&g_ends, 0, sizeof g_ends);
    for (long nth; (nth = next_nth(tries, n.first, n.sample, count)) != 0; tries++) {
        (void)snprintf(g_now, sizeof g_now, "%s, allocation %ld", name, nth);
        try(ctx, nth);
    }
    atomic_store(&shared->left, 0);
    printf("%-34s %4ld of %4ld allocations failed, each alone: %4ld right answers, %4ld errors, "
           "%3ld restarts; %.1f s\n",
           name, tries, count, g_ends.right, g_ends.errors, g_ends.restarts, now_s() - began);
}

// --- one process ---

typedef struct command {
    const char *const *argv;
    char *expected; // NULL: anything
} command;

// What it writes, which the caller frees, where it ends well; else NULL.
static char *run_once(const char *const *argv, long nth)
{
    FILE *out, *err;
    int status;
    atomic_store(&shared->left, nth);
    alarm(HANG_S);
    const pid_t pid = start(argv, &out, &err);
    if (waitpid(pid, &status, 0) != pid) exit(2);
    alarm(0);
    char *log = read_all(err), *answer = read_all(out);
    check_log(argv[1], nth, log);
    if (!WIFEXITED(status)) complain(argv[1], nth, "killed by a signal");
    const bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (failed && log[0] == '\0') complain(argv[1], nth, "an error without a word");
    if (failed && nth == 0) fail(argv[1], nth, log);
    free(log);
    fclose(out);
    fclose(err);
    if (!failed) return answer;
    free(answer);
    return NULL;
}

static void try_command(void *ctx, long nth)
{
    const command *c = ctx;
    char *answer = run_once(c->argv, nth);
    if (answer != NULL && c->expected != NULL && strcmp(answer, c->expected) != 0)
        complain(c->argv[1], nth, answer);
    if (answer != NULL)
        g_ends.right++;
    else
        g_ends.errors++;
    free(answer);
}

static void test_command(const char *const *argv, bool compare, how_many n)
{
    if (!wanted(argv[1])) return;
    command c = {.argv = argv, .expected = run_once(argv, 0)};
    if (!compare) {
        free(c.expected);
        c.expected = NULL;
    }
    free(run_once(argv, ALL));
    try_all(argv[1], n, counted(), try_command, &c);
    free(c.expected);
}

static void test_commands(how_many n)
{
    const char *const run[] = {
        program, "run",          "--model", model,         "--prompt", "2 + 3 =",   "--temperature",
        "0",     "--max-tokens", "4",       "--num-pages", "64",       "--threads", "1",
        NULL};
    const char *const tokenize[] = {program, "tokenize", "--model", model, NULL};
    const char *const info[] = {program, "info", "--model", model, "--threads", "1", NULL};
    test_command(tokenize, true, n);
    test_command(info, false,
                 n); // it tells of what cannot be used, which may be for want of memory
    test_command(run, true, n);
}

// --- a server ---

typedef struct server {
    pid_t pid;
    struct sockaddr_un at;
    FILE *out, *err;
    off_t seen; // of err
} server;

// One request on a connection of its own, with all that comes back, which the caller frees.
static char *ask(const server *s, const char *path, const char *body)
{
    char *text = calloc(1, MAX_TEXT), head[256];
    if (text == NULL) exit(2);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    (void)snprintf(head, sizeof head,
                   "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                   "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                   path, strlen(body));
    size_t len = 0;
    if (connect(fd, (const struct sockaddr *)&s->at, sizeof s->at) == 0 &&
        send(fd, head, strlen(head), MSG_NOSIGNAL) > 0 &&
        send(fd, body, strlen(body), MSG_NOSIGNAL) > 0) {
        ssize_t n;
        while ((n = recv(fd, text + len, MAX_TEXT - 1 - len, 0)) > 0) len += (size_t)n;
    }
    close(fd);
    return text;
}

// What an answer says: all strings behind these keys, in the order in which they come.
static void spoken(const char *answer, char *out, size_t size)
{
    static const char *const KEYS[] = {"\"content\":\"",   "\"arguments\":\"",
                                       "\"text\":\"",      "\"delta\":\"",
                                       "\"embedding\":\"", "\"finish_reason\":\""};
    size_t n = 0;
    for (const char *p = answer; *p != '\0'; p++) {
        for (size_t k = 0; k < sizeof KEYS / sizeof KEYS[0]; k++) {
            const size_t len = strlen(KEYS[k]);
            if (strncmp(p, KEYS[k], len) != 0) continue;
            for (p += len; *p != '"' && *p != '\0' && n + 3 < size; p++) {
                if (*p == '\\') out[n++] = *p++;
                out[n++] = *p;
            }
            break;
        }
    }
    out[n] = '\0';
}

typedef struct request {
    const char *name, *path, *body;
} request;

#define QUESTION                                                                                   \
    "\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + 3?\"}],\"temperature\":0"
#define SCHEMA                                                                                     \
    "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{\"type\":\"object\","   \
    "\"properties\":{\"sum\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":9}},"                 \
    "\"required\":[\"sum\"],\"additionalProperties\":false}}}"
#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":"             \
    "\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}}]"

static const request requests[] = {
    {"a completion", "/v1/completions",
     "{\"prompt\":\"2 + 3 =\",\"temperature\":0,\"max_tokens\":4}"},
    {"a chat by a schema", "/v1/chat/completions",
     "{" QUESTION ",\"max_tokens\":12,\"stream\":true,\"response_format\":" SCHEMA "}"},
    {"a chat with a tool it has to call", "/v1/chat/completions",
     "{" QUESTION ",\"max_tokens\":16,\"stream\":true,\"tool_choice\":\"required\",\"tools\":" TOOLS
     "}"},
    {"a chat with tools and logprobs", "/v1/chat/completions",
     "{" QUESTION ",\"max_tokens\":16,\"stream\":true,\"logprobs\":true,\"top_logprobs\":3,"
     "\"tools\":" TOOLS ",\"response_format\":" SCHEMA "}"},
    {"a message", "/v1/messages",
     "{\"model\":\"demo\"," QUESTION ",\"max_tokens\":8,\"stream\":true}"},
    {"a response", "/v1/responses",
     "{\"input\":\"What is 2 + 3?\",\"temperature\":0,\"max_output_tokens\":8,\"stream\":true}"},
};
static const request embedding = {"an embedding", "/v1/embeddings",
                                  "{\"input\":\"2 + 3\",\"encoding_format\":\"base64\"}"};
enum { NUM_REQUESTS = sizeof requests / sizeof requests[0], SPOKEN = 4096 };

static bool has_error(const char *answer)
{
    return strstr(answer, "\"error\":{") != NULL || strstr(answer, "\"type\":\"error\"") != NULL;
}

// The answer of a server that has memory; an engine that ended is given time to start again.
static void ask_well(const server *s, const request *r, long nth, char said[SPOKEN])
{
    for (int try = 0;; try++) {
        char *answer = ask(s, r->path, r->body);
        spoken(answer, said, SPOKEN);
        const bool ok = strncmp(answer, "HTTP/1.1 200", 12) == 0 && !has_error(answer);
        const bool busy = strncmp(answer, "HTTP/1.1 503", 12) == 0;
        if (!ok && (!busy || try > 2000)) {
            char *log = read_from(s->err, s->seen);
            fail("an answer afterwards", nth, answer[0] == '\0' ? log : answer);
        }
        free(answer);
        if (ok) return;
        (void)poll(NULL, 0, 5);
    }
}

// Without *shared's count. embeds: whether it makes embeddings.
static void begin_server(server *s, bool embeds)
{
    *s = (server){.at.sun_family = AF_UNIX};
    (void)snprintf(s->at.sun_path, sizeof s->at.sun_path, "/tmp/minisgl-faults-%d", getpid());
    const char *const argv[] = {program,
                                "serve",
                                "--model",
                                model,
                                "--uds",
                                s->at.sun_path,
                                "--num-pages",
                                "512",
                                "--threads",
                                "1",
                                "--max-running-requests",
                                "4",
                                embeds ? "--is-embedding" : NULL,
                                NULL};
    s->pid = start(argv, &s->out, &s->err);
}

// Whether it is ready; else it has ended, with *status.
static bool await_server(const server *s, int *status)
{
    for (;;) {
        char *text = read_all(s->out);
        const char *url = strstr(text, "is ready: unix:");
        const bool ready = url != NULL && strchr(url, '\n') != NULL;
        free(text);
        if (ready) return true;
        if (waitpid(s->pid, status, WNOHANG) != 0) return false;
        (void)poll(NULL, 0, 5);
    }
}

static void start_server(server *s, bool embeds)
{
    int status;
    atomic_store(&shared->left, 0);
    begin_server(s, embeds);
    alarm(HANG_S);
    if (!await_server(s, &status)) fail("serve", 0, read_all(s->err));
    alarm(0);
}

// Of a server that has ended.
static void check_end(server *s, const char *what, long nth, int status, bool well)
{
    char *log = read_all(s->err);
    check_log(what, nth, log);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) == 0) != well) complain(what, nth, log);
    const bool told = strstr(log, "memory") != NULL || strstr(log, "thread") != NULL;
    if (!well && !told) complain(what, nth, log[0] ? log : "no word");
    if (waitpid(-1, NULL, WNOHANG) >= 0) complain(what, nth, "it leaves a process behind");
    if (unlink(s->at.sun_path) == 0) complain(what, nth, "it leaves its socket behind");
    free(log);
    fclose(s->out);
    fclose(s->err);
}

static void stop_server(server *s, long nth)
{
    int status;
    alarm(HANG_S);
    kill(s->pid, SIGTERM);
    if (waitpid(s->pid, &status, 0) != s->pid) exit(2);
    alarm(0);
    check_end(s, "the end", nth, status, true);
}

// A start in which the nth allocation fails.
static void try_start(void *ctx, long nth)
{
    const char *expected = ctx;
    char said[SPOKEN];
    server s;
    int status;
    alarm(HANG_S);
    atomic_store(&shared->left, nth);
    begin_server(&s, false);
    const bool ready = await_server(&s, &status);
    atomic_store(&shared->left, 0);
    if (!ready) {
        alarm(0);
        g_ends.errors++;
        check_end(&s, "start", nth, status, false);
        return;
    }
    ask_well(&s, &requests[0], nth, said);
    alarm(0);
    if (strcmp(said, expected) != 0) complain("start, the answer", nth, said);
    g_ends.right++;
    stop_server(&s, nth);
}

static void test_start(how_many n)
{
    if (!wanted("serve")) return;
    server s;
    char expected[SPOKEN];
    start_server(&s, false);
    ask_well(&s, &requests[0], 0, expected);
    stop_server(&s, 0);
    int status;
    atomic_store(&shared->left, ALL);
    begin_server(&s, false);
    if (!await_server(&s, &status)) fail("serve", 0, read_all(s.err));
    const long count = counted();
    stop_server(&s, 0);
    try_all("serve", n, count, try_start, expected);
}

typedef struct asking {
    server s;
    const request *r;
    char expected[SPOKEN];
} asking;

// A request beside which the nth allocation fails.
static void try_request(void *ctx, long nth)
{
    asking *a = ctx;
    const request *r = a->r;
    char said[SPOKEN];
    alarm(HANG_S);
    atomic_store(&shared->left, nth);
    char *answer = ask(&a->s, r->path, r->body);
    atomic_store(&shared->left, 0);
    spoken(answer, said, sizeof said);
    const int status = strncmp(answer, "HTTP/1.1 ", 9) == 0 ? atoi(answer + 9) : 0;
    const bool right = status == 200 && strcmp(said, a->expected) == 0 && !has_error(answer);
    // Without memory for an answer the connection is closed, which may be amid a stream.
    const bool error = has_error(answer) || status == 0 ||
                       (status == 200 && strncmp(said, a->expected, strlen(said)) == 0);
    if (!right && !error) complain(r->name, nth, answer);
    if (status == 400) complain("request, as if it were the client's mistake", nth, answer);
    if (right)
        g_ends.right++;
    else
        g_ends.errors++;
    ask_well(&a->s, r, nth, said);
    alarm(0);
    if (strcmp(said, a->expected) != 0) complain("request, the next answer", nth, said);
    char *log = read_from(a->s.err, a->s.seen);
    check_log(r->name, nth, log);
    a->s.seen += (off_t)strlen(log);
    for (const char *p = log; (p = strstr(p, "starting it again")) != NULL; p++) g_ends.restarts++;
    free(log);
    free(answer);
}

static void test_request(const request *r, how_many n)
{
    if (!wanted(r->name)) return;
    asking a = {.r = r};
    start_server(&a.s, r == &embedding);
    for (int warm = 0; warm < 3; warm++) ask_well(&a.s, r, 0, a.expected);
    atomic_store(&shared->left, ALL);
    ask_well(&a.s, r, 0, a.expected);
    const long count = counted();
    if (a.expected[0] == '\0' || (count < 10 && n.first + n.sample > 0))
        fail(r->name, 0, "nothing was said");
    try_all(r->name, n, count, try_request, &a);
    stop_server(&a.s, 0);
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: test_faults PROGRAM MODEL FIRST SAMPLE [CASE]\n");
        return 2;
    }
    g_only = argv[5]; // of 5 it is NULL
    program = argv[1];
    model = argv[2];
    const how_many n = {atol(argv[3]), atol(argv[4])};
    static const char input[] = "What is 2 + 3?";
    const int fd = memfd_create("faults", 0);
    g_input = memfd_create("input", 0);
    char number[16];
    (void)snprintf(number, sizeof number, "%d", fd);
    if (fd < 0 || ftruncate(fd, sizeof *shared) != 0 || setenv("FAULTS", number, 1) != 0) return 2;
    if (write(g_input, input, sizeof input - 1) != (ssize_t)sizeof input - 1) return 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) return 2;
    // OpenBLAS ends the process when it gets no thread.
    if (setenv("OPENBLAS_NUM_THREADS", "1", 1) != 0) return 2;
    // Processes that a server leaves behind become this one's.
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    test_commands(n);
    test_start(n);
    for (int k = 0; k < NUM_REQUESTS; k++) test_request(&requests[k], n);
    test_request(&embedding, n);
    return g_failures == 0 ? 0 : 1;
}
