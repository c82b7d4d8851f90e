// SPDX-License-Identifier: Apache-2.0
//
// How ranks of several hosts find each other: rank 0 listens at one address, the others connect,
// and each of them has TCP connections to it then: a way for what rank 0 says (engine/ranks.h), one
// for beats (msgl__group_link), and if nothing else carries the data, one for those
// (communicator.h). A handshake says who comes, so that neither a stranger nor a rank of another
// job or version is let in by accident. It keeps nobody out on purpose: what goes over the
// connections is not encrypted, so the network has to be one that is trusted.
#ifndef MSGL_DISTRIBUTED_HOSTS_H
#define MSGL_DISTRIBUTED_HOSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "distributed/group.h"

#define MSGL_HOSTS_ADDRESS 320 // bytes of an address as text

// What both sides of a connection must agree on.
typedef struct msgl_hosts_job {
    int32_t size;
    int32_t rank;   // the caller's
    uint64_t token; // of the job
    uint64_t build; // of the program: what is sent are its structs
    bool data;      // with connections for data
} msgl_hosts_job;

typedef struct msgl_hosts_link {
    int way, beats, data; // -1: none
} msgl_hosts_link;

// Listens at `address`, "HOST:PORT" or "[HOST]:PORT", and there only; port 0: any free one. On
// success *fd is the caller's, and `bound` the address in numbers. MSGL_EINVAL: not an address;
// MSGL_EIO: cannot be listened at.
int msgl__hosts_listen(const char *address, int *fd, char bound[MSGL_HOSTS_ADDRESS], msgl_err *err);
// Rank 0 waits, at most timeout_ms, until all others have come. links [job->size]: theirs by rank,
// to be closed by the caller, also after a failure. MSGL_EPEER names ranks that did not come, or
// one of another version.
int msgl__hosts_accept(int fd, const msgl_hosts_job *job, int timeout_ms, msgl_hosts_link *links,
                       msgl_err *err);
// The others: tries until timeout_ms are over, as rank 0 may be started later. MSGL_EINVAL: not an
// address; MSGL_EPEER: rank 0 cannot be reached, or says why it does not let this rank in.
int msgl__hosts_connect(const char *address, const msgl_hosts_job *job, int timeout_ms,
                        msgl_hosts_link *out, msgl_err *err);
void msgl__hosts_close(msgl_hosts_link *l);

#endif
