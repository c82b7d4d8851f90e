// SPDX-License-Identifier: Apache-2.0
//
// From what the user wrote, the model and the machine to one backend or a pair. Works on
// descriptors only, so every limit lives beside the code that has it.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "attention/attention.h"
#include "attention/auto.h"
#include "attention/hybrid.h"
#include "core/attributes.h"
#include "kernel/cuda_loader.h"

enum { MAX_NAME = 64 };

static const char *device_name(msgl_device_kind device)
{
    return device == MSGL_DEVICE_CUDA ? "CUDA" : "the CPU";
}

// "fa, fi, trtllm" into text: the backends for this kind of device.
static void list_names(msgl_device_kind device, char *text, size_t size)
{
    int count;
    const msgl_attn_desc *const *all = msgl__attn_backends(&count);
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < count && at < size; i++) {
        if ((all[i]->devices & 1u << device) == 0) continue;
        at += (size_t)snprintf(text + at, size - at, "%s%s", at > 0 ? ", " : "", all[i]->name);
    }
}

static int check_head_dim(const msgl_attn_desc *d, const msgl_attn_needs *n, msgl_err *err)
{
    if (d->head_dims[0] == 0) {
        if (n->head_dim >= 8 && n->head_dim <= MSGL_ATTN_MAX_DIM && n->head_dim % 8 == 0) return 0;
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s: head_dim %d; allowed: multiples of 8 up to %d",
                             d->name, (int)n->head_dim, MSGL_ATTN_MAX_DIM);
    }
    for (int i = 0; i < MSGL_ATTN_MAX_SET && d->head_dims[i] != 0; i++) {
        if (d->head_dims[i] == n->head_dim) return 0;
    }
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "attention backend %s: no kernel for head_dim %d",
                         d->name, (int)n->head_dim);
}

static int check_device(const msgl_attn_desc *d, const msgl_attn_needs *n, msgl_err *err)
{
    if ((d->devices & 1u << n->device) == 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s does not run on %s; choose another with "
                             "--attn or use auto",
                             d->name, device_name(n->device));
    }
    if (n->device == MSGL_DEVICE_CUDA && n->capability < d->min_capability) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s needs compute capability %d.%d; this GPU has "
                             "%d.%d",
                             d->name, (int)d->min_capability / 10, (int)d->min_capability % 10,
                             (int)n->capability / 10, (int)n->capability % 10);
    }
    return 0;
}

static int check_plugin(const msgl_attn_desc *d, msgl_err *err)
{
    if (d->plugin == NULL) return 0;
    msgl_err why = {0};
    if ((d->devices & 1u << MSGL_DEVICE_CUDA) != 0) {
        if (msgl__plugin_open(d->plugin, NULL, &why) != NULL) return 0;
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "attention backend %s: %.150s; %s", d->name,
                             why.text, d->plugin_hint);
    }
    void *handle = dlopen(d->plugin, RTLD_LAZY | RTLD_LOCAL);
    if (handle == NULL) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "attention backend %s needs %s: %s", d->name,
                             d->plugin, d->plugin_hint);
    }
    dlclose(handle);
    return 0;
}

int msgl__attn_supports(const msgl_attn_desc *d, const msgl_attn_needs *n, msgl_err *err)
{
    int rc = check_device(d, n, err);
    if (rc != 0) return rc;
    rc = check_head_dim(d, n, err);
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
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s does not support a %s KV cache", d->name,
                             msgl__dtype_name(n->kv_dtype));
    }
    if (n->sliding_window && !d->sliding_window) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s has no sliding window, which this model needs",
                             d->name);
    }
    if (n->softcap && !d->softcap) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s has no logit soft cap, which this model needs",
                             d->name);
    }
    return check_plugin(d, err);
}

// Looks a name of `len` characters up. A backend that exists only for another device is found too:
// msgl__attn_supports says so.
static int find(const char *name, size_t len, msgl_device_kind device, const msgl_attn_desc **out,
                msgl_err *err)
{
    char copy[MAX_NAME + 1], names[128];
    list_names(device, names, sizeof names);
    if (len <= MAX_NAME) {
        memcpy(copy, name, len);
        copy[len] = '\0';
        *out = msgl__attn_find(copy, device);
        if (*out != NULL) return 0;
        const bool cpu = device == MSGL_DEVICE_CPU;
        *out = msgl__attn_find(copy, cpu ? MSGL_DEVICE_CUDA : MSGL_DEVICE_CPU);
        if (*out != NULL) return 0;
    }
    return msgl__err_set(err, MSGL_EINVAL,
                         "unknown attention backend \"%.*s\"; allowed: auto, %s, or a pair "
                         "\"PREFILL,DECODE\"",
                         len <= MAX_NAME ? (int)len : MAX_NAME, name, names);
}

static bool takes_page_size(const msgl_attn_desc *d, int32_t size)
{
    if (d->page_rule != MSGL_PAGE_SET) return true;
    for (int i = 0; i < MSGL_ATTN_MAX_SET && d->page_sizes[i] != 0; i++) {
        if (d->page_sizes[i] == size) return true;
    }
    return false;
}

// The first of what was measured fastest on this kind of GPU that can run here with the wanted page
// size; NULL: none was measured.
static const msgl_attn_desc *choose_measured(const msgl_attn_needs *n, msgl_phase phase)
{
    const char *const *names = msgl__attn_measured(n, phase);
    for (int i = 0; names != NULL && i < MSGL_ATTN_AUTO_NAMES && names[i] != NULL; i++) {
        const msgl_attn_desc *d = msgl__attn_find(names[i], n->device);
        if (d != NULL && takes_page_size(d, n->page_size) && msgl__attn_supports(d, n, NULL) == 0) {
            return d;
        }
    }
    return NULL;
}

// The documented order: SM100 trtllm; SM90 "fa,fi"; other NVIDIA fi, then what minisgl-cuda.so has;
// CPU fa (the fastest in every shape of `minisgl bench attn`). The first whose both halves can run
// here is taken.
static int choose_documented(const msgl_attn_needs *n, msgl_attn_choice *out, msgl_err *err)
{
    static const struct {
        msgl_device_kind device;
        int32_t min_capability;
        const char *prefill, *decode;
    } order[] = {
        {MSGL_DEVICE_CUDA, 100, "trtllm", "trtllm"},
        {MSGL_DEVICE_CUDA, 90, "fa", "fi"},
        {MSGL_DEVICE_CUDA, 0, "fi", "fi"},
        {MSGL_DEVICE_CUDA, 0, "fa", "fa"},
        {MSGL_DEVICE_CUDA, 0, "torch_native", "torch_native"},
        {MSGL_DEVICE_CPU, 0, "fa", "fa"},
        {MSGL_DEVICE_CPU, 0, "fi", "fi"},
        {MSGL_DEVICE_CPU, 0, "torch_native", "torch_native"},
    };
    msgl_err reason = {0};
    for (size_t i = 0; i < MSGL_COUNT(order); i++) {
        if (order[i].device != n->device || n->capability < order[i].min_capability) continue;
        const msgl_attn_desc *p = msgl__attn_find(order[i].prefill, n->device);
        const msgl_attn_desc *d = msgl__attn_find(order[i].decode, n->device);
        if (p == NULL || d == NULL) continue;
        msgl_err *e = reason.code == 0 ? &reason : NULL; // the preferred one's reason is shown
        if (msgl__attn_supports(p, n, e) != 0 || msgl__attn_supports(d, n, e) != 0) continue;
        *out = (msgl_attn_choice){.prefill = p, .decode = d};
        return 0;
    }
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "no attention backend can run this model on %s%s%s",
                         device_name(n->device), reason.code != 0 ? ": " : "", reason.text);
}

static int choose_auto(const msgl_attn_needs *n, msgl_attn_choice *out, msgl_err *err)
{
    const msgl_attn_desc *p = choose_measured(n, MSGL_PREFILL);
    const msgl_attn_desc *d = choose_measured(n, MSGL_DECODE);
    if (p == NULL || d == NULL) {
        const int rc = choose_documented(n, out, err);
        if (rc != 0) return rc;
    }
    if (p != NULL) out->prefill = p;
    if (d != NULL) out->decode = d;
    return 0;
}

// One half of a pair: a name, or "auto" for what auto would take in that phase.
static int select_half(const char *name, size_t len, const msgl_attn_needs *needs, bool decode,
                       const msgl_attn_desc **out, msgl_err *err)
{
    if (len != 4 || memcmp(name, "auto", 4) != 0) return find(name, len, needs->device, out, err);
    msgl_attn_choice both;
    const int rc = choose_auto(needs, &both, err);
    if (rc == 0) *out = decode ? both.decode : both.prefill;
    return rc;
}

int msgl__attn_select(const char *spec, const msgl_attn_needs *needs, msgl_attn_choice *out,
                      char warning[256], msgl_err *err)
{
    warning[0] = '\0';
    if (strcmp(spec, "auto") == 0) return choose_auto(needs, out, err);
    const char *comma = strchr(spec, ',');
    const size_t len = strlen(spec);
    int rc;
    if (comma == NULL) {
        rc = find(spec, len, needs->device, &out->prefill, err);
        out->decode = out->prefill;
    } else {
        if (comma == spec || comma[1] == '\0' || strchr(comma + 1, ',') != NULL) {
            return msgl__err_set(err, MSGL_EINVAL,
                                 "attention backend \"%.*s\": a pair is \"PREFILL,DECODE\", for "
                                 "example \"fa,fi\"",
                                 MAX_NAME, spec);
        }
        rc = select_half(spec, (size_t)(comma - spec), needs, false, &out->prefill, err);
        if (rc == 0) {
            rc = select_half(comma + 1, len - (size_t)(comma + 1 - spec), needs, true, &out->decode,
                             err);
        }
        const bool both_named = strncmp(spec, "auto,", 5) != 0 && strcmp(comma, ",auto") != 0;
        if (rc == 0 && out->prefill == out->decode && both_named) {
            snprintf(warning, 256,
                     "attention backend \"%.*s\" names %s twice; using it for both phases",
                     MAX_NAME, spec, out->prefill->name);
        }
    }
    if (rc == 0) rc = msgl__attn_supports(out->prefill, needs, err);
    if (rc == 0) rc = msgl__attn_supports(out->decode, needs, err);
    return rc;
}

int32_t msgl__attn_page_size(const msgl_attn_choice *c, int32_t wanted, char warning[256])
{
    warning[0] = '\0';
    const msgl_attn_desc *half[] = {c->prefill, c->decode};
    for (size_t i = 0; i < MSGL_COUNT(half); i++) {
        const msgl_attn_desc *d = half[i];
        if (takes_page_size(d, wanted)) continue;
        char sizes[64] = "";
        size_t at = 0;
        for (int s = 0; s < MSGL_ATTN_MAX_SET && d->page_sizes[s] != 0 && at < sizeof sizes; s++) {
            at += (size_t)snprintf(sizes + at, sizeof sizes - at, "%s%d", s > 0 ? ", " : "",
                                   (int)d->page_sizes[s]);
        }
        snprintf(warning, 256,
                 "attention backend %s needs a page size of %s; using %d instead of %d", d->name,
                 sizes, (int)d->page_override, (int)wanted);
        return d->page_override;
    }
    return wanted;
}

int msgl__attn_create(const msgl_attn_choice *c, const msgl_attn_config *cfg,
                      msgl_attn_backend **out, msgl_err *err)
{
    if (c->prefill == c->decode) return c->prefill->create(cfg, out, err);
    return msgl__attn_hybrid_create(c, cfg, out, err);
}
