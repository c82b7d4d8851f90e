// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "engine/internal.h"
#include "layers/lora.h"

size_t msgl__logits_bytes(const msgl_engine *e)
{
    const int32_t rows = e->logits_rows < e->max_step_tokens ? e->logits_rows : e->max_step_tokens;
    return msgl__model_logits_bytes(&e->model, rows);
}

// The end of the run of rows from `r` on whose `of` has consecutive numbers.
static int32_t run_end(const int32_t *of, int32_t r, int32_t end)
{
    int32_t to = r + 1;
    while (to < end && of[to] >= 0) to++;
    return to;
}

// The call's rows from each rank's own columns: only what they chose is exchanged.
static void draw_apart(msgl_engine *e, msgl_sample_call call, int32_t first, const msgl_logits *l)
{
    const msgl_sample_kernels *k = &e->kernels.sample;
    const size_t rows = (size_t)call.num_rows, own = (size_t)l->own_tokens.count;
    const msgl_comm_ops *ops = e->comm->ops;
    uint64_t *all = l->keys + rows;
    call.logits = l->own + (size_t)first * own;
    call.ld = own;
    call.vocab = l->own_tokens.count;
    call.first = l->own_tokens.from;
    call.keys = l->keys;
    k->draw(&e->exec, &call);
    if (ops->meeting != NULL) call.sum = ops->meeting(e->comm, 2 * rows);
    if (call.sum == NULL) {
        ops->all_gather(e->comm, &e->exec, (const float *)l->keys, 2 * rows, (float *)all);
        call.keys = all;
    }
    k->pick(&e->exec, &call, e->comm->size);
}

enum { MASKED_ROWS = 8 }; // at a time, with masks or chains: their logits are copied

int32_t msgl__mask_words(const msgl_engine *e)
{
    return (e->model.cfg.vocab_size + 31) / 32;
}

size_t msgl__masked_bytes(const msgl_engine *e)
{
    return msgl__activation_bytes(MASKED_ROWS, (size_t)e->model.cfg.vocab_size, MSGL_F32);
}

void msgl__step_copy_masks(msgl_engine *e, const msgl_engine_step *s)
{
    if (s->num_masks > 0) {
        e->device->ops->copy_in(e->device, e->dev.masks, s->masks,
                                (size_t)s->num_masks * (size_t)msgl__mask_words(e) *
                                    sizeof *s->masks);
    }
    if (s->num_chains > 0) {
        e->device->ops->copy_in(e->device, e->dev.chains, s->chains,
                                (size_t)s->num_chains * sizeof *s->chains);
    }
}

// Inside a graph the kernel starts while the last of the logits are being computed.
void msgl__sample_in_graph(msgl_engine *e, const msgl_engine_step *s, int32_t rows,
                           const msgl_logits *l)
{
    const msgl_sample_call call = {
        .logits = l->whole,
        .ld = (size_t)e->model.cfg.vocab_size,
        .num_rows = rows,
        .vocab = e->model.cfg.vocab_size,
        .rows = s->dev.sample_rows,
        .any_random = true,
        .replay = s->dev.replay,
        .pool = e->dev.token_pool,
        .pool_index = s->dev.sample_index,
        .bias = e->dev.bias,
        .bias_saved = e->dev.bias_saved,
        .saved = e->dev.saved,
    };
    if (msgl__model_draws_apart(&e->model)) {
        draw_apart(e, call, 0, l);
    } else {
        e->kernels.sample.sample(&e->exec, &call);
    }
    msgl__arena_reset(&e->scratch);
}

static bool has_mask(const msgl_engine_step *s, int32_t row)
{
    return s->sample_mask[s->row_sample[row]] >= 0;
}

static bool has_chain(const msgl_engine_step *s, int32_t row)
{
    return s->sample_chain[s->row_sample[row]] >= 0;
}

// Whether a row's choice reads the request's tokens, or memory that each request has once: those of
// one request are sampled one by one then, in order.
static bool reads_request(const msgl_engine_step *s, int32_t row)
{
    return has_chain(s, row) || s->io.sample_rows[s->row_sample[row]].adjusts;
}

static bool same_request(const msgl_engine_step *s, int32_t a, int32_t b)
{
    return s->sample_req[s->row_sample[a]] == s->sample_req[s->row_sample[b]];
}

// Rows from r on, of the sampled ones [r, end), that have masks and chains or have none as r does,
// as many as are sampled together.
static int32_t alike_end(const msgl_engine_step *s, int32_t r, int32_t end)
{
    const bool mask = has_mask(s, r), chain = has_chain(s, r);
    int32_t to = r + 1;
    while (to < end && has_mask(s, to) == mask && has_chain(s, to) == chain &&
           ((!mask && !chain) || to - r < MASKED_ROWS) &&
           !(reads_request(s, to) && same_request(s, to - 1, to))) {
        to++;
    }
    return to;
}

// A copy of rows' logits with -inf where their masks say so, in the scratch: log-probabilities are
// those of the logits themselves. Only rows with masks or chains pay for it.
static float *copied(msgl_engine *e, const msgl_engine_step *s, int32_t at, int32_t rows,
                     const float *logits)
{
    const size_t vocab = (size_t)e->model.cfg.vocab_size;
    float *copy = msgl__arena_alloc(&e->scratch, (size_t)rows * vocab * sizeof *copy);
    assert(copy != NULL);
    const int32_t mask = s->sample_mask[at];
    const uint32_t *masks =
        mask < 0 ? NULL : e->dev.masks + (size_t)mask * (size_t)msgl__mask_words(e);
    e->kernels.sample.mask(&e->exec, logits, vocab, masks, rows, (int)vocab, copy);
    return copy;
}

// Tokens of the rows [first, end) that are sampled; apart: by draw_apart.
static void sample_rows(msgl_engine *e, const msgl_engine_step *s, int32_t first, int32_t end,
                        const msgl_logits *l, bool apart)
{
    const int32_t vocab = e->model.cfg.vocab_size;
    for (int32_t r = first; r < end;) {
        if (s->row_sample[r] < 0) {
            r++;
            continue;
        }
        const int32_t at = s->row_sample[r];
        const int32_t to = alike_end(s, r, run_end(s->row_sample, r, end));
        float *of_run = l->whole + (size_t)(r - first) * (size_t)vocab;
        const msgl_sample_call call = {
            .logits = s->sample_mask[at] < 0 && s->sample_chain[at] < 0
                          ? of_run
                          : copied(e, s, at, to - r, of_run),
            .ld = (size_t)vocab,
            .num_rows = to - r,
            .vocab = vocab,
            .rows = s->dev.sample_rows + at,
            .any_random = s->any_random,
            .any_filter = s->any_filter,
            .tokens = s->sampled + at, // the kernel writes host memory: no copy behind it
            .status = s->sampled + e->max_samples + at,
            .pool = e->dev.token_pool,
            .pool_index = s->dev.sample_index + at,
            .bias = e->dev.bias,
            .bias_saved = e->dev.bias_saved,
            .saved = e->dev.saved,
            .chains = s->sample_chain[at] < 0 ? NULL : e->dev.chains + s->sample_chain[at],
            .mu = e->dev.mu,
            .mu_out = s->mu + at,
            .breakers = e->dev.breakers,
        };
        if (apart) {
            draw_apart(e, call, r - first, l);
        } else if (call.chains != NULL) {
            e->kernels.sample.chain(&e->exec, &call);
        } else {
            e->kernels.sample.sample(&e->exec, &call);
        }
        msgl__arena_reset(&e->scratch);
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
        e->device->ops->gather_tokens(e->device, e->dev.token_pool, s->dev.record_index + at,
                                      to - r, &rec->token, sizeof *rec / sizeof(int32_t));
        e->kernels.sample.logprobs(&e->exec, logits + (size_t)(r - first) * (size_t)vocab,
                                   (size_t)vocab, to - r, vocab, rec);
        msgl__row_values_listed(e, s, at, at + to - r,
                                logits + (size_t)(r - first) * (size_t)vocab);
        msgl__arena_reset(&e->scratch);
        r = to;
    }
}

// Shows a block to a test's observer, in host memory.
static void show_logits(msgl_engine *e, const msgl_engine_step *s, int32_t first, int32_t end,
                        const float *logits)
{
    const int32_t vocab = e->model.cfg.vocab_size;
    if (e->seen_logits != NULL) {
        const msgl_device_ops *ops = e->device->ops;
        const int32_t event = MSGL_DEVICE_MAX_EVENTS - 1;
        ops->copy_out(e->device, e->seen_logits, logits,
                      (size_t)(end - first) * (size_t)vocab * sizeof *logits);
        ops->record(e->device, event);
        if (ops->wait(e->device, event) != 0) return;
        logits = e->seen_logits;
    }
    e->on_logits(e->on_logits_ctx, s->io.rows + first, end - first, vocab, logits);
}

void msgl__sample_block(msgl_engine *e, msgl_engine_step *s, int32_t first, int32_t end,
                        const msgl_logits *l)
{
    if (e->on_logits != NULL) show_logits(e, s, first, end, l->whole);
    if (s->io.replay->num_rows == 0) sample_rows(e, s, first, end, l, false);
    record_rows(e, s, first, end, l->whole);
}

void msgl__logits_block(const msgl_engine *e, msgl_forward *f, const void *hidden, int32_t first,
                        int32_t n, const msgl_logits *l)
{
    if (f->lora != NULL) f->lora->first = first;
    msgl__model_logits(&e->model, f, msgl__row(f, hidden, first, (size_t)e->model.cfg.hidden_size),
                       n, l);
}

void msgl__sample_step(msgl_engine *e, msgl_engine_step *s, msgl_forward *f, const void *hidden)
{
    const int32_t block = s->num_rows < e->logits_rows ? s->num_rows : e->logits_rows;
    const bool apart = msgl__model_draws_apart(&e->model) && !s->any_filter && !s->any_adjust &&
                       !s->whole_rows && s->num_records == 0 && s->num_masks == 0 &&
                       s->num_chains == 0;
    msgl_logits l;
    if (!msgl__model_take_logits(&e->model, f, block, &l)) return;
    for (int32_t r = 0; r < s->num_rows; r += block) {
        const int32_t n = s->num_rows - r < block ? s->num_rows - r : block;
        msgl__logits_block(e, f, hidden, r, n, &l);
        if (apart) {
            sample_rows(e, s, r, r + n, &l, true);
        } else {
            msgl__model_join_logits(&e->model, f, n, &l);
            msgl__sample_block(e, s, r, r + n, &l);
        }
    }
}

int msgl__engine_observe_logits(msgl_engine *e, msgl_logits_fn fn, void *ctx)
{
    if (!e->device->on_host && e->seen_logits == NULL) {
        const int32_t rows = e->logits_rows > e->max_seqs ? e->logits_rows : e->max_seqs;
        const size_t bytes = (size_t)rows * (size_t)e->model.cfg.vocab_size * sizeof(float);
        if (e->num_blocks == MSGL_COUNT(e->blocks)) return MSGL_ELIMIT;
        e->seen_logits = e->device->ops->host_alloc(e->device, bytes);
        if (e->seen_logits == NULL) return MSGL_ENOMEM;
        e->blocks[e->num_blocks++] =
            (msgl_block){.p = e->seen_logits, .bytes = bytes, .host = true};
    }
    e->on_logits = fn;
    e->on_logits_ctx = ctx;
    return 0;
}
