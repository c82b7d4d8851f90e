// SPDX-License-Identifier: Apache-2.0
#include "emulator.h"

#include <algorithm>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

#include <cuda_runtime.h>

#include "cuda/ptx/copy.cuh"

dim3 threadIdx, blockIdx, blockDim, gridDim;
uint64_t emulator_seed = 1;
bool emulator_in_order;
int emulator_major = 8;
emulator_graph *emulator_capture;
std::vector<std::vector<emulator_copy>> emulator_copies[EMULATOR_THREADS];

namespace
{

enum state { READY, AT_BARRIER, AT_EXCHANGE, ENDED };

const size_t STACK = 128 << 10;

struct fiber {
    jmp_buf at;
    state where;
    const char *site; // of the barrier or exchange
    int slot;         // of exchanges, in turns
    char *stack;
};

fiber fibers[EMULATOR_THREADS];
int num_threads, current;
jmp_buf scheduler;
const std::function<void()> *kernel;
uint32_t words[2][EMULATOR_THREADS / 32][32][EMULATOR_WORDS];

uint64_t next_random()
{
    emulator_seed ^= emulator_seed << 13;
    emulator_seed ^= emulator_seed >> 7;
    return emulator_seed ^= emulator_seed << 17;
}

template <typename T> void shuffle(std::vector<T> *v)
{
    for (size_t i = v->size(); i > 1; i--) std::swap((*v)[i - 1], (*v)[next_random() % i]);
}

// Back to the scheduler, until that goes on here.
void stop(state why, const char *site)
{
    fiber &f = fibers[current];
    f.where = why;
    f.site = site;
    if (_setjmp(f.at) == 0) _longjmp(scheduler, 1);
}

// A fiber is the same thread of one block after the other.
void begin()
{
    for (;;) {
        (*kernel)();
        stop(ENDED, "the end");
    }
}

// A context is made once, as that asks the system; between threads jumps are enough.
void start(int thread)
{
    static ucontext_t made, here;
    fiber &f = fibers[thread];
    f.stack = (char *)malloc(STACK);
    getcontext(&made);
    made.uc_stack.ss_sp = f.stack;
    made.uc_stack.ss_size = STACK;
    made.uc_link = NULL;
    makecontext(&made, begin, 0);
    swapcontext(&here, &made);
}

void run(int thread)
{
    current = thread;
    threadIdx = dim3((unsigned)thread);
    if (_setjmp(scheduler) != 0) return;
    if (fibers[thread].stack == NULL) start(thread);
    _longjmp(fibers[thread].at, 1);
}

// Lets a warp go on that is complete at an exchange. False: it is not.
bool complete(int warp)
{
    fiber *f = fibers + warp * 32;
    for (int i = 0; i < 32; i++) {
        if (f[i].where != AT_EXCHANGE) return false;
        if (strcmp(f[i].site, f[0].site) != 0) emulator_fail("lanes of a warp part at", f[i].site);
    }
    for (int i = 0; i < 32; i++) f[i].where = READY;
    return true;
}

// Lets all go on that wait at a barrier, once nobody does anything else. False: all have ended.
bool release()
{
    const char *site = NULL;
    for (int i = 0; i < num_threads; i++) {
        const fiber &f = fibers[i];
        if (f.where == ENDED) continue;
        if (f.where != AT_BARRIER) emulator_fail("a warp waits for ended or waiting lanes", f.site);
        if (site != NULL && strcmp(site, f.site) != 0) emulator_fail("other barriers than", f.site);
        site = f.site;
    }
    for (int i = 0; i < num_threads; i++) {
        if (fibers[i].where == AT_BARRIER) fibers[i].where = READY;
    }
    return site != NULL;
}

void run_block()
{
    std::vector<int> warps, lanes(32);
    for (int i = 0; i < num_threads / 32; i++) warps.push_back(i);
    for (int i = 0; i < 32; i++) lanes[i] = i;
    for (int i = 0; i < num_threads; i++) {
        fibers[i].where = READY;
        fibers[i].slot = 0;
        emulator_copies[i].assign(1, {});
    }
    for (;;) {
        bool any = false;
        shuffle(&warps);
        for (int warp : warps) {
            // Some warps run ahead, up to where they cannot.
            for (int rounds = (int)(next_random() % 64); rounds >= 0; rounds--) {
                bool ran = false;
                shuffle(&lanes);
                for (int lane : lanes) {
                    const int i = warp * 32 + lane;
                    if (fibers[i].where != READY) continue;
                    run(i);
                    ran = true;
                }
                ran = complete(warp) || ran;
                any = any || ran;
                if (!ran) break;
            }
        }
        if (!any && !release()) return;
    }
}

} // namespace

void emulator_fail(const char *what, const char *where)
{
    fprintf(stderr, "%s %s (block %u %u, thread %u)\n", what, where, blockIdx.x, blockIdx.y,
            threadIdx.x);
    abort();
}

uint64_t emulator_draw()
{
    return next_random();
}

void emulator_yield()
{
    stop(READY, "a look");
}

void emulator_barrier(const char *where)
{
    stop(AT_BARRIER, where);
}

const uint32_t (*emulator_exchange(const char *where, const uint32_t *from, int n))[EMULATOR_WORDS]
{
    fiber &f = fibers[current];
    const int slot = f.slot ^= 1, warp = current / 32; // others may still read the last one's
    if (n > 0) memcpy(words[slot][warp][current % 32], from, (size_t)n * sizeof *from);
    stop(AT_EXCHANGE, where);
    return words[slot][warp];
}

void emulator_run(dim3 grid, dim3 block, const std::function<void()> &fn)
{
    if (block.x % 32 != 0 || block.x > EMULATOR_THREADS || block.y * block.z != 1) {
        emulator_fail("blocks are whole warps in x, here", "");
    }
    num_threads = (int)block.x;
    kernel = &fn;
    blockDim = block;
    gridDim = grid;
    std::vector<unsigned> ids;
    for (unsigned i = 0; i < grid.x * grid.y * grid.z; i++) ids.push_back(i);
    if (!emulator_in_order) shuffle(&ids);
    for (unsigned i : ids) {
        blockIdx = dim3(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y);
        run_block();
    }
}
