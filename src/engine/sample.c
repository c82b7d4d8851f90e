// SPDX-License-Identifier: Apache-2.0
#include "engine/internal.h"

static int32_t block_rows(int32_t rows)
{
    return rows < MSGL_LOGITS_ROWS ? rows : MSGL_LOGITS_ROWS;
}

size_t msgl__logits_bytes(const msgl_model *m, int32_t max_rows)
{
    return msgl__activation_bytes((size_t)block_rows(max_rows), (size_t)m->cfg.vocab_size,
                                  MSGL_F32);
}

// The end of the run of rows from `r` on whose `of` has consecutive numbers.
static int32_t run_end(const int32_t *of, int32_t r, int32_t end)
{
    int32_t to = r + 1;
    while (to < end && of[to] >= 0) to++;
    return to;
}

// Tokens of the rows [first, end) that are sampled.
static void sample_rows(msgl_engine *e, const msgl_engine_step *s, int32_t first, int32_t end,
                        const float *logits)
{
    const int32_t vocab = e->model.cfg.vocab_size;
    for (int32_t r = first; r < end;) {
        if (s->row_sample[r] < 0) {
            r++;
            continue;
        }
        const int32_t to = run_end(s->row_sample, r, end), at = s->row_sample[r];
        msgl_sample_call c = {.logits = logits + (size_t)(r - first) * (size_t)vocab,
                              .ld = (size_t)vocab,
                              .num_rows = to - r,
                              .vocab = vocab,
                              .rows = e->dev.sample_rows + at,
                              .tokens = e->dev.sampled + at,
                              .status = e->dev.sample_status + at};
        for (int32_t i = 0; i < c.num_rows; i++) {
            const msgl_sample_row *row = &s->sample_rows[at + i];
            const bool random = row->temperature > 0;
            c.any_random |= random;
            c.any_filter |= random && (row->top_k > 0 || row->top_p < 1 || row->min_p > 0);
        }
        e->kernels.sample.sample(&e->exec, &c);
        msgl__arena_reset(&e->scratch);
        e->device->ops->scatter_tokens(e->device, e->dev.token_pool, e->dev.sample_index + at,
                                       e->dev.sampled + at, to - r);
        r = to;
    }
}

// Log-probabilities of the rows [first, end) that want them. Targets are in the token pool: prompt
// tokens since they were written, sampled ones since sample_rows.
static void record_rows(msgl_engine *e, const msgl_engine_step *s, int32_t first, int32_t end,
                        const float *logits)
{
    const int32_t vocab = e->model.cfg.vocab_size;
    for (int32_t r = first; r < end;) {
        if (s->row_record[r] < 0) {
            r++;
            continue;
        }
        const int32_t to = run_end(s->row_record, r, end), at = s->row_record[r];
        msgl_token_logprobs *rec = e->dev.records + at;
        e->device->ops->gather_tokens(e->device, e->dev.token_pool, e->dev.record_index + at,
                                      to - r, &rec->token, sizeof *rec / sizeof(int32_t));
        e->kernels.sample.logprobs(&e->exec, logits + (size_t)(r - first) * (size_t)vocab,
                                   (size_t)vocab, to - r, vocab, rec);
        msgl__arena_reset(&e->scratch);
        r = to;
    }
}

void msgl__sample_step(msgl_engine *e, msgl_engine_step *s, msgl_forward *f, const void *hidden)
{
    const size_t dim = (size_t)e->model.cfg.hidden_size, vocab = (size_t)e->model.cfg.vocab_size;
    const int32_t block = block_rows(s->num_rows);
    float *logits = msgl__take_rows(f, (size_t)block, vocab, MSGL_F32);
    if (logits == NULL) return;
    for (int32_t r = 0; r < s->num_rows; r += block) {
        const int32_t n = s->num_rows - r < block ? s->num_rows - r : block;
        msgl__model_logits(&e->model, f, msgl__row(f, hidden, r, dim), n, logits);
        if (e->on_logits != NULL) {
            e->on_logits(e->on_logits_ctx, s->rows + r, n, e->model.cfg.vocab_size, logits);
        }
        sample_rows(e, s, r, r + n, logits);
        record_rows(e, s, r, r + n, logits);
    }
}

void msgl__engine_observe_logits(msgl_engine *e, msgl_logits_fn fn, void *ctx)
{
    e->on_logits = fn;
    e->on_logits_ctx = ctx;
}
