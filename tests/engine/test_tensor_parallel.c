// SPDX-License-Identifier: Apache-2.0
//
// Models on several ranks of this host: the log-probabilities that one rank gives, for every
// architecture, and what cannot be shared is refused.
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/dual_models.h"
#include "engine/parity.h"
#include "core/attributes.h"
#include "engine/rank_wire.h"
#include "utils/clock.h"
#include "utils/random.h"

static void test_parity(void **state)
{
    (void)state;
    int shared = 0;
    for (size_t i = 0; parity_models[i] != NULL; i++) {
        for (int32_t ranks = 2; ranks <= 4; ranks++) {
            const harness_target t = {.ranks = ranks};
            shared += parity_f32(parity_models[i], &t);
        }
    }
    print_message("%d runs\n", shared);
    assert_true(shared >= 50); // most have two heads
}

// Experts on several ranks: whole ones, and halves of them.
static void test_experts(void **state)
{
    (void)state;
    static const struct {
        int32_t ranks, expert_ranks;
    } shared[] = {{2, 2}, {3, 3}, {4, 4}, {4, 2}};
    int runs[MSGL_COUNT(shared)] = {0};
    for (size_t i = 0; parity_models[i] != NULL; i++) {
        for (size_t s = 0; s < MSGL_COUNT(shared); s++) {
            const harness_target t = {.ranks = shared[s].ranks,
                                      .expert_ranks = shared[s].expert_ranks};
            runs[s] += parity_f32(parity_models[i], &t);
        }
    }
    // All with experts on 2 ranks; those with 4 heads or more on 4. None has heads for 3.
    assert_true(runs[0] >= 17 && runs[1] == 0 && runs[2] >= 8 && runs[3] >= 8);
}

// The rows of two targets' prompts, which may be computed in another order. Several ranks come
// first: they are forked while this process has no threads.
static void compare(const char *dir, const char *model, const harness_target targets[2])
{
    harness h[2];
    for (int i = 0; i < 2; i++) {
        assert_true(parity_prompt(&h[i], dir, model, "float32", &targets[i]));
    }
    for (int32_t p = 0; p < 64; p++) {
        const float *a = harness_row(&h[0], p), *b = harness_row(&h[1], p);
        for (int32_t i = 0; i < h[0].info->vocab_size; i++) assert_true(fabsf(a[i] - b[i]) < 1e-3f);
    }
    for (int i = 0; i < 2; i++) harness_close(&h[i]);
}

// The bytes of a file, for free().
static char *read_file(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s: cannot open", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *size = (size_t)ftell(f);
    rewind(f);
    char *bytes = malloc(*size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, f), *size);
    fclose(f);
    return bytes;
}

// The model with routers of zeros: all scores are equal, and all tokens go to the first experts.
static void make_collapsed(folder *f, const char *model)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    folder_make(f);
    for (int i = 0; i < 2; i++) {
        char path[512];
        size_t size;
        parity_path(path, model, files[i]);
        char *bytes = read_file(path, &size);
        if (i == 1) {
            uint64_t header;
            const char *name;
            json_t *tensor;
            memcpy(&header, bytes, sizeof header);
            json_t *all = json_loadb(bytes + sizeof header, header, 0, NULL);
            int routers = 0;
            json_object_foreach(all, name, tensor)
            {
                if (strstr(name, ".mlp.gate.weight") == NULL) continue;
                const json_t *at = json_object_get(tensor, "data_offsets");
                const size_t from = (size_t)json_integer_value(json_array_get(at, 0));
                const size_t to = (size_t)json_integer_value(json_array_get(at, 1));
                memset(bytes + sizeof header + header + from, 0, to - from);
                routers++;
            }
            assert_true(routers > 0);
            json_decref(all);
        }
        folder_write(f, files[i], bytes, size);
        free(bytes);
    }
}

// All tokens go to experts of the first rank, none to the other's; quantised experts.
static void test_uneven_experts(void **state)
{
    (void)state;
    folder f;
    char dir[512];
    make_collapsed(&f, "qwen3_moe");
    compare(f.dir, "qwen3_moe", (const harness_target[]){{.ranks = 2, .expert_ranks = 2}, {0}});
    folder_remove(&f);
    parity_path(dir, "qwen3_moe", "");
    compare(dir, "qwen3_moe",
            (const harness_target[]){{.weights = "int8", .ranks = 2, .expert_ranks = 2},
                                     {.weights = "int8"}});
}

// Long prompts of a model whose heads keep few distances: each rank knows its heads' pattern.
static void test_sparse_prompts(void **state)
{
    (void)state;
    const harness_target targets[] = {{.attention = "auto", .ranks = 2}, {.attention = "auto"}};
    folder f;
    dual_make_sparse(&f, 1, 64);
    compare(f.dir, "qwen2_dual_chunk", targets);
    folder_remove(&f);
}

// A Qwen3 of one layer with random weights, 6 query heads and kv_heads. None of its row counts but
// the vocabulary's leaves a remainder of 3.
static void make_three(folder *f, int kv_heads)
{
    enum { VOCAB = 260, HIDDEN = 64, HEADS = 6, DIM = 16, INTER = 96 };
    json_t *c = small_config("Qwen3ForCausalLM");
    json_t *own =
        json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "vocab_size", VOCAB, "hidden_size", HIDDEN,
                  "num_hidden_layers", 1, "num_attention_heads", HEADS, "num_key_value_heads",
                  kv_heads, "head_dim", DIM, "intermediate_size", INTER);
    json_object_update(c, own);
    json_object_set_new(c, "tie_word_embeddings", json_false());
    folder_make(f);
    folder_write_json(f, "config.json", c);
    json_decref(own);
    json_decref(c);
    const struct {
        const char *name;
        int rows, cols; // cols 0: a norm
    } tensors[] = {
        {"model.embed_tokens.weight", VOCAB, HIDDEN},
        {"model.norm.weight", HIDDEN, 0},
        {"lm_head.weight", VOCAB, HIDDEN},
        {"model.layers.0.input_layernorm.weight", HIDDEN, 0},
        {"model.layers.0.post_attention_layernorm.weight", HIDDEN, 0},
        {"model.layers.0.self_attn.q_norm.weight", DIM, 0},
        {"model.layers.0.self_attn.k_norm.weight", DIM, 0},
        {"model.layers.0.self_attn.q_proj.weight", HEADS * DIM, HIDDEN},
        {"model.layers.0.self_attn.k_proj.weight", kv_heads * DIM, HIDDEN},
        {"model.layers.0.self_attn.v_proj.weight", kv_heads * DIM, HIDDEN},
        {"model.layers.0.self_attn.o_proj.weight", HIDDEN, HEADS * DIM},
        {"model.layers.0.mlp.gate_proj.weight", INTER, HIDDEN},
        {"model.layers.0.mlp.up_proj.weight", INTER, HIDDEN},
        {"model.layers.0.mlp.down_proj.weight", HIDDEN, INTER},
    };
    static float data[100000];
    json_t *header = json_object();
    uint64_t rng = 5;
    size_t n = 0;
    for (size_t i = 0; i < MSGL_COUNT(tensors); i++) {
        const int rows = tensors[i].rows, cols = tensors[i].cols;
        const size_t from = n;
        for (int k = 0; k < rows * (cols > 0 ? cols : 1); k++) {
            assert_true(n < MSGL_COUNT(data));
            const float r = 2 * msgl__random_unit(&rng) - 1;
            data[n++] = cols > 0 ? 0.3f * r : 1 + 0.2f * r;
        }
        json_t *shape = cols > 0 ? json_pack("[i,i]", rows, cols) : json_pack("[i]", rows);
        json_object_set_new(header, tensors[i].name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", "F32", "shape", shape,
                                      "data_offsets", (json_int_t)(from * sizeof *data),
                                      (json_int_t)(n * sizeof *data)));
    }
    char *text = json_dumps(header, JSON_COMPACT);
    write_safetensors(f, "model.safetensors", text, data, n * sizeof *data);
    free(text);
    json_decref(header);
}

// Three ranks, of which each has a KV head of its own, or all have the one: what one rank gives.
static void test_three(void **state)
{
    (void)state;
    for (int kv_heads = 3; kv_heads >= 1; kv_heads -= 2) {
        const harness_target targets[] = {{.ranks = 3}, {.ranks = 1}};
        harness h[2];
        folder f;
        make_three(&f, kv_heads);
        for (int i = 0; i < 2; i++) {
            assert_true(parity_prompt(&h[i], f.dir, "llama", "float32", &targets[i]));
        }
        double most = 0, spread = 0;
        for (int32_t p = 0; p < 64; p++) {
            const float *a = harness_row(&h[0], p), *b = harness_row(&h[1], p);
            int32_t best[2] = {0, 0};
            for (int32_t i = 0; i < h[0].info->vocab_size; i++) {
                most = fmax(most, fabs((double)a[i] - (double)b[i]));
                spread = fmax(spread, fabs((double)b[i] - (double)b[0]));
                if (a[i] > a[best[0]]) best[0] = i;
                if (b[i] > b[best[1]]) best[1] = i;
            }
            assert_int_equal(best[0], best[1]);
        }
        print_message("3 ranks, %d KV heads: max difference %.2e\n", kv_heads, most);
        assert_true(most < 1e-3);
        assert_true(spread > 1); // no row of nearly equal numbers
        for (int i = 0; i < 2; i++) harness_close(&h[i]);
        folder_remove(&f);
    }
}

static int one_step(harness *h, int32_t from, int32_t to)
{
    msgl_batch_req req = harness_req(3, from, to);
    msgl_batch b = {.size = 1, .num_tokens = to - from, .reqs = &req, .num_decode = 0};
    const int code = h->r->submit(h->r->ctx, &b);
    return code == 0 ? h->r->wait(h->r->ctx, 0, &h->result) : code;
}

// A rank that is killed or stopped ends the step that needs it, with its name, and nobody is left.
static void test_failing_rank(void **state)
{
    (void)state;
    static const int signals[] = {SIGKILL, SIGSTOP};
    for (int i = 0; i < 4; i++) {
        const int32_t ranks = 2 + 2 * (i % 2), bad = ranks - 1;
        const harness_target t = {.ranks = ranks};
        harness h;
        char dir[512], want[64];
        int32_t ids[64];
        parity_path(dir, "deepseek_v2_lite", "prompt.json");
        assert_int_equal(load_ids(dir, "ids", ids, 64), 64);
        parity_path(dir, "deepseek_v2_lite", "");
        msgl_options o = harness_config_for(dir, "float32", &t);
        harness_open(&h, &o);
        harness_pages(&h, 3, 64);
        harness_tokens(&h, 3, ids, 64);
        assert_int_equal(one_step(&h, 0, 40), 0);
        assert_null(h.r->fault(h.r->ctx));
        const uint64_t begin = msgl__now_ns();
        kill(msgl__ranks_process(&h.e->place, bad), signals[i / 2]);
        int code = 0; // of a step or the one behind it: what was sent may not have been read
        for (int32_t at = 40; at < 44 && code == 0; at++) code = one_step(&h, at, at + 1);
        const double seconds = (double)(msgl__now_ns() - begin) * 1e-9;
        assert_int_equal(code, MSGL_EPEER);
        snprintf(want, sizeof want, "rank %d of %d failed", (int)bad, (int)ranks);
        assert_string_equal(h.r->fault(h.r->ctx), want);
        print_message("signal %d: %.2f s\n", signals[i / 2], seconds);
        harness_close(&h);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
        assert_int_equal(errno, ECHILD);
    }
}

// What the others cannot do is rank 0's error, with the rank's name; and nobody is left.
static void test_refused(void **state)
{
    (void)state;
    harness_target t = {.ranks = 2};
    harness h;
    char dir[512];
    parity_path(dir, "llama", "");
    msgl_options o = harness_config_for(dir, "float32", &t);
    msgl_err err = {0};
    o.tp_size = 3;
    assert_int_equal(harness_try_open(&h, &o, &err), MSGL_EUNSUPPORTED);
    assert_string_equal(err.text,
                        "--tp-size 3: num_attention_heads is 2; allowed: a divisor of it");
    o.tp_size = 0;
    assert_int_equal(harness_try_open(&h, &o, &err), MSGL_EINVAL);
    static const struct {
        const char *model;
        int tp_size, ep_size;
        const char *text;
    } experts[] = {
        {"llama", 2, 2, "--ep-size 2: the model has no experts; allowed: 1"},
        {"qwen3_moe", 2, 3, "--ep-size 3: --tp-size is 2; allowed: a divisor of it"},
        {"qwen3_moe", 2, 4, "--ep-size 4: --tp-size is 2; allowed: a divisor of it"},
        {"qwen3_moe", 1, 2, "--ep-size 2: --tp-size is 1; allowed: a divisor of it"},
        {"zamba2", 2, 1, "--tp-size 2: mamba_n_groups is 1; allowed: a divisor of it"},
    };
    for (size_t i = 0; i < MSGL_COUNT(experts); i++) {
        parity_path(dir, experts[i].model, "");
        msgl_options e = harness_config_for(dir, "float32", &t);
        e.tp_size = experts[i].tp_size;
        e.ep_size = experts[i].ep_size;
        assert_int_equal(harness_try_open(&h, &e, &err), MSGL_EUNSUPPORTED);
        assert_string_equal(err.text, experts[i].text);
    }
    parity_path(dir, "llama", "");
    o.tp_size = 2;
    o.attention = "none";
    assert_int_equal(harness_try_open(&h, &o, &err), MSGL_EINVAL);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void find_experts(void *line, const char *text)
{
    if (strncmp(text, "experts:", 8) == 0) snprintf(line, 96, "%s", text);
}

// How experts of made-up sizes are shared out, or why not.
static void test_expert_sizes(void **state)
{
    (void)state;
    static const struct {
        int ranks, expert_ranks; // asked for
        const char *inter, *experts, *heads;
        int shared; // 0: refused
        const char *text;
    } sizes[] = {
        {2, 0, "16", "4", "4", 1, NULL},
        {2, 0, "15", "4", "4", 2, NULL},
        {2, 2, "16", "4", "4", 2, NULL},
        {3, 3, "16", "6", "6", 3, NULL},
        {3, 3, "16", "4", "6", 0, "--ep-size 3: num_experts is 4; allowed: a divisor of it"},
        {2, 1, "15", "4", "4", 0,
         "--tp-size 2, --ep-size 1: 2 ranks share an expert, whose moe_intermediate_size is 15; "
         "allowed: a divisor of it"},
        {4, 2, "15", "4", "4", 0,
         "--tp-size 4, --ep-size 2: 2 ranks share an expert, whose moe_intermediate_size is 15; "
         "allowed: a divisor of it"},
    };
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) {
        const harness_target t = {.ranks = sizes[i].ranks, .expert_ranks = sizes[i].expert_ranks};
        json_t *c = small_config("Qwen3MoeForCausalLM");
        folder f;
        harness h;
        msgl_err err = {0};
        set_field(c, "moe_intermediate_size", sizes[i].inter);
        set_field(c, "num_experts", sizes[i].experts);
        set_field(c, "num_attention_heads", sizes[i].heads);
        set_field(c, "num_key_value_heads", "1");
        folder_make(&f);
        folder_write_json(&f, "config.json", c);
        json_decref(c);
        msgl_options o = harness_config_for(f.dir, "float32", &t);
        char line[96] = "";
        o.dummy_weight = 1;
        o.log = find_experts;
        o.ctx = line;
        o.max_seq_len = 64;
        const int code = harness_try_open(&h, &o, &err);
        if (sizes[i].shared == 0) assert_string_equal(err.text, sizes[i].text);
        assert_int_equal(code, sizes[i].shared > 0 ? 0 : MSGL_EUNSUPPORTED);
        if (code == 0) {
            assert_int_equal(h.e->model.target.expert_ranks, sizes[i].shared);
            const char *said = sizes[i].expert_ranks > 0 ? ""
                               : sizes[i].shared == 1
                                   ? "experts: each process has a part of every one (--ep-size 1)"
                                   : "experts: each process has whole ones (--ep-size 2)";
            assert_string_equal(line, said);
            harness_pages(&h, 3, 12);
            harness_tokens(&h, 3, (const int32_t[]){1, 2, 3, 4, 5, 6, 7, 8}, 8);
            assert_int_equal(one_step(&h, 0, 8), 0);
            harness_close(&h);
        }
        folder_remove(&f);
    }
}

// What goes wrong in one of the ranks, once it is forked.
static struct {
    int32_t rank, forked; // rank 0: in none; of those that were forked
    size_t memory;        // more than it has, at most; 0: any
    const char *dir;      // that it works in; NULL: as it is
} trouble;

static void after_fork_here(void)
{
    trouble.forked++;
}

static void after_fork_there(void)
{
    if (trouble.rank == 0 || ++trouble.forked != trouble.rank) return;
    if (trouble.dir != NULL && chdir(trouble.dir) != 0) _exit(9);
    if (trouble.memory == 0) return;
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f == NULL || fscanf(f, "%ld", &pages) != 1) _exit(9);
    (void)fclose(f);
    const rlim_t most = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + trouble.memory;
    if (setrlimit(RLIMIT_AS, &(struct rlimit){most, most}) != 0) _exit(9);
}

// The model of `o` cannot be opened on several ranks, and nobody is left.
static void expect_trouble(const msgl_options *o, int code, const char *text)
{
    harness h;
    msgl_err err = {0};
    trouble.forked = 0;
    const int got = harness_try_open(&h, o, &err);
    if (got != code || strncmp(err.text, text, strlen(text)) != 0)
        fail_msg("%d '%s' instead of %d '%s'", got, err.text, code, text);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    trouble.rank = 0;
}

// Each of the others in turn gets no memory for its part: its error, with its rank.
static void test_no_memory(void **state)
{
    (void)state;
    enum { PAGES = 4000000 }; // 64 bytes or more each
    const harness_target t = {.ranks = 4};
    char dir[512];
    parity_path(dir, "deepseek_v2_lite", "");
    msgl_options o = harness_config_for(dir, "float32", &t);
    o.num_pages = PAGES;
    for (int32_t rank = 1; rank < 4; rank++) {
        char want[64];
        trouble.rank = rank;
        trouble.memory = (size_t)128 << 20;
        snprintf(want, sizeof want, "rank %d: memory: need ", (int)rank);
        expect_trouble(&o, MSGL_ENOMEM, want);
        trouble.memory = 0;
    }
}

static void copy_file(const char *from, const folder *to, const char *name, bool changed)
{
    FILE *f = fopen(from, "re");
    assert_non_null(f);
    static char bytes[1 << 20];
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    assert_true(n > 0 && n < sizeof bytes);
    if (changed) bytes[n - 1] ^= 1;
    fclose(f);
    folder_write(to, name, bytes, n);
}

// Each rank reads the files that it finds, here in its working directory, as on several
// hosts. How they differ is said with the first rank that has other ones.
static void test_other_files(void **state)
{
    (void)state;
    static const struct {
        bool config, weights, no_weights; // what is changed, or not there
        int code;
        const char *text;
    } cases[] = {
        {true, false, false, MSGL_EFORMAT,
         "rank 2: .: found another model than rank 0: config.json differs"},
        {false, true, false, MSGL_EFORMAT,
         "rank 2: .: found another model than rank 0: weights differ"},
        {false, false, true, MSGL_ENOENT, "rank 2: .: has no model.safetensors"},
    };
    char config[512], weights[512], old[512];
    parity_path(config, "deepseek_v2_lite", "config.json");
    parity_path(weights, "deepseek_v2_lite", "model.safetensors");
    folder good, other;
    folder_make(&good);
    copy_file(config, &good, "config.json", false);
    copy_file(weights, &good, "model.safetensors", false);
    assert_non_null(getcwd(old, sizeof old));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        folder_make(&other);
        json_t *c = json_load_file(config, 0, NULL);
        if (cases[i].config) json_object_set_new(c, "rms_norm_eps", json_real(3e-5));
        if (cases[i].config) folder_write_json(&other, "config.json", c);
        if (!cases[i].config) copy_file(config, &other, "config.json", false);
        json_decref(c);
        if (!cases[i].no_weights) {
            copy_file(weights, &other, "model.safetensors", cases[i].weights);
        }
        const harness_target t = {.ranks = 4};
        const msgl_options o = harness_config_for(".", "float32", &t);
        assert_int_equal(chdir(good.dir), 0);
        trouble.rank = 2;
        trouble.dir = other.dir;
        expect_trouble(&o, cases[i].code, cases[i].text);
        trouble.dir = NULL;
        assert_int_equal(chdir(old), 0);
        folder_remove(&other);
    }
    folder_remove(&good);
}

static void *blame_later(void *group)
{
    usleep(200000);
    msgl__group_blame(group, 1);
    return NULL;
}

// Rank 0 does not wait for one that reads no more, and messages come whole.
static void test_wire(void **state)
{
    (void)state;
    enum { LONG = 8 << 20 };
    int pair[2];
    char *data = calloc(1, LONG);
    msgl_group *g;
    msgl_err err = {0};
    msgl_wire w = {0}, got = {0};
    pthread_t thread;
    assert_non_null(data);
    assert_int_equal(msgl__group_create(2, &g, &err), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    for (int i = 0; i < 3; i++) {
        int32_t number = i, back = -1;
        msgl__wire_begin(&w, MSGL_WIRE_EXTRA);
        msgl__wire_put(&w, data, (size_t)i * 1000);
        msgl__wire_put(&w, &number, sizeof number);
        assert_int_equal(msgl__wire_send(&w, pair[0], g), 0);
        assert_int_equal(msgl__wire_receive(&got, pair[1], NULL), MSGL_WIRE_EXTRA);
        assert_true(msgl__wire_get(&got, data, (size_t)i * 1000));
        assert_true(msgl__wire_get(&got, &back, sizeof back));
        assert_int_equal(back, i);
        assert_false(msgl__wire_get(&got, &back, 1));
    }
    msgl__wire_begin(&w, MSGL_WIRE_EXTRA);
    msgl__wire_put(&w, data, LONG);
    assert_int_equal(pthread_create(&thread, NULL, blame_later, g), 0);
    assert_int_equal(msgl__wire_send(&w, pair[0], g), MSGL_EPEER);
    pthread_join(thread, NULL);
    close(pair[1]);
    assert_int_equal(msgl__wire_send(&w, pair[0], NULL), MSGL_EPEER);
    close(pair[0]);
    msgl__wire_free(&w);
    msgl__wire_free(&got);
    msgl__group_destroy(g);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parity),         cmocka_unit_test(test_experts),
        cmocka_unit_test(test_uneven_experts), cmocka_unit_test(test_sparse_prompts),
        cmocka_unit_test(test_three),          cmocka_unit_test(test_failing_rank),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_other_files),    cmocka_unit_test(test_expert_sizes),
        cmocka_unit_test(test_wire),
    };
    if (pthread_atfork(NULL, after_fork_here, after_fork_there) != 0) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
