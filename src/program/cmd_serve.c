// SPDX-License-Identifier: Apache-2.0
//
// `minisgl serve`: from arguments to the launcher's config, and what the engine process does.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common.h"
#include "core/err.h"
#include "core/settings.h"
#include "llm/llm.h"
#include "models/arch.h"
#include "models/embeds.h"
#include "models/labels.h"
#include "models/prompts.h"
#include "program/endpoints.h"
#include "scheduler/scheduler.h"
#include "launch/confine.h"
#include "launch/launch.h"
#include "utils/json_write.h"
#include "utils/utf8.h"

struct serve {
    const msgl_options *options;
    const char *model_name, *uds;
    const msgl_lora_path *loras; // [num_loras]
    int num_loras;
    bool https;
    msgl_log log;
};

// Logs a line of an engine's start. It must not wait for whoever reads the log, as the engine may
// be one that replaces another while clients wait.
static void log_line(void *ctx, const char *line)
{
    const struct serve *s = ctx;
    if (s->log.json) {
        msgl__log(&s->log, MSGL_LOG_INFO, "%s", line);
    } else {
        msgl__cli_bar_clear();
        msgl__log_plain(&s->log, line);
    }
}

static int tell_fatal(msgl_channel *ch, const msgl_err *err)
{
    const msgl_msg m = {.type = MSGL_MSG_FATAL, .u.fatal = err->text};
    msgl__channel_send(ch, &m);
    return MSGL_EXIT_FAILED;
}

// Reads every adapter of --lora-paths once, so that what is wrong with one is known at the start.
static int check_loras(const struct serve *s, msgl_engine *engine, msgl_err *err)
{
    const msgl_runner *r = msgl__engine_runner(engine);
    int rc = 0;
    for (int i = 0; i < s->num_loras && rc == 0; i++) {
        rc = msgl__runner_load_adapter(r, 0, s->loras[i].path, err);
        if (rc != 0) rc = msgl__err_prefix(err, rc, "--lora-paths %.60s", s->loras[i].name);
    }
    if (rc == 0 && s->num_loras > 0) rc = msgl__runner_load_adapter(r, 0, NULL, err);
    return rc;
}

// Runs in the engine's process until the front is gone or says EXIT.
static int engine_main(msgl_channel *ch, msgl_heartbeat *heartbeat, int replica, void *ctx)
{
    const struct serve *s = ctx;
    msgl_options options = *s->options;
    options.dp_rank = replica;
    if (replica > 0) { // the first one's plan and progress are everybody's
        options.log = NULL;
        options.progress = NULL;
    }
    msgl_err err;
    msgl_engine *engine = NULL;
    int rc = msgl__engine_create(&options, heartbeat, &engine, &err);
    if (rc == 0) rc = msgl__no_new_privileges(&err); // that a GPU's driver might have needed
    if (rc == 0) rc = check_loras(s, engine, &err);
    if (rc != 0) return tell_fatal(ch, &err);
    const msgl_engine_info *info = msgl__engine_info(engine);
    const msgl_runner *runner = msgl__engine_runner(engine);
    const msgl_msg_ready ready = {.max_seq_len = info->max_seq_len,
                                  .max_running = info->max_running,
                                  .num_pages = info->num_pages,
                                  .page_size = info->page_size,
                                  .vocab_size = info->vocab_size,
                                  .attention = info->attention,
                                  .device = info->device,
                                  .pooling = info->pooling,
                                  .pooled_size = info->pooled_size,
                                  .hidden_size = runner->hidden_size,
                                  .embed_size = runner->embed_size,
                                  .token_vector_size = info->token_vector_size,
                                  .token_weights = info->token_weights};
    msgl_scheduler_config cfg;
    msgl__scheduler_config_of(engine, &cfg);
    cfg.heartbeat = heartbeat;
    cfg.model_dir = options.model_dir;
    rc = msgl__scheduler_serve(&options, &cfg, runner, &ready, ch, &err);
    msgl__engine_destroy(engine);
    return rc == 0 || rc == MSGL_ECLOSED ? MSGL_EXIT_OK : MSGL_EXIT_FAILED;
}

static void on_ready(void *ctx, const char *host, int port, const msgl_msg_ready *ready)
{
    const struct serve *s = ctx;
    msgl__cli_bar_clear();
    const bool v6 = strchr(host, ':') != NULL; // an address that URLs put into brackets
    char at[320], replicas[32] = "";
    const int n = s->options->dp_size;
    if (n > 1) (void)snprintf(replicas, sizeof replicas, "%d replicas, each ", n);
    if (s->uds != NULL) {
        (void)snprintf(at, sizeof at, "unix:%s", s->uds);
    } else {
        (void)snprintf(at, sizeof at, "%s://%s%.255s%s:%d/v1", s->https ? "https" : "http",
                       v6 ? "[" : "", host, v6 ? "]" : "", port);
    }
    printf("minisgl is ready: %s serves %s (%sattention %s, %s)\n", at, s->model_name, replicas,
           ready->attention, ready->device);
    fflush(stdout);
}

// What is read of a model's folder for the front.
typedef struct folder_texts {
    msgl_labels labels;
    msgl_text_prompts prompts;
} folder_texts;

static void free_texts(folder_texts *t)
{
    msgl__labels_free(&t->labels);
    msgl__text_prompts_free(&t->prompts);
}

// Reads the model's own defaults, which requests get for sampling fields that they leave out, its
// labels and prompts, and whether it is an encoder.
static int read_defaults(const char *dir, msgl_front_config *front, folder_texts *texts,
                         bool *encodes, msgl_err *err)
{
    static msgl_model_config config; // too large for the stack
    int rc = msgl__model_config_load(dir, &config, err);
    if (rc != 0) return rc;
    front->defaults = config.sampling;
    *encodes = config.arch->family->encodes;
    front->prompts = &texts->prompts;
    if (config.num_labels == 0) return msgl__text_prompts_load(dir, &texts->prompts, err);
    rc = msgl__labels_load(dir, config.num_labels, &texts->labels, err);
    front->labels = texts->labels.names;
    front->multi_label = texts->labels.several;
    return rc;
}

// Sets whether the model embeds or ranks texts, as its folder says, and how it embeds them. What an
// encoder does the engine sees by itself.
static int choose_pooling(const char *dir, bool encodes, msgl_options *o, msgl_front_config *front,
                          msgl_err *err)
{
    msgl_model_pooling pooling;
    const int rc = msgl__model_pooling(dir, encodes, &pooling, err);
    if (rc != 0) return rc;
    front->text_form = pooling.text_form;
    if (encodes || o->is_embedding) return 0;
    o->is_embedding = pooling.kind == MSGL_POOL_EMBED;
    o->is_reranker = pooling.kind == MSGL_POOL_SCORE;
    memcpy(o->score_token_ids, pooling.score_ids, sizeof o->score_token_ids);
    return 0;
}

// Reads the API keys of the options and of the files that they name.
static int read_keys(const msgl_args *a, msgl_guard *g, msgl_err *err)
{
    msgl_keys *keys = &g->keys;
    const char *admin = a->admin_key;
    int rc = admin == NULL ? 0 : msgl__keys_add(&g->admin, admin, strlen(admin), err);
    if (rc == 0 && a->admin_key_file != NULL) {
        rc = msgl__keys_read(&g->admin, a->admin_key_file, err);
    }
    for (int i = 0; i < a->api_keys.count && rc == 0; i++) {
        rc = msgl__keys_add(keys, a->api_keys.items[i], strlen(a->api_keys.items[i]), err);
    }
    if (rc == 0 && a->api_key_file != NULL) rc = msgl__keys_read(keys, a->api_key_file, err);
    if (rc == 0 && a->salt_by_key && keys->count == 0) {
        rc = msgl__err_set(err, MSGL_EINVAL,
                           "--cache-salt-by-key needs keys: --api-key KEY or --api-key-file FILE");
    }
    return rc;
}

// A text as clients may see it: of an absolute path only the last part.
static json_t *shown(const char *text)
{
    char out[1024];
    if (text == NULL) return NULL;
    msgl__api_put_path(text, out, sizeof out);
    return json_stringn(out, msgl__utf8_valid(out, strlen(out))); // it may have been cut
}

// Reads --root-path without slashes at its end: "/llm/" is "/llm". *root NULL: there is none, or
// "/".
static int read_root(const char *text, char out[128], const char **root, msgl_err *err)
{
    *root = NULL;
    if (text == NULL) return 0;
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == '/') n--;
    if (n >= 128 || text[0] != '/' || strcspn(text, "%?# \t\r\n") < n) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--root-path is \"%.100s\"; allowed: a path such as /llm, without %%, "
                             "? and #, of at most 127 bytes",
                             text);
    }
    memcpy(out, text, n);
    out[n] = '\0';
    if (n > 0) *root = out;
    return 0;
}

static json_t *setting_json(const msgl_setting *s, const msgl_options *o)
{
    if (s->type == MSGL_SETTING_TEXT) return shown(msgl__setting_text(s, o));
    const double v = msgl__setting_number(s, o);
    if (s->type == MSGL_SETTING_FLAG) return json_boolean(v != s->preset);
    return s->type == MSGL_SETTING_REAL ? json_real(v) : json_integer((json_int_t)v);
}

// What /get_server_info answers: every setting by its flag's name, and two by older names as well.
static char *info_json(const msgl_options *o)
{
    json_t *j =
        json_pack("{s:o,s:b}", "model_path", shown(o->model_dir), "overlap_scheduling", o->overlap);
    bool bad = false;
    for (int i = 0; i < msgl__engine_settings.count; i++) {
        const msgl_setting *s = &msgl__engine_settings.rows[i];
        // A text is left out if nobody has given it.
        const bool none = s->type == MSGL_SETTING_TEXT && msgl__setting_text(s, o) == NULL;
        if (s->name == NULL || none) continue;
        char key[64];
        snprintf(key, sizeof key, "%s", s->name);
        for (char *p = key; (p = strchr(p, '-')) != NULL;) *p = '_';
        bad |= json_object_set_new(j, key, setting_json(s, o)) != 0;
    }
    char *text = bad ? NULL : msgl__json_text(j, JSON_COMPACT);
    json_decref(j);
    return text;
}

// Sets where the log goes and how it looks, for the processes that are forked as well.
static void set_log(const msgl_args *a, struct serve *s, msgl_options *o)
{
    setenv("MINISGL_LOG_FORMAT", a->log_format, 1);
    msgl__log_never_wait();
    s->log = msgl__log_default();
    o->log = log_line;
    o->ctx = s;
    if (s->log.json) o->progress = NULL; // a bar, at a terminal
}

// Copies the front's settings from arguments.
static void set_front(const msgl_args *a, msgl_front_config *f)
{
    f->model_path = a->engine.model_dir;
    f->num_workers = a->num_tokenizer > 0 ? a->num_tokenizer : 1;
    f->max_request_memory = (size_t)a->request_memory << 20;
    f->max_waiting = a->max_queued;
    f->stop_timeout_ms = 1000 * a->shutdown_timeout;
    f->http.max_connections = a->max_connections;
    f->http.max_per_source = a->max_per_address;
    f->added_from_text = a->added_from_text != 0;
    f->trust_template = a->trust_template != 0;
    f->open_schemas = a->open_schemas != 0;
    f->salt_by_key = a->salt_by_key != 0;
    f->http.limits.max_body = (size_t)a->max_body << 20;
    f->http.idle_timeout_ms = 1000 * a->keep_alive;
    f->unknown_fields = strcmp(a->unknown_fields, "refuse") == 0   ? MSGL_UNKNOWN_REFUSE
                        : strcmp(a->unknown_fields, "ignore") == 0 ? MSGL_UNKNOWN_IGNORE
                                                                   : MSGL_UNKNOWN_WARN;
    const char *compat = a->metrics_compat; // one of the option's choices
    f->metrics_compat = strcmp(compat, "vllm") == 0     ? MSGL_METRICS_VLLM
                        : strcmp(compat, "sglang") == 0 ? MSGL_METRICS_SGLANG
                                                        : MSGL_METRICS_NONE;
    f->tool_parser = a->tool_parser;
    f->reasoning_parser = a->reasoning_parser;
    f->endpoints = msgl__endpoints;
    f->batch_dir = a->batch_dir;
    f->batches = msgl__program_batches;
    f->access_log = a->access_log != 0;
    f->log_stats_interval_s = a->log_stats_interval;
    (void)msgl__routing_of(a->routing_policy, &f->routing); // one of the option's choices
    f->balance = a->balance;
    f->guard.allowed = a->allowed_hosts;
    f->guard.cors = a->cors_origins.items;
    f->guard.num_cors = a->cors_origins.count;
}

// Whether engines may run on a GPU. To set up the driver would start threads, which the launcher
// must not have when it forks, so that this only looks whether there is one.
static bool gpu_possible(const char *device)
{
    if (device != NULL && strcmp(device, "auto") != 0) return strcmp(device, "cpu") != 0;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver != NULL) dlclose(driver);
    return driver != NULL;
}

// Decides which privileges the server's processes keep, and whether their system calls are limited.
static void set_rights(const msgl_args *a, const struct serve *s, msgl_serve_config *cfg)
{
    const msgl_options *o = s->options;
    const char *unable = msgl__confine_unable();
    cfg->user = a->user;
    cfg->gpu = gpu_possible(o->device);
    if (cfg->gpu) unable = "engines may use a GPU, whose driver has calls of its own";
    if (o->mpi) unable = "MPI's library has calls of its own";
    cfg->seccomp = unable == NULL && strcmp(a->seccomp, "on") == 0;
    cfg->engine_permissions = (o->tp_size > 1 ? MSGL_CONFINE_RANKS : 0u) |
                              (o->nnodes > 1 ? MSGL_CONFINE_RANKS | MSGL_CONFINE_HOSTS : 0u);
    if (unable != NULL && strcmp(a->seccomp, "on") == 0) {
        msgl__log(&s->log, MSGL_LOG_INFO, "system calls are not limited (--seccomp): %s", unable);
    }
}

// How long an engine may be silent between steps, ms: at least 3 s, as it beats once a second.
static int watchdog_silence_ms(const msgl_args *a)
{
    enum { LEAST_S = 3 };
    const int s = a->watchdog_timeout;
    return s == 0 ? 0 : 1000 * (s < LEAST_S ? LEAST_S : s);
}

// Refuses options that need another one, or that exclude each other.
static int check_pairs(const msgl_args *a, msgl_err *err)
{
    if (a->ssl_keyfile != NULL && a->ssl_certfile == NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "--ssl-keyfile needs --ssl-certfile FILE");
    }
    const bool keys = a->api_keys.count > 0 || a->api_key_file != NULL;
    for (int i = 0; i < a->cors_origins.count && !keys && !a->insecure; i++) {
        if (strcmp(a->cors_origins.items[i], "*") != 0) continue;
        return msgl__err_set(
            err, MSGL_EINVAL,
            "--cors-origin '*' lets any web page use the server: give it an API key "
            "(--api-key, --api-key-file), name the origins, or say --insecure");
    }
    if (a->uds == NULL || a->user == NULL) return 0;
    return msgl__err_set(err, MSGL_EINVAL, // who could not connect, nor remove it
                         "--uds and --user do not go together: start the server as that user");
}

int msgl__cmd_serve(const msgl_args *a)
{
    msgl_err err;
    if (a->shell) {
#ifdef MSGL_APP_CHAT
        return msgl__cmd_chat(a);
#else
        (void)msgl__err_set(&err, MSGL_EINVAL, "--shell: this program was built without the shell");
        return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
#endif
    }
    msgl_options options;
    char *dir = NULL, attention[128], root[128];
    msgl_traces_settings traces = {0};
    msgl_serve_config cfg = msgl__serve_config_default();
    int rc = read_root(a->root_path, root, &cfg.front.http.limits.root_path, &err);
    if (rc != 0) return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    rc = msgl__cli_options(a, &options, &dir, attention, &err);
    bool encodes = false;
    folder_texts texts = {0};
    if (rc == 0) rc = read_defaults(dir, &cfg.front, &texts, &encodes, &err);
    if (rc == 0) rc = choose_pooling(dir, encodes, &options, &cfg.front, &err);
    if (rc == 0) rc = msgl__check_draft_tokens(&options, NULL, &err);
    // The template is read here, so that a front that is started again has the same one although
    // its file may have changed.
    char *template = NULL;
    if (rc == 0 && options.chat_template != NULL) {
        rc = msgl__chat_template_read(options.chat_template, &template, &err);
    }
    if (rc == 0) rc = read_keys(a, &cfg.front.guard, &err);
    if (rc == 0) rc = check_pairs(a, &err);
    msgl_lora_path loras[MSGL_MAX_LIST];
    char *lora_text = NULL;
    if (rc == 0) rc = msgl__cli_loras(a, loras, &lora_text, &err);
    struct serve s = {.options = &options};
    set_log(a, &s, &options);
    if (rc == 0) rc = msgl__traces_settings(a->otlp_traces, &s.log, &traces, &err);
    if (rc != 0) {
        msgl__keys_free(&cfg.front.guard.keys);
        msgl__keys_free(&cfg.front.guard.admin);
        free_texts(&texts);
        msgl_free(template);
        msgl_free(lora_text);
        msgl_free(dir);
        return msgl__cli_fail(MSGL_EXIT_FAILED, &err);
    }
    s.model_name = msgl__cli_model_name(a, dir);
    const msgl_list *names = &a->served_names;
    if (names->count > 0) {
        s.model_name = names->items[0];
        cfg.front.more_names = names->items + 1;
        cfg.front.num_more_names = names->count - 1;
    }
    cfg.front.enable_lora = options.enable_lora != 0;
    cfg.front.loras = s.loras = loras;
    cfg.front.num_loras = s.num_loras = a->loras.count;
    if (traces.url != NULL) cfg.traces = &traces;
    set_front(a, &cfg.front);
    char *json = info_json(&options);
    cfg.host = a->host;
    cfg.port = a->port;
    cfg.uds = s.uds = a->uds;
    cfg.insecure = a->insecure != 0;
    set_rights(a, &s, &cfg);
    cfg.ssl_certfile = a->ssl_certfile;
    cfg.ssl_keyfile = a->ssl_keyfile;
    s.https = a->ssl_certfile != NULL;
    cfg.model_dir = dir;
    cfg.chat_template = template;
    cfg.front.model_name = s.model_name;
    cfg.front.log = &s.log;
    cfg.front.num_replicas = options.dp_size;
    cfg.front.info_json = json;
    cfg.engine_once = options.mpi != 0;
    cfg.watchdog_timeout_s = a->watchdog_timeout;
    cfg.engine_silence_ms = watchdog_silence_ms(a);
    if (a->watchdog_timeout == 0) cfg.front_silence_ms = 0;
    cfg.engine_main = engine_main;
    cfg.on_ready = on_ready;
    cfg.ctx = &s;
    rc = msgl__serve(&cfg, &err);
    msgl__traces_settings_free(&traces);
    msgl__keys_free(&cfg.front.guard.keys);
    msgl__keys_free(&cfg.front.guard.admin);
    free_texts(&texts);
    msgl_free(json);
    msgl_free(lora_text);
    msgl_free(template);
    msgl_free(dir);
    if (rc == MSGL_EABORTED) return MSGL_EXIT_INTERRUPTED;
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
