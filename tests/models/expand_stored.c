// SPDX-License-Identifier: Apache-2.0
//
// expand_stored FOLDER: what a model folder's packed tensors stand for, for programs that compare
// that with other readers (tools/check_stored_by_packages.py). A folder needs no more than a
// config.json with the quantization_config and a model.safetensors. Written to standard output, for
// each of them: a line "NAME FORM ROWS COLUMNS WAYS", then so many times all values as f32:
// expanded from the file's form, and, where a CPU keeps the form, of the codes that it keeps.
#include <stdio.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/checkpoint.h"
#include "models/source.h"

// What a CPU keeps of a tensor.
typedef struct kept {
    msgl_codes codes;
    msgl_column_order *order; // of its columns, or NULL
} kept;

// The 32 columns of a row whose places begin at `from`, to where they are in the row.
static void put_part(const msgl_packed *p, const kept *k, size_t row, size_t from, float *out)
{
    const int32_t *columns = k->order != NULL ? k->order->columns + from : NULL;
    msgl_code_part part = {0};
    msgl_code_block block;
    if (columns != NULL) {
        p->how->form->pick(p, row, 0, columns, &part);
    } else {
        p->how->form->split(p, row, from, &part);
    }
    msgl__codes_split(&k->codes, (const uint8_t *)&part, &block);
    for (int32_t i = 0; i < 32; i++) {
        float scale, offset;
        if (columns != NULL && columns[i] < 0) continue;
        msgl__codes_scale(&k->codes, &block, i / k->codes.group, &scale, &offset);
        const float q = msgl__code_number(&k->codes, block.codes[i]);
        out[columns != NULL ? (size_t)columns[i] : from + (size_t)i] =
            msgl__codes_value(&k->codes, scale, offset, q);
    }
}

static int put(const msgl_tensor *t)
{
    const msgl_packed p = msgl__packed_of(t);
    kept k = {0};
    if (t->packing.sides[MSGL_ORDER].data != NULL) k.order = msgl__stored_order(&p, 0, p.cols);
    const bool keeps = msgl__stored_codes(&p, 0, p.cols, k.order, &k.codes);
    const size_t places = k.order != NULL ? (size_t)k.order->num : p.cols;
    float *row = msgl__malloc(p.cols * sizeof *row);
    if (row == NULL) return MSGL_ENOMEM;
    printf("%s %s %zu %zu %d\n", t->name, t->packed, p.rows, p.cols, keeps ? 2 : 1);
    for (size_t r = 0; r < p.rows; r++) {
        p.how->form->expand(&p, r, 0, p.cols, row);
        fwrite(row, sizeof *row, p.cols, stdout);
    }
    for (size_t r = 0; r < p.rows && keeps; r++) {
        for (size_t i = 0; i < places; i += 32) put_part(&p, &k, r, i, row);
        fwrite(row, sizeof *row, p.cols, stdout);
    }
    msgl__free(row);
    msgl__free(k.order);
    return 0;
}

int main(int argc, char **argv)
{
    msgl_checkpoint *c = NULL;
    msgl_err err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: expand_stored FOLDER\n");
        return 2;
    }
    int code = msgl__checkpoint_open(argv[1], &c, &err);
    if (code != 0) fprintf(stderr, "%s\n", err.text);
    for (size_t i = 0; code == 0 && i < msgl__checkpoint_count(c); i++) {
        const msgl_tensor *t = msgl__checkpoint_at(c, i);
        if (t->loadable && t->packing.form != NULL) code = put(t);
    }
    if (c != NULL) msgl__checkpoint_close(c);
    return code == 0 && fflush(stdout) == 0 ? 0 : 1;
}
