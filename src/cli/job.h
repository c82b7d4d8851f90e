// SPDX-License-Identifier: Apache-2.0
//
// Which of the processes that mpirun or srun has started this one is. The environment says so: MPI
// itself is not set up in this process if the engine is in another one.
#ifndef MSGL_CLI_JOB_H
#define MSGL_CLI_JOB_H

#include "cli/args.h"

typedef struct msgl_cli_job {
    int rank, size;      // size 1: nobody started several
    const char *starter; // "mpirun", "srun", or what stands for another one
} msgl_cli_job;

// Reads the environment. MSGL_EINVAL: its variables contradict each other, or are no numbers.
int msgl__cli_job(msgl_cli_job *out, msgl_err *err);
// Makes the job's processes the ranks of the model that a->engine is about. MSGL_EINVAL: --tp-size
// says otherwise.
int msgl__cli_take_job(const msgl_cli_job *job, msgl_args *a, msgl_err *err);
// Runs a process that is not rank 0, or that is on another host than the first of --nnodes, in
// place of a command that opens a model. The result is its exit code; rank 0 says what fails, if it
// can.
int msgl__cli_follow(const msgl_cli_job *job, const msgl_args *a);

#endif
