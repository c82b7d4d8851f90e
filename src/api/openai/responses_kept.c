// SPDX-License-Identifier: Apache-2.0
#include "api/openai/responses_kept.h"

#include <string.h>
#include <time.h>

#include "api/endpoint.h"
#include "api/fields.h"
#include "api/json.h"
#include "api/openai/response_store.h"

// The item that a string as "input" stands for: a message of the user.
static json_t *item_of_text(const json_t *text)
{
    return json_pack("{s:s,s:s,s:[{s:s,s:O}]}", "type", "message", "role", "user", "content",
                     "type", "input_text", "text", text);
}

// Appends {"data":[...]} with JSON texts, behind each of which there is a NUL.
static int write_list(const msgl_strbuf *items, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"data\":[");
    for (size_t at = 0; at < items->len && rc == 0; at += strlen(items->data + at) + 1) {
        if (at > 0) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = msgl__strbuf_adds(out, items->data + at);
    }
    return rc == 0 ? msgl__strbuf_adds(out, "]}") : rc;
}

// Appends the elements of the array `name` of a stored object to *list.
static int add_stored(json_t *list, const msgl_strbuf *text, const char *name,
                      msgl_gen_request *out, msgl_api_error *e)
{
    msgl_err err;
    json_t *o = msgl__json_parse_object(msgl__strbuf_str(text), text->len, &out->room, &err);
    if (o == NULL) return msgl__json_fail(&err, e);
    const int bad = json_array_extend(list, json_object_get(o, name));
    json_decref(o);
    return bad == 0 ? 0 : msgl__api_oom(e);
}

static int add_earlier(json_t *list, const char *id, const msgl_api_config *cfg,
                       msgl_gen_request *out, msgl_api_error *e)
{
    msgl_strbuf items, asked, body;
    msgl__strbuf_init(&items, SIZE_MAX / 2);
    msgl__strbuf_init(&asked, SIZE_MAX / 2);
    msgl__strbuf_init(&body, SIZE_MAX / 2);
    int rc = cfg->responses == NULL ? MSGL_ENOENT
                                    : msgl__response_store_get(cfg->responses, cfg->client, id,
                                                               (int64_t)time(NULL), &items, &body);
    if (rc == 0) rc = write_list(&items, &asked);
    if (rc == MSGL_ENOENT) {
        rc = msgl__api_fail(e, 400, "previous_response_id", "previous_response_not_found",
                            "'previous_response_id' is '%.64s', which you have not here: it was "
                            "not stored, was deleted, or is gone with its time or for others' "
                            "room.",
                            id);
    } else if (rc != 0) {
        rc = msgl__api_oom(e);
    }
    if (rc == 0) rc = add_stored(list, &asked, "data", out, e);
    if (rc == 0) rc = add_stored(list, &body, "output", out, e);
    msgl__strbuf_free(&items);
    msgl__strbuf_free(&asked);
    msgl__strbuf_free(&body);
    return rc;
}

int msgl__responses_go_on(json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                          msgl_api_error *e)
{
    const char *id = NULL;
    const json_t *in = msgl__field(o, "input");
    int rc = msgl__field_str(o, "previous_response_id", &id, e);
    if (rc <= 0) return rc;
    if (!json_is_string(in) && !json_is_array(in)) return 0; // which the conversation refuses
    json_t *list = json_array();
    rc = list == NULL ? msgl__api_oom(e) : add_earlier(list, id, cfg, out, e);
    if (rc == 0 && (json_is_string(in) ? json_array_append_new(list, item_of_text(in))
                                       : json_array_extend(list, (json_t *)in)) != 0) {
        rc = msgl__api_oom(e);
    }
    if (rc == 0 && json_object_set(o, "input", list) != 0) rc = msgl__api_oom(e);
    json_decref(list);
    return rc;
}

static int keep_item(const json_t *item, msgl_strbuf *out)
{
    const int rc = msgl__json_put(out, item, JSON_COMPACT);
    return rc == 0 ? msgl__strbuf_addc(out, '\0') : rc;
}

int msgl__responses_keep(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                         msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "input");
    bool store = true;
    int rc = msgl__field_bool(o, "store", &store, e);
    if (rc < 0 || !store || cfg->responses == NULL || out->ep->put_job != NULL) {
        return rc < 0 ? rc : 0;
    }
    msgl__strbuf_init(&out->kept, SIZE_MAX / 2);
    rc = 0;
    if (json_is_string(in)) {
        json_t *item = item_of_text(in);
        rc = keep_item(item, &out->kept);
        json_decref(item);
    }
    for (size_t i = 0; i < json_array_size(in) && rc == 0; i++) {
        rc = keep_item(json_array_get(in, i), &out->kept);
    }
    if (rc != 0) return msgl__api_oom(e);
    if (!msgl__response_store_fits(cfg->responses, out->kept.len)) {
        msgl__strbuf_free(&out->kept);
        return 0;
    }
    if (out->room.claim == NULL) return 0;
    rc = msgl__claim_add(out->room.claim, MSGL_BUDGET_PROMPT, out->kept.cap);
    return rc == 0 ? 0 : msgl__api_fail_memory(e, rc);
}
