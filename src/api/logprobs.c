// SPDX-License-Identifier: Apache-2.0
#include "api/logprobs.h"

#include <string.h>

#include "api/json.h"
#include "utils/utf8.h"

enum { PART_MAX = 1 << 30, TOKEN_BYTES = 512 };

struct msgl_logprobs_form {
    int num_parts;
    const char *before[MSGL_LOGPROBS_PARTS]; // each part
    const char *behind;                      // the last
    // One entry to the end of the parts; row NULL as in msgl__logprobs_add.
    int (*add)(msgl_strbuf *parts, const msgl_tokenizer *t, const msgl_token_logprobs *row,
               int32_t token, size_t offset);
};

void msgl__logprobs_init(msgl_logprobs *l, const msgl_logprobs_form *form)
{
    *l = (msgl_logprobs){.form = form};
    for (int i = 0; i < MSGL_LOGPROBS_PARTS; i++) msgl__strbuf_init(&l->parts[i], PART_MAX);
}

void msgl__logprobs_free(msgl_logprobs *l)
{
    for (int i = 0; i < MSGL_LOGPROBS_PARTS; i++) msgl__strbuf_free(&l->parts[i]);
}

static size_t token_bytes(const msgl_tokenizer *t, int32_t id, char buf[TOKEN_BYTES])
{
    const int n = msgl__tokenizer_token_bytes(t, id, buf, TOKEN_BYTES);
    return n < 0 ? 0 : n > TOKEN_BYTES ? TOKEN_BYTES : (size_t)n;
}

// A token as a JSON string for completions: its text, or "bytes:\xNN..." where it is no text alone.
static int put_token_text(msgl_strbuf *out, const msgl_tokenizer *t, int32_t id)
{
    char buf[TOKEN_BYTES];
    const size_t n = token_bytes(t, id, buf);
    if (msgl__utf8_valid(buf, n) == n) return msgl__json_put_str(out, buf, n);
    int rc = msgl__strbuf_adds(out, "\"bytes:");
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = msgl__strbuf_addf(out, "\\\\x%02x", (unsigned char)buf[i]);
    }
    return rc == 0 ? msgl__strbuf_addc(out, '"') : rc;
}

// {"token": ..., "logprob": ..., "bytes": [...]  without the closing brace; with_id: "id" first.
static int put_chat_token(msgl_strbuf *out, const msgl_tokenizer *t, int32_t id, double logprob,
                          bool with_id)
{
    char buf[TOKEN_BYTES];
    const size_t n = token_bytes(t, id, buf);
    int rc = msgl__strbuf_addc(out, '{');
    if (rc == 0 && with_id) rc = msgl__strbuf_addf(out, "\"id\":%d,", (int)id);
    if (rc == 0) rc = msgl__strbuf_adds(out, "\"token\":");
    if (rc == 0) rc = msgl__json_put_str(out, buf, n);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"logprob\":");
    if (rc == 0) rc = msgl__json_put_logprob(out, logprob);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"bytes\":[");
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = msgl__strbuf_addf(out, "%s%u", i == 0 ? "" : ",", (unsigned char)buf[i]);
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static int put_chat_row(msgl_strbuf *out, const msgl_tokenizer *t, const msgl_token_logprobs *row,
                        bool with_id)
{
    int rc = put_chat_token(out, t, row->token, row->logprob, with_id);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < row->num_top && rc == 0; i++) {
        if (i > 0) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = put_chat_token(out, t, row->top_ids[i], row->top_logprobs[i], with_id);
        if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    }
    return rc == 0 ? msgl__strbuf_adds(out, "]}") : rc;
}

static int add_content(msgl_strbuf *parts, const msgl_tokenizer *t, const msgl_token_logprobs *row,
                       int32_t token, size_t offset)
{
    (void)token, (void)offset;
    return put_chat_row(&parts[0], t, row, false);
}

static int add_with_id(msgl_strbuf *parts, const msgl_tokenizer *t, const msgl_token_logprobs *row,
                       int32_t token, size_t offset)
{
    (void)token, (void)offset;
    return put_chat_row(&parts[0], t, row, true);
}

// The object of one token's alternatives, keyed by text. Different ids can have the same text: the
// most likely one stands. The chosen token is always in it.
static int put_top(msgl_strbuf *out, const msgl_tokenizer *t, const msgl_token_logprobs *row)
{
    size_t start[MSGL_MAX_LOGPROBS + 1], end[MSGL_MAX_LOGPROBS + 1];
    int keys = 0;
    bool chosen = false;
    int rc = msgl__strbuf_addc(out, '{');
    for (int32_t i = 0; i <= row->num_top && rc == 0; i++) {
        const bool last = i == row->num_top;
        if (last && chosen) break;
        const int32_t id = last ? row->token : row->top_ids[i];
        const float logprob = last ? row->logprob : row->top_logprobs[i];
        chosen = chosen || id == row->token;
        const size_t before = out->len;
        if (keys > 0) rc = msgl__strbuf_addc(out, ',');
        start[keys] = out->len;
        if (rc == 0) rc = put_token_text(out, t, id);
        end[keys] = out->len;
        bool seen = false;
        for (int k = 0; k < keys && rc == 0; k++) {
            const size_t n = end[k] - start[k];
            seen = seen || (n == end[keys] - start[keys] &&
                            memcmp(out->data + start[k], out->data + start[keys], n) == 0);
        }
        if (seen) {
            out->len = before;
            out->data[before] = '\0';
            continue;
        }
        keys++;
        if (rc == 0) rc = msgl__strbuf_addc(out, ':');
        if (rc == 0) rc = msgl__json_put_logprob(out, logprob);
    }
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

const msgl_logprobs_form msgl__logprobs_content = {.num_parts = 1,
                                                   .before = {"{\"content\":["},
                                                   .behind = "],\"refusal\":null}",
                                                   .add = add_content};

const msgl_logprobs_form msgl__logprobs_list = {
    .num_parts = 1, .before = {"["}, .behind = "]", .add = add_content};

const msgl_logprobs_form msgl__logprobs_with_ids = {
    .num_parts = 1, .before = {"["}, .behind = "]", .add = add_with_id};

static int add_to_arrays(msgl_strbuf *parts, const msgl_tokenizer *t,
                         const msgl_token_logprobs *row, int32_t token, size_t offset)
{
    int rc = put_token_text(&parts[0], t, token);
    if (rc == 0) {
        rc = row == NULL ? msgl__strbuf_adds(&parts[1], "null")
                         : msgl__json_put_logprob(&parts[1], row->logprob);
    }
    if (rc == 0) {
        rc = row == NULL ? msgl__strbuf_adds(&parts[2], "null") : put_top(&parts[2], t, row);
    }
    return rc == 0 ? msgl__strbuf_addf(&parts[3], "%zu", offset) : rc;
}

const msgl_logprobs_form msgl__logprobs_arrays = {
    .num_parts = 4,
    .before = {"{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":[",
               "],\"text_offset\":["},
    .behind = "]}",
    .add = add_to_arrays};

// "ID":{"logprob":...,"rank":...,"decoded_token":...}
static int put_ranked(msgl_strbuf *out, const msgl_tokenizer *t, int32_t id, double logprob,
                      int32_t rank)
{
    char buf[TOKEN_BYTES];
    const size_t n = token_bytes(t, id, buf);
    int rc = msgl__strbuf_addf(out, "\"%d\":{\"logprob\":", (int)id);
    if (rc == 0) rc = msgl__json_put_logprob(out, logprob);
    if (rc == 0) rc = msgl__strbuf_addf(out, ",\"rank\":%d,\"decoded_token\":", (int)rank);
    if (rc == 0) rc = msgl__json_put_str(out, buf, n);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

// The token's own comes first, wherever it ranks.
static int add_prompt(msgl_strbuf *parts, const msgl_tokenizer *t, const msgl_token_logprobs *row,
                      int32_t token, size_t offset)
{
    (void)offset;
    msgl_strbuf *out = &parts[0];
    if (row == NULL) return msgl__strbuf_adds(out, "null");
    int rc = msgl__strbuf_addc(out, '{');
    if (rc == 0) rc = put_ranked(out, t, token, row->logprob, row->rank);
    for (int32_t i = 0; i < row->num_top && rc == 0; i++) {
        if (row->top_ids[i] == token) continue;
        rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = put_ranked(out, t, row->top_ids[i], row->top_logprobs[i], i + 1);
    }
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

const msgl_logprobs_form msgl__logprobs_prompt = {
    .num_parts = 1, .before = {"["}, .behind = "]", .add = add_prompt};

// [logprob,ID,TEXT]; logprob NULL: null.
static int put_triple(msgl_strbuf *out, const msgl_tokenizer *t, int32_t id, const float *logprob,
                      bool text)
{
    char buf[TOKEN_BYTES];
    int rc = msgl__strbuf_addc(out, '[');
    if (rc == 0 && logprob == NULL) rc = msgl__strbuf_adds(out, "null");
    if (rc == 0 && logprob != NULL) rc = msgl__json_put_logprob(out, (double)*logprob);
    if (rc == 0) rc = msgl__strbuf_addf(out, ",%d,", (int)id);
    if (rc == 0 && !text) rc = msgl__strbuf_adds(out, "null");
    if (rc == 0 && text) rc = msgl__json_put_str(out, buf, token_bytes(t, id, buf));
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

int msgl__logprobs_put_listed(msgl_strbuf *out, const msgl_tokenizer *t, const int32_t *ids,
                              int32_t n, const float *values, bool text)
{
    int rc = msgl__strbuf_addc(out, '[');
    for (int32_t i = 0; i < n && rc == 0; i++) {
        if (i > 0) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = put_triple(out, t, ids[i], &values[i], text);
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static int put_sglang(msgl_strbuf *parts, const msgl_tokenizer *t, const msgl_token_logprobs *row,
                      int32_t token, bool text)
{
    const int rc = put_triple(&parts[0], t, token, row == NULL ? NULL : &row->logprob, text);
    if (rc != 0) return rc;
    if (row == NULL) return msgl__strbuf_adds(&parts[1], "null");
    return msgl__logprobs_put_listed(&parts[1], t, row->top_ids, row->num_top, row->top_logprobs,
                                     text);
}

static int add_sglang(msgl_strbuf *parts, const msgl_tokenizer *t, const msgl_token_logprobs *row,
                      int32_t token, size_t offset)
{
    (void)offset;
    return put_sglang(parts, t, row, token, false);
}

static int add_sglang_text(msgl_strbuf *parts, const msgl_tokenizer *t,
                           const msgl_token_logprobs *row, int32_t token, size_t offset)
{
    (void)offset;
    return put_sglang(parts, t, row, token, true);
}

const msgl_logprobs_form msgl__logprobs_sglang = {
    .num_parts = 2, .before = {"[", "],["}, .behind = "]", .add = add_sglang};
const msgl_logprobs_form msgl__logprobs_sglang_text = {
    .num_parts = 2, .before = {"[", "],["}, .behind = "]", .add = add_sglang_text};

int msgl__logprobs_add(msgl_logprobs *l, const msgl_tokenizer *t, const msgl_token_logprobs *row,
                       int32_t token, size_t offset)
{
    int rc = 0;
    for (int i = 0; i < l->form->num_parts && rc == 0 && l->count > 0; i++) {
        rc = msgl__strbuf_addc(&l->parts[i], ',');
    }
    if (rc == 0) rc = l->form->add(l->parts, t, row, token, offset);
    if (rc == 0) l->count++;
    return rc;
}

int msgl__logprobs_append(msgl_logprobs *l, const msgl_logprobs *other)
{
    if (other->count == 0) return 0;
    int rc = 0;
    for (int i = 0; i < l->form->num_parts && rc == 0; i++) {
        const msgl_strbuf *part = &other->parts[i];
        if (l->count > 0) rc = msgl__strbuf_addc(&l->parts[i], ',');
        if (rc == 0) rc = msgl__strbuf_add(&l->parts[i], msgl__strbuf_str(part), part->len);
    }
    if (rc == 0) l->count += other->count;
    return rc;
}

size_t msgl__logprobs_bytes(const msgl_logprobs *l)
{
    size_t n = 0;
    for (int i = 0; i < MSGL_LOGPROBS_PARTS; i++) n += l->parts[i].cap;
    return n;
}

int msgl__logprobs_put_part(const msgl_logprobs *l, int part, msgl_strbuf *out)
{
    return msgl__strbuf_add(out, msgl__strbuf_str(&l->parts[part]), l->parts[part].len);
}

int msgl__logprobs_put(msgl_logprobs *l, msgl_strbuf *out)
{
    int rc = 0;
    for (int i = 0; i < l->form->num_parts && rc == 0; i++) {
        rc = msgl__strbuf_adds(out, l->form->before[i]);
        if (rc == 0) rc = msgl__strbuf_add(out, msgl__strbuf_str(&l->parts[i]), l->parts[i].len);
        msgl__strbuf_clear(&l->parts[i]);
    }
    if (rc == 0) rc = msgl__strbuf_adds(out, l->form->behind);
    l->count = 0;
    return rc;
}
