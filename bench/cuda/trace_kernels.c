// SPDX-License-Identifier: Apache-2.0
//
// When the kernels of a program ran, those in graphs and those that start early among them, which
// printed times of whole steps do not tell apart. CUDA loads this into any program:
//     CUDA_INJECTION64_PATH=build/trace_kernels.so TRACE_FILE=step.csv minisgl bench decode ...
// At the program's end step.csv has the last TRACE_LAST kernels (1000, if it is not set) in the
// order in which they began: start and end in us from the first one's start; behind, from the end
// of the one in front to its own, which is what a kernel adds where kernels overlap; blocks and
// threads of a block; bytes of shared memory and registers of a block's thread; its name, mangled
// (c++filt). A step of Qwen3-14B takes as long with it as without (H200, graphs).
#include <cupti.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 16 << 20, NAME_BYTES = 100, DEFAULT_LAST = 1000 };

typedef struct kernel {
    uint64_t start, end; // ns
    unsigned blocks, threads, shared, registers;
    char name[NAME_BYTES];
} kernel;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; // of what follows
static kernel *kernels;                                   // [used], room for `room`
static size_t used, room;
static bool lost; // some, for want of memory

static void add(const CUpti_ActivityKernel10 *k)
{
    if (used == room) {
        const size_t more = room > 0 ? 2 * room : 1 << 16;
        kernel *all = realloc(kernels, more * sizeof *all);
        if (all == NULL) {
            lost = true;
            return;
        }
        kernels = all;
        room = more;
    }
    kernel *to = &kernels[used++];
    *to = (kernel){.start = k->start,
                   .end = k->end,
                   .blocks = (unsigned)k->gridX * (unsigned)k->gridY * (unsigned)k->gridZ,
                   .threads = (unsigned)k->blockX * (unsigned)k->blockY * (unsigned)k->blockZ,
                   .shared = (unsigned)(k->dynamicSharedMemory + k->staticSharedMemory),
                   .registers = k->registersPerThread};
    snprintf(to->name, sizeof to->name, "%s", k->name != NULL ? k->name : "");
}

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *max_records)
{
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *bytes = *buffer != NULL ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                 size_t filled)
{
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)bytes;
    pthread_mutex_lock(&guard);
    while (cuptiActivityGetNextRecord(buffer, filled, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            add((const CUpti_ActivityKernel10 *)record);
        }
    }
    pthread_mutex_unlock(&guard);
    free(buffer);
}

static int compare_starts(const void *a, const void *b)
{
    const uint64_t s = ((const kernel *)a)->start, t = ((const kernel *)b)->start;
    return (s > t) - (s < t);
}

static void write_rows(FILE *f, size_t first)
{
    fputs("start_us,end_us,behind_us,blocks,threads,shared_bytes,registers,kernel\n", f);
    for (size_t i = first; i < used; i++) {
        const kernel *k = &kernels[i], *front = &kernels[i > first ? i - 1 : i];
        const double from = (double)kernels[first].start;
        fprintf(f, "%.3f,%.3f,%.3f,%u,%u,%u,%u,%s\n", ((double)k->start - from) / 1e3,
                ((double)k->end - from) / 1e3, ((double)k->end - (double)front->end) / 1e3,
                k->blocks, k->threads, k->shared, k->registers, k->name);
    }
}

static void write_trace(void)
{
    const char *const name = getenv("TRACE_FILE"), *const last = getenv("TRACE_LAST");
    const long wanted = last != NULL ? strtol(last, NULL, 10) : DEFAULT_LAST;
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    pthread_mutex_lock(&guard);
    if (used > 0) qsort(kernels, used, sizeof *kernels, compare_starts);
    const size_t most = wanted > 0 ? (size_t)wanted : DEFAULT_LAST;
    FILE *f = name != NULL ? fopen(name, "w") : NULL;
    if (f == NULL) {
        fprintf(stderr, "trace_kernels: TRACE_FILE: %s\n",
                name != NULL ? "cannot be written" : "not set");
    } else {
        write_rows(f, used > most ? used - most : 0);
        if (fclose(f) != 0) fprintf(stderr, "trace_kernels: %s: cannot be written\n", name);
        if (lost) fprintf(stderr, "trace_kernels: out of memory, kernels are missing\n");
    }
    pthread_mutex_unlock(&guard);
}

// CUDA calls this when it starts. 0: there is no trace.
__attribute__((visibility("default"))) int InitializeInjection(void);
int InitializeInjection(void)
{
    if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
        atexit(write_trace) != 0) {
        fprintf(stderr, "trace_kernels: CUPTI does not trace this program\n");
        return 0;
    }
    return 1;
}
