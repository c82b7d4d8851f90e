// SPDX-License-Identifier: Apache-2.0
//
// Where connections come from, and how many there are of each.
#ifndef MSGL_HTTP_HTTP_SOURCE_H
#define MSGL_HTTP_HTTP_SOURCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

// Where a connection comes from: an IPv4 address as IPv6 has it, or the first half of an IPv6
// address, since a host has all of the other.
typedef struct msgl_http_source {
    unsigned char bytes[16];
} msgl_http_source;

// The source of an address of any family; all Unix sockets have the same one, which is zero.
msgl_http_source msgl__http_source_of(const struct sockaddr *address);
uint32_t msgl__http_source_hash(const msgl_http_source *s);
// Whether it is this machine: 127.0.0.0/8, ::1, or a Unix socket.
bool msgl__http_source_is_local(const msgl_http_source *s);

enum { MSGL_SOURCE_BUCKETS = 256 };

// Connections that have the same source.
typedef struct msgl_source_count {
    struct msgl_source_count *next; // of its bucket
    msgl_http_source source;
    int count;
} msgl_source_count;

// How many connections each source has; zero-initialised it has none.
typedef struct msgl_sources {
    msgl_source_count *buckets[MSGL_SOURCE_BUCKETS];
} msgl_sources;

// Counts one more connection of the source. NULL: there is no memory, and it is not counted.
msgl_source_count *msgl__sources_join(msgl_sources *all, const msgl_http_source *source);
// Counts one connection less. c may be NULL, and is freed with its last connection.
void msgl__sources_leave(msgl_sources *all, msgl_source_count *c);

#endif
