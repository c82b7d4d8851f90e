// SPDX-License-Identifier: Apache-2.0
#include "cli/job.h"

#include <stdlib.h>
#include <string.h>

#include "cli/common.h"
#include "core/attributes.h"
#include "core/err.h"

// The variables by which a starter of processes tells each of them its rank; the first pair that is
// set counts. SLURM_NTASKS would not do: a batch script that starts no ranks has it, too.
static const struct {
    const char *starter, *rank, *size;
} STARTERS[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"the process manager", "PMI_RANK", "PMI_SIZE"},
};

static bool read_number(const char *name, int *out, msgl_err *err)
{
    char *end;
    const char *text = getenv(name);
    const long v = strtol(text, &end, 10);
    *out = (int)v;
    if (end != text && *end == '\0' && v >= 0 && v <= 1 << 20) return true;
    msgl__err_set(err, MSGL_EINVAL, "%s is \"%.60s\"; allowed: a number", name, text);
    return false;
}

int msgl__cli_job(msgl_cli_job *out, msgl_err *err)
{
    *out = (msgl_cli_job){.size = 1};
    for (size_t i = 0; i < MSGL_COUNT(STARTERS); i++) {
        const char *rank = STARTERS[i].rank, *size = STARTERS[i].size;
        if (getenv(rank) == NULL || getenv(size) == NULL) continue;
        out->starter = STARTERS[i].starter;
        if (!read_number(rank, &out->rank, err) || !read_number(size, &out->size, err)) {
            return MSGL_EINVAL;
        }
        if (out->rank < out->size) return 0;
        msgl__err_set(err, MSGL_EINVAL, "%s is %d, and %s %d; allowed: less than that", rank,
                      out->rank, size, out->size);
        out->rank = 0; // nobody else says it
        return MSGL_EINVAL;
    }
    return 0;
}

int msgl__cli_take_job(const msgl_cli_job *job, msgl_args *a, msgl_err *err)
{
    if (job->size == 1) return 0;
    const bool given = msgl__args_given(a, &a->engine.tp_size);
    if (given && a->engine.tp_size != job->size) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--tp-size %d: %s has started %d processes; allowed: %d",
                             a->engine.tp_size, job->starter, job->size, job->size);
    }
    a->engine.tp_size = job->size;
    a->engine.mpi = 1;
    return 0;
}

int msgl__cli_follow(const msgl_cli_job *job, const msgl_args *a)
{
    msgl_err err = {0}, said;
    msgl_options o;
    char *dir = NULL, attention[128];
    const bool another_host = a->engine.node_rank > 0; // on whose terminal rank 0 says nothing
    int rc = msgl__cli_options(a, &o, &dir, attention, &err);
    if (rc != 0 && !another_host) {
        // Rank 0 has to know of a rank without a folder, too, as it is the one that says what is
        // wrong.
        o = a->engine;
        rc = o.model_dir != NULL ? 0 : MSGL_ECLOSED;
    }
    if (rc == 0) rc = msgl_follow(&o, &err);
    msgl_free(dir);
    if (rc == 0) return MSGL_EXIT_OK;
    if (rc == MSGL_ECLOSED && !another_host) return MSGL_EXIT_FAILED;
    if (rc == MSGL_ECLOSED) {
        msgl__err_set(&said, rc, "host %d of %d: the ranks cannot start; rank 0 says why",
                      a->engine.node_rank, a->engine.nnodes);
    } else if (rc == MSGL_EPEER || another_host) {
        said = err; // it names a rank
    } else {
        msgl__err_set(&said, rc, "rank %d: %.240s", job->rank, err.text);
    }
    return msgl__cli_fail(MSGL_EXIT_FAILED, &said);
}
