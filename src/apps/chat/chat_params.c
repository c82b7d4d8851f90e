// SPDX-License-Identifier: Apache-2.0
//
// /params: the options of requests that are numbers or flags, by the table that parses them and
// writes --help. What no answer of a shell can show (--logprobs) is no option of this command.
#include <string.h>

#include "apps/chat/chat.h"
#include "core/err.h"

static bool is_param(const msgl_setting *o)
{
    return (o->commands & MSGL_CMD_CHAT) != 0 && strcmp(o->group, "requests") == 0 &&
           o->type != MSGL_SETTING_TEXT && o->type != MSGL_SETTING_LIST;
}

// The i-th parameter: the option's number, or -1 behind the last.
static int nth(int n)
{
    const msgl_setting *o;
    for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
        if (is_param(o) && n-- == 0) return i;
    }
    return -1;
}

// "top_p" of "top-p".
static void field_name(const char *name, char out[64])
{
    snprintf(out, 64, "%s", name);
    for (char *p = out; *p != '\0'; p++) {
        if (*p == '-') *p = '_';
    }
}

static int find(const char *name, msgl_err *err)
{
    char asked[64], own[64];
    if (strncmp(name, "--", 2) == 0) name += 2;
    field_name(name, asked);
    msgl_strbuf all;
    msgl__strbuf_init(&all, MSGL_ERR_TEXT_SIZE);
    for (int n = 0, i; (i = nth(n)) >= 0; n++) {
        field_name(msgl__option(i)->name, own);
        if (strcmp(own, asked) == 0) {
            msgl__strbuf_free(&all);
            return i;
        }
        (void)msgl__strbuf_addf(&all, "%s%s", n > 0 ? ", " : "", own);
    }
    (void)msgl__err_set(err, MSGL_EINVAL, "no parameter \"%.30s\"; allowed: %s", asked,
                        msgl__strbuf_str(&all));
    msgl__strbuf_free(&all);
    return -1;
}

static void print(const msgl_chat *c, int i, FILE *out)
{
    const msgl_setting *o = msgl__option(i);
    const double v = msgl__setting_number(o, (const char *)c->params + msgl__option_values(i));
    char name[64];
    field_name(o->name, name);
    // Of the command's own options the default of these says "not given".
    if (msgl__option_values(i) == 0 && o->unset && v == o->preset) {
        fprintf(out, "  %-20s not set%s\n", name, o->by_default);
    } else if (o->type == MSGL_SETTING_REAL) {
        fprintf(out, "  %-20s %.6g\n", name, v);
    } else {
        fprintf(out, "  %-20s %.0f\n", name, v);
    }
}

void msgl__chat_params_print(const msgl_chat *c, FILE *out)
{
    for (int n = 0, i; (i = nth(n)) >= 0; n++) print(c, i, out);
    if (c->params->stop.count == 0) return;
    fprintf(out, "  %-20s %d, by --stop\n", "stop strings", c->params->stop.count);
}

void msgl__chat_params_print_one(const msgl_chat *c, const char *name, FILE *out)
{
    const int i = find(name, NULL);
    if (i >= 0) print(c, i, out);
}

int msgl__chat_params_set(msgl_chat *c, const char *name, const char *value, msgl_err *err)
{
    const int i = find(name, err);
    if (i < 0) return MSGL_EINVAL;
    const msgl_setting *o = msgl__option(i);
    char *values = (char *)c->params + msgl__option_values(i);
    if (strcmp(value, "default") == 0) {
        const char *first = (const char *)c->first_params + msgl__option_values(i);
        msgl__setting_put(o, msgl__setting_number(o, first), values);
        return 0;
    }
    char own[64];
    field_name(o->name, own);
    return msgl__setting_parse(o, own, value, values, err);
}
