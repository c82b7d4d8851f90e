// SPDX-License-Identifier: Apache-2.0
#include "http/http_source.h"

#include <netinet/in.h>
#include <string.h>

#include "core/mem.h"

msgl_http_source msgl__http_source_of(const struct sockaddr *address)
{
    msgl_http_source s = {0};
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)address;
        s.bytes[10] = s.bytes[11] = 0xff;
        memcpy(s.bytes + 12, &v4->sin_addr, 4);
    } else if (address->sa_family == AF_INET6) {
        const struct in6_addr *v6 =
            &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        memcpy(s.bytes, v6, IN6_IS_ADDR_V4MAPPED(v6) ? 16 : 8);
    }
    return s;
}

bool msgl__http_source_is_local(const msgl_http_source *s)
{
    static const msgl_http_source none; // of ::1 the first half is kept, which is zero, too
    static const unsigned char v4[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127};
    return memcmp(s, &none, sizeof none) == 0 || memcmp(s->bytes, v4, sizeof v4) == 0;
}

uint32_t msgl__http_source_hash(const msgl_http_source *s)
{
    uint32_t h = 0;
    for (size_t i = 0; i < sizeof s->bytes; i++) h = h * 31 + s->bytes[i];
    return h;
}

static msgl_source_count **bucket(msgl_sources *all, const msgl_http_source *s)
{
    return &all->buckets[msgl__http_source_hash(s) % MSGL_SOURCE_BUCKETS];
}

msgl_source_count *msgl__sources_join(msgl_sources *all, const msgl_http_source *source)
{
    msgl_source_count **first = bucket(all, source), *found = *first;
    while (found != NULL && memcmp(&found->source, source, sizeof *source) != 0) {
        found = found->next;
    }
    if (found == NULL) {
        found = msgl__calloc(1, sizeof *found);
        if (found == NULL) return NULL;
        found->source = *source;
        found->next = *first;
        *first = found;
    }
    found->count++;
    return found;
}

void msgl__sources_leave(msgl_sources *all, msgl_source_count *c)
{
    if (c == NULL || --c->count > 0) return;
    msgl_source_count **at = bucket(all, &c->source);
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    msgl__free(c);
}
