// SPDX-License-Identifier: Apache-2.0
#include "front/workers.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/mem.h"
#include "front/job_turns.h"

typedef struct job_list {
    msgl_job *first, **last;
} job_list;

enum { SHORT_BYTES = 64 * 1024 };

// The lanes of the first thread, of the second one and of all others.
static const unsigned LANES_OF[] = {1U << MSGL_LANE_FORMS, 1U << MSGL_LANE_SHORT,
                                    1U << MSGL_LANE_SHORT | 1U << MSGL_LANE_LONG};
enum { KINDS = sizeof LANES_OF / sizeof LANES_OF[0] };

struct msgl_workers {
    const msgl_tokenizer *tokenizer;
    const msgl_chat_templates *templates;
    msgl_budget *budget;
    int done_fd;
    pthread_mutex_t lock;
    pthread_cond_t more;
    msgl_job_turns turns;
    job_list done;
    uint64_t submitted;
    bool stop, trim;
    int begun; // threads that have begun
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

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void push(msgl_workers *w, msgl_job *j, msgl_job_lane lane)
{
    msgl__job_turns_push(&w->turns, j, lane);
    pthread_cond_broadcast(&w->more); // not every thread takes every job
}

// Runs a job, with the lock held before and after.
static void work(msgl_workers *w, msgl_job *j, bool forms)
{
    pthread_mutex_unlock(&w->lock);
    const uint64_t began = cpu_ns();
    j->config.defer_forms = !forms;
    const bool whole = msgl__job_run(j, w->tokenizer, w->templates);
    const uint64_t ns = cpu_ns() - began;
    if (w->budget != NULL && msgl__budget_trim_due(w->budget)) msgl__mem_trim();
    pthread_mutex_lock(&w->lock);
    msgl__job_turns_done(&w->turns, j, ns);
    if (!whole) {
        push(w, j, MSGL_LANE_FORMS);
        return;
    }
    pthread_cond_broadcast(&w->more); // its client's next job may have waited for it
    list_push(&w->done, j);
    const uint64_t one = 1;
    while (write(w->done_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

static void *worker(void *arg)
{
    msgl_workers *w = arg;
    pthread_mutex_lock(&w->lock);
    const int kind = w->begun < KINDS ? w->begun : KINDS - 1;
    w->begun++;
    while (!w->stop) {
        msgl_job *j = w->trim ? NULL : msgl__job_turns_pop(&w->turns, LANES_OF[kind]);
        if (j != NULL) {
            work(w, j, kind == 0);
        } else if (w->trim) {
            w->trim = false;
            pthread_mutex_unlock(&w->lock);
            msgl__mem_trim();
            pthread_mutex_lock(&w->lock);
        } else {
            pthread_cond_wait(&w->more, &w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int msgl__workers_create(int n, const msgl_tokenizer *tokenizer,
                         const msgl_chat_templates *templates, msgl_budget *budget, int done_fd,
                         msgl_workers **out, msgl_err *err)
{
    msgl_workers *w = msgl__calloc(1, sizeof *w + (size_t)(n + KINDS - 1) * sizeof w->threads[0]);
    if (w == NULL) return msgl__err_set(err, MSGL_ENOMEM, "tokenizer workers: out of memory");
    w->tokenizer = tokenizer;
    w->templates = templates;
    w->budget = budget;
    w->done_fd = done_fd;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    msgl__job_turns_init(&w->turns);
    list_init(&w->done);
    // Signals are the business of the thread that started us.
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = 0;
    while (w->count < n + KINDS - 1 && rc == 0) {
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
    msgl__job_turns_free(&w->turns);
    for (msgl_job *j; (j = list_pop(&w->done)) != NULL;) msgl__job_free(j);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    msgl__free(w);
}

void msgl__workers_submit(msgl_workers *w, msgl_job *j)
{
    pthread_mutex_lock(&w->lock);
    j->order = w->submitted++;
    push(w, j, j->body.len <= SHORT_BYTES ? MSGL_LANE_SHORT : MSGL_LANE_LONG);
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
