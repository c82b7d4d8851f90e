// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench attn --write-table FILE`: which backend `auto` takes on this kind of GPU. In every
// cell of the grid the backends are ranked by the geometric mean of their times over a few shapes;
// decode by its time inside a captured graph, which is how it runs. Of latent caches answers alone:
// their prompts are fa's, which has them expanded.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/bench/bench_attn.h"
#include "core/attributes.h"
#include "core/err.h"
#include "utils/strbuf.h"

static const int HEAD_DIMS[] = {64, 128}, GROUPS[] = {1, 2, 4, 5, 8}, PAGES[] = {1, 16, 64};
static const int LATENT_HEADS[] = {16, 128};

enum {
    LATENT_DIM = 576,
    V_DIM = 512,
    GROUP_CELLS = 2 * MSGL_COUNT(HEAD_DIMS) * MSGL_COUNT(GROUPS),
    CELLS = (GROUP_CELLS + MSGL_COUNT(LATENT_HEADS)) * MSGL_COUNT(PAGES),
};

typedef struct cell {
    msgl_phase phase;
    int head_dim, group, page; // head_dim LATENT_DIM: a latent cache
} cell;

static const struct {
    msgl_phase phase;
    int batch, cached, extend;
} SHAPES[] = {
    {MSGL_PREFILL, 1, 0, 4096}, {MSGL_PREFILL, 16, 0, 512}, {MSGL_PREFILL, 2, 4096, 1024},
    {MSGL_DECODE, 1, 2047, 1},  {MSGL_DECODE, 16, 1023, 1}, {MSGL_DECODE, 128, 1023, 1},
    {MSGL_DECODE, 256, 255, 1},
};

struct ranked {
    const char *name;
    double log_ms; // mean over the shapes
    double key;    // what it is ranked by
};

static int by_time(const void *a, const void *b)
{
    const double x = ((const struct ranked *)a)->key, y = ((const struct ranked *)b)->key;
    return (x > y) - (x < y);
}

// Mean logarithm of the times of one backend in one cell; MSGL_EUNSUPPORTED if it cannot run it.
static int time_cell(const msgl_attn_bench_env *env, const msgl_attn_desc *d, const cell *c,
                     double *log_ms, msgl_err *err)
{
    const bool latent = c->head_dim == LATENT_DIM;
    const int kv_heads = latent ? 1 : 8;
    int n = 0;
    *log_ms = 0;
    for (size_t i = 0; i < MSGL_COUNT(SHAPES); i++) {
        if (SHAPES[i].phase != c->phase) continue;
        const msgl_attn_bench_shape s = {.phase = c->phase,
                                         .batch = SHAPES[i].batch,
                                         .cached_len = SHAPES[i].cached,
                                         .extend_len = SHAPES[i].extend,
                                         .num_q_heads = c->group * kv_heads,
                                         .num_kv_heads = kv_heads,
                                         .head_dim = c->head_dim,
                                         .v_dim = latent ? V_DIM : 0,
                                         .page_size = c->page,
                                         .kv_dtype = MSGL_BF16,
                                         .window = -1,
                                         .shuffled = true};
        msgl_attn_bench_result r;
        const int rc = msgl__attn_bench(d, &s, env, 0.02, &r, err);
        if (rc != 0) return rc;
        *log_ms += log(c->phase == MSGL_DECODE && r.graph_ms > 0 ? r.graph_ms : r.forward_ms);
        n++;
    }
    *log_ms /= n;
    return 0;
}

static bool takes_page(const msgl_attn_desc *d, int page)
{
    char warning[256];
    const msgl_attn_choice choice = {d, d};
    return msgl__attn_page_size(&choice, page, warning) == page;
}

// Whether the backend comes with the device itself.
static bool own_plugin(const msgl_attn_desc *d)
{
    return d->plugin == NULL;
}

static int add_row(const msgl_args *a, const msgl_attn_bench_env *env, const cell *c,
                   msgl_strbuf *out, msgl_err *err)
{
    struct ranked ranked[16];
    int n = 0;
    for (const msgl_attn_desc *const *at = env->backends->all; *at != NULL && n < 16; at++) {
        const msgl_attn_desc *d = *at;
        if (!takes_page(d, c->page) ||
            d->caches == 1u << MSGL_CACHE_LATENT || // they have fa's kernels
            !msgl__bench_wanted(a->backends, d->name)) {
            continue;
        }
        ranked[n].name = d->name;
        const int rc = time_cell(env, d, c, &ranked[n].log_ms, err);
        // One that needs another plug-in has to be 2 % faster: less is noise.
        ranked[n].key = ranked[n].log_ms + (own_plugin(d) ? 0 : log(1.02));
        if (rc == 0) n++;
        if (rc != 0 && rc != MSGL_EUNSUPPORTED) return rc;
    }
    if (n == 0) return 0;
    qsort(ranked, (size_t)n, sizeof *ranked, by_time);
    if (n > MSGL_ATTN_AUTO_NAMES) n = MSGL_ATTN_AUTO_NAMES;
    int rc = msgl__strbuf_addf(out, "{%d, %s, %d, %d, %d, {", (int)env->device->capability,
                               c->phase == MSGL_DECODE ? "MSGL_DECODE" : "MSGL_PREFILL",
                               c->head_dim, c->group, c->page);
    for (int i = 0; rc == 0 && i < n; i++) {
        rc = msgl__strbuf_addf(out, "%s\"%s\"", i > 0 ? ", " : "", ranked[i].name);
    }
    if (rc == 0) rc = msgl__strbuf_adds(out, "}}, //");
    for (int i = 0; rc == 0 && i < n; i++) {
        rc = msgl__strbuf_addf(out, " %.4f", exp(ranked[i].log_ms));
    }
    if (rc == 0) rc = msgl__strbuf_adds(out, " ms\n");
    return rc == 0 ? 0 : msgl__err_set(err, rc, "out of memory");
}

// What is kept of an earlier table: comments at its head, rows of other kinds of GPU.
static int keep_others(const char *path, int capability, msgl_strbuf *out, msgl_err *err)
{
    FILE *f = fopen(path, "r");
    if (f == NULL) return msgl__err_set(err, MSGL_EIO, "--write-table %.180s: %m", path);
    char line[512];
    int rc = 0;
    while (rc == 0 && fgets(line, sizeof line, f) != NULL) {
        int of;
        if (sscanf(line, "{%d,", &of) != 1 || of != capability) rc = msgl__strbuf_adds(out, line);
    }
    fclose(f);
    return rc == 0 ? 0 : msgl__err_set(err, rc, "out of memory");
}

static int write_file(const char *path, msgl_strbuf *text, msgl_err *err)
{
    FILE *f = fopen(path, "w");
    bool ok = f != NULL && fputs(msgl__strbuf_str(text), f) >= 0;
    if (f != NULL) ok = fclose(f) == 0 && ok;
    return ok ? 0 : msgl__err_set(err, MSGL_EIO, "--write-table %.180s: %m", path);
}

static cell cell_at(int i)
{
    const int page = PAGES[i % (int)MSGL_COUNT(PAGES)], k = i / (int)MSGL_COUNT(PAGES);
    if (k >= GROUP_CELLS) {
        return (cell){MSGL_DECODE, LATENT_DIM, LATENT_HEADS[k - GROUP_CELLS], page};
    }
    const int groups = (int)MSGL_COUNT(GROUPS), dims = (int)MSGL_COUNT(HEAD_DIMS);
    return (cell){k < GROUP_CELLS / 2 ? MSGL_PREFILL : MSGL_DECODE, HEAD_DIMS[k / groups % dims],
                  GROUPS[k % groups], page};
}

int msgl__bench_attn_table(const msgl_args *a, const msgl_attn_bench_env *env, const char *path,
                           msgl_err *err)
{
    msgl_strbuf text;
    msgl__strbuf_init(&text, (size_t)1 << 20);
    int rc = keep_others(path, env->device->capability, &text, err);
    for (int i = 0; rc == 0 && i < CELLS && !msgl__cli_interrupted; i++) {
        const cell c = cell_at(i);
        rc = add_row(a, env, &c, &text, err);
        msgl__cli_bar("cells", (uint64_t)i + 1, CELLS, "");
    }
    msgl__cli_bar_clear();
    if (rc == 0) rc = write_file(path, &text, err);
    msgl__strbuf_free(&text);
    return rc;
}
