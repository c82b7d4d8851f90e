// SPDX-License-Identifier: Apache-2.0
//
// What a loaded tokenizer is made of, shared by the files of this folder. The pipeline follows
// tokenizer.json: added tokens, normalizer, added tokens that match normalized text, pre-tokenizer,
// BPE model, post-processor; and the decoder for the way back. A component is a list of plain steps
// (nested Sequences are flattened at load), run over the buffers of a workspace.
#ifndef MSGL_TOKENIZER_INTERNAL_H
#define MSGL_TOKENIZER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "tokenizer/regex.h"
#include "tokenizer/scan.h"
#include "tokenizer/strmap.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"
#include "utils/utf8.h"

// Limits on what a file may ask for; far above any published tokenizer.
#define MSGL_TOK_MAX_FILE ((size_t)128 << 20)
#define MSGL_TOK_MAX_TREE ((size_t)32 << 20) // of it, what becomes a tree of JSON values
#define MSGL_TOK_MAX_ID (1 << 22)
#define MSGL_TOK_MAX_MERGES ((size_t)1 << 22)
#define MSGL_TOK_MAX_ADDED 200000
#define MSGL_TOK_MAX_ADDED_LEN 512
#define MSGL_TOK_MAX_STEPS 64
#define MSGL_TOK_MAX_TEXT ((size_t)1 << 30)

// A string that a component owns; NUL-terminated, may hold NULs.
typedef struct msgl_tok_str {
    char *p;
    size_t n;
} msgl_tok_str;

// ---- model ----

typedef struct msgl_merge {
    uint64_t key; // left id << 32 | right id; UINT64_MAX: empty slot
    uint32_t rank;
    int32_t id; // of the merged token
} msgl_merge;

typedef struct msgl_bpe {
    msgl_strset vocab; // token text as in the file
    msgl_strset bytes; // the raw bytes of tokens written in the byte-level alphabet; when byte_mode
    msgl_merge *merges; // open addressing, 1 << merge_bits slots
    unsigned merge_bits;
    // Whether BPE of a token's own text gives back just that token: 0 not known yet, 1 yes, 2 no.
    // Filled on demand by any thread; every thread would write the same value.
    atomic_uchar *whole;
    int32_t symbol[256];   // first symbol of a byte (byte_mode) or ASCII character; -1: none
    int32_t fallback[256]; // id of <0xNN>; -1: none
    int32_t unk;           // -1: none
    int fuse_unk, byte_fallback, ignore_merges;
    int byte_mode;  // pieces arrive as raw bytes, not yet in the byte-level alphabet
    int word_split; // no merge joins a non-"\u2581" to a following "\u2581": words are independent
} msgl_bpe;

enum msgl_model_type { MSGL_MODEL_BPE, MSGL_MODEL_WORDPIECE, MSGL_MODEL_UNIGRAM };

// wordpiece.h; all tokens are in msgl_bpe.vocab.
typedef struct msgl_wordpiece {
    msgl_strset tails; // tokens that go on a word, without the prefix that says so
    size_t longest;    // bytes of any token
    size_t max_chars;  // of a word that is looked into
    int32_t unk;
} msgl_wordpiece;

// unigram.h; the same.
typedef struct msgl_unigram {
    double *scores;      // [num_ids]; owned
    int32_t *sorted;     // ids by the bytes of their tokens; owned
    uint32_t first[257]; // sorted[first[b]] is the first one that starts with byte b or a later one
    int32_t bytes[256];  // id of <0xNN>; -1: none, or no byte_fallback
    double unk_score;
    int32_t unk;
    int byte_fallback;
} msgl_unigram;

#define MSGL_LATTICE_NONE (-1)

// The best way to cut a text up to some byte: its score, and where its last token starts.
typedef struct msgl_lattice_node {
    double score;
    uint32_t start;
    int32_t id; // of that token; MSGL_LATTICE_NONE: there is no way
} msgl_lattice_node;

typedef struct msgl_charsmap msgl_charsmap; // charsmap.h

// ---- added tokens ----

typedef struct msgl_added {
    int32_t id;
    msgl_tok_str content;
    msgl_tok_str
        normed; // content after the normalizer, when `normalized` and different; else empty
    int single_word, lstrip, rstrip, normalized, special;
    int blank; // not special, and nothing but blanks
} msgl_added;

// Added tokens sorted by the text that they match; the longest allowed one wins at each position.
typedef struct msgl_matcher {
    const msgl_added **sorted;
    const msgl_tok_str **text; // text[i] of sorted[i]
    size_t n;
    uint32_t first[257]; // sorted[first[b]] is the first one that starts with byte b or a later one
} msgl_matcher;

// ---- pipeline steps ----

enum msgl_norm_type {
    MSGL_NORM_NFC,
    MSGL_NORM_NFD,
    MSGL_NORM_NFKC,
    MSGL_NORM_NFKD,
    MSGL_NORM_LOWERCASE,
    MSGL_NORM_STRIP,
    MSGL_NORM_REPLACE,
    MSGL_NORM_PREPEND,
    MSGL_NORM_BYTE_LEVEL,
    MSGL_NORM_CHARSMAP,
    MSGL_NORM_CLEAN, // this and the next two: parts of BertNormalizer
    MSGL_NORM_IDEOGRAPHS,
    MSGL_NORM_MARKS,
};

// Literal text (regex NULL) or a regular expression.
typedef struct msgl_tok_pattern {
    msgl_tok_str text;
    msgl_regex *regex;
    enum msgl_scan scan; // MSGL_SCAN_NONE unless the regex is one that scan.c knows
} msgl_tok_pattern;

typedef struct msgl_norm {
    enum msgl_norm_type type;
    msgl_tok_pattern pattern; // Replace
    msgl_tok_str content;     // Replace, Prepend
    int left, right;          // Strip
    msgl_charsmap *charsmap;  // Precompiled; owned
} msgl_norm;

enum msgl_pretok_type {
    MSGL_PRETOK_SPLIT,
    MSGL_PRETOK_BYTE_LEVEL,
    MSGL_PRETOK_DIGITS,
    MSGL_PRETOK_PUNCTUATION,
    MSGL_PRETOK_METASPACE,
    MSGL_PRETOK_WHITESPACE,
    MSGL_PRETOK_WHITESPACE_SPLIT,
};

enum msgl_behavior {
    MSGL_SPLIT_REMOVED,
    MSGL_SPLIT_ISOLATED,
    MSGL_SPLIT_MERGED_WITH_PREVIOUS,
    MSGL_SPLIT_MERGED_WITH_NEXT,
    MSGL_SPLIT_CONTIGUOUS,
};

enum msgl_prepend { MSGL_PREPEND_NEVER, MSGL_PREPEND_FIRST, MSGL_PREPEND_ALWAYS };

typedef struct msgl_pretok {
    enum msgl_pretok_type type;
    msgl_tok_pattern pattern; // Split; ByteLevel with use_regex
    enum msgl_behavior behavior;
    int invert;
    int add_prefix_space, use_regex; // ByteLevel
    uint32_t replacement;            // Metaspace
    enum msgl_prepend prepend;
    int split;
} msgl_pretok;

enum msgl_dec_type {
    MSGL_DEC_BYTE_LEVEL,
    MSGL_DEC_BYTE_FALLBACK,
    MSGL_DEC_REPLACE,
    MSGL_DEC_FUSE,
    MSGL_DEC_STRIP,
    MSGL_DEC_METASPACE,
    MSGL_DEC_WORDPIECE,
};

typedef struct msgl_dec {
    enum msgl_dec_type type;
    msgl_tok_pattern pattern; // Replace
    msgl_tok_str content;     // Replace; WordPiece: the prefix
    int cleanup;              // WordPiece
    uint32_t ch;              // Strip: the character; Metaspace: the replacement
    size_t start, stop;       // Strip: how many of it
    enum msgl_prepend prepend;
} msgl_dec;

#define MSGL_POST_SEQUENCE (-1) // in a template: the ids of the text
#define MSGL_POST_SECOND (-2)   // of a pair: those of its second text

// ---- workspace: everything that an encode call writes ----

typedef struct msgl_tok_piece {
    size_t off, len;
} msgl_tok_piece;

// A stretch of text that a pattern did or did not match.
typedef struct msgl_span {
    size_t off, len;
    int match;
} msgl_span;

typedef struct msgl_tok_buf {
    char *data;
    unsigned char *tags; // one per byte when the workspace uses tags: bits of msgl_trust
    size_t len, cap;
} msgl_tok_buf;

typedef struct msgl_symbol {
    int32_t id, prev, next; // prev, next: -1 at the ends; id -2: merged away
} msgl_symbol;

typedef struct msgl_heap_item {
    uint64_t key; // rank << 32 | position
    int32_t id;   // of the merged token
} msgl_heap_item;

#define MSGL_CACHE_BITS 13
#define MSGL_CACHE_KEY 27
#define MSGL_CACHE_IDS 8

// What BPE made of a short piece: direct mapped, overwritten on collision.
typedef struct msgl_cache_entry {
    unsigned char klen, n; // klen 0: empty
    char key[MSGL_CACHE_KEY + 3];
    int32_t ids[MSGL_CACHE_IDS];
} msgl_cache_entry;

typedef struct msgl_tok_ws {
    struct msgl_tok_ws *next; // in the tokenizer's list of free workspaces
    msgl_tok_buf buf[3];
    const msgl_tok_buf *in_use; // not to be overwritten: its later parts are still to be read
    int use_tags;
    size_t zero; // leading bytes of the current text that stand for the first byte of the input
    msgl_tok_piece *pieces[2];
    size_t num_pieces[2], cap_pieces[2];
    msgl_span *spans;
    size_t num_spans, cap_spans;
    msgl_symbol *symbols;
    size_t cap_symbols;
    msgl_heap_item *heap;
    size_t num_heap, cap_heap;
    msgl_lattice_node *lattice;
    size_t cap_lattice;
    msgl_cache_entry *cache;
    msgl_regex_ws *regex;
    // Tokens that a whole piece may not become, because the call has untrusted spans; NULL: none.
    const unsigned char *guard;
    size_t id_limit;  // out->len may not pass this
    size_t buf_limit; // bytes that rewriting may make of the text
} msgl_tok_ws;

struct msgl_tokenizer {
    msgl_unicode *uni;
    enum msgl_model_type model;
    msgl_bpe bpe; // of the other models the vocabulary alone
    msgl_wordpiece wordpiece;
    msgl_unigram unigram;
    msgl_added *added;
    size_t num_added;
    int32_t *added_of;      // [vocab_size]: index into added, -1 for a token of the model
    unsigned char *special; // [vocab_size]: an added token with the flag
    unsigned char *control; // [vocab_size]: one with it, or one that is not only blanks
    unsigned char *skip;    // [vocab_size]: left out by skip_special
    int32_t vocab_size;
    msgl_matcher raw, normed;                 // over the text as given; over normalized text
    int has_normed_special, has_normed_plain; // among `normed`: special ones, and others
    msgl_norm *norms;
    size_t num_norms;
    msgl_pretok *pretoks;
    size_t num_pretoks;
    msgl_dec *decs;
    size_t num_decs;
    int has_decoder; // without one, tokens are joined with spaces
    int32_t *post;   // template with MSGL_POST_SEQUENCE; without specials: only those
    size_t num_post;
    int32_t *post_pair;              // the same of two texts, or NULL: the file has none
    size_t num_post_pair, pair_from; // pair_from: place in it from which on tokens are of type 1
    pthread_mutex_t lock;            // guards `free`, nothing else
    msgl_tok_ws *free;
};

// Grows *p (elements of `size` bytes, capacity *cap) to hold `need`. 0 or MSGL_ENOMEM.
int msgl__tok_grow(void **p, size_t *cap, size_t need, size_t size);
// The text that token `id`, which must be in range, decodes from: an added token's content as the
// normalizer leaves it, or the model's spelling. NULL: no token has this id.
const char *msgl__tok_text(const msgl_tokenizer *t, int32_t id, size_t *n);

#endif
