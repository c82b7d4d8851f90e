// SPDX-License-Identifier: Apache-2.0
#include "fake_runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utils/random.h"

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t s = a ^ (b * 0xd6e8feb86659fd93u);
    return msgl__random(&s);
}

static uint64_t next_chain(uint64_t before, int32_t token, int32_t position)
{
    return mix(before, mix((uint64_t)(uint32_t)token, (uint64_t)(uint32_t)position));
}

// One position's part of the sum that stands for attention over the context.
static uint64_t part(int32_t token, int32_t position, uint64_t chain)
{
    return mix(chain, mix((uint64_t)(uint32_t)position, (uint64_t)(uint32_t)token));
}

static int32_t choose(uint64_t sum, int32_t vocab_size)
{
    return (int32_t)(mix(sum, 7) % (uint64_t)vocab_size);
}

// The next token, in a circle, that the mask allows.
static int32_t allowed(const uint32_t *mask, int32_t token, int32_t vocab_size)
{
    for (int32_t i = 0; mask != NULL && i < vocab_size; i++) {
        if (mask[token / 32] >> (token % 32) & 1) break;
        token = (token + 1) % vocab_size;
    }
    return token;
}

static float to_logprob(uint64_t sum)
{
    return -(float)(mix(sum, 9) % 1000) / 100.0f;
}

int32_t fake_generate(const int32_t *ids, int32_t num_ids, const msgl_sampling_params *p,
                      int32_t max_seq_len, int32_t vocab_size, int32_t eos, int32_t *out,
                      msgl_finish *finish)
{
    uint64_t chain = 0, sum = 0;
    for (int32_t i = 0; i < num_ids; i++) {
        chain = next_chain(chain, ids[i], i);
        sum += part(ids[i], i, chain);
    }
    int32_t n = 0;
    *finish = MSGL_FINISH_LENGTH;
    while (n < p->max_tokens && num_ids + n < max_seq_len) {
        const int32_t token = choose(sum, vocab_size);
        out[n] = token;
        bool stop = token == eos && !p->ignore_eos;
        for (int32_t i = 0; i < p->num_stop_ids; i++) stop = stop || p->stop_ids[i] == token;
        chain = next_chain(chain, token, num_ids + n);
        sum += part(token, num_ids + n, chain);
        n++;
        if (stop) {
            *finish = MSGL_FINISH_STOP;
            break;
        }
    }
    return n;
}

float fake_logprob(const int32_t *ids, int32_t position)
{
    uint64_t chain = 0, sum = 0;
    for (int32_t i = 0; i < position; i++) {
        chain = next_chain(chain, ids[i], i);
        sum += part(ids[i], i, chain);
    }
    return to_logprob(sum);
}

static void fault(fake_runner *f, const char *what, uint64_t uid, int32_t a, int32_t b)
{
    if (f->fault[0] == '\0') {
        snprintf(f->fault, sizeof f->fault, "%s (request %llu: %d, %d)", what,
                 (unsigned long long)uid, a, b);
    }
}

static bool due(int *counter)
{
    return *counter > 0 && --*counter == 0;
}

static int write_tokens(void *ctx, int32_t row, int32_t pos, const int32_t *ids, int32_t n)
{
    fake_runner *f = ctx;
    if (due(&f->fail_write_at)) return MSGL_EIO;
    for (int k = 0; k < FAKE_STEP_SLOTS; k++) {
        const fake_step *s = &f->steps[k];
        for (int32_t i = 0; s->in_flight && i < s->batch.size; i++) {
            if (s->reqs[i].table_idx == row) fault(f, "row rewritten in flight", 0, row, n);
        }
    }
    if (row < 0 || row >= f->table.max_running || pos < 0 || pos + n > f->row_tokens) {
        fault(f, "write_tokens out of range", 0, row, pos + n);
        return 0;
    }
    memcpy(f->token_pool + (size_t)row * (size_t)f->row_tokens + pos, ids, (size_t)n * sizeof *ids);
    return 0;
}

static int write_extra(void *ctx, int32_t row, const msgl_req_extra *extra)
{
    fake_runner *f = ctx;
    if (due(&f->fail_write_at)) return MSGL_EIO;
    if (row < 0 || row >= f->table.max_running || extra == NULL) {
        fault(f, "write_extra out of range", 0, row, 0);
        return 0;
    }
    f->row_bias[row] = extra->bias[0].token;
    return 0;
}

// Marks slot as used by step `now`; a write must not meet a step that is still in flight. Steps run
// in order, so a window's page may be written while the step before still reads it.
static void use_slot(fake_runner *f, const msgl_batch_req *r, int32_t span, int32_t slot,
                     bool write, uint64_t now)
{
    uint64_t *last_use = f->last_use[span];
    if (slot < 0 || slot >= f->layout.spans[span].num_units * f->page_size) {
        fault(f, "slot outside the pool", r->uid, slot, r->device_len);
        return;
    }
    for (int k = 0; write && k < FAKE_STEP_SLOTS; k++) {
        const bool in_flight = f->steps[k].in_flight && last_use[slot] == f->step_number[k];
        if (last_use[slot] == now || (span == 0 && in_flight)) {
            fault(f, "slot written while in use", r->uid, slot, r->device_len);
        }
    }
    last_use[slot] = now;
}

static bool is_state(const fake_runner *f, int32_t span)
{
    return f->layout.spans[span].kind == MSGL_SPAN_STATE;
}

// First position whose K and V a span still has when the next token is at cached_len.
static int32_t first_kept(const fake_runner *f, int32_t span, int32_t cached_len)
{
    const int32_t window = f->layout.spans[span].window;
    return span > 0 && cached_len > window ? cached_len - window : 0;
}

static void use_slots(fake_runner *f, const msgl_batch_req *r, bool write, uint64_t now)
{
    for (int32_t s = 0; s < f->layout.num_spans; s++) {
        if (is_state(f, s)) continue;
        const int32_t from = write ? r->cached_len : first_kept(f, s, r->cached_len);
        // Behind a step's tokens a draft model stores those that it guesses.
        const int32_t guesses = r->propose_nodes > 0
                                    ? msgl__propose_rows(r->propose, FAKE_TOPK, r->propose_nodes)
                                    : r->propose;
        const int32_t to = write ? r->device_len + guesses : r->cached_len;
        for (int32_t p = from; p < to; p++) {
            use_slot(f, r, s, msgl__page_table_slot(&f->tables[s], r->table_idx, p), write, now);
        }
    }
}

// A checkpoint is written by one request of a step and then read by none of it.
static void use_checkpoint(fake_runner *f, const msgl_batch_req *r, int32_t c, bool write,
                           uint64_t now)
{
    const int32_t last = f->layout.num_spans - 1;
    const msgl_cache_span *span = &f->layout.spans[last];
    if (!is_state(f, last) || c < 0 || c >= span->num_units + span->draft_states) {
        fault(f, "checkpoint outside the pool", r->uid, c, r->device_len);
    } else if (write && f->checkpoint_use[c] == now) {
        fault(f, "checkpoint written while in use", r->uid, c, r->device_len);
    } else {
        f->checkpoint_use[c] = now;
    }
}

static void use_checkpoints(fake_runner *f, const msgl_batch_req *r, bool write, uint64_t now)
{
    if (!write && r->load_state >= 0) use_checkpoint(f, r, r->load_state, false, now);
    int32_t before = r->cached_len;
    for (int32_t i = 0; write && i < r->num_saves; i++) {
        if (r->saves[i].len <= before || r->saves[i].len > r->device_len) {
            fault(f, "save outside of the chunk", r->uid, r->saves[i].len, before);
        }
        before = r->saves[i].len;
        use_checkpoint(f, r, r->saves[i].checkpoint, true, now);
    }
}

// Trees are of requests without masks, beside no chunks, and each draft follows an earlier row.
static bool tree_fits(const msgl_batch *b, const msgl_batch_req *r)
{
    if (r->draft_parents == NULL) return true;
    for (int32_t i = 0; i < r->num_drafts; i++) {
        if (r->draft_parents[i] < 0 || r->draft_parents[i] > i) return false;
    }
    for (int32_t i = b->num_decode; i < b->size; i++) {
        if (b->reqs[i].num_drafts == 0) return false;
    }
    return r->mask == NULL && r->extra == NULL;
}

static bool drafts_fit(const msgl_batch *b, const msgl_batch_req *r)
{
    return r->num_drafts == 0 ||
           (r->num_drafts > 0 && r->num_drafts <= MSGL_MAX_DRAFTS && r->sample &&
            msgl__extend_len(r) == 1 + r->num_drafts && r->logits_from == 0 && tree_fits(b, r));
}

static void check_batch(fake_runner *f, const msgl_batch *b, uint64_t now)
{
    int32_t tokens = 0;
    // Readers first: then a write to what another request of the batch reads is found.
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < b->size; i++) {
            const msgl_batch_req *r = &b->reqs[i];
            const int32_t extend = msgl__extend_len(r);
            if (extend < 1 || (i < b->num_decode && extend != 1) || r->device_len > f->row_tokens ||
                r->logits_from < 0 || r->logits_from > extend - r->sample || !drafts_fit(b, r) ||
                r->propose < 0 || r->propose > f->runner.max_propose ||
                (r->propose > 0 && !r->sample) ||
                (r->logits_from < extend - r->sample && r->num_drafts == 0 &&
                 r->sampling.prompt_logprobs < 0) ||
                (i < b->num_decode && r->cached_len < r->prompt_len) ||
                (r->sample && r->device_len < r->prompt_len)) {
                fault(f, "bad request in batch", r->uid, r->cached_len, r->device_len);
                return;
            }
            if (f->expects_cuts && i >= b->num_decode && !r->sample &&
                r->device_len % f->runner.cut != 0) {
                fault(f, "cut elsewhere", r->uid, r->cached_len, r->device_len);
            }
            if (pass == 0) tokens += extend;
            use_slots(f, r, pass == 1, now);
            use_checkpoints(f, r, pass == 1, now);
            for (int32_t j = 0; j < i; j++) {
                if (b->reqs[j].uid == r->uid || b->reqs[j].table_idx == r->table_idx) {
                    fault(f, "twice in a batch", r->uid, i, j);
                }
            }
        }
    }
    if (tokens != b->num_tokens || b->size < 1) {
        fault(f, "bad batch", 0, b->num_tokens, tokens);
    }
}

static void check_slot_is_free(fake_runner *f, int32_t slot)
{
    for (int k = 0; k < FAKE_STEP_SLOTS; k++) {
        const fake_step *s = &f->steps[k];
        for (int32_t i = 0; s->in_flight && i < s->batch.size; i++) {
            if (s->reqs[i].adapter == 1 + slot) {
                fault(f, "a step in flight has the slot", s->reqs[i].uid, slot, 0);
            }
        }
    }
}

static int load_adapter(void *ctx, int32_t slot, const char *path, msgl_err *err)
{
    fake_runner *f = ctx;
    if (slot < 0 || slot >= f->runner.max_adapters) fault(f, "no such slot", 0, slot, 0);
    if (path == NULL) {
        check_slot_is_free(f, slot);
        f->adapters[slot] = 0;
        return 0;
    }
    if (f->loading_slot >= 0) return msgl__err_set(err, MSGL_EBUSY, "another is being read");
    f->num_loads++;
    f->loading_slot = slot;
    f->loading_adapter = strtoull(path, NULL, 10);
    f->polls_left = f->adapter_polls;
    return 0;
}

static int adapter_loaded(void *ctx, int wait_ms, uint64_t *digest, msgl_err *err)
{
    fake_runner *f = ctx;
    const int32_t slot = f->loading_slot;
    if (slot < 0) fault(f, "none is being read", 0, slot, 0);
    if (wait_ms >= 0 && f->polls_left-- > 0) return 0;
    f->loading_slot = -1;
    if (f->loading_adapter == 0) return msgl__err_set(err, MSGL_ENOENT, "no such folder");
    check_slot_is_free(f, slot);
    f->adapters[slot] = f->loading_adapter;
    *digest = f->adapter_digest;
    return 1;
}

static void check_adapters(fake_runner *f, const msgl_batch *b)
{
    int32_t num = 0;
    bool used[FAKE_ADAPTERS + 1] = {false};
    for (int32_t i = 0; i < b->size; i++) {
        const msgl_batch_req *r = &b->reqs[i];
        const uint64_t has = r->adapter > 0 ? f->adapters[r->adapter - 1] : 0;
        if (has != f->adapter_of[r->uid % 64]) fault(f, "another adapter", r->uid, r->adapter, 0);
        if (r->adapter > 0 && !used[r->adapter]) num++;
        used[r->adapter] = true;
    }
    if (num > f->max_step_adapters) fault(f, "more adapters than a step may have", 0, num, 0);
}

static int submit(void *ctx, msgl_batch *b)
{
    fake_runner *f = ctx;
    if (due(&f->fail_submit_at)) return MSGL_EINTERNAL;
    fake_step *s = &f->steps[b->step_slot];
    if (s->in_flight) fault(f, "step_slot not waited for", 0, b->step_slot, 0);
    const uint64_t now = f->num_steps + 1;
    check_batch(f, b, now);
    if (f->runner.max_adapters > 0) check_adapters(f, b);
    if (f->fault[0] != '\0') return MSGL_EINTERNAL;
    s->batch = *b;
    memcpy(s->reqs, b->reqs, (size_t)b->size * sizeof *b->reqs);
    s->batch.reqs = s->reqs;
    for (int32_t i = 0; i < b->size; i++) {
        memcpy(s->rows + (size_t)i * (size_t)f->table.stride,
               msgl__page_table_row(&f->table, b->reqs[i].table_idx),
               (size_t)f->table.stride * sizeof *s->rows);
    }
    const int32_t chunk = b->num_tokens - b->num_decode;
    f->answers[f->num_steps % (1 << 12)] = b->num_decode;
    f->chunk_tokens[f->num_steps % (1 << 12)] = chunk;
    f->prefill_tokens += (uint64_t)chunk;
    for (int32_t i = 0; i < b->size; i++) f->drafts += (uint64_t)b->reqs[i].num_drafts;
    s->in_flight = true;
    pthread_mutex_lock(&f->mutex);
    f->step_number[b->step_slot] = now;
    s->done = false;
    f->num_steps++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->mutex);
    return 0;
}

static void add_logprob(fake_step *s, int32_t req, int32_t position, int32_t token, uint64_t sum)
{
    s->logprobs[s->num_logprobs++] = (msgl_token_logprobs){
        .req = req, .position = position, .token = token, .logprob = to_logprob(sum)};
}

// Row `row` of a request follows this one of its rows in the step, -1: what was before.
static int32_t parent_of(const msgl_batch_req *r, int32_t row)
{
    return r->draft_parents == NULL || row == 0 ? row - 1 : r->draft_parents[row - 1];
}

static int32_t depth_of(const msgl_batch_req *r, int32_t row)
{
    int32_t depth = -1;
    for (; row >= 0; row = parent_of(r, row)) depth++;
    return depth;
}

// The row behind `row` that is a draft of this token; -1: none is.
static int32_t draft_behind(const msgl_batch_req *r, int32_t row, int32_t token)
{
    for (int32_t i = row; i < r->num_drafts; i++) {
        if (parent_of(r, 1 + i) == row && r->drafts[i] == token) return 1 + i;
    }
    return -1;
}

// K and V of a row on the answer's path go where the tokens before it are, in all spans.
static void move_row(fake_runner *f, const msgl_batch_req *r, int32_t row, int32_t to)
{
    for (int32_t s = 0; s < f->layout.num_spans; s++) {
        if (is_state(f, s)) continue;
        const int32_t a = msgl__page_table_slot(&f->tables[s], r->table_idx, r->cached_len + row);
        const int32_t b = msgl__page_table_slot(&f->tables[s], r->table_idx, r->cached_len + to);
        f->kvs[s][b] = f->kvs[s][a];
    }
}

// An answer with a tree of drafts: along the path that it takes.
static void run_tree(fake_runner *f, fake_step *s, int32_t i, uint64_t sum)
{
    const msgl_batch_req *r = &s->reqs[i];
    int32_t *ids = f->token_pool + (size_t)r->table_idx * (size_t)f->row_tokens;
    for (int32_t row = 0, n = 0; row >= 0 && s->status[i] == 0; n++) {
        const int32_t p = r->cached_len + row, end = r->cached_len + n + 1;
        const fake_kv kv = f->kv[msgl__page_table_slot(&f->table, r->table_idx, p)];
        sum += part(kv.token, kv.position, kv.chain);
        const int32_t token = choose(sum, f->vocab_size);
        s->tokens[s->cu_tokens[i + 1]++] = token;
        if (r->sampling.logprobs >= 0) add_logprob(s, i, end, token, sum);
        move_row(f, r, row, n);
        f->moved += row != n;
        ids[end] = token;
        row = draft_behind(r, row, token);
    }
}

static void run_request(fake_runner *f, fake_step *s, int32_t i)
{
    const msgl_batch_req *r = &s->reqs[i];
    const int32_t *row = msgl__page_table_row(&f->table, r->table_idx);
    int32_t *ids = f->token_pool + (size_t)r->table_idx * (size_t)f->row_tokens;
    const int32_t pages = (r->device_len - 1) / f->page_size + 1;
    if (memcmp(row, s->rows + (size_t)i * (size_t)f->table.stride, (size_t)pages * sizeof *row) !=
        0) {
        fault(f, "page table row changed in flight", r->uid, r->table_idx, r->device_len);
    }
    if (r->extra != NULL && r->extra->bias[0].token != f->row_bias[r->table_idx]) {
        fault(f, "another request's extra", r->uid, r->table_idx, r->extra->bias[0].token);
    }
    s->cu_tokens[i + 1] = s->cu_tokens[i];
    s->status[i] = f->nan_uid == r->uid && r->device_len >= f->nan_from ? MSGL_ENUMERIC : 0;
    uint64_t sum = 0;
    const int32_t known = r->device_len - r->num_drafts; // tokens that are no drafts
    for (int32_t p = 0; p < r->device_len; p++) {
        const fake_kv *kv = &f->kv[msgl__page_table_slot(&f->table, r->table_idx, p)];
        if (r->draft_parents != NULL && p == r->cached_len) {
            run_tree(f, s, i, sum);
            return;
        }
        sum += part(kv->token, kv->position, kv->chain);
        if (s->status[i] != 0 || p < r->cached_len + r->logits_from) continue;
        if (r->sampling.prompt_logprobs >= 0 && p + 1 < r->prompt_len) {
            add_logprob(s, i, p + 1, ids[p + 1], sum);
        }
        if (!r->sample || p + 1 < known) continue;
        const size_t masks = (size_t)(p + 1 - known) * (size_t)s->batch.mask_words;
        const int32_t token = allowed(r->mask == NULL ? NULL : r->mask + masks,
                                      choose(sum, f->vocab_size), f->vocab_size);
        s->tokens[s->cu_tokens[i + 1]++] = token;
        ids[p + 1] = token;
        if (r->sampling.logprobs >= 0) add_logprob(s, i, p + 1, token, sum);
        if (p + 1 < r->device_len && token != r->drafts[p + 1 - known]) return;
    }
}

// The window's pages still hold what the first span's do.
static void check_windows(fake_runner *f, const msgl_batch_req *r)
{
    for (int32_t s = 1; s < f->layout.num_spans; s++) {
        if (is_state(f, s)) continue;
        for (int32_t p = first_kept(f, s, r->cached_len); p < r->cached_len; p++) {
            const fake_kv *a = &f->kv[msgl__page_table_slot(&f->table, r->table_idx, p)];
            const fake_kv *b = &f->kvs[s][msgl__page_table_slot(&f->tables[s], r->table_idx, p)];
            if (a->token != b->token || a->position != b->position || a->chain != b->chain) {
                fault(f, "a window's page is another's", r->uid, s, p);
            }
        }
    }
}

static void begin_state(fake_runner *f, const msgl_batch_req *r, uint64_t chain)
{
    if (!is_state(f, f->layout.num_spans - 1)) return;
    uint64_t *state = &f->states[r->table_idx];
    if (r->load_state >= 0) {
        *state = f->checkpoints[r->load_state];
    } else if (r->cached_len == 0) {
        *state = 0;
    }
    if (*state != chain) fault(f, "another state", r->uid, r->load_state, r->cached_len);
}

// K and V of a token of a row in all spans, and the state behind it.
static void store(fake_runner *f, const msgl_batch_req *r, int32_t token, int32_t row,
                  int32_t position, uint64_t chain)
{
    for (int32_t s = 0; s < f->layout.num_spans; s++) {
        if (is_state(f, s)) {
            f->states[r->table_idx] = chain;
        } else {
            const int32_t slot =
                msgl__page_table_slot(&f->tables[s], r->table_idx, r->cached_len + row);
            f->kvs[s][slot] = (fake_kv){.token = token, .position = position, .chain = chain};
        }
    }
    for (int32_t i = 0; i < r->num_saves; i++) {
        if (r->saves[i].len == position + 1) f->checkpoints[r->saves[i].checkpoint] = chain;
    }
}

static void run_step(fake_runner *f, fake_step *s)
{
    s->num_logprobs = s->cu_tokens[0] = 0;
    // What a request continues was computed by steps before this one.
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        s->before[i] = 0;
        if (r->cached_len > 0) {
            const int32_t last = r->cached_len - 1;
            s->before[i] = f->kv[msgl__page_table_slot(&f->table, r->table_idx, last)].chain;
        }
        check_windows(f, r);
        begin_state(f, r, s->before[i]);
    }
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        int32_t *ids = f->token_pool + (size_t)r->table_idx * (size_t)f->row_tokens;
        uint64_t chains[MSGL_MAX_TREE], chain = s->before[i];
        if (r->num_drafts > 0) {
            memcpy(ids + r->cached_len + 1, r->drafts, (size_t)r->num_drafts * sizeof *ids);
        }
        for (int32_t row = 0; row < msgl__extend_len(r); row++) {
            const bool tree = r->draft_parents != NULL;
            const int32_t token = ids[r->cached_len + row];
            const int32_t p = r->cached_len + (tree ? depth_of(r, row) : row);
            if (tree && row > 0) chain = chains[parent_of(r, row)];
            chain = next_chain(chain, token, p);
            if (tree) chains[row] = chain;
            store(f, r, token, row, p, chain);
        }
    }
    for (int32_t i = 0; i < s->batch.size; i++) run_request(f, s, i);
}

static void *thread_main(void *arg)
{
    fake_runner *f = arg;
    pthread_mutex_lock(&f->mutex);
    while (!f->stop) {
        if (f->num_run == f->num_steps) {
            pthread_cond_wait(&f->changed, &f->mutex);
            continue;
        }
        int k = 0;
        while (f->step_number[k] != f->num_run + 1) k++;
        pthread_mutex_unlock(&f->mutex);
        run_step(f, &f->steps[k]);
        pthread_mutex_lock(&f->mutex);
        f->num_run++;
        f->steps[k].done = true;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->mutex);
    return NULL;
}

// A draft model's guesses: what really comes next, nothing of the kind, or both, or fewer than were
// asked for.
static int32_t guess(fake_runner *f, const msgl_batch_req *r, int32_t len, int32_t *out)
{
    const int32_t *ids = f->token_pool + (size_t)r->table_idx * (size_t)f->row_tokens;
    msgl_sampling_params p = msgl__sampling_params_default();
    msgl_finish finish;
    const uint64_t dice = msgl__random_below(&f->guesses, 8);
    p.max_tokens = dice == 0 ? r->propose - 1 : r->propose;
    p.ignore_eos = true;
    if (p.max_tokens < 1) return 0;
    const int32_t n = fake_generate(ids, len, &p, f->row_tokens, f->vocab_size, -1, out, &finish);
    for (int32_t i = dice < 4 ? n : dice < 6 ? n / 2 : 0; i < n; i++) {
        out[i] = (int32_t)msgl__random_below(&f->guesses, (uint64_t)f->vocab_size);
    }
    return n;
}

// Of a tree, of which out[0, n) is the path that was guessed: others beside its drafts, before and
// behind them. How many drafts it has.
static int32_t branch(fake_runner *f, const msgl_batch_req *r, const int32_t *path, int32_t n,
                      int32_t *out, int16_t *parents)
{
    int32_t num = 0, row = 0;
    for (int32_t d = 0; d < n && num < r->propose_nodes; d++) {
        const int32_t left = r->propose_nodes - num;
        const int32_t width = 1 + (int32_t)msgl__random_below(&f->guesses, FAKE_TOPK);
        const int32_t count = width < left ? width : left;
        const uint64_t dice = msgl__random_below(&f->guesses, 2 * (uint64_t)count);
        const int32_t at = dice < (uint64_t)count ? (int32_t)dice : 0; // the likeliest, or any
        int32_t next = row;
        for (int32_t k = 0; k < count; k++, num++) {
            // One of a depth follows something else, so that there are further branches.
            const bool aside = k == count - 1 && k != at && num > 0;
            const uint64_t any = msgl__random_below(&f->guesses, (uint64_t)num + 1);
            out[num] = k == at ? path[d]
                               : (int32_t)msgl__random_below(&f->guesses, (uint64_t)f->vocab_size);
            parents[num] = (int16_t)(aside ? (int32_t)any : row);
            if (k == at) next = 1 + num;
        }
        row = next;
    }
    return num;
}

static int32_t draw(fake_runner *f, const msgl_batch_req *r, int32_t len, size_t at)
{
    int32_t path[MSGL_MAX_PROPOSALS], *out = f->proposals + at;
    int16_t *parents = f->proposal_parents + at;
    const int32_t n = guess(f, r, len, path);
    int32_t num = n;
    if (r->propose_nodes > 0) {
        num = branch(f, r, path, n, out, parents);
    } else {
        memcpy(out, path, (size_t)n * sizeof *path);
        for (int32_t i = 0; i < n; i++) parents[i] = (int16_t)i;
    }
    for (int32_t i = 0; i < num; i++) f->proposal_shares[at + (size_t)i] = 1;
    return num;
}

static void propose(fake_runner *f, const fake_step *s, msgl_step_result *out)
{
    int32_t passes = 0;
    for (int32_t i = 0; i < s->batch.size && f->runner.max_propose > 0; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const int32_t chosen = s->cu_tokens[i + 1] - s->cu_tokens[i];
        const int32_t len = r->device_len - r->num_drafts + chosen;
        f->num_proposals[i] = 0;
        if (r->propose < 1 || !r->sample || s->status[i] != 0) continue;
        f->num_proposals[i] = draw(f, r, len, (size_t)i * MSGL_MAX_DRAFTS);
        passes = r->propose > passes ? r->propose : passes;
    }
    if (passes == 0) return;
    out->num_proposals = f->num_proposals;
    out->proposals = f->proposals;
    out->proposal_parents = f->proposal_parents;
    out->proposal_shares = f->proposal_shares;
    out->propose_ns = (uint64_t)passes * f->decode_ns / 20;
}

static int wait_step(void *ctx, int32_t step_slot, msgl_step_result *out)
{
    fake_runner *f = ctx;
    fake_step *s = &f->steps[step_slot];
    if (!s->in_flight) fault(f, "wait for what is not in step_slot", 0, step_slot, 0);
    if (f->threaded) {
        pthread_mutex_lock(&f->mutex);
        while (!s->done) pthread_cond_wait(&f->changed, &f->mutex);
        pthread_mutex_unlock(&f->mutex);
    } else {
        run_step(f, s);
    }
    s->in_flight = false;
    if (due(&f->fail_wait_at)) return MSGL_EINTERNAL;
    const uint64_t jitter = f->noise != 0 ? msgl__random_below(&f->noise, 1000) : 0;
    const int32_t chunk = s->batch.num_tokens - s->batch.num_decode;
    const uint64_t ns = (s->batch.num_decode > 0 ? f->decode_ns : f->prefill_ns) +
                        f->prefill_token_ns * (uint64_t)chunk;
    *out = (msgl_step_result){.size = s->batch.size,
                              .tokens = s->tokens,
                              .cu_tokens = s->cu_tokens,
                              .status = s->status,
                              .num_logprobs = s->num_logprobs,
                              .logprobs = s->logprobs,
                              .compute_ns = ns + ns * jitter / 1000};
    f->clock_ns += out->compute_ns;
    propose(f, s, out);
    return f->fault[0] != '\0' ? MSGL_EINTERNAL : 0;
}

msgl_cache_layout fake_layout(int32_t num_pages, int32_t page_size)
{
    return (msgl_cache_layout){
        .page_size = page_size,
        .num_spans = 1,
        .spans = {{.kind = MSGL_SPAN_ALL, .window = -1, .num_units = num_pages}}};
}

static void init_spans(fake_runner *f, int32_t max_running, int32_t max_seq_len)
{
    msgl_err err;
    for (int32_t s = 0; s < f->layout.num_spans; s++) {
        const msgl_cache_span *span = &f->layout.spans[s];
        const size_t units = (size_t)span->num_units + (size_t)span->draft_states;
        if (is_state(f, s)) {
            f->states = calloc((size_t)max_running, sizeof *f->states);
            f->checkpoints = calloc(units + 1, sizeof *f->checkpoints);
            f->checkpoint_use = calloc(units + 1, sizeof *f->checkpoint_use);
            continue;
        }
        const int32_t slots = f->layout.spans[s].num_units * f->page_size;
        if (msgl__page_table_create(max_running, max_seq_len, f->page_size,
                                    f->layout.spans[s].num_units, &f->tables[s], &err)) {
            abort();
        }
        f->kvs[s] = calloc((size_t)slots, sizeof *f->kvs[s]);
        f->last_use[s] = calloc((size_t)slots, sizeof *f->last_use[s]);
    }
    f->table = f->tables[0];
    f->kv = f->kvs[0];
}

void fake_init(fake_runner *f, int32_t max_running, int32_t max_seq_len,
               const msgl_cache_layout *layout, int32_t vocab_size, bool threaded)
{
    memset(f, 0, sizeof *f);
    f->layout = *layout;
    f->num_pages = layout->spans[0].num_units;
    f->page_size = layout->page_size;
    f->vocab_size = vocab_size;
    f->prefill_ns = 1000;
    f->prefill_token_ns = 100;
    f->decode_ns = 2000;
    f->nan_uid = UINT64_MAX;
    f->loading_slot = -1;
    f->row_tokens = (max_seq_len + 31) / 32 * 32;
    init_spans(f, max_running, max_seq_len);
    const size_t rows = (size_t)max_running, stride = (size_t)f->row_tokens;
    f->token_pool = calloc((rows + 1) * stride, sizeof *f->token_pool);
    f->row_bias = calloc(rows, sizeof *f->row_bias);
    f->num_proposals = calloc(rows, sizeof *f->num_proposals);
    f->proposals = calloc(rows * MSGL_MAX_DRAFTS, sizeof *f->proposals);
    f->proposal_parents = calloc(rows * MSGL_MAX_DRAFTS, sizeof *f->proposal_parents);
    f->proposal_shares = calloc(rows * MSGL_MAX_DRAFTS, sizeof *f->proposal_shares);
    for (int k = 0; k < FAKE_STEP_SLOTS; k++) {
        fake_step *s = &f->steps[k];
        s->reqs = calloc(rows, sizeof *s->reqs);
        s->rows = calloc(rows * (size_t)f->table.stride, sizeof *s->rows);
        s->tokens = calloc(rows + MSGL_MAX_STEP_DRAFTS, sizeof *s->tokens);
        s->cu_tokens = calloc(rows + 1, sizeof *s->cu_tokens);
        s->status = calloc(rows, sizeof *s->status);
        s->before = calloc(rows, sizeof *s->before);
        s->logprobs = calloc(rows * (stride + 1), sizeof *s->logprobs);
    }
    f->runner = (msgl_runner){.ctx = f,
                              .max_in_flight = FAKE_STEP_SLOTS,
                              .write_tokens = write_tokens,
                              .write_extra = write_extra,
                              .load_adapter = load_adapter,
                              .adapter_loaded = adapter_loaded,
                              .submit = submit,
                              .wait = wait_step};
    pthread_mutex_init(&f->mutex, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->threaded = threaded;
    if (threaded && pthread_create(&f->thread, NULL, thread_main, f) != 0) abort();
}

void fake_free(fake_runner *f)
{
    if (f->threaded) {
        pthread_mutex_lock(&f->mutex);
        f->stop = true;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->mutex);
        pthread_join(f->thread, NULL);
    }
    for (int k = 0; k < FAKE_STEP_SLOTS; k++) {
        fake_step *s = &f->steps[k];
        free(s->reqs), free(s->rows), free(s->tokens), free(s->cu_tokens), free(s->status);
        free(s->before), free(s->logprobs);
    }
    free(f->token_pool), free(f->num_proposals), free(f->proposals), free(f->row_bias);
    free(f->proposal_parents), free(f->proposal_shares);
    free(f->states), free(f->checkpoints), free(f->checkpoint_use);
    for (int32_t i = 0; i < MSGL_MAX_SPANS; i++) {
        free(f->kvs[i]), free(f->last_use[i]);
        msgl__page_table_destroy(&f->tables[i]);
    }
    pthread_mutex_destroy(&f->mutex);
    pthread_cond_destroy(&f->changed);
}
