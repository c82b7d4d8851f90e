// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench offline`: a batch job through scheduler and engine, with random prompts,
// ignore_eos and temperature 0.6 as in Mini-SGLang's offline benchmark. Lengths from a CSV
// (bench/lengths.csv has that benchmark's) or uniform.
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "core/attributes.h"
#include "core/err.h"
#include "core/mem.h"
#include "utils/clock.h"

struct lengths {
    int *prompt, *output;
    int count;
    int64_t prompt_sum, output_sum;
    int longest;
};

static int add(struct lengths *l, int prompt, int output)
{
    int *p = msgl__reallocarray(l->prompt, (size_t)l->count + 1, sizeof *p);
    if (p != NULL) l->prompt = p;
    int *o = msgl__reallocarray(l->output, (size_t)l->count + 1, sizeof *o);
    if (o != NULL) l->output = o;
    if (p == NULL || o == NULL) return MSGL_ENOMEM;
    l->prompt[l->count] = prompt;
    l->output[l->count++] = output;
    l->prompt_sum += prompt;
    l->output_sum += output;
    if (prompt + output > l->longest) l->longest = prompt + output;
    return 0;
}

static int read_lengths(const msgl_args *a, struct lengths *l, msgl_err *err)
{
    if (a->lengths == NULL) {
        for (int64_t i = 0; i < a->requests; i++) {
            const int prompt = a->prompt_len > 0 ? (int)a->prompt_len : 512;
            if (add(l, prompt, a->max_tokens > 0 ? (int)a->max_tokens : 64) != 0) {
                return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
            }
        }
        return 0;
    }
    FILE *f = fopen(a->lengths, "r");
    if (f == NULL) return msgl__err_set(err, MSGL_EIO, "--lengths %.180s: %m", a->lengths);
    char line[256];
    int rc = 0;
    for (int number = 1; rc == 0 && fgets(line, sizeof line, f) != NULL; number++) {
        int prompt, output;
        if (line[0] == '#' || strncmp(line, "prompt", 6) == 0) continue;
        if (sscanf(line, "%d,%d", &prompt, &output) != 2 || prompt < 1 || output < 1 ||
            prompt > 1 << 24 || output > 1 << 24) {
            rc = msgl__err_set(err, MSGL_EFORMAT, "%.150s line %d: expected PROMPT,OUTPUT lengths",
                               a->lengths, number);
        } else if (add(l, prompt, output) != 0) {
            rc = msgl__err_set(err, MSGL_ENOMEM, "out of memory");
        }
    }
    fclose(f);
    return rc;
}

struct totals {
    int64_t generated, done, failed, cached;
    char error[256];
};

static int on_piece(void *ctx, const msgl_piece *p)
{
    struct totals *t = ctx;
    if (p->token >= 0) t->generated++;
    if (p->finish == MSGL_NOT_FINISHED) return msgl__cli_interrupted;
    t->done++;
    t->cached += p->cached_tokens;
    if (p->finish == MSGL_FAILED) {
        t->failed++;
        snprintf(t->error, sizeof t->error, "%s", p->error);
    }
    return 0;
}

static int submit_all(msgl_llm *l, const struct lengths *n, struct totals *t, msgl_err *err)
{
    msgl_info info;
    msgl_get_info(l, &info);
    int32_t *ids = msgl__malloc((size_t)n->longest * sizeof *ids);
    if (ids == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    uint64_t rng = 1;
    int rc = 0;
    for (int i = 0; rc == 0 && i < n->count; i++) {
        for (int c = 0; c < n->prompt[i]; c++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            ids[c] = (int32_t)((rng >> 33) % (uint64_t)info.vocab_size);
        }
        msgl_params p;
        msgl_params_init(l, &p);
        p.temperature = 0.6f;
        p.top_p = 1;
        p.top_k = 0;
        p.min_p = 0;
        p.ignore_eos = 1;
        p.max_tokens = n->output[i];
        p.seed = (uint64_t)i;
        p.has_seed = 1;
        rc = msgl_submit_ids(l, ids, (size_t)n->prompt[i], &p, on_piece, t, NULL, err);
    }
    msgl__free(ids);
    return rc;
}

int msgl__bench_offline(const msgl_args *a)
{
    msgl_err err;
    struct lengths n = {0};
    struct totals t = {0};
    msgl_llm *l = NULL;
    int rc = read_lengths(a, &n, &err);
    if (rc == 0) rc = msgl__cli_open(a, &l, &err);
    if (rc == 0) rc = submit_all(l, &n, &t, &err);
    msgl__cli_catch_interrupt();
    const uint64_t start = msgl__now_ns();
    while (rc == 0 && !msgl__cli_interrupted) {
        const int more = msgl_step(l, &err);
        if (more < 0) rc = more;
        if (more <= 0) break;
        char note[64];
        const double seconds = (double)(msgl__now_ns() - start) / 1e9;
        snprintf(note, sizeof note, "%.0f tok/s", (double)t.generated / seconds);
        msgl__cli_bar("tokens", (uint64_t)t.generated, (uint64_t)n.output_sum, note);
    }
    msgl__cli_bar_clear();
    const double seconds = (double)(msgl__now_ns() - start) / 1e9;
    if (rc == 0 && t.failed > 0) rc = msgl__err_set(&err, MSGL_EINTERNAL, "%.200s", t.error);
    if (rc == 0) {
        msgl_rows rows = {.format = a->format};
        const msgl_cell cells[] = {
            msgl__cell_int("requests", t.done),
            msgl__cell_int("prompt_tokens", n.prompt_sum),
            msgl__cell_int("output_tokens", t.generated),
            msgl__cell_real("seconds", seconds, 3),
            msgl__cell_real("output_tok_per_s", (double)t.generated / seconds, 1),
            msgl__cell_real("total_tok_per_s", (double)(t.generated + n.prompt_sum) / seconds, 1)};
        msgl__cli_row(&rows, cells, (int)MSGL_COUNT(cells));
    }
    msgl_close(l);
    msgl__free(n.prompt);
    msgl__free(n.output);
    if (msgl__cli_interrupted) return MSGL_EXIT_INTERRUPTED;
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
