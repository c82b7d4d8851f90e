// SPDX-License-Identifier: Apache-2.0
//
// What constrained decoding costs a token.
//   bench_grammar MODEL_DIR SCHEMAS.json [ROUNDS]
// SCHEMAS.json is a list of {"name", "schema", "valid": [documents]}, such as
// tests/vectors/grammar/schemas.json. Each document is cut into the longest tokens of the
// vocabulary and gone through; every mask is timed. A round compiles anew, so that the first answer
// of a grammar is in the figures as often as the others are. Times are wall time of one thread, in
// us.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "core/mem.h"
#include "grammar/vocab.h"
#include "tokenizer/tokenizer.h"
#include "utils/clock.h"

typedef struct samples {
    double *at;
    size_t n, cap;
} samples;

static void add(samples *s, double v)
{
    if (s->n == s->cap) {
        s->cap = s->cap == 0 ? 4096 : 2 * s->cap;
        s->at = msgl__reallocarray(s->at, s->cap, sizeof *s->at);
        if (s->at == NULL) exit(1);
    }
    s->at[s->n++] = v;
}

static int order(const void *a, const void *b)
{
    const double p = *(const double *)a, q = *(const double *)b;
    return (p > q) - (p < q);
}

static void print(const char *what, samples *s)
{
    if (s->n == 0) return;
    qsort(s->at, s->n, sizeof *s->at, order);
    double sum = 0;
    for (size_t i = 0; i < s->n; i++) sum += s->at[i];
    printf("%-10s n %7zu  mean %8.2f  p50 %8.2f  p90 %8.2f  p99 %8.2f  max %8.2f us\n", what, s->n,
           sum / (double)s->n, s->at[s->n / 2], s->at[s->n * 9 / 10], s->at[s->n * 99 / 100],
           s->at[s->n - 1]);
}

// The longest token that the text begins with, of both trees; -1: none.
static int32_t longest(const msgl_grammar_vocab *v, const char *p, size_t n)
{
    int32_t best = -1, len = 0;
    for (int k = 0; k < 2; k++) {
        const msgl_trie *t = &v->trie[k];
        int32_t node = 0;
        for (size_t d = 0; d < n; d++) {
            const int32_t end = node + t->size[node];
            int32_t child = node + 1;
            while (child < end && t->byte[child] != (uint8_t)p[d]) child += t->size[child];
            if (child >= end) break;
            node = child;
            if (t->first[node + 1] > t->first[node] && t->depth[node] > len) {
                best = t->tokens[t->first[node]];
                len = t->depth[node];
            }
        }
    }
    return best;
}

static double us_since(uint64_t t0)
{
    return (double)(msgl__now_ns() - t0) * 1e-3;
}

typedef struct bench {
    msgl_grammar_vocab *v;
    uint32_t *bits;
    samples compile, mask, accept;
    int failed;
} bench;

static void run_document(bench *b, msgl_grammar *g, const char *text, size_t n, samples *mask)
{
    msgl_matcher *m = msgl__matcher_create(g, b->v);
    for (size_t at = 0; m != NULL && at < n;) {
        uint64_t t0 = msgl__now_ns();
        if (msgl__matcher_fill_mask(m, b->bits) != 0) break;
        add(mask, us_since(t0));
        const int32_t token = longest(b->v, text + at, n - at);
        if (token < 0 || !msgl__bit_get(b->bits, token)) {
            b->failed++;
            break;
        }
        t0 = msgl__now_ns();
        if (msgl__matcher_accept(m, token) != 0) b->failed++;
        add(&b->accept, us_since(t0));
        at += (size_t)(b->v->at[token + 1] - b->v->at[token]);
    }
    msgl__matcher_destroy(m);
}

static void run_case(bench *b, const json_t *c)
{
    char *text = json_dumps(json_object_get(c, "schema"), JSON_ENCODE_ANY);
    msgl_grammar *g = NULL;
    msgl_err err;
    const uint64_t t0 = msgl__now_ns();
    if (msgl__grammar_json_schema(text, strlen(text), NULL, &g, &err) != 0) {
        printf("%s: %s\n", json_string_value(json_object_get(c, "name")), err.text);
        free(text);
        return;
    }
    add(&b->compile, us_since(t0));
    size_t i;
    const json_t *d;
    json_array_foreach(json_object_get(c, "valid"), i, d)
    {
        run_document(b, g, json_string_value(d), json_string_length(d), &b->mask);
    }
    msgl__grammar_unref(g);
    free(text);
}

int main(int argc, char **argv)
{
    bench b = {0};
    msgl_err err;
    msgl_tokenizer *t = NULL;
    json_error_t je;
    json_t *cases = argc >= 3 ? json_load_file(argv[2], 0, &je) : NULL;
    if (cases == NULL) {
        fprintf(stderr, "usage: bench_grammar MODEL_DIR SCHEMAS.json [ROUNDS]\n");
        return 2;
    }
    if (msgl__tokenizer_load(argv[1], &t, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const uint64_t t0 = msgl__now_ns();
    if (msgl__grammar_vocab_from_tokenizer(t, 0, NULL, 0, &b.v, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const int32_t size = msgl__grammar_vocab_size(b.v);
    printf("vocabulary %d, %d + %d nodes, %.1f MB, built in %.0f ms\n", size,
           b.v->trie[0].num_nodes, b.v->trie[1].num_nodes,
           (double)msgl__grammar_vocab_bytes(b.v) * 1e-6, us_since(t0) * 1e-3);
    b.bits = msgl__calloc(((size_t)size + 31) / 32, sizeof *b.bits);
    const int rounds = argc > 3 ? atoi(argv[3]) : 5;
    for (int r = 0; r < rounds; r++) {
        size_t i;
        const json_t *c;
        json_array_foreach(cases, i, c) run_case(&b, c);
    }
    print("compile", &b.compile);
    print("mask", &b.mask);
    print("accept", &b.accept);
    if (b.failed > 0) printf("%d documents were refused\n", b.failed);
    msgl__free(b.bits);
    msgl__free(b.compile.at);
    msgl__free(b.mask.at);
    msgl__free(b.accept.at);
    msgl__grammar_vocab_unref(b.v);
    msgl__tokenizer_free(t);
    json_decref(cases);
    return b.failed > 0;
}
