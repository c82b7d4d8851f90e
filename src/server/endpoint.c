// SPDX-License-Identifier: Apache-2.0
#include "server/endpoint.h"

#include "core/attributes.h"

static const msgl_endpoint *const ENDPOINTS[] = {
#define ROW(NAME, name) &msgl__endpoint_##name,
    MSGL_ENDPOINT_MAP(ROW)
#undef ROW
};

const msgl_endpoint *msgl__endpoint(msgl_api_kind kind)
{
    return (size_t)kind < MSGL_COUNT(ENDPOINTS) ? ENDPOINTS[kind] : NULL;
}
