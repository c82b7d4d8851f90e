// SPDX-License-Identifier: Apache-2.0
//
// Which of many replicas of a model gets a request. Pure bookkeeping: no input or output, no clock,
// no threads; a server and a simulation decide alike. A choice costs O(blocks of the prompt +
// log replicas).
//
// Load is counted in prompt tokens: what a replica has still to compute of the prompts that it was
// given, and the answers that it owes, of which a token counts as MSGL_ROUTER_ANSWER_COST. It
// knows nothing but what it is told: what it chose itself, and what became of that.
#ifndef MSGL_ROUTING_ROUTER_H
#define MSGL_ROUTING_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

typedef enum msgl_routing {
    MSGL_ROUTING_CACHE_AWARE,  // where most of the prompt is cached, unless that one is too busy
    MSGL_ROUTING_TOTAL_TOKENS, // where least is to be done
    MSGL_ROUTING_ROUND_ROBIN,  // one after the other
} msgl_routing;

// By number in msgl_routing; spelled as by SGLang and its router.
#define MSGL_ROUTING_NAMES "cache_aware|total_tokens|round_robin"
const char *msgl__routing_name(msgl_routing policy);
int msgl__routing_of(const char *name, msgl_routing *out); // MSGL_ENOENT: no such name

enum {
    MSGL_ROUTER_MAX_REPLICAS = 65536,
    // A token of an answer takes the time of so many prompt tokens, in batches of 16 to 256
    // requests on the machines of README.md's tables: 2 to 4.
    MSGL_ROUTER_ANSWER_COST = 3,
};

typedef struct msgl_router_config {
    msgl_routing policy;
    int32_t num_replicas; // 1 to MSGL_ROUTER_MAX_REPLICAS
    // CACHE_AWARE only:
    int32_t block_size;   // tokens that prefixes are compared by, at least 1
    int64_t cache_tokens; // that the prefix cache of one replica holds
    size_t max_memory;    // bytes for what is believed cached; where that is not enough for
                          // cache_tokens, the latest of them are known
    // What load beside the least is no reason to leave a cached prefix: so many times the least
    // load, and the tokens that are cached there. 1: where a prompt would be computed soonest;
    // very large: always where it is cached.
    double balance; // at least 1
} msgl_router_config;

#define MSGL_ROUTER_BALANCE 1.5

typedef struct msgl_router msgl_router;

// MSGL_EINVAL, MSGL_ENOMEM. All replicas are down.
int msgl__router_create(const msgl_router_config *cfg, msgl_router **out, msgl_err *err);
void msgl__router_destroy(msgl_router *r); // NULL allowed

// Where a request goes, and what it counts there; kept by whoever asked until it has ended.
typedef struct msgl_route {
    int32_t replica;
    int32_t cached;            // tokens of the prompt that the replica is believed to have
    int64_t to_start, to_last; // its part of the replica's load: prompt, answer
} msgl_route;

// The names of a prompt's whole blocks: keys[i] is of ids[0, (i + 1) * block). Returns how many,
// n / block. Other keys than these will do, if equal ones mean equal prefixes and their low bits
// are random. seed: secret where clients choose the ids.
int32_t msgl__router_keys(const int32_t *ids, int32_t n, int32_t block, uint64_t seed,
                          uint64_t *keys);

// Chooses a replica that is up for a prompt of n tokens, whose whole blocks have these keys (NULL:
// none are compared), and an answer of about so many tokens; counts it there. MSGL_ECLOSED: all are
// down.
int msgl__router_choose(msgl_router *r, const uint64_t *keys, int32_t n, int64_t answer,
                        msgl_route *out);
// The prompt is computed; the request has ended, after that or before. Each once at most.
void msgl__router_started(msgl_router *r, msgl_route *route);
void msgl__router_ended(msgl_router *r, msgl_route *route);

// Whether the replica may be chosen. What it was given before counts until it ends.
void msgl__router_set_up(msgl_router *r, int32_t replica, bool up);
bool msgl__router_is_up(const msgl_router *r, int32_t replica);
// Its cache is empty: it was started again, or its cache was flushed.
void msgl__router_forget(msgl_router *r, int32_t replica);
// The same, and from here on its cache holds so many tokens, if that is less than config's.
void msgl__router_set_cache(msgl_router *r, int32_t replica, int64_t tokens);
int64_t msgl__router_load(const msgl_router *r, int32_t replica);

#endif
