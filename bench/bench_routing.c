// SPDX-License-Identifier: Apache-2.0
//
// What routing costs and gains, in a model of replicas: each computes one token after another, of
// an answer at MSGL_ROUTER_ANSWER_COST times a prompt token's price, request by request in the
// order of arrival, and keeps the prefixes that it computed. Conversations of 8 turns with 512 new
// tokens and 64 of answer begin with one of four system prompts; each asks its next turn some time
// after the answer. Time is in tokens.
//     bench_routing [replicas] [conversations]
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "routing/prefix_index.h"
#include "routing/router.h"
#include "utils/random.h"

enum { TURNS = 8, NEW = 512, OUT = 64, SYSTEM = 2048, BLOCK = 16, REQUESTS = 8000 };
enum { MAX_BLOCKS = (SYSTEM + TURNS * (NEW + OUT)) / BLOCK };

typedef struct talk {
    uint64_t id;
    int turn;
    double next; // when it asks, or its answer ends
    double began;
    bool open, started;
    msgl_route route;
} talk;

typedef struct result {
    double computed, wait, throughput, us;
} result;

static uint64_t seed;

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double pause_of(double mean)
{
    return -mean * log(1 - (double)msgl__random_unit(&seed));
}

static int32_t prompt_of(const talk *t, uint64_t *keys)
{
    const int32_t n = SYSTEM + t->turn * (NEW + OUT) + NEW;
    uint64_t h = t->id % 4; // its system prompt
    for (int32_t i = 0; i < n / BLOCK; i++) {
        if (i == SYSTEM / BLOCK) h ^= t->id << 8;
        h = keys[i] = msgl__mix_bits(h + 1);
    }
    return n;
}

static int next_of(const talk *t, int n)
{
    int first = 0;
    for (int i = 1; i < n; i++) {
        if (t[i].next < t[first].next) first = i;
    }
    return first;
}

static result run(msgl_routing policy, double balance, int replicas, int talks, double think)
{
    const msgl_router_config cfg = {.policy = policy,
                                    .num_replicas = replicas,
                                    .block_size = BLOCK,
                                    .cache_tokens = 400000,
                                    .max_memory = (size_t)1 << 30,
                                    .balance = balance};
    msgl_router *r;
    msgl_prefix_index *caches; // what the replicas really have
    msgl_err err;
    talk *t = calloc((size_t)talks, sizeof *t);
    double *free_at = calloc((size_t)replicas, sizeof *free_at);
    if (t == NULL || free_at == NULL || msgl__router_create(&cfg, &r, &err) != 0 ||
        msgl__prefix_index_create(replicas, (int32_t)cfg.cache_tokens / BLOCK, &caches, &err) !=
            0) {
        exit(1);
    }
    static uint64_t keys[MAX_BLOCKS];
    seed = 1;
    uint64_t last = 0, ns = 0;
    result res = {0};
    double now = 0;
    for (int i = 0; i < replicas; i++) msgl__router_set_up(r, i, true);
    for (int i = 0; i < talks; i++) t[i] = (talk){.id = last++, .next = pause_of(think)};
    for (int done = 0; done < REQUESTS;) {
        talk *q = &t[next_of(t, talks)];
        now = q->next;
        if (q->open && !q->started) {
            msgl__router_started(r, &q->route);
            q->started = true;
            res.wait += now - q->began;
            q->next += OUT * MSGL_ROUTER_ANSWER_COST;
        } else if (q->open) {
            msgl__router_ended(r, &q->route);
            done++;
            q->open = false;
            if (++q->turn == TURNS) *q = (talk){.id = last++};
            q->next = now + pause_of(think);
        } else {
            const int32_t n = prompt_of(q, keys);
            const uint64_t before = cpu_ns();
            if (msgl__router_choose(r, keys, n, OUT, &q->route) != 0) exit(1);
            ns += cpu_ns() - before;
            double *at = &free_at[q->route.replica];
            int32_t found[MAX_BLOCKS];
            const int32_t k = msgl__prefix_index_find(caches, keys, n / BLOCK, found);
            const int32_t held =
                msgl__prefix_index_match(caches, found, k, q->route.replica) * BLOCK;
            msgl__prefix_index_insert(caches, q->route.replica, keys, n / BLOCK);
            q->began = now;
            q->next = (*at > now ? *at : now) + n - held;
            *at = q->next + OUT * MSGL_ROUTER_ANSWER_COST;
            res.computed += n - held;
            q->open = true;
            q->started = false;
        }
    }
    res = (result){.computed = res.computed / REQUESTS,
                   .wait = res.wait / REQUESTS,
                   .throughput = 1000.0 * REQUESTS / now / replicas,
                   .us = (double)ns / 1000 / REQUESTS};
    msgl__router_destroy(r);
    msgl__prefix_index_destroy(caches);
    free(t);
    free(free_at);
    return res;
}

int main(int argc, char **argv)
{
    const int replicas = argc > 1 ? atoi(argv[1]) : 4, talks = argc > 2 ? atoi(argv[2]) : 64;
    static const double balances[] = {1, 1.25, 1.5, 2, 4, 1e6, 1, 1};
    puts("| think | policy | X | computed | first token after | requests/1000 | CPU us |");
    puts("|---|---|---|---|---|---|---|");
    for (int busy = 0; busy < 2; busy++) {
        const double think = (busy ? 0.2 : 1.5) * talks / replicas * 1000;
        for (int i = 0; i < 8; i++) {
            const double x = balances[i];
            const msgl_routing policy = i < 6    ? MSGL_ROUTING_CACHE_AWARE
                                        : i == 6 ? MSGL_ROUTING_TOTAL_TOKENS
                                                 : MSGL_ROUTING_ROUND_ROBIN;
            const result s = run(policy, x, replicas, talks, think);
            printf("| %.0f | %s | %g | %.0f | %.0f | %.3f | %.2f |\n", think,
                   msgl__routing_name(policy), x, s.computed, s.wait, s.throughput, s.us);
        }
    }
    return 0;
}
