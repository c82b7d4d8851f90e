// SPDX-License-Identifier: Apache-2.0
//
// The further samplers choose the tokens that their definitions give in f64
// (tools/make_chain_vectors.py), and leave mirostat's state where it should be; a row's choice does
// not depend on the others of its call.
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "kernel/kernel.h"

// Requests' places in the pool, as far as the cases go; the first has its history further on.
enum { MAX_VOCAB = 160, WORDS = (MAX_VOCAB + 31) / 32, ROWS = 40, STRIDE = 128, PLACE = 7 };

struct fixture {
    msgl_cpu_level top;
    msgl_kernels kernels[MSGL_CPU_MAX_LEVELS];
    msgl_pool *pool;
    msgl_arena arena;
    msgl_exec exec;
    json_t *cases;
};

static int setup(void **state)
{
    static struct fixture f;
    msgl_err err;
    json_error_t where;
    f.top = msgl__cpu_level_detect();
    for (int level = 0; level <= f.top; level++) {
        msgl__kernels_init_cpu(&f.kernels[level], level);
    }
    if (msgl__pool_create(2, &f.pool, &err) != 0) return -1;
    msgl__arena_init(&f.arena, msgl__pages_alloc(4 << 20), 4 << 20);
    f.exec = (msgl_exec){.pool = f.pool, .scratch = &f.arena};
    f.cases = json_load_file(MSGL_SOURCE_DIR "/tests/vectors/sampling/chain.json", 0, &where);
    *state = &f;
    return f.cases == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    json_decref(f->cases);
    msgl__pool_destroy(f->pool);
    msgl__pages_free(f->arena.base, f->arena.size);
    return 0;
}

// A case as a call of ROWS rows, one for each seed, all of one history.
struct chain_case {
    int vocab;
    float logits[ROWS][MAX_VOCAB];
    int32_t pool[ROWS * STRIDE], index[ROWS];
    float saved[ROWS * STRIDE], mu[ROWS], mu_out[ROWS];
    uint32_t breakers[ROWS * WORDS];
    msgl_sample_row rows[ROWS];
    msgl_sample_chain chains[ROWS];
    int32_t tokens[ROWS], status[ROWS];
    msgl_sample_call call;
};

static double real(const json_t *j, const char *name)
{
    const json_t *v = json_object_get(j, name);
    if (!json_is_number(v)) fail_msg("no %s", name);
    return json_number_value(v);
}

static int32_t whole(const json_t *j, const char *name)
{
    return (int32_t)real(j, name);
}

static int32_t at(const json_t *array, size_t i)
{
    return (int32_t)json_integer_value(json_array_get(array, i));
}

static msgl_sample_row read_row(const json_t *j)
{
    return (msgl_sample_row){.temperature = (float)real(j, "temperature"),
                             .top_p = (float)real(j, "top_p"),
                             .min_p = (float)real(j, "min_p"),
                             .top_k = whole(j, "top_k"),
                             .adjusts = true,
                             .repetition = (float)real(j, "repetition_penalty"),
                             .frequency = (float)real(j, "frequency_penalty"),
                             .presence = (float)real(j, "presence_penalty")};
}

static msgl_sample_chain read_chain(const json_t *j)
{
    return (msgl_sample_chain){.typical_p = (float)real(j, "typical_p"),
                               .xtc_probability = (float)real(j, "xtc_probability"),
                               .xtc_threshold = (float)real(j, "xtc_threshold"),
                               .top_n_sigma = (float)real(j, "top_n_sigma"),
                               .dynatemp_range = (float)real(j, "dynatemp_range"),
                               .dynatemp_exponent = (float)real(j, "dynatemp_exponent"),
                               .dry_multiplier = (float)real(j, "dry_multiplier"),
                               .dry_base = (float)real(j, "dry_base"),
                               .dry_allowed_length = whole(j, "dry_allowed_length"),
                               .dry_last_n = whole(j, "dry_penalty_last_n"),
                               .mirostat = whole(j, "mirostat"),
                               .mirostat_tau = (float)real(j, "mirostat_tau"),
                               .mirostat_eta = (float)real(j, "mirostat_eta")};
}

static void read_call(const json_t *j, struct chain_case *c)
{
    const json_t *logits = json_object_get(j, "logits"), *breakers = json_object_get(j, "breakers");
    const json_t *prompt = json_object_get(j, "prompt"), *answer = json_object_get(j, "answer");
    const size_t len = json_array_size(prompt);
    *c = (struct chain_case){.vocab = (int)json_array_size(logits)};
    const int words = (c->vocab + 31) / 32;
    assert_in_range(c->vocab, 2, MAX_VOCAB);
    for (int r = 0; r < ROWS; r++) {
        for (int t = 0; t < c->vocab; t++) {
            const uint32_t u = (uint32_t)json_integer_value(json_array_get(logits, (size_t)t));
            memcpy(&c->logits[r][t], &u, sizeof u);
        }
        const int32_t tokens = r * STRIDE + (r == 0 ? PLACE : 0);
        int32_t *ids = c->pool + tokens;
        for (size_t i = 0; i < len; i++) *ids++ = at(prompt, i);
        for (size_t i = 0; i < json_array_size(answer); i++) *ids++ = at(answer, i);
        c->rows[r] = read_row(j);
        c->rows[r].seed = (uint64_t)r;
        c->rows[r].tokens = tokens;
        c->rows[r].prompt_len = (int32_t)len;
        c->rows[r].position = (int32_t)(ids - c->pool) - tokens;
        c->index[r] = (int32_t)(ids - c->pool);
        c->chains[r] = read_chain(j);
        c->chains[r].tokens = tokens;
        // Every second one is told where mirostat begins, the others find it.
        c->chains[r].table_idx = ROWS - 1 - r;
        c->chains[r].mu = r % 2 ? NAN : (float)real(j, "mu");
        c->chains[r].breaks = json_array_size(breakers) > 0;
        c->mu[ROWS - 1 - r] = r % 2 ? (float)real(j, "mu") : -77;
        for (size_t i = 0; i < json_array_size(breakers); i++) {
            const int32_t token = at(breakers, i);
            c->breakers[(ROWS - 1 - r) * words + token / 32] |= 1u << token % 32;
        }
    }
    c->call = (msgl_sample_call){.logits = c->logits[0],
                                 .ld = MAX_VOCAB,
                                 .num_rows = ROWS,
                                 .vocab = c->vocab,
                                 .rows = c->rows,
                                 .tokens = c->tokens,
                                 .status = c->status,
                                 .pool = c->pool,
                                 .pool_index = c->index,
                                 .saved = c->saved,
                                 .chains = c->chains,
                                 .mu = c->mu,
                                 .mu_out = c->mu_out,
                                 .breakers = c->breakers};
}

static void test_equals_definitions(void **state)
{
    struct fixture *f = *state;
    static struct chain_case c;
    assert_in_range(json_array_size(f->cases), 30, 100);
    for (int level = 0; level <= f->top; level++) {
        for (size_t i = 0; i < json_array_size(f->cases); i++) {
            const json_t *j = json_array_get(f->cases, i);
            const json_t *want = json_object_get(j, "tokens"), *mu = json_object_get(j, "mu_after");
            assert_int_equal(json_array_size(want), ROWS);
            read_call(j, &c);
            f->kernels[level].sample.chain(&f->exec, &c.call);
            for (int r = 0; r < ROWS; r++) {
                const int32_t token = at(want, (size_t)r);
                assert_int_equal(c.status[r], 0);
                assert_int_equal(c.pool[c.index[r]], c.tokens[r]);
                if (token < 0) continue; // too close to a limit to say
                if (c.tokens[r] != token) {
                    fail_msg("case %zu, seed %d: %d, not %d", i, r, c.tokens[r], token);
                }
                const double after = json_number_value(json_array_get(mu, (size_t)r));
                if (fabs((double)c.mu_out[r] - after) > 1e-5) {
                    fail_msg("case %zu, seed %d: mu %.7g, not %.7g", i, r, (double)c.mu_out[r],
                             after);
                }
                assert_true(c.mu[c.chains[r].table_idx] == c.mu_out[r]);
            }
        }
    }
}

// The row alone, and where another's logits are no numbers, which keeps mirostat's state.
static void test_rows_alone(void **state)
{
    struct fixture *f = *state;
    static struct chain_case c, one;
    for (size_t i = 0; i < json_array_size(f->cases); i++) {
        read_call(json_array_get(f->cases, i), &c);
        c.logits[1][3] = NAN;
        c.logits[4][5] = INFINITY;
        f->kernels[f->top].sample.chain(&f->exec, &c.call);
        for (int r = 1; r < ROWS; r += 3) {
            read_call(json_array_get(f->cases, i), &one);
            const float mu = one.mu[ROWS - 1 - r];
            one.call.logits = one.logits[r];
            one.call.rows += r;
            one.call.chains += r;
            one.call.pool_index += r;
            one.call.num_rows = 1;
            f->kernels[f->top].sample.chain(&f->exec, &one.call);
            if (r == 1 || r == 4) {
                assert_int_equal(c.status[r], MSGL_ENUMERIC);
                assert_int_equal(c.tokens[r], -1);
                assert_int_equal(c.pool[c.index[r]], 0);
                if (r == 1) assert_true(c.mu_out[r] == mu);
                continue;
            }
            assert_int_equal(one.tokens[0], c.tokens[r]);
            assert_true(one.mu_out[0] == c.mu_out[r]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_definitions),
        cmocka_unit_test(test_rows_alone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
