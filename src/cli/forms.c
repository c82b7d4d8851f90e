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

// What memory holds of a file's blocks: their codes on every device; else a CPU has the blocks, of
// which it makes values in panels while it multiplies, and a GPU the values.
static const char *kept(const msgl_blocks *b)
{
    if (b->codes != NULL) return "codes | codes";
    return b->elements < 32 ? "values | values" : "blocks | values"; // msgl_gemm_kernels.keep
}

static void blocks(FILE *out)
{
    int count;
    const msgl_blocks *const *all = msgl__blocks_all(&count);
    for (int i = 0; i < count; i++) {
        fprintf(out, "| %s | GGUF | %g | %s | ggml |\n", all[i]->name,
                (double)all[i]->bytes * 8 / (double)all[i]->elements, kept(all[i]));
    }
}

// Each has codes, if its tensor allows it (quant/stored.h).
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
        fprintf(out, " | codes | codes | %s |\n", all[i]->from);
    }
}

void msgl__help_forms(FILE *out)
{
    fprintf(out, "| form | files | bits a weight | on a CPU | on a GPU | written by |\n"
                 "|---|---|---|---|---|---|\n");
    blocks(out);
    packed(out);
}
