// SPDX-License-Identifier: Apache-2.0
//
// The whole engine on a GPU through the public interface, run from the root of the tree:
//   cuda_llm [DEVICE] [--quick]
// Log-probabilities of every architecture vector in float32 against transformers', greedy tokens
// too; bfloat16 as close as the CPU has to be, and the same bits every time; the demo model's
// greedy answers in float32 the CPU's; with `deterministic` the same tokens with and without
// graphs, prefix cache and overlap, with any page size and chunk, alone and in a batch; sampling
// with a seed is repeatable, and the same in graphs and behind them; errors say what is needed.
// Prints a line per property; exit code 1 if one fails.
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <minisgl/minisgl.h>

#include "cuda/attn/decode.h"
#include "device/devices.h"

enum { POSITIONS = 64, VOCAB = 260, TOP = 20, MAX_TOKENS = 512 };

static const char *const MODELS[] = {
    "llama",
    "llama_tf5",
    "llama_rope_llama3",
    "llama_rope_linear",
    "llama_rope_yarn",
    "llama_hd256",
    "llama_rope_dynamic",
    "llama_gqa5_sharded",
    "mistral_swa",
    "qwen2_gqa7",
    "qwen3",
    "qwen3_tf5",
    "qwen3_f32",
    "qwen3_moe",
    "qwen3_moe_mixed",
};

static int g_failures;

static void check(int ok, const char *format, ...)
{
    if (ok) return;
    va_list args;
    va_start(args, format);
    printf("FAILED: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    g_failures++;
}

// ---- requests ----

typedef struct answer {
    int32_t tokens[MAX_TOKENS];
    int num_tokens, finish;
    // Of the prompt, by the position that is predicted.
    int32_t ids[POSITIONS][TOP + 1];
    float logprobs[POSITIONS][TOP + 1];
    int num[POSITIONS];
    char error[256];
} answer;

static int on_piece(void *ctx, const msgl_piece *p)
{
    answer *a = ctx;
    if (p->token >= 0 && a->num_tokens < MAX_TOKENS) a->tokens[a->num_tokens++] = p->token;
    for (int i = 0; i < p->num_logprobs; i++) {
        const msgl_logprob *l = &p->logprobs[i];
        if (l->position >= POSITIONS) continue;
        int *n = &a->num[l->position];
        a->ids[l->position][0] = l->token;
        a->logprobs[l->position][0] = l->logprob;
        for (*n = 1; *n <= l->num_top && *n <= TOP; ++*n) {
            a->ids[l->position][*n] = l->top_tokens[*n - 1];
            a->logprobs[l->position][*n] = l->top_logprobs[*n - 1];
        }
    }
    a->finish = p->finish;
    if (p->finish == MSGL_FAILED) snprintf(a->error, sizeof a->error, "%s", p->error);
    return 0;
}

static msgl_options options(const char *dir, const char *device, const char *dtype)
{
    msgl_options o;
    msgl_options_init(&o);
    o.model_dir = dir;
    o.device = device;
    o.dtype = dtype;
    o.max_running = 32;
    o.max_seq_len = 1024;
    o.num_pages = 32768;
    return o;
}

// Qwen3-0.6B's shape with random weights.
static msgl_options options_06b(const char *device)
{
    msgl_options o = options("bench/models/qwen3-0.6b", device, "bfloat16");
    o.dummy_weight = 1;
    return o;
}

// Greedy, and n tokens whatever they are.
static msgl_params exactly(const msgl_llm *l, int n)
{
    msgl_params p;
    msgl_params_init(l, &p);
    p.temperature = 0;
    p.ignore_eos = 1;
    p.max_tokens = n;
    return p;
}

static msgl_llm *open_model(const msgl_options *o)
{
    msgl_err err;
    msgl_llm *l = NULL;
    const int rc = msgl_open(o, &l, &err);
    if (rc == 0) return l;
    const int limits = rc == MSGL_EUNSUPPORTED && strcmp(o->attention, "auto") != 0;
    if (limits) printf("%-28s %s\n", strrchr(o->model_dir, '/') + 1, err.text);
    check(limits, "%s on %s: %s", o->model_dir, o->device, err.text);
    return NULL;
}

static void submit(msgl_llm *l, const int32_t *ids, size_t n, const msgl_params *p, answer *a)
{
    msgl_err err;
    memset(a, 0, sizeof *a);
    if (msgl_submit_ids(l, ids, n, p, on_piece, a, NULL, &err) != 0) check(0, "%s", err.text);
}

static void run(msgl_llm *l)
{
    msgl_err err;
    if (msgl_run(l, &err) != 0) check(0, "%s", err.text);
}

static int same_tokens(const answer *a, const answer *b)
{
    return a->finish != MSGL_FAILED && b->finish != MSGL_FAILED && a->num_tokens > 0 &&
           a->num_tokens == b->num_tokens &&
           memcmp(a->tokens, b->tokens, (size_t)a->num_tokens * sizeof *a->tokens) == 0;
}

// Tokens and log-probabilities, bit by bit.
static int same_answer(const answer *a, const answer *b)
{
    return same_tokens(a, b) && memcmp(a->num, b->num, sizeof a->num) == 0 &&
           memcmp(a->ids, b->ids, sizeof a->ids) == 0 &&
           memcmp(a->logprobs, b->logprobs, sizeof a->logprobs) == 0;
}

// ---- vectors ----

typedef struct vector {
    const char *name;
    char dir[128];
    float exact[POSITIONS][VOCAB], rounded[POSITIONS][VOCAB]; // f32's, transformers' own bf16's
    int32_t ids[POSITIONS], greedy[16];
    int greedy_from, num_greedy;
} vector;

static int load_rows(const vector *v, const char *file, float rows[POSITIONS][VOCAB])
{
    char path[192];
    snprintf(path, sizeof path, "%s/%s", v->dir, file);
    FILE *f = fopen(path, "rb");
    const size_t n = f != NULL ? fread(rows, sizeof(float), POSITIONS * VOCAB, f) : 0;
    if (f != NULL) fclose(f);
    check(n == POSITIONS * VOCAB, "%s cannot be read", path);
    return n == POSITIONS * VOCAB;
}

static int load(const char *name, vector *v)
{
    memset(v, 0, sizeof *v);
    v->name = name;
    snprintf(v->dir, sizeof v->dir, "tests/vectors/models/%s", name);
    char path[192];
    snprintf(path, sizeof path, "%s/prompt.json", v->dir);
    json_t *j = json_load_file(path, 0, NULL);
    check(j != NULL, "%s cannot be read", path);
    if (j == NULL) return 0;
    const json_t *ids = json_object_get(j, "ids"), *greedy = json_object_get(j, "greedy");
    for (size_t i = 0; i < POSITIONS; i++) {
        v->ids[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
    v->num_greedy = (int)json_array_size(greedy) < 16 ? (int)json_array_size(greedy) : 16;
    for (int i = 0; i < v->num_greedy; i++) {
        v->greedy[i] = (int32_t)json_integer_value(json_array_get(greedy, (size_t)i));
    }
    v->greedy_from = (int)json_integer_value(json_object_get(j, "greedy_prompt_len"));
    json_decref(j);
    return load_rows(v, "expected_f32.bin", v->exact) &&
           load_rows(v, "expected_bf16.bin", v->rounded);
}

// What row predicts first, and how far the second is.
static int first_choice(const float *row, float *margin)
{
    int best = 0;
    for (int i = 1; i < VOCAB; i++) best = row[i] > row[best] ? i : best;
    float second = -INFINITY;
    for (int i = 0; i < VOCAB; i++) second = i != best && row[i] > second ? row[i] : second;
    *margin = row[best] - second;
    return best;
}

// Largest and mean difference to the exact log-probabilities.
static void compare(const vector *v, const answer *a, double *worst, double *mean)
{
    double sum = 0;
    int n = 0;
    *worst = 0;
    for (int p = 1; p < POSITIONS; p++) {
        check(a->num[p] == TOP + 1, "%s: %d log-probabilities at position %d", v->name, a->num[p],
              p);
        for (int i = 0; i < a->num[p]; i++, n++) {
            const double d = fabs((double)a->logprobs[p][i] - v->exact[p - 1][a->ids[p][i]]);
            if (!(d <= *worst)) *worst = d; // NaN too
            sum += d;
        }
    }
    *mean = n > 0 ? sum / n : NAN;
}

// Where transformers' own bf16 run keeps the first choice safely, ours has to have it too.
static void clear_choices(const vector *v, const answer *a)
{
    for (int p = 1; p < POSITIONS; p++) {
        float margin, rounding = 0;
        const int best = first_choice(v->exact[p - 1], &margin);
        for (int i = 0; i < VOCAB; i++) {
            rounding = fmaxf(rounding, fabsf(v->rounded[p - 1][i] - v->exact[p - 1][i]));
        }
        if (margin <= 2 * rounding) continue;
        check(a->ids[p][1] == best, "%s: first choice at position %d is %d, not %d", v->name, p,
              a->ids[p][1], best);
    }
}

static void prompt_logprobs(msgl_llm *l, const vector *v, answer *a)
{
    msgl_params p;
    msgl_params_init(l, &p);
    p.temperature = 0;
    p.max_tokens = 1;
    p.prompt_logprobs = TOP;
    p.ignore_eos = 1;
    submit(l, v->ids, POSITIONS, &p, a);
    run(l);
    check(a->finish != MSGL_FAILED, "%s: %s", v->name, a->error);
}

// Greedy tokens of transformers'. It changes the base of dynamic NTK at every token; a paged cache
// that shares prefixes cannot, so that model is left out.
static void greedy(msgl_llm *l, const vector *v)
{
    static answer a;
    if (strcmp(v->name, "llama_rope_dynamic") == 0) return;
    msgl_params p;
    msgl_params_init(l, &p);
    p.temperature = 0;
    p.ignore_eos = 1;
    p.max_tokens = v->num_greedy;
    submit(l, v->ids, (size_t)v->greedy_from, &p, &a);
    run(l);
    check(a.num_tokens == v->num_greedy &&
              memcmp(a.tokens, v->greedy, (size_t)v->num_greedy * sizeof *v->greedy) == 0,
          "%s: other greedy tokens in float32", v->name);
}

// The same prompt alone has the same bits every time: other ones mean that a kernel read what was
// not there yet, such as the page list of the prompt before.
static void again(msgl_llm *l, const vector *v, const char *attention, const answer *a)
{
    enum { TIMES = 20 };
    static answer b;
    int others = 0;
    for (int i = 0; i < TIMES; i++) {
        prompt_logprobs(l, v, &b);
        others += !same_answer(a, &b);
    }
    check(others == 0, "%s: %s gives other log-probabilities in %d of %d repetitions", v->name,
          attention, others, TIMES);
}

static void test_vector(const char *name, const char *device, const char *dtype,
                        const char *attention)
{
    static vector v;
    static answer a;
    if (!load(name, &v)) return;
    double worst, mean;
    msgl_info info;
    msgl_options o = options(v.dir, device, dtype);
    o.max_seq_len = 128;
    o.num_pages = 2048;
    o.attention = attention;
    msgl_llm *l = open_model(&o);
    if (l == NULL) return;
    msgl_get_info(l, &info);
    prompt_logprobs(l, &v, &a);
    compare(&v, &a, &worst, &mean);
    if (strcmp(dtype, "float32") == 0) {
        check(worst < 1e-3, "%s: float32 differs by %.2e", name, worst);
        greedy(l, &v);
    } else {
        check(mean < 0.05, "%s: %s, %s differs by %.3f in the mean", name, dtype, info.attention,
              mean);
        clear_choices(&v, &a);
        again(l, &v, info.attention, &a);
    }
    printf("%-20s %-8s %-18s worst %.1e, mean %.1e\n", name, dtype, info.attention, worst, mean);
    msgl_close(l);
}

// ---- repetitions ----

// Many rows at a time take kernels that the small models above are too small for: those of 1,
// 48, 100, 144 and of thousands of rows, each started before the one in front has ended. The same
// requests together have the same bits every time.
static void test_repeats(const char *device)
{
    enum { TIMES = 5, MOST = 100, PROMPT = 48, TOKENS = 8 };
    static const int TOGETHER[] = {1, 3, MOST};
    static answer first[MOST], other[MOST];
    msgl_options o = options_06b(device);
    o.max_running = MOST;
    o.cache_type = "naive";
    o.prefill_first = 1; // no prompt is cut by the clock: the same steps every time
    msgl_llm *l = open_model(&o);
    if (l == NULL) return;
    msgl_params p = exactly(l, TOKENS);
    p.logprobs = TOP;
    for (size_t i = 0; i < sizeof TOGETHER / sizeof TOGETHER[0]; i++) {
        const int n = TOGETHER[i];
        int others = 0;
        for (int t = 0; t <= TIMES; t++) {
            answer *a = t == 0 ? first : other;
            for (int r = 0; r < n; r++) {
                int32_t ids[PROMPT];
                for (int j = 0; j < PROMPT; j++) ids[j] = (r * 131 + j * 977) % 151000;
                submit(l, ids, PROMPT, &p, &a[r]);
            }
            run(l);
            for (int r = 0; r < n; r++) {
                check(a[r].finish != MSGL_FAILED && a[r].num_tokens == TOKENS, "0.6B: %s",
                      a[r].error);
                others += !same_answer(&first[r], &a[r]);
            }
        }
        check(others == 0, "0.6B: %d of %d answers to %d requests at a time differ", others,
              TIMES * n, n);
        printf("0.6B, bfloat16, %d at a time: %d of %d answers repeat\n", n, TIMES * n - others,
               TIMES * n);
    }
    msgl_close(l);
}

// A request that grows past MSGL_FA_FEW_LEN keys changes from the graph with the kernels for few
// and short requests to the one for all lengths; without graphs the kernels change at the same
// length.
static void test_growing(const char *device)
{
    enum { PROMPT = MSGL_FA_FEW_LEN - 12, TOKENS = 24 };
    static int32_t ids[PROMPT];
    static answer a[2];
    for (int i = 0; i < PROMPT; i++) ids[i] = (i * 977) % 151000;
    for (int graphs = 0; graphs < 2; graphs++) {
        msgl_options o = options_06b(device);
        o.attention = "fa";
        o.max_running = 2;
        o.max_seq_len = 2 * MSGL_FA_FEW_LEN;
        o.graph_max_bs = graphs ? 2 : 0;
        msgl_llm *l = open_model(&o);
        if (l == NULL) return;
        const msgl_params p = exactly(l, TOKENS);
        submit(l, ids, PROMPT, &p, &a[graphs]);
        run(l);
        check(a[graphs].num_tokens == TOKENS, "0.6B, growing: %s", a[graphs].error);
        msgl_close(l);
    }
    check(same_answer(&a[0], &a[1]), "0.6B, growing past %d keys: other tokens with graphs",
          MSGL_FA_FEW_LEN);
    printf("0.6B, bfloat16, growing past %d keys: the same with and without graphs\n",
           MSGL_FA_FEW_LEN);
}

// ---- the demo model ----

static const char *const QUESTIONS[] = {
    "What is 27 + 58?",
    "What is minisgl?",
    "Tell me a short story about a fox.",
    "Hello!",
    "What is 3 + 4?",
    "How do I start the server?",
    "What is a radix tree?",
    "Which backends are there?",
    "Tell me a short story about a river.",
    "What is 90 + 9?",
    "What does --attn do?",
    "Who made you?",
};
enum { NUM_QUESTIONS = sizeof QUESTIONS / sizeof QUESTIONS[0] };

// What question i asks for besides a temperature.
enum { PLAIN, VARIED, FILTERED, PENALIZED, PENALIZED_GREEDY };

static void vary(msgl_params *p, int i, int how)
{
    if (how == PLAIN) return;
    p->seed = (uint64_t)i;
    p->temperature = i % 3 == 0 || how == PENALIZED_GREEDY ? 0 : 0.4f + 0.1f * (float)i;
    p->max_tokens = 20 + 7 * i; // they end one after the other: every number of requests
    if (how == VARIED) return;
    if (how == PENALIZED || how == PENALIZED_GREEDY) {
        static const msgl_bias bias[] = {{5000, 2}, {275, -3}, {11, 1.5f}};
        if (i % 4 == 1) p->repetition_penalty = 1.3f;
        if (i % 4 >= 2) p->frequency_penalty = 0.9f, p->presence_penalty = -0.3f;
        if (i % 4 == 3) p->logit_bias = bias, p->num_logit_bias = 3, p->repetition_penalty = 1.1f;
        if (i % 5 == 1) p->logprobs = 3;
        return; // no filters: the graph chooses
    }
    if (i % 4 == 1) p->top_k = 5 + i;
    if (i % 4 == 2) p->top_p = 0.9f;
    if (i % 4 == 3) p->min_p = 0.1f;
    if (i % 5 == 1) p->logprobs = 3;
}

// All at once, or one after the other.
static void ask_all(const msgl_options *o, int alone, float temperature, int how, answer *answers)
{
    msgl_llm *l = open_model(o);
    for (int i = 0; i < NUM_QUESTIONS; i++) memset(&answers[i], 0, sizeof answers[i]);
    if (l == NULL) return;
    msgl_params p, plain;
    msgl_params_init(l, &plain);
    plain.temperature = temperature;
    plain.has_seed = 1;
    plain.seed = 7;
    plain.max_tokens = 100;
    for (int i = 0; i < NUM_QUESTIONS; i++) {
        char json[256];
        msgl_err err;
        p = plain;
        vary(&p, i, how);
        snprintf(json, sizeof json, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
                 QUESTIONS[i]);
        if (msgl_submit_chat(l, json, &p, on_piece, &answers[i], NULL, &err) != 0) {
            check(0, "%s", err.text);
        }
        if (alone) run(l);
    }
    run(l);
    msgl_close(l);
}

static void expect_same(const char *what, const answer *want, const answer *got)
{
    int same = 0, tokens = 0;
    for (int i = 0; i < NUM_QUESTIONS; i++) {
        const int equal = same_tokens(&want[i], &got[i]);
        check(equal, "%s: another answer to \"%s\"%s%s", what, QUESTIONS[i],
              got[i].error[0] != '\0' ? ": " : "", got[i].error);
        same += equal;
        tokens += got[i].num_tokens;
    }
    printf("%-52s %d of %d answers, %d tokens\n", what, same, NUM_QUESTIONS, tokens);
}

static answer g_base[NUM_QUESTIONS], g_got[NUM_QUESTIONS];

static void test_variants(const char *device, const char *dtype, const char *attention)
{
    msgl_options base = options("models/demo", device, dtype);
    base.attention = attention;
    base.deterministic = 1;
    ask_all(&base, 0, 0, PLAIN, g_base);
    char what[128];
    for (int v = 0; v < 8; v++) {
        static const char *const NAMES[] = {"again",   "no graphs",    "no prefix cache", "page 16",
                                            "page 64", "chunks of 24", "no overlap",      "alone"};
        msgl_options o = base;
        if (v == 1) o.graph_max_bs = 0;
        if (v == 2) o.cache_type = "naive";
        if (v == 3 || v == 4) {
            o.page_size = v == 3 ? 16 : 64;
            o.num_pages = base.num_pages / o.page_size;
        }
        if (v == 5) o.max_prefill_tokens = 24;
        if (v == 6) o.overlap = 0;
        ask_all(&o, v == 7, 0, PLAIN, g_got);
        snprintf(what, sizeof what, "demo, %s, %s: %s", dtype, attention, NAMES[v]);
        expect_same(what, g_base, g_got);
    }
}

// Graphs choose the tokens of steps without filters, and kernels behind them those of the others:
// the same tokens and log-probabilities as without graphs, in every mixture.
static void test_mixtures(const char *device, int how, const char *name)
{
    msgl_options base = options("models/demo", device, "bfloat16");
    base.deterministic = 1;
    base.graph_max_bs = 0;
    ask_all(&base, 0, 0, how, g_base);
    for (int v = 0; v < 4; v++) {
        static const char *const NAMES[] = {"graphs", "graphs of up to 5", "graphs, no overlap",
                                            "graphs, alone"};
        msgl_options o = base;
        o.graph_max_bs = v == 1 ? 5 : -1;
        if (v == 2) o.overlap = 0;
        ask_all(&o, v == 3, 0, how, g_got);
        for (int i = 0; i < NUM_QUESTIONS; i++) {
            check(same_answer(&g_base[i], &g_got[i]), "%s: other log-probabilities", name);
        }
        char what[128];
        snprintf(what, sizeof what, "demo, %s: %s", name, NAMES[v]);
        expect_same(what, g_base, g_got);
    }
}

static void test_demo(const char *device, int quick)
{
    static answer cpu[NUM_QUESTIONS];
    msgl_options o = options("models/demo", "cpu", "float32");
    ask_all(&o, 0, 0, PLAIN, cpu);
    o.device = device;
    ask_all(&o, 0, 0, PLAIN, g_got);
    expect_same("demo, float32: the CPU's answers", cpu, g_got);
    ask_all(&o, 0, 0, PENALIZED_GREEDY, g_got);
    o.device = "cpu";
    ask_all(&o, 0, 0, PENALIZED_GREEDY, cpu);
    expect_same("demo, float32: the CPU's, bias and penalties", cpu, g_got);
    test_mixtures(device, VARIED, "temperatures and seeds");
    test_mixtures(device, FILTERED, "filters and log-probabilities");
    test_mixtures(device, PENALIZED, "bias and penalties");
    if (quick) return;
    test_variants(device, "float32", "auto");
    test_variants(device, "bfloat16", "auto");
    test_variants(device, "bfloat16", "fa");
    o = options("models/demo", device, "bfloat16");
    o.deterministic = 1;
    ask_all(&o, 0, 0.8f, PLAIN, g_base);
    ask_all(&o, 1, 0.8f, PLAIN, g_got);
    expect_same("demo, bfloat16, sampled with a seed: alone", g_base, g_got);
}

// ---- errors ----

static void expect_error(const char *what, const msgl_options *o, const char *a, const char *b)
{
    msgl_err err = {0};
    msgl_llm *l = NULL;
    const int rc = msgl_open(o, &l, &err);
    check(rc != 0 && strstr(err.text, a) != NULL && strstr(err.text, b) != NULL,
          "%s: \"%s\" does not name %s and %s", what, rc != 0 ? err.text : "no error", a, b);
    printf("%-20s %s\n", what, err.text);
    msgl_close(l);
}

static void test_errors(const char *device)
{
    msgl_options o = options("models/demo", device, "bfloat16");
    o.num_pages = 200000000;
    expect_error("too many pages", &o, "need", "--num-pages");
    o = options("models/demo", "cuda:99", "bfloat16");
    expect_error("no such GPU", &o, "cuda:99", "allowed");
    o = options("models/demo", device, "bfloat16");
    o.attention = "fax";
    expect_error("no such backend", &o, "fax", "fa, ");
}

// The GPU is nearly full before the model comes; once it is not, the same model loads.
static void test_full_gpu(const char *device)
{
    enum { LEFT = 256 << 20 };
    msgl_err err = {0};
    msgl_device_choice choice;
    msgl_device *d = NULL;
    if (msgl__device_choose(device, 0, 1, &choice, &err) != 0 ||
        choice.plugin->open(&(msgl_device_options){.ordinal = choice.ordinal}, &d, NULL, &err) !=
            0) {
        check(0, "%s", err.text);
        return;
    }
    const size_t bytes = d->ops->available(d) - LEFT;
    void *held = d->ops->alloc(d, bytes);
    check(held != NULL, "%zu bytes of a free GPU are not to be had", bytes);
    msgl_options weights = options_06b(device), steps;
    weights.num_pages = 0;
    expect_error("weights, full GPU", &weights, "need", "have");
    steps = options("models/demo", device, "bfloat16");
    steps.max_prefill_tokens = 1 << 17;
    expect_error("workspace, full GPU", &steps, "have", "--max-prefill-length");
    steps = options("models/demo", device, "bfloat16");
    steps.max_prefill_tokens = 128;
    steps.num_pages = 1 << 20;
    expect_error("KV, full GPU", &steps, "have", "--num-pages");
    d->ops->free(d, held, bytes);
    msgl_close(open_model(&weights));
    d->ops->destroy(d);
}

int main(int argc, char **argv)
{
    const char *device = "cuda:0";
    int quick = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            quick = 1;
        } else {
            device = argv[i];
        }
    }
    const int models = (int)(sizeof MODELS / sizeof MODELS[0]);
    for (int i = 0; i < models; i++) {
        if (quick && strcmp(MODELS[i], "qwen3") != 0) continue;
        test_vector(MODELS[i], device, "float32", "auto");
        static const char *const BACKENDS[] = {"auto", "fi", "trtllm", "torch_native"};
        for (int b = 0; b < (quick ? 1 : 4); b++) {
            test_vector(MODELS[i], device, "bfloat16", BACKENDS[b]);
        }
    }
    if (!quick) test_repeats(device);
    if (!quick && strncmp(device, "cuda", 4) == 0) test_growing(device);
    test_demo(device, quick);
    if (strncmp(device, "cuda", 4) == 0) {
        test_errors(device);
        test_full_gpu(device);
    }
    printf("llm: %s\n", g_failures == 0 ? "all passed" : "failures");
    return g_failures == 0 ? 0 : 1;
}
