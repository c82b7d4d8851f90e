// SPDX-License-Identifier: Apache-2.0
// minisgl-test-poison.so, for LD_PRELOAD: makes a kernel fail in a process that uses a GPU, as a
// wrong address in one of ours would. What is tested is what the process, the server and its
// clients make of it (poison.py).
//
// A thread of each process, also of those that are forked, waits until the file that
// MSGL_TEST_POISON names has the process' id and a kernel's name in it, "123 address" or "123
// trap", removes it and launches that kernel in the device's primary context, which is the CUDA
// runtime's.
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char kernels[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                              ".visible .entry address()\n{\n"
                              "    .reg .b64 %p;\n    .reg .b32 %v;\n"
                              "    mov.u64 %p, 16;\n    mov.u32 %v, 1;\n"
                              "    st.global.u32 [%p], %v;\n    ret;\n}\n"
                              ".visible .entry trap()\n{\n    trap;\n    ret;\n}\n";

// The driver as the process has loaded it; the program itself must not link to it.
static void *driver(const char *name)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    void *f = cuda != NULL ? dlsym(cuda, name) : NULL;
    if (f == NULL) {
        fprintf(stderr, "poison: no %s\n", name);
        abort();
    }
    return f;
}

#define CALL(name, ...)                                                                            \
    do {                                                                                           \
        const CUresult code = ((__typeof__(&name))driver(#name))(__VA_ARGS__);                     \
        if (code != CUDA_SUCCESS) fprintf(stderr, "poison: " #name ": error %d\n", code);          \
    } while (0)

static void poison(const char *kernel)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, kernels);
    CALL(cuModuleGetFunction, &function, module, kernel);
    fprintf(stderr, "poison: %s\n", kernel);
    CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static void *wait_for_it(void *arg)
{
    const char *path = arg;
    for (;; usleep(5000)) {
        char kernel[16] = "";
        int pid = 0;
        FILE *f = fopen(path, "r");
        if (f == NULL) continue;
        const int found = fscanf(f, "%d %15s", &pid, kernel);
        fclose(f);
        if (found != 2 || pid != getpid()) continue;
        unlink(path);
        poison(kernel);
    }
    return NULL;
}

static void watch(void)
{
    pthread_t thread;
    sigset_t all, before;
    char *path = getenv("MSGL_TEST_POISON");
    if (path == NULL) return;
    sigfillset(&all); // signals are for the program's own threads
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_create(&thread, NULL, wait_for_it, path);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    watch();
    pthread_atfork(NULL, NULL, watch);
}
