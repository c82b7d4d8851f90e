// SPDX-License-Identifier: Apache-2.0
#include "device/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "utils/plugin.h"

enum { MAX_NAME = 32, MAX_NAMED = 64 };
static const char LETTERS[] = "abcdefghijklmnopqrstuvwxyz0123456789_";

const char *const msgl__device_kinds[] = {"cuda", NULL};

const msgl_plugin *msgl__plugin_of(const char *name, msgl_err *err)
{
    char file[MAX_NAME + sizeof "minisgl-.so"];
    msgl_plugin_fn fn;
    if (strcmp(name, "cpu") == 0) return &msgl__cpu_plugin;
    if (name[0] == '\0' || name[strspn(name, LETTERS)] != '\0' || strlen(name) > MAX_NAME) {
        msgl__err_set(err, MSGL_EINVAL, "no name of a device: \"%.40s\"", name);
        return NULL;
    }
    snprintf(file, sizeof file, "minisgl-%.*s.so", (int)MAX_NAME, name);
    void *symbol = msgl__plugin_open(file, MSGL_PLUGIN_SYMBOL, err);
    if (symbol == NULL) return NULL;
    memcpy(&fn, &symbol, sizeof fn); // ISO C has no cast from an object to a function pointer
    const msgl_plugin *p = fn();
    if (p->abi == MSGL_PLUGIN_ABI) return p;
    msgl__err_set(err, MSGL_EUNSUPPORTED,
                  "%s is of another build: interface %u, this program has %u", file,
                  (unsigned)p->abi, (unsigned)MSGL_PLUGIN_ABI);
    return NULL;
}

bool msgl__device_has_driver(const char *name)
{
    if (strcmp(name, "cuda") != 0) return false;
    return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

// "NAME" or "NAME:A,B,..." taken apart.
typedef struct device_spec {
    char name[MAX_NAME + 1];
    int ordinal; // of `rank`'s device
    int num;     // devices that are listed; 0: any
    int sharing; // how many of these are that one
} device_spec;

// False: the text is no such thing.
static bool parse(const char *spec, int rank, device_spec *out)
{
    int all[MAX_NAMED];
    const size_t len = strspn(spec, LETTERS);
    if (len == 0 || len > MAX_NAME || (spec[len] != '\0' && spec[len] != ':')) return false;
    *out = (device_spec){.ordinal = rank, .sharing = 1};
    memcpy(out->name, spec, len);
    if (spec[len] == '\0') return true;
    const char *at = spec + len; // before a number: ':' or ','
    do {
        const size_t digits = strspn(at + 1, "0123456789");
        if (digits == 0 || digits > 3 || out->num == MAX_NAMED) return false;
        all[out->num++] = (int)strtol(at + 1, NULL, 10);
        at += 1 + digits;
    } while (*at == ',');
    if (*at != '\0') return false;
    if (rank >= out->num) return true; // there are too few: the caller says so
    out->ordinal = all[rank];
    out->sharing = 0;
    for (int i = 0; i < out->num; i++) out->sharing += all[i] == out->ordinal;
    return true;
}

static int bad_spec(const char *spec, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EINVAL,
                         "--device: found \"%.40s\", allowed auto, cpu, cuda, cuda:N or, for "
                         "several ranks, cuda:N,N",
                         spec);
}

static int too_few(const char *spec, const device_spec *s, int count, int ranks, msgl_err *err)
{
    char there[2 * MAX_NAME];
    if (s->num > 0 && s->num != ranks) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--device %.40s: %d GPU%s named; allowed with %d processes "
                             "(--tp-size times --dp-size): %d",
                             spec, s->num, s->num == 1 ? " is" : "s are", ranks, ranks);
    }
    snprintf(there, sizeof there, count == 1 ? "%s:0" : "%s:0..%d", s->name, count - 1);
    if (ranks > count && s->num == 0) {
        return msgl__err_set(
            err, MSGL_EINVAL,
            "--tp-size times --dp-size: found %d, but %d GPU%s (%s); allowed: up to %d, or "
            "--device cpu",
            ranks, count, count == 1 ? "" : "s", there, count);
    }
    return msgl__err_set(err, MSGL_EINVAL, "--device: found \"%.40s\", allowed %s", spec, there);
}

static bool is_known(const char *name)
{
    int i = 0;
    while (msgl__device_kinds[i] != NULL && strcmp(msgl__device_kinds[i], name) != 0) i++;
    return msgl__device_kinds[i] != NULL;
}

static int choose(const char *spec, const device_spec *s, int ranks, msgl_device_choice *out,
                  msgl_err *err)
{
    msgl_err why = {0};
    const msgl_plugin *p = msgl__plugin_of(s->name, &why);
    if (p == NULL && why.code == MSGL_ENOENT && !is_known(s->name)) return bad_spec(spec, err);
    const int count = p != NULL ? p->count(&why) : 0;
    if (count == 0) return msgl__err_set(err, MSGL_EUNSUPPORTED, "%.180s", why.text);
    if (s->ordinal >= count || (s->num > 0 ? s->num != ranks : ranks > count)) {
        return too_few(spec, s, count, ranks, err);
    }
    *out = (msgl_device_choice){.plugin = p, .ordinal = s->ordinal, .sharing = s->sharing};
    return 0;
}

// The first kind that there are devices of.
static int choose_any(int rank, int ranks, msgl_device_choice *out, msgl_err *err)
{
    *out = (msgl_device_choice){.plugin = &msgl__cpu_plugin, .sharing = 1};
    for (int i = 0; msgl__device_kinds[i] != NULL; i++) {
        device_spec s;
        msgl_err why = {0};
        if (!parse(msgl__device_kinds[i], rank, &s)) continue;
        const int code = choose("auto", &s, ranks, out, &why);
        if (code != MSGL_EUNSUPPORTED) {
            if (code != 0) *err = why;
            return code;
        }
        // Where there is no such device it is no news that one is not used; `minisgl info` says
        // more.
        const bool news = msgl__device_has_driver(s.name);
        snprintf(out->note, sizeof out->note, "running on the CPU%s%.180s",
                 news ? ", though there is a GPU: " : "", news ? why.text : "");
    }
    return 0;
}

int msgl__device_choose(const char *spec, int rank, int ranks, msgl_device_choice *out,
                        msgl_err *err)
{
    device_spec s;
    msgl_err why = {0};
    if (spec == NULL || strcmp(spec, "auto") == 0) return choose_any(rank, ranks, out, err);
    *out = (msgl_device_choice){.plugin = &msgl__cpu_plugin, .sharing = 1};
    if (strcmp(spec, "cpu") == 0) return 0;
    if (!parse(spec, rank, &s) || strcmp(s.name, "cpu") == 0) return bad_spec(spec, err);
    const int code = choose(spec, &s, ranks, out, &why);
    if (code == MSGL_EUNSUPPORTED) {
        return msgl__err_set(err, code, "--device %.40s: %.180s", spec, why.text);
    }
    if (code != 0) *err = why;
    return code;
}
