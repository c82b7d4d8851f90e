// SPDX-License-Identifier: Apache-2.0
//
// Models whose matrices are packed in every form that safetensors have: the log-probabilities of
// the same models in f32, to the bit, expanded and as they are in the file, on one rank and on two,
// which cut groups of 128 columns in halves. In bf16, what is kept is near them. Products are of
// members in different forms: k is never packed. Columns in an order of groups are added up in that
// order, which gives other bits; each matrix has its own, in experts too, and of three ranks each
// has what it has of every group. tests/cuda runs the same on a GPU, deterministic, so that
// products of codes and of their values go the same way. With `--device cuda:0,1` there is a rank
// on each, near the CPU's log-probabilities; forms have a dense model, a mixture whose experts are
// cut by columns and one whose experts are dealt out whole in turns, and `--part 1/4` is every
// fourth.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/harness.h"
#include "engine/loss.h"
#include "engine/packers.h"
#include "models/folder.h"
#include "utils/random.h"

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
#define ON_CPU (strcmp(TEST_DEVICE, "cpu") == 0)

static const char *device = TEST_DEVICE;
static int32_t gpus = 1; // that `device` names
static int part = 1, parts = 1;

enum { TOKENS = 12, VOCAB = 40, EXPERTS = 4 };

// Of the model that a packer makes. What is kept is added up 256 columns at a time, which are bits
// of its own for more of them.
typedef struct shape {
    int32_t width, heads; // half as many heads of K and V
    bool experts;         // Mixtral, else Llama
    int32_t expert_ranks; // as --ep-size, of more ranks than one
} shape;

// The same model in both forms.
typedef struct forms {
    tensors_out packed, floats;
    uint64_t seed;
    shape shape;
} forms;

static int32_t kv_rows(const shape *s)
{
    return s->width / 2;
}

static void put_plain(forms *f, const char *name, int32_t rows, float from, float width)
{
    const int32_t cols = f->shape.width;
    const size_t n = (size_t)rows * (width > 0.5f ? 1 : (size_t)cols);
    float *values = malloc(n * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < n; i++) values[i] = from + width * msgl__random_unit(&f->seed);
    const int64_t dims[] = {rows, cols};
    const int32_t ndim = width > 0.5f ? 1 : 2;
    out_put(&f->packed, name, ".weight", "F32", ndim, dims, values, n * sizeof *values);
    out_put(&f->floats, name, ".weight", "F32", ndim, dims, values, n * sizeof *values);
    free(values);
}

static void put_packed(forms *f, const packer *k, const char *name, int32_t rows)
{
    const int32_t cols = f->shape.width;
    const size_t bytes = (size_t)rows * (size_t)cols * sizeof(float);
    float *values = malloc(bytes);
    assert_non_null(values);
    k->pack(k, &f->packed, name, rows, cols, &f->seed, values);
    out_put(&f->floats, name, ".weight", "F32", 2, (int64_t[]){rows, cols}, values, bytes);
    free(values);
}

static void put_in_layer(forms *f, const packer *k, const char *matrix, int32_t rows)
{
    char name[100];
    snprintf(name, sizeof name, "model.layers.0.%s", matrix);
    put_packed(f, k, name, rows);
}

static void put_model(forms *f, const packer *k)
{
    const bool experts = f->shape.experts;
    const int32_t width = f->shape.width;
    put_in_layer(f, k, "self_attn.q_proj", width);
    put_in_layer(f, k, "self_attn.v_proj", kv_rows(&f->shape));
    put_in_layer(f, k, "self_attn.o_proj", width);
    for (int i = 0; i < (experts ? 3 * EXPERTS : 3); i++) {
        static const char *const dense[] = {"gate_proj", "up_proj", "down_proj"};
        char name[60];
        snprintf(name, sizeof name, "mlp.%s", dense[i % 3]);
        if (experts) {
            snprintf(name, sizeof name, "block_sparse_moe.experts.%d.w%d", i / 3, i % 3 + 1);
        }
        put_in_layer(f, k, name, width);
    }
    if (experts) put_plain(f, "model.layers.0.block_sparse_moe.gate", EXPERTS, -0.1f, 0.2f);
    put_plain(f, "model.layers.0.self_attn.k_proj", kv_rows(&f->shape), -0.1f, 0.2f);
    put_plain(f, "model.embed_tokens", VOCAB, -0.2f, 0.4f);
    put_plain(f, "lm_head", VOCAB, -0.2f, 0.4f);
    put_plain(f, "model.norm", width, 0.5f, 1);
    put_plain(f, "model.layers.0.input_layernorm", width, 0.5f, 1);
    put_plain(f, "model.layers.0.post_attention_layernorm", width, 0.5f, 1);
}

static void set_number(json_t *config, const char *key, int32_t n)
{
    char text[16];
    snprintf(text, sizeof text, "%d", (int)n);
    set_field(config, key, text);
}

static void write_model(const folder *f, const tensors_out *o, const shape *s,
                        const char *quantization)
{
    json_t *config = small_config(s->experts ? "MixtralForCausalLM" : "LlamaForCausalLM");
    set_number(config, "vocab_size", VOCAB);
    set_number(config, "hidden_size", s->width);
    set_number(config, "intermediate_size", s->width);
    set_number(config, "num_attention_heads", s->heads);
    set_number(config, "num_key_value_heads", s->heads / 2);
    set_number(config, "head_dim", s->width / s->heads);
    set_number(config, "num_hidden_layers", 1);
    set_field(config, "tie_word_embeddings", "false");
    set_field(config, "torch_dtype", "\"float32\"");
    if (quantization != NULL) set_field(config, "quantization_config", quantization);
    folder_write_json(f, "config.json", config);
    char *header = json_dumps(o->header, 0);
    assert_non_null(header);
    write_safetensors(f, "model.safetensors", header, o->data, o->n);
    free(header);
    json_decref(config);
}

// Different orders that the columns of a model's matrices have, experts aside.
static int count_orders(const msgl_model *m)
{
    const msgl_column_order *seen[16];
    int num = 0;
    for (int32_t i = 0; i < m->products.num; i++) {
        const msgl_weight *w = &m->products.list[i].linear->w;
        for (int32_t j = 0; j < (w->num_parts > 0 ? w->num_parts : 1); j++) {
            const msgl_wformat *format = w->num_parts > 0 ? w->parts[j].format : w->format;
            int at = 0;
            while (at < num && seen[at] != format->order) at++;
            if (format->order == NULL || at < num) continue;
            assert_true(num < (int)MSGL_COUNT(seen));
            seen[num++] = format->order;
        }
    }
    return num;
}

// What a model's weights take, and how many orders of columns they have.
typedef struct taken {
    size_t bytes;
    int orders;
} taken;

// What an engine is made of, and what it leaves.
typedef struct job {
    const folder *f;
    harness_target target;
    const char *dtype;
    taken taken;
    float logprobs[TOKENS * VOCAB];
} job;

static void do_job(job *j)
{
    int32_t ids[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = i * 37 % VOCAB;
    const msgl_options cfg = harness_config_for(j->f->dir, j->dtype, &j->target);
    harness h;
    harness_open(&h, &cfg);
    j->taken = (taken){h.info->weight_bytes, count_orders(&h.e->model)};
    float *logprobs = harness_prompt_of(&h, ids, TOKENS);
    memcpy(j->logprobs, logprobs, sizeof j->logprobs);
    free(logprobs);
    harness_close(&h);
}

// In a process of its own: one that has used CUDA cannot fork ranks.
static void do_job_apart(job *j)
{
    int status = -1;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        do_job(j); // a failure ends main, with another code
        fflush(NULL);
        _exit(0);
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Log-probabilities [TOKENS, VOCAB] of a prompt; weights "auto": packed ones as they are. fastest:
// on a device, by the kernels that a server takes.
static float *run_by(const folder *f, const shape *s, int32_t ranks, const char *dtype,
                     const char *weights, const char *level, bool fastest, taken *t)
{
    job *j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(j != MAP_FAILED);
    j->f = f;
    j->dtype = dtype;
    j->target = (harness_target){.device = device,
                                 .ranks = ranks,
                                 .expert_ranks = ranks > 1 ? s->expert_ranks : 0,
                                 .weights = weights,
                                 .level = level,
                                 .deterministic = !ON_CPU && !fastest};
    gpus > 1 ? do_job_apart(j) : do_job(j);
    *t = j->taken;
    float *logprobs = malloc(sizeof j->logprobs);
    assert_non_null(logprobs);
    memcpy(logprobs, j->logprobs, sizeof j->logprobs);
    munmap(j, sizeof *j);
    return logprobs;
}

static float *run(const folder *f, const shape *s, int32_t ranks, const char *dtype,
                  const char *weights, const char *level, taken *t)
{
    return run_by(f, s, ranks, dtype, weights, level, false, t);
}

// The CPU's, of the values in f32.
static float *run_exact(const folder *floats, const shape *s)
{
    const char *const here = device;
    taken t;
    device = "cpu";
    float *logprobs = run(floats, s, 1, "float32", "float32", NULL, &t);
    device = here;
    return logprobs;
}

// near: sums over columns are in another order.
static void check_same(const packer *k, int32_t ranks, const char *weights, bool near,
                       const float *got, const float *want)
{
    for (int i = 0; i < TOKENS * VOCAB; i++) {
        if (near ? fabsf(got[i] - want[i]) < 1e-4f : got[i] == want[i]) continue;
        fail_msg("%s, %s, %d ranks: %g, not %g", k->name, weights, ranks, got[i], want[i]);
    }
}

// Bits that a packed weight takes, if so many bytes are less than with f32.
static double bits_of(size_t bytes, size_t expanded, const shape *s)
{
    const int matrices = 2 + 3 * (s->experts ? EXPERTS : 1);
    const double weights = (matrices * s->width + kv_rows(s)) * s->width;
    return 32 - 8 * ((double)expanded - (double)bytes) / weights;
}

// Codes with scales and zero points, and what fills them up; of columns dealt out at random groups
// that have no whole blocks of 32 columns are filled up too.
static void check_bits(const packer *k, size_t bytes, size_t expanded, const shape *s)
{
    const bool kept = (k->with & WITH_APART) == 0;
    const double bits = bits_of(bytes, expanded, s);
    const double codes = k->bits == 0 ? 8 : k->bits; // 0: e4m3
    const double most = codes + 2.1, more = (k->with & WITH_ORDERED) != 0 ? 2 * codes : 0;
    print_message("%s: %.3f bits a weight\n", k->name, bits);
    assert_true(kept ? bits > codes && bits < most + more : bytes == expanded);
}

// q, v, o, gate, up and down.
static void check_orders(const packer *k, const taken *t, const shape *s)
{
    const int own = s->experts ? 3 : 6, same = (k->with & WITH_SHUFFLED) != 0;
    assert_int_equal(t->orders, (k->with & WITH_ORDERED) != 0 ? own : same);
}

// Positions whose log-probabilities are within 0.005 nats of those wanted.
static int near_ones(const float *want, const float *got)
{
    int near = 0;
    for (int t = 0; t < TOKENS; t++) {
        near += loss_of(want + t * VOCAB, got + t * VOCAB, 1, VOCAB).kl < 0.005;
    }
    return near;
}

// Activations are rounded to bf16 with AMX, else to 8 bits, or, on a device, fastest, to E4M3. Of
// experts, a rounded activation may choose another one where two are nearly as good: at one
// position or two of these. `want` is the CPU's.
static void check_near(const packer *k, const folder *packed, const shape *s, int32_t ranks,
                       const char *level, bool fastest, const float *want)
{
    taken t;
    float *got = run_by(packed, s, ranks, "bfloat16", "auto", level, fastest, &t);
    const double kl = loss_of(want, got, TOKENS, VOCAB).kl;
    const int near = near_ones(want, got);
    print_message("%s, %d ranks: divergence %.2e, %d of %d near\n", k->name, ranks, kl, near,
                  TOKENS);
    assert_true(kl > 0);
    const bool rounds = ON_CPU || (k->bits == 0 && fastest); // activations to fewer bits than 16
    assert_true(s->experts ? near >= TOKENS - 2 : kl < (rounds ? 0.005 : 0.002));
    free(got);
}

// Six ranks have 64 columns each, five or six of each group of 32: filled up they are 384, so that
// o and down are expanded.
static void check_expanded(const packer *k, const folder *packed, const shape *s, const float *want)
{
    taken t;
    float *got = run(packed, s, 6, "bfloat16", "auto", NULL, &t);
    const double kl = loss_of(want, got, TOKENS, VOCAB).kl;
    print_message("%s, 6 ranks: divergence %.2e\n", k->name, kl);
    assert_true(kl > 0 && kl < 0.005);
    assert_int_equal(t.orders, 4);
    free(got);
}

// A model in both forms, as folders.
typedef struct model {
    folder packed, floats;
    shape shape;
} model;

static void model_make(model *m, const packer *k, uint64_t seed, bool experts, int32_t expert_ranks)
{
    const bool ordered = (k->with & (WITH_ORDERED | WITH_SHUFFLED)) != 0;
    forms f = {.seed = seed,
               .shape = {ordered ? 384 : 256, ordered ? 12 : 4, experts, expert_ranks}};
    m->shape = f.shape;
    out_open(&f.packed);
    out_open(&f.floats);
    put_model(&f, k);
    folder_make(&m->packed);
    folder_make(&m->floats);
    write_model(&m->packed, &f.packed, &m->shape, k->config);
    write_model(&m->floats, &f.floats, &m->shape, NULL);
    out_close(&f.packed);
    out_close(&f.floats);
}

static void model_remove(model *m)
{
    folder_remove(&m->packed);
    folder_remove(&m->floats);
}

static void compare(const packer *k, uint64_t seed, bool experts)
{
    const bool ordered = (k->with & (WITH_ORDERED | WITH_SHUFFLED)) != 0;
    const bool few = ON_CPU && (k->with & WITH_ORDERED) != 0 && k->group == 32 && !experts;
    model m;
    model_make(&m, k, seed, experts, 0);
    for (int32_t ranks = !ON_CPU ? 1 : ordered ? 3 : 2; ranks > 0; ranks--) {
        taken expanded, t;
        float *want = run(&m.floats, &m.shape, ranks, "float32", "float32", NULL, &expanded);
        float width = 0;
        for (int i = 0; i < TOKENS * VOCAB; i++) width = fmaxf(width, fabsf(want[i]));
        assert_true(width > 1); // these are log-probabilities that differ
        static const char *const weights[] = {"float32", "auto"};
        for (size_t i = 0; i < MSGL_COUNT(weights); i++) {
            float *got = run(&m.packed, &m.shape, ranks, "float32", weights[i], NULL, &t);
            check_same(k, ranks, weights[i], ordered && i == 1, got, want);
            free(got);
        }
        if (ranks == 1) {
            float *exact = ON_CPU ? NULL : run_exact(&m.floats, &m.shape);
            check_bits(k, t.bytes, expanded.bytes, &m.shape);
            check_orders(k, &t, &m.shape);
            check_near(k, &m.packed, &m.shape, 1, NULL, false, ON_CPU ? want : exact);
            check_near(k, &m.packed, &m.shape, 1, ON_CPU ? "avx2" : NULL, true,
                       ON_CPU ? want : exact);
            free(exact);
        }
        if (ranks == 1 && few) check_expanded(k, &m.packed, &m.shape, want);
        free(want);
    }
    model_remove(&m);
}

static void compare_on_gpus(const packer *k, uint64_t seed)
{
    model m;
    taken t;
    const int32_t expert_ranks[] = {0, 1, gpus}; // 0: a dense model
    model_make(&m, k, seed, seed % 3 != 0, expert_ranks[seed % 3]);
    float *want = run_exact(&m.floats, &m.shape);
    float *got = run(&m.packed, &m.shape, gpus, "float32", "auto", NULL, &t);
    check_same(k, gpus, "auto", true, got, want);
    check_near(k, &m.packed, &m.shape, gpus, NULL, true, want);
    free(got);
    free(want);
    model_remove(&m);
}

static void test_equal(void **state)
{
    (void)state;
    size_t num = 0;
    while (packers[num].name != NULL) num++;
    for (size_t i = (size_t)part - 1; i < num; i += (size_t)parts) {
        if (gpus > 1) {
            compare_on_gpus(&packers[i], i + 1);
            continue;
        }
        compare(&packers[i], i + 1, false);
        if ((packers[i].with & WITH_ORDERED) != 0) compare(&packers[i], i + 1, true);
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const bool last = i + 1 == argc;
        if (!last && strcmp(argv[i], "--device") == 0) {
            device = argv[++i];
            for (const char *at = strchr(device, ','); at != NULL; at = strchr(at + 1, ',')) gpus++;
        } else if (last || strcmp(argv[i], "--part") != 0 ||
                   sscanf(argv[++i], "%d/%d", &part, &parts) != 2 || part < 1 || part > parts) {
            fprintf(stderr, "usage: %s [--device cuda:A,B[,C...]] [--part I/N, I from 1 to N]\n",
                    argv[0]);
            return 2;
        }
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
