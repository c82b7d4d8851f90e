// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/sha.h"

#include <openssl/evp.h>
#include <stdio.h>

void msgl__sha_start(msgl_sha *s, msgl_sha_kind kind)
{
    if (s->ctx == NULL) s->ctx = EVP_MD_CTX_new();
    const EVP_MD *md = kind == MSGL_SHA1 ? EVP_sha1() : EVP_sha256();
    s->failed = s->ctx == NULL || EVP_DigestInit_ex(s->ctx, md, NULL) != 1;
}

void msgl__sha_add(msgl_sha *s, const void *data, size_t n)
{
    s->failed = s->failed || EVP_DigestUpdate(s->ctx, data, n) != 1;
}

void msgl__sha_end(msgl_sha *s, char out[65])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    out[0] = '\0';
    if (s->failed || EVP_DigestFinal_ex(s->ctx, digest, &n) != 1) return;
    for (unsigned i = 0; i < n && i < 32; i++) (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

void msgl__sha_free(msgl_sha *s)
{
    EVP_MD_CTX_free(s->ctx);
    *s = (msgl_sha){0};
}
