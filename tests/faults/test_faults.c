// SPDX-License-Identifier: Apache-2.0
//
// Every allocation of a start and of a request fails, one at a time: test_faults PROGRAM MODEL
// FIRST SAMPLE tries the first FIRST of each case one by one, then SAMPLE of those behind them,
// drawn with a fixed seed. PROGRAM is minisgl with fail_alloc.c. Each try has to end in the right
// answer or in an error that says something; nothing crashes or hangs, and a server goes
// on serving. 1000 and 0 are all that there are with the demo model.
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
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
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults/fail_alloc.h"
#include "utils/random.h"
#include "utils/strbuf.h"

enum { HANG_S = 120, MAX_TEXT = 1 << 20 };

static const char *program, *model;
static faults *shared;

static int g_failures;

static void complain(const char *what, long nth, const char *text)
{
    printf("%s, allocation %ld: %s\n", what, nth, text);
    g_failures++;
}

static _Noreturn void fail(const char *what, long nth, const char *text)
{
    complain(what, nth, text);
    exit(1);
}

static void on_alarm(int sig)
{
    (void)sig;
    static const char text[] = "hangs\n";
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
        dup2(fileno(*out), STDOUT_FILENO);
        dup2(fileno(*err), STDERR_FILENO);
        execv(program, (char *const *)argv);
        _exit(127);
    }
    if (*out == NULL || *err == NULL || pid < 0) fail("start", 0, strerror(errno));
    return pid;
}

// What is in the file by now; the caller frees it.
static char *read_all(FILE *f)
{
    char *text = calloc(1, MAX_TEXT);
    if (text == NULL) exit(2);
    const ssize_t n = pread(fileno(f), text, MAX_TEXT - 1, 0);
    if (n < 0) exit(2);
    return text;
}

static void check_log(const char *what, long nth, const char *log)
{
    const bool bad = strstr(log, "killed by signal") != NULL;
    if (bad) complain(what, nth, log);
}

// --- one process: a start, and a plain completion ---

static bool run_once(const char *const *argv, long nth, const char *expected, char **answer)
{
    FILE *out, *err;
    int status;
    atomic_store(&shared->left, nth);
    alarm(HANG_S);
    const pid_t pid = start(argv, &out, &err);
    if (waitpid(pid, &status, 0) != pid) exit(2);
    alarm(0);
    const bool reached = atomic_load(&shared->left) <= 0;
    char *log = read_all(err);
    *answer = read_all(out);
    check_log("run", nth, log);
    if (!WIFEXITED(status)) complain("run", nth, "killed by a signal");
    if (WEXITSTATUS(status) == 0 && expected != NULL && strcmp(*answer, expected) != 0) {
        complain("run", nth, *answer);
    }
    if (WEXITSTATUS(status) != 0 && log[0] == '\0') complain("run", nth, "an error without a word");
    if (WEXITSTATUS(status) != 0 && expected == NULL) fail("run", nth, log);
    free(log);
    fclose(out);
    fclose(err);
    return reached;
}

// The allocations to be tried: 0 at the end. count: of all there are.
static long next_nth(long i, long first, long sample, long count)
{
    static uint64_t rng = 35;
    if (i < first) return i < count ? i + 1 : 0;
    if (i >= first + sample || count <= first) return 0;
    return first + 1 + (long)msgl__random_below(&rng, (uint32_t)(count - first));
}

static void test_run(long first, long sample)
{
    const char *const argv[] = {
        program, "run",          "--model", model,         "--prompt", "2 + 3 =",   "--temperature",
        "0",     "--max-tokens", "4",       "--num-pages", "64",       "--threads", "1",
        NULL};
    char *expected, *answer;
    run_once(argv, 0, NULL, &expected);
    const long all = 1L << 40;
    run_once(argv, all, expected, &answer);
    free(answer);
    const long count = all - atomic_load(&shared->left);
    long tries = 0;
    for (long nth; (nth = next_nth(tries, first, sample, count)) != 0; tries++) {
        run_once(argv, nth, expected, &answer);
        free(answer);
    }
    printf("run: %ld of %ld allocations failed, each alone\n", tries, count);
    free(expected);
}

// --- a server ---

typedef struct server {
    pid_t pid;
    int port;
    FILE *out, *err;
} server;

// One request on a connection of its own, with all that comes back, which the caller frees.
static char *ask(const server *s, const char *path, const char *body)
{
    char *text = calloc(1, MAX_TEXT), head[256];
    if (text == NULL) exit(2);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)s->port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)snprintf(head, sizeof head,
                   "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                   "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                   path, strlen(body));
    size_t len = 0;
    if (connect(fd, (const struct sockaddr *)&at, sizeof at) == 0 &&
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
    static const char *const KEYS[] = {"\"content\":\"", "\"arguments\":\"", "\"text\":\"",
                                       "\"finish_reason\":\""};
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

static const struct {
    const char *path, *body;
} requests[] = {
    {"/v1/completions", "{\"prompt\":\"2 + 3 =\",\"temperature\":0,\"max_tokens\":4}"},
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + 3?\"}],\"temperature\":0,"
     "\"max_tokens\":12,\"stream\":true,\"response_format\":{\"type\":\"json_schema\","
     "\"json_schema\":{\"name\":\"a\",\"schema\":{\"type\":\"object\",\"properties\":{\"sum\":"
     "{\"type\":\"integer\",\"minimum\":0,\"maximum\":9}},\"required\":[\"sum\"],"
     "\"additionalProperties\":false}}}}"},
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + 3?\"}],\"temperature\":0,"
     "\"max_tokens\":16,\"stream\":true,\"tool_choice\":\"required\",\"tools\":[{\"type\":"
     "\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\","
     "\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}}]}"},
};
enum { NUM_REQUESTS = sizeof requests / sizeof requests[0], SPOKEN = 4096 };

// The answer of a server that has memory; an engine that ended is given time to start again.
static void ask_well(const server *s, int k, long nth, char said[SPOKEN])
{
    for (int try = 0;; try++) {
        char *answer = ask(s, requests[k].path, requests[k].body);
        spoken(answer, said, SPOKEN);
        const bool ok = strncmp(answer, "HTTP/1.1 200", 12) == 0 && strstr(answer, "error") == NULL;
        const bool busy = strncmp(answer, "HTTP/1.1 503", 12) == 0;
        if (!ok && (!busy || try > 200)) {
            char *log = read_all(s->err);
            fail("an answer afterwards", nth, answer[0] == '\0' ? log : answer);
        }
        free(answer);
        if (ok) return;
        (void)poll(NULL, 0, 50);
    }
}

static void start_server(server *s)
{
    const char *const argv[] = {program,
                                "serve",
                                "--model",
                                model,
                                "--port",
                                "0",
                                "--num-pages",
                                "512",
                                "--threads",
                                "1",
                                "--max-running-requests",
                                "4",
                                NULL};
    atomic_store(&shared->left, 0);
    s->pid = start(argv, &s->out, &s->err);
    alarm(HANG_S);
    for (s->port = 0; s->port == 0;) {
        char *text = read_all(s->out), *log = read_all(s->err);
        const char *url = strstr(text, "http://127.0.0.1:");
        if (url != NULL && strchr(url, '\n') != NULL) s->port = atoi(url + 17);
        if (waitpid(s->pid, NULL, WNOHANG) != 0) fail("serve", 0, log);
        free(text);
        free(log);
        (void)poll(NULL, 0, 20);
    }
    alarm(0);
}

static void stop_server(server *s)
{
    int status;
    alarm(HANG_S);
    kill(s->pid, SIGTERM);
    if (waitpid(s->pid, &status, 0) != s->pid) exit(2);
    alarm(0);
    char *log = read_all(s->err);
    check_log("the end", 0, log);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail("the end", 0, log);
    free(log);
    fclose(s->out);
    fclose(s->err);
}

// A request beside which the nth allocation fails.
static void try_request(const server *s, int k, long nth, const char *expected)
{
    char said[SPOKEN];
    alarm(HANG_S);
    atomic_store(&shared->left, nth);
    char *answer = ask(s, requests[k].path, requests[k].body);
    atomic_store(&shared->left, 0);
    spoken(answer, said, sizeof said);
    const int status = strncmp(answer, "HTTP/1.1 ", 9) == 0 ? atoi(answer + 9) : 0;
    // Without memory for an answer the connection is closed, which may be amid a stream.
    const bool error = strstr(answer, "\"error\"") != NULL || status == 0 ||
                       (status == 200 && strncmp(said, expected, strlen(said)) == 0);
    if (!error && (status != 200 || strcmp(said, expected) != 0)) complain("request", nth, answer);
    if (status == 400) complain("request, as if it were the client's mistake", nth, answer);
    ask_well(s, k, nth, said);
    alarm(0);
    if (strcmp(said, expected) != 0) complain("request, the next answer", nth, said);
    char *log = read_all(s->err);
    check_log("request", nth, log);
    free(log);
    free(answer);
}

static void test_serve(long first, long sample)
{
    for (int k = 0; k < NUM_REQUESTS; k++) {
        server s;
        char expected[SPOKEN];
        start_server(&s);
        for (int warm = 0; warm < 3; warm++) ask_well(&s, k, 0, expected);
        const long all = 1L << 40;
        atomic_store(&shared->left, all);
        ask_well(&s, k, 0, expected);
        const long count = all - atomic_load(&shared->left);
        if (expected[0] == '\0' || count < 10) fail("request", 0, "nothing was said");
        long tries = 0;
        for (long nth; (nth = next_nth(tries, first, sample, count)) != 0; tries++) {
            try_request(&s, k, nth, expected);
        }
        stop_server(&s);
        printf("%s %d: %ld of about %ld allocations failed, each alone\n", requests[k].path, k,
               tries, count);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: test_faults PROGRAM MODEL FIRST SAMPLE\n");
        return 2;
    }
    program = argv[1];
    model = argv[2];
    const long first = atol(argv[3]), sample = atol(argv[4]);
    const int fd = memfd_create("faults", 0);
    char number[16];
    (void)snprintf(number, sizeof number, "%d", fd);
    if (fd < 0 || ftruncate(fd, sizeof *shared) != 0 || setenv("FAULTS", number, 1) != 0) return 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    test_run(first, sample);
    test_serve(first, sample);
    return g_failures == 0 ? 0 : 1;
}
