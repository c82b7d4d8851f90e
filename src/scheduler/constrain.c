// SPDX-License-Identifier: Apache-2.0
//
// Requests whose answers have a grammar. Their masks are made on threads of their own
// (grammar/constrain.h), and nothing here waits for one while there is anything else to do: such a
// request is in the grammar queue until its grammar is compiled, and is left out of steps until
// its last token is known and the mask behind it is there. Others in the batch go on.
#include "core/req_extra.h"
#include "scheduler/internal.h"

int msgl__sched_constrain(msgl_scheduler *s, msgl_req *r, msgl_err *err)
{
    if (!msgl__req_extra_constrains(r->extra)) return 0;
    if (s->constrainer == NULL) {
        const msgl_constrain_config cfg = {.model_dir = s->cfg.model_dir,
                                           .vocab = s->cfg.grammar_vocab,
                                           .vocab_size = s->cfg.vocab_size,
                                           .num_eos = s->cfg.num_eos,
                                           .eos_ids = s->cfg.eos_ids};
        const int rc = msgl__constrainer_create(&cfg, &s->constrainer, err);
        if (rc != 0) return rc;
    }
    r->constraint = msgl__constraint_open(s->constrainer, r->extra);
    if (r->constraint != NULL) return 0;
    return msgl__err_set(err, MSGL_ENOMEM, "no memory for a grammar");
}

bool msgl__sched_may_choose(const msgl_req *r)
{
    return r->constraint == NULL || msgl__constraint_state(r->constraint) == MSGL_CONSTRAINT_READY;
}

static void admit_held(msgl_scheduler *s)
{
    for (msgl_req *r = s->grammar_queue.head, *next; r != NULL; r = next) {
        next = r->next;
        const msgl_constraint_state state = msgl__constraint_state(r->constraint);
        if (state == MSGL_CONSTRAINT_PENDING) continue;
        msgl__req_unlink(&s->grammar_queue, r);
        if (state == MSGL_CONSTRAINT_READY || state == MSGL_CONSTRAINT_FREE) {
            r->state = MSGL_REQ_WAITING;
            r->arrival = s->arrivals++;
            msgl__req_push(&s->waiting, r);
            continue;
        }
        msgl__uids_remove(&s->uids, &r->uid);
        const msgl_err *e = msgl__constraint_error(r->constraint);
        if (state == MSGL_CONSTRAINT_FAILED) {
            msgl__sched_emit_error(s, r->uid.id, r->prompt_len, e->code, e->text);
        } else { // the only answer is the empty one
            msgl__sched_emit_end(s, r->uid.id, r->prompt_len, MSGL_FINISH_STOP, 0, NULL);
            s->stats.requests_done++;
        }
        msgl__req_free(s, r);
    }
}

// An answer that its grammar ends, or that cannot go on. No step has it: its last token is handled.
static void end_answer(msgl_scheduler *s, msgl_req *r, bool ended)
{
    const msgl_err *e = msgl__constraint_error(r->constraint);
    r->state = MSGL_REQ_DONE;
    msgl__uids_remove(&s->uids, &r->uid);
    s->stats.requests_done++;
    if (ended) msgl__sched_ended(s, r);
    const msgl_token_event event = {.uid = r->uid.id,
                                    .finish = ended ? MSGL_FINISH_STOP : MSGL_FINISH_ERROR,
                                    .prompt_tokens = r->prompt_len,
                                    .cached_tokens = r->cached_tokens,
                                    .drafted = r->drafted,
                                    .accepted = r->accepted,
                                    .status = ended ? 0 : e->code,
                                    .text = ended ? NULL : e->text};
    s->emit(s->emit_ctx, &(msgl_msg_tokens){.num_events = 1, .events = &event});
    if (r->row >= 0) {
        msgl__sched_retire(s, r);
    } else {
        msgl__req_unlink(&s->waiting, r);
        s->stuck = false;
        msgl__req_free(s, r);
    }
}

// The answer is constrained by nothing any more: it need not wait for masks.
static void set_free(msgl_req *r)
{
    msgl__constraint_close(r->constraint);
    r->constraint = NULL;
}

static void end_answers(msgl_scheduler *s, msgl_req_list *list)
{
    for (msgl_req *r = list->head, *next; r != NULL; r = next) {
        next = r->next;
        if (r->constraint == NULL || r->state == MSGL_REQ_DONE || r->inflight > 0) continue;
        const msgl_constraint_state state = msgl__constraint_state(r->constraint);
        if (state == MSGL_CONSTRAINT_ENDED || state == MSGL_CONSTRAINT_FAILED) {
            end_answer(s, r, state == MSGL_CONSTRAINT_ENDED);
        }
        if (state == MSGL_CONSTRAINT_FREE) set_free(r);
    }
}

void msgl__sched_constraints(msgl_scheduler *s)
{
    if (s->constrainer == NULL) return;
    admit_held(s);
    end_answers(s, &s->running);
    end_answers(s, &s->waiting); // sent back to the queue meanwhile
}
