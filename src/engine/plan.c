// SPDX-License-Identifier: Apache-2.0
#include "engine/plan.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/req_extra.h"
#include "core/round.h"

static const double MIB = 1024.0 * 1024.0;

// The number after `key` in a file of "key number" lines; SIZE_MAX when there is none.
static size_t read_key(const char *path, const char *key)
{
    FILE *f = fopen(path, "r");
    if (f == NULL) return SIZE_MAX;
    char line[256];
    size_t value = SIZE_MAX;
    while (value == SIZE_MAX && fgets(line, sizeof line, f) != NULL) {
        unsigned long long v;
        const size_t n = strlen(key);
        if (strncmp(line, key, n) == 0 && sscanf(line + n, "%llu", &v) == 1) value = (size_t)v;
    }
    fclose(f);
    return value;
}

size_t msgl__cgroup_room(const char *dir)
{
    char path[512];
    snprintf(path, sizeof path, "%s/memory.max", dir);
    const size_t max = read_key(path, ""); // "max" is no number
    if (max == SIZE_MAX) return SIZE_MAX;
    snprintf(path, sizeof path, "%s/memory.current", dir);
    const size_t current = read_key(path, "");
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    const size_t cache = read_key(path, "inactive_file ");
    if (current == SIZE_MAX) return max;
    const size_t used = cache == SIZE_MAX || cache > current ? current : current - cache;
    return used < max ? max - used : 0;
}

// The least of the machine's and of what control groups say, with `of` of each.
static size_t least_of_groups(size_t room, size_t (*of)(const char *dir))
{
    size_t limit = of("/sys/fs/cgroup");
    if (limit < room) room = limit;
    FILE *f = fopen("/proc/self/cgroup", "r");
    char line[384], dir[420];
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", line + 3);
        limit = of(dir);
        if (limit < room) room = limit;
    }
    if (f != NULL) fclose(f);
    return room;
}

// What the limit on this process's address space (ulimit -v) still allows.
static size_t address_room(void)
{
    struct rlimit lim;
    unsigned long long pages = 0;
    if (getrlimit(RLIMIT_AS, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f != NULL) {
        if (fscanf(f, "%llu", &pages) != 1) pages = 0;
        fclose(f);
    }
    const unsigned long long used = pages * (unsigned long long)sysconf(_SC_PAGESIZE);
    return used < lim.rlim_cur ? (size_t)(lim.rlim_cur - used) : 0;
}

// Of the machine. Without /proc, as in a chroot: what is free now, without cached files, which
// would give way.
static size_t machine_room(void)
{
    const size_t kib = read_key("/proc/meminfo", "MemAvailable:");
    struct sysinfo info;
    if (kib != SIZE_MAX) return kib * 1024;
    if (sysinfo(&info) != 0) return 0;
    return ((size_t)info.freeram + (size_t)info.bufferram) * info.mem_unit;
}

size_t msgl__memory_available(void)
{
    const size_t room = machine_room(), limit = address_room();
    return least_of_groups(limit < room ? limit : room, msgl__cgroup_room);
}

static size_t cgroup_limit(const char *dir)
{
    char path[512];
    snprintf(path, sizeof path, "%s/memory.max", dir);
    return read_key(path, "");
}

size_t msgl__memory_whole(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return least_of_groups(pages > 0 && size > 0 ? (size_t)pages * (size_t)size : 0, cgroup_limit);
}

// --- what the groups get ------------------------------------------------------------------------

enum {
    USUAL_TOKENS = 4096,    // of a request, at least, where that decides what the spans get
    USUAL_WINDOWS = 4,      // and so many times the largest window
    CHECKPOINT_DIVISOR = 8, // of 800 MB of budget 100 are for checkpoints of states
    DRAFT_DIVISOR = 16,     // and 50 for states behind drafts, where they are wanted
    LEAST_DRAFT_STATES = 4, // but so many at least
    TREE_DIVISOR = 16,      // and 50 for the prefix tree, where pages take no memory otherwise
    TREE_PAGE_BYTES = 40,   // of its nodes, a page
};

// What the division depends on.
typedef struct sizes {
    size_t unit[MSGL_MAX_SPANS];   // bytes of a page, or of a state, in all groups of the span
    int64_t usual[MSGL_MAX_SPANS]; // pages that a request of usual length has
    int32_t num_paged;             // spans of pages: the first ones
    int64_t longest;               // pages of a request of max_seq_len
} sizes;

static bool has_states(const msgl_memory_plan *p)
{
    return msgl__cache_state_span(&p->cache) != NULL;
}

// False: a group's dimensions are impossible or overflow.
static bool find_sizes(const msgl_memory_plan *p, sizes *s)
{
    const msgl_cache_layout *c = &p->cache;
    *s = (sizes){.num_paged = c->num_spans - has_states(p),
                 .longest = msgl__ceil_div(p->max_seq_len, c->page_size)};
    for (int32_t g = 0; g < p->specs.count; g++) {
        const size_t bytes = msgl__cache_unit_bytes(&p->specs.all[g], c->page_size);
        size_t *unit = &s->unit[p->span_of[g]];
        if (bytes == 0 || msgl__size_add(*unit, bytes, unit) != 0) return false;
    }
    int64_t tokens = USUAL_TOKENS;
    if (s->num_paged > 1) {
        const int64_t window = c->spans[s->num_paged - 1].window; // the largest
        if (USUAL_WINDOWS * window > tokens) tokens = USUAL_WINDOWS * window;
    }
    if (tokens > p->max_seq_len) tokens = p->max_seq_len;
    s->usual[0] = (tokens + c->page_size - 1) / c->page_size;
    for (int32_t i = 1; i < s->num_paged; i++) {
        const int64_t pages = msgl__window_pages_most(c->spans[i].window, 1, c->page_size);
        s->usual[i] = pages < s->usual[0] ? pages : s->usual[0];
    }
    return true;
}

// Pages of a window span that one request may have at once.
static int64_t pages_alone(const msgl_memory_plan *p, const sizes *s, int32_t span)
{
    const int64_t n = msgl__window_pages_most(p->cache.spans[span].window, p->max_prefill_tokens,
                                              p->cache.page_size);
    return n < s->longest ? n : s->longest;
}

// Pages of a window span beside `pages` of span 0: as many as as many requests of usual length
// have, enough for one alone and a quarter of a chunk more, and no more than all requests with a
// full step can have. A quarter: else no prompt of whole chunks could begin while others answer. Of
// a window of 8 tokens one alone with chunks of 8,192 has 8,200 pages of a token, and who
// answers 9.
static int64_t window_span(const msgl_memory_plan *p, const sizes *s, int32_t span, int64_t pages)
{
    const int32_t size = p->cache.page_size;
    const int64_t steady = msgl__window_pages(p->cache.spans[span].window, size) + 2;
    const int64_t most = p->max_running * (steady < s->longest ? steady : s->longest) +
                         msgl__ceil_div(p->max_step_tokens, size);
    const int64_t chunk = msgl__ceil_div(p->max_prefill_tokens, size);
    const int64_t others = (chunk < s->longest ? chunk : s->longest) / 4;
    const int64_t enough = pages_alone(p, s, span) + others;
    const int64_t least = pages < enough ? pages : enough;
    int64_t n = (pages * s->usual[span] + s->usual[0] - 1) / s->usual[0];
    if (n < least) n = least;
    return n < most ? n : most;
}

// Bytes of all pages, dummies included, with `pages` in span 0; SIZE_MAX on overflow.
static size_t bytes_of_pages(const msgl_memory_plan *p, const sizes *s, int64_t pages)
{
    size_t sum = 0;
    for (int32_t i = 0; i < s->num_paged; i++) {
        const int64_t n = i == 0 ? pages : window_span(p, s, i, pages);
        size_t bytes;
        if (msgl__size_mul(s->unit[i], (size_t)n + 1, &bytes) != 0 ||
            msgl__size_add(sum, bytes, &sum) != 0) {
            return SIZE_MAX;
        }
    }
    return sum;
}

// The most pages of span 0, up to `most`, whose bytes with those of the other spans fit.
static int64_t find_pages(const msgl_memory_plan *p, const sizes *s, size_t budget, int64_t most)
{
    int64_t low = 0, high = most;
    while (low < high) {
        const int64_t mid = low + (high - low + 1) / 2;
        if (bytes_of_pages(p, s, mid) <= budget) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    return low;
}

// Pages of span 0: what the budget allows, what all requests can fill, and what has a slot in 32
// bits. Where they take no memory they are not counted by it, once the windows have their least.
static int64_t all_pages(const msgl_memory_plan *p, const sizes *s, size_t budget, int64_t fitting)
{
    if (s->unit[0] > 0) return fitting;
    for (int32_t i = 1; i < s->num_paged; i++) {
        if (window_span(p, s, i, fitting) < pages_alone(p, s, i)) return fitting;
    }
    const size_t each = TREE_PAGE_BYTES + (size_t)p->cache.page_size * sizeof(int32_t);
    const size_t tree = budget / TREE_DIVISOR / each;
    const int64_t most = p->max_running * s->longest;
    return tree < 1 ? 1 : tree < (size_t)most ? (int64_t)tree : most;
}

// Checkpoints, and states of drafts, in bytes `unit` each; the bytes of all of them.
static size_t divide_states(msgl_memory_plan *p, size_t unit, size_t budget)
{
    msgl_cache_span *span = &p->cache.spans[p->cache.num_spans - 1];
    const int64_t most = (int64_t)p->max_running * msgl__ceil_div(p->max_seq_len, span->interval);
    size_t n = budget / CHECKPOINT_DIVISOR / unit;
    if (n > (size_t)most) n = (size_t)most;
    if (n > INT32_MAX / 2) n = INT32_MAX / 2;
    span->num_units = (int32_t)n;
    size_t drafts = budget / DRAFT_DIVISOR / unit;
    if (drafts < LEAST_DRAFT_STATES) drafts = LEAST_DRAFT_STATES;
    if (drafts < (size_t)span->draft_states) span->draft_states = (int32_t)drafts;
    return (n + (size_t)span->draft_states) * unit;
}

// Bytes of all units as they are; SIZE_MAX on overflow.
static size_t bytes_of_units(const msgl_memory_plan *p, const sizes *s)
{
    size_t sum = 0;
    for (int32_t i = 0; i < p->cache.num_spans; i++) {
        const msgl_cache_span *span = &p->cache.spans[i];
        const int32_t more = span->kind == MSGL_SPAN_STATE ? span->draft_states : 1; // the dummy
        size_t bytes;
        if (msgl__size_mul(s->unit[i], (size_t)span->num_units + (size_t)more, &bytes) != 0 ||
            msgl__size_add(sum, bytes, &sum) != 0) {
            return SIZE_MAX;
        }
    }
    return sum;
}

// The spans' units, within `budget` where they are not given. False: it is too small; kv_bytes says
// what would do.
static bool divide(msgl_memory_plan *p, const sizes *s, size_t live, size_t budget)
{
    msgl_cache_span *spans = p->cache.spans;
    if (p->units_given) {
        if (msgl__size_add(bytes_of_units(p, s), live, &p->kv_bytes) != 0) p->kv_bytes = SIZE_MAX;
        return true;
    }
    const size_t states = has_states(p) ? divide_states(p, s->unit[s->num_paged], budget) : 0;
    int64_t pages = spans[0].num_units;
    if (pages == 0) {
        int64_t most = p->max_running * s->longest;
        const int64_t places = INT32_MAX / 2 / p->cache.page_size;
        if (most > places) most = places;
        pages = find_pages(p, s, budget > states ? budget - states : 0, most);
        const int64_t all = all_pages(p, s, budget, pages);
        spans[0].num_units = (int32_t)(all < places ? all : places);
    }
    const size_t bytes = bytes_of_pages(p, s, pages > 0 ? pages : 1);
    if (msgl__size_add(bytes, live + states, &p->kv_bytes) != 0) p->kv_bytes = SIZE_MAX;
    if (pages == 0) return false;
    for (int32_t i = 1; i < s->num_paged; i++) {
        spans[i].num_units = (int32_t)window_span(p, s, i, pages);
    }
    return true;
}

msgl_kv_pool msgl__memory_plan_pool(const msgl_memory_plan *p, int32_t group)
{
    const msgl_cache_span *span = &p->cache.spans[p->span_of[group]];
    msgl_kv_pool pool = {.spec = p->specs.all[group], .page_size = p->cache.page_size};
    if (span->kind == MSGL_SPAN_STATE) {
        pool.max_running = p->max_running;
        pool.num_checkpoints = span->num_units + span->draft_states;
    } else {
        pool.num_pages = span->num_units;
    }
    pool.bytes = msgl__kv_pool_bytes(&pool);
    return pool;
}

// --- the whole ----------------------------------------------------------------------------------

// fixed: bytes of all but the pools, whose are in kv_bytes.
static int no_room(const msgl_memory_plan *p, size_t fixed, const char *flags, msgl_err *err)
{
    return msgl__err_set(err, MSGL_ENOMEM,
                         "memory: need %.0f MiB (weights %.0f, workspace %.0f, KV %.0f), have "
                         "%.0f MiB free; %s",
                         ((double)fixed + (double)p->kv_bytes) / MIB, (double)p->weight_bytes / MIB,
                         (double)(p->step_bytes + p->staging_bytes + p->table_bytes) / MIB,
                         (double)p->kv_bytes / MIB, (double)p->available / MIB, flags);
}

// Page tables, token pool and saved logits; the requests' bias.
static size_t table_bytes(const msgl_memory_plan *p, const sizes *s)
{
    const size_t row = (size_t)msgl__row_places(p->max_seq_len, p->cache.page_size);
    return ((size_t)p->max_running + 1) *
           ((2 * row + (size_t)s->num_paged * (row / (size_t)p->cache.page_size)) *
                sizeof(int32_t) +
            MSGL_MAX_LOGIT_BIAS * (sizeof(msgl_bias) + sizeof(float)));
}

// A request needs a token of its prompt and one of its answer.
static int bound_length(msgl_memory_plan *p, msgl_err *err)
{
    const int32_t pages = p->cache.spans[0].num_units;
    const int64_t tokens = (int64_t)pages * p->cache.page_size;
    if (tokens < 2) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--num-pages %d holds %d token (--page-size %d); a request needs at "
                             "least 2, one of the prompt and one of the answer",
                             pages, (int)tokens, p->cache.page_size);
    }
    if (tokens < p->max_seq_len) p->max_seq_len = (int32_t)tokens;
    return 0;
}

// Nobody said how much memory: a cache of gigabytes is out of proportion to weights of megabytes.
// Example: 23 MiB of weights and a ratio of 8 give 184 MiB, if four contexts need no more.
static size_t proportionate(const msgl_memory_plan *p, const sizes *s, size_t budget)
{
    const int64_t contexts =
        p->max_running < MSGL_PLAN_CONTEXTS ? p->max_running : MSGL_PLAN_CONTEXTS;
    const size_t least = bytes_of_pages(p, s, contexts * s->longest);
    const double ratio = p->weights_ratio * (double)p->weight_bytes;
    const size_t most = ratio < (double)least ? least : (size_t)ratio;
    return budget < most ? budget : most;
}

// What the pools may take beside `all`, of which `live` is theirs.
static size_t budget_of(const msgl_memory_plan *p, const sizes *s, size_t all, size_t live)
{
    const size_t rest = p->available - all;
    if (p->mem_fraction == 0) {
        const size_t budget = (size_t)(p->memory_ratio * (double)rest);
        return p->weights_ratio > 0 ? proportionate(p, s, budget) : budget;
    }
    const double limit = p->mem_fraction * (double)p->whole;
    const double used = p->with_workspace ? (double)all : (double)p->weight_bytes + (double)live;
    if (limit <= used) return 0;
    return limit - used < (double)rest ? (size_t)(limit - used) : rest;
}

int msgl__memory_plan(msgl_memory_plan *p, msgl_err *err)
{
    sizes s;
    size_t fixed = 0, live = 0, all = 0;
    const bool known = find_sizes(p, &s);
    p->table_bytes = table_bytes(p, &s);
    const size_t state = known && has_states(p) ? s.unit[s.num_paged] : 0;
    if (!known || msgl__size_add(p->weight_bytes, p->step_bytes, &fixed) != 0 ||
        msgl__size_add(fixed, p->staging_bytes + p->table_bytes, &fixed) != 0 ||
        msgl__size_mul(state, (size_t)p->max_running + 1, &live) != 0 ||
        msgl__size_add(fixed, live, &all) != 0) {
        return msgl__err_set(err, MSGL_ELIMIT, "memory: the model's sizes overflow");
    }
    p->kv_bytes = live;
    if (all >= p->available) {
        const bool weights_fit = p->weight_bytes < p->available;
        return no_room(p, fixed,
                       weights_fit
                           ? "a smaller --max-prefill-length or --max-running-requests helps"
                           : "the model is too large for this machine",
                       err);
    }
    if (!divide(p, &s, live, budget_of(p, &s, all, live))) {
        return no_room(p, fixed,
                       p->mem_fraction == 0 ? "a larger --memory-ratio may help"
                       : p->with_workspace  ? "a larger --gpu-memory-utilization may help"
                                            : "a larger --mem-fraction-static may help",
                       err);
    }
    if (p->kv_bytes > p->available - fixed) {
        return no_room(p, fixed, "a smaller --num-pages helps", err);
    }
    const int code = bound_length(p, err);
    p->left = p->available - fixed - p->kv_bytes;
    return code;
}

// A group's line behind its bytes.
static void describe_group(const msgl_memory_plan *p, int32_t group, char *text, size_t size)
{
    const msgl_cache_spec *spec = &p->specs.all[group];
    const msgl_cache_span *span = &p->cache.spans[p->span_of[group]];
    const size_t unit = msgl__cache_unit_bytes(spec, p->cache.page_size);
    char which[64] = "";
    if (span->kind == MSGL_SPAN_STATE) {
        if (span->draft_states > 0) {
            snprintf(which, sizeof which, ", %d for drafts", span->draft_states);
        }
        snprintf(text, size, "%d layer%s: %d live, %d checkpoint%s%s of %.1f MiB", spec->num_layers,
                 spec->num_layers == 1 ? "" : "s", p->max_running, span->num_units,
                 span->num_units == 1 ? "" : "s", which, (double)unit / MIB);
        return;
    }
    if (p->specs.count > 1) {
        const int at = snprintf(which, sizeof which, "%d layer%s, ", spec->num_layers,
                                spec->num_layers == 1 ? "" : "s");
        if (span->kind == MSGL_SPAN_WINDOW) {
            snprintf(which + at, sizeof which - (size_t)at, "last %d tokens: ", span->window + 1);
        } else {
            snprintf(which + at, sizeof which - (size_t)at, "all tokens: ");
        }
    }
    snprintf(text, size, "%s%s%d pages of %d token%s, %s, %.1f KiB per token%s", which,
             spec->kind != MSGL_CACHE_INDEX ? ""
             : spec->window >= 0            ? "raw rows: "
                                            : "index keys: ",
             span->num_units, p->cache.page_size, p->cache.page_size == 1 ? "" : "s",
             msgl__dtype_name(spec->dtype), (double)unit / 1024 / p->cache.page_size,
             p->lazy ? "; memory is taken as they fill" : "");
}

void msgl__memory_plan_print(const msgl_memory_plan *p, void (*print)(void *ctx, const char *line),
                             void *ctx)
{
    char line[200], text[160];
    snprintf(line, sizeof line, "memory plan  %10s", "MiB");
    print(ctx, line);
    snprintf(line, sizeof line, "  weights    %10.1f  %s",
             (double)(p->weight_bytes - p->draft_bytes) / MIB, p->weight_format);
    print(ctx, line);
    if (p->draft_bytes > 0) {
        snprintf(line, sizeof line, "  draft model%10.1f", (double)p->draft_bytes / MIB);
        print(ctx, line);
    }
    for (int32_t g = 0; g < p->specs.count; g++) {
        const bool states = p->specs.all[g].kind == MSGL_CACHE_STATE;
        describe_group(p, g, text, sizeof text);
        snprintf(line, sizeof line, "  %s  %10.1f  %s", states ? "states   " : "KV pages ",
                 (double)msgl__memory_plan_pool(p, g).bytes / MIB, text);
        print(ctx, line);
    }
    snprintf(line, sizeof line,
             "  workspace  %10.1f  up to %d tokens per step, %d request%s of %d tokens",
             (double)(p->step_bytes + p->staging_bytes + p->table_bytes) / MIB, p->max_step_tokens,
             p->max_running, p->max_running == 1 ? "" : "s", p->max_seq_len);
    print(ctx, line);
    snprintf(line, sizeof line, "  left       %10.1f  of %.1f free", (double)p->left / MIB,
             (double)p->available / MIB);
    print(ctx, line);
}
