// SPDX-License-Identifier: Apache-2.0
//
// The communicator of ranks on GPUs: who can reach whom, and which way a message goes.
#include "cuda/ranks/comm.h"

#include <stdio.h>
#include <string.h>

#include "cuda/device.cuh"

// Longest sums over peer memory where NCCL is there too. On two H200 this is faster at any length;
// what is longer than a slot goes in pieces (docs/internals/ranks.md). More than two ranks: not
// measured; NCCL needs fewer of the GPU's blocks to move much, and with more than four it moves
// less.
static size_t longest_peer_sum(int ranks)
{
    return ranks == 2 ? SIZE_MAX : ranks <= 4 ? MSGL_PEER_SLOT_BYTES : (size_t)512 << 10;
}

struct cuda_comm {
    msgl_comm base;
    msgl_cuda_device *device;
    msgl_peers peers;
    msgl_peer_sum sum; // of two ranks on GPUs that are alike; else all NULL
    bool has_peers;
    bool opened[MSGL_PEER_RANKS]; // peers.of of another process
    uint32_t *over;               // pinned
    msgl_nccl *nccl;              // NULL: none
};

static cuda_comm *of(msgl_comm *c)
{
    return (cuda_comm *)c;
}

static void nccl_check(const cuda_comm *c, msgl_exec *x, const char *wrong)
{
    if (wrong == NULL) return;
    msgl_device *d = &c->device->base;
    if (d->fault.code == 0) msgl__err_set(&d->fault, MSGL_EDEVICE, "NCCL: %.200s", wrong);
    x->status = MSGL_EDEVICE;
}

static bool takes_peers(const cuda_comm *c, size_t bytes)
{
    return c->has_peers && (c->nccl == NULL || bytes <= longest_peer_sum(c->base.size));
}

static void cuda_all_reduce(msgl_comm *base, msgl_exec *x, msgl_dtype dtype, void *buf, size_t n)
{
    cuda_comm *c = of(base);
    const size_t size = msgl__dtype_size(dtype), piece = MSGL_PEER_SLOT_BYTES / size;
    if (n == 0) return;
    if (!takes_peers(c, n * size)) {
        nccl_check(c, x, msgl__nccl_all_reduce(c->nccl, dtype, buf, n, msgl__cuda_stream(x)));
        return;
    }
    msgl_peer_reduce call = {};
    call.dtype = dtype;
    call.rows = 1;
    for (size_t done = 0; done < n; done += call.dim) {
        call.dim = n - done < piece ? n - done : piece;
        call.in = call.out = (char *)buf + done * size;
        MSGL_CUDA_TRY(x, msgl__peer_reduce(&c->peers, &call, msgl__cuda_stream(x)));
    }
}

static void fill_norm_stats(const msgl_reduce_add *a, msgl_peer_reduce *call)
{
    msgl_norm_stats *norm_stats = a->norm_stats;
    call->next_norm = a->next_norm;
    call->scaled = norm_stats->scaled, call->sums = norm_stats->sums;
    norm_stats->num_tiles = msgl__peer_norm_stats_tiles(call->dim);
    norm_stats->coded = false;
    norm_stats->x = a->residual;
    norm_stats->weight = a->next_norm;
    norm_stats->m = a->rows;
}

static bool cuda_all_reduce_add(msgl_comm *base, msgl_exec *x, const msgl_reduce_add *a)
{
    cuda_comm *c = of(base);
    const size_t rows = (size_t)a->rows, dim = (size_t)a->dim;
    const size_t row_bytes = dim * msgl__dtype_size(x->act);
    const size_t most = msgl__peer_most_rows(x->act, dim);
    if (!takes_peers(c, rows * row_bytes) || most == 0) return false;
    if (rows == 0) return true;
    const size_t pieces = (rows + most - 1) / most, piece = (rows + pieces - 1) / pieces;
    msgl_peer_reduce call = {};
    call.dtype = x->act;
    call.scale = a->scale;
    call.dim = dim;
    for (size_t done = 0; done < rows; done += call.rows) {
        call.rows = rows - done < piece ? rows - done : piece;
        call.in = (const char *)a->in + done * row_bytes;
        call.residual = (char *)a->residual + done * row_bytes;
        // Kernels for few rows read norm_stats, which a deterministic engine does not use.
        const bool leaves = pieces == 1 && a->next_norm != NULL && !c->device->deterministic;
        if (leaves) fill_norm_stats(a, &call);
        MSGL_CUDA_TRY(x, msgl__peer_reduce(&c->peers, &call, msgl__cuda_stream(x)));
    }
    return true;
}

static const msgl_peer_sum *cuda_meeting(msgl_comm *base, size_t n)
{
    const cuda_comm *c = of(base);
    return c->sum.count != NULL && n * sizeof(float) <= MSGL_PEER_SLOT_BYTES ? &c->sum : NULL;
}

static void cuda_all_gather(msgl_comm *base, msgl_exec *x, const float *in, size_t n, float *out)
{
    cuda_comm *c = of(base);
    const size_t piece = MSGL_PEER_SLOT_BYTES / sizeof *in;
    if (!takes_peers(c, n * sizeof *in)) {
        nccl_check(c, x, msgl__nccl_all_gather(c->nccl, in, n, out, msgl__cuda_stream(x)));
        return;
    }
    for (size_t done = 0, m; done < n; done += m) {
        m = n - done < piece ? n - done : piece;
        MSGL_CUDA_TRY(
            x, msgl__peer_gather(&c->peers, in + done, m, n, out + done, msgl__cuda_stream(x)));
    }
}

static void cuda_abort(msgl_comm *base)
{
    cuda_comm *c = of(base);
    __atomic_store_n(c->over, 1u, __ATOMIC_RELEASE);
    if (c->nccl != NULL) msgl__nccl_abort(c->nccl);
}

static void cuda_destroy(msgl_comm *base)
{
    cuda_comm *c = of(base);
    (void)cudaSetDevice(c->device->ordinal);
    if (c->nccl != NULL) msgl__nccl_destroy(c->nccl);
    for (int r = 0; r < MSGL_PEER_RANKS; r++) {
        if (c->opened[r]) (void)cudaIpcCloseMemHandle(c->peers.of[r]);
    }
    (void)cudaFree(base->rank < MSGL_PEER_RANKS ? c->peers.of[base->rank] : NULL);
    (void)cudaFreeHost(c->over);
    (void)cudaGetLastError();
    msgl__free(c);
}

static const msgl_comm_ops OPS = {
    "cuda",     cuda_all_reduce, cuda_all_reduce_add, cuda_meeting, cuda_all_gather,
    NULL, // all_to_all
    NULL, // broadcast
    cuda_abort, cuda_destroy,
};

// --- finding each other ------------------------------------------------------------------------

// What a rank says of itself.
struct introduction {
    cudaIpcMemHandle_t handle;
    cudaUUID_t gpu;
    int32_t sms, capability;
    char host[40]; // handles are of this host alone
    int32_t shows; // the handle is there
    int32_t nccl;
};

// The host's, as long as it runs; "": unknown.
static void name_host(char (&out)[40])
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f == NULL) return;
    if (fgets(out, sizeof out, f) == NULL) out[0] = '\0';
    fclose(f);
}

static int peer_gone(msgl_err *err)
{
    return msgl__err_set(err, MSGL_EPEER, "another rank ended");
}

static bool take_memory(cuda_comm *c, introduction *own)
{
    if (c->base.size > MSGL_PEER_RANKS) return false;
    void *memory = NULL;
    cudaError_t e = cudaMalloc(&memory, MSGL_PEER_BYTES);
    if (e == cudaSuccess) {
        c->peers.of[c->base.rank] = (msgl_peer_shared *)memory;
        e = msgl__peer_prepare(c->peers.of[c->base.rank], NULL);
    }
    if (e == cudaSuccess) e = cudaDeviceSynchronize();
    if (e == cudaSuccess) e = cudaIpcGetMemHandle(&own->handle, memory);
    (void)cudaGetLastError();
    return e == cudaSuccess;
}

// The others' memory. False: some of it cannot be seen; *why says why.
static bool open_peers(cuda_comm *c, const introduction *all, const char **why)
{
    if (c->base.size > MSGL_PEER_RANKS) {
        *why = "more than 8 ranks";
        return false;
    }
    for (int r = 0; r < c->base.size; r++) {
        if (r == c->base.rank) continue;
        if (!all[r].shows) {
            *why = "a rank has no memory to show";
            return false;
        }
        if (memcmp(all[r].host, all[c->base.rank].host, sizeof all[r].host) != 0) {
            *why = "a rank is on another host";
            return false;
        }
        void *memory = NULL;
        const cudaError_t e =
            cudaIpcOpenMemHandle(&memory, all[r].handle, cudaIpcMemLazyEnablePeerAccess);
        if (e != cudaSuccess) {
            *why = cudaGetErrorString(e);
            (void)cudaGetLastError();
            return false;
        }
        c->peers.of[r] = (msgl_peer_shared *)memory;
        c->opened[r] = true;
    }
    return true;
}

// Two ranks whose GPUs are alike: else a product's kernel that adds their parts might be for one of
// them alone.
static void meet_for_sums(cuda_comm *c, const introduction *all)
{
    if (c->base.size != 2 || all[0].sms != all[1].sms || all[0].capability != all[1].capability) {
        return;
    }
    msgl_peer_shared *const own = c->peers.of[c->base.rank];
    msgl_peer_shared *const theirs = c->peers.of[1 - c->base.rank];
    c->sum.theirs = (char *)theirs + MSGL_PEER_PUSHED;
    c->sum.own = (char *)own + MSGL_PEER_PUSHED;
    c->sum.count = &own->pushed;
    c->sum.ticket = &own->ticket;
    c->sum.over = c->over;
}

static bool all_of(const int32_t *said, int size)
{
    for (int r = 0; r < size; r++) {
        if (!said[r]) return false;
    }
    return true;
}

static bool distinct(const introduction *all, int size)
{
    for (int a = 0; a < size; a++) {
        for (int b = a + 1; b < size; b++) {
            if (memcmp(&all[a].gpu, &all[b].gpu, sizeof all[a].gpu) == 0) return false;
        }
    }
    return true;
}

// Every rank has the library, and every GPU one rank: NCCL refuses two.
static bool can_nccl(const introduction *all, int size)
{
    for (int r = 0; r < size; r++) {
        if (!all[r].nccl) return false;
    }
    return distinct(all, size);
}

static int connect_nccl(cuda_comm *c, const msgl_device_ranks *ranks, msgl_err *err)
{
    char ids[64][MSGL_NCCL_ID_BYTES] = {}, own[MSGL_NCCL_ID_BYTES] = {};
    int code = ranks->rank == 0 ? msgl__nccl_id(own, err) : 0;
    if (!ranks->exchange(ranks->ctx, own, sizeof own, ids)) return peer_gone(err);
    if (code == 0) code = msgl__nccl_create(ids[0], ranks->rank, ranks->size, &c->nccl, err);
    return code;
}

static int meet_all(cuda_comm *c, const msgl_device_ranks *ranks, char *note, size_t note_size,
                    msgl_err *err)
{
    introduction own = {}, all[64];
    msgl_err no_nccl = {};
    const char *no_peers = "switched off";
    int32_t sees[64], mine;
    cudaDeviceProp props;
    if (cudaGetDeviceProperties(&props, c->device->ordinal) == cudaSuccess) {
        own.gpu = props.uuid;
        own.sms = props.multiProcessorCount;
        own.capability = 10 * props.major + props.minor;
    }
    name_host(own.host);
    own.shows = !ranks->no_peers && take_memory(c, &own);
    own.nccl = msgl__nccl_open(ranks->nccl, &no_nccl);
    if (!ranks->exchange(ranks->ctx, &own, sizeof own, all)) return peer_gone(err);
    mine = !ranks->no_peers && open_peers(c, all, &no_peers);
    if (!ranks->exchange(ranks->ctx, &mine, sizeof mine, sees)) return peer_gone(err);
    c->has_peers = all_of(sees, ranks->size);
    if (c->has_peers) meet_for_sums(c, all);
    const bool nccl = can_nccl(all, ranks->size);
    if (!nccl && no_nccl.code == 0) {
        msgl__err_set(&no_nccl, MSGL_EUNSUPPORTED,
                      distinct(all, ranks->size) ? "another rank has no NCCL"
                                                 : "it allows one rank a GPU");
    }
    if (!c->has_peers && !nccl) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "ranks on GPUs: no peer memory (%.80s) and no NCCL (%.120s)",
                             mine ? "another rank's" : no_peers, no_nccl.text);
    }
    if (nccl) {
        const int code = connect_nccl(c, ranks, err);
        if (code != 0) return code;
    }
    snprintf(note, note_size, "ranks: %s%s%s", c->has_peers ? "peer memory" : "",
             c->has_peers && nccl ? ", " : "", nccl ? "NCCL " : "");
    if (nccl) strncat(note, msgl__nccl_version(), note_size - strlen(note) - 1);
    return 0;
}

extern "C" int msgl__cuda_comm_create(msgl_device *d, const msgl_device_ranks *ranks,
                                      msgl_comm **out, char *note, size_t note_size, msgl_err *err)
{
    *out = NULL;
    cuda_comm *c = (cuda_comm *)msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory for a communicator");
    c->device = (msgl_cuda_device *)d;
    c->base.ops = &OPS;
    c->base.rank = c->peers.rank = ranks->rank;
    c->base.size = c->peers.size = ranks->size;
    int code = 0;
    void *over = NULL;
    if (cudaSetDevice(c->device->ordinal) != cudaSuccess ||
        cudaHostAlloc(&over, sizeof *c->over, cudaHostAllocDefault) != cudaSuccess) {
        (void)cudaGetLastError();
        code = msgl__err_set(err, MSGL_ENOMEM, "ranks on GPUs: no pinned memory");
    } else {
        c->over = (uint32_t *)over;
        *c->over = 0;
        c->peers.over = c->over;
        code = meet_all(c, ranks, note, note_size, err);
    }
    if (code != 0) {
        cuda_destroy(&c->base);
        return code;
    }
    *out = &c->base;
    return 0;
}
