// SPDX-License-Identifier: Apache-2.0
//
// Ranks over MPI: this program starts itself under mpirun. A rank's part is named by the first
// argument, a model or one of the two calls of the communicator.
//
// The communicator's sums are compared with a loop over ranks; a model's log-probabilities with
// those of ranks over shared memory, bit by bit, which test_tensor_parallel compares with others':
// of every third model, and of all with MINISGL_TESTS=full.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/wait.h>
#include <unistd.h>

#include "core/attributes.h"
#include "distributed/communicator.h"
#include "distributed/mpi/plugin.h"
#include "engine/parity.h"
#include "kernel/exec.h"

enum { PIECE = 1 << 18, LONGEST = 3 * PIECE + 5, NOT_SHARED = 77, MAX_RANKS = 4, POSITIONS = 64 };

// --- under mpirun --------------------------------------------------------------------------------

typedef struct member {
    const msgl_mpi_api *api;
    msgl_mpi_job job;
    msgl_group *group;
    msgl_group_member *m;
    msgl_comm *c;
    msgl_exec x;
} member;

static void join(member *r)
{
    msgl_err err = {0};
    *r = (member){.x = {.act = MSGL_F32}};
    r->api = msgl__mpi_open(&err);
    if (r->api == NULL || r->api->init(&r->job, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(msgl__group_create(r->job.size, &r->group, NULL), 0);
    assert_int_equal(msgl__group_join(r->group, r->job.rank, &r->m, NULL), 0);
    assert_int_equal(msgl__comm_mpi_create(r->m, r->api, &r->c, NULL), 0);
}

static void leave(member *r)
{
    r->c->ops->destroy(r->c);
    msgl__group_leave(r->m);
    msgl__group_destroy(r->group);
    r->api->finish();
}

// What `rank` has at i: of very different sizes, so that another order of a sum is another sum.
static float value(int rank, size_t i)
{
    const uint32_t h = ((uint32_t)i + 1) * 2654435761u ^ ((uint32_t)rank + 1) * 40503u;
    return (float)(int32_t)h * (h % 3 == 0 ? 1e-3f : h % 3 == 1 ? 1.0f : 1e3f);
}

static void check_reduce(member *r, size_t n, float *buf)
{
    for (size_t i = 0; i < n; i++) buf[i] = value(r->job.rank, i);
    r->c->ops->all_reduce(r->c, &r->x, MSGL_F32, buf, n);
    assert_int_equal(r->x.status, 0);
    for (size_t i = 0; i < n; i++) {
        float sum = value(0, i);
        for (int k = 1; k < r->job.size; k++) sum += value(k, i);
        if (memcmp(&sum, &buf[i], sizeof sum) != 0) {
            fail_msg("%zu elements: %zu is %.9g, not %.9g", n, i, (double)buf[i], (double)sum);
        }
    }
}

static void check_gather(member *r, size_t n, bool in_place, float *in, float *out)
{
    float *from = in_place ? out + (size_t)r->job.rank * n : in;
    for (size_t i = 0; i < n; i++) from[i] = value(r->job.rank, i);
    r->c->ops->all_gather(r->c, &r->x, from, n, out);
    assert_int_equal(r->x.status, 0);
    for (int k = 0; k < r->job.size; k++) {
        for (size_t i = 0; i < n; i++) assert_true(out[(size_t)k * n + i] == value(k, i));
    }
}

static void check_broadcast(member *r, size_t bytes, int root, char *buf)
{
    for (size_t i = 0; i < bytes; i++) buf[i] = (char)(i * 7 + (size_t)r->job.rank);
    r->c->ops->broadcast(r->c, &r->x, buf, bytes, root);
    assert_int_equal(r->x.status, 0);
    for (size_t i = 0; i < bytes; i++) assert_true(buf[i] == (char)(i * 7 + (size_t)root));
}

static void rank_calls(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 5, 1000, 4096, 4097, PIECE - 1, PIECE, PIECE + 1, LONGEST};
    static float in[LONGEST], out[MAX_RANKS * LONGEST];
    member r;
    join(&r);
    assert_true(r.job.size <= MAX_RANKS && r.job.local == r.job.size);
    for (size_t s = 0; s < MSGL_COUNT(sizes); s++) {
        const size_t n = sizes[s];
        check_reduce(&r, n, in);
        check_gather(&r, n, s % 2 == 0, in, out);
        check_broadcast(&r, n * sizeof *in + s % 4, (int)s % r.job.size, (char *)out);
    }
    leave(&r);
}

// Ranks that do not make the same call see it, and go on with none.
static void rank_differs(void **state)
{
    (void)state;
    static float buf[1000], out[2 * 1000];
    member r;
    join(&r);
    if (r.job.rank == 0) {
        r.c->ops->all_reduce(r.c, &r.x, MSGL_F32, buf, 1000);
    } else {
        r.c->ops->all_gather(r.c, &r.x, buf, 1000, out);
    }
    assert_int_equal(r.x.status, MSGL_EINTERNAL);
    assert_int_equal(msgl__group_blamed(r.group), 1 - r.job.rank);
    r.x.status = 0;
    r.c->ops->all_reduce(r.c, &r.x, MSGL_F32, buf, 1000);
    assert_int_equal(r.x.status, MSGL_EINTERNAL);
    leave(&r);
}

static const char *g_model; // cmocka's tests have no arguments
static int g_ranks;

// Rank 0 of the job; before that, of ranks that it forks.
static void rank_0_of_model(void **state)
{
    (void)state;
    harness h[2];
    char dir[512];
    parity_path(dir, g_model, "");
    for (int i = 0; i < 2; i++) {
        const harness_target t = {.ranks = g_ranks, .mpi = i == 1};
        if (!parity_prompt(&h[i], dir, g_model, "float32", &t)) exit(NOT_SHARED);
    }
    assert_string_equal(h[1].e->comm->ops->name, "mpi");
    const size_t n = (size_t)POSITIONS * (size_t)h[0].info->vocab_size;
    assert_memory_equal(h[0].logprobs, h[1].logprobs, n * sizeof(float));
    for (int i = 0; i < 2; i++) harness_close(&h[i]);
}

static int run_rank(const char *part, int rank)
{
    const struct CMUnitTest calls[] = {cmocka_unit_test(rank_calls)};
    const struct CMUnitTest differs[] = {cmocka_unit_test(rank_differs)};
    const struct CMUnitTest model[] = {cmocka_unit_test(rank_0_of_model)};
    if (strcmp(part, "calls") == 0) return cmocka_run_group_tests(calls, NULL, NULL);
    if (strcmp(part, "differs") == 0) return cmocka_run_group_tests(differs, NULL, NULL);
    g_model = part;
    if (rank == 0) return cmocka_run_group_tests(model, NULL, NULL);
    char dir[512];
    msgl_err err;
    parity_path(dir, part, "");
    const harness_target t = {.ranks = g_ranks, .mpi = true};
    const msgl_options o = harness_config_for(dir, "float32", &t);
    return msgl__engine_follow(&o, &err) == 0 ? 0 : 1;
}

// --- what starts them ----------------------------------------------------------------------------

// mpirun's exit status. What the ranks print is shown if it is not one of those expected.
static int start(const char *part, int ranks)
{
    char self[512], command[1600], line[512];
    const ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(len > 0);
    self[len] = '\0';
    snprintf(command, sizeof command,
             MSGL_MPIRUN " --allow-run-as-root --oversubscribe --bind-to none -np %d %s %s 2>&1",
             ranks, self, part);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    char *said = calloc(1, 1 << 16);
    assert_non_null(said);
    while (fgets(line, sizeof line, f) != NULL) {
        if (strlen(said) + sizeof line < 1 << 16) strcat(said, line);
    }
    const int status = pclose(f);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code != 0 && code != NOT_SHARED) print_message("%s\n%s", command, said);
    free(said);
    return code;
}

static void test_calls(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= MAX_RANKS; ranks++) assert_int_equal(start("calls", ranks), 0);
    assert_int_equal(start("differs", 2), 0);
}

static void test_models(void **state)
{
    (void)state;
    const char *tests = getenv("MINISGL_TESTS");
    const bool full = tests != NULL && strcmp(tests, "full") == 0;
    int shared = 0;
    for (size_t i = 0; parity_models[i] != NULL; i += full ? 1 : 3) {
        const int code = start(parity_models[i], 2);
        assert_true(code == 0 || code == NOT_SHARED);
        shared += code == 0;
    }
    print_message("%d models\n", shared);
    assert_true(shared >= (full ? 40 : 12));
    static const char *const four[] = {"deepseek_v2", "gpt_oss", "llama4"};
    for (size_t i = 0; i < MSGL_COUNT(four); i++) assert_int_equal(start(four[i], 4), 0);
}

int main(int argc, char **argv)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    if (argc == 2 && rank != NULL && size != NULL) {
        g_ranks = (int)strtol(size, NULL, 10);
        return run_rank(argv[1], (int)strtol(rank, NULL, 10));
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls), cmocka_unit_test(test_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
