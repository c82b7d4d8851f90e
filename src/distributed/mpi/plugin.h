// SPDX-License-Identifier: Apache-2.0
//
// What minisgl-mpi.so offers: pieces of memory that go between the processes of an MPI job. The
// main binary never links MPI: it opens the plug-in when ranks are asked for that mpirun or srun
// started, asks for this table, and checks its version.
//
// MPI is set up with MPI_THREAD_SERIALIZED: one thread at a time calls, not always the same one.
// No function but `init`, `broadcast` and `finish` waits for other processes.
#ifndef MSGL_DISTRIBUTED_MPI_PLUGIN_H
#define MSGL_DISTRIBUTED_MPI_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

#define MSGL_MPI_ABI 2u // changes with any struct that crosses the boundary

// As the job has it. local: processes of it on this host, this one, local_rank, among them.
typedef struct msgl_mpi_job {
    int rank, size, local, local_rank;
} msgl_mpi_job;

typedef struct msgl_mpi_message { // less than 2 GiB, from or to another rank
    void *data;
    size_t bytes;
    int rank;
} msgl_mpi_message;

#define MSGL_MPI_MAX_MESSAGES 128 // of one exchange, sent and received together
#define MSGL_MPI_MAX_TAG 32767    // what the standard guarantees

typedef struct msgl_mpi_api {
    uint32_t abi;
    const char *library; // "Open MPI v4.1.4, ..."
    // Becomes a process of the job. Once in a process. MSGL_EUNSUPPORTED says what MPI said.
    int (*init)(msgl_mpi_job *out, msgl_err *err);
    // data [bytes] of rank 0 to all; for what is said once, at the start.
    int (*broadcast)(void *data, size_t bytes, msgl_err *err);
    // Begins to send and to receive all messages, whose memory stays the call's until `test` has
    // said true. Of one rank, messages arrive in the order that it sent them. At most one exchange
    // at a time. MSGL_EINTERNAL.
    int (*start)(const msgl_mpi_message *sent, int num_sent, const msgl_mpi_message *received,
                 int num_received, int tag);
    // Moves the exchange on; true: it has ended, and *code is 0, or MSGL_EINTERNAL where a message
    // failed, or had another size or tag than expected: *rank is then whose, -1 if nobody knows.
    bool (*test)(int *code, int *rank);
    // Leaves the job, when all its processes do, and no exchange is under way.
    void (*finish)(void);
} msgl_mpi_api;

typedef const msgl_mpi_api *(*msgl_mpi_plugin_fn)(void); // exported as "msgl_mpi_plugin"

#endif
