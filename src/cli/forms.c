// SPDX-License-Identifier: Apache-2.0
//
// The table of the forms in which files hold weights, which docs/packed-weights.md shows, made from
// the descriptors: ggml's blocks, and what adapters find in safetensors.
#include "cli/common.h"
#include "models/adapters.h"
#include "quant/blocks.h"

// Writes a set of numbers below 32 in words: "4", "2, 3, 4 or 8", and what has no gap as "2 to 8".
static void put_set(FILE *out, uint32_t set)
{
    const int first = __builtin_ctz(set), last = 31 - __builtin_clz(set);
    const uint32_t from_first = set >> first;
    if (last > first && (from_first & (from_first + 1)) == 0) {
        fprintf(out, "%d to %d", first, last);
        return;
    }
    for (int i = first; i <= last; i++) {
        if ((set >> i & 1) == 0) continue;
        fprintf(out, "%s%d", i == first ? "" : i == last ? " or " : ", ", i);
    }
}

static void blocks(FILE *out)
{
    int count;
    const msgl_blocks *const *all = msgl__blocks_all(&count);
    for (int i = 0; i < count; i++) {
        fprintf(out, "| %s | GGUF | %g | ggml |\n", all[i]->name,
                (double)all[i]->bytes * 8 / (double)all[i]->elements);
    }
}

static void packed(FILE *out)
{
    int count;
    const msgl_adapter *const *all = msgl__adapters(&count);
    for (int i = 0; i < count; i++) {
        fprintf(out, "| %s | safetensors | ", all[i]->name);
        if (all[i]->group > 0) {
            fprintf(out, "%g", __builtin_ctz(all[i]->bits) + 8.0 / all[i]->group);
        } else {
            put_set(out, all[i]->bits);
            fprintf(out, " and scales");
        }
        fprintf(out, " | %s |\n", all[i]->from);
    }
}

void msgl__help_forms(FILE *out)
{
    fprintf(out, "| form | files | bits a weight | written by |\n|---|---|---|---|\n");
    blocks(out);
    packed(out);
}
