// SPDX-License-Identifier: Apache-2.0
#include "core/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double msgl__setting_number(const msgl_setting *s, const void *values)
{
    const void *at = (const char *)values + s->offset;
    if (s->type == MSGL_SETTING_REAL) {
        return s->size == sizeof(float) ? (double)*(const float *)at : *(const double *)at;
    }
    if (s->size == sizeof(bool)) return *(const bool *)at;
    return s->size == sizeof(int64_t) ? (double)*(const int64_t *)at : *(const int32_t *)at;
}

const char *msgl__setting_text(const msgl_setting *s, const void *values)
{
    return *(const char *const *)(const void *)((const char *)values + s->offset);
}

void msgl__setting_put(const msgl_setting *s, double v, void *values)
{
    void *at = (char *)values + s->offset;
    if (s->type == MSGL_SETTING_REAL && s->size == sizeof(float)) {
        *(float *)at = (float)v;
    } else if (s->type == MSGL_SETTING_REAL) {
        *(double *)at = v;
    } else if (s->size == sizeof(bool)) {
        *(bool *)at = v != 0;
    } else if (s->size == sizeof(int64_t)) {
        *(int64_t *)at = (int64_t)v;
    } else {
        *(int32_t *)at = (int32_t)v;
    }
}

void msgl__setting_put_text(const msgl_setting *s, const char *text, void *values)
{
    *(const char **)(void *)((char *)values + s->offset) = text;
}

static bool one_of(const char *choices, const char *text)
{
    const size_t n = strcspn(text, "|");
    for (const char *p = choices; p != NULL && n > 0 && text[n] == '\0'; p = strchr(p, '|')) {
        if (*p == '|') p++;
        if (strncmp(p, text, n) == 0 && (p[n] == '|' || p[n] == '\0')) return true;
    }
    return false;
}

// A float's limits are floats as well: 0.01f is below 0.01.
static bool beyond(const msgl_setting *s, double v)
{
    if (s->type == MSGL_SETTING_REAL && s->size == sizeof(float)) {
        return !((float)v >= (float)s->min && (float)v <= (float)s->max);
    }
    return !(v >= s->min && v <= s->max);
}

static bool allows_number(const msgl_setting *s, double v)
{
    if (s->type == MSGL_SETTING_FLAG) return v == 0 || v == 1;
    return !beyond(s, v) || (!s->unset && v == s->preset);
}

// Whether it may be the name of something that who reads it knows.
static bool is_name(const char *text)
{
    const size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return n > 0 && text[n] == '\0';
}

static bool allows_text(const msgl_setting *s, const char *text)
{
    if (text == NULL) return s->preset_text == NULL;
    return s->choices == NULL || (s->more && is_name(text)) || one_of(s->choices, text);
}

// The choices, or where there are more than fit those that do and how many are left: the line goes
// into an error's text. "a|b|c|d" with room for two is "a|b|... (2 more: --help)".
static void put_choices(const char *choices, char *out, size_t size)
{
    enum { MORE_BYTES = 32 }; // what is said of the others
    size_t n = strlen(choices), left = 0;
    if (n >= size) {
        for (n = size - MORE_BYTES; n > 0 && choices[n - 1] != '|'; n--) continue;
        left = 1;
        for (const char *p = choices + n; *p != '\0'; p++) left += *p == '|';
    }
    const int used = snprintf(out, size, "%.*s", (int)n, choices);
    if (left > 0) snprintf(out + used, size - (size_t)used, "... (%zu more: --help)", left);
}

// The line that flag, variable and C API have in common.
static int refuse(const msgl_setting *s, const char *source, const char *value, msgl_err *err)
{
    char allowed[160] = "a text", found[112] = "NULL";
    if (s->type == MSGL_SETTING_FLAG) {
        snprintf(allowed, sizeof allowed, "1 or 0");
    } else if (s->choices != NULL) {
        put_choices(s->choices, allowed, sizeof allowed);
    } else if (s->type != MSGL_SETTING_TEXT) {
        const bool whole = s->type == MSGL_SETTING_INT;
        const int digits = whole ? 16 : 6;
        int n = snprintf(allowed, sizeof allowed, "a %snumber from %.*g to %.*g",
                         whole ? "whole " : "", digits, s->min, digits, s->max);
        if (!s->unset && beyond(s, s->preset)) {
            snprintf(allowed + n, sizeof allowed - (size_t)n, ", or %g (the default)", s->preset);
        }
    }
    if (value != NULL) snprintf(found, sizeof found, "\"%.100s\"", value);
    return msgl__err_set(err, MSGL_EINVAL, "%s is %s; allowed: %s", source, found, allowed);
}

// What a number's or flag's text says; false: nothing of this type.
static bool read_number(const msgl_setting *s, const char *text, double *out)
{
    char *end = NULL;
    errno = 0;
    if (s->type == MSGL_SETTING_FLAG) {
        const bool yes = one_of("1|true|yes|on", text);
        *out = yes ? 1 - s->preset : s->preset;
        return yes || *text == '\0' || one_of("0|false|no|off", text);
    }
    *out = s->type == MSGL_SETTING_INT ? (double)strtoll(text, &end, 10) : strtod(text, &end);
    return end != text && *end == '\0' && errno == 0;
}

int msgl__setting_parse(const msgl_setting *s, const char *source, const char *text, void *values,
                        msgl_err *err)
{
    double v;
    if (s->type == MSGL_SETTING_TEXT) {
        if (!allows_text(s, text)) return refuse(s, source, text, err);
        msgl__setting_put_text(s, text, values);
        return 0;
    }
    if (!read_number(s, text, &v) || !allows_number(s, v)) return refuse(s, source, text, err);
    msgl__setting_put(s, v, values);
    return 0;
}

void msgl__settings_default(const msgl_setting_table *t, void *values)
{
    for (int i = 0; i < t->count; i++) {
        const msgl_setting *s = &t->rows[i];
        if (s->type == MSGL_SETTING_TEXT) {
            msgl__setting_put_text(s, s->preset_text, values);
        } else if (s->type != MSGL_SETTING_LIST) {
            msgl__setting_put(s, s->preset, values);
        }
    }
}

static int check(const msgl_setting *s, const void *values, msgl_err *err)
{
    if (s->type == MSGL_SETTING_TEXT) {
        const char *text = msgl__setting_text(s, values);
        return allows_text(s, text) ? 0 : refuse(s, s->field, text, err);
    }
    const double v = msgl__setting_number(s, values);
    if (allows_number(s, v)) return 0;
    char found[32];
    snprintf(found, sizeof found, "%.*g", s->type == MSGL_SETTING_REAL ? 6 : 16, v);
    return refuse(s, s->field, found, err);
}

int msgl__settings_check(const msgl_setting_table *t, const void *values, msgl_err *err)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < t->count; i++) rc = check(&t->rows[i], values, err);
    return rc;
}

static int check_nodes(const msgl_options *o, msgl_err *err)
{
    const bool named = o->dist_init_addr != NULL && o->dist_init_addr[0] != '\0';
    if (o->node_rank >= o->nnodes) {
        return msgl__err_set(err, MSGL_EINVAL, "--node-rank is %d; allowed: less than --nnodes, %d",
                             o->node_rank, o->nnodes);
    }
    if (o->nnodes == 1) return 0;
    if (o->tp_size % o->nnodes != 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--tp-size is %d; allowed: a multiple of --nnodes, %d", o->tp_size,
                             o->nnodes);
    }
    if (o->mpi || o->dp_size > 1) {
        return msgl__err_set(err, MSGL_EINVAL, "--nnodes is %d with %s; allowed: either", o->nnodes,
                             o->mpi ? "mpirun or srun" : "--dp-size");
    }
    if (!named) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--nnodes is %d without --dist-init-addr; it is wanted: HOST:PORT of "
                             "the first host, the same on all",
                             o->nnodes);
    }
    const char *port = strrchr(o->dist_init_addr, ':');
    if (port == NULL || strtol(port + 1, NULL, 10) > 0) return 0; // its form: where it is used
    return msgl__err_set(err, MSGL_EINVAL,
                         "--dist-init-addr is \"%.100s\"; allowed with --nnodes: a port that all "
                         "hosts know, 1 to 65535",
                         o->dist_init_addr);
}

static int check_drafts(const msgl_options *o, msgl_err *err)
{
    const char *name = o->speculative_algorithm;
    const bool path = o->speculative_draft_model_path != NULL;
    const bool wants = strcmp(name, "STANDALONE") == 0 || strcmp(name, "EAGLE3") == 0;
    if (path == wants || strcmp(name, "NEXTN") == 0) return 0;
    return msgl__err_set(err, MSGL_EINVAL,
                         wants ? "--speculative-algorithm %s needs --speculative-draft-model-path"
                               : "--speculative-draft-model-path is of no use with "
                                 "--speculative-algorithm %s; allowed: STANDALONE, EAGLE3, "
                                 "NEXTN",
                         o->speculative_algorithm);
}

int msgl__options_check(const msgl_options *o, msgl_err *err)
{
    if (o->model_dir == NULL || o->model_dir[0] == '\0') {
        return msgl__err_set(err, MSGL_EINVAL, "model_dir is not set");
    }
    int rc = msgl__settings_check(&msgl__engine_settings, o, err);
    if (rc == 0 && o->dp_rank >= o->dp_size) {
        return msgl__err_set(err, MSGL_EINVAL, "dp_rank is %d; allowed: less than dp_size, %d",
                             o->dp_rank, o->dp_size);
    }
    if (rc == 0) rc = check_nodes(o, err);
    if (rc == 0) rc = check_drafts(o, err);
    const int shares =
        (o->memory_ratio > 0) + (o->gpu_memory_utilization > 0) + (o->mem_fraction_static > 0);
    if (rc == 0 && shares > 1) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--memory-ratio, --gpu-memory-utilization, --mem-fraction-static: "
                             "found %d of them; allowed: one, they say the same in other terms",
                             shares);
    }
    if (rc == 0 && o->collapsed_routing && !o->dummy_weight) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "collapsed routing is of random weights alone: it needs "
                             "--dummy-weight");
    }
    return rc;
}
