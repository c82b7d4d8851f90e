// SPDX-License-Identifier: Apache-2.0
//
// The fields of Mamba-2 in config.json, which several architectures have by other names.
#include "models/mamba_config.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

enum { MAX_STATE = 1024, MAX_GROUPS = 1024 };

static int32_t field(msgl_json_reader *r, msgl_mamba_field f, int32_t lo, int32_t hi)
{
    return msgl__json_int_or(r, f.key, lo, hi, f.usual);
}

// time_step_limit: [low, high]; what is no number as high (Infinity, in some way of writing it) is
// no limit.
static void read_limit(msgl_json_reader *r, msgl_mamba_config *m)
{
    const json_t *v = msgl__json_get(r, "time_step_limit");
    m->dt_min = 0;
    m->dt_max = FLT_MAX;
    if (v == NULL) return;
    const json_t *low = json_array_get(v, 0), *high = json_array_get(v, 1);
    const double from = json_number_value(low), to = json_number_value(high);
    if (json_array_size(v) != 2 || !json_is_number(low) || !(from >= 0 && from < 1e6) ||
        (json_is_number(high) && !(to >= from))) {
        msgl__json_reject(r, MSGL_EFORMAT, "time_step_limit", v, "two numbers, ascending from 0");
        return;
    }
    m->dt_min = (float)from;
    if (json_is_number(high) && to < FLT_MAX) m->dt_max = (float)to;
}

void msgl__mamba_read(msgl_json_reader *r, msgl_model_config *c, const msgl_mamba_keys *k)
{
    msgl_mamba_config *m = &c->decoder.mamba;
    const json_t *dim = msgl__json_get(r, k->head_dim.key);
    const bool automatic = dim == NULL || json_is_string(dim); // "auto"
    m->heads = field(r, k->heads, 1, MSGL_MAX_HEADS);
    m->groups = field(r, k->groups, 1, MAX_GROUPS);
    m->state_dim = field(r, k->state_dim, 1, MAX_STATE);
    m->taps = field(r, k->taps, 2, MSGL_CONV_MAX_TAPS);
    const int32_t times = field(r, k->expand, 1, 64);
    if (r->status != 0) return;
    int64_t wide = (int64_t)times * c->hidden_size;
    if (k->width != NULL) wide = msgl__json_int_or(r, k->width, 1, 1 << 24, (int32_t)wide);
    m->head_dim = automatic && k->head_dim.usual == 0 ? (int32_t)(wide / m->heads)
                                                      : field(r, k->head_dim, 1, MSGL_SSM_MAX_DIM);
    m->conv_bias = msgl__json_bool_or(r, k->conv_bias, true);
    m->proj_bias = m->out_bias = msgl__json_bool_or(r, k->proj_bias, false);
    read_limit(r, m);
    if (r->status != 0) return;
    if (m->head_dim < 16 || m->head_dim > MSGL_SSM_MAX_DIM || m->head_dim % 16 != 0 ||
        2 * m->groups * m->state_dim % 16 != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, k->head_dim.key, dim,
                          "heads of a multiple of 16 up to 256, and groups times states of 8");
    } else if (m->heads % m->groups != 0) {
        char allowed[64];
        snprintf(allowed, sizeof allowed, "a divisor of %s %d", k->heads.key, (int)m->heads);
        msgl__json_reject(r, MSGL_EFORMAT, k->groups.key, msgl__json_get(r, k->groups.key),
                          allowed);
    } else if (!k->own_silu && c->decoder.activation != MSGL_SILU) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "hidden_act", msgl__json_get(r, "hidden_act"),
                          "silu, for Mamba-2");
    }
    m->norm = MSGL_SSM_NORM_GATED;
    m->norm_groups = m->groups;
    m->z_scale = m->x_scale = m->b_scale = m->c_scale = m->dt_scale = m->out_scale = 1;
}
