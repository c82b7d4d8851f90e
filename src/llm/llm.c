// SPDX-License-Identifier: Apache-2.0
//
// The offline API behind the public header: one engine, one scheduler and a tokenizer in this
// process.
//
// uids count up, so that an event for a request that is gone finds none. Submissions and aborts
// only queue work: the scheduler sees them at the start of the next step, which lets callbacks
// (that run inside a step) make them freely.
#include <jansson.h>
#include <string.h>
#include <sys/random.h>

#include "core/err.h"
#include "core/mem.h"
#include "core/settings.h"
#include "utils/file.h"
#include "engine/engine.h"
#include "llm/llm.h"
#include "scheduler/scheduler.h"
#include "template/chat_template.h"
#include "text/bad_words.h"
#include "text/dry_breakers.h"
#include "text/stream.h"
#include "tokenizer/tokenizer.h"
#include "utils/json.h"
#include "utils/uids.h"

#define MAX_PIECE_BYTES ((size_t)1 << 20)

enum request_state {
    QUEUED,    // waits for the next step to hand it to the scheduler
    SUBMITTED, // the scheduler has it
    ABORTED,   // and is told at the next step that nobody wants it any more
    NUM_STATES,
};

struct request {
    msgl_uid uid; // first, in `uids`
    enum request_state state;
    struct request *prev, *next; // of the same state, in the order of coming to it
    msgl_ids ids;
    uint64_t salt, adapter;
    msgl_sampling_params sampling;
    msgl_req_extra *extra; // a reference, or NULL
    msgl_piece_fn fn;      // NULL: nobody listens
    void *ctx;
    msgl_text_stream text;
    int generated;
};

struct list {
    struct request *first, *last;
};

struct msgl_llm {
    msgl_engine *engine;
    msgl_scheduler *scheduler;
    char *model_dir;                // where grammars find the tokenizer
    msgl_tokenizer *tokenizer;      // NULL with dummy weights and no tokenizer.json
    msgl_chat_templates *templates; // NULL: the model has none
    msgl_uids uids;                 // of all requests
    uint64_t last_uid, salt;        // of the next request
    // Folders of adapters, [num_adapters]; number i + 1 is that of the i-th.
    char **adapters;
    size_t num_adapters;
    struct list requests[NUM_STATES];
    msgl_strbuf piece;
    msgl_logprob *logprobs;
    int cap_logprobs;
};

msgl_engine *msgl__llm_engine(msgl_llm *l)
{
    return l->engine;
}

void msgl__llm_stats(const msgl_llm *l, msgl_msg_stats *out)
{
    msgl__scheduler_stats(l->scheduler, out);
}

void msgl__llm_set_salt(msgl_llm *l, uint64_t salt)
{
    l->salt = salt;
}

const msgl_chat_templates *msgl__llm_templates(const msgl_llm *l)
{
    return l->templates;
}

static void push(msgl_llm *l, struct request *r, enum request_state state)
{
    struct list *to = &l->requests[state];
    r->state = state;
    r->prev = to->last;
    r->next = NULL;
    *(to->last != NULL ? &to->last->next : &to->first) = r;
    to->last = r;
}

static void unlink_request(msgl_llm *l, struct request *r)
{
    struct list *from = &l->requests[r->state];
    *(r->prev != NULL ? &r->prev->next : &from->first) = r->next;
    *(r->next != NULL ? &r->next->prev : &from->last) = r->prev;
}

static void move(msgl_llm *l, struct request *r, enum request_state state)
{
    unlink_request(l, r);
    push(l, r, state);
}

static void request_free(struct request *r)
{
    msgl__ids_free(&r->ids);
    msgl__req_extra_unref(r->extra);
    msgl__text_free(&r->text);
    msgl__free(r);
}

static void request_end(msgl_llm *l, struct request *r)
{
    unlink_request(l, r);
    msgl__uids_remove(&l->uids, &r->uid);
    request_free(r);
}

static struct request *request_of(const msgl_llm *l, uint64_t id)
{
    return (struct request *)msgl__uids_find(&l->uids, id);
}

// ---- opening ----

void msgl_options_init(msgl_options *o)
{
    *o = (msgl_options){0};
    msgl__settings_default(&msgl__engine_settings, o);
}

void msgl__scheduler_config_of(msgl_engine *e, msgl_scheduler_config *out)
{
    const msgl_engine_info *info = msgl__engine_info(e);
    *out = (msgl_scheduler_config){.max_seq_len = info->max_seq_len,
                                   .cache = info->cache,
                                   .vocab_size = info->vocab_size,
                                   .no_prefix_sharing = info->no_prefix_sharing,
                                   .num_eos = info->num_eos,
                                   .pooled_size = info->pooled_size,
                                   .token_vectors = info->token_vector_size > 0,
                                   .token_weights = info->token_weights,
                                   .tables = msgl__engine_page_tables(e),
                                   .admin = msgl__engine_admin_calls(e)};
    memcpy(out->eos_ids, info->eos_ids, sizeof out->eos_ids);
}

int msgl__check_draft_tokens(const msgl_options *o, const msgl_tokenizer *tokenizer, msgl_err *err)
{
    const char *folder = o->speculative_draft_model_path;
    msgl_tokenizer *own = NULL, *drafts = NULL;
    if (folder == NULL || o->dummy_weight || strcmp(o->speculative_algorithm, "STANDALONE") != 0) {
        return 0; // heads have none
    }
    int rc = tokenizer != NULL ? 0 : msgl__tokenizer_load(o->model_dir, &own, err);
    if (rc == 0) rc = msgl__tokenizer_load(folder, &drafts, err);
    const int32_t id =
        rc == 0 ? msgl__tokenizer_differs(own != NULL ? own : tokenizer, drafts) : -1;
    msgl__tokenizer_free(own);
    msgl__tokenizer_free(drafts);
    if (rc != 0) return msgl__err_prefix(err, rc, "--speculative-draft-model-path");
    if (id < 0) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "--speculative-draft-model-path %s: its tokenizer is another one (token "
                         "%d differs); allowed: a model of the same tokenizer",
                         msgl__path_shown(folder), (int)id);
}

static void on_tokens(void *ctx, const msgl_msg_tokens *tokens);

static int open_parts(const msgl_options *o, msgl_llm *l, msgl_err *err)
{
    int rc = msgl__options_check(o, err);
    if (rc == 0 && (o->is_embedding || o->is_reranker)) {
        rc = msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: allowed for `minisgl serve` alone",
                           o->is_embedding ? "is_embedding" : "is_reranker");
    }
    if (rc != 0) return rc;
    // The small files first: what is wrong with them should not cost the loading of weights.
    rc = msgl__tokenizer_load(o->model_dir, &l->tokenizer, err);
    if (rc == MSGL_ENOENT && o->dummy_weight) rc = 0; // benchmarks need no text
    if (rc == 0) rc = msgl__check_draft_tokens(o, l->tokenizer, err);
    if (rc != 0) return rc;
    rc = msgl__chat_templates_load_spec(o->model_dir, o->chat_template, &l->templates, err);
    if (rc != 0 && rc != MSGL_ENOENT) return rc;
    rc = msgl__engine_create(o, NULL, &l->engine, err);
    if (rc != 0) return rc;
    if (msgl__engine_info(l->engine)->pooling != MSGL_POOL_NONE) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s makes no tokens; allowed: `minisgl serve` alone",
                             msgl__engine_info(l->engine)->architecture);
    }
    msgl_scheduler_config cfg;
    msgl__scheduler_config_of(l->engine, &cfg);
    const size_t len = strlen(o->model_dir) + 1;
    l->model_dir = msgl__malloc(len);
    if (l->model_dir == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    memcpy(l->model_dir, o->model_dir, len);
    cfg.model_dir = l->model_dir;
    return msgl__scheduler_create(o, &cfg, msgl__engine_runner(l->engine), on_tokens, l,
                                  &l->scheduler, err);
}

int msgl_open(const msgl_options *o, msgl_llm **out, msgl_err *err)
{
    if (o == NULL || out == NULL) return msgl__err_set(err, MSGL_EINVAL, "a NULL argument");
    msgl_llm *l = msgl__calloc(1, sizeof *l);
    if (l == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    msgl__strbuf_init(&l->piece, MAX_PIECE_BYTES);
    int rc = msgl__uids_init(&l->uids);
    if (rc != 0) (void)msgl__err_set(err, rc, "out of memory");
    if (rc == 0) rc = open_parts(o, l, err);
    if (rc != 0) {
        msgl_close(l);
        return rc;
    }
    *out = l;
    return 0;
}

int msgl_follow(const msgl_options *o, msgl_err *err)
{
    if (o == NULL) return msgl__err_set(err, MSGL_EINVAL, "a NULL argument");
    const int rc = msgl__options_check(o, err);
    return rc == 0 ? msgl__engine_follow(o, err) : rc;
}

void msgl_close(msgl_llm *l)
{
    if (l == NULL) return;
    if (l->scheduler != NULL) msgl__scheduler_destroy(l->scheduler);
    if (l->engine != NULL) msgl__engine_destroy(l->engine);
    for (int i = 0; i < NUM_STATES; i++) {
        while (l->requests[i].first != NULL) request_end(l, l->requests[i].first);
    }
    msgl__uids_free(&l->uids);
    msgl__strbuf_free(&l->piece);
    for (size_t i = 0; i < l->num_adapters; i++) msgl__free(l->adapters[i]);
    msgl__free(l->adapters);
    msgl__free(l->logprobs);
    msgl__chat_templates_free(l->templates);
    msgl__tokenizer_free(l->tokenizer);
    msgl__free(l->model_dir);
    msgl__free(l);
}

void msgl_get_info(const msgl_llm *l, msgl_info *out)
{
    const msgl_engine_info *i = msgl__engine_info(l->engine);
    *out = (msgl_info){.vocab_size = i->vocab_size,
                       .max_seq_len = i->max_seq_len,
                       .max_running = i->max_running,
                       .num_pages = i->num_pages,
                       .page_size = i->page_size,
                       .attention = i->attention,
                       .device = i->device,
                       .dtype = msgl__dtype_name(i->dtype),
                       .architecture = i->architecture,
                       .weight_bytes = i->weight_bytes,
                       .kv_bytes = i->kv_bytes};
}

// ---- submitting ----

void msgl__params_to_sampling(const msgl_params *p, msgl_sampling_params *out)
{
    out->temperature = p->temperature;
    out->top_p = p->top_p;
    out->min_p = p->min_p;
    out->top_k = p->top_k;
    out->repetition_penalty = p->repetition_penalty;
    out->frequency_penalty = p->frequency_penalty;
    out->presence_penalty = p->presence_penalty;
    out->typical_p = p->typical_p;
    out->xtc_probability = p->xtc_probability;
    out->xtc_threshold = p->xtc_threshold;
    out->top_n_sigma = p->top_n_sigma;
    out->dynatemp_range = p->dynatemp_range;
    out->dynatemp_exponent = p->dynatemp_exponent;
    out->dry_multiplier = p->dry_multiplier;
    out->dry_base = p->dry_base;
    out->dry_allowed_length = p->dry_allowed_length;
    out->dry_penalty_last_n = p->dry_penalty_last_n;
    out->mirostat = p->mirostat;
    out->mirostat_tau = p->mirostat_tau;
    out->mirostat_eta = p->mirostat_eta;
    out->ignore_eos = p->ignore_eos != 0;
    out->min_tokens = p->min_tokens;
    out->speculative = p->speculative;
}

void msgl__params_from_sampling(const msgl_sampling_params *s, msgl_params *out)
{
    out->temperature = s->temperature;
    out->top_p = s->top_p;
    out->min_p = s->min_p;
    out->top_k = s->top_k;
    out->repetition_penalty = s->repetition_penalty;
    out->frequency_penalty = s->frequency_penalty;
    out->presence_penalty = s->presence_penalty;
    out->typical_p = s->typical_p;
    out->xtc_probability = s->xtc_probability;
    out->xtc_threshold = s->xtc_threshold;
    out->top_n_sigma = s->top_n_sigma;
    out->dynatemp_range = s->dynatemp_range;
    out->dynatemp_exponent = s->dynatemp_exponent;
    out->dry_multiplier = s->dry_multiplier;
    out->dry_base = s->dry_base;
    out->dry_allowed_length = s->dry_allowed_length;
    out->dry_penalty_last_n = s->dry_penalty_last_n;
    out->mirostat = s->mirostat;
    out->mirostat_tau = s->mirostat_tau;
    out->mirostat_eta = s->mirostat_eta;
    out->ignore_eos = s->ignore_eos;
    out->min_tokens = s->min_tokens;
    out->speculative = s->speculative;
}

void msgl_params_init(const msgl_llm *l, msgl_params *p)
{
    *p = (msgl_params){.logprobs = -1, .prompt_logprobs = -1};
    msgl__params_from_sampling(&msgl__engine_info(l->engine)->sampling, p);
}

static int sampling_of(const msgl_llm *l, const msgl_params *p, size_t prompt_len,
                       msgl_sampling_params *out, msgl_err *err)
{
    const msgl_engine_info *info = msgl__engine_info(l->engine);
    const int64_t pool = (int64_t)info->num_pages * info->page_size;
    const int64_t limit = pool < info->max_seq_len ? pool : info->max_seq_len;
    const int64_t left = limit - (int64_t)prompt_len;
    if (left < 1) {
        return msgl__err_set(err, MSGL_ELIMIT, "the prompt has %zu tokens; at most %lld fit",
                             prompt_len, (long long)limit - 1);
    }
    *out = msgl__sampling_params_default();
    msgl__params_to_sampling(p, out);
    out->max_tokens = p->max_tokens == 0 ? (int32_t)left : p->max_tokens;
    out->logprobs = p->logprobs;
    out->prompt_logprobs = p->prompt_logprobs;
    out->seed = p->seed;
    if (!p->has_seed && getrandom(&out->seed, sizeof out->seed, 0) != sizeof out->seed) {
        return msgl__err_set(err, MSGL_EIO, "no random seed from the system");
    }
    if (p->num_stop_token_ids < 0 || p->num_stop_token_ids > MSGL_MAX_STOP_IDS) {
        return msgl__err_set(err, MSGL_EINVAL, "%d stop token ids; allowed: at most %d",
                             p->num_stop_token_ids, MSGL_MAX_STOP_IDS);
    }
    out->num_stop_ids = p->num_stop_token_ids;
    for (int i = 0; i < p->num_stop_token_ids; i++) out->stop_ids[i] = p->stop_token_ids[i];
    return msgl__sampling_params_check(out, info->vocab_size, err);
}

static int ban_words(const msgl_llm *l, const msgl_params *p, msgl_ids *out, msgl_err *err)
{
    msgl_err why;
    if (p->num_bad_words < 0 || p->num_bad_words > MSGL_MAX_BAD_WORDS) {
        return msgl__err_set(err, MSGL_EINVAL, "%d bad_words; allowed: at most %d",
                             p->num_bad_words, MSGL_MAX_BAD_WORDS);
    }
    for (int i = 0; i < p->num_bad_words; i++) {
        const char *word = p->bad_words[i];
        const int rc = msgl__bad_word_add(l->tokenizer, word, strlen(word), out, &why);
        if (rc != 0) return msgl__err_set(err, rc, "bad_words[%d]: %.200s", i, why.text);
    }
    return 0;
}

static int break_repeats(const msgl_llm *l, const msgl_params *p, msgl_ids *out, msgl_err *err)
{
    msgl_err why;
    int at = 0;
    if (!(p->dry_multiplier > 0)) return 0;
    const int rc = msgl__dry_breakers(l->tokenizer, p->dry_sequence_breakers,
                                      p->num_dry_sequence_breakers, out, &at, &why);
    if (rc == 0) return 0;
    return msgl__err_set(err, rc, "dry_sequence_breakers[%d]: %.200s", at, why.text);
}

static int extra_of(const msgl_llm *l, const msgl_params *p, msgl_req_extra **out, msgl_err *err)
{
    msgl_ids banned = {0}, breakers = {0};
    int rc = ban_words(l, p, &banned, err);
    if (rc == 0) rc = break_repeats(l, p, &breakers, err);
    if (rc == 0) {
        const msgl_req_extra_parts parts = {.bias = p->logit_bias,
                                            .num_bias = p->num_logit_bias,
                                            .grammar_kind = p->grammar_kind,
                                            .grammar = p->grammar,
                                            .allowed = p->allowed_token_ids,
                                            .num_allowed = p->num_allowed_token_ids,
                                            .banned = banned.data,
                                            .num_banned = (int64_t)banned.len,
                                            .breakers = breakers.data,
                                            .num_breakers = (int64_t)breakers.len};
        const int vocab_size = msgl__engine_info(l->engine)->vocab_size;
        rc = msgl__req_extra_create_with(&parts, vocab_size, out, err);
    }
    msgl__ids_free(&banned);
    msgl__ids_free(&breakers);
    return rc;
}

static int request_init(const msgl_llm *l, struct request *r, const msgl_params *params,
                        msgl_err *err)
{
    if (r->ids.len == 0) return msgl__err_set(err, MSGL_EINVAL, "the prompt is empty");
    int rc = sampling_of(l, params, r->ids.len, &r->sampling, err);
    if (rc == 0) rc = extra_of(l, params, &r->extra, err);
    if (rc != 0) return rc;
    rc = msgl__text_init(&r->text, l->tokenizer, true, params->stop, params->num_stop);
    msgl__text_stop_behind(&r->text, params->min_tokens);
    if (rc == MSGL_EINVAL) {
        return msgl__err_set(err, rc, "stop strings: at most %d, each of 1 to %d bytes, %d in all",
                             MSGL_MAX_STOPS, MSGL_MAX_STOP_BYTES, MSGL_MAX_STOPS_BYTES);
    }
    return rc == 0 ? 0 : msgl__err_set(err, rc, "out of memory for a request");
}

// The number of the adapter in this folder.
static int adapter_of(msgl_llm *l, const char *path, uint64_t *out, msgl_err *err)
{
    size_t i = 0;
    if (path == NULL) return 0;
    while (i < l->num_adapters && strcmp(l->adapters[i], path) != 0) i++;
    if (i == l->num_adapters) {
        char **grown = msgl__reallocarray(l->adapters, i + 1, sizeof *grown);
        if (grown != NULL) l->adapters = grown;
        if (grown != NULL) grown[i] = msgl__strdup(path);
        if (grown == NULL || grown[i] == NULL) {
            return msgl__err_set(err, MSGL_ENOMEM, "out of memory for a request");
        }
        l->num_adapters++;
    }
    *out = i + 1;
    return 0;
}

// Takes over *ids whatever happens.
static int submit(msgl_llm *l, msgl_ids *ids, const msgl_params *params, msgl_piece_fn fn,
                  void *ctx, uint64_t *id, msgl_err *err)
{
    struct request *r = msgl__calloc(1, sizeof *r);
    if (r == NULL) {
        msgl__ids_free(ids);
        return msgl__err_set(err, MSGL_ENOMEM, "out of memory for a request");
    }
    r->ids = *ids;
    r->fn = fn;
    r->ctx = ctx;
    r->salt = l->salt;
    msgl_params defaults;
    msgl_params_init(l, &defaults);
    if (params == NULL) params = &defaults;
    int rc = request_init(l, r, params, err);
    if (rc == 0) rc = adapter_of(l, params->lora_path, &r->adapter, err);
    if (rc != 0) {
        request_free(r);
        return rc;
    }
    r->uid.id = ++l->last_uid;
    msgl__uids_put(&l->uids, &r->uid);
    push(l, r, QUEUED);
    if (id != NULL) *id = r->uid.id;
    return 0;
}

int msgl_submit_ids(msgl_llm *l, const int32_t *ids, size_t n, const msgl_params *params,
                    msgl_piece_fn fn, void *ctx, uint64_t *id, msgl_err *err)
{
    const int vocab = msgl__engine_info(l->engine)->vocab_size;
    msgl_ids copy = {0};
    for (size_t i = 0; i < n; i++) {
        int rc = 0;
        if (ids[i] < 0 || ids[i] >= vocab) {
            rc = msgl__err_set(err, MSGL_EINVAL, "token id %d at place %zu; allowed: 0 to %d",
                               ids[i], i, vocab - 1);
        } else if (msgl__ids_push(&copy, ids[i]) != 0) {
            rc = msgl__err_set(err, MSGL_ENOMEM, "out of memory for a prompt");
        }
        if (rc != 0) {
            msgl__ids_free(&copy);
            return rc;
        }
    }
    return submit(l, &copy, params, fn, ctx, id, err);
}

static int need_tokenizer(const msgl_llm *l, msgl_err *err)
{
    if (l->tokenizer != NULL) return 0;
    return msgl__err_set(err, MSGL_ENOENT, "the model has no tokenizer");
}

int msgl_submit_text(msgl_llm *l, const char *text, size_t len, const msgl_params *params,
                     msgl_piece_fn fn, void *ctx, uint64_t *id, msgl_err *err)
{
    int rc = need_tokenizer(l, err);
    if (rc != 0) return rc;
    msgl_ids ids = {0};
    const msgl_encode_opts opts = {.add_special = 1};
    rc = msgl__tokenizer_encode(l->tokenizer, text, len, &opts, &ids, err);
    if (rc != 0) {
        msgl__ids_free(&ids);
        return rc;
    }
    return submit(l, &ids, params, fn, ctx, id, err);
}

int msgl__render_chat(const msgl_chat_templates *templates, const char *json, bool prompt,
                      msgl_rendered *out, msgl_err *err)
{
    json_error_t where;
    int code;
    json_t *vars = msgl__json_loadb(json, strlen(json), JSON_REJECT_DUPLICATES, &where, &code);
    if (code == MSGL_ENOMEM) return msgl__err_set(err, code, "a chat's variables: out of memory");
    if (vars == NULL || !json_is_object(vars)) {
        json_decref(vars);
        return msgl__err_set(err, MSGL_EFORMAT, "not a JSON object: line %d: %s", where.line,
                             where.text);
    }
    if (!json_is_array(json_object_get(vars, "messages"))) {
        json_decref(vars);
        return msgl__err_set(err, MSGL_EINVAL, "\"messages\" is missing or not an array");
    }
    if (json_object_get(vars, "add_generation_prompt") == NULL &&
        json_object_set_new(vars, "add_generation_prompt", json_boolean(prompt)) != 0) {
        json_decref(vars);
        return msgl__err_set(err, MSGL_ENOMEM, "a chat's variables: out of memory");
    }
    const int rc = msgl__chat_templates_render(templates, vars, NULL, out, err);
    json_decref(vars);
    return rc;
}

int msgl_submit_chat(msgl_llm *l, const char *json, const msgl_params *params, msgl_piece_fn fn,
                     void *ctx, uint64_t *id, msgl_err *err)
{
    int rc = need_tokenizer(l, err);
    if (rc != 0) return rc;
    if (l->templates == NULL) {
        return msgl__err_set(err, MSGL_ENOENT, "the model has no chat template");
    }
    msgl_rendered rendered = {0};
    msgl_ids ids = {0};
    rc = msgl__render_chat(l->templates, json, true, &rendered, err);
    if (rc == 0) {
        const msgl_encode_opts opts = {.untrusted = rendered.untrusted,
                                       .num_untrusted = rendered.num_untrusted,
                                       .foreign = rendered.foreign,
                                       .num_foreign = rendered.num_foreign};
        rc = msgl__tokenizer_encode(l->tokenizer, msgl__strbuf_str(&rendered.text),
                                    rendered.text.len, &opts, &ids, err);
    }
    msgl__rendered_free(&rendered);
    if (rc != 0) {
        msgl__ids_free(&ids);
        return rc;
    }
    return submit(l, &ids, params, fn, ctx, id, err);
}

static void abort_request(msgl_llm *l, struct request *r)
{
    if (r->state == QUEUED) {
        request_end(l, r);
        return;
    }
    // It stays until the scheduler has let go of it.
    r->fn = NULL;
    move(l, r, ABORTED);
}

int msgl_abort(msgl_llm *l, uint64_t id)
{
    struct request *r = request_of(l, id);
    if (r == NULL || (r->state != QUEUED && r->fn == NULL)) return MSGL_ENOENT;
    abort_request(l, r);
    return 0;
}

// ---- running ----

static int grow_logprobs(msgl_llm *l, int n)
{
    if (n <= l->cap_logprobs) return 0;
    msgl_logprob *p = msgl__reallocarray(l->logprobs, (size_t)n, sizeof *p);
    if (p == NULL) return MSGL_ENOMEM;
    l->logprobs = p;
    l->cap_logprobs = n;
    return 0;
}

static int fill_logprobs(msgl_llm *l, const msgl_token_event *e, msgl_piece *piece)
{
    if (grow_logprobs(l, e->num_logprobs) != 0) return MSGL_ENOMEM;
    for (int i = 0; i < e->num_logprobs; i++) {
        const msgl_token_logprobs *from = &e->logprobs[i];
        l->logprobs[i] = (msgl_logprob){.token = from->token,
                                        .logprob = from->logprob,
                                        .position = from->position,
                                        .num_top = from->num_top,
                                        .top_tokens = from->top_ids,
                                        .top_logprobs = from->top_logprobs};
    }
    piece->num_logprobs = e->num_logprobs;
    piece->logprobs = l->logprobs;
    return 0;
}

// Of at most one token, as a piece is.
static void on_event(msgl_llm *l, const msgl_token_event *e)
{
    static const int FINISH[] = {[MSGL_FINISH_NONE] = MSGL_NOT_FINISHED,
                                 [MSGL_FINISH_STOP] = MSGL_STOP,
                                 [MSGL_FINISH_LENGTH] = MSGL_LENGTH,
                                 [MSGL_FINISH_ABORT] = MSGL_ABORTED,
                                 [MSGL_FINISH_ERROR] = MSGL_FAILED};
    struct request *r = request_of(l, e->uid);
    if (r == NULL) return;
    if (r->fn == NULL) { // aborted by us
        if (e->finish != MSGL_FINISH_NONE) request_end(l, r);
        return;
    }
    if (e->num_tokens > 0) r->generated++;
    msgl_piece piece = {.request = e->uid,
                        .token = e->num_tokens > 0 ? e->tokens[0] : -1,
                        .finish = FINISH[e->finish],
                        .status = e->status,
                        .error = e->text,
                        .prompt_tokens = e->prompt_tokens,
                        .cached_tokens = e->cached_tokens,
                        .generated_tokens = r->generated};
    msgl__strbuf_clear(&l->piece);
    int rc = msgl__text_event(&r->text, e, 0, &l->piece);
    if (rc == 0) rc = fill_logprobs(l, e, &piece);
    if (rc != 0) {
        piece.finish = MSGL_FAILED;
        piece.status = rc;
        piece.error = msgl__status_text(rc);
    } else if (r->text.stopped && piece.finish != MSGL_FAILED) {
        piece.finish = MSGL_STOP;
    }
    piece.text = msgl__strbuf_str(&l->piece);
    piece.text_len = l->piece.len;
    const bool done_here = piece.finish != MSGL_NOT_FINISHED;
    const int unwanted = r->fn(r->ctx, &piece);
    // The callback may have aborted it: it stays, as the scheduler has it.
    if (e->finish != MSGL_FINISH_NONE) {
        request_end(l, r);
    } else if (r->fn != NULL && (done_here || unwanted)) {
        abort_request(l, r);
    }
}

msgl_token_event msgl__token_event_at(const msgl_token_event *e, int32_t t)
{
    int32_t prompt = 0; // rows of the prompt
    while (prompt < e->num_logprobs && e->logprobs[prompt].position < e->prompt_tokens) prompt++;
    int32_t first = t == 0 ? 0 : prompt + t, end = prompt + t + 1;
    if (end > e->num_logprobs) end = e->num_logprobs;
    if (first > end) first = end;
    msgl_token_event one = *e;
    if (t + 1 < e->num_tokens) one.finish = MSGL_FINISH_NONE;
    one.num_tokens = t < e->num_tokens;
    one.tokens = one.num_tokens > 0 ? e->tokens + t : NULL;
    one.num_logprobs = end - first;
    one.logprobs = end > first ? e->logprobs + first : NULL;
    return one;
}

static void on_tokens(void *ctx, const msgl_msg_tokens *tokens)
{
    for (int i = 0; i < tokens->num_events; i++) {
        const msgl_token_event *e = &tokens->events[i];
        for (int32_t t = 0; t == 0 || t < e->num_tokens; t++) {
            const msgl_token_event one = msgl__token_event_at(e, t);
            on_event(ctx, &one);
        }
    }
}

static void hand_over(msgl_llm *l)
{
    for (struct request *r; (r = l->requests[ABORTED].first) != NULL;) {
        move(l, r, SUBMITTED);
        msgl__scheduler_abort(l->scheduler, r->uid.id); // its last event, which ends r
    }
    for (struct request *r; (r = l->requests[QUEUED].first) != NULL;) {
        move(l, r, SUBMITTED);
        const msgl_msg_request m = {.uid = r->uid.id,
                                    .num_ids = (int32_t)r->ids.len,
                                    .ids = r->ids.data,
                                    .cache_salt = r->salt,
                                    .adapter = r->adapter,
                                    .adapter_path =
                                        r->adapter > 0 ? l->adapters[r->adapter - 1] : NULL,
                                    .sampling = r->sampling,
                                    .extra = r->extra};
        msgl__scheduler_add(l->scheduler, &m);
    }
}

int msgl_step(msgl_llm *l, msgl_err *err)
{
    hand_over(l);
    if (msgl__scheduler_has_work(l->scheduler)) {
        const int rc = msgl__scheduler_step(l->scheduler);
        const msgl_runner *runner = msgl__engine_runner(l->engine);
        const char *why = rc != 0 ? runner->fault(runner->ctx) : NULL;
        if (why == NULL) why = msgl__status_text(rc);
        if (rc != 0) return msgl__err_set(err, rc, "the engine failed: %.200s", why);
    }
    return l->requests[QUEUED].first != NULL || l->requests[ABORTED].first != NULL ||
           msgl__scheduler_has_work(l->scheduler);
}

int msgl_run(msgl_llm *l, msgl_err *err)
{
    int rc;
    while ((rc = msgl_step(l, err)) > 0) {
    }
    return rc;
}

int msgl_write_channels(msgl_llm *l, const char *path, msgl_err *err)
{
    return msgl__engine_write_channels(l->engine, path, err);
}

void msgl_flush_cache(msgl_llm *l)
{
    msgl__scheduler_flush(l->scheduler);
}

// ---- text ----

int msgl_tokenize(const msgl_llm *l, const char *text, size_t len, int add_special, int32_t **ids,
                  size_t *n, msgl_err *err)
{
    int rc = need_tokenizer(l, err);
    if (rc != 0) return rc;
    msgl_ids out = {0};
    const msgl_encode_opts opts = {.add_special = add_special};
    rc = msgl__tokenizer_encode(l->tokenizer, text, len, &opts, &out, err);
    if (rc != 0) {
        msgl__ids_free(&out);
        return rc;
    }
    *ids = out.data;
    *n = out.len;
    return 0;
}

int msgl_detokenize(const msgl_llm *l, const int32_t *ids, size_t n, int skip_special, char **text,
                    size_t *len, msgl_err *err)
{
    int rc = need_tokenizer(l, err);
    if (rc != 0) return rc;
    msgl_strbuf out;
    msgl__strbuf_init(&out, SIZE_MAX / 2);
    rc = msgl__tokenizer_decode(l->tokenizer, ids, n, skip_special, &out, err);
    *len = out.len;
    *text = rc == 0 ? msgl__strbuf_take(&out) : NULL;
    msgl__strbuf_free(&out);
    if (rc == 0 && *text == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    return rc;
}

void msgl_free(void *p)
{
    msgl__free(p);
}

const char *msgl_version(void)
{
    return MSGL_VERSION;
}

const char *msgl_status_text(int code)
{
    return msgl__status_text(code);
}
