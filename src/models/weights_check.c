// SPDX-License-Identifier: Apache-2.0
//
// Whether a checkpoint has the tensors that a plan wants, by whichever of their names, and no
// others.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/weights.h"
#include "utils/file.h"

// Whether the tensor is a vector of n elements, be it with dimensions of 1 around them (Kimi
// Linear: A_log [1, 1, heads, 1]), or a number of shape [] for [1] (Apertus).
static bool is_vector_of(const msgl_tensor *t, int64_t n)
{
    int64_t longest = 1;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->dims[i] != 1 && longest != 1) return false;
        if (t->dims[i] != 1) longest = t->dims[i];
    }
    return longest == n;
}

static bool has_integers(const msgl_tensor *t)
{
    return strcmp(t->type, "I64") == 0 || strcmp(t->type, "I32") == 0;
}

static int check_tensor(const msgl_wanted *w, const msgl_checkpoint *c, msgl_err *err)
{
    const msgl_tensor *t = msgl__checkpoint_find(c, w->name);
    if (t == NULL) {
        const char *file = msgl__checkpoint_count(c) > 0
                               ? msgl__checkpoint_file(c, msgl__checkpoint_at(c, 0))
                               : "checkpoint";
        return msgl__err_set(err, MSGL_EFORMAT, "%s: tensor %s: missing", file, w->name);
    }
    if (w->below > 0 ? !has_integers(t) : !t->loadable) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: tensor %s: dtype: found %s, expected %s",
                             msgl__checkpoint_file(c, t), msgl__tensor_label(t), t->type,
                             w->below > 0 ? "I64, I32" : c->format->types);
    }
    int64_t expected[3];
    const int32_t ndim = msgl__wanted_shape(w, t, expected);
    if (ndim == 1 && is_vector_of(t, expected[0])) return 0;
    if (t->ndim != ndim || memcmp(t->dims, expected, (size_t)ndim * sizeof *expected) != 0) {
        char found[80], want_shape[48];
        return msgl__err_set(err, MSGL_EFORMAT, "%s: tensor %s: shape: found %s, expected %s",
                             msgl__checkpoint_file(c, t), msgl__tensor_label(t),
                             msgl__shape_show(t->dims, t->ndim, found, sizeof found),
                             msgl__shape_show(expected, ndim, want_shape, sizeof want_shape));
    }
    return 0;
}

// Whether a tensor is of a layer that attends to K and V of another, and of its own ones.
static bool is_shared_kv(const msgl_weight_plan *p, const char *name)
{
    static const char LAYERS[] = "layers.", OF[] = ".self_attn.";
    const char *at = strstr(name, LAYERS);
    char *end;
    if (p->shared_kv_from == 0 || at == NULL) return false;
    if (strtol(at + sizeof LAYERS - 1, &end, 10) < p->shared_kv_from) return false;
    if (strncmp(end, OF, sizeof OF - 1) != 0) return false;
    end += sizeof OF - 1;
    return strncmp(end, "k_", 2) == 0 || strncmp(end, "v_", 2) == 0;
}

// Tensors that published checkpoints carry although the model computes them itself, or has no use
// for them.
static bool harmless(const msgl_weight_plan *p, const char *name)
{
    if (is_shared_kv(p, name)) return true;
    if (p->ignores_all) return true;
    for (size_t i = 0; i < p->num_scales; i++) {
        if (strcmp(name, p->scales[i].name) == 0) return true;
    }
    for (size_t i = 0; i < p->num_numbers; i++) {
        if (strcmp(name, p->numbers[i].name) == 0) return true;
    }
    for (int32_t i = 0; i < p->num_ignored; i++) {
        const char *begin = p->ignored[i];
        if (begin != NULL && strncmp(name, begin, strlen(begin)) == 0) return true;
    }
    static const char LAYERS[] = "model.layers.";
    if (p->ignored_from > 0 && strncmp(name, LAYERS, sizeof LAYERS - 1) == 0 &&
        strtol(name + sizeof LAYERS - 1, NULL, 10) >= p->ignored_from) {
        return true;
    }
    static const char *const SUFFIXES[] = {".rotary_emb.inv_freq", ".masked_bias", ".attn.bias",
                                           ".position_ids"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < MSGL_COUNT(SUFFIXES); i++) {
        const size_t s = strlen(SUFFIXES[i]);
        if (n > s && strcmp(name + n - s, SUFFIXES[i]) == 0) return true;
    }
    // A tied model's head may be stored beside the embedding that it is a copy of.
    return strcmp(name, "lm_head.weight") == 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const msgl_wanted *)a)->name, ((const msgl_wanted *)b)->name);
}

static void rename_one(char name[MSGL_TENSOR_NAME], const msgl_checkpoint *c, const char *own,
                       const char *other)
{
    char alias[MSGL_TENSOR_NAME];
    const size_t before = strcspn(own, "*"), to = strcspn(other, "*"); // all of it: there is none
    const bool any = own[before] == '*' && other[to] == '*';
    if (strncmp(name, own, before) != 0 || msgl__checkpoint_find(c, name) != NULL) return;
    const char *const number = name + before;
    const size_t digits = any ? strspn(number, "0123456789") : 0;
    const char *const behind = any ? own + before + 1 : "", *rest = number + digits;
    if (strncmp(rest, behind, strlen(behind)) != 0) return;
    const int len = snprintf(alias, sizeof alias, "%.*s%.*s%s%s", (int)to, other, (int)digits,
                             number, any ? other + to + 1 : "", rest + strlen(behind));
    if (len < 0 || (size_t)len >= sizeof alias || msgl__checkpoint_find(c, alias) == NULL) return;
    memcpy(name, alias, (size_t)len + 1);
}

void msgl__weights_rename(msgl_weight_plan *p, const msgl_checkpoint *c, const char *own,
                          const char *other)
{
    for (size_t i = 0; i < p->num_wanted; i++) rename_one(p->wanted[i].name, c, own, other);
    for (size_t i = 0; i < p->num_scales; i++) rename_one(p->scales[i].name, c, own, other);
}

void msgl__weights_choose_form(msgl_weight_plan *p, const msgl_checkpoint *c)
{
    bool apart = false, stacked = false;
    for (size_t i = 0; i < p->num_wanted && !stacked; i++) {
        const msgl_wanted *w = &p->wanted[i];
        apart = apart || w->form == MSGL_FORM_APART;
        stacked =
            c != NULL && w->form == MSGL_FORM_STACKED && msgl__checkpoint_find(c, w->name) != NULL;
    }
    const msgl_form other = stacked || !apart ? MSGL_FORM_APART : MSGL_FORM_STACKED;
    size_t kept = 0;
    for (size_t i = 0; i < p->num_wanted; i++) {
        if (p->wanted[i].form != other) p->wanted[kept++] = p->wanted[i];
    }
    p->num_wanted = kept;
}

// Whether no tensor of the checkpoint is one that the plan does not know.
static int check_surplus(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    msgl_wanted *sorted = msgl__reallocarray(NULL, p->num_wanted + 1, sizeof *sorted);
    if (sorted == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    if (p->num_wanted > 0) memcpy(sorted, p->wanted, p->num_wanted * sizeof *sorted);
    qsort(sorted, p->num_wanted, sizeof *sorted, by_name);
    int code = 0;
    for (size_t i = 0, w = 0; i < msgl__checkpoint_count(c) && code == 0; i++) {
        const msgl_tensor *t = msgl__checkpoint_at(c, i); // both lists are ordered by name
        while (w < p->num_wanted && strcmp(sorted[w].name, t->name) < 0) w++;
        if (w < p->num_wanted && strcmp(sorted[w].name, t->name) == 0) continue;
        if (t->is_side || harmless(p, t->name)) continue;
        char name[96];
        code = msgl__err_set(err, MSGL_EFORMAT, "%s: tensor %s: found, but the model has no such",
                             msgl__checkpoint_file(c, t),
                             msgl__printable(msgl__tensor_label(t), name, sizeof name));
    }
    msgl__free(sorted);
    return code;
}

// What a model's own numbers say has to be what its config says: they are not read.
static int check_numbers(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    for (size_t i = 0; i < p->num_numbers; i++) {
        const msgl_known_numbers *n = &p->numbers[i];
        const msgl_tensor *t = msgl__checkpoint_find(c, n->name);
        if (t == NULL) continue;
        const bool shaped = strcmp(t->type, "I64") == 0 && t->ndim == 1 && t->dims[0] == n->num;
        if (shaped && memcmp(t->data, n->values, (size_t)n->num * sizeof *n->values) == 0) continue;
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s: tensor %s: other numbers; allowed: the %d that follow from "
                             "config.json, as I64",
                             msgl__checkpoint_file(c, t), n->name, (int)n->num);
    }
    return 0;
}

int msgl__weights_check(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    for (size_t i = 0; i < p->num_wanted; i++) {
        const int code = check_tensor(&p->wanted[i], c, err);
        if (code != 0) return code;
    }
    const int code = check_numbers(p, c, err);
    return code != 0 ? code : check_surplus(p, c, err);
}

int msgl__weights_check_some(msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    int code = check_surplus(p, c, err);
    if (code == 0) code = check_numbers(p, c, err);
    size_t n = 0;
    for (size_t i = 0; i < p->num_wanted && code == 0; i++) {
        if (msgl__checkpoint_find(c, p->wanted[i].name) == NULL) continue;
        code = check_tensor(&p->wanted[i], c, err);
        p->wanted[n++] = p->wanted[i];
    }
    if (code == 0) p->num_wanted = n;
    return code;
}
