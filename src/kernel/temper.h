// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_KERNEL_TEMPER_H
#define MSGL_KERNEL_TEMPER_H

// Queries sharper with their distance from the start (Nakanishi 2025, as Llama 4 has it): of one at
// position p multiplied by 1 + scale ln(1 + floor((p + first) / every)). Llama 4 counts positions
// from 1, Ministral 3 from 0: with `every` 16 the first query that is sharper is that of position
// 15 or of 16.
typedef struct msgl_temper {
    float every, scale; // every 0: they are not
    float first;
} msgl_temper;

#endif
