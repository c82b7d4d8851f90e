// SPDX-License-Identifier: Apache-2.0
//
// Answers to the calls of /v1/files and /v1/batches: one object, a list, an error.
#include <stdio.h>
#include <string.h>

#include "apps/batches/batches_impl.h"
#include "core/mem.h"
#include "utils/json.h"
#include "utils/json_write.h"

enum {
    FILES_MAX = 10000,  // objects of a list, as OpenAI has it
    BATCHES_MAX = 100,  // the same
    BATCHES_USUAL = 20, // without `limit`
    LATER_BYTES = 4096, // by which a running batch's object may be longer than the stored one
};

void msgl__batch_reply_error(msgl_batch_call *c, int status, const char *param, const char *text)
{
    msgl_api_error e;
    (void)msgl__api_fail(&e, status, param, NULL, "%s", text);
    c->status = status;
    msgl__strbuf_clear(&c->answer);
    (void)msgl__api_error_put(&e, &c->answer);
}

json_t *msgl__batch_shown(json_t *o)
{
    json_object_del(o, "_output");
    json_object_del(o, "_errors");
    return o;
}

void msgl__batch_reply(msgl_batch_call *c, json_t *o)
{
    char *text = o == NULL ? NULL : msgl__json_text(o, JSON_COMPACT);
    if (text == NULL || msgl__strbuf_adds(&c->answer, text) != 0) {
        msgl__batch_reply_error(c, 500, NULL, "Out of memory.");
    }
    msgl__free(text);
    json_decref(o);
}

bool msgl__batch_claim_answer(msgl_batch_call *c, size_t bytes)
{
    const int rc = msgl__claim_add(&c->claim, MSGL_BUDGET_ANSWER, bytes);
    if (rc == 0) return true;
    msgl_api_error e;
    (void)msgl__api_fail_memory(&e, rc);
    msgl__batch_reply_error(c, e.status, NULL, e.message);
    return false;
}

int msgl__batch_list_max(msgl_batch_object what)
{
    return what == MSGL_BATCH_FILES ? FILES_MAX : BATCHES_MAX;
}

// Appends one object of a list; an object that is gone or damaged is left out.
static int put_object(msgl_batches *b, const char *id, bool first, msgl_strbuf *out)
{
    json_t *o = msgl__store_get(&b->store, id);
    if (o == NULL) return 0;
    // The counts of the batch that is running are stored when it ends: until then it has them.
    if (b->running && strcmp(id, b->run.id) == 0) json_object_update(o, b->run.object);
    char *text = msgl__json_text(msgl__batch_shown(o), JSON_COMPACT);
    int rc = text == NULL || (!first && msgl__strbuf_addc(out, ',') != 0) ? MSGL_ENOMEM : 0;
    if (rc == 0) rc = msgl__strbuf_adds(out, text);
    msgl__free(text);
    json_decref(o);
    return rc;
}

// Objects are read and written one by one, so that only the answer's text of them is in memory.
static int put_page(msgl_batches *b, const msgl_store_page *page, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"object\":\"list\",\"data\":[");
    const size_t begin = out->len;
    const char *first = NULL, *last = NULL;
    for (size_t i = 0; i < page->len && rc == 0; i++) {
        const size_t before = out->len;
        rc = put_object(b, page->ids[i], before == begin, out);
        if (out->len == before) continue;
        if (first == NULL) first = page->ids[i];
        last = page->ids[i];
    }
    const char *quote = first == NULL ? "" : "\"";
    if (rc != 0) return rc;
    return msgl__strbuf_addf(out, "],\"first_id\":%s%s%s,\"last_id\":%s%s%s,\"has_more\":%s}",
                             quote, first == NULL ? "null" : first, quote, quote,
                             last == NULL ? "null" : last, quote, page->more ? "true" : "false");
}

void msgl__batch_reply_list(msgl_batches *b, msgl_batch_call *c, const char *prefix)
{
    msgl_store_page page;
    const int usual = c->what == MSGL_BATCH_FILES ? FILES_MAX : BATCHES_USUAL;
    const int rc = msgl__store_list(&b->store, prefix, c->after[0] == '\0' ? NULL : c->after,
                                    (size_t)(c->limit > 0 ? c->limit : usual), &page);
    if (rc != 0) {
        msgl__batch_reply_error(c, 500, NULL, "The list cannot be read.");
    } else if (msgl__batch_claim_answer(c, page.bytes + page.len + LATER_BYTES) &&
               put_page(b, &page, &c->answer) != 0) {
        msgl__batch_reply_error(c, 500, NULL, "Out of memory.");
    }
    msgl__free(page.ids);
}

void msgl__batch_reply_no_such(msgl_batch_call *c)
{
    char text[192];
    (void)snprintf(text, sizeof text, "There is no %s '%s'.",
                   c->what == MSGL_BATCH_FILES ? "file" : "batch", c->rest);
    msgl__batch_reply_error(c, 404, "id", text);
}
