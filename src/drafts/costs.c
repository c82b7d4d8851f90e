// SPDX-License-Identifier: Apache-2.0
#include "drafts/costs.h"

enum { ALONE = 32, STEP = 8 }; // sizes of one number of rows each; then so many rows

static const float SMOOTHING = 0.25F, UNKNOWN_ROW = 0.02F, WORTH = 1.02F;

static int32_t size_of(int32_t rows)
{
    return rows <= ALONE ? rows - 1 : ALONE + (rows - ALONE - 1) / STEP;
}

// The rows that a size stands for.
static int32_t rows_of(int32_t size)
{
    return size < ALONE ? size + 1 : ALONE + (size - ALONE) * STEP + STEP / 2;
}

void msgl__costs_observe(msgl_step_costs *c, int32_t rows, uint64_t ns)
{
    const int32_t size = size_of(rows);
    if (rows < 1 || size >= MSGL_COST_SIZES) return;
    const float now = ns > 0 ? (float)ns : 1;
    c->ns[size] += c->ns[size] > 0 ? SMOOTHING * (now - c->ns[size]) : now;
}

float msgl__costs_of(const msgl_step_costs *c, int32_t rows)
{
    const int32_t size = size_of(rows);
    int32_t below = size < MSGL_COST_SIZES ? size : MSGL_COST_SIZES - 1;
    while (below >= 0 && c->ns[below] <= 0) below--;
    int32_t above = size;
    while (above < MSGL_COST_SIZES && c->ns[above] <= 0) above++;
    if (below < 0) return above < MSGL_COST_SIZES ? c->ns[above] : 0;
    const float least = c->ns[below];
    if (above >= MSGL_COST_SIZES) {
        return least *
               (1 + UNKNOWN_ROW * (float)(rows > rows_of(below) ? rows - rows_of(below) : 0));
    }
    if (above == below) return least;
    const float part = (float)(rows - rows_of(below)) / (float)(rows_of(above) - rows_of(below));
    return least + part * (c->ns[above] - least);
}

int32_t msgl__costs_choose(const msgl_step_costs *c, int32_t answers, const float *accepted,
                           int32_t num)
{
    const float alone = msgl__costs_of(c, answers);
    if (alone <= 0) return 0;
    float tokens = (float)answers, best = WORTH * tokens / alone;
    int32_t chosen = 0;
    for (int32_t i = 0; i < num; i++) {
        tokens += accepted[i];
        const float rate = tokens / msgl__costs_of(c, answers + i + 1);
        if (rate > best) {
            best = rate;
            chosen = i + 1;
        }
    }
    return chosen;
}
