// SPDX-License-Identifier: Apache-2.0
//
// The properties of characters that tokenization asks for, in the versions that `tokenizers` uses.
// A table object is built once per tokenizer: categories of the first three planes as a flat array,
// so that a property costs one load.
#ifndef MSGL_TOKENIZER_UNICODE_H
#define MSGL_TOKENIZER_UNICODE_H

#include <stddef.h>
#include <stdint.h>

// General categories, in the order of the generated table.
enum msgl_gc {
    MSGL_GC_LU,
    MSGL_GC_LL,
    MSGL_GC_LT,
    MSGL_GC_LM,
    MSGL_GC_LO,
    MSGL_GC_MN,
    MSGL_GC_MC,
    MSGL_GC_ME,
    MSGL_GC_ND,
    MSGL_GC_NL,
    MSGL_GC_NO,
    MSGL_GC_PC,
    MSGL_GC_PD,
    MSGL_GC_PS,
    MSGL_GC_PE,
    MSGL_GC_PI,
    MSGL_GC_PF,
    MSGL_GC_PO,
    MSGL_GC_SM,
    MSGL_GC_SC,
    MSGL_GC_SK,
    MSGL_GC_SO,
    MSGL_GC_ZS,
    MSGL_GC_ZL,
    MSGL_GC_ZP,
    MSGL_GC_CC,
    MSGL_GC_CF,
    MSGL_GC_CO,
    MSGL_GC_CN,
    MSGL_GC_CS,
    MSGL_GC_COUNT,
    MSGL_GC_ALTERNATING = 30 // only in the generated table
};

#define MSGL_GC_BIT(gc) (UINT32_C(1) << (gc))
// Sets of categories as bit masks.
#define MSGL_GCS_L UINT32_C(0x1f)
#define MSGL_GCS_M UINT32_C(0xe0)
#define MSGL_GCS_N UINT32_C(0x700)
#define MSGL_GCS_P UINT32_C(0x3f800)
#define MSGL_GCS_S UINT32_C(0x3c0000)
#define MSGL_GCS_Z UINT32_C(0x1c00000)
#define MSGL_GCS_C UINT32_C(0x3e000000)

// Bits of a property word; the low five hold the category.
enum {
    MSGL_UNI_GC = 0x1f,
    MSGL_UNI_SPACE = 0x20,   // White_Space
    MSGL_UNI_PUNCT = 0x40,   // what the Punctuation pre-tokenizer splits on
    MSGL_UNI_NUMERIC = 0x80, // Rust's char::is_numeric
    MSGL_UNI_WORD = 0x100,   // \w of the regex crate
    MSGL_UNI_NFC = 0x200,    // may change, or change its neighbours, under NFC
    MSGL_UNI_NFD = 0x400,    // the same for the other forms
    MSGL_UNI_NFKC = 0x800,
    MSGL_UNI_NFKD = 0x1000,
    MSGL_UNI_INERT = 0x2000, // newer than the normalizer: left alone by every form
};

#define MSGL_UNI_FLAT UINT32_C(0x30000)
#define MSGL_UNI_END UINT32_C(0x110000)

typedef struct msgl_unicode {
    uint16_t flat[MSGL_UNI_FLAT];
} msgl_unicode;

void msgl__uni_build(msgl_unicode *u);
uint16_t msgl__uni_above(uint32_t cp); // properties of a code point from MSGL_UNI_FLAT on
// End of the stretch of code points with the properties of `cp`, MSGL_UNI_FLAT <= cp.
uint32_t msgl__uni_stretch(uint32_t cp);

static inline uint16_t msgl__uni(const msgl_unicode *u, uint32_t cp)
{
    return cp < MSGL_UNI_FLAT ? u->flat[cp] : msgl__uni_above(cp);
}

// Lower case of one character as char::to_lowercase has it: writes 1 or 2 code points, returns how
// many.
int msgl__uni_lower_of(uint32_t cp, uint32_t out[2]);

// The byte-level alphabet of GPT-2: each byte as a printable character below U+0144.
uint32_t msgl__byte_char(unsigned char b);
int msgl__char_byte(uint32_t cp); // the reverse; -1 when cp is not in the alphabet

#endif
