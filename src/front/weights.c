// SPDX-License-Identifier: Apache-2.0
//
// Weights that change while the server runs, as SGLang has them: POST /update_weights_from_disk,
// /update_weights_from_tensor and _from_distributed with the groups of these; their version;
// POST /pause_generation and /continue_generation (docs/decisions/065).
#include <inttypes.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "api/fields.h"
#include "api/json.h"
#include "api/tensors.h"
#include "core/mem.h"
#include "front/endpoints.h"
#include "front/front_impl.h"

static int keep_text(char **to, const char *text, msgl_api_error *e)
{
    if (text == NULL) return 0;
    *to = msgl__strdup(text);
    return *to != NULL ? 0 : msgl__api_oom(e);
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
    if (a->wait.code != 0) {
        int rc = msgl__strbuf_adds(out, "{\"status\":\"error\",\"message\":");
        if (rc == 0) rc = msgl__json_put_str(out, a->wait.text, strlen(a->wait.text));
        return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
    }
    return msgl__strbuf_addf(out, "{\"message\":\"Generation %s successfully.\",\"status\":\"ok\"}",
                             pause ? "paused" : "continued");
}

static int read_pause(const json_t *o, const msgl_http_parser *p, admin_call *a, msgl_api_error *e)
{
    (void)p;
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

static int read_continue(const json_t *o, const msgl_http_parser *p, admin_call *a,
                         msgl_api_error *e)
{
    (void)o, (void)p, (void)e;
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
    int rc = msgl__admin_put_success(a, "Succeeded to update model weights.", out);
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

static int read_disk(const json_t *o, const msgl_http_parser *p, admin_call *a, msgl_api_error *e)
{
    (void)p;
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

static int read_tensors(const json_t *o, const msgl_http_parser *p, admin_call *a,
                        msgl_api_error *e)
{
    (void)p;
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

// --- groups of NCCL ---

#define GROUP_NAME "weight_update_group" // SGLang's default
#define ROW_GROUP                                                                                  \
    {                                                                                              \
        "group_name", MSGL_FIELD_STRING, .max_bytes = MSGL_MAX_GROUP_NAME, .preset = GROUP_NAME,   \
                                         .help = "what the trainer calls the group, too"           \
    }
static const msgl_field_row join_rows[] = {
    {"master_address", MSGL_FIELD_STRING, .max_bytes = MSGL_MAX_GROUP_HOST, .required = true,
     .help = "where rank 0 of the group, the trainer's, has its store (`init_method` of "
             "torch.distributed: `tcp://ADDRESS:PORT`)"},
    {"master_port", MSGL_FIELD_INT, .min = 1, .max = 65535, .required = true,
     .help = "the store's port"},
    {"rank_offset", MSGL_FIELD_INT, .min = 1, .max = 65535, .preset = "1",
     .help = "rank in the group of this server's first GPU; those of `--tp-size` follow it"},
    {"world_size", MSGL_FIELD_INT, .min = 2, .max = 65536, .required = true,
     .help = "ranks of the group"},
    ROW_GROUP,
    {"backend", MSGL_FIELD_STRING, .preset = "nccl", .only = "`nccl`"},
    {0},
};
static const msgl_fields join_fields = {.read = join_rows};
static const msgl_fields *const join_objects[] = {&join_fields, NULL};
static const msgl_field_row leave_rows[] = {
    ROW_GROUP,
    {0},
};
static const msgl_fields leave_fields = {.read = leave_rows};
static const msgl_fields *const leave_objects[] = {&leave_fields, NULL};
static const msgl_field_row receive_rows[] = {
    {"names", MSGL_FIELD_STRINGS, .required = true,
     .help = "tensors of the checkpoint, in the order in which rank 0 broadcasts them"},
    {"dtypes", MSGL_FIELD_STRINGS, .required = true, .only = "`float32`, `float16` or `bfloat16`"},
    {"shapes", MSGL_FIELD_ARRAY, .required = true, .help = "an array of integers for each"},
    ROW_GROUP,
    {"load_format", MSGL_FIELD_STRING, .only = "null: one broadcast for each tensor"},
    ROW_ABORT,
    ROW_VERSION,
    ROW_FLUSH,
    ROW_UNUSED("torch_empty_cache"),
    {0},
};
static const msgl_fields receive_fields = {.read = receive_rows};
static const msgl_fields *const receive_objects[] = {&receive_fields, NULL};

static int put_group(const msgl_front *f, const admin_call *a, msgl_strbuf *out)
{
    (void)f;
    const int rc = msgl__admin_put_success(a,
                                           a->what.kind == MSGL_ADMIN_JOIN
                                               ? "Succeeded to initialize custom process group."
                                               : "Succeeded to destroy custom process group.",
                                           out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int read_group(const json_t *o, admin_call *a, msgl_api_error *e)
{
    const char *name = GROUP_NAME;
    const int rc = msgl__field_name(o, "group_name", MSGL_MAX_GROUP_NAME, &name, e);
    return rc < 0 ? rc : keep_text(&a->group, name, e);
}

static int read_join(const json_t *o, const msgl_http_parser *p, admin_call *a, msgl_api_error *e)
{
    const char *host = NULL, *backend = "nccl";
    int64_t port = 0, rank = 1, size = 0;
    (void)p;
    int rc = msgl__field_name(o, "master_address", MSGL_MAX_GROUP_HOST, &host, e);
    if (rc == 0) return msgl__field_missing(e, "master_address");
    if (rc > 0) rc = msgl__field_int_of(o, &join_fields, "master_port", &port, e);
    if (rc == 0) return msgl__field_missing(e, "master_port");
    if (rc > 0) rc = msgl__field_int_of(o, &join_fields, "world_size", &size, e);
    if (rc == 0) return msgl__field_missing(e, "world_size");
    if (rc > 0) rc = msgl__field_int_of(o, &join_fields, "rank_offset", &rank, e);
    if (rc >= 0) rc = msgl__field_str(o, "backend", &backend, e);
    if (rc >= 0) rc = read_group(o, a, e);
    if (rc < 0) return rc;
    if (strcmp(backend, "nccl") != 0) return msgl__field_bad(e, "backend", "must be nccl");
    a->what.kind = MSGL_ADMIN_JOIN;
    a->what.port = (int32_t)port;
    a->what.rank = (int32_t)rank;
    a->what.size = (int32_t)size;
    a->put = put_group;
    return keep_text(&a->host, host, e);
}

static int read_leave(const json_t *o, const msgl_http_parser *p, admin_call *a, msgl_api_error *e)
{
    (void)p;
    a->what.kind = MSGL_ADMIN_LEAVE;
    a->put = put_group;
    return read_group(o, a, e);
}

static int read_receive(const json_t *o, const msgl_http_parser *p, admin_call *a,
                        msgl_api_error *e)
{
    (void)p;
    if (msgl__field(o, "load_format") != NULL) {
        return msgl__field_bad(e, "load_format", "must be null: one broadcast for each tensor");
    }
    a->what.kind = MSGL_ADMIN_RECEIVE;
    int rc = read_update(o, a, e);
    if (rc == 0) rc = read_group(o, a, e);
    return rc == 0 ? msgl__tensors_parts(o, &a->data, e) : rc;
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
    int rc = msgl__admin_put_success(a, "Weight version updated", out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"new_version\":");
    if (rc == 0) rc = msgl__json_put_str(out, now, strlen(now));
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int read_version(const json_t *o, const msgl_http_parser *p, admin_call *a,
                        msgl_api_error *e)
{
    (void)p;
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

MSGL_ADMIN_TAKE(take_pause, MSGL_ADMIN_BODY, read_pause)
MSGL_ADMIN_TAKE(take_continue, MSGL_ADMIN_BODY, read_continue)
MSGL_ADMIN_TAKE(take_disk, MSGL_ADMIN_BODY, read_disk)
MSGL_ADMIN_TAKE(take_version, MSGL_ADMIN_BODY, read_version)

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

// The body is the file; what else there is stands in the query.
static int read_file(const json_t *o, const msgl_http_parser *p, admin_call *a, msgl_api_error *e)
{
    json_t *query = json_object();
    (void)o;
    int rc = query == NULL || query_member(p, "weight_version", false, query) != 0 ||
                     query_member(p, "abort_all_requests", true, query) != 0 ||
                     query_member(p, "flush_cache", true, query) != 0
                 ? msgl__api_oom(e)
                 : read_update(query, a, e);
    json_decref(query);
    if (rc < 0) return rc;
    if (p->body.len == 0) {
        return msgl__api_fail(e, 400, NULL, "invalid_value",
                              "The body is empty; it is a safetensors file.");
    }
    a->what.kind = MSGL_ADMIN_TENSORS;
    rc = msgl__strbuf_add(&a->data, msgl__strbuf_str(&p->body), p->body.len);
    return rc == 0 ? 0 : msgl__api_oom(e);
}

static void take_tensors(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                         msgl_http_parser *p)
{
    static const char raw[] = "application/octet-stream";
    const msgl_http_value *type = &p->content_type;
    const bool file = type->at != NULL && type->len >= sizeof raw - 1 &&
                      strncasecmp(type->at, raw, sizeof raw - 1) == 0;
    msgl__admin_take(f, ep, c, p, file ? 0 : SIZE_MAX, file ? read_file : read_tensors);
}

MSGL_ADMIN_TAKE(take_join, MSGL_ADMIN_BODY, read_join)
MSGL_ADMIN_TAKE(take_leave, MSGL_ADMIN_BODY, read_leave)
MSGL_ADMIN_TAKE(take_receive, SIZE_MAX, read_receive)

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

static const msgl_example join_examples[] = {
    {"A CPU is in no group of NCCL", MSGL_HTTP_POST,
     .body = "{\"master_address\": \"127.0.0.1\", \"master_port\": 29500, \"world_size\": 2}",
     .status = 400, .has = "success message"},
    {0},
};
const msgl_endpoint msgl__endpoint_init_weights_update_group = {
    .path = "/init_weights_update_group",
    .help =
        "GPUs join a group of torch.distributed, as SGLang does it, in which a trainer's rank 0 "
        "then broadcasts weights ([weights.md](weights.md)). For admins, as `/flush_cache`.",
    .examples = join_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .objects = join_objects,
    .take = take_join};

static const msgl_example leave_examples[] = {
    {"No group was joined", MSGL_HTTP_POST, .body = "{}", .status = 400, .has = "success message"},
    {0},
};
const msgl_endpoint msgl__endpoint_destroy_weights_update_group = {
    .path = "/destroy_weights_update_group",
    .help = "Leaves such a group. For admins, as `/flush_cache`.",
    .examples = leave_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .objects = leave_objects,
    .take = take_leave};

static const msgl_example receive_examples[] = {
    {"No group was joined", MSGL_HTTP_POST,
     .body = "{\"names\": [\"x\"], \"dtypes\": [\"bfloat16\"], \"shapes\": [[2, 3]]}",
     .status = 400, .has = "success message"},
    {0},
};
const msgl_endpoint msgl__endpoint_update_weights_from_distributed = {
    .path = "/update_weights_from_distributed",
    .help = "As `/update_weights_from_tensor`, of tensors that rank 0 of such a group broadcasts "
            "meanwhile, one behind the other. For admins, as `/flush_cache`.",
    .examples = receive_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .objects = receive_objects,
    .take = take_receive};

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
