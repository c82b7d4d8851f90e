// SPDX-License-Identifier: Apache-2.0
#include "engine/plan.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
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

// What the control group in this folder still allows; SIZE_MAX when it does not limit. Cached file
// pages count as used there, but give way.
static size_t cgroup_room(const char *dir)
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

size_t msgl__memory_available(void)
{
    const size_t kib = read_key("/proc/meminfo", "MemAvailable:");
    size_t room = kib == SIZE_MAX ? SIZE_MAX : kib * 1024;
    size_t limit = address_room();
    if (limit < room) room = limit;
    limit = cgroup_room("/sys/fs/cgroup");
    if (limit < room) room = limit;
    FILE *f = fopen("/proc/self/cgroup", "r");
    char line[384], dir[420];
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", line + 3);
        limit = cgroup_room(dir);
        if (limit < room) room = limit;
    }
    if (f != NULL) fclose(f);
    return room;
}

static size_t page_bytes(const msgl_memory_plan *p)
{
    msgl_kv_pool one = p->kv;
    one.num_pages = 1;
    return msgl__kv_pool_bytes(&one) / 2; // the dummy page is the other half
}

static int no_room(const msgl_memory_plan *p, size_t need, const char *flags, msgl_err *err)
{
    return msgl__err_set(err, MSGL_ENOMEM,
                         "memory: need %.0f MiB (weights %.0f, workspace %.0f, KV %.0f), have "
                         "%.0f MiB free; %s",
                         (double)need / MIB, (double)p->weight_bytes / MIB,
                         (double)(p->step_bytes + p->staging_bytes + p->table_bytes) / MIB,
                         (double)p->kv_bytes / MIB, (double)p->available / MIB, flags);
}

int msgl__memory_plan(msgl_memory_plan *p, msgl_err *err)
{
    const size_t page = page_bytes(p);
    const int64_t row = ((int64_t)p->max_seq_len + 32) / 32 * 32;
    // Page table, token pool and saved logits; the requests' bias.
    p->table_bytes =
        ((size_t)p->max_running + 1) * ((size_t)row * sizeof(int32_t) * 3 +
                                        MSGL_MAX_LOGIT_BIAS * (sizeof(msgl_bias) + sizeof(float)));
    size_t fixed = 0;
    if (page == 0 || msgl__size_add(p->weight_bytes, p->step_bytes, &fixed) != 0 ||
        msgl__size_add(fixed, p->staging_bytes + p->table_bytes, &fixed) != 0) {
        return msgl__err_set(err, MSGL_ELIMIT, "memory: the model's sizes overflow");
    }
    p->kv_bytes = 0;
    if (fixed >= p->available) {
        const bool weights_fit = p->weight_bytes < p->available;
        return no_room(p, fixed,
                       weights_fit
                           ? "a smaller --max-prefill-length or --max-running-requests helps"
                           : "the model is too large for this machine",
                       err);
    }
    if (p->kv.num_pages == 0) {
        const double budget = p->memory_ratio * (double)(p->available - fixed);
        double pages = budget / (double)page - 1; // the dummy page
        const double most =
            (double)p->max_running * (double)msgl__ceil_div(p->max_seq_len, p->kv.page_size);
        if (pages > most) pages = most;
        if (pages > INT32_MAX / 2 / p->kv.page_size) pages = INT32_MAX / 2 / p->kv.page_size;
        if (pages < 1) {
            p->kv_bytes = 2 * page;
            return no_room(p, fixed + p->kv_bytes, "a larger --memory-ratio may help", err);
        }
        p->kv.num_pages = (int32_t)pages;
    }
    p->kv_bytes = msgl__kv_pool_bytes(&p->kv);
    if (p->kv_bytes == 0 || p->kv_bytes > p->available - fixed) {
        if (p->kv_bytes == 0) p->kv_bytes = (size_t)p->kv.num_pages * page;
        return no_room(p, fixed + p->kv_bytes, "a smaller --num-pages helps", err);
    }
    const int64_t tokens = (int64_t)p->kv.num_pages * p->kv.page_size;
    if (tokens < 2) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--num-pages %d holds %d token (--page-size %d); a request needs at "
                             "least 2, one of the prompt and one of the answer",
                             p->kv.num_pages, (int)tokens, p->kv.page_size);
    }
    if (tokens < p->max_seq_len) p->max_seq_len = (int32_t)tokens;
    p->left = p->available - fixed - p->kv_bytes;
    return 0;
}

void msgl__memory_plan_print(const msgl_memory_plan *p, void (*print)(void *ctx, const char *line),
                             void *ctx)
{
    char line[160];
    snprintf(line, sizeof line, "memory plan  %10s", "MiB");
    print(ctx, line);
    snprintf(line, sizeof line, "  weights    %10.1f  %s", (double)p->weight_bytes / MIB,
             p->weight_format);
    print(ctx, line);
    snprintf(line, sizeof line,
             "  KV pages   %10.1f  %d pages of %d tokens, %s, %.1f KiB per token",
             (double)p->kv_bytes / MIB, p->kv.num_pages, p->kv.page_size,
             msgl__dtype_name(p->kv.spec.dtype), (double)page_bytes(p) / 1024 / p->kv.page_size);
    print(ctx, line);
    snprintf(line, sizeof line,
             "  workspace  %10.1f  up to %d tokens per step, %d request%s of %d tokens",
             (double)(p->step_bytes + p->staging_bytes + p->table_bytes) / MIB, p->max_step_tokens,
             p->max_running, p->max_running == 1 ? "" : "s", p->max_seq_len);
    print(ctx, line);
    snprintf(line, sizeof line, "  left       %10.1f  of %.1f free", (double)p->left / MIB,
             (double)p->available / MIB);
    print(ctx, line);
}
