// SPDX-License-Identifier: Apache-2.0
#include "routing/router.h"

#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "routing/load_tree.h"
#include "routing/prefix_index.h"
#include "utils/random.h"

enum {
    HOLDERS = 8, // of a block that are considered, the latest ones
    LEVELS = 8,  // of a prompt: its longest cached prefix, and shorter ones that more replicas hold
};

struct msgl_router {
    msgl_router_config cfg;
    int64_t *load;        // [num_replicas]
    msgl_load_tree least; // the same; in ROUND_ROBIN all are 0, so that only turns count
    uint64_t num_chosen;
    msgl_prefix_index *index; // CACHE_AWARE
    int32_t blocks_per_replica;
    int32_t *found; // [blocks_per_replica] of one prompt
};

static const char *const names[] = {"cache_aware", "total_tokens", "round_robin"};

const char *msgl__routing_name(msgl_routing policy)
{
    return names[policy];
}

int msgl__routing_of(const char *name, msgl_routing *out)
{
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = (msgl_routing)i;
        return 0;
    }
    return MSGL_ENOENT;
}

// --- life ---

static int check(const msgl_router_config *cfg, msgl_err *err)
{
    if (cfg->num_replicas < 1 || cfg->num_replicas > MSGL_ROUTER_MAX_REPLICAS) {
        return msgl__err_set(err, MSGL_EINVAL, "routing: %d replicas; allowed: 1 to %d",
                             cfg->num_replicas, MSGL_ROUTER_MAX_REPLICAS);
    }
    if (cfg->policy != MSGL_ROUTING_CACHE_AWARE) return 0;
    if (cfg->block_size < 1 || cfg->cache_tokens < 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "routing: blocks of %d tokens, caches of %lld; allowed: 1 or more, 0 "
                             "or more",
                             cfg->block_size, (long long)cfg->cache_tokens);
    }
    if (!(cfg->balance >= 1)) {
        return msgl__err_set(err, MSGL_EINVAL, "routing: balance is %g; allowed: 1 or more",
                             cfg->balance);
    }
    return 0;
}

// As many blocks as a replica's cache has, or as max_memory has room for.
static int create_index(msgl_router *r, msgl_err *err)
{
    const int64_t n = r->cfg.num_replicas;
    int64_t most = (((int64_t)1 << 30) - 1) / n;
    int64_t blocks = r->cfg.cache_tokens / r->cfg.block_size;
    if (blocks < 1) blocks = 1;
    if (blocks > most) blocks = most;
    // The tables grow in powers of two; halving finds what fits within a factor of two.
    while (blocks > 1 &&
           msgl__prefix_index_bytes((int32_t)n, (int32_t)blocks) > r->cfg.max_memory) {
        blocks /= 2;
    }
    r->blocks_per_replica = (int32_t)blocks;
    r->found = msgl__reallocarray(NULL, (size_t)blocks, sizeof *r->found);
    if (r->found == NULL) return msgl__err_set(err, MSGL_ENOMEM, "routing: no memory");
    return msgl__prefix_index_create((int32_t)n, (int32_t)blocks, &r->index, err);
}

int msgl__router_create(const msgl_router_config *cfg, msgl_router **out, msgl_err *err)
{
    int rc = check(cfg, err);
    if (rc != 0) return rc;
    msgl_router *r = msgl__calloc(1, sizeof *r);
    if (r == NULL) return msgl__err_set(err, MSGL_ENOMEM, "routing: no memory");
    r->cfg = *cfg;
    r->num_chosen = (uint64_t)cfg->num_replicas; // behind what the tree begins with
    r->load = msgl__calloc((size_t)cfg->num_replicas, sizeof *r->load);
    rc = r->load == NULL ? MSGL_ENOMEM : msgl__load_tree_init(&r->least, cfg->num_replicas);
    if (rc != 0) (void)msgl__err_set(err, rc, "routing: no memory");
    if (rc == 0 && cfg->policy == MSGL_ROUTING_CACHE_AWARE) rc = create_index(r, err);
    if (rc != 0) {
        msgl__router_destroy(r);
        return rc;
    }
    *out = r;
    return 0;
}

void msgl__router_destroy(msgl_router *r)
{
    if (r == NULL) return;
    msgl__prefix_index_destroy(r->index);
    msgl__load_tree_free(&r->least);
    msgl__free(r->found);
    msgl__free(r->load);
    msgl__free(r);
}

// --- choosing ---

int32_t msgl__router_keys(const int32_t *ids, int32_t n, int32_t block, uint64_t seed,
                          uint64_t *keys)
{
    const int32_t count = n / block;
    uint64_t h = msgl__mix_bits(seed);
    for (int32_t i = 0; i < count; i++) {
        for (int32_t k = 0; k < block; k++) {
            h = msgl__mix_bits(h ^ (uint64_t)(uint32_t)ids[i * block + k]);
        }
        keys[i] = h;
    }
    return count;
}

typedef struct candidate {
    int32_t replica, cached; // tokens
    double cost; // prompt tokens until the answer begins, load that is tolerated left out
} candidate;

// The better of *best and this replica, if that is up.
static void consider(const msgl_router *r, int32_t replica, int32_t cached, int32_t n,
                     double tolerated, candidate *best)
{
    if (!msgl__router_is_up(r, replica)) return;
    const double more = (double)r->load[replica] - tolerated;
    const double cost = (more > 0 ? more : 0) + n - cached;
    if (cost > best->cost) return;
    if (cost == best->cost && r->load[replica] >= r->load[best->replica]) return;
    *best = (candidate){.replica = replica, .cached = cached, .cost = cost};
}

// The least busy replica, and holders of prefixes of this prompt: of the longest that anybody
// holds, and, going back, of shorter ones where these have more holders.
static candidate choose_cached(const msgl_router *r, const uint64_t *keys, int32_t n, int32_t least)
{
    const int32_t block = r->cfg.block_size;
    int32_t count = n / block;
    if (count > r->blocks_per_replica) count = r->blocks_per_replica;
    const int32_t found = msgl__prefix_index_find(r->index, keys, count, r->found);
    const double tolerated = r->cfg.balance * (double)r->load[least];
    const int32_t matched = msgl__prefix_index_match(r->index, r->found, found, least);
    candidate best = {.replica = least, .cached = matched * block, .cost = n - matched * block};
    int32_t holders = 0, levels = 0;
    for (int32_t i = found; i-- > 0 && levels < LEVELS;) {
        const int32_t more = msgl__prefix_index_num_copies(r->index, r->found[i]);
        if (more <= holders) continue;
        holders = more;
        levels++;
        int32_t replicas[HOLDERS];
        const int32_t m = msgl__prefix_index_replicas(r->index, r->found[i], replicas, HOLDERS);
        for (int32_t k = 0; k < m; k++) {
            consider(r, replicas[k], (i + 1) * block, n, tolerated, &best);
        }
    }
    return best;
}

static void add_load(msgl_router *r, int32_t replica, int64_t more)
{
    r->load[replica] += more;
    if (r->cfg.policy != MSGL_ROUTING_ROUND_ROBIN) r->least.leaves[replica].load += more;
    msgl__load_tree_changed(&r->least, replica);
}

int msgl__router_choose(msgl_router *r, const uint64_t *keys, int32_t n, int64_t answer,
                        msgl_route *out)
{
    const int32_t least = msgl__load_tree_least(&r->least);
    if (least < 0) return MSGL_ECLOSED;
    candidate c = {.replica = least};
    if (r->index != NULL && keys != NULL) {
        c = choose_cached(r, keys, n, least);
        msgl__prefix_index_insert(r->index, c.replica, keys, n / r->cfg.block_size);
    }
    *out = (msgl_route){.replica = c.replica,
                        .cached = c.cached,
                        .to_start = n - c.cached,
                        .to_last = answer * MSGL_ROUTER_ANSWER_COST};
    r->least.leaves[c.replica].chosen = r->num_chosen++;
    add_load(r, c.replica, out->to_start + out->to_last);
    return 0;
}

// --- what became of it ---

void msgl__router_started(msgl_router *r, msgl_route *route)
{
    add_load(r, route->replica, -route->to_start);
    route->to_start = 0;
}

void msgl__router_ended(msgl_router *r, msgl_route *route)
{
    add_load(r, route->replica, -route->to_start - route->to_last);
    route->to_start = route->to_last = 0;
}

void msgl__router_set_up(msgl_router *r, int32_t replica, bool up)
{
    r->least.leaves[replica].up = up;
    msgl__load_tree_changed(&r->least, replica);
}

bool msgl__router_is_up(const msgl_router *r, int32_t replica)
{
    return r->least.leaves[replica].up;
}

void msgl__router_forget(msgl_router *r, int32_t replica)
{
    if (r->index != NULL) msgl__prefix_index_forget(r->index, replica);
}

void msgl__router_set_cache(msgl_router *r, int32_t replica, int64_t tokens)
{
    if (r->index == NULL) return;
    const int64_t blocks = tokens / r->cfg.block_size;
    const int32_t most = r->blocks_per_replica;
    msgl__prefix_index_resize(r->index, replica, blocks < most ? (int32_t)blocks : most);
}

int64_t msgl__router_load(const msgl_router *r, int32_t replica)
{
    return r->load[replica];
}
