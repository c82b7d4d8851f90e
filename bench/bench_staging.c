// SPDX-License-Identifier: Apache-2.0
//
// What the host does for a step before the device begins, without attention's own preparing: bytes
// that cross to the device, and microseconds of the scheduler's thread (medians), for 64 answers at
// length 1,024 and for 16 prompts of 1,024 tokens, with their ids and pages.
//   bench_staging MODEL_DIR
// The engine is one on the CPU, with page tables as a GPU has them and a device that only counts.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/mem.h"
#include "core/settings.h"
#include "engine/internal.h"

enum { ANSWERS = 64, PROMPTS = 16, LENGTH = 1024, CALLS = 101 };

static struct {
    bool runs; // work is done; else only submitted
    size_t bytes;
} device;

static void count_copy(msgl_device *d, void *to, const void *from, size_t bytes)
{
    (void)d, (void)to, (void)from;
    device.bytes += bytes;
}

static void run_now(msgl_device *d, void (*run)(void *ctx, int64_t arg), void *ctx, int64_t arg)
{
    (void)d;
    if (device.runs) run(ctx, arg);
}

static void no_event(msgl_device *d, int32_t event)
{
    (void)d, (void)event;
}

static int no_wait(msgl_device *d, int32_t event)
{
    (void)d, (void)event;
    return 0;
}

static double thread_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static double median(double us[CALLS])
{
    for (int i = 1; i < CALLS; i++) { // insertion
        const double x = us[i];
        int j = i;
        for (; j > 0 && us[j - 1] > x; j--) us[j] = us[j - 1];
        us[j] = x;
    }
    return us[CALLS / 2];
}

static void fail(const char *what)
{
    fprintf(stderr, "bench_staging: %s\n", what);
    exit(1);
}

// Every row has pages of its own, far apart.
static void fill_tables(msgl_engine *e)
{
    for (int32_t k = 0; k < e->num_tables; k++) {
        const int32_t n = e->info.cache.spans[k].num_units;
        for (int32_t r = 0; r < ANSWERS; r++) {
            int32_t *row = msgl__page_table_row(&e->page_tables[k], r);
            for (int32_t i = 0; i < e->page_tables[k].stride; i++) {
                row[i] = (int32_t)(((int64_t)r * e->page_tables[k].stride + i) * 2029 % n);
            }
        }
    }
}

// A step of the first `size` rows. *bytes: of one.
static double time_steps(msgl_engine *e, int32_t size, int32_t cached, int32_t num_decode,
                         size_t *bytes)
{
    static msgl_batch_req reqs[ANSWERS];
    msgl_batch b = {.size = size, .num_decode = num_decode, .reqs = reqs};
    double us[CALLS];
    for (int32_t i = 0; i < size; i++) {
        reqs[i] = (msgl_batch_req){.table_idx = i,
                                   .cached_len = cached,
                                   .device_len = LENGTH,
                                   .prompt_len = LENGTH,
                                   .logits_from = LENGTH - cached - 1,
                                   .load_state = -1,
                                   .sample = true,
                                   .sampling = msgl__sampling_params_default()};
        reqs[i].sampling.logprobs = reqs[i].sampling.prompt_logprobs = -1;
        b.num_tokens += LENGTH - cached;
    }
    device.runs = false;
    for (int i = 0; i < CALLS; i++) {
        msgl_step_result result;
        b.step_slot = i % MSGL_ENGINE_STEP_SLOTS;
        const double start = thread_us();
        if (e->runner.submit(e, &b) != 0) fail("submit");
        us[i] = thread_us() - start;
        *bytes = msgl__step_io_bytes(&e->steps[b.step_slot]);
        if (e->runner.wait(e, b.step_slot, &result) != 0) fail("wait");
    }
    return median(us);
}

// The prompts' ids, with the pages that their rows have.
static double time_writes(msgl_engine *e, size_t *bytes)
{
    static int32_t ids[LENGTH];
    double us[CALLS];
    device.runs = true;
    for (int i = 0; i < CALLS; i++) {
        device.bytes = 0;
        const double start = thread_us();
        for (int32_t r = 0; r < PROMPTS; r++) {
            if (e->runner.write_tokens(e, r, 0, ids, LENGTH) != 0) fail("write_tokens");
        }
        us[i] = thread_us() - start;
        *bytes = device.bytes;
    }
    return median(us);
}

static void bench(const char *model, int32_t page_size)
{
    msgl_options o = {0};
    msgl_err err = {0};
    msgl_engine *e;
    msgl__settings_default(&msgl__engine_settings, &o);
    o.model_dir = model;
    o.device = "cpu";
    o.attention = "fa";
    o.threads = 1;
    o.page_size = page_size;
    o.max_running = ANSWERS;
    o.max_seq_len = LENGTH + 1;
    o.max_prefill_tokens = PROMPTS * LENGTH;
    o.num_pages = (ANSWERS + 1) * (LENGTH / page_size + 1);
    if (msgl__engine_create(&o, NULL, &e, &err) != 0) fail(err.text);
    const msgl_device_ops *own = e->device->ops;
    msgl_device_ops counting = *own;
    counting.copy_in = count_copy, counting.submit = run_now;
    counting.arm = counting.record = no_event, counting.wait = no_wait;
    e->device->ops = &counting;
    fill_tables(e);
    const size_t places = ((size_t)e->max_running + 1) * (size_t)e->token_stride;
    int32_t *table = msgl__calloc(places, sizeof *table);
    msgl_attn attn[MSGL_MAX_GROUPS];
    for (int32_t g = 0; g < e->specs.count; g++) {
        attn[g] = e->groups[g].attn;
        e->groups[g].attn = (msgl_attn){0};
    }
    for (int32_t k = 0; k < e->num_tables; k++) e->dev.page_tables[k] = table;
    size_t decode, prompt, writes;
    const double decode_us = time_steps(e, ANSWERS, LENGTH - 1, ANSWERS, &decode);
    const double prompt_us = time_steps(e, PROMPTS, 0, 0, &prompt);
    const double writes_us = time_writes(e, &writes);
    printf("page %3d: answers %zu bytes %.2f us, prompts %zu bytes %.1f us, their writes %zu bytes "
           "%.1f us\n",
           page_size, decode, decode_us, prompt, prompt_us, writes, writes_us);
    for (int32_t k = 0; k < e->num_tables; k++) e->dev.page_tables[k] = NULL;
    for (int32_t g = 0; g < e->specs.count; g++) e->groups[g].attn = attn[g];
    msgl__free(table);
    e->device->ops = own;
    msgl__engine_destroy(e);
}

int main(int argc, char **argv)
{
    static const int32_t SIZES[] = {1, 16, 64, 128};
    if (argc != 2) fail("usage: bench_staging MODEL_DIR");
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) bench(argv[1], SIZES[i]);
    return 0;
}
