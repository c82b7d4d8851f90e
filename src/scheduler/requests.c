// SPDX-License-Identifier: Apache-2.0
//
// Requests from their arrival to the queue, and what is refused.
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "scheduler/internal.h"

void msgl__req_push(msgl_req_list *l, msgl_req *r)
{
    r->prev = l->tail;
    r->next = NULL;
    if (l->tail != NULL) {
        l->tail->next = r;
    } else {
        l->head = r;
    }
    l->tail = r;
    l->count++;
}

void msgl__req_push_by_age(msgl_req_list *l, msgl_req *r)
{
    msgl_req *next = l->head;
    while (next != NULL && next->arrival < r->arrival) next = next->next;
    if (next == NULL) {
        msgl__req_push(l, r);
        return;
    }
    r->next = next;
    r->prev = next->prev;
    if (r->prev != NULL) {
        r->prev->next = r;
    } else {
        l->head = r;
    }
    next->prev = r;
    l->count++;
}

void msgl__req_unlink(msgl_req_list *l, msgl_req *r)
{
    if (r->prev != NULL) {
        r->prev->next = r->next;
    } else {
        l->head = r->next;
    }
    if (r->next != NULL) {
        r->next->prev = r->prev;
    } else {
        l->tail = r->prev;
    }
    r->prev = r->next = NULL;
    l->count--;
}

static msgl_client *client_join(msgl_scheduler *s, uint64_t id)
{
    msgl_client *c = (msgl_client *)msgl__uids_find(&s->clients, id);
    if (c == NULL) {
        c = msgl__calloc(1, sizeof *c);
        if (c == NULL) return NULL;
        c->id.id = id;
        msgl__uids_put(&s->clients, &c->id);
    }
    c->requests++;
    return c;
}

static void client_leave(msgl_scheduler *s, msgl_client *c)
{
    if (--c->requests > 0) return;
    msgl__uids_remove(&s->clients, &c->id);
    msgl__free(c);
}

static bool less(const msgl_client *a, const msgl_client *b)
{
    return a->rows != b->rows ? a->rows < b->rows : a->served < b->served;
}

// Clients take turns by what they have, then by when they had something: with one of them this is
// the first.
msgl_req *msgl__sched_next(const msgl_scheduler *s)
{
    msgl_req *best = NULL;
    for (msgl_req *r = s->waiting.head; r != NULL; r = r->next) {
        if (best != NULL && !less(r->client, best->client)) continue;
        if (msgl__sched_waits_for_adapter(s, r)) continue;
        best = r;
        if (s->clients.count == 1) break;
    }
    return best;
}

void msgl__req_free(msgl_scheduler *s, msgl_req *r)
{
    client_leave(s, r->client);
    msgl__constraint_close(r->constraint);
    msgl__token_masks_destroy(r->masks);
    msgl__sched_draft_close(r);
    msgl__req_extra_unref(r->extra);
    msgl__free(r->adapter_path);
    msgl__free(r);
}

void msgl__sched_emit_end(msgl_scheduler *s, uint64_t uid, int32_t prompt_len, msgl_finish finish,
                          int status, const char *text)
{
    const msgl_token_event e = {
        .uid = uid, .finish = finish, .prompt_tokens = prompt_len, .status = status, .text = text};
    s->emit(s->emit_ctx, &(msgl_msg_tokens){.num_events = 1, .events = &e});
}

void msgl__sched_emit_error(msgl_scheduler *s, uint64_t uid, int32_t prompt_len, int status,
                            const char *text)
{
    msgl__sched_emit_end(s, uid, prompt_len, MSGL_FINISH_ERROR, status, text);
}

// What only some engines, and prompts of their length, can have.
static int check_extra(const msgl_scheduler *s, const msgl_msg_request *q, msgl_err *err)
{
    const msgl_req_extra *x = q->extra;
    if (x == NULL) return 0;
    const msgl_runner *runner = &s->runner;
    if (x->hidden && q->sampling.logprobs < 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "the request wants hidden states without log-probabilities");
    }
    if ((x->hidden && runner->hidden_size == 0) ||
        (x->num_listed > 0 && runner->max_row_values == 0)) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "the request wants %s; this engine returns none",
                             x->hidden ? "hidden states" : "log-probabilities of listed tokens");
    }
    if (x->num_embeds == 0 || (x->num_embeds == q->num_ids && x->embed_dim == runner->embed_size)) {
        return 0;
    }
    return msgl__err_set(err, MSGL_EINVAL,
                         "input_embeds has %d rows of %d; allowed: %d, one a token, of %d",
                         x->num_embeds, x->embed_dim, q->num_ids, runner->embed_size);
}

// Whether the request can ever run; *max_tokens is what it may generate.
static int check_request(msgl_scheduler *s, const msgl_msg_request *q, int32_t *max_tokens,
                         msgl_err *err)
{
    const msgl_scheduler_config *cfg = &s->cfg;
    if (s->broken != 0) {
        return msgl__err_set(err, s->broken, "the engine has failed: %s",
                             msgl__status_text(s->broken));
    }
    if (q->adapter != 0 && (s->num_adapters == 0 || q->adapter_path == NULL)) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "the request has an adapter; this engine takes none");
    }
    if (q->num_ids < 1) {
        return msgl__err_set(err, MSGL_EINVAL, "prompt has %d tokens; allowed: at least 1",
                             q->num_ids);
    }
    int rc = msgl__sampling_params_check(&q->sampling, cfg->vocab_size, err);
    if (rc == 0) rc = msgl__req_extra_check(q->extra, cfg->vocab_size, err);
    if (rc == 0) rc = check_extra(s, q, err);
    if (rc != 0) return rc;
    const msgl_req_extra *x = q->extra;
    if (msgl__req_extra_constrains(x) &&
        (q->sampling.min_tokens > 0 || x->num_allowed > 0 || x->num_banned > 0)) {
        return msgl__err_set(err, MSGL_EINVAL, "%s and a grammar; allowed: one of them",
                             x->num_allowed > 0  ? "allowed_token_ids"
                             : x->num_banned > 0 ? "bad_words"
                                                 : "min_tokens");
    }
    const bool pooled = cfg->pooled_size > 0;
    if (pooled && (msgl__req_extra_answers(x) || q->sampling.logprobs >= 0 ||
                   q->sampling.prompt_logprobs >= 0)) {
        return msgl__err_set(err, MSGL_EINVAL, "a prompt to embed has fields of an answer");
    }
    const int32_t task = x != NULL ? x->token_task : MSGL_TASK_TEXT;
    if ((task == MSGL_TASK_VECTORS && !cfg->token_vectors) ||
        (task == MSGL_TASK_WEIGHTS && !cfg->token_weights)) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "the model makes nothing of single tokens");
    }
    if (q->num_ids > cfg->max_seq_len - !pooled) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "prompt has %d tokens and max_tokens %d; the limit is %d tokens",
                             q->num_ids, q->sampling.max_tokens, cfg->max_seq_len);
    }
    // Lengths of what is pooled are as if a token came behind it.
    const int32_t room = pooled ? 1 : cfg->max_seq_len - q->num_ids;
    *max_tokens = q->sampling.max_tokens < room ? q->sampling.max_tokens : room;
    if (msgl__sched_pages_for(s, q->num_ids + *max_tokens) > cfg->cache.spans[0].num_units) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "prompt has %d tokens and max_tokens %d; the KV cache holds %lld "
                             "tokens",
                             q->num_ids, *max_tokens,
                             (long long)cfg->cache.spans[0].num_units *
                                 (long long)cfg->cache.page_size);
    }
    for (int32_t i = 0; i < q->num_ids; i++) {
        if (q->ids[i] < 0 || q->ids[i] >= cfg->vocab_size) {
            return msgl__err_set(err, MSGL_EINVAL, "prompt token %d is %d; allowed: 0 to %d", i,
                                 q->ids[i], cfg->vocab_size - 1);
        }
    }
    if (msgl__uids_find(&s->uids, q->uid) != NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "request id %llu is in use",
                             (unsigned long long)q->uid);
    }
    return 0;
}

static int copy_adapter(msgl_req *r, const msgl_msg_request *q, msgl_err *err)
{
    if (q->adapter == 0) return 0;
    r->adapter_path = msgl__strdup(q->adapter_path);
    return r->adapter_path != NULL ? 0 : msgl__err_set(err, MSGL_ENOMEM, "out of memory");
}

void msgl__scheduler_add(msgl_scheduler *s, const msgl_msg_request *q)
{
    msgl_err err = {0};
    int32_t max_tokens = 0;
    int rc = check_request(s, q, &max_tokens, &err);
    msgl_req *r = NULL;
    msgl_client *client = NULL;
    if (rc == 0) {
        const size_t len = (size_t)q->num_ids + (size_t)max_tokens;
        r = msgl__malloc(sizeof *r + len * sizeof r->ids[0]);
        if (r != NULL) client = client_join(s, q->client);
        if (client == NULL) {
            msgl__free(r);
            rc = msgl__err_set(&err, MSGL_ENOMEM, "no memory for a request of %zu tokens", len);
        }
    }
    if (rc != 0) {
        msgl__sched_emit_error(s, q->uid, q->num_ids, rc, err.text);
        return;
    }
    *r = (msgl_req){.uid.id = q->uid,
                    .client = client,
                    .salt = msgl__sched_salt(q->cache_salt, q->adapter),
                    .adapter = q->adapter,
                    .arrival = s->arrivals++,
                    .sampling = q->sampling,
                    .extra = msgl__req_extra_ref(q->extra),
                    .row_values = msgl__req_extra_row_values(q->extra, s->runner.hidden_size),
                    .private_kv = q->extra != NULL && q->extra->num_embeds > 0,
                    .keep_kv = q->extra == NULL || q->extra->num_embeds == 0,
                    .prompt_len = q->num_ids,
                    .max_len = q->num_ids + max_tokens,
                    .num_ids = q->num_ids,
                    .cached_tokens = -1,
                    .draft_state = -1,
                    .mu = 2 * q->sampling.mirostat_tau,
                    .row = -1};
    memcpy(r->ids, q->ids, (size_t)q->num_ids * sizeof r->ids[0]);
    rc = copy_adapter(r, q, &err);
    if (rc == 0) rc = msgl__sched_constrain(s, r, &err);
    if (rc == 0 && r->constraint == NULL) {
        rc = msgl__token_masks_create(s->cfg.vocab_size, s->cfg.eos_ids,
                                      q->sampling.ignore_eos ? 0 : s->cfg.num_eos, &q->sampling,
                                      q->extra, &r->masks, &err);
    }
    if (rc != 0) {
        msgl__req_free(s, r);
        msgl__sched_emit_error(s, q->uid, q->num_ids, rc, err.text);
        return;
    }
    msgl__sched_draft_open(s, r);
    msgl__uids_put(&s->uids, &r->uid);
    if (s->clients.count > 1) s->stuck = false; // it may be next
    if (r->constraint == NULL) r->state = MSGL_REQ_WAITING;
    msgl__req_push(r->constraint == NULL ? &s->waiting : &s->grammar_queue, r);
}

void msgl__scheduler_abort(msgl_scheduler *s, uint64_t uid)
{
    msgl_req *r = (msgl_req *)msgl__uids_find(&s->uids, uid);
    if (r == NULL) return;
    const int32_t prompt_len = r->prompt_len;
    s->stats.requests_aborted++;
    msgl__uids_remove(&s->uids, &r->uid);
    if (r->state == MSGL_REQ_GRAMMAR) {
        msgl__req_unlink(&s->grammar_queue, r);
        msgl__req_free(s, r);
    } else if (r->state == MSGL_REQ_WAITING) {
        msgl__req_unlink(&s->waiting, r);
        s->stuck = false;
        msgl__req_free(s, r);
    } else {
        r->state = MSGL_REQ_DONE;
        if (r->inflight == 0) msgl__sched_retire(s, r);
    }
    msgl__sched_emit_end(s, uid, prompt_len, MSGL_FINISH_ABORT, 0, NULL);
}

static void abort_list(msgl_scheduler *s, const msgl_req_list *list)
{
    for (msgl_req *r = list->head, *next; r != NULL; r = next) {
        next = r->next;
        msgl__scheduler_abort(s, r->uid.id);
    }
}

void msgl__scheduler_abort_all(msgl_scheduler *s)
{
    abort_list(s, &s->grammar_queue);
    abort_list(s, &s->waiting);
    abort_list(s, &s->running);
}
