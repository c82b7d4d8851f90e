// SPDX-License-Identifier: Apache-2.0
//
// The parts of BertNormalizer that are no normalizers by themselves, as `tokenizers` has them.
#ifndef MSGL_TOKENIZER_BERT_H
#define MSGL_TOKENIZER_BERT_H

#include "tokenizer/workspace.h"

// Control and format characters and U+FFFD are left out, blanks become spaces.
int msgl__norm_clean(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_text *in,
                     msgl_tok_buf *out);
// Ideographs get a space on both sides.
int msgl__norm_ideographs(msgl_tok_ws *ws, const msgl_text *in, msgl_tok_buf *out);
// Nonspacing marks are left out, those that its tables know.
int msgl__norm_marks(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_text *in,
                     msgl_tok_buf *out);

// bert_data.c, generated: where its older tables differ from ours in what is a nonspacing mark.
typedef struct msgl_bert_range {
    uint32_t first, last; // both included
} msgl_bert_range;
extern const msgl_bert_range msgl__bert_mark_flips[];
extern const size_t msgl__bert_num_mark_flips;

#endif
