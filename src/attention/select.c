// SPDX-License-Identifier: Apache-2.0
//
// From what the user wrote, the model and the machine to one backend or a pair. Works on
// descriptors only, so every limit lives beside the code that has it.
#include <stdio.h>
#include <string.h>

#include "attention/attention.h"
#include "core/attributes.h"
#include "utils/plugin.h"

enum { MAX_NAME = 64 };

// "fa, fi, trtllm" into text: the names of the device's backends.
static void list_names(const msgl_attn_set *set, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (const msgl_attn_desc *const *d = set->all; *d != NULL && at < size; d++) {
        at += (size_t)snprintf(text + at, size - at, "%s%s", at > 0 ? ", " : "", (*d)->name);
    }
}

static int check_head_dim(const msgl_attn_desc *d, const msgl_attn_needs *n, msgl_err *err)
{
    if (d->head_dims[0] == 0) {
        const int most = n->cache == MSGL_CACHE_LATENT ? MSGL_ATTN_MAX_LATENT : MSGL_ATTN_MAX_DIM;
        if (n->head_dim >= 8 && n->head_dim <= most && n->head_dim % 8 == 0) return 0;
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s: head_dim %d; allowed: multiples of 8 up to %d",
                             d->name, (int)n->head_dim, most);
    }
    for (int i = 0; i < MSGL_ATTN_MAX_SET && d->head_dims[i] != 0; i++) {
        if (d->head_dims[i] == n->head_dim) return 0;
    }
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "attention backend %s: no kernel for head_dim %d",
                         d->name, (int)n->head_dim);
}

static int check_capability(const msgl_attn_desc *d, const msgl_attn_needs *n, msgl_err *err)
{
    if (n->capability >= d->min_capability) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "attention backend %s needs compute capability %d.%d; this GPU has %d.%d",
                         d->name, (int)d->min_capability / 10, (int)d->min_capability % 10,
                         (int)n->capability / 10, (int)n->capability % 10);
}

static int check_plugin(const msgl_attn_desc *d, msgl_err *err)
{
    msgl_err why = {0};
    if (d->plugin == NULL || msgl__plugin_open(d->plugin, NULL, &why) != NULL) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "attention backend %s: %.150s; %s", d->name,
                         why.text, d->plugin_hint);
}

// What the layers keep.
static int check_cache(const msgl_attn_desc *d, const msgl_attn_needs *n, msgl_err *err)
{
    static const char *const KINDS[] = {[MSGL_CACHE_KV] = "K and V of every token",
                                        [MSGL_CACHE_LATENT] = "a latent vector a token",
                                        [MSGL_CACHE_INDEX] = "index keys",
                                        [MSGL_CACHE_STATE] = "a state"};
    const uint32_t caches = d->caches != 0 ? d->caches : 1u << MSGL_CACHE_KV;
    if ((caches & 1u << n->cache) == 0) {
        return msgl__err_set(
            err, MSGL_EUNSUPPORTED,
            "attention backend %s: no kernel for layers that keep %s; allowed: %s", d->name,
            KINDS[n->cache],
            KINDS[(caches & 1u << MSGL_CACHE_KV) != 0 ? MSGL_CACHE_KV : MSGL_CACHE_LATENT]);
    }
    if (n->cache == MSGL_CACHE_LATENT || n->v_dim == 0 || n->v_dim == n->head_dim) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "attention backend %s: no kernel for V of %d beside K of %d per head; "
                         "allowed: the same",
                         d->name, (int)n->v_dim, (int)n->head_dim);
}

// "fa, trtllm" into text: those of list_names that take this dtype of the pool.
static void list_takers(const msgl_attn_needs *n, char *text, size_t size)
{
    size_t at = 0;
    snprintf(text, size, "none");
    for (const msgl_attn_desc *const *all = n->backends->all; *all != NULL && at < size; all++) {
        const msgl_attn_desc *d = *all;
        const uint32_t caches = d->caches != 0 ? d->caches : 1u << MSGL_CACHE_KV;
        if ((caches & 1u << n->cache) == 0 || d->dual_chunk != (n->dual_len > 0)) continue;
        if ((d->kv_dtypes & 1u << n->kv_dtype) == 0) continue;
        at += (size_t)snprintf(text + at, size - at, "%s%s", at > 0 ? ", " : "", d->name);
    }
}

static int check_heads(const msgl_attn_desc *d, const msgl_attn_needs *n, msgl_err *err)
{
    const int rc = check_head_dim(d, n, err);
    if (rc != 0) return rc;
    if (n->num_kv_heads < 1 || n->num_q_heads < 1 || n->num_q_heads % n->num_kv_heads != 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention: %d query heads are no multiple of %d KV heads",
                             (int)n->num_q_heads, (int)n->num_kv_heads);
    }
    const int32_t group = n->num_q_heads / n->num_kv_heads;
    if (d->max_group > 0 && group > d->max_group) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s: %d query heads per KV head; allowed: up to %d",
                             d->name, (int)group, (int)d->max_group);
    }
    if ((d->kv_dtypes & 1u << n->kv_dtype) == 0) {
        char takers[160];
        list_takers(n, takers, sizeof takers);
        return msgl__err_set(
            err, MSGL_EUNSUPPORTED,
            "attention backend %s: no kernel for a KV cache of %s; those that have "
            "one here: %s",
            d->name, msgl__dtype_name(n->kv_dtype), takers);
    }
    return 0;
}

static int check_mods(const msgl_attn_desc *d, const msgl_attn_mods *mods, msgl_err *err)
{
#define X(name, text, expression) text,
    static const char *const MASKS[] = {MSGL_ATTN_MASKS(X)}, *const SCORES[] = {
                                                                 MSGL_ATTN_SCORES(X)};
#undef X
    for (int i = 0; i < MSGL_MASK_COUNT + MSGL_SCORE_COUNT; i++) {
        const bool mask = i < MSGL_MASK_COUNT;
        const int bit = mask ? i : i - MSGL_MASK_COUNT;
        const uint32_t lacks = mask ? mods->masks & ~d->masks : mods->scores & ~d->scores;
        if ((lacks & 1u << bit) == 0) continue;
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s: no %s \"%s\", which this model needs", d->name,
                             mask ? "mask" : "score function", mask ? MASKS[bit] : SCORES[bit]);
    }
    return 0;
}

static int check_variants(const msgl_attn_desc *d, const msgl_attn_needs *n, msgl_err *err)
{
    if (n->tree && !d->tree) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s: no kernel for trees of new tokens", d->name);
    }
    for (int32_t i = 0; i < n->variants.count; i++) {
        const msgl_attn_variant *v = &n->variants.all[i];
        const bool mods = v->mods != NULL; // instead of window and soft cap
        const int rc = mods ? check_mods(d, v->mods, err) : 0;
        if (rc != 0) return rc;
        const char *lacks = !mods && v->window >= 0 && !d->sliding_window ? "sliding window"
                            : !mods && v->chunk > 0 && !d->local_chunks
                                ? "local attention by chunks"
                            : !mods && v->softcap > 0 && !d->softcap ? "logit soft cap"
                            : v->sinks && !d->sinks                  ? "attention sinks"
                                                                     : NULL;
        if (lacks == NULL) continue;
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s has no %s, which this model needs", d->name,
                             lacks);
    }
    if (n->dual_len > 0 && !d->dual_chunk) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s has no dual chunk attention, which this model "
                             "needs",
                             d->name);
    }
    if (n->dual_len == 0 && d->dual_chunk) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s is for models with dual_chunk_attention_config; "
                             "this one has none",
                             d->name);
    }
    return 0;
}

static bool takes_page_size(const msgl_attn_desc *d, int32_t size)
{
    if (d->page_rule != MSGL_PAGE_SET) return true;
    for (int i = 0; i < MSGL_ATTN_MAX_SET && d->page_sizes[i] != 0; i++) {
        if (d->page_sizes[i] == size) return true;
    }
    return false;
}

// "16, 32, 64" into text.
static void list_page_sizes(const msgl_attn_desc *d, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < MSGL_ATTN_MAX_SET && d->page_sizes[i] != 0 && at < size; i++) {
        at += (size_t)snprintf(text + at, size - at, "%s%d", i > 0 ? ", " : "",
                               (int)d->page_sizes[i]);
    }
}

int msgl__attn_check_page_size(const msgl_attn_desc *d, int32_t size, msgl_err *err)
{
    if (takes_page_size(d, size)) return 0;
    char sizes[64];
    list_page_sizes(d, sizes, sizeof sizes);
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "attention backend %s: page size %d; allowed: %s",
                         d->name, (int)size, sizes);
}

int msgl__attn_supports(const msgl_attn_desc *d, const msgl_attn_needs *n, msgl_err *err)
{
    int rc = check_capability(d, n, err);
    if (rc == 0) rc = check_cache(d, n, err);
    if (rc == 0) rc = check_heads(d, n, err);
    if (rc == 0) rc = check_variants(d, n, err);
    if (rc == 0) rc = msgl__attn_check_page_size(d, n->page_size, err);
    if (rc == 0) rc = check_plugin(d, err);
    if (rc == 0 && d->supports != NULL) rc = d->supports(n, err);
    return rc;
}

// Looks a name of `len` characters up among the device's.
static int find(const msgl_attn_set *set, const char *name, size_t len, const msgl_attn_desc **out,
                msgl_err *err)
{
    char copy[MAX_NAME + 1], names[224];
    list_names(set, names, sizeof names);
    if (len <= MAX_NAME) {
        memcpy(copy, name, len);
        copy[len] = '\0';
        *out = msgl__attn_find(set, copy);
        if (*out != NULL) return 0;
    }
    return msgl__err_set(err, MSGL_EINVAL,
                         "unknown attention backend \"%.*s\"; allowed: auto, %s, or a pair "
                         "\"PREFILL,DECODE\"",
                         len <= MAX_NAME ? (int)len : MAX_NAME, name, names);
}

static bool has_softcap(const msgl_attn_needs *n)
{
    bool has = false;
    for (int32_t i = 0; i < n->variants.count; i++) has |= n->variants.all[i].softcap > 0;
    return has;
}

// The first of what was measured fastest on such a device that can run here; NULL: none was
// measured.
static int choose_measured(const msgl_attn_needs *n, msgl_phase phase, const msgl_attn_desc **out,
                           msgl_err *err)
{
    const msgl_attn_set *set = n->backends;
    const char *const *names = set->measured != NULL ? set->measured(n, phase) : NULL;
    *out = NULL;
    for (int i = 0; names != NULL && i < MSGL_ATTN_AUTO_NAMES && names[i] != NULL; i++) {
        const msgl_attn_desc *d = msgl__attn_find(set, names[i]);
        if (d == NULL || (d->softcap_by != NULL && has_softcap(n))) continue;
        const int rc = msgl__attn_supports(d, n, err);
        if (rc == 0) *out = d;
        if (rc != MSGL_EUNSUPPORTED) return rc;
    }
    return 0;
}

// The first of the set's pairs both halves of which can run here.
static int choose_documented(const msgl_attn_needs *n, msgl_attn_choice *out, msgl_err *err)
{
    msgl_err first = {0}; // the preferred one's reason is shown
    for (const msgl_attn_pair *pair = n->backends->pairs; pair->prefill != NULL; pair++) {
        if (n->capability < pair->min_capability) continue;
        if (pair->e4m3 && n->kv_dtype != MSGL_E4M3) continue;
        if (pair->latent && n->cache != MSGL_CACHE_LATENT) continue;
        const msgl_attn_desc *p = msgl__attn_find(n->backends, pair->prefill);
        const msgl_attn_desc *d = msgl__attn_find(n->backends, pair->decode);
        if (p == NULL || d == NULL) continue;
        msgl_err reason = {0};
        int rc = msgl__attn_supports(p, n, &reason);
        if (rc == 0) rc = msgl__attn_supports(d, n, &reason);
        if (rc == 0) {
            *out = (msgl_attn_choice){.prefill = p, .decode = d};
            return 0;
        }
        if (rc != MSGL_EUNSUPPORTED) return msgl__err_set(err, rc, "%s", reason.text);
        if (first.code == 0) first = reason;
    }
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "no attention backend can run this model on %s%s%s", n->backends->device,
                         first.code != 0 ? ": " : "", first.text);
}

static int choose_auto(const msgl_attn_needs *n, msgl_attn_choice *out, msgl_err *err)
{
    const msgl_attn_desc *p = NULL, *d = NULL;
    int rc = choose_measured(n, MSGL_PREFILL, &p, err);
    if (rc == 0) rc = choose_measured(n, MSGL_DECODE, &d, err);
    if (rc == 0 && (p == NULL || d == NULL)) rc = choose_documented(n, out, err);
    if (rc != 0) return rc;
    if (p != NULL) out->prefill = p;
    if (d != NULL) out->decode = d;
    return 0;
}

// Two backends, of which none may keep labels: those of the other's tokens would be missing.
static int check_labels(const msgl_attn_choice *c, msgl_err *err)
{
    const msgl_attn_desc *half[] = {c->prefill, c->decode};
    for (size_t i = 0; i < MSGL_COUNT(half); i++) {
        if (half[i] == NULL || !half[i]->labels) continue;
        return msgl__err_set(err, MSGL_EINVAL,
                             "attention backend %s serves both phases or none; use \"%s\"",
                             half[i]->name, half[i]->name);
    }
    return 0;
}

// Both halves of a pair, NULL for "auto".
static int find_pair(const msgl_attn_set *set, const char *spec, msgl_attn_choice *out,
                     msgl_err *err)
{
    const char *comma = strchr(spec, ',');
    if (comma == NULL || comma == spec || comma[1] == '\0' || strchr(comma + 1, ',') != NULL) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "attention backend \"%.*s\": a pair is \"PREFILL,DECODE\", for "
                             "example \"fa,fi\"",
                             MAX_NAME, spec);
    }
    const size_t len = (size_t)(comma - spec);
    *out = (msgl_attn_choice){0};
    int rc = 0;
    if (len != 4 || memcmp(spec, "auto", 4) != 0) {
        rc = find(set, spec, len, &out->prefill, err);
    }
    if (rc == 0 && out->prefill != NULL && out->prefill->prefill_by != NULL) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "attention backend %s serves answers only; use \"%s,%s\"",
                             out->prefill->name, out->prefill->prefill_by, out->prefill->name);
    }
    if (rc == 0 && strcmp(comma + 1, "auto") != 0) {
        rc = find(set, comma + 1, strlen(comma + 1), &out->decode, err);
    }
    if (rc == 0 && out->decode != NULL && out->decode->decode_by != NULL) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "attention backend %s serves prompts only; use \"%s,%s\"",
                             out->decode->name, out->decode->name, out->decode->decode_by);
    }
    if (rc == 0 && out->prefill != out->decode) rc = check_labels(out, err);
    return rc;
}

static void remarks(const char *spec, bool twice, const msgl_attn_choice *c, char warning[256])
{
    size_t at = 0;
    if (twice) {
        at = (size_t)snprintf(warning, 256,
                              "attention backend \"%.*s\" names %s twice; using it for both phases",
                              MAX_NAME, spec, c->prefill->name);
    }
    const msgl_attn_desc *half[] = {c->prefill, c->decode};
    for (size_t i = 0; i < MSGL_COUNT(half) && at < 256; i++) {
        const bool new = i == 0 || half[1] != half[0];
        const char *text = new &&half[i]->remark != NULL ? half[i]->remark() : NULL;
        if (text == NULL) continue;
        at += (size_t)snprintf(warning + at, 256 - at, "%s%s", at > 0 ? "; " : "", text);
    }
}

msgl_attn_choice msgl__attn_alone(const msgl_attn_set *set, const msgl_attn_desc *d)
{
    return (msgl_attn_choice){
        .prefill = d->prefill_by != NULL ? msgl__attn_find(set, d->prefill_by) : d,
        .decode = d->decode_by != NULL ? msgl__attn_find(set, d->decode_by) : d};
}

int msgl__attn_select(const char *spec, const msgl_attn_needs *needs, msgl_attn_choice *out,
                      char warning[256], msgl_err *err)
{
    warning[0] = '\0';
    *out = (msgl_attn_choice){0};
    int rc = 0;
    if (strchr(spec, ',') != NULL) {
        rc = find_pair(needs->backends, spec, out, err);
    } else if (strcmp(spec, "auto") != 0) {
        const msgl_attn_desc *named;
        rc = find(needs->backends, spec, strlen(spec), &named, err);
        if (rc == 0) *out = msgl__attn_alone(needs->backends, named);
    }
    if (rc != 0) return rc;
    const bool twice =
        strchr(spec, ',') != NULL && out->prefill != NULL && out->prefill == out->decode;
    msgl_attn_needs n = *needs; // with the page size of the named halves
    n.page_size = msgl__attn_page_size(out, needs->page_size, NULL);
    if (out->prefill == NULL || out->decode == NULL) {
        msgl_attn_choice best = {0};
        rc = choose_auto(&n, &best, err);
        if (rc != 0) return rc;
        if (out->prefill == NULL) out->prefill = best.prefill;
        if (out->decode == NULL) out->decode = best.decode;
    }
    // First the one that was named, if the other is its prefill_by or decode_by.
    const bool prompts = out->prefill->decode_by != NULL;
    rc = msgl__attn_supports(prompts ? out->prefill : out->decode, &n, err);
    if (rc == 0) rc = msgl__attn_supports(prompts ? out->decode : out->prefill, &n, err);
    if (rc == 0) remarks(spec, twice, out, warning);
    return rc;
}

int32_t msgl__attn_page_size(const msgl_attn_choice *c, int32_t wanted, char warning[256])
{
    if (warning != NULL) warning[0] = '\0';
    const msgl_attn_desc *half[] = {c->prefill, c->decode};
    for (size_t i = 0; i < MSGL_COUNT(half); i++) {
        const msgl_attn_desc *d = half[i];
        if (d == NULL || takes_page_size(d, wanted)) continue;
        char sizes[64];
        list_page_sizes(d, sizes, sizeof sizes);
        if (warning != NULL) {
            snprintf(warning, 256,
                     "attention backend %s needs a page size of %s; using %d instead of %d",
                     d->name, sizes, (int)d->page_override, (int)wanted);
        }
        return d->page_override;
    }
    return wanted;
}
