// SPDX-License-Identifier: Apache-2.0
//
// Memory that is given back while the server runs: SGLang's POST /release_memory_occupation and
// /resume_memory_occupation, vLLM's POST /sleep and /wake_up and GET /is_sleeping
// (docs/decisions/065).
#include <string.h>

#include "api/fields.h"
#include "front/endpoints.h"
#include "front/front_impl.h"

static const msgl_field_row rows[] = {
    {"tags", MSGL_FIELD_STRINGS, .preset = "both", .only = "`weights` and `kv_cache`"},
    {0},
};
static const msgl_fields fields = {.read = rows};
static const msgl_fields *const objects[] = {&fields, NULL};

// The bit of a tag; 0: there is none.
static int32_t tag_of(const char *name, size_t len)
{
    if (len == 7 && memcmp(name, "weights", 7) == 0) return MSGL_MEMORY_WEIGHTS;
    if (len == 8 && memcmp(name, "kv_cache", 8) == 0) return MSGL_MEMORY_CACHE;
    return 0;
}

static int bad_tags(msgl_api_error *e)
{
    return msgl__field_bad(e, "tags", "must be weights and kv_cache, or one of them");
}

// "tags" of a body; all of them where there are none.
static int body_tags(const json_t *o, int32_t *tags, msgl_api_error *e)
{
    const json_t *list = msgl__field(o, "tags"), *tag;
    size_t i;
    *tags = list == NULL ? MSGL_MEMORY_ALL : 0;
    if (list != NULL && json_array_size(list) == 0) return bad_tags(e);
    json_array_foreach(list, i, tag)
    {
        const int32_t bit =
            json_is_string(tag) ? tag_of(json_string_value(tag), json_string_length(tag)) : 0;
        if (bit == 0) return bad_tags(e);
        *tags |= bit;
    }
    return 0;
}

// tags= of the query, several of them or one with commas; none: all.
static int query_tags(const msgl_http_parser *p, int32_t *tags, msgl_api_error *e)
{
    static const char name[] = "tags=";
    const char *at = p->query.at, *end = at == NULL ? NULL : at + p->query.len;
    *tags = 0;
    while (at < end) {
        const char *to = memchr(at, '&', (size_t)(end - at));
        if (to == NULL) to = end;
        if ((size_t)(to - at) > sizeof name - 1 && memcmp(at, name, sizeof name - 1) == 0) {
            for (at += sizeof name - 1; at < to; at++) {
                const char *comma = memchr(at, ',', (size_t)(to - at));
                if (comma == NULL) comma = to;
                const int32_t bit = tag_of(at, (size_t)(comma - at));
                if (bit == 0) return bad_tags(e);
                *tags |= bit;
                at = comma;
            }
        }
        at = to + 1;
    }
    if (*tags == 0) *tags = MSGL_MEMORY_ALL;
    return 0;
}

static int put(const msgl_front *f, const admin_call *a, msgl_strbuf *out)
{
    (void)f;
    const int rc = msgl__admin_put_success(a, "Done.", out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static void is_release(admin_call *a, bool discard)
{
    a->what.kind = MSGL_ADMIN_RELEASE;
    a->what.discard = discard;
    a->waits = true;
    a->put = put;
}

static void is_resume(admin_call *a)
{
    a->what.kind = MSGL_ADMIN_RESUME;
    a->put = put;
}

static int read_release(const json_t *o, const msgl_http_parser *p, admin_call *a,
                        msgl_api_error *e)
{
    (void)p;
    is_release(a, false);
    return body_tags(o, &a->what.tags, e);
}

static int read_resume(const json_t *o, const msgl_http_parser *p, admin_call *a, msgl_api_error *e)
{
    (void)p;
    is_resume(a);
    return body_tags(o, &a->what.tags, e);
}

static int read_sleep(const json_t *o, const msgl_http_parser *p, admin_call *a, msgl_api_error *e)
{
    msgl_http_value v;
    const bool given = msgl__http_query(p, "level", &v);
    (void)o;
    if (given && (v.len != 1 || (v.at[0] != '1' && v.at[0] != '2'))) {
        return msgl__api_fail(e, 400, "level", "invalid_value",
                              "'level' is '%.*s'; allowed: 1 (weights come back by themselves) and "
                              "2 (they are discarded).",
                              (int)(v.len < 40 ? v.len : 40), v.at);
    }
    is_release(a, given && v.at[0] == '2');
    a->what.tags = MSGL_MEMORY_ALL;
    return 0;
}

static int read_wake(const json_t *o, const msgl_http_parser *p, admin_call *a, msgl_api_error *e)
{
    (void)o;
    is_resume(a);
    return query_tags(p, &a->what.tags, e);
}

MSGL_ADMIN_TAKE(take_release, MSGL_ADMIN_BODY, read_release)
MSGL_ADMIN_TAKE(take_resume, MSGL_ADMIN_BODY, read_resume)
MSGL_ADMIN_TAKE(take_sleep, 0, read_sleep)
MSGL_ADMIN_TAKE(take_wake, 0, read_wake)

static int put_sleeping(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    bool sleeps = false;
    (void)rest, (void)status;
    for (int i = 0; i < f->cfg.num_replicas; i++) sleeps |= f->replicas[i].admin.released != 0;
    return msgl__strbuf_addf(out, "{\"is_sleeping\":%s}", sleeps ? "true" : "false");
}

// --- endpoints ---

static const msgl_example release_examples[] = {
    {"The cache's memory", MSGL_HTTP_POST, .body = "{\"tags\": [\"kv_cache\"]}",
     .has = "success message"},
    {0},
};
const msgl_endpoint msgl__endpoint_release_memory_occupation = {
    .path = "/release_memory_occupation",
    .help = "Memory of the weights, of the cache, or of both goes back to the system, as SGLang "
            "does it; until it is taken again requests are answered 503 "
            "([weights.md](weights.md)). Requests that have begun end first. For admins, as "
            "`/flush_cache`.",
    .examples = release_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .objects = objects,
    .take = take_release};

static const msgl_example resume_examples[] = {
    {"All that was given back", MSGL_HTTP_POST, .body = "{}", .has = "success message"},
    {0},
};
const msgl_endpoint msgl__endpoint_resume_memory_occupation = {
    .path = "/resume_memory_occupation",
    .help = "Memory that was given back is taken again, and the weights are there as before, "
            "unless they were discarded.",
    .examples = resume_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .objects = objects,
    .take = take_resume};

static const msgl_example sleep_examples[] = {
    {"All memory, for now", MSGL_HTTP_POST, .has = "success message"},
    {0},
};
const msgl_endpoint msgl__endpoint_sleep = {
    .path = "/sleep",
    .help = "The same by vLLM's name. `?level=1` (the default): the weights come back by "
            "themselves; `?level=2`: they are discarded, and an update has to bring new ones.",
    .examples = sleep_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .take = take_sleep};

static const msgl_example wake_examples[] = {
    {"All that was given back", MSGL_HTTP_POST, .has = "success message"},
    {0},
};
const msgl_endpoint msgl__endpoint_wake_up = {
    .path = "/wake_up",
    .help = "As `/resume_memory_occupation`, by vLLM's name: `?tags=weights`, `?tags=kv_cache`, "
            "or both where there are none.",
    .examples = wake_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .take = take_wake};

static const msgl_example sleeping_examples[] = {
    {"Whether it does", MSGL_HTTP_GET, .has = "is_sleeping"},
    {0},
};
const msgl_endpoint msgl__endpoint_is_sleeping = {
    .path = "/is_sleeping",
    .help = "Whether memory is given back now, as vLLM has it.",
    .examples = sleeping_examples,
    .method = MSGL_HTTP_GET,
    .put_now = put_sleeping};
