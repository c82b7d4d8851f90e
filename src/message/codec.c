// SPDX-License-Identifier: Apache-2.0
#include "message/codec.h"

#include <msgpack.h>
#include <string.h>

#include "core/mem.h"
#include "core/round.h"
#include "core/settings.h"

// --- memory of decoded messages ---

struct msgl_msg_block {
    struct msgl_msg_block *next;
    size_t size, used;
    _Alignas(16) char data[];
};

enum { BLOCK_MIN = 64 * 1024 };

void msgl__msg_mem_reset(msgl_msg_mem *m)
{
    // The head is always the largest block; after a message that needed several, or a very large
    // one, the rest goes back.
    if (m->head != NULL) {
        struct msgl_msg_block *b = m->head->next;
        while (b != NULL) {
            struct msgl_msg_block *next = b->next;
            msgl__free(b);
            b = next;
        }
        m->head->next = NULL;
        m->head->used = 0;
        if (m->head->size > 64 * (size_t)BLOCK_MIN) {
            msgl__free(m->head);
            m->head = NULL;
        }
    }
    m->total = 0;
    msgl__req_extra_unref(m->extra);
    m->extra = NULL;
}

void msgl__msg_mem_free(msgl_msg_mem *m)
{
    msgl__msg_mem_reset(m);
    msgl__free(m->head);
    m->head = NULL;
}

static int mem_get(msgl_msg_mem *m, size_t size, void **out)
{
    size = msgl__round_up(size, 16);
    if (size > MSGL_MSG_DECODED_MAX - m->total) return MSGL_ELIMIT;
    struct msgl_msg_block *b = m->head;
    if (b == NULL || b->size - b->used < size) {
        size_t want = b == NULL ? BLOCK_MIN : 2 * b->size;
        if (want < size) want = size;
        b = msgl__malloc(sizeof *b + want);
        if (b == NULL) return MSGL_ENOMEM;
        *b = (struct msgl_msg_block){.next = m->head, .size = want};
        m->head = b;
    }
    *out = b->data + b->used;
    b->used += size;
    m->total += size;
    return 0;
}

enum { REQUEST_FIELDS = 15 }; // of its tuple, beside the settings of sampling

// --- encoding ---

typedef struct sink {
    msgl_strbuf *buf;
    int rc;
} sink;

static int sink_write(void *data, const char *bytes, size_t len)
{
    sink *s = data;
    if (s->rc == 0) s->rc = msgl__strbuf_add(s->buf, bytes, len);
    return s->rc;
}

static void put_str(msgpack_packer *pk, const char *s)
{
    if (s == NULL) {
        msgpack_pack_nil(pk);
        return;
    }
    const size_t len = strlen(s);
    msgpack_pack_str(pk, len);
    msgpack_pack_str_body(pk, s, len);
}

static void put_ids(msgpack_packer *pk, const int32_t *ids, int32_t n)
{
    msgpack_pack_array(pk, (size_t)n);
    for (int32_t i = 0; i < n; i++) msgpack_pack_int32(pk, ids[i]);
}

static void put_bias(msgpack_packer *pk, const msgl_req_extra *x)
{
    const int32_t n = x != NULL ? x->num_bias : 0;
    msgpack_pack_array(pk, (size_t)n);
    for (int32_t i = 0; i < n; i++) {
        msgpack_pack_array(pk, 2);
        msgpack_pack_int32(pk, x->bias[i].token);
        msgpack_pack_float(pk, x->bias[i].value);
    }
}

static void put_setting(msgpack_packer *pk, const msgl_setting *s, const void *values)
{
    const double v = msgl__setting_number(s, values);
    if (s->type == MSGL_SETTING_REAL) {
        msgpack_pack_float(pk, (float)v);
    } else if (s->type == MSGL_SETTING_INT) {
        msgpack_pack_int32(pk, (int32_t)v);
    } else if (v != 0) {
        msgpack_pack_true(pk);
    } else {
        msgpack_pack_false(pk);
    }
}

static int put_request(msgpack_packer *pk, const msgl_msg_request *r)
{
    const msgl_sampling_params *p = &r->sampling;
    if (r->num_ids < 1 || p->num_stop_ids < 0 || p->num_stop_ids > MSGL_MAX_STOP_IDS) {
        return MSGL_EINVAL;
    }
    const msgl_setting_table *settings = &msgl__sampling_settings;
    msgpack_pack_array(pk, REQUEST_FIELDS + (size_t)settings->count);
    msgpack_pack_uint64(pk, r->uid);
    msgpack_pack_uint64(pk, r->client);
    msgpack_pack_uint64(pk, r->cache_salt);
    put_ids(pk, r->ids, r->num_ids);
    for (int i = 0; i < settings->count; i++) put_setting(pk, &settings->rows[i], p);
    msgpack_pack_uint64(pk, p->seed);
    msgpack_pack_int32(pk, p->max_tokens);
    msgpack_pack_int32(pk, p->logprobs);
    msgpack_pack_int32(pk, p->prompt_logprobs);
    put_ids(pk, p->stop_ids, p->num_stop_ids);
    msgpack_pack_int32(pk, r->extra == NULL ? 0 : (int32_t)r->extra->grammar_kind);
    put_str(pk, r->extra == NULL ? "" : r->extra->grammar);
    put_str(pk, r->extra == NULL ? "" : r->extra->stages);
    put_bias(pk, r->extra);
    put_ids(pk, r->extra == NULL ? NULL : r->extra->allowed,
            r->extra == NULL ? 0 : r->extra->num_allowed);
    put_ids(pk, r->extra == NULL ? NULL : r->extra->banned,
            r->extra == NULL ? 0 : r->extra->num_banned);
    return 0;
}

static int put_logprobs(msgpack_packer *pk, const msgl_token_logprobs *l)
{
    if (l->num_top < 0 || l->num_top > MSGL_MAX_LOGPROBS) return MSGL_EINVAL;
    msgpack_pack_array(pk, 6);
    msgpack_pack_int32(pk, l->position);
    msgpack_pack_int32(pk, l->token);
    msgpack_pack_float(pk, l->logprob);
    msgpack_pack_int32(pk, l->rank);
    msgpack_pack_array(pk, (size_t)l->num_top);
    for (int32_t i = 0; i < l->num_top; i++) msgpack_pack_int32(pk, l->top_ids[i]);
    msgpack_pack_array(pk, (size_t)l->num_top);
    for (int32_t i = 0; i < l->num_top; i++) msgpack_pack_float(pk, l->top_logprobs[i]);
    return 0;
}

static int put_tokens(msgpack_packer *pk, const msgl_msg_tokens *t)
{
    if (t->num_events < 0) return MSGL_EINVAL;
    msgpack_pack_array(pk, (size_t)t->num_events);
    for (int32_t i = 0; i < t->num_events; i++) {
        const msgl_token_event *e = &t->events[i];
        if ((int)e->finish < MSGL_FINISH_NONE || e->finish > MSGL_FINISH_ERROR ||
            e->num_tokens < 0 || e->num_values < 0 || e->num_logprobs < 0) {
            return MSGL_EINVAL;
        }
        msgpack_pack_array(pk, 9);
        msgpack_pack_uint64(pk, e->uid);
        put_ids(pk, e->tokens, e->num_tokens);
        msgpack_pack_int32(pk, (int32_t)e->finish);
        msgpack_pack_int32(pk, e->prompt_tokens);
        msgpack_pack_int32(pk, e->cached_tokens);
        msgpack_pack_int32(pk, e->status);
        put_str(pk, e->text);
        msgpack_pack_array(pk, (size_t)e->num_values);
        for (int32_t j = 0; j < e->num_values; j++) msgpack_pack_float(pk, e->values[j]);
        msgpack_pack_array(pk, (size_t)e->num_logprobs);
        for (int32_t j = 0; j < e->num_logprobs; j++) {
            const int rc = put_logprobs(pk, &e->logprobs[j]);
            if (rc != 0) return rc;
        }
    }
    return 0;
}

static void put_ready(msgpack_packer *pk, const msgl_msg_ready *r)
{
    msgpack_pack_array(pk, 9);
    msgpack_pack_int32(pk, r->max_seq_len);
    msgpack_pack_int32(pk, r->max_running);
    msgpack_pack_int32(pk, r->num_pages);
    msgpack_pack_int32(pk, r->page_size);
    msgpack_pack_int32(pk, r->vocab_size);
    put_str(pk, r->attention);
    put_str(pk, r->device);
    msgpack_pack_int32(pk, (int32_t)r->pooling);
    msgpack_pack_int32(pk, r->pooled_size);
}

static void put_stats(msgpack_packer *pk, const msgl_msg_stats *s)
{
    msgpack_pack_array(pk, 13);
    msgpack_pack_uint64(pk, s->step);
    msgpack_pack_int32(pk, s->running);
    msgpack_pack_int32(pk, s->waiting);
    msgpack_pack_int32(pk, s->free_pages);
    msgpack_pack_int32(pk, s->cached_pages);
    msgpack_pack_int32(pk, s->used_pages);
    msgpack_pack_int32(pk, s->total_pages);
    msgpack_pack_uint64(pk, s->prompt_tokens);
    msgpack_pack_uint64(pk, s->generated_tokens);
    msgpack_pack_uint64(pk, s->cached_tokens);
    msgpack_pack_uint64(pk, s->requests_done);
    msgpack_pack_uint64(pk, s->requests_aborted);
    msgpack_pack_uint64(pk, s->requests_retracted);
}

static void put_report(msgpack_packer *pk, const msgl_msg_report *m)
{
    msgpack_pack_array(pk, 6);
    put_stats(pk, &m->stats);
    msgpack_pack_uint64(pk, m->process.memory);
    msgpack_pack_uint64(pk, m->process.cpu_us);
    msgpack_pack_uint64(pk, m->steps.sum_ns);
    msgpack_pack_array(pk, MSGL_DURATION_BOUNDS + 1);
    for (int i = 0; i <= MSGL_DURATION_BOUNDS; i++) msgpack_pack_uint64(pk, m->steps.counts[i]);
    msgpack_pack_array(pk, (size_t)m->num_groups);
    for (int i = 0; i < m->num_groups; i++) {
        msgpack_pack_array(pk, 4);
        msgpack_pack_int32(pk, m->groups[i].total);
        msgpack_pack_int32(pk, m->groups[i].free);
        msgpack_pack_int32(pk, m->groups[i].cached);
        msgpack_pack_uint64(pk, m->groups[i].evicted);
    }
}

static int put_tree(msgpack_packer *pk, const msgl_msg_tree *m)
{
    if (m->num_runs < 0 || m->num_runs > MSGL_MAX_TREE_RUNS) return MSGL_EINVAL;
    msgpack_pack_array(pk, 3);
    msgpack_pack_uint8(pk, m->all);
    msgpack_pack_uint64(pk, (uint64_t)m->tokens);
    msgpack_pack_array(pk, (size_t)m->num_runs);
    for (int i = 0; i < m->num_runs; i++) {
        msgpack_pack_array(pk, 4);
        msgpack_pack_int32(pk, m->runs[i].parent);
        msgpack_pack_int32(pk, m->runs[i].tokens);
        msgpack_pack_int32(pk, m->runs[i].pins);
        msgpack_pack_uint64(pk, (uint64_t)m->runs[i].hits);
    }
    return 0;
}

static int put_fields(msgpack_packer *pk, const msgl_msg *m)
{
    switch (m->type) {
    case MSGL_MSG_REQUEST: return put_request(pk, &m->u.request);
    case MSGL_MSG_ABORT: msgpack_pack_uint64(pk, m->u.abort_uid); return 0;
    case MSGL_MSG_FLUSH:
    case MSGL_MSG_GET_STATS:
    case MSGL_MSG_GET_TREE:
    case MSGL_MSG_EXIT: msgpack_pack_nil(pk); return 0;
    case MSGL_MSG_READY: put_ready(pk, &m->u.ready); return 0;
    case MSGL_MSG_TOKENS: return put_tokens(pk, &m->u.tokens);
    case MSGL_MSG_STATS: put_stats(pk, &m->u.stats); return 0;
    case MSGL_MSG_TREE: return put_tree(pk, &m->u.tree);
    case MSGL_MSG_REPORT:
        if (m->u.report.num_groups < 0 || m->u.report.num_groups > MSGL_MAX_REPORT_GROUPS) {
            return MSGL_EINVAL;
        }
        put_report(pk, &m->u.report);
        return 0;
    case MSGL_MSG_FATAL:
        if (m->u.fatal == NULL) return MSGL_EINVAL;
        put_str(pk, m->u.fatal);
        return 0;
    }
    return MSGL_EINVAL;
}

int msgl__msg_encode(const msgl_msg *m, msgl_strbuf *out)
{
    const size_t before = out->len;
    sink s = {.buf = out};
    msgpack_packer pk;
    msgpack_packer_init(&pk, &s, sink_write);
    msgpack_pack_array(&pk, 3);
    msgpack_pack_uint8(&pk, MSGL_MSG_VERSION);
    msgpack_pack_uint8(&pk, (uint8_t)m->type);
    int rc = put_fields(&pk, m);
    if (rc == 0) rc = s.rc;
    if (rc == 0 && out->len - before > MSGL_MSG_FRAME_MAX) rc = MSGL_ELIMIT;
    if (rc != 0 && out->data != NULL) {
        out->len = before;
        out->data[before] = '\0';
    }
    return rc;
}

// --- decoding ---

// A cursor that remembers the first failure: after it every read gives 0, so callers check once.
typedef struct reader {
    const uint8_t *base, *p, *end;
    msgl_msg_mem *mem;
    msgl_err *err;
    int rc;
} reader;

static void rd_fail(reader *r, int code, const char *field, const char *what)
{
    if (r->rc != 0) return;
    r->rc = msgl__err_set(r->err, code, "message: %s: %s at byte %zu", field, what,
                          (size_t)(r->p - r->base));
}

static bool rd_need(reader *r, size_t n, const char *field)
{
    if (r->rc != 0) return false;
    if ((size_t)(r->end - r->p) < n) {
        rd_fail(r, MSGL_EFORMAT, field, "truncated");
        return false;
    }
    return true;
}

static uint64_t be(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) v = v << 8 | p[i];
    return v;
}

// Any MessagePack integer as sign and magnitude: *neg with the two's complement value, or the
// unsigned value.
static uint64_t rd_integer(reader *r, bool *neg, const char *field)
{
    *neg = false;
    if (!rd_need(r, 1, field)) return 0;
    const uint8_t tag = *r->p;
    if (tag <= 0x7f) {
        r->p++;
        return tag;
    }
    if (tag >= 0xe0) {
        r->p++;
        *neg = true;
        return (uint64_t)(int64_t)(int8_t)tag;
    }
    if (tag < 0xcc || tag > 0xd3) {
        rd_fail(r, MSGL_EFORMAT, field, "not an integer");
        return 0;
    }
    const int size = 1 << ((tag - 0xcc) & 3);
    if (!rd_need(r, 1 + (size_t)size, field)) return 0;
    uint64_t v = be(r->p + 1, size);
    r->p += 1 + size;
    if (tag >= 0xd0) { // signed: extend
        const int shift = 64 - 8 * size;
        v = (uint64_t)((int64_t)(v << shift) >> shift);
        *neg = (int64_t)v < 0;
    }
    return v;
}

static uint64_t rd_u64(reader *r, const char *field)
{
    bool neg;
    const uint64_t v = rd_integer(r, &neg, field);
    if (neg) rd_fail(r, MSGL_EFORMAT, field, "negative");
    return r->rc == 0 ? v : 0;
}

static int32_t rd_i32(reader *r, int32_t lo, int32_t hi, const char *field)
{
    bool neg;
    const uint64_t v = rd_integer(r, &neg, field);
    if (r->rc != 0) return 0;
    if (neg ? (int64_t)v < lo : (v > INT32_MAX || (int64_t)v < lo || (int64_t)v > hi)) {
        rd_fail(r, MSGL_EFORMAT, field, "out of range");
        return 0;
    }
    return (int32_t)(int64_t)v;
}

static float rd_f32(reader *r, const char *field)
{
    if (!rd_need(r, 1, field)) return 0;
    if (*r->p != 0xca) {
        rd_fail(r, MSGL_EFORMAT, field, "not a 32-bit float");
        return 0;
    }
    if (!rd_need(r, 5, field)) return 0;
    const uint32_t u = (uint32_t)be(r->p + 1, 4);
    float f;
    memcpy(&f, &u, 4);
    r->p += 5;
    return f;
}

static bool rd_bool(reader *r, const char *field)
{
    if (!rd_need(r, 1, field)) return false;
    if (*r->p != 0xc2 && *r->p != 0xc3) {
        rd_fail(r, MSGL_EFORMAT, field, "not a boolean");
        return false;
    }
    return *r->p++ == 0xc3;
}

static void rd_nil(reader *r, const char *field)
{
    if (!rd_need(r, 1, field)) return;
    if (*r->p != 0xc0) {
        rd_fail(r, MSGL_EFORMAT, field, "not nil");
        return;
    }
    r->p++;
}

// Length of a fixed-size header family (array or string): 0 on failure.
static size_t rd_length(reader *r, uint8_t fix, uint8_t fix_mask, uint8_t first, int first_size,
                        int kinds, const char *field, const char *what)
{
    if (!rd_need(r, 1, field)) return 0;
    const uint8_t tag = *r->p;
    if ((tag & fix_mask) == fix) {
        r->p++;
        return tag & (uint8_t)~fix_mask;
    }
    if (tag < first || tag >= first + kinds) {
        rd_fail(r, MSGL_EFORMAT, field, what);
        return 0;
    }
    const int size = first_size << (tag - first);
    if (!rd_need(r, 1 + (size_t)size, field)) return 0;
    const size_t n = (size_t)be(r->p + 1, size);
    r->p += 1 + size;
    return n;
}

// Elements of an array; every element takes at least min_bytes, so a count that the remaining
// bytes cannot hold is refused before anything is allocated for it.
static size_t rd_array(reader *r, size_t min_bytes, size_t max, const char *field)
{
    const size_t n = rd_length(r, 0x90, 0xf0, 0xdc, 2, 2, field, "not an array");
    if (r->rc != 0) return 0;
    if (n > (size_t)(r->end - r->p) / min_bytes || n > max) {
        rd_fail(r, MSGL_EFORMAT, field, "too many elements");
        return 0;
    }
    return n;
}

static void rd_tuple(reader *r, size_t n, const char *field)
{
    if (rd_array(r, 1, n, field) != n) rd_fail(r, MSGL_EFORMAT, field, "wrong number of fields");
}

static const char *rd_str(reader *r, bool nil_allowed, const char *field)
{
    if (!rd_need(r, 1, field)) return NULL;
    if (nil_allowed && *r->p == 0xc0) {
        r->p++;
        return NULL;
    }
    const size_t n = rd_length(r, 0xa0, 0xe0, 0xd9, 1, 3, field, "not a string");
    if (!rd_need(r, n, field)) return NULL;
    if (memchr(r->p, 0, n) != NULL) {
        rd_fail(r, MSGL_EFORMAT, field, "string with a NUL");
        return NULL;
    }
    void *s;
    const int rc = mem_get(r->mem, n + 1, &s);
    if (rc != 0) {
        rd_fail(r, rc, field, "no memory");
        return NULL;
    }
    memcpy(s, r->p, n);
    ((char *)s)[n] = '\0';
    r->p += n;
    return s;
}

static void *rd_alloc(reader *r, size_t n, size_t size, const char *field)
{
    void *p = NULL;
    size_t bytes = 0;
    if (r->rc != 0) return NULL;
    int rc = msgl__size_mul(n, size, &bytes);
    if (rc == 0) rc = mem_get(r->mem, bytes, &p);
    if (rc != 0) rd_fail(r, rc, field, "too large");
    return p;
}

// *n: how many; NULL when there are none.
static const int32_t *rd_ids(reader *r, int32_t least, int32_t *n, const char *field)
{
    *n = (int32_t)rd_array(r, 1, INT32_MAX, field);
    if (*n == 0) return NULL;
    int32_t *ids = rd_alloc(r, (size_t)*n, sizeof *ids, field);
    for (int32_t i = 0; i < *n && r->rc == 0; i++) ids[i] = rd_i32(r, least, INT32_MAX, field);
    return ids;
}

static const float *rd_floats(reader *r, int32_t *n, const char *field)
{
    *n = (int32_t)rd_array(r, 5, INT32_MAX, field);
    if (*n == 0) return NULL;
    float *values = rd_alloc(r, (size_t)*n, sizeof *values, field);
    for (int32_t i = 0; i < *n && r->rc == 0; i++) values[i] = rd_f32(r, field);
    return values;
}

// Into r->mem. Tokens are checked against the vocabulary by the receiver, who knows it.
static msgl_req_extra *rd_extra(reader *r)
{
    static const char field[] = "request.logit_bias";
    const int32_t kind = rd_i32(r, MSGL_GRAMMAR_NONE, MSGL_GRAMMAR_LARK, "request.grammar");
    const char *grammar = rd_str(r, false, "request.grammar");
    const char *stages = rd_str(r, false, "request.stages");
    const size_t n = rd_array(r, 7, MSGL_MAX_LOGIT_BIAS, field);
    msgl_bias *bias = n == 0 || r->rc != 0 ? NULL : rd_alloc(r, n, sizeof *bias, field);
    for (size_t i = 0; i < n && r->rc == 0; i++) {
        rd_tuple(r, 2, field);
        bias[i].token = rd_i32(r, 0, INT32_MAX - 1, field);
        bias[i].value = rd_f32(r, field);
    }
    int32_t num_allowed, num_banned;
    const int32_t *allowed = rd_ids(r, 0, &num_allowed, "request.allowed");
    const int32_t *banned = rd_ids(r, 0, &num_banned, "request.banned");
    if (r->rc != 0) return NULL;
    const msgl_req_extra_parts parts = {.bias = bias,
                                        .num_bias = (int64_t)n,
                                        .grammar_kind = (msgl_grammar_kind)kind,
                                        .grammar = grammar,
                                        .stages = stages,
                                        .allowed = allowed,
                                        .num_allowed = num_allowed,
                                        .banned = banned,
                                        .num_banned = num_banned};
    const int rc = msgl__req_extra_create_with(&parts, INT32_MAX, &r->mem->extra, NULL);
    if (rc != 0) rd_fail(r, rc == MSGL_EINVAL ? MSGL_EFORMAT : rc, field, "not valid");
    return r->mem->extra;
}

static void rd_setting(reader *r, const msgl_setting *s, void *values)
{
    double v;
    if (s->type == MSGL_SETTING_REAL) {
        v = (double)rd_f32(r, s->field);
    } else if (s->type == MSGL_SETTING_INT) {
        v = rd_i32(r, INT32_MIN, INT32_MAX, s->field);
    } else {
        v = rd_bool(r, s->field);
    }
    msgl__setting_put(s, v, values);
}

static void rd_request(reader *r, msgl_msg_request *q)
{
    const msgl_setting_table *settings = &msgl__sampling_settings;
    rd_tuple(r, REQUEST_FIELDS + (size_t)settings->count, "request");
    q->uid = rd_u64(r, "request.uid");
    q->client = rd_u64(r, "request.client");
    q->cache_salt = rd_u64(r, "request.cache_salt");
    q->ids = rd_ids(r, INT32_MIN, &q->num_ids, "request.ids");
    if (r->rc == 0 && q->num_ids == 0) rd_fail(r, MSGL_EFORMAT, "request.ids", "empty");
    msgl_sampling_params *p = &q->sampling;
    for (int i = 0; i < settings->count; i++) rd_setting(r, &settings->rows[i], p);
    p->seed = rd_u64(r, "request.seed");
    p->max_tokens = rd_i32(r, INT32_MIN, INT32_MAX, "request.max_tokens");
    p->logprobs = rd_i32(r, INT32_MIN, INT32_MAX, "request.logprobs");
    p->prompt_logprobs = rd_i32(r, INT32_MIN, INT32_MAX, "request.prompt_logprobs");
    p->num_stop_ids = (int32_t)rd_array(r, 1, MSGL_MAX_STOP_IDS, "request.stop_ids");
    for (int32_t i = 0; i < p->num_stop_ids; i++) {
        p->stop_ids[i] = rd_i32(r, INT32_MIN, INT32_MAX, "request.stop_ids");
    }
    q->extra = rd_extra(r);
}

static void rd_logprobs(reader *r, msgl_token_logprobs *l)
{
    static const char field[] = "tokens.logprobs";
    *l = (msgl_token_logprobs){0};
    rd_tuple(r, 6, field);
    l->position = rd_i32(r, 0, INT32_MAX, field);
    l->token = rd_i32(r, INT32_MIN, INT32_MAX, field);
    l->logprob = rd_f32(r, field);
    l->rank = rd_i32(r, 0, INT32_MAX, field);
    const size_t n = rd_array(r, 1, MSGL_MAX_LOGPROBS, field);
    for (size_t i = 0; i < n; i++) l->top_ids[i] = rd_i32(r, INT32_MIN, INT32_MAX, field);
    if (rd_array(r, 1, MSGL_MAX_LOGPROBS, field) != n) {
        rd_fail(r, MSGL_EFORMAT, field, "ids and values differ in number");
    }
    for (size_t i = 0; i < n; i++) l->top_logprobs[i] = rd_f32(r, field);
    l->num_top = (int32_t)n;
}

static void rd_event(reader *r, msgl_token_event *e)
{
    *e = (msgl_token_event){0};
    rd_tuple(r, 9, "tokens.event");
    e->uid = rd_u64(r, "tokens.uid");
    e->tokens = rd_ids(r, 0, &e->num_tokens, "tokens.tokens");
    e->finish = (msgl_finish)rd_i32(r, MSGL_FINISH_NONE, MSGL_FINISH_ERROR, "tokens.finish");
    e->prompt_tokens = rd_i32(r, 0, INT32_MAX, "tokens.prompt_tokens");
    e->cached_tokens = rd_i32(r, 0, INT32_MAX, "tokens.cached_tokens");
    e->status = rd_i32(r, INT32_MIN, INT32_MAX, "tokens.status");
    e->text = rd_str(r, true, "tokens.text");
    e->values = rd_floats(r, &e->num_values, "tokens.values");
    const size_t n = rd_array(r, 7, INT32_MAX, "tokens.logprobs");
    if (n == 0 || r->rc != 0) return;
    msgl_token_logprobs *rows = rd_alloc(r, n, sizeof *rows, "tokens.logprobs");
    for (size_t i = 0; i < n && r->rc == 0; i++) rd_logprobs(r, &rows[i]);
    e->logprobs = rows;
    e->num_logprobs = (int32_t)n;
}

static void rd_tokens(reader *r, msgl_msg_tokens *t)
{
    const size_t n = rd_array(r, 10, INT32_MAX, "tokens");
    msgl_token_event *events = rd_alloc(r, n, sizeof *events, "tokens");
    for (size_t i = 0; i < n && r->rc == 0; i++) rd_event(r, &events[i]);
    t->events = events;
    t->num_events = (int32_t)n;
}

static void rd_ready(reader *r, msgl_msg_ready *m)
{
    rd_tuple(r, 9, "ready");
    m->max_seq_len = rd_i32(r, 1, INT32_MAX, "ready.max_seq_len");
    m->max_running = rd_i32(r, 1, INT32_MAX, "ready.max_running");
    m->num_pages = rd_i32(r, 1, INT32_MAX, "ready.num_pages");
    m->page_size = rd_i32(r, 1, INT32_MAX, "ready.page_size");
    m->vocab_size = rd_i32(r, 1, INT32_MAX, "ready.vocab_size");
    m->attention = rd_str(r, true, "ready.attention");
    m->device = rd_str(r, true, "ready.device");
    m->pooling = (msgl_pooling)rd_i32(r, MSGL_POOL_NONE, MSGL_POOL_SCORE, "ready.pooling");
    m->pooled_size = rd_i32(r, m->pooling == MSGL_POOL_NONE ? 0 : 1,
                            m->pooling == MSGL_POOL_NONE ? 0 : INT32_MAX, "ready.pooled_size");
}

static void rd_stats(reader *r, msgl_msg_stats *s)
{
    rd_tuple(r, 13, "stats");
    s->step = rd_u64(r, "stats.step");
    s->running = rd_i32(r, 0, INT32_MAX, "stats.running");
    s->waiting = rd_i32(r, 0, INT32_MAX, "stats.waiting");
    s->free_pages = rd_i32(r, 0, INT32_MAX, "stats.free_pages");
    s->cached_pages = rd_i32(r, 0, INT32_MAX, "stats.cached_pages");
    s->used_pages = rd_i32(r, 0, INT32_MAX, "stats.used_pages");
    s->total_pages = rd_i32(r, 0, INT32_MAX, "stats.total_pages");
    s->prompt_tokens = rd_u64(r, "stats.prompt_tokens");
    s->generated_tokens = rd_u64(r, "stats.generated_tokens");
    s->cached_tokens = rd_u64(r, "stats.cached_tokens");
    s->requests_done = rd_u64(r, "stats.requests_done");
    s->requests_aborted = rd_u64(r, "stats.requests_aborted");
    s->requests_retracted = rd_u64(r, "stats.requests_retracted");
}

static void rd_report(reader *r, msgl_msg_report *m)
{
    *m = (msgl_msg_report){0};
    rd_tuple(r, 6, "report");
    rd_stats(r, &m->stats);
    m->process.memory = rd_u64(r, "report.memory");
    m->process.cpu_us = rd_u64(r, "report.cpu_us");
    m->steps.sum_ns = rd_u64(r, "report.step_ns");
    rd_tuple(r, MSGL_DURATION_BOUNDS + 1, "report.steps");
    for (int i = 0; i <= MSGL_DURATION_BOUNDS; i++) {
        m->steps.counts[i] = rd_u64(r, "report.steps");
    }
    m->num_groups = (int32_t)rd_array(r, 5, MSGL_MAX_REPORT_GROUPS, "report.groups");
    for (int i = 0; i < m->num_groups && r->rc == 0; i++) {
        rd_tuple(r, 4, "report.group");
        m->groups[i].total = rd_i32(r, 0, INT32_MAX, "report.total");
        m->groups[i].free = rd_i32(r, 0, INT32_MAX, "report.free");
        m->groups[i].cached = rd_i32(r, 0, INT32_MAX, "report.cached");
        m->groups[i].evicted = rd_u64(r, "report.evicted");
    }
}

static void rd_tree(reader *r, msgl_msg_tree *m)
{
    rd_tuple(r, 3, "tree");
    m->all = rd_i32(r, 0, 1, "tree.all") != 0;
    m->tokens = (int64_t)(rd_u64(r, "tree.tokens") & INT64_MAX);
    const size_t n = rd_array(r, 5, MSGL_MAX_TREE_RUNS, "tree.runs");
    msgl_tree_run *runs = rd_alloc(r, n, sizeof *runs, "tree.runs");
    for (size_t i = 0; i < n && r->rc == 0; i++) {
        rd_tuple(r, 4, "tree.run");
        runs[i].parent = rd_i32(r, -1, (int32_t)n - 1, "tree.parent");
        runs[i].tokens = rd_i32(r, 1, INT32_MAX, "tree.run_tokens");
        runs[i].pins = rd_i32(r, 0, INT32_MAX, "tree.pins");
        runs[i].hits = (int64_t)(rd_u64(r, "tree.hits") & INT64_MAX);
    }
    m->runs = runs;
    m->num_runs = (int32_t)n;
}

int msgl__msg_decode(const void *data, size_t len, msgl_msg_mem *mem, msgl_msg *out, msgl_err *err)
{
    msgl__msg_mem_reset(mem);
    *out = (msgl_msg){0};
    reader r = {
        .base = data, .p = data, .end = (const uint8_t *)data + len, .mem = mem, .err = err};
    if (len > MSGL_MSG_FRAME_MAX) rd_fail(&r, MSGL_ELIMIT, "frame", "too long");
    rd_tuple(&r, 3, "message");
    rd_i32(&r, MSGL_MSG_VERSION, MSGL_MSG_VERSION, "version");
    out->type = (msgl_msg_type)rd_i32(&r, MSGL_MSG_REQUEST, MSGL_MSG_TREE, "type");
    if (r.rc != 0) return r.rc;
    switch (out->type) {
    case MSGL_MSG_REQUEST: rd_request(&r, &out->u.request); break;
    case MSGL_MSG_ABORT: out->u.abort_uid = rd_u64(&r, "abort.uid"); break;
    case MSGL_MSG_FLUSH:
    case MSGL_MSG_GET_STATS:
    case MSGL_MSG_GET_TREE:
    case MSGL_MSG_EXIT: rd_nil(&r, "fields"); break;
    case MSGL_MSG_READY: rd_ready(&r, &out->u.ready); break;
    case MSGL_MSG_TOKENS: rd_tokens(&r, &out->u.tokens); break;
    case MSGL_MSG_STATS: rd_stats(&r, &out->u.stats); break;
    case MSGL_MSG_TREE: rd_tree(&r, &out->u.tree); break;
    case MSGL_MSG_REPORT: rd_report(&r, &out->u.report); break;
    case MSGL_MSG_FATAL: out->u.fatal = rd_str(&r, false, "fatal"); break;
    }
    if (r.rc == 0 && r.p != r.end) rd_fail(&r, MSGL_EFORMAT, "message", "trailing bytes");
    return r.rc;
}
