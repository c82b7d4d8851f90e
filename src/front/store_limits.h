// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_FRONT_STORE_LIMITS_H
#define MSGL_FRONT_STORE_LIMITS_H

#include <stdint.h>

// What a folder of files and other objects that clients leave here keeps.
typedef struct msgl_store_limits {
    int max_files, max_batches;
    int64_t max_bytes; // of all files' data: beyond, no file is taken and no batch begun
    int64_t max_age_s; // of an object, which is then removed
} msgl_store_limits;
msgl_store_limits msgl__store_limits_default(void); // 10,000; 10,000; 8 GiB; 30 days

#endif
