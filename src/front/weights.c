// SPDX-License-Identifier: Apache-2.0
//
// Weights that change while the server runs, as SGLang has them: POST /update_weights_from_disk,
// /update_weights_from_tensor and, where it can only be refused, _from_distributed; their version;
// POST /pause_generation and /continue_generation (docs/decisions/065).
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/fields.h"
#include "api/json.h"
#include "api/tensors.h"
#include "core/mem.h"
#include "front/endpoints.h"
#include "front/front_impl.h"

// The body as an object (an empty one is {}), or NULL with *e. root: to give back.
static json_t *read_body(msgl_front *f, const msgl_endpoint *ep, const msgl_strbuf *body,
                         msgl_api_error *e)
{
    msgl_json_room room = {0};
    msgl_err err = {0};
    const bool none = body->len == 0;
    json_t *o = msgl__json_parse_object(none ? "{}" : msgl__strbuf_str(body), none ? 2 : body->len,
                                        &room, &err);
    if (o == NULL) {
        (void)msgl__json_fail(&err, e);
        return NULL;
    }
    if (msgl__check_fields(o, ep->objects[0], &f->api, f->api.unknown_fields, NULL, e) == 0) {
        return o;
    }
    json_decref(o);
    return NULL;
}

static int keep_text(char **to, const char *text, msgl_api_error *e)
{
    if (text == NULL) return 0;
    *to = msgl__strdup(text);
    return *to != NULL ? 0 : msgl__api_oom(e);
}

// {"success":...,"message":...} as SGLang has it, up to what is behind.
static int put_success(const admin_call *a, const char *done, msgl_strbuf *out)
{
    const char *text = a->code == 0 ? done : a->text;
    int rc =
        msgl__strbuf_addf(out, "{\"success\":%s,\"message\":", a->code == 0 ? "true" : "false");
    return rc == 0 ? msgl__json_put_str(out, text, strlen(text)) : rc;
}

// --- pausing ---

static const msgl_field_row pause_rows[] = {
    {"mode", MSGL_FIELD_STRING, .preset = "abort", .only = "`abort`, `retract` or `in_place`"},
    {0},
};
static const msgl_fields pause_fields = {.read = pause_rows};
static const msgl_fields *const pause_objects[] = {&pause_fields, NULL};
static const msgl_field_row continue_rows[] = {
    {"torch_empty_cache", MSGL_FIELD_BOOL, .help = "changes nothing: there is no PyTorch here"},
    {0},
};
static const msgl_fields continue_fields = {.read = continue_rows};
static const msgl_fields *const continue_objects[] = {&continue_fields, NULL};

static int put_paused(const msgl_front *f, const admin_call *a, msgl_strbuf *out)
{
    const bool pause = a->what.kind == MSGL_ADMIN_PAUSE;
    (void)f;
    if (a->code != 0) {
        int rc = msgl__strbuf_adds(out, "{\"status\":\"error\",\"message\":");
        if (rc == 0) rc = msgl__json_put_str(out, a->text, strlen(a->text));
        return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
    }
    return msgl__strbuf_addf(out, "{\"message\":\"Generation %s successfully.\",\"status\":\"ok\"}",
                             pause ? "paused" : "continued");
}

static int read_pause(const json_t *o, admin_call *a, msgl_api_error *e)
{
    static const char *const modes[] = {"abort", "retract", "in_place"};
    const char *mode = modes[0];
    const int rc = msgl__field_str(o, "mode", &mode, e);
    if (rc < 0) return rc;
    a->what.kind = MSGL_ADMIN_PAUSE;
    a->put = put_paused;
    for (int i = 0; i < 3; i++) {
        if (strcmp(mode, modes[i]) != 0) continue;
        a->what.mode = (msgl_pause_mode)i;
        a->abort = i == MSGL_PAUSE_ABORT;
        return 0;
    }
    return msgl__field_bad(e, "mode", "must be abort, retract or in_place");
}

static int read_continue(const json_t *o, admin_call *a, msgl_api_error *e)
{
    (void)o, (void)e;
    a->what.kind = MSGL_ADMIN_CONTINUE;
    a->put = put_paused;
    return 0;
}

// --- updates ---

#define ROW_ABORT                                                                                  \
    {                                                                                              \
        "abort_all_requests", MSGL_FIELD_BOOL, .preset = "false",                                  \
                                               .help = "requests end first, with what they have; " \
                                                       "else those that have begun end by "        \
                                                       "themselves, unless they are paused"        \
    }
#define ROW_VERSION                                                                                \
    {                                                                                              \
        "weight_version", MSGL_FIELD_STRING, .max_bytes = MSGL_MAX_WEIGHT_VERSION,                 \
                                             .preset = "as it was",                                \
                                             .help = "the weights' name, which answers of "        \
                                                     "`/generate` have"                            \
    }
#define ROW_FLUSH                                                                                  \
    {                                                                                              \
        "flush_cache", MSGL_FIELD_BOOL, .preset = "true",                                          \
                                        .help = "no request shares what older weights computed"    \
    }
#define ROW_UNUSED(name)                                                                           \
    {                                                                                              \
        name, MSGL_FIELD_ANY, .help = "changes nothing here"                                       \
    }

static const msgl_field_row disk_rows[] = {
    {"model_path", MSGL_FIELD_STRING, .max_bytes = MSGL_MAX_ADMIN_PATH - 1, .required = true,
     .help = "a folder or file with the weights of the same model"},
    {"load_format", MSGL_FIELD_STRING, .preset = "auto",
     .only = "`auto`, `safetensors` or `gguf`: the files say which"},
    ROW_ABORT,
    ROW_VERSION,
    ROW_FLUSH,
    ROW_UNUSED("is_async"),
    ROW_UNUSED("torch_empty_cache"),
    ROW_UNUSED("recapture_cuda_graph"),
    ROW_UNUSED("token_step"),
    {0},
};
static const msgl_refused_field disk_refused[] = {
    {"keep_pause", MSGL_NEUTRAL_FALSE}, {"manifest", MSGL_NEUTRAL_NULL}, {NULL, MSGL_NEUTRAL_NULL}};
static const msgl_fields disk_fields = {.read = disk_rows, .refused = disk_refused};
static const msgl_fields *const disk_objects[] = {&disk_fields, NULL};

static int put_updated(const msgl_front *f, const admin_call *a, msgl_strbuf *out)
{
    (void)f;
    int rc = put_success(a, "Succeeded to update model weights.", out);
    if (rc == 0 && a->what.kind == MSGL_ADMIN_DISK) {
        rc = msgl__strbuf_addf(out, ",\"num_paused_requests\":%" PRId64, a->num_requests);
    }
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

// What all updates have.
static int read_update(const json_t *o, admin_call *a, msgl_api_error *e)
{
    const char *version = NULL;
    a->put = put_updated;
    a->waits = true;
    a->what.flush = true;
    int rc = msgl__field_bool(o, "abort_all_requests", &a->abort, e);
    if (rc >= 0) rc = msgl__field_bool(o, "flush_cache", &a->what.flush, e);
    if (rc >= 0) rc = msgl__field_name(o, "weight_version", MSGL_MAX_WEIGHT_VERSION, &version, e);
    return rc < 0 ? rc : keep_text(&a->version, version, e);
}

static int read_disk(const json_t *o, admin_call *a, msgl_api_error *e)
{
    const char *path = NULL, *format = "auto";
    int rc = read_update(o, a, e);
    if (rc == 0) rc = msgl__field_name(o, "model_path", MSGL_MAX_ADMIN_PATH - 1, &path, e);
    if (rc == 0) {
        return msgl__api_fail(e, 400, "model_path", "missing_required_parameter",
                              "'model_path' is missing: the folder or file of the new weights.");
    }
    if (rc > 0) rc = msgl__field_str(o, "load_format", &format, e);
    if (rc < 0) return rc;
    if (strcmp(format, "auto") != 0 && strcmp(format, "safetensors") != 0 &&
        strcmp(format, "gguf") != 0) {
        return msgl__field_bad(e, "load_format", "must be auto, safetensors or gguf");
    }
    a->what.kind = MSGL_ADMIN_DISK;
    return keep_text(&a->path, path, e);
}

static const msgl_field_row tensor_rows[] = {
    {"named_tensors", MSGL_FIELD_ARRAY,
     .help = "tensors of the checkpoint: objects with `name`, `dtype` (`float32`, `float16`, "
             "`bfloat16`), `shape` and `data`, little-endian bytes in base64; this or "
             "`safetensors` is given"},
    {"safetensors", MSGL_FIELD_STRING,
     .help = "a safetensors file of them in base64. A body of the type "
             "`application/octet-stream` is such a file by itself; `weight_version`, "
             "`abort_all_requests` and `flush_cache` stand in the query then"},
    {"serialized_named_tensors", MSGL_FIELD_ANY,
     .help = "refused: pickles, which are programs; the other two fields do"},
    {"load_format", MSGL_FIELD_STRING, .only = "null"},
    ROW_ABORT,
    ROW_VERSION,
    ROW_FLUSH,
    ROW_UNUSED("disable_draft_model"),
    ROW_UNUSED("torch_empty_cache"),
    {0},
};
static const msgl_fields tensor_fields = {.read = tensor_rows};
static const msgl_fields *const tensor_objects[] = {&tensor_fields, NULL};

static int read_tensors(const json_t *o, admin_call *a, msgl_api_error *e)
{
    if (msgl__field(o, "serialized_named_tensors") != NULL) {
        return msgl__api_fail(
            e, 400, "serialized_named_tensors", "unsupported_parameter",
            "'serialized_named_tensors' are pickles, which are programs and not run here; "
            "'named_tensors' (name, dtype, shape, data in base64) or 'safetensors' (a file in "
            "base64, or the body itself as application/octet-stream) do.");
    }
    if (msgl__field(o, "load_format") != NULL) {
        return msgl__api_fail(e, 400, "load_format", "unsupported_parameter",
                              "'load_format' must be null: tensors have the checkpoint's names.");
    }
    a->what.kind = MSGL_ADMIN_TENSORS;
    const int rc = read_update(o, a, e);
    return rc == 0 ? msgl__tensors_file(o, &a->data, e) : rc;
}

// --- the version ---

static const msgl_field_row version_rows[] = {
    {"new_version", MSGL_FIELD_STRING, .max_bytes = MSGL_MAX_WEIGHT_VERSION, .required = true,
     .help = "the weights' name from now on"},
    {"abort_all_requests", MSGL_FIELD_BOOL, .preset = "true", .help = "requests end first"},
    {0},
};
static const msgl_fields version_fields = {.read = version_rows};
static const msgl_fields *const version_objects[] = {&version_fields, NULL};

static int put_renamed(const msgl_front *f, const admin_call *a, msgl_strbuf *out)
{
    const char *now = msgl__admin_version(f);
    int rc = put_success(a, "Weight version updated", out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"new_version\":");
    if (rc == 0) rc = msgl__json_put_str(out, now, strlen(now));
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int read_version(const json_t *o, admin_call *a, msgl_api_error *e)
{
    const char *version = NULL;
    a->abort = true;
    a->put = put_renamed;
    a->what.kind = MSGL_ADMIN_VERSION;
    int rc = msgl__field_bool(o, "abort_all_requests", &a->abort, e);
    if (rc >= 0) rc = msgl__field_name(o, "new_version", MSGL_MAX_WEIGHT_VERSION, &version, e);
    if (rc == 0) {
        return msgl__api_fail(e, 400, "new_version", "missing_required_parameter",
                              "'new_version' is missing: the name of the weights.");
    }
    return rc < 0 ? rc : keep_text(&a->version, version, e);
}

static int put_version(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    const char *now = msgl__admin_version(f);
    (void)rest, (void)status;
    int rc = msgl__strbuf_adds(out, "{\"weight_version\":");
    if (rc == 0) rc = msgl__json_put_str(out, now, strlen(now));
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

// --- from the request to the call ---

typedef int (*read_fn)(const json_t *o, admin_call *a, msgl_api_error *e);

static void begin(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c, const json_t *o,
                  read_fn read)
{
    msgl_api_error e;
    admin_call *a = msgl__admin_new(f, ep);
    const int rc = a == NULL ? msgl__api_oom(&e) : read(o, a, &e);
    if (rc == 0) {
        msgl__admin_begin(f, a, c);
        return;
    }
    msgl__admin_free(a);
    msgl__front_reply_error(f, ep, c, &e);
}

static void take_json(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                      msgl_http_parser *p, read_fn read)
{
    msgl_api_error e;
    json_t *o = read_body(f, ep, &p->body, &e);
    if (o == NULL) {
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    begin(f, ep, c, o, read);
    json_decref(o);
}

static void take_pause(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                       msgl_http_parser *p)
{
    take_json(f, ep, c, p, read_pause);
}

static void take_continue(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                          msgl_http_parser *p)
{
    take_json(f, ep, c, p, read_continue);
}

static void take_disk(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                      msgl_http_parser *p)
{
    take_json(f, ep, c, p, read_disk);
}

static void take_version(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                         msgl_http_parser *p)
{
    take_json(f, ep, c, p, read_version);
}

// A parameter of the query as a member of o: true, false, or a text as it stands there.
static int query_member(const msgl_http_parser *p, const char *name, bool flag, json_t *o)
{
    msgl_http_value v;
    if (!msgl__http_query(p, name, &v)) return 0;
    const bool yes = v.len == 4 && strncasecmp(v.at, "true", 4) == 0;
    const bool no = v.len == 5 && strncasecmp(v.at, "false", 5) == 0;
    json_t *value = flag && (yes || no) ? json_boolean(yes) : json_stringn(v.at, v.len);
    return json_object_set_new(o, name, value);
}

// The body is the file.
static int read_file(const json_t *o, admin_call *a, msgl_api_error *e)
{
    a->what.kind = MSGL_ADMIN_TENSORS;
    return read_update(o, a, e);
}

static void take_file(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                      msgl_http_parser *p)
{
    msgl_api_error e;
    json_t *o = json_object();
    admin_call *a = msgl__admin_new(f, ep);
    int rc = o == NULL || a == NULL || query_member(p, "weight_version", false, o) != 0 ||
                     query_member(p, "abort_all_requests", true, o) != 0 ||
                     query_member(p, "flush_cache", true, o) != 0
                 ? msgl__api_oom(&e)
                 : read_file(o, a, &e);
    json_decref(o);
    if (rc == 0 && p->body.len == 0) {
        rc = msgl__api_fail(&e, 400, NULL, "invalid_value",
                            "The body is empty; it is a "
                            "safetensors file.");
    }
    if (rc == 0)
        rc = msgl__strbuf_add(&a->data, msgl__strbuf_str(&p->body), p->body.len) == 0
                 ? 0
                 : msgl__api_oom(&e);
    if (rc == 0) {
        msgl__admin_begin(f, a, c);
        return;
    }
    msgl__admin_free(a);
    msgl__front_reply_error(f, ep, c, &e);
}

static void take_tensors(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                         msgl_http_parser *p)
{
    static const char raw[] = "application/octet-stream";
    const msgl_http_value *type = &p->content_type;
    const bool file = type->at != NULL && type->len >= sizeof raw - 1 &&
                      strncasecmp(type->at, raw, sizeof raw - 1) == 0;
    if (file) {
        take_file(f, ep, c, p);
    } else {
        take_json(f, ep, c, p, read_tensors);
    }
}

// Weights that come over NCCL.
static void take_distributed(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                             msgl_http_parser *p)
{
    msgl_api_error e;
    (void)p;
    (void)msgl__api_fail(&e, 501, NULL, NULL,
                         "'%s' needs a group of NCCL, which this server does not join; "
                         "/update_weights_from_tensor and /update_weights_from_disk take the same "
                         "weights.",
                         ep->path);
    msgl__front_reply_error(f, ep, c, &e);
}

// --- endpoints ---

static const msgl_example pause_examples[] = {
    {"Steps stop; requests stay where they are", MSGL_HTTP_POST, .body = "{\"mode\": \"in_place\"}",
     .has = "message status"},
    {0},
};
const msgl_endpoint msgl__endpoint_pause_generation = {
    .path = "/pause_generation",
    .help =
        "Stops the engines between two steps, as SGLang does. Requests that have begun end with "
        "what they have (`abort`), are computed anew from their tokens later (`retract`), or go "
        "on later where they stand (`in_place`); new ones wait. For admins, as `/flush_cache`.",
    .examples = pause_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .objects = pause_objects,
    .take = take_pause};

static const msgl_example continue_examples[] = {
    {"They go on", MSGL_HTTP_POST, .body = "{}", .has = "message status"},
    {0},
};
const msgl_endpoint msgl__endpoint_continue_generation = {
    .path = "/continue_generation",
    .help = "What `/pause_generation` has stopped goes on.",
    .examples = continue_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .objects = continue_objects,
    .take = take_continue};

static const msgl_example disk_examples[] = {
    {"A folder that is not there: what runs stays as it is", MSGL_HTTP_POST,
     .body = "{\"model_path\": \"/no/such/folder\"}", .status = 400,
     .has = "success message num_paused_requests"},
    {0},
};
const msgl_endpoint msgl__endpoint_update_weights_from_disk = {
    .path = "/update_weights_from_disk",
    .help = "The weights become those of another checkpoint of the same model, as SGLang does it; "
            "`success` says whether, with 400 where not, and `num_paused_requests` how many "
            "requests were paused meanwhile. One that fails leaves the weights as they were where "
            "memory has room for both, else requests are answered 503 until one succeeds "
            "([weights.md](weights.md)). For admins, as `/flush_cache`.",
    .examples = disk_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .objects = disk_objects,
    .take = take_disk};

static const msgl_example tensor_examples[] = {
    {"A tensor that the model has not", MSGL_HTTP_POST,
     .body = "{\"named_tensors\": [{\"name\": \"x\", \"dtype\": \"float32\", \"shape\": [1], "
             "\"data\": \"AACAPw==\"}]}",
     .status = 400, .has = "success message"},
    {0},
};
const msgl_endpoint msgl__endpoint_update_weights_from_tensor = {
    .path = "/update_weights_from_tensor",
    .help = "Some or all tensors get other values, under the names that the checkpoint has them "
            "by. All of them are checked before the first is written ([weights.md](weights.md)). "
            "For admins, as `/flush_cache`.",
    .examples = tensor_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .objects = tensor_objects,
    .take = take_tensors};

static const msgl_example no_group_examples[] = {
    {"Refused", MSGL_HTTP_POST, .body = "{}", .status = 501, .has = "error"},
    {0},
};
#define DISTRIBUTED(symbol, at)                                                                    \
    const msgl_endpoint symbol = {.path = at,                                                      \
                                  .help = "501: this server joins no group of NCCL; "              \
                                          "`/update_weights_from_tensor` and "                     \
                                          "`/update_weights_from_disk` take the same weights.",    \
                                  .examples = no_group_examples,                                   \
                                  .optional = true,                                                \
                                  .admin = true,                                                   \
                                  .method = MSGL_HTTP_POST,                                        \
                                  .take = take_distributed}
DISTRIBUTED(msgl__endpoint_update_weights_from_distributed, "/update_weights_from_distributed");
DISTRIBUTED(msgl__endpoint_init_weights_update_group, "/init_weights_update_group");
DISTRIBUTED(msgl__endpoint_destroy_weights_update_group, "/destroy_weights_update_group");
#undef DISTRIBUTED

static const msgl_example rename_examples[] = {
    {"A name for the weights", MSGL_HTTP_POST, .body = "{\"new_version\": \"step-0\"}",
     .has = "success message new_version"},
    {0},
};
const msgl_endpoint msgl__endpoint_update_weight_version = {
    .path = "/update_weight_version",
    .help = "The weights get another name, which answers of `/generate` have in `meta_info`. For "
            "admins, as `/flush_cache`.",
    .examples = rename_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .objects = version_objects,
    .take = take_version};

static const msgl_example version_examples[] = {
    {"The name", MSGL_HTTP_GET, .has = "weight_version"},
    {0},
};
const msgl_endpoint msgl__endpoint_get_weight_version = {
    .path = "/get_weight_version",
    .help = "The name of the weights that are served: `default` until an update gives them one.",
    .examples = version_examples,
    .method = MSGL_HTTP_GET,
    .put_now = put_version};
const msgl_endpoint msgl__endpoint_weight_version = {.path = "/weight_version",
                                                     .help = "The same by SGLang's newer name.",
                                                     .examples = version_examples,
                                                     .method = MSGL_HTTP_GET,
                                                     .put_now = put_version};
