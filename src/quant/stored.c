// SPDX-License-Identifier: Apache-2.0
#include "quant/stored.h"

#include <string.h>

#include "core/mem.h"
#include "core/round.h"
#include "quant/internal.h"

void msgl__codes_split(const msgl_codes *c, const uint8_t *block, msgl_code_block *out)
{
    if (c->split != NULL) {
        c->split(block, out);
        return;
    }
    msgl_code_part part;
    memcpy(&part, block, sizeof part);
    memcpy(out->codes, part.codes, sizeof part.codes);
    memcpy(out->c, part.c, sizeof part.c);
    memcpy(out->e, part.e, sizeof part.e);
    out->d = part.d;
    out->dmin = part.dmin;
}

static size_t common_divisor(size_t a, size_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

// A group that is cut has its scale in several spans. Example: of groups of 96 columns, columns 288
// to 575 have spans of 32, each three of them with one group's scale.
static size_t span_of(const msgl_packed *p, size_t first_col)
{
    const size_t group = p->how->group;
    return group < p->cols ? common_divisor(common_divisor(MSGL_MAX_BLOCK, group), first_col) : 0;
}

static size_t group_of(const msgl_packed *p, size_t col)
{
    return msgl__block_u32(p->how->sides[MSGL_ORDER].data + 4 * col);
}

// What divides the places at which groups begin. Example: groups of 40, 64 and 60 columns have
// places 0, 64 and 128 on, and spans of 64.
static size_t ordered_span(const msgl_packed *p, size_t first_col, const msgl_column_order *order)
{
    const size_t col = first_col + (size_t)order->columns[0];
    size_t span = MSGL_MAX_BLOCK, group = group_of(p, col);
    for (int32_t i = 32; i < order->num; i += 32) {
        const size_t other = group_of(p, first_col + (size_t)order->columns[i]);
        if (other != group) span = common_divisor(span, (size_t)i);
        group = other;
    }
    return span;
}

bool msgl__stored_codes(const msgl_packed *p, size_t first_col, size_t cols,
                        const msgl_column_order *order, msgl_codes *out)
{
    const msgl_stored *form = p->how->form;
    *out = (msgl_codes){0};
    if (form->codes == NULL || !form->codes(p, out)) return false;
    if (order != NULL ? order->num == 0 : first_col % 32 != 0 || cols % 32 != 0) return false;
    out->split = NULL; // parts, whatever a tensor's blocks are
    if (out->span == 0) {
        out->span =
            (int32_t)(order == NULL ? span_of(p, first_col) : ordered_span(p, first_col, order));
    }
    return out->span == 0 || out->span % out->group == 0;
}

void msgl__stored_split(const msgl_packed *p, const msgl_part_tile *t, msgl_code_part *out,
                        size_t ld)
{
    const msgl_stored *form = p->how->form;
    if (form->split_tile != NULL) {
        form->split_tile(p, t, out, ld);
        return;
    }
    for (size_t r = 0; r < t->rows; r++, out += ld) {
        for (size_t i = 0; i < t->cols / 32; i++) {
            out[i] = (msgl_code_part){0};
            form->split(p, t->row + r, t->col + 32 * i, &out[i]);
        }
    }
}

static int across(size_t cols)
{
    return (int)((cols + MSGL_TASK_COLS - 1) / MSGL_TASK_COLS);
}

int msgl__stored_tasks(size_t rows, size_t cols)
{
    return (int)((rows + MSGL_TASK_ROWS - 1) / MSGL_TASK_ROWS) * across(cols);
}

msgl_part_tile msgl__stored_task(size_t rows, size_t cols, int task)
{
    const size_t row = (size_t)(task / across(cols)) * MSGL_TASK_ROWS;
    const size_t col = (size_t)(task % across(cols)) * MSGL_TASK_COLS;
    return (msgl_part_tile){row, rows - row < MSGL_TASK_ROWS ? rows - row : MSGL_TASK_ROWS, col,
                            cols - col < MSGL_TASK_COLS ? cols - col : MSGL_TASK_COLS};
}

bool msgl__stored_tile(msgl_part_tile *left, msgl_part_tile *tile)
{
    *tile = *left;
    if (tile->rows > MSGL_TILE_ROWS) tile->rows = MSGL_TILE_ROWS;
    left->row += tile->rows;
    left->rows -= tile->rows;
    return tile->rows > 0;
}

msgl_column_order *msgl__stored_order(const msgl_packed *p, size_t first_col, size_t cols)
{
    const size_t end = first_col + cols;
    size_t groups = 0, num = 0;
    for (size_t col = first_col; col < end; col++) {
        groups = group_of(p, col) >= groups ? group_of(p, col) + 1 : groups;
    }
    size_t *next = msgl__calloc(groups, sizeof *next); // columns of a group, then its next place
    if (next == NULL) return NULL;
    for (size_t col = first_col; col < end; col++) next[group_of(p, col)]++;
    for (size_t i = 0; i < groups; i++) {
        const size_t places = msgl__round_up(next[i], 32);
        next[i] = num;
        num += places;
    }
    msgl_column_order *order = NULL;
    if (num <= INT32_MAX) order = msgl__malloc(sizeof *order + num * sizeof order->columns[0]);
    if (order != NULL) {
        order->num = (int32_t)num;
        for (size_t i = 0; i < num; i++) order->columns[i] = -1;
        for (size_t col = first_col; col < end; col++) {
            order->columns[next[group_of(p, col)]++] = (int32_t)(col - first_col);
        }
    }
    msgl__free(next);
    return order;
}
