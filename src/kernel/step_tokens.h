// SPDX-License-Identifier: Apache-2.0
//
// A step's tokens: where their ids are, and where their K and V go. Place x = row * row_places +
// position names a token in the token pool, of whose rows each is a whole number of pages: so x /
// page size is the place of its page in a page table, and x % page size its place in the page.
#ifndef MSGL_KERNEL_STEP_TOKENS_H
#define MSGL_KERNEL_STEP_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "core/paging.h"

enum { MSGL_MAX_TABLES = 4 };

typedef struct msgl_step_tokens {
    int32_t count;
    const int32_t *pool, *index; // id of token t: pool[index[t] + shift]
    int32_t shift;               // 1: the ids are of the tokens behind those whose places they are
    // Tokens [0, num_answers) are answers, token t in page pages[i][t] of table i. Behind them are
    // chunks of prompts, token t of place x in page pages[i][first[x / row_places] + x % row_places
    // / page size]. Example: pages of 16, one answer, then positions 40 to 99 of row 3, in pages 2
    // to 6: first[3] = 1 - 2, and the token of position 50 is in pages[i][-1 + 3].
    int32_t num_answers, row_places;
    msgl_paging paging;
    const int32_t *first; // [rows]
    int32_t num_tables;
    const int32_t *pages[MSGL_MAX_TABLES];
    // Who takes the tokens writes the pages to their places of the page tables (NULL: the host's
    // are the only ones) and each token's slot to slots[i] [count].
    int32_t *tables[MSGL_MAX_TABLES];
    int32_t *slots[MSGL_MAX_TABLES];
} msgl_step_tokens;

// Does that for token t, of place x.
MSGL_PAGING_FN void msgl__step_put(const msgl_step_tokens *s, int32_t t, int32_t x)
{
    const int32_t place = msgl__paging_page(s->paging, x), entry = x - place * s->paging.size;
    int32_t from = t;
    if (t >= s->num_answers) {
        const int32_t row = x / s->row_places;
        from = s->first[row] + msgl__paging_page(s->paging, x - row * s->row_places);
    }
    for (int32_t i = 0; i < MSGL_MAX_TABLES; i++) { // (so that a compiler can unroll it)
        if (i >= s->num_tables) continue;
        const int32_t page = s->pages[i][from];
        if (s->tables[i] != NULL) s->tables[i][place] = page;
        s->slots[i][t] = page * s->paging.size + entry;
    }
}

#endif
