// SPDX-License-Identifier: Apache-2.0
#include "apps/simulation/trace.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "apps/simulation/json_lines.h"
#include "utils/random.h"

typedef struct reader {
    msgl_trace *trace;
    int32_t room;
    size_t hash_room;
    double acceptance;
    json_t *sessions; // from an id, as text, to the last line with it
} reader;

// ---- token ids ----

// What tells kinds of tokens apart that come from the same number.
enum { SHARED, OWN, ANSWER, CYCLE, LUCK };

static uint64_t text_of(int kind, int64_t number)
{
    return msgl__mix_bits(msgl__mix_bits((uint64_t)number) + (uint64_t)kind);
}

static inline int32_t token(uint64_t text, int32_t i)
{
    return (int32_t)(msgl__mix_bits(text + (uint64_t)(uint32_t)i) % MSGL_TRACE_VOCAB);
}

// Whether token i of an answer is not the one that comes next in the cycle, and where it stands
// instead: anywhere, so that of 32 jumps one lands where no jump would have.
static bool jumps(uint64_t luck, float acceptance, int32_t i, int32_t *place)
{
    const float rate = (1 - acceptance) * MSGL_TRACE_CYCLE / (MSGL_TRACE_CYCLE - 1);
    uint64_t rng = msgl__mix_bits(luck + (uint64_t)(uint32_t)i);
    if (msgl__random_unit(&rng) >= rate) return false;
    *place = (int32_t)msgl__random_below(&rng, MSGL_TRACE_CYCLE);
    return true;
}

int32_t msgl__trace_answer(const msgl_trace *t, int32_t line, int32_t i)
{
    const float acceptance = line < t->count ? t->lines[line].acceptance : 0;
    if (!(acceptance > 0)) return token(text_of(ANSWER, line), i);
    const uint64_t luck = text_of(LUCK, line);
    int32_t place = 0, from = acceptance < 1 ? i : 0; // of the last jump
    while (from > 0 && !jumps(luck, acceptance, from, &place)) from--;
    return token(text_of(CYCLE, line), (place + i - from) % MSGL_TRACE_CYCLE);
}

static void write_input(const msgl_trace *t, int32_t line, int32_t *ids)
{
    const msgl_trace_line *l = &t->lines[line];
    const uint64_t own = text_of(OWN, line);
    int32_t i = 0;
    for (int32_t h = 0; h < l->num_hashes; h++) {
        const uint64_t shared = text_of(SHARED, t->hashes[l->hashes + (size_t)h]);
        for (int32_t k = 0; k < t->block && i < l->input; k++) ids[i++] = token(shared, k);
    }
    const int32_t cycle = l->input - MSGL_TRACE_CYCLE, shared = i;
    for (; i < l->input; i++) ids[i] = token(own, i);
    if (!(l->acceptance > 0)) return;
    const uint64_t again = text_of(CYCLE, line);
    for (i = shared > cycle ? shared : cycle; i < l->input; i++) ids[i] = token(again, i - cycle);
}

int32_t msgl__trace_prompt(const msgl_trace *t, int32_t line, int32_t *ids)
{
    const int32_t n = t->lines[line].history + t->lines[line].input;
    write_input(t, line, ids + t->lines[line].history);
    for (int32_t b = t->lines[line].before; b >= 0; b = t->lines[b].before) {
        const msgl_trace_line *l = &t->lines[b];
        int32_t *to = ids + l->history;
        write_input(t, b, to);
        for (int32_t i = 0; i < l->output; i++) to[l->input + i] = msgl__trace_answer(t, b, i);
    }
    return n;
}

// ---- reading ----

static int out_of_memory(msgl_err *err)
{
    return msgl__err_set(err, MSGL_ENOMEM, "trace: out of memory");
}

static int read_hashes(reader *r, const msgl_json_line *line, msgl_trace_line *l, msgl_err *err)
{
    msgl_trace *t = r->trace;
    const json_t *list = json_object_get(line->object, "hash_ids");
    if (list == NULL) return 0;
    const size_t n = json_array_size(list), most = ((size_t)l->input - 1) / (size_t)t->block + 1;
    bool ok = json_is_array(list) && n <= most;
    for (size_t i = 0; ok && i < n; i++) ok = json_is_integer(json_array_get(list, i));
    if (!ok) {
        char allowed[96];
        (void)snprintf(allowed, sizeof allowed, "up to %zu integers, one for each %d tokens", most,
                       t->block);
        return msgl__json_line_error(line, "hash_ids", allowed, err);
    }
    if (t->num_hashes + n > r->hash_room) {
        const size_t room = 2 * r->hash_room + n;
        int64_t *p = msgl__reallocarray(t->hashes, room, sizeof *p);
        if (p == NULL) return out_of_memory(err);
        t->hashes = p;
        r->hash_room = room;
    }
    l->hashes = t->num_hashes;
    l->num_hashes = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        t->hashes[t->num_hashes++] = json_integer_value(json_array_get(list, i));
    }
    return 0;
}

// Finds the turn before, and becomes the last one.
static int join_session(reader *r, const msgl_json_line *line, msgl_trace_line *l, msgl_err *err)
{
    msgl_trace *t = r->trace;
    const json_t *id = json_object_get(line->object, "session_id");
    if (id == NULL) return 0;
    if (!json_is_string(id) && !json_is_integer(id)) {
        return msgl__json_line_error(line, "session_id", "a text or an integer", err);
    }
    char number[32];
    (void)snprintf(number, sizeof number, "%lld", (long long)json_integer_value(id));
    const char *key = json_is_string(id) ? json_string_value(id) : number;
    const json_t *last = json_object_get(r->sessions, key);
    if (last != NULL) {
        l->before = (int32_t)json_integer_value(last);
        msgl_trace_line *b = &t->lines[l->before];
        b->next = t->count;
        l->history = b->history + b->input + b->output;
    }
    if (json_object_set_new(r->sessions, key, json_integer(t->count)) != 0) {
        return out_of_memory(err);
    }
    return 0;
}

static int read_times(const msgl_json_line *line, msgl_trace_line *l, msgl_err *err)
{
    const double most_ms = 1e12, none = 0;
    double ms;
    const int rc = l->before >= 0
                       ? msgl__json_line_number(line, "delay", 0, most_ms, &none, &ms, err)
                       : msgl__json_line_number(line, "timestamp", 0, most_ms, NULL, &ms, err);
    if (rc == 0) l->at_ns = (uint64_t)(ms * 1e6);
    return rc;
}

static int read_length(const msgl_json_line *line, const char *field, int32_t *out, msgl_err *err)
{
    double n = 0;
    const json_t *value = json_object_get(line->object, field);
    if (json_is_real(value)) {
        return msgl__json_line_error(line, field, "whole numbers from 1 to 16777216", err);
    }
    const int rc = msgl__json_line_number(line, field, 1, MSGL_TRACE_MAX_LEN, NULL, &n, err);
    *out = (int32_t)n;
    return rc;
}

static int read_acceptance(const reader *r, const msgl_json_line *line, msgl_trace_line *l,
                           msgl_err *err)
{
    double rate = 0;
    const int rc = msgl__json_line_number(line, "acceptance", 0, 1, &r->acceptance, &rate, err);
    l->acceptance = (float)rate;
    return rc;
}

static int read_request(void *ctx, const msgl_json_line *line, msgl_err *err)
{
    reader *r = ctx;
    msgl_trace *t = r->trace;
    if (t->count == r->room) {
        const int32_t room = r->room < 1024 ? 1024 : 2 * r->room;
        msgl_trace_line *p = msgl__reallocarray(t->lines, (size_t)room, sizeof *p);
        if (p == NULL || room < r->room) return out_of_memory(err);
        t->lines = p;
        r->room = room;
    }
    msgl_trace_line l = {.before = -1, .next = -1};
    int rc = read_length(line, "input_length", &l.input, err);
    if (rc == 0) rc = read_length(line, "output_length", &l.output, err);
    if (rc == 0) rc = read_acceptance(r, line, &l, err);
    if (rc != 0) return rc;
    rc = read_hashes(r, line, &l, err);
    if (rc == 0) rc = join_session(r, line, &l, err);
    if (rc == 0) rc = read_times(line, &l, err);
    if (rc != 0) return rc;
    const int64_t len = (int64_t)l.history + l.input + l.output;
    if (len > MSGL_TRACE_MAX_LEN) {
        return msgl__json_line_error(line, "input_length", "conversations of up to 16777216 tokens",
                                     err);
    }
    if (len > t->longest) t->longest = (int32_t)len;
    t->lines[t->count++] = l;
    return 0;
}

int msgl__trace_load(const char *path, int32_t block, double acceptance, msgl_trace *out,
                     msgl_err *err)
{
    *out = (msgl_trace){.block = block};
    reader r = {.trace = out, .acceptance = acceptance, .sessions = json_object()};
    int rc = r.sessions == NULL ? out_of_memory(err) : 0;
    if (rc == 0) rc = msgl__json_lines_read(path, read_request, &r, err);
    json_decref(r.sessions);
    if (rc == 0 && out->count == 0) {
        rc = msgl__err_set(err, MSGL_EFORMAT, "%.180s: no requests", path);
    }
    if (rc != 0) msgl__trace_free(out);
    return rc;
}

void msgl__trace_free(msgl_trace *t)
{
    msgl__free(t->lines);
    msgl__free(t->hashes);
    *t = (msgl_trace){0};
}
