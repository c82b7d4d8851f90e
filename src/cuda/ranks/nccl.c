// SPDX-License-Identifier: Apache-2.0
//
// NCCL, opened when ranks on GPUs start: nothing of it is linked. Its header comes with the toolkit
// or from its wheel (cmake/nccl.cmake); only functions that NCCL has had since 2.13 are used. NCCL
// reads its own environment, NCCL_NVLS_ENABLE=0 for GPUs whose switches have no multicast among it,
// which ranks inherit.
#include <dlfcn.h>
#include <glob.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "cuda/ranks/comm.h"

_Static_assert(sizeof(ncclUniqueId) == MSGL_NCCL_ID_BYTES, "comm.h");

#define FUNCTIONS(X)                                                                               \
    X(GetVersion)                                                                                  \
    X(GetUniqueId)                                                                                 \
    X(CommInitRank)                                                                                \
    X(CommAbort)                                                                                   \
    X(AllReduce)                                                                                   \
    X(Broadcast)                                                                                   \
    X(AllGather)                                                                                   \
    X(GetErrorString)                                                                              \
    X(GetLastError)

#define DECLARE(name) __typeof__(nccl##name) *name;
static struct {
    void *handle;
    char version[32];
    FUNCTIONS(DECLARE)
} lib;

struct msgl_nccl {
    ncclComm_t comm; // NULL: aborted
};

static void *open_at(const char *path, char *why, size_t size)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *text = handle == NULL ? dlerror() : NULL;
    if (text != NULL && why[0] == '\0') snprintf(why, size, "%s", text);
    return handle;
}

// The library of the Python package nvidia-nccl-cu13, of a virtual environment or of the user.
static void *open_of_python(const char *variable, const char *lib_dir)
{
    const char *root = getenv(variable);
    char pattern[1024], unused[1] = "";
    glob_t found;
    void *handle = NULL;
    if (root == NULL || root[0] != '/') return NULL;
    snprintf(pattern, sizeof pattern, "%s/%s/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2",
             root, lib_dir);
    if (glob(pattern, 0, NULL, &found) != 0) return NULL;
    for (size_t i = 0; i < found.gl_pathc && handle == NULL; i++) {
        handle = open_at(found.gl_pathv[i], unused, sizeof unused);
    }
    globfree(&found);
    return handle;
}

static void *open_library(const char *path, char *why, size_t size)
{
    if (strcmp(path, "auto") != 0) return open_at(path, why, size);
    void *handle = open_of_python("VIRTUAL_ENV", "lib");
    if (handle == NULL) handle = open_at("libnccl.so.2", why, size);
    return handle != NULL ? handle : open_of_python("HOME", ".local/lib");
}

static bool find_functions(void)
{
#define FIND(name)                                                                                 \
    {                                                                                              \
        void *found = dlsym(lib.handle, "nccl" #name);                                             \
        if (found == NULL) return false;                                                           \
        memcpy(&lib.name, &found, sizeof found);                                                   \
    }
    FUNCTIONS(FIND)
    return true;
}

bool msgl__nccl_open(const char *path, msgl_err *err)
{
    char why[256] = "";
    int version = 0;
    if (lib.handle != NULL) return true;
    if (strcmp(path, "none") == 0) {
        msgl__err_set(err, MSGL_EUNSUPPORTED, "switched off");
        return false;
    }
    lib.handle = open_library(path, why, sizeof why);
    if (lib.handle == NULL) {
        msgl__err_set(err, MSGL_ENOENT, "%.200s", why);
        return false;
    }
    if (!find_functions() || lib.GetVersion(&version) != ncclSuccess) {
        (void)dlclose(lib.handle);
        memset(&lib, 0, sizeof lib);
        msgl__err_set(err, MSGL_EUNSUPPORTED, "NCCL is older than 2.13");
        return false;
    }
    snprintf(lib.version, sizeof lib.version, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return true;
}

const char *msgl__nccl_version(void)
{
    return lib.version;
}

// NULL, or what went wrong.
static const char *check(const msgl_nccl *n, ncclResult_t code)
{
    static _Thread_local char text[256];
    if (code == ncclSuccess) return NULL;
    const char *more = lib.GetLastError(n != NULL ? n->comm : NULL);
    snprintf(text, sizeof text, "%s%s%.180s", lib.GetErrorString(code),
             more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
    return text;
}

int msgl__nccl_id(void *id, msgl_err *err)
{
    ncclUniqueId made;
    const char *wrong = check(NULL, lib.GetUniqueId(&made));
    if (wrong != NULL) return msgl__err_set(err, MSGL_EDEVICE, "NCCL: %.200s", wrong);
    memcpy(id, &made, sizeof made);
    return 0;
}

int msgl__nccl_create(const void *id, int rank, int size, msgl_nccl **out, msgl_err *err)
{
    ncclUniqueId of_all;
    memcpy(&of_all, id, sizeof of_all);
    msgl_nccl *n = msgl__calloc(1, sizeof *n);
    *out = NULL;
    if (n == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory for NCCL");
    const char *wrong = check(NULL, lib.CommInitRank(&n->comm, size, of_all, rank));
    if (wrong != NULL) {
        msgl__free(n);
        return msgl__err_set(err, MSGL_EDEVICE, "NCCL: %.200s", wrong);
    }
    *out = n;
    return 0;
}

static ncclDataType_t type_of(msgl_dtype dtype)
{
    return dtype == MSGL_BF16 ? ncclBfloat16 : dtype == MSGL_F16 ? ncclFloat16 : ncclFloat32;
}

const char *msgl__nccl_all_reduce(msgl_nccl *n, msgl_dtype dtype, void *buf, size_t count,
                                  cudaStream_t stream)
{
    return check(n, lib.AllReduce(buf, buf, count, type_of(dtype), ncclSum, n->comm, stream));
}

const char *msgl__nccl_all_gather(msgl_nccl *n, const float *in, size_t count, float *out,
                                  cudaStream_t stream)
{
    return check(n, lib.AllGather(in, out, count, ncclFloat32, n->comm, stream));
}

const char *msgl__nccl_broadcast(msgl_nccl *n, msgl_dtype dtype, void *buf, size_t count,
                                 cudaStream_t stream)
{
    return check(n, lib.Broadcast(buf, buf, count, type_of(dtype), 0, n->comm, stream));
}

void msgl__nccl_abort(msgl_nccl *n)
{
    ncclComm_t comm = __atomic_exchange_n(&n->comm, NULL, __ATOMIC_ACQ_REL);
    if (comm != NULL) (void)lib.CommAbort(comm);
}

void msgl__nccl_destroy(msgl_nccl *n)
{
    msgl__nccl_abort(n); // not ncclCommDestroy: nobody waits for ranks that may have ended
    msgl__free(n);
}
