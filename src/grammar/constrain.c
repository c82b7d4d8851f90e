// SPDX-License-Identifier: Apache-2.0
#include "grammar/constrain.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "core/mem.h"
#include "grammar/stages.h"
#include "tokenizer/tokenizer.h"
#include "utils/clock.h"
#include "utils/json.h"
#include "utils/thread.h"

enum {
    NUM_THREADS = 2, // one of them compiles, too, which may take seconds
    KEPT_GRAMMARS = 32,
};
static const size_t KEPT_BYTES = (size_t)64 << 20; // of grammars, without their masks
static const size_t MASK_BYTES = (size_t)8 << 20;  // of a grammar's masks

typedef struct kept {
    msgl_grammar_kind kind;
    char *text;
    msgl_grammar *g;
    uint64_t used;
} kept;

struct msgl_constraint {
    msgl_constrainer *c;
    msgl_req_extra *extra;          // a reference
    msgl_staged *answer;            // NULL: not compiled yet
    size_t words;                   // of a mask
    uint32_t *mask;                 // [1 + room, words]
    int32_t room, ahead;            // drafts that it has room for; that there are masks behind
    int32_t num_tokens, num_drafts; // to go on by; guesses at what follows
    int32_t tokens[MSGL_MAX_TREE], drafts[MSGL_MAX_DRAFTS];
    atomic_int state;
    msgl_err err;
    msgl_constraint *next; // in a queue
    bool busy, closed;     // under the lock
};

typedef struct queue {
    msgl_constraint *first, *last;
} queue;

struct msgl_constrainer {
    msgl_constrain_config cfg;
    int32_t eos[MSGL_CONSTRAIN_MAX_EOS];
    pthread_mutex_t lock;
    pthread_cond_t more, done;
    queue to_compile, to_mask;
    uint64_t num_done, num_seen;
    bool stop;
    int num_threads;
    pthread_t threads[NUM_THREADS];
    // Of the compiling thread alone:
    msgl_grammar_vocab *vocab; // a reference
    kept kept[KEPT_GRAMMARS];
    int num_kept;
    size_t kept_bytes;
    uint64_t uses;
};

static int compile_choice(const char *text, const msgl_grammar_limits *limits, msgl_grammar **out,
                          msgl_err *err)
{
    json_t *all = NULL;
    int rc = msgl__json_parse("choice", text, strlen(text), 0, &all, err);
    if (rc != 0) return rc;
    const size_t n = json_array_size(all);
    const char **strings = msgl__calloc(n + 1, sizeof *strings);
    if (strings == NULL) rc = msgl__err_set(err, MSGL_ENOMEM, "out of memory for a grammar");
    for (size_t i = 0; i < n && rc == 0; i++) {
        strings[i] = json_string_value(json_array_get(all, i));
        if (strings[i] == NULL)
            rc = msgl__err_set(err, MSGL_EFORMAT, "choice: %zu is no string", i);
    }
    if (rc == 0 && n == 0) rc = msgl__err_set(err, MSGL_EINVAL, "choice: there is none");
    if (rc == 0) rc = msgl__grammar_choice(strings, n, limits, out, err);
    msgl__free(strings);
    json_decref(all);
    return rc;
}

int msgl__grammar_compile(msgl_grammar_kind kind, const char *text,
                          const msgl_grammar_limits *limits, msgl_grammar **out, msgl_err *err)
{
    const size_t n = strlen(text);
    *out = NULL;
    switch (kind) {
    case MSGL_GRAMMAR_JSON_OBJECT: return msgl__grammar_json_object(limits, out, err);
    case MSGL_GRAMMAR_JSON_SCHEMA: return msgl__grammar_json_schema(text, n, limits, out, err);
    case MSGL_GRAMMAR_JSON_SCHEMA_OPEN:
        return msgl__grammar_json_schema_open(text, n, limits, out, err);
    case MSGL_GRAMMAR_REGEX: return msgl__grammar_regex(text, n, limits, out, err);
    case MSGL_GRAMMAR_CHOICE: return compile_choice(text, limits, out, err);
    case MSGL_GRAMMAR_GBNF: return msgl__grammar_gbnf(text, n, limits, out, err);
    case MSGL_GRAMMAR_LARK: return msgl__grammar_lark(text, n, limits, out, err);
    case MSGL_GRAMMAR_NONE: break;
    }
    return msgl__err_set(err, MSGL_EINVAL, "grammar: of no known kind (%d)", (int)kind);
}

// --- what is kept ---

static void drop_oldest(msgl_constrainer *c)
{
    int oldest = 0;
    for (int i = 1; i < c->num_kept; i++) {
        if (c->kept[i].used < c->kept[oldest].used) oldest = i;
    }
    kept *k = &c->kept[oldest];
    c->kept_bytes -= msgl__grammar_bytes(k->g);
    msgl__grammar_unref(k->g);
    msgl__free(k->text);
    *k = c->kept[--c->num_kept];
}

// Keeps g if there is memory for it.
static void keep(msgl_constrainer *c, msgl_grammar_kind kind, const char *grammar, msgl_grammar *g)
{
    const size_t bytes = msgl__grammar_bytes(g), len = strlen(grammar) + 1;
    char *text = bytes > KEPT_BYTES ? NULL : msgl__malloc(len);
    if (text == NULL) return;
    memcpy(text, grammar, len);
    while (c->num_kept == KEPT_GRAMMARS || c->kept_bytes + bytes > KEPT_BYTES) drop_oldest(c);
    c->kept[c->num_kept++] = (kept){kind, text, msgl__grammar_ref(g), ++c->uses};
    c->kept_bytes += bytes;
}

// With a reference of the caller's; NULL for MSGL_GRAMMAR_NONE.
static int find_grammar(msgl_constrainer *c, msgl_grammar_kind kind, const char *text,
                        msgl_grammar **out, msgl_err *err)
{
    *out = NULL;
    if (kind == MSGL_GRAMMAR_NONE) return 0;
    for (int i = 0; i < c->num_kept; i++) {
        kept *k = &c->kept[i];
        if (k->kind != kind || strcmp(k->text, text) != 0) continue;
        k->used = ++c->uses;
        *out = msgl__grammar_ref(k->g);
        return 0;
    }
    msgl_grammar_limits limits;
    msgl__grammar_limits_init(&limits);
    limits.cache_bytes = MASK_BYTES;
    limits.lenient = true; // the front has named what is left out, or refused it
    const int rc = msgl__grammar_compile(kind, text, &limits, out, err);
    if (rc == 0) keep(c, kind, text, *out);
    return rc;
}

static int find_vocab(msgl_constrainer *c, msgl_err *err)
{
    if (c->vocab != NULL) return 0;
    if (c->cfg.vocab != NULL) {
        c->vocab = msgl__grammar_vocab_ref(c->cfg.vocab);
        return 0;
    }
    if (c->cfg.model_dir == NULL) return msgl__err_set(err, MSGL_ENOENT, "no tokenizer");
    msgl_tokenizer *t = NULL;
    int rc = msgl__tokenizer_load(c->cfg.model_dir, &t, err);
    if (rc != 0) return rc;
    rc = msgl__grammar_vocab_from_tokenizer(t, c->cfg.vocab_size, c->eos, c->cfg.num_eos, &c->vocab,
                                            err);
    msgl__tokenizer_free(t);
    return rc;
}

// --- the work ---

static int begin(msgl_constraint *x)
{
    msgl_constrainer *c = x->c;
    const msgl_req_extra *e = x->extra;
    msgl_grammar *answer = NULL, *calls = NULL;
    msgl_stages *stages = NULL;
    int rc = find_vocab(c, &x->err);
    if (rc == 0) rc = msgl__stages_parse(e->stages, &stages, &x->err);
    if (rc == 0) rc = find_grammar(c, e->grammar_kind, e->grammar, &answer, &x->err);
    const char *text = rc == 0 ? msgl__stages_calls(stages) : NULL;
    if (text != NULL) rc = find_grammar(c, MSGL_GRAMMAR_LARK, text, &calls, &x->err);
    if (rc == 0) {
        x->words = ((size_t)msgl__grammar_vocab_size(c->vocab) + 31) / 32;
        x->mask = msgl__calloc(x->words, sizeof *x->mask);
        x->answer = msgl__staged_create(stages, answer, calls, c->vocab);
        stages = NULL;
        if (x->mask == NULL || x->answer == NULL) {
            rc = msgl__err_set(&x->err, MSGL_ENOMEM, "out of memory for a grammar");
        }
    }
    msgl__stages_free(stages);
    msgl__grammar_unref(answer);
    msgl__grammar_unref(calls);
    return rc;
}

// Why the answer can not go on.
static int stuck(msgl_constraint *x, int rc)
{
    return msgl__err_set(&x->err, rc, "grammar: %s",
                         rc == MSGL_ELIMIT ? "the answer has got too ambiguous to go on"
                                           : msgl__status_text(rc));
}

static int fill(msgl_constraint *x)
{
    uint32_t any = 0;
    const int rc = msgl__staged_fill_mask(x->answer, x->mask);
    if (rc != 0) return stuck(x, rc);
    for (size_t i = 0; i < x->words; i++) any |= x->mask[i];
    if (any != 0) return 0;
    return msgl__err_set(&x->err, MSGL_EINVAL, "grammar: no token of this model can go on");
}

// Masks for as many drafts as there are; without memory for them there are no drafts.
static void make_room(msgl_constraint *x)
{
    if (x->num_drafts <= x->room) return;
    const size_t rows = 1 + (size_t)x->num_drafts;
    uint32_t *more = msgl__reallocarray(x->mask, rows * x->words, sizeof *more);
    if (more == NULL) {
        x->num_drafts = 0;
        return;
    }
    x->mask = more;
    x->room = x->num_drafts;
}

static msgl_constraint_state work(msgl_constraint *x)
{
    int rc = 0;
    if (x->answer == NULL) rc = begin(x);
    for (int32_t i = 0; i < x->num_tokens && rc == 0; i++) {
        rc = msgl__staged_accept(x->answer, x->tokens[i]);
        if (rc != 0) (void)stuck(x, rc);
    }
    if (rc == 0 && msgl__staged_is_finished(x->answer)) return MSGL_CONSTRAINT_ENDED;
    if (rc == 0 && msgl__staged_is_free(x->answer)) return MSGL_CONSTRAINT_FREE;
    x->ahead = 0;
    if (rc == 0 && x->num_drafts > 0) make_room(x);
    if (rc == 0) rc = fill(x);
    if (rc == 0 && x->num_drafts > 0) {
        x->ahead = msgl__staged_look(x->answer, x->drafts, x->num_drafts, x->mask + x->words);
    }
    // To a request's client MSGL_ELIMIT is a prompt that is too long for the model.
    if (rc == MSGL_ELIMIT) x->err.code = MSGL_EINVAL;
    return rc == 0 ? MSGL_CONSTRAINT_READY : MSGL_CONSTRAINT_FAILED;
}

static void destroy(msgl_constraint *x)
{
    msgl__staged_destroy(x->answer);
    msgl__free(x->mask);
    msgl__req_extra_unref(x->extra);
    msgl__free(x);
}

static msgl_constraint *pop(queue *q)
{
    msgl_constraint *x = q->first;
    if (x != NULL) q->first = x->next;
    return x;
}

static void push(queue *q, msgl_constraint *x)
{
    x->next = NULL;
    if (q->first != NULL) {
        q->last->next = x;
    } else {
        q->first = x;
    }
    q->last = x;
}

static void serve(msgl_constrainer *c, bool compiles)
{
    while (!c->stop) {
        msgl_constraint *x = pop(&c->to_mask);
        if (x == NULL && compiles) x = pop(&c->to_compile);
        if (x == NULL) {
            pthread_cond_wait(&c->more, &c->lock);
            continue;
        }
        bool closed = x->closed;
        pthread_mutex_unlock(&c->lock);
        const msgl_constraint_state state = closed ? MSGL_CONSTRAINT_FAILED : work(x);
        pthread_mutex_lock(&c->lock);
        x->busy = false;
        closed = x->closed;
        if (!closed) atomic_store_explicit(&x->state, (int)state, memory_order_release);
        c->num_done++;
        pthread_cond_broadcast(&c->done);
        if (closed) destroy(x);
    }
}

static void *compiling_thread(void *arg)
{
    msgl_constrainer *c = arg;
    pthread_mutex_lock(&c->lock);
    serve(c, true);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void *masking_thread(void *arg)
{
    msgl_constrainer *c = arg;
    pthread_mutex_lock(&c->lock);
    serve(c, false);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

// --- life ---

int msgl__constrainer_create(const msgl_constrain_config *cfg, msgl_constrainer **out,
                             msgl_err *err)
{
    if (cfg->num_eos < 0 || cfg->num_eos > MSGL_CONSTRAIN_MAX_EOS) {
        return msgl__err_set(err, MSGL_EINVAL, "%d EOS ids; allowed: at most %d", cfg->num_eos,
                             MSGL_CONSTRAIN_MAX_EOS);
    }
    msgl_constrainer *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "grammar threads: out of memory");
    c->cfg = *cfg;
    for (int32_t i = 0; i < cfg->num_eos; i++) c->eos[i] = cfg->eos_ids[i];
    c->cfg.eos_ids = c->eos;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->more, NULL);
    msgl__cond_init(&c->done);
    int rc = 0;
    while (c->num_threads < NUM_THREADS && rc == 0) {
        rc = msgl__thread_start(&c->threads[c->num_threads],
                                c->num_threads == 0 ? compiling_thread : masking_thread, c);
        if (rc == 0) c->num_threads++;
    }
    if (rc != 0) {
        msgl__constrainer_destroy(c);
        return msgl__err_set(err, MSGL_EINTERNAL, "grammar threads: %s", strerror(rc));
    }
    *out = c;
    return 0;
}

void msgl__constrainer_destroy(msgl_constrainer *c)
{
    if (c == NULL) return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->more);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->num_threads; i++) pthread_join(c->threads[i], NULL);
    for (msgl_constraint *x; (x = pop(&c->to_mask)) != NULL;) destroy(x);
    for (msgl_constraint *x; (x = pop(&c->to_compile)) != NULL;) destroy(x);
    while (c->num_kept > 0) drop_oldest(c);
    msgl__grammar_vocab_unref(c->vocab);
    pthread_cond_destroy(&c->more);
    pthread_cond_destroy(&c->done);
    pthread_mutex_destroy(&c->lock);
    msgl__free(c);
}

void msgl__constrainer_wait(msgl_constrainer *c, int ms)
{
    const uint64_t until = msgl__now_ns() + (uint64_t)ms * 1000000;
    pthread_mutex_lock(&c->lock);
    int rc = 0;
    while (c->num_done == c->num_seen && rc != ETIMEDOUT) {
        rc = msgl__cond_wait_until(&c->done, &c->lock, until);
    }
    c->num_seen = c->num_done;
    pthread_mutex_unlock(&c->lock);
}

static void enqueue(msgl_constraint *x, queue *q)
{
    msgl_constrainer *c = x->c;
    pthread_mutex_lock(&c->lock);
    atomic_store_explicit(&x->state, MSGL_CONSTRAINT_PENDING, memory_order_relaxed);
    x->busy = true;
    push(q, x);
    pthread_cond_broadcast(&c->more); // not every thread takes every kind
    pthread_mutex_unlock(&c->lock);
}

msgl_constraint *msgl__constraint_open(msgl_constrainer *c, msgl_req_extra *extra)
{
    msgl_constraint *x = msgl__calloc(1, sizeof *x);
    if (x == NULL) return NULL;
    x->c = c;
    x->extra = msgl__req_extra_ref(extra);
    enqueue(x, &c->to_compile);
    return x;
}

void msgl__constraint_close(msgl_constraint *x)
{
    if (x == NULL) return;
    msgl_constrainer *c = x->c;
    pthread_mutex_lock(&c->lock);
    x->closed = true;
    const bool busy = x->busy; // then the thread that has it frees it
    pthread_mutex_unlock(&c->lock);
    if (!busy) destroy(x);
}

msgl_constraint_state msgl__constraint_state(const msgl_constraint *x)
{
    return (msgl_constraint_state)atomic_load_explicit(&x->state, memory_order_acquire);
}

const uint32_t *msgl__constraint_mask(const msgl_constraint *x)
{
    return x->mask;
}

int32_t msgl__constraint_ahead(const msgl_constraint *x)
{
    return x->ahead;
}

void msgl__constraint_accept(msgl_constraint *x, const int32_t *tokens, int32_t num,
                             const int32_t *drafts, int32_t num_drafts)
{
    assert(num <= MSGL_MAX_TREE && num_drafts <= MSGL_MAX_DRAFTS);
    x->num_tokens = num;
    x->num_drafts = num_drafts;
    memcpy(x->tokens, tokens, (size_t)num * sizeof *tokens);
    if (num_drafts > 0) memcpy(x->drafts, drafts, (size_t)num_drafts * sizeof *drafts);
    enqueue(x, &x->c->to_mask);
}

const msgl_err *msgl__constraint_error(const msgl_constraint *x)
{
    return &x->err;
}
