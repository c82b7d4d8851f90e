// SPDX-License-Identifier: Apache-2.0
//
// A program that mpirun or srun has started several times: which of the processes this one is, by
// the environment, as MPI is not set up in this process where the engine is in another one.
#ifndef MSGL_CLI_JOB_H
#define MSGL_CLI_JOB_H

#include "cli/args.h"

typedef struct msgl_cli_job {
    int rank, size;      // size 1: nobody started several
    const char *starter; // the variables' prefix
} msgl_cli_job;

// MSGL_EINVAL: variables that make no sense.
int msgl__cli_job(msgl_cli_job *out, msgl_err *err);
// Makes the job's processes the ranks of the model that a->engine is about. MSGL_EINVAL: --tp-size
// says otherwise.
int msgl__cli_take_job(const msgl_cli_job *job, msgl_args *a, msgl_err *err);
// What a process that is not rank 0, or of a host that is not the first of --nnodes, does instead
// of a command that opens a model. Its exit code; rank 0 tells what fails, if it can.
int msgl__cli_follow(const msgl_cli_job *job, const msgl_args *a);

#endif
