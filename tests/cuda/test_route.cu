// SPDX-License-Identifier: Apache-2.0
//
// How a GPU chooses experts, against f64: by their scores, and by the ids of tokens. cuda_route
// [--seed N] [--quick].
#include <vector>

#include "tests/cuda/router_case.cuh"

// Of three rows of one case with ties two may be so near that either choice is right; of all rows
// together no more than a tenth.
static struct {
    long rows, unclear;
} tested;

static void count_unclear(family *f, int rows, int unclear)
{
    tested.rows += rows;
    tested.unclear += unclear;
    expect(f, rows <= 3 || 2 * unclear < rows, "most rows are clear");
}

// Every second expert and every second group is the one before it again.
static void repeat(float *values, int experts, int num_groups)
{
    const int size = num_groups > 1 ? experts / num_groups : experts;
    for (int i = 0; i < experts; i++) {
        if (i / size % 2 != 0) {
            values[i] = values[i - size];
        } else if (i % size % 2 != 0) {
            values[i] = values[i - 1];
        }
    }
}

static void check_route(bench_exec *e, family *f, int rows, int experts, int top_k, int num_groups,
                        int top_groups, int kind, bool ties, uint64_t *seed)
{
    array l = array_new(MSGL_F32, (size_t)rows * experts, 2, seed);
    array correction = array_new(MSGL_F32, (size_t)experts, 0.5f, seed);
    const bool sums = (kind & CORRECTED) != 0 || (num_groups > 1 && (kind & PAIRS) != 0);
    for (size_t i = 0; ties && !sums && i < l.n; i++) l.host[i] = roundf(l.host[i]);
    for (int r = 0; ties && r < rows; r++) {
        repeat(l.host + (size_t)r * experts, experts, num_groups);
    }
    if (ties) repeat(correction.host, experts, num_groups);
    array_upload(&l), array_upload(&correction);
    const size_t n = (size_t)rows * top_k;
    array w = array_new(MSGL_F32, n, 0, seed), ids = array_new(MSGL_F32, n, 0, seed);
    int32_t *got = (int32_t *)malloc(n * 4);
    const msgl_router how = router_of(top_k, kind, num_groups, top_groups, (float *)correction.dev);
    msgl__cuda_moe_route(&e->x, &how, (float *)l.dev, rows, experts, (int32_t *)ids.dev,
                         (float *)w.dev);
    exec_sync(e);
    CUDA_OK(cudaMemcpy(got, ids.dev, n * 4, cudaMemcpyDeviceToHost));
    array_download(&w);
    int unclear = 0;
    for (int r = 0; r < rows; r++) {
        int32_t chosen[64];
        double want[64];
        if (!route_oracle(&how, how.correction != NULL ? correction.host : NULL,
                          l.host + (size_t)r * experts, experts, chosen, want)) {
            unclear++;
            continue;
        }
        for (int c = 0; c < top_k; c++) {
            expect(f, got[(size_t)r * top_k + c] == chosen[c], "expert");
            expect_near(f, w.host[(size_t)r * top_k + c], want[c], want[c] * 3e-6 + 1e-12,
                        "weight");
        }
    }
    count_unclear(f, rows, unclear);
    free(got), array_free(&l), array_free(&w), array_free(&ids), array_free(&correction);
}

// A choice of two by SparseMixer. away: how far from the best an expert may be.
static void check_mix(bench_exec *e, family *f, int rows, int experts, float away, uint64_t *seed)
{
    const size_t n = (size_t)rows * 2;
    msgl_router how = {};
    how.top_k = 2;
    how.scoring = MSGL_SCORE_SPARSEMIXER;
    how.scale = 1;
    how.spread = away;
    array l = array_new(MSGL_F32, (size_t)rows * experts, 2, seed);
    array w = array_new(MSGL_F32, n, 0, seed), ids = array_new(MSGL_F32, n, 0, seed);
    int32_t *got = (int32_t *)malloc(n * 4);
    msgl__cuda_moe_route(&e->x, &how, (float *)l.dev, rows, experts, (int32_t *)ids.dev,
                         (float *)w.dev);
    exec_sync(e);
    CUDA_OK(cudaMemcpy(got, ids.dev, n * 4, cudaMemcpyDeviceToHost));
    array_download(&w);
    int unclear = 0;
    for (int r = 0; r < rows; r++) {
        int32_t chosen[2];
        double want[2];
        if (!route_oracle(&how, NULL, l.host + (size_t)r * experts, experts, chosen, want)) {
            unclear++;
            continue;
        }
        for (int c = 0; c < 2; c++) {
            expect(f, got[r * 2 + c] == chosen[c], "expert");
            expect_near(f, w.host[r * 2 + c], want[c], want[c] * 3e-6, "weight");
        }
    }
    count_unclear(f, rows, unclear);
    free(got), array_free(&l), array_free(&w), array_free(&ids);
}

// Experts by the ids of tokens, some of which have no row of the table.
static void check_table(bench_exec *e, family *f, int rows, int experts, int top_k, int kind,
                        uint64_t *seed)
{
    const int ids = 11;
    const size_t n = (size_t)rows * top_k;
    array l = array_new(MSGL_F32, (size_t)rows * experts, kind & SOFTPLUS ? 12 : 2, seed);
    array table = array_new(MSGL_F32, (size_t)ids * top_k, 1, seed);
    array w = array_new(MSGL_F32, n, 0, seed);
    std::vector<int32_t> tokens, got(n);
    for (int i = 0; i < ids; i++) { // different ones
        const int first = (int)(rng_next(seed) % (uint64_t)experts);
        for (int c = 0; c < top_k; c++) table.host[i * top_k + c] = (float)((first + c) % experts);
    }
    array_upload(&table);
    for (int r = 0; r < rows; r++) tokens.push_back((int)(rng_next(seed) % (ids + 4)) - 2);
    int32_t *const tokens_dev = ints_upload(tokens.data(), tokens.size());
    int32_t *const ids_dev = ints_upload(got.data(), n);
    msgl_router how = router_of(top_k, kind, 0, 0, NULL);
    how.table = (float *)table.dev, how.table_ids = ids;
    msgl__cuda_moe_look_up(&e->x, &how, (float *)l.dev, tokens_dev, rows, experts, ids_dev,
                           (float *)w.dev);
    exec_sync(e);
    CUDA_OK(cudaMemcpy(got.data(), ids_dev, n * 4, cudaMemcpyDeviceToHost));
    array_download(&w);
    for (int r = 0; r < rows; r++) {
        const int at = tokens[r] < 0 ? 0 : tokens[r] < ids ? tokens[r] : ids - 1;
        std::vector<double> scores(experts);
        route_oracle_scores(&how, l.host + (size_t)r * experts, experts, scores.data());
        double kept = 0;
        for (int c = 0; c < top_k; c++) kept += scores[(int)table.host[at * top_k + c]];
        for (int c = 0; c < top_k; c++) {
            const int expert = (int)table.host[at * top_k + c];
            const double want = how.scale * scores[expert] / (how.norm_topk ? kept : 1);
            expect(f, got[(size_t)r * top_k + c] == expert, "expert of a token's id");
            expect_near(f, w.host[(size_t)r * top_k + c], want, want * 1e-5 + 1e-12, "weight");
        }
    }
    cudaFree(tokens_dev), cudaFree(ids_dev);
    array_free(&l), array_free(&table), array_free(&w);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family route = {"route"}, table = {"table"};
    const int shapes[][2] = {{1, 1},   {8, 2},   {32, 8},   {60, 4},   {64, 6},   {128, 8},
                             {200, 8}, {256, 8}, {384, 16}, {512, 10}, {1000, 7}, {1024, 64}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int experts = shapes[i][0], k = shapes[i][1];
        for (int v = 0; v < 4; v++) {
            check_route(&e, &route, o.quick ? 3 : 37, experts, k, 0, 0, v & 1, v & 2, &seed);
            check_route(&e, &route, o.quick ? 3 : 37, experts, k, 0, 0, (v & 1) | SOFTPLUS, v & 2,
                        &seed);
            check_table(&e, &table, o.quick ? 3 : 37, experts, k, v & 1, &seed);
            check_table(&e, &table, o.quick ? 3 : 37, experts, k, (v & 1) | SIGMOID, &seed);
            check_table(&e, &table, o.quick ? 3 : 37, experts, k, (v & 1) | SOFTPLUS, &seed);
        }
    }
    // Those of DeepSeek V2 and V3 are among them; groups that end within a lane and at one.
    const int grouped[][4] = {{8, 2, 1, 1},    {64, 6, 1, 1},   {160, 6, 8, 3},  {256, 8, 8, 4},
                              {64, 8, 32, 5},  {66, 8, 22, 3},  {34, 7, 2, 1},   {384, 8, 1, 1},
                              {512, 9, 16, 7}, {1000, 4, 8, 3}, {1024, 64, 8, 2}};
    for (size_t i = 0; i < sizeof grouped / sizeof *grouped; i++) {
        const int *g = grouped[i];
        for (int v = 0; v < 4 * KINDS; v++) {
            check_route(&e, &route, o.quick ? 3 : 37, g[0], g[1], g[2], g[3], v / 2, v & 1, &seed);
        }
    }
    check_mix(&e, &route, o.quick ? 20 : 5000, 16, 0.02f, &seed);
    check_mix(&e, &route, 37, 100, 0.6f, &seed);
    if (!o.quick) {
        check_route(&e, &route, 16384, 128, 8, 0, 0, NORMED, false, &seed);
        check_route(&e, &route, 16384, 256, 8, 8, 4, KINDS - 1, false, &seed);
    }
    expect(&route, 10 * tested.unclear < tested.rows, "nine of ten rows are clear");
    const int failed = family_end(&route);
    return family_end(&table) | failed;
}
