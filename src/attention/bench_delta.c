// SPDX-License-Identifier: Apache-2.0
#include "attention/bench_delta.h"

#include <float.h>

#include "attention/bench_calls.h"
#include "core/mem.h"
#include "core/round.h"
#include "core/seqs.h"
#include "kernel/kernel.h"

// Sets of states: of neighbouring calls no two may have the same one, since a kernel may read it
// before the call ahead has ended.
enum { MIN_SETS = 4, MAX_SETS = 256, CACHED = 1000, ROW_UNIT = 8, STATE_UNIT = 128 };

// Memory of the device.
typedef struct block {
    void *p;
    size_t bytes;
} block;

typedef struct bench {
    const msgl_delta_bench_shape *shape;
    msgl_device *device; // NULL: the CPU
    const msgl_kernels *kernels;
    msgl_exec exec;
    msgl_arena scratch;
    msgl_delta_call call; // of the delta rules
    msgl_ssm_call ssm;    // of Mamba-2
    int32_t sets;
    block rows, out, params, states, work, ints; // ints: as host_ints
    msgl_batch batch;
    msgl_seqs seqs;
    void *host_ints; // the lengths, then -1 [batch], then the states of each set [sets, batch]
} bench;

static int check_shape(const msgl_delta_bench_shape *s, msgl_err *err)
{
    const int32_t dims = s->k_dim > s->v_dim ? s->k_dim : s->v_dim;
    if (s->batch >= 1 && s->batch <= 4096 && s->tokens >= 1 && s->tokens <= 1 << 20 &&
        (int64_t)s->batch * s->tokens <= 1 << 22 && s->k_heads >= 1 && s->v_heads >= 1 &&
        s->v_heads <= 1024 && s->v_heads % s->k_heads == 0 && s->k_dim >= 16 && s->v_dim >= 16 &&
        s->k_dim % 16 == 0 && s->v_dim % 16 == 0 && dims <= MSGL_DELTA_MAX_DIM &&
        (s->phase == MSGL_PREFILL || s->tokens == 1)) {
        return 0;
    }
    return msgl__err_set(err, MSGL_EINVAL,
                         "bench attn: impossible shape of linear attention (batch %d, %d tokens)",
                         (int)s->batch, (int)s->tokens);
}

static bool take(const bench *b, block *to, size_t bytes)
{
    to->bytes = bytes;
    to->p = msgl__bench_take(b->device, bytes);
    return to->p != NULL;
}

// Rows of so many columns for the inputs, and parameters, all of random content.
static int take_rows(bench *b, size_t ld, size_t params, msgl_err *err)
{
    const msgl_delta_bench_shape *s = b->shape;
    const size_t elem = msgl__dtype_size(b->exec.act);
    const size_t values = (size_t)s->v_heads * (size_t)s->v_dim;
    const size_t tokens = (size_t)s->batch * (size_t)s->tokens;
    if (!take(b, &b->rows, tokens * ld * elem) || !take(b, &b->out, tokens * values * elem) ||
        !take(b, &b->params, params * sizeof(float))) {
        return msgl__err_set(err, MSGL_ENOMEM, "bench attn: no memory for %zu tokens", tokens);
    }
    const int rc = msgl__bench_fill(b->device, b->rows.p, b->exec.act, tokens * ld, 1, err);
    return rc != 0 ? rc : msgl__bench_fill(b->device, b->params.p, MSGL_F32, params, 2, err);
}

// Rows of a token as a layer has them: channels, z, b, a.
static int make_delta_rows(bench *b, msgl_err *err)
{
    const msgl_delta_bench_shape *s = b->shape;
    msgl_delta_call *c = &b->call;
    const size_t elem = msgl__dtype_size(b->exec.act), channels = (size_t)msgl__delta_channels(c);
    const size_t values = (size_t)s->v_heads * (size_t)s->v_dim, heads = (size_t)s->v_heads;
    const size_t decays = c->by_channel ? heads * (size_t)s->k_dim : heads;
    const size_t ld = msgl__round_up(channels + values + heads + decays, ROW_UNIT);
    const int rc =
        take_rows(b, ld, channels * MSGL_DELTA_TAPS + (size_t)s->v_dim + heads + decays, err);
    if (rc != 0) return rc;
    c->ld_qkv = c->ld_z = c->ld_a = c->ld_b = ld;
    c->qkv = b->rows.p;
    c->z = (char *)b->rows.p + channels * elem;
    c->b = (char *)b->rows.p + (channels + values) * elem;
    c->a = (char *)b->rows.p + (channels + values + heads) * elem;
    c->out = b->out.p, c->ld_out = values;
    c->conv = b->params.p, c->norm = c->conv + channels * MSGL_DELTA_TAPS;
    c->a_log = c->norm + s->v_dim, c->dt_bias = c->a_log + heads;
    c->norm_eps = 1e-6f;
    return 0;
}

// z, x, b, c, dt.
static int make_ssm_rows(bench *b, msgl_err *err)
{
    msgl_ssm_call *c = &b->ssm;
    const size_t elem = msgl__dtype_size(b->exec.act), heads = (size_t)c->heads;
    const size_t wide = heads * (size_t)c->head_dim;
    const size_t states = (size_t)c->groups * (size_t)c->state_dim;
    const size_t ld = msgl__round_up(2 * wide + 2 * states + heads, ROW_UNIT);
    const int rc = take_rows(b, ld, 3 * heads + wide, err);
    if (rc != 0) return rc;
    const char *const row = b->rows.p;
    c->ld_x = c->ld_z = ld;
    c->z = row, c->x = row + wide * elem;
    c->b = row + 2 * wide * elem, c->c = row + (2 * wide + states) * elem;
    c->dt = row + 2 * (wide + states) * elem;
    c->out = b->out.p, c->ld_out = wide;
    c->norm_weight = b->params.p;
    c->a_log = c->norm_weight + wide, c->d = c->a_log + heads, c->dt_bias = c->d + heads;
    return 0;
}

static bool is_mamba(const bench *b)
{
    return b->shape->rule == MSGL_BENCH_MAMBA;
}

static int make_rows(bench *b, msgl_err *err)
{
    return is_mamba(b) ? make_ssm_rows(b, err) : make_delta_rows(b, err);
}

static msgl_states *states_of(bench *b)
{
    return is_mamba(b) ? &b->ssm.io : &b->call.io;
}

static int make_states(bench *b, msgl_err *err)
{
    msgl_states *io = states_of(b);
    const size_t matrix = msgl__delta_matrix_bytes(&b->call), batch = (size_t)b->shape->batch;
    const size_t inputs =
        is_mamba(b) ? 0 : (size_t)msgl__delta_channels(&b->call) * MSGL_DELTA_TAPS;
    io->stride = msgl__round_up(matrix + inputs * msgl__dtype_size(b->exec.act), STATE_UNIT);
    const size_t sets = MSGL_BENCH_BYTES / (io->stride * batch);
    b->sets = sets < MIN_SETS ? MIN_SETS : sets > MAX_SETS ? MAX_SETS : (int32_t)sets;
    const size_t n = batch * (size_t)b->sets;
    if (!take(b, &b->states, n * io->stride)) {
        return msgl__err_set(err, MSGL_ENOMEM, "bench attn: no memory for %zu states", n);
    }
    io->base = b->states.p;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        char *state = (char *)io->base + i * io->stride;
        rc = msgl__bench_fill(b->device, state, MSGL_F32, matrix / sizeof(float), 3 + i, err);
        if (rc == 0) rc = msgl__bench_fill(b->device, state + matrix, b->exec.act, inputs, i, err);
    }
    return rc;
}

static int make_lengths(bench *b, msgl_err *err)
{
    const msgl_delta_bench_shape *s = b->shape;
    const size_t batch = (size_t)s->batch, lengths = msgl__seqs_bytes(s->batch);
    const size_t bytes = lengths + batch * ((size_t)b->sets + 1) * sizeof(int32_t);
    b->host_ints = msgl__calloc(1, bytes);
    b->batch.reqs = msgl__calloc(batch, sizeof *b->batch.reqs);
    if (b->host_ints == NULL || b->batch.reqs == NULL || !take(b, &b->ints, bytes)) {
        return msgl__err_set(err, MSGL_ENOMEM, "bench attn: out of memory");
    }
    const int32_t cached = s->phase == MSGL_DECODE ? CACHED : 0, len = cached + s->tokens;
    for (int32_t r = 0; r < s->batch; r++) {
        b->batch.reqs[r] = (msgl_batch_req){
            .table_idx = r, .cached_len = cached, .device_len = len, .prompt_len = len};
    }
    b->batch.size = s->batch;
    b->batch.num_decode = s->phase == MSGL_DECODE ? s->batch : 0;
    const void *device = b->device != NULL ? b->ints.p : b->host_ints;
    msgl__seqs_fill(&b->batch, 0, s->batch, 0, s->batch, s->batch, b->host_ints, device, &b->seqs);
    states_of(b)->seqs = &b->seqs;
    int32_t *states = (int32_t *)((char *)b->host_ints + lengths);
    for (int32_t i = 0; i < s->batch; i++) *states++ = -1;
    for (int32_t i = 0; i < s->batch * b->sets; i++) *states++ = i;
    if (b->device == NULL) return 0;
    b->device->ops->copy_in(b->device, b->ints.p, b->host_ints, bytes);
    return msgl__bench_wait(b->device, err);
}

static int make_scratch(bench *b, msgl_err *err)
{
    const size_t bytes = is_mamba(b) ? 0 : b->kernels->delta.scratch_size(&b->call);
    if (bytes > 0 && !take(b, &b->work, bytes)) {
        return msgl__err_set(err, MSGL_ENOMEM, "bench attn: no memory for %zu bytes", bytes);
    }
    msgl__arena_init(&b->scratch, b->work.p, bytes);
    b->exec.scratch = &b->scratch;
    return 0;
}

// Answers go on from a state, prompts begin with none; the set of states is the call's.
static void run(void *ctx, int64_t call)
{
    bench *b = ctx;
    const int32_t batch = b->shape->batch;
    const size_t at = msgl__seqs_bytes(batch), set = (size_t)(call % b->sets) + 1;
    const int32_t *host = (const int32_t *)((const char *)b->host_ints + at);
    const int32_t *dev = (const int32_t *)((const char *)b->ints.p + at);
    const size_t to = set * (size_t)batch, from = b->shape->phase == MSGL_DECODE ? to : 0;
    msgl_seq_states *states = &states_of(b)->at;
    states->from = host + from, states->dev_from = dev + from;
    states->to = host + to, states->dev_to = dev + to;
    if (is_mamba(b)) {
        b->kernels->ssm.run(&b->exec, &b->ssm);
    } else {
        b->kernels->delta.run(&b->exec, &b->call);
    }
    msgl__arena_reset(&b->scratch);
}

static int measure(bench *b, double seconds, msgl_attn_bench_result *out, msgl_err *err)
{
    const msgl_bench_calls calls = {.exec = &b->exec, .run = run, .ctx = b};
    const int rc = msgl__bench_time(&calls, seconds, &out->forward_ms, err);
    if (rc != 0 || b->device == NULL || b->shape->phase != MSGL_DECODE) return rc;
    return msgl__bench_graph(&calls, b->sets, seconds, &out->graph_ms, err);
}

static void count_work(const bench *b, msgl_attn_bench_result *out)
{
    const msgl_delta_bench_shape *s = b->shape;
    const double cells = (double)s->v_heads * s->k_dim * s->v_dim;
    const int passes = s->phase == MSGL_DECODE ? 2 : 1;
    out->bytes = (double)passes * s->batch * (double)msgl__delta_matrix_bytes(&b->call);
    out->flops = 6.0 * cells * s->batch * s->tokens;
}

static void release(bench *b)
{
    block *const blocks[] = {&b->rows, &b->out, &b->params, &b->states, &b->work, &b->ints};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        msgl__bench_give(b->device, blocks[i]->p, blocks[i]->bytes);
    }
    msgl__free(b->host_ints);
    msgl__free(b->batch.reqs);
}

static bool has_kernel(const bench *b)
{
    const msgl_ssm_kernels *k = &b->kernels->ssm;
    if (is_mamba(b)) {
        return k->run != NULL && (k->max_state_dim == 0 || b->ssm.state_dim <= k->max_state_dim);
    }
    const int32_t capability = b->device != NULL ? b->device->capability : 0;
    return b->kernels->delta.supports(capability, b->exec.act, &b->call);
}

int msgl__delta_bench(const msgl_delta_bench_shape *shape, const msgl_attn_bench_env *env,
                      double seconds, msgl_attn_bench_result *out, msgl_err *err)
{
    msgl_device *device = env->device;
    bench b = {.shape = shape,
               .device = device,
               .kernels = env->kernels,
               .exec = {.device = device,
                        .act = device != NULL ? MSGL_BF16 : MSGL_F32,
                        .pool = env->threads},
               .call = {.k_heads = shape->k_heads,
                        .v_heads = shape->v_heads,
                        .k_dim = shape->k_dim,
                        .v_dim = shape->v_dim,
                        .by_channel = shape->rule == MSGL_BENCH_KIMI_DELTA,
                        .sigmoid_gate = shape->rule == MSGL_BENCH_KIMI_DELTA},
               .ssm = {.heads = shape->v_heads,
                       .groups = shape->k_heads,
                       .head_dim = shape->v_dim,
                       .state_dim = shape->k_dim,
                       .dt_max = FLT_MAX,
                       .dt_scale = 1,
                       .z_scale = 1,
                       .norm = MSGL_SSM_NORM_GATED,
                       .norm_eps = 1e-5f,
                       .norm_groups = 1}};
    *out = (msgl_attn_bench_result){0};
    int rc = check_shape(shape, err);
    if (rc == 0 && !has_kernel(&b)) {
        rc = msgl__err_set(err, MSGL_EUNSUPPORTED,
                           "linear attention: no kernel for heads of %d and %d and activations of "
                           "%s on this device",
                           (int)shape->k_dim, (int)shape->v_dim, msgl__dtype_name(b.exec.act));
    }
    if (rc == 0) rc = make_rows(&b, err);
    if (rc == 0) rc = make_states(&b, err);
    if (rc == 0) rc = make_lengths(&b, err);
    if (rc == 0) rc = make_scratch(&b, err);
    if (rc == 0) rc = measure(&b, seconds, out, err);
    if (rc == 0) count_work(&b, out);
    release(&b);
    return rc;
}
