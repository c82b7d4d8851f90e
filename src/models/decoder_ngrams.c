// SPDX-License-Identifier: Apache-2.0
//
// Embeddings of hashed n-grams in the decoder family's layers (layers/ngrams.h): the hash and its
// primes, as the published models derive them from their config, and the tensors.
#include <stdio.h>

#include "models/declare.h"
#include "utils/random.h"

static bool is_prime(int32_t n)
{
    if (n < 2 || (n % 2 == 0 && n != 2)) return false;
    for (int64_t d = 3; d * d <= n; d += 2) {
        if (n % d == 0) return false;
    }
    return true;
}

// Odd numbers, so small that a product with any token of the vocabulary is below 2^63.
static void set_factors(const msgl_model_config *c, int32_t ordinal, msgl_ngram_hash *h)
{
    const msgl_ngrams_config *n = &c->decoder.ngrams;
    const uint64_t most = (uint64_t)INT64_MAX / (uint64_t)c->vocab_size / 2;
    // The models' own generator leaves out the first number of its seed.
    uint64_t state = (uint64_t)n->seed + 10007u * (uint64_t)ordinal + MSGL_RANDOM_STEP;
    for (int32_t i = 0; i < n->size; i++) {
        h->factors[i] = 2 * msgl__random_below(&state, most) + 1;
    }
}

int32_t msgl__ngrams_hash(const msgl_model_config *c, int32_t ordinal, int32_t *last,
                          msgl_ngram_hash *h)
{
    const msgl_ngrams_config *n = &c->decoder.ngrams;
    int32_t rows = 0;
    *h = (msgl_ngram_hash){.size = n->size, .heads = n->heads, .end = n->end};
    set_factors(c, ordinal, h);
    for (int32_t i = 0; i < (n->size - 1) * n->heads; i++) {
        while (*last < MSGL_NGRAMS_MAX_ROWS && !is_prime(++*last)) continue;
        if (*last >= MSGL_NGRAMS_MAX_ROWS - rows) return 0;
        h->moduli[i] = *last;
        h->offsets[i] = rows;
        rows += *last;
    }
    rows = msgl__ceil_div(rows, n->divisor) * n->divisor;
    return rows <= MSGL_NGRAMS_MAX_ROWS ? rows : 0;
}

// Whether all tables have rows that can be counted.
static void check_tables(msgl_json_reader *r, const msgl_model_config *c)
{
    const char *const key = "ngram_vocab_size_base";
    int32_t last = c->decoder.ngrams.base - 1, ordinal = 0;
    msgl_ngram_hash hash;
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (!msgl__layer_has(&c->decoder, l, MSGL_LAYER_NGRAMS)) continue;
        if (msgl__ngrams_hash(c, ordinal++, &last, &hash) > 0) continue;
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key),
                          "what leaves a layer with 2^30 rows or fewer of all its heads");
        return;
    }
}

// ple_layer_ids, which count from 1. Returns how many there are.
static int32_t read_layers(msgl_json_reader *r, msgl_model_config *c)
{
    const char *const key = "ple_layer_ids";
    const json_t *list = msgl__json_get(r, key);
    int32_t num = 0;
    char allowed[96];
    snprintf(allowed, sizeof allowed, "a list of layers with linear_attention, in 1..%d",
             (int)c->num_layers);
    if (list != NULL && !json_is_array(list)) {
        msgl__json_reject(r, MSGL_EFORMAT, key, list, allowed);
    }
    for (size_t i = 0; i < json_array_size(list) && r->status == 0; i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t l = json_is_integer(v) ? json_integer_value(v) - 1 : -1;
        if (l < 0 || l >= c->num_layers ||
            !msgl__layer_has(&c->decoder, (int32_t)l, MSGL_LAYER_RECURRENT)) {
            msgl__json_reject(r, MSGL_EFORMAT, key, v, allowed);
            return 0;
        }
        num += !msgl__layer_has(&c->decoder, (int32_t)l, MSGL_LAYER_NGRAMS);
        c->decoder.layer_flags[l] |= MSGL_LAYER_NGRAMS;
    }
    return num;
}

// The first of the ids that end an answer.
static int32_t read_end(msgl_json_reader *r, const msgl_model_config *c)
{
    const char *const key = "eos_token_id";
    const json_t *v = msgl__json_get(r, key);
    if (json_is_array(v)) v = json_array_get(v, 0);
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < c->vocab_size) {
        return (int32_t)json_integer_value(v);
    }
    msgl__json_reject(r, MSGL_EFORMAT, key, v, "a token's id, with ple_layer_ids");
    return 0;
}

void msgl__decoder_read_ngrams(msgl_json_reader *r, msgl_model_config *c)
{
    // Of all of a model's layers: heads, whose primes take time to find, and tensors of tables.
    enum { ALL_HEADS = 4096, ALL_PARTS = 1 << 17, MAX_DIVISOR = 1 << 20 };
    msgl_ngrams_config *n = &c->decoder.ngrams;
    const int32_t layers = read_layers(r, c);
    if (layers == 0 || r->status != 0) return;
    n->end = read_end(r, c);
    n->size = msgl__json_int_or(r, "ngram_size", 2, MSGL_MAX_NGRAM, 3);
    const int32_t orders = n->size - 1, all = ALL_HEADS / layers;
    const int32_t most = (all < MSGL_NGRAM_MAX_HEADS ? all : MSGL_NGRAM_MAX_HEADS) / orders;
    n->heads = msgl__json_int_or(r, "heads_per_ngram", 1, most, 8);
    n->dim = msgl__json_int_or(r, "ple_embed_dim", 1, MSGL_MAX_HIDDEN, c->hidden_size);
    n->base = msgl__json_int_or(r, "ngram_vocab_size_base", 1, MSGL_NGRAMS_MAX_ROWS, 20000000);
    n->divisor = msgl__json_int_or(r, "make_ngram_vocab_size_divisible_by", 1, MAX_DIVISOR, 128);
    n->parts = msgl__json_int_or(r, "split_ngram_parts", 1, ALL_PARTS / layers, 512);
    n->taps = msgl__json_int_or(r, "ple_conv_kernel_size", 2, MSGL_CONV_MAX_TAPS, 4);
    n->seed = msgl__json_int_or(r, "seed", 0, INT32_MAX, 1234);
    if (r->status != 0) return;
    if (n->dim % (orders * n->heads) != 0) {
        char allowed[64];
        snprintf(allowed, sizeof allowed, "a multiple of the %d heads of n-grams",
                 (int)(orders * n->heads));
        msgl__json_reject(r, MSGL_EFORMAT, "ple_embed_dim", msgl__json_get(r, "ple_embed_dim"),
                          allowed);
    } else if (c->decoder.streams.num * c->hidden_size % 16 != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "hidden_size", msgl__json_get(r, "hidden_size"),
                          "what is times hc_count a multiple of 16, with ple_layer_ids");
    } else {
        check_tables(r, c);
    }
}

static msgl_ngrams ngrams_of(const msgl_model_config *c)
{
    const msgl_ngrams_config *n = &c->decoder.ngrams;
    return (msgl_ngrams){.num = c->decoder.streams.num,
                         .hidden = c->hidden_size,
                         .eps = c->decoder.rms_eps,
                         .taps = n->taps,
                         .skip = n->size - 1};
}

msgl_cache_spec msgl__ngrams_cache(const msgl_model_config *c, msgl_dtype act)
{
    const msgl_ngrams layer = ngrams_of(c);
    return msgl__states_spec(msgl__ngrams_state_bytes(&layer, act));
}

void msgl__ngrams_build(const msgl_model *m, const msgl_layer_place *places, msgl_decoder *decoder)
{
    int32_t last = m->cfg.decoder.ngrams.base - 1, ordinal = 0;
    for (int32_t l = 0; l < m->cfg.num_layers; l++) {
        if (!msgl__layer_has(&m->cfg.decoder, l, MSGL_LAYER_NGRAMS)) continue;
        const msgl_layer_place *at = &places[l * MSGL_LAYER_CACHES + MSGL_NGRAMS_CACHE];
        msgl_ngrams *n = &decoder->layers[l].ngrams;
        *n = ngrams_of(&m->cfg);
        n->group = at->group;
        n->layer = at->layer;
        n->rows = msgl__ngrams_hash(&m->cfg, ordinal++, &last, &n->hash);
    }
}

// The table, in tensors of equally many rows but for the last ones: 184 rows in 5 are 37, 37, 37,
// 37 and 36; 4 rows in 3 are 2 and 2.
static void declare_table(const msgl_declaring *d, msgl_ngrams *n)
{
    const msgl_ngrams_config *c = &d->m->cfg.decoder.ngrams;
    const int32_t rows = n->rows, each = msgl__ceil_div(rows, c->parts);
    const msgl_range own = msgl__model_vocab_rows(d->m, rows);
    if (own.count < 1) { // of 5 rows on 4 ranks, which have 2 each, the last one's
        d->p->status = msgl__err_set(d->p->err, MSGL_EUNSUPPORTED,
                                     "--tp-size %d: a table of %d n-grams (ngram_vocab_size_base) "
                                     "is too small to be shared; allowed: fewer ranks",
                                     (int)d->target->ranks, (int)rows);
        return;
    }
    msgl__keep_rows(d, &n->embed, &own, 1);
    msgl__plan_weight(d->p, &n->embed, own.count, c->dim / msgl__ngrams_heads(n));
    n->embed.first = own.from;
    for (int32_t i = 0, at = 0; at < rows; i++, at += each) {
        msgl__plan_rows(d->p, &n->embed, at, rows - at < each ? rows - at : each,
                        "%slayers.%d.ple.ple_embedding.ngram_embedding.shard_%d.weight",
                        d->m->cfg.decoder.names.prefix, d->layer, i);
    }
}

// What transformers saves of the hash.
static void declare_hash(const msgl_declaring *d, const msgl_ngrams *n)
{
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    const char *const fmt = "%slayers.%d.ple.ple_embedding.%s";
    const int32_t heads = msgl__ngrams_heads(n);
    int64_t factors[MSGL_MAX_NGRAM], moduli[MSGL_NGRAM_MAX_HEADS], offsets[MSGL_NGRAM_MAX_HEADS];
    for (int32_t i = 0; i < n->hash.size; i++) factors[i] = (int64_t)n->hash.factors[i];
    for (int32_t i = 0; i < heads; i++) {
        moduli[i] = n->hash.moduli[i];
        offsets[i] = n->hash.offsets[i];
    }
    msgl__plan_numbers(d->p, factors, n->hash.size, fmt, prefix, d->layer, "layer_multipliers");
    msgl__plan_numbers(d->p, moduli, heads, fmt, prefix, d->layer, "ngram_heads_vocab_sizes");
    msgl__plan_numbers(d->p, offsets, heads, fmt, prefix, d->layer, "ngram_heads_offsets");
}

void msgl__ngrams_declare(const msgl_declaring *d, msgl_ngrams *n)
{
    const msgl_ngrams_config *c = &d->m->cfg.decoder.ngrams;
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    const msgl_linear_use plain = {0};
    const int32_t width = n->num * n->hidden;
    if (n->num == 0) return;
    declare_table(d, n);
    declare_hash(d, n);
    msgl__declare_linear(d, &n->kv, width + n->hidden, c->dim, false, &plain);
    msgl__declare_rows(d, &n->kv, 0, width, false, "ple.key_proj");
    msgl__declare_rows(d, &n->kv, width, n->hidden, false, "ple.value_proj");
    msgl__declare_norm(d, &n->key_norm, width, "ple.norm_key");
    msgl__declare_norm(d, &n->query_norm, width, "ple.norm_query");
    msgl__declare_norm(d, &n->conv_norm, width, "ple.norm_conv");
    msgl__plan_vector(d->p, &n->conv, width * n->taps);
    msgl__plan_elements(d->p, &n->conv, 0, width * n->taps, 0.5f, "%slayers.%d.ple.conv1d.weight",
                        prefix, d->layer);
    msgl__plan_taps(d->p, n->taps);
}
