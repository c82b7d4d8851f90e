// SPDX-License-Identifier: Apache-2.0
//
// Numbers of a schema as decimal digits: a bound may have more of them than a double or 64 bits.
#ifndef MSGL_GRAMMAR_SCHEMA_NUMBER_H
#define MSGL_GRAMMAR_SCHEMA_NUMBER_H

#include "grammar/schema.h"

#define MSGL_DEC_WHOLE 60 // digits before the point; larger numbers count as without end
#define MSGL_DEC_FRAC 40  // digits behind it; what is finer is refused where it matters

typedef struct msgl_dec {
    bool neg;
    bool huge, fine; // more digits than there is room for: before the point, behind it
    char whole[MSGL_DEC_WHOLE + 2]; // "0", or without zeros in front
    char frac[MSGL_DEC_FRAC + 2];   // without zeros at the end
} msgl_dec;

typedef struct msgl_bounds {
    bool has_lo, has_hi, open_lo, open_hi; // open: the bound itself is not allowed
    msgl_dec lo, hi;
} msgl_bounds;

typedef enum msgl_number_kind {
    MSGL_NUMBER_ANY,
    MSGL_NUMBER_INTEGER,
    MSGL_NUMBER_FRACTION, // no integer
} msgl_number_kind;

// Of a JSON number. An integer beyond 64 bits, which the reader of JSON made a real of, is what the
// schema's text has. It counts as steps of the builder's work, and *out is set even where these are
// too many.
void msgl__dec_of(const msgl_schema *s, const json_t *v, msgl_dec *out);
int msgl__dec_compare(const msgl_dec *a, const msgl_dec *b); // below, at or above 0
bool msgl__dec_is_integer(const msgl_dec *a);
// Whether v is a multiple of m > 0: 1, 0, or -1 where they have more digits than fit.
int msgl__dec_divides(const msgl_dec *m, const msgl_dec *v);
// The value as JSON text, shortest form without an exponent.
void msgl__dec_text(const msgl_dec *a, char out[MSGL_DEC_WHOLE + MSGL_DEC_FRAC + 8]);

// The schema's four bounds. A failure is the builder's.
msgl_bounds msgl__schema_bounds(msgl_schema *s, const json_t *schema);
bool msgl__bounds_have(const msgl_bounds *r, const msgl_dec *v);
bool msgl__bounds_empty(const msgl_bounds *r);
// The expression of the numbers of a kind within bounds, -1 after a failure.
int32_t msgl__number_between(msgl_schema *s, const msgl_bounds *r, msgl_number_kind kind);

#endif
