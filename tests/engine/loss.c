// SPDX-License-Identifier: Apache-2.0
#include "engine/loss.h"

#include <math.h>
#include <stddef.h>

loss loss_of(const float *want, const float *got, int32_t positions, int32_t vocab)
{
    loss all = {0};
    for (int32_t t = 0; t < positions; t++) {
        const float *p = want + (size_t)t * (size_t)vocab, *q = got + (size_t)t * (size_t)vocab;
        int32_t a = 0, b = 0;
        for (int32_t i = 0; i < vocab; i++) {
            const double apart = (double)p[i] - (double)q[i];
            all.kl += exp((double)p[i]) * apart;
            if (p[i] > -10) all.worst = fmax(all.worst, fabs(apart));
            a = p[i] > p[a] ? i : a;
            b = q[i] > q[b] ? i : b;
        }
        all.same_choice += a == b;
    }
    all.kl /= positions;
    all.same_choice /= positions;
    return all;
}
