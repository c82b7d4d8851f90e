// SPDX-License-Identifier: Apache-2.0
#include "kernel/cuda_loader.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The folder of the program or library that contains this code, "" if it cannot be found.
static void own_folder(char *out, size_t size)
{
    Dl_info info;
    const char *path = dladdr((void *)(uintptr_t)own_folder, &info) != 0 ? info.dli_fname : NULL;
    char exe[512];
    // dladdr has argv[0] for the program itself, which need not be a path.
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) exe[n] = '\0';
    if (path == NULL || strstr(path, ".so") == NULL) path = n > 0 ? exe : "";
    const char *slash = strrchr(path, '/');
    snprintf(out, size, "%.*s", slash != NULL ? (int)(slash - path) : 0, path);
}

// Opens DIR/NAME if the file exists; *tried lists the folders.
static void *open_in(const char *dir, const char *name, char *tried, size_t size, msgl_err *err)
{
    char path[640];
    const size_t used = strlen(tried);
    snprintf(tried + used, size - used, "%s%s", used > 0 ? ", " : "", dir);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (access(path, F_OK) != 0) return NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *why = dlerror();
        msgl__err_set(err, MSGL_EUNSUPPORTED, "%s cannot be opened: %.180s", name,
                      why != NULL ? why : "unknown reason");
    }
    return handle;
}

void *msgl__plugin_open(const char *name, const char *symbol, msgl_err *err)
{
    const char *env = getenv("MINISGL_PLUGIN_DIR");
    char own[512], installed[544], tried[200] = "";
    msgl_err why = {0};
    void *handle = NULL;
    if (env != NULL && env[0] != '\0') {
        handle = open_in(env, name, tried, sizeof tried, &why);
    } else {
        own_folder(own, sizeof own);
        snprintf(installed, sizeof installed, "%s/../lib/minisgl", own);
        handle = open_in(own, name, tried, sizeof tried, &why);
        if (handle == NULL && why.code == 0) {
            handle = open_in(installed, name, tried, sizeof tried, &why);
        }
    }
    if (handle == NULL) {
        if (why.code == 0) {
            msgl__err_set(&why, MSGL_ENOENT, "%s is not in %s", name, tried);
        }
        if (err != NULL) *err = why;
        return NULL;
    }
    if (symbol == NULL) return handle;
    void *found = dlsym(handle, symbol);
    if (found == NULL) {
        msgl__err_set(err, MSGL_EUNSUPPORTED, "%s has no %s: not a plug-in of minisgl", name,
                      symbol);
    }
    return found;
}

const msgl_cuda_api *msgl__cuda_api_open(msgl_err *err)
{
    void *symbol = msgl__plugin_open("minisgl-cuda.so", "msgl_cuda_plugin", err);
    if (symbol == NULL) return NULL;
    msgl_cuda_plugin_fn fn;
    memcpy(&fn, &symbol, sizeof fn); // ISO C has no cast from an object to a function pointer
    const msgl_cuda_api *api = fn();
    if (api->abi != MSGL_CUDA_ABI) {
        msgl__err_set(err, MSGL_EUNSUPPORTED,
                      "minisgl-cuda.so is of another build: interface %u, this program has %u",
                      (unsigned)api->abi, (unsigned)MSGL_CUDA_ABI);
        return NULL;
    }
    return api;
}

// Of "cuda" or "cuda:A,B,...": the ordinal of `rank`'s GPU, how many are named (0: any) and how
// many of them are that one. False: it is something else.
static bool parse_gpus(const char *spec, int rank, int *ordinal, int *named, int *sharing)
{
    int all[64];
    *named = 0;
    *sharing = 1;
    *ordinal = rank;
    if (strcmp(spec, "cuda") == 0) return true;
    if (strncmp(spec, "cuda:", 5) != 0) return false;
    const char *at = spec + 4; // before a number: ':' or ','
    do {
        const size_t digits = strspn(at + 1, "0123456789");
        if (digits == 0 || digits > 3 || *named == 64) return false;
        all[(*named)++] = (int)strtol(at + 1, NULL, 10);
        at += 1 + digits;
    } while (*at == ',');
    if (*at != '\0') return false;
    if (rank >= *named) return true; // there are too few: the caller says so
    *ordinal = all[rank];
    *sharing = 0;
    for (int i = 0; i < *named; i++) *sharing += all[i] == *ordinal;
    return true;
}

static int too_few(const char *spec, int count, int named, int ranks, msgl_err *err)
{
    if (named > 0 && named != ranks) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--device %.40s: %d GPU%s named; allowed with %d processes "
                             "(--tp-size times --dp-size): %d",
                             spec, named, named == 1 ? " is" : "s are", ranks, ranks);
    }
    char there[64];
    snprintf(there, sizeof there, count == 1 ? "cuda:0" : "cuda:0..%d", count - 1);
    if (ranks > count && named == 0) {
        return msgl__err_set(
            err, MSGL_EINVAL,
            "--tp-size times --dp-size: found %d, but %d GPU%s (%s); allowed: up to %d, or "
            "--device cpu",
            ranks, count, count == 1 ? "" : "s", there, count);
    }
    return msgl__err_set(err, MSGL_EINVAL, "--device: found \"%.40s\", allowed %s", spec, there);
}

bool msgl__cuda_has_driver(void)
{
    return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

int msgl__device_choose(const char *spec, int rank, int ranks, msgl_device_choice *out,
                        msgl_err *err)
{
    int ordinal = rank, named = 0, sharing = 1;
    *out = (msgl_device_choice){.kind = MSGL_DEVICE_CPU};
    const bool any = spec == NULL || strcmp(spec, "auto") == 0;
    if (!any && strcmp(spec, "cpu") == 0) return 0;
    if (!any && !parse_gpus(spec, rank, &ordinal, &named, &sharing)) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--device: found \"%.40s\", allowed auto, cpu, cuda, cuda:N or, for "
                             "several ranks, cuda:N,N",
                             spec);
    }
    msgl_err why = {0};
    const msgl_cuda_api *api = msgl__cuda_api_open(&why);
    const int count = api != NULL ? api->device_count(&why) : 0;
    if (count == 0 && any) {
        // Where there is no GPU it is no news that one is not used; `minisgl info` says more.
        snprintf(out->note, sizeof out->note, "running on the CPU%s%.180s",
                 msgl__cuda_has_driver() ? ", though there is a GPU: " : "",
                 msgl__cuda_has_driver() ? why.text : "");
        return 0;
    }
    if (count == 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "--device %.40s: %.180s", spec, why.text);
    }
    if (ordinal >= count || (named > 0 ? named != ranks : ranks > count)) {
        return too_few(any ? "auto" : spec, count, named, ranks, err);
    }
    *out = (msgl_device_choice){
        .kind = MSGL_DEVICE_CUDA, .ordinal = ordinal, .sharing = sharing, .api = api};
    return 0;
}
