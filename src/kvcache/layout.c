// SPDX-License-Identifier: Apache-2.0
#include "kvcache/layout.h"

#include <stdbool.h>

#include "core/mem.h"
#include "core/round.h"
#include "kernel/delta.h"

// The place of a window among those found so far, ascending.
static void add_window(int32_t *windows, int32_t *count, int32_t window)
{
    int32_t at = 0;
    while (at < *count && windows[at] < window) at++;
    if (at < *count && windows[at] == window) return;
    for (int32_t i = *count; i > at; i--) windows[i] = windows[i - 1];
    windows[at] = window;
    ++*count;
}

// Whether a group gives tokens back before a request of max_seq_len tokens ends.
static bool is_windowed(const msgl_cache_spec *s, int32_t max_seq_len)
{
    return s->kind != MSGL_CACHE_STATE && s->window >= 0 && s->window < max_seq_len - 1;
}

// Whole pages, and whole chunks of the kernels that save.
static int32_t state_interval(int32_t page_size)
{
    int32_t a = page_size, b = MSGL_DELTA_CHUNK;
    while (b != 0) { // their greatest common divisor
        const int32_t rest = a % b;
        a = b;
        b = rest;
    }
    const int32_t step = page_size / a * MSGL_DELTA_CHUNK;
    return msgl__ceil_div(MSGL_STATE_INTERVAL, step) * step;
}

void msgl__cache_layout_of(const msgl_cache_specs *specs, int32_t max_seq_len, int32_t page_size,
                           msgl_cache_layout *out, int32_t span_of[MSGL_MAX_GROUPS])
{
    int32_t windows[MSGL_MAX_GROUPS], num_windows = 0;
    bool states = false;
    for (int32_t g = 0; g < specs->count; g++) {
        const msgl_cache_spec *s = &specs->all[g];
        if (s->kind == MSGL_CACHE_STATE) states = true;
        if (is_windowed(s, max_seq_len)) add_window(windows, &num_windows, s->window);
    }
    // Room is for the smallest, but two that were one: the smaller joins the larger.
    const int32_t room = MSGL_MAX_SPANS - 1 - states;
    const int32_t first = num_windows > room ? num_windows - room : 0;
    *out = (msgl_cache_layout){.page_size = page_size, .num_spans = 1};
    out->spans[0] = (msgl_cache_span){.kind = MSGL_SPAN_ALL, .window = -1};
    for (int32_t i = first; i < num_windows; i++) {
        out->spans[out->num_spans++] =
            (msgl_cache_span){.kind = MSGL_SPAN_WINDOW, .window = windows[i]};
    }
    if (states) {
        out->spans[out->num_spans++] = (msgl_cache_span){
            .kind = MSGL_SPAN_STATE, .window = -1, .interval = state_interval(page_size)};
    }
    for (int32_t g = 0; g < specs->count; g++) {
        const msgl_cache_spec *s = &specs->all[g];
        span_of[g] = s->kind == MSGL_CACHE_STATE ? out->num_spans - 1 : 0;
        if (!is_windowed(s, max_seq_len)) continue;
        span_of[g] = 1;
        while (out->spans[span_of[g]].window < s->window) span_of[g]++;
    }
}

size_t msgl__cache_unit_bytes(const msgl_cache_spec *s, int32_t page_size)
{
    size_t n = (size_t)s->num_layers;
    if (s->kind == MSGL_CACHE_STATE) return msgl__size_mul(n, s->state_bytes, &n) == 0 ? n : 0;
    if (s->num_layers < 1 || s->num_heads < 1 || s->k_dim < 1 || s->v_dim < 0 || s->label_dim < 0 ||
        page_size < 1) {
        return 0;
    }
    const size_t v = s->kind == MSGL_CACHE_LATENT ? 0 : (size_t)s->v_dim; // lies in K
    const size_t dims = ((size_t)s->k_dim + v + (size_t)s->label_dim) * msgl__dtype_size(s->dtype);
    if (msgl__size_mul(n, dims, &n) != 0 || msgl__size_mul(n, (size_t)s->num_heads, &n) != 0 ||
        msgl__size_mul(n, (size_t)page_size, &n) != 0) {
        return 0;
    }
    return n;
}
