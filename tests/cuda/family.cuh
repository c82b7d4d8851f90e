// SPDX-License-Identifier: Apache-2.0
//
// What programs that check a family of kernels count and print, and the arguments they take.
#ifndef MSGL_TESTS_CUDA_FAMILY_CUH
#define MSGL_TESTS_CUDA_FAMILY_CUH

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct family {
    const char *name;
    long checks, failures;
    double worst; // error as a share of what is allowed
};

static inline void expect(family *f, bool ok, const char *what)
{
    f->checks++;
    if (!ok && f->failures++ < 5) printf("%s: FAILED: %s\n", f->name, what);
}

static inline void expect_near(family *f, double got, double want, double allowed, const char *what)
{
    const double share = fabs(got - want) / allowed;
    f->checks++;
    if (share > f->worst) f->worst = share;
    if (!(share <= 1) && f->failures++ < 5) {
        printf("%s: FAILED: %s: got %.9g, want %.9g, allowed %.3g\n", f->name, what, got, want,
               allowed);
    }
}

// A family that compared nothing has failed too.
static inline int family_end(const family *f)
{
    const bool ok = f->failures == 0 && f->checks > 0;
    printf("%-12s %s: %ld checks, worst error %.3f of the allowed, %ld failures\n", f->name,
           ok ? "ok" : "FAILED", f->checks, f->worst, f->failures);
    return !ok;
}

struct options {
    uint64_t seed;
    bool quick;
};

static inline options parse_options(int argc, char **argv, uint64_t seed = 20261121)
{
    options o = {seed, false};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) o.quick = true;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) o.seed = strtoull(argv[++i], NULL, 0);
    }
    return o;
}

#endif
