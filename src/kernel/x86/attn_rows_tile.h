// SPDX-License-Identifier: Apache-2.0
//
// The tile function over the three that attn_rows.h asks for; included once per dtype with NAME(x)
// giving its functions' names.

static void NAME(tile)(const msgl__attn_keys *keys, msgl__attn_block *b, void *scratch)
{
    rows_scratch *s = scratch;
    int begin = TILE, end = 0;
    for (int i = 0; i < b->n; i++) {
        if (b->lo[i] < b->hi[i] && b->lo[i] < begin) begin = b->lo[i];
        if (b->hi[i] > end) end = b->hi[i];
    }
    const int from = begin & ~15, to = end > begin ? (end + 15) & ~15 : from;
    int row = 0;
    for (; row + 4 <= b->n; row += 4) NAME(scores)(s, keys, b->row, row, 4, from, to);
    for (; row + 2 <= b->n; row += 2) NAME(scores)(s, keys, b->row, row, 2, from, to);
    for (; row < b->n; row++) NAME(scores)(s, keys, b->row, row, 1, from, to);
    for (int i = 0; i < b->n; i++) rows_softmax(s, keys, i, b->lo[i], b->hi[i], from, to);
    for (row = 0; row + 4 <= b->n; row += 4) NAME(values)(s, keys, row, 4, from, to);
    for (; row + 2 <= b->n; row += 2) NAME(values)(s, keys, row, 2, from, to);
    for (; row < b->n; row++) NAME(values)(s, keys, row, 1, from, to);
    b->m = s->m;
    b->l = s->l;
    b->o = s->o;
}
