// SPDX-License-Identifier: Apache-2.0
#include "cuda/memory.cuh"

#include <cuda.h>

namespace
{

// The driver's functions, which the runtime finds: the program does not link the driver.
struct driver {
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*address_free)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    bool whole;
};

bool find(const char *name, void **to)
{
    cudaDriverEntryPointQueryResult found;
    const bool ok = cudaGetDriverEntryPointByVersion(name, to, 12000, cudaEnableDefault, &found) ==
                        cudaSuccess &&
                    *to != NULL;
    if (!ok) (void)cudaGetLastError();
    return ok;
}

driver open_driver()
{
    driver d = {};
    d.whole = find("cuMemGetAllocationGranularity", (void **)&d.granularity) &&
              find("cuMemAddressReserve", (void **)&d.reserve) &&
              find("cuMemAddressFree", (void **)&d.address_free) &&
              find("cuMemCreate", (void **)&d.create) &&
              find("cuMemRelease", (void **)&d.release) && find("cuMemMap", (void **)&d.map) &&
              find("cuMemUnmap", (void **)&d.unmap) &&
              find("cuMemSetAccess", (void **)&d.set_access);
    return d;
}

const driver &cuda()
{
    static const driver d = open_driver();
    return d;
}

CUmemAllocationProp properties(int ordinal)
{
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = ordinal;
    return p;
}

int place_of(const msgl_cuda_mapped *m, const void *p)
{
    int i = 0;
    while (i < MSGL_CUDA_MAX_MAPPED && m->blocks[i].at != p) i++;
    return i < MSGL_CUDA_MAX_MAPPED && p != NULL ? i : -1;
}

// Takes memory for the addresses of a block.
bool take(msgl_cuda_mapped *m, int i, int ordinal)
{
    const CUmemAllocationProp p = properties(ordinal);
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)m->blocks[i].at;
    const size_t bytes = m->blocks[i].bytes;
    CUmemGenericAllocationHandle memory;
    CUmemAccessDesc access = {};
    access.location = p.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (cuda().create(&memory, bytes, &p, 0) != CUDA_SUCCESS) return false;
    if (cuda().map(at, bytes, 0, memory, 0) == CUDA_SUCCESS) {
        if (cuda().set_access(at, bytes, &access, 1) == CUDA_SUCCESS) {
            m->blocks[i].memory = memory;
            m->blocks[i].there = true;
            return true;
        }
        (void)cuda().unmap(at, bytes);
    }
    (void)cuda().release(memory);
    return false;
}

bool drop(msgl_cuda_mapped *m, int i)
{
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)m->blocks[i].at;
    if (!m->blocks[i].there) return true;
    if (cuda().unmap(at, m->blocks[i].bytes) != CUDA_SUCCESS) return false;
    (void)cuda().release(m->blocks[i].memory);
    m->blocks[i].there = false;
    return true;
}

} // namespace

void *msgl__cuda_mapped_alloc(msgl_cuda_mapped *m, int ordinal, size_t bytes)
{
    const CUmemAllocationProp p = properties(ordinal);
    size_t page = 0;
    CUdeviceptr at = 0;
    int i = 0;
    while (i < MSGL_CUDA_MAX_MAPPED && m->blocks[i].at != NULL) i++;
    if (i == MSGL_CUDA_MAX_MAPPED || !cuda().whole ||
        cuda().granularity(&page, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS ||
        page == 0 || bytes > SIZE_MAX - page) {
        return NULL;
    }
    const size_t whole = (bytes + page - 1) / page * page;
    if (cuda().reserve(&at, whole, 0, 0, 0) != CUDA_SUCCESS) return NULL;
    m->blocks[i].at = (void *)(uintptr_t)at;
    m->blocks[i].bytes = whole;
    if (take(m, i, ordinal)) return m->blocks[i].at;
    m->blocks[i].at = NULL;
    (void)cuda().address_free(at, whole);
    return NULL;
}

bool msgl__cuda_mapped_free(msgl_cuda_mapped *m, void *p)
{
    const int i = place_of(m, p);
    if (i < 0) return false;
    (void)drop(m, i);
    (void)cuda().address_free((CUdeviceptr)(uintptr_t)p, m->blocks[i].bytes);
    m->blocks[i].at = NULL;
    return true;
}

void msgl__cuda_mapped_discard(msgl_cuda_mapped *m, void *p)
{
    const int i = place_of(m, p);
    if (i >= 0) (void)drop(m, i);
}

bool msgl__cuda_mapped_restore(msgl_cuda_mapped *m, int ordinal, void *p)
{
    const int i = place_of(m, p);
    return i < 0 || m->blocks[i].there || take(m, i, ordinal);
}
