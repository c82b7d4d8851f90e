// SPDX-License-Identifier: Apache-2.0
#include "front/workers.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"

typedef struct job_list {
    msgl_job *first, **last;
} job_list;

enum { SHORT_BYTES = 64 * 1024, LANES = 2 };
typedef enum lane { LANE_SHORT, LANE_LONG } lane;

struct msgl_workers {
    const msgl_tokenizer *tokenizer;
    const msgl_chat_templates *templates;
    msgl_budget *budget;
    int done_fd;
    pthread_mutex_t lock;
    pthread_cond_t more;
    job_list todo[LANES], done;
    uint64_t submitted;
    bool stop, have_short_only, trim;
    int count;
    pthread_t threads[];
};

static void list_init(job_list *l)
{
    l->first = NULL;
    l->last = &l->first;
}

static void list_push(job_list *l, msgl_job *j)
{
    j->next = NULL;
    *l->last = j;
    l->last = &j->next;
}

static msgl_job *list_pop(job_list *l)
{
    msgl_job *j = l->first;
    if (j == NULL) return NULL;
    l->first = j->next;
    if (l->first == NULL) l->last = &l->first;
    return j;
}

// The oldest job that a thread may take, or NULL.
static msgl_job *next_job(msgl_workers *w, bool short_only)
{
    const msgl_job *s = w->todo[LANE_SHORT].first, *l = w->todo[LANE_LONG].first;
    const bool take_long = !short_only && l != NULL && (s == NULL || l->order < s->order);
    return list_pop(&w->todo[take_long ? LANE_LONG : LANE_SHORT]);
}

static void *worker(void *arg)
{
    msgl_workers *w = arg;
    pthread_mutex_lock(&w->lock);
    const bool short_only = !w->have_short_only; // the first to come here
    w->have_short_only = true;
    for (;;) {
        msgl_job *j = NULL;
        while (!w->stop && !w->trim && (j = next_job(w, short_only)) == NULL) {
            pthread_cond_wait(&w->more, &w->lock);
        }
        if (w->stop) break;
        const bool trim = w->trim;
        w->trim = false;
        pthread_mutex_unlock(&w->lock);
        if (j != NULL) msgl__job_run(j, w->tokenizer, w->templates);
        if (trim || (w->budget != NULL && msgl__budget_trim_due(w->budget))) msgl__mem_trim();
        pthread_mutex_lock(&w->lock);
        if (j == NULL) continue;
        list_push(&w->done, j);
        const uint64_t one = 1;
        while (write(w->done_fd, &one, sizeof one) < 0 && errno == EINTR) {
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int msgl__workers_create(int n, const msgl_tokenizer *tokenizer,
                         const msgl_chat_templates *templates, msgl_budget *budget, int done_fd,
                         msgl_workers **out, msgl_err *err)
{
    msgl_workers *w = msgl__calloc(1, sizeof *w + (size_t)(n + 1) * sizeof w->threads[0]);
    if (w == NULL) return msgl__err_set(err, MSGL_ENOMEM, "tokenizer workers: out of memory");
    w->tokenizer = tokenizer;
    w->templates = templates;
    w->budget = budget;
    w->done_fd = done_fd;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    for (int i = 0; i < LANES; i++) list_init(&w->todo[i]);
    list_init(&w->done);
    // Signals are the business of the thread that started us.
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = 0;
    while (w->count < n + 1 && rc == 0) {
        rc = pthread_create(&w->threads[w->count], NULL, worker, w);
        if (rc == 0) w->count++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        msgl__workers_destroy(w);
        return msgl__err_set(err, MSGL_EINTERNAL, "tokenizer workers: %s", strerror(rc));
    }
    *out = w;
    return 0;
}

void msgl__workers_destroy(msgl_workers *w)
{
    if (w == NULL) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->count; i++) pthread_join(w->threads[i], NULL);
    job_list *const lists[] = {&w->todo[LANE_SHORT], &w->todo[LANE_LONG], &w->done};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (msgl_job *j; (j = list_pop(lists[i])) != NULL;) msgl__job_free(j);
    }
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    msgl__free(w);
}

void msgl__workers_submit(msgl_workers *w, msgl_job *j)
{
    pthread_mutex_lock(&w->lock);
    j->order = w->submitted++;
    list_push(&w->todo[j->body.len <= SHORT_BYTES ? LANE_SHORT : LANE_LONG], j);
    pthread_cond_broadcast(&w->more); // not every thread takes every job
    pthread_mutex_unlock(&w->lock);
}

msgl_job *msgl__workers_take(msgl_workers *w)
{
    pthread_mutex_lock(&w->lock);
    msgl_job *j = list_pop(&w->done);
    pthread_mutex_unlock(&w->lock);
    return j;
}

void msgl__workers_trim(msgl_workers *w)
{
    pthread_mutex_lock(&w->lock);
    w->trim = true;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}
