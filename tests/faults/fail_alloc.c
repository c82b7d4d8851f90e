// SPDX-License-Identifier: Apache-2.0
//
// malloc and its family, and anonymous mmap, in front of those of the C library: a program's own
// definitions are found by all its libraries as well.
#include "faults/fail_alloc.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launch/launch.h"

#define REAL(name) __libc_##name
#define EXPORT __attribute__((visibility("default")))

void *REAL(malloc)(size_t size);
void *REAL(calloc)(size_t n, size_t size);
void *REAL(realloc)(void *p, size_t size);
void *REAL(memalign)(size_t align, size_t size);

static faults *g_faults; // NULL: nothing fails

// A library whose own allocations do not fail: libseccomp 2.5 frees twice, or loads a filter
// without some of its calls and says nothing.
static const char SPARED[] = "libseccomp";
static uintptr_t g_spared[2]; // its code

static int find_spared(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    (void)arg;
    if (strstr(info->dlpi_name, SPARED) == NULL) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type != PT_LOAD || (h->p_flags & PF_X) == 0) continue;
        g_spared[0] = info->dlpi_addr + h->p_vaddr;
        g_spared[1] = g_spared[0] + h->p_memsz;
    }
    return 0;
}

// libgfortran, which OpenBLAS brings, ends the process while it is loaded, and is not found before.
static bool is_fortran(const void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) != 0 && strstr(info.dli_fname, "libgfortran") != NULL;
}

__attribute__((constructor)) static void begin(void)
{
    const char *fd = getenv("FAULTS");
    void *p = fd == NULL ? MAP_FAILED
                         : (void *)syscall(SYS_mmap, NULL, sizeof *g_faults, PROT_READ | PROT_WRITE,
                                           MAP_SHARED, atoi(fd), 0);
    dl_iterate_phdr(find_spared, NULL);
    if (p != MAP_FAILED) g_faults = p;
}

// In place of the server's own: one that ends is started again at once, however often.
msgl_serve_config __real_msgl__serve_config_default(void);
msgl_serve_config __wrap_msgl__serve_config_default(void);

msgl_serve_config __wrap_msgl__serve_config_default(void)
{
    msgl_serve_config cfg = __real_msgl__serve_config_default();
    cfg.restart_delay_ms = 1;
    cfg.min_life_ms = 0;
    return cfg;
}

// A debugger's breakpoint here shows who gets no memory.
static __attribute__((noinline)) bool fail_here(void)
{
    errno = ENOMEM;
    return true;
}

static bool must_fail(const void *caller)
{
    if ((uintptr_t)caller - g_spared[0] < g_spared[1] - g_spared[0]) return false;
    if (g_faults == NULL || atomic_load(&g_faults->left) <= 0) return false;
    if (atomic_fetch_sub(&g_faults->left, 1) != 1 || is_fortran(caller)) return false;
    return fail_here();
}

EXPORT void *malloc(size_t size)
{
    return must_fail(__builtin_return_address(0)) ? NULL : REAL(malloc)(size);
}

EXPORT void *calloc(size_t n, size_t size)
{
    return must_fail(__builtin_return_address(0)) ? NULL : REAL(calloc)(n, size);
}

EXPORT void *realloc(void *p, size_t size)
{
    return must_fail(__builtin_return_address(0)) ? NULL : REAL(realloc)(p, size);
}

EXPORT void *aligned_alloc(size_t align, size_t size)
{
    return must_fail(__builtin_return_address(0)) ? NULL : REAL(memalign)(align, size);
}

EXPORT int posix_memalign(void **out, size_t align, size_t size)
{
    void *p = must_fail(__builtin_return_address(0)) ? NULL : REAL(memalign)(align, size);
    if (p == NULL) return ENOMEM;
    *out = p;
    return 0;
}

EXPORT void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
    if (must_fail(__builtin_return_address(0))) return MAP_FAILED;
    const long p = syscall(SYS_mmap, at, size, prot, flags, fd, offset);
    return (void *)p;
}
