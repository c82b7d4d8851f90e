// SPDX-License-Identifier: Apache-2.0
#include "distributed/mpi/plugin.h"

#include <assert.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

// MPI itself is one for the process.
static struct {
    MPI_Comm comm;
    MPI_Request requests[MSGL_MPI_MAX_MESSAGES]; // of the exchange: what is received first
    int num, num_received, tag;
    msgl_mpi_message received[MSGL_MPI_MAX_MESSAGES];
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
} g_mpi;

static int explain(msgl_err *err, const char *what, int rc)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    MPI_Error_string(rc, text, &len);
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "MPI: %s: %.200s", what, text);
}

static int count_local(msgl_mpi_job *out)
{
    MPI_Comm local;
    const int rc = MPI_Comm_split_type(g_mpi.comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    if (rc != MPI_SUCCESS) return rc;
    MPI_Comm_size(local, &out->local);
    MPI_Comm_rank(local, &out->local_rank);
    return MPI_Comm_free(&local);
}

static int mpi_init(msgl_mpi_job *out, msgl_err *err)
{
    int before = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&before);
    if (before) return msgl__err_set(err, MSGL_EBUSY, "MPI: it is in use in this process");
    // What is sent without asking first, between processes of a host: answers' sums have up to so
    // many bytes. Open MPI's default is 4 KiB. The user's own setting stays.
    (void)setenv("OMPI_MCA_btl_vader_eager_limit", "65536", 0);
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (rc != MPI_SUCCESS) return explain(err, "MPI_Init_thread", rc);
    if (level < MPI_THREAD_SERIALIZED) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "MPI: built without support for threads");
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    rc = MPI_Comm_dup(MPI_COMM_WORLD, &g_mpi.comm);
    if (rc == MPI_SUCCESS) rc = count_local(out);
    if (rc != MPI_SUCCESS) return explain(err, "no communicator", rc);
    MPI_Comm_rank(g_mpi.comm, &out->rank);
    MPI_Comm_size(g_mpi.comm, &out->size);
    return 0;
}

static int mpi_broadcast(void *data, size_t bytes, msgl_err *err)
{
    const int rc = MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, g_mpi.comm);
    return rc == MPI_SUCCESS ? 0 : explain(err, "MPI_Bcast", rc);
}

static int mpi_start(const msgl_mpi_message *sent, int num_sent, const msgl_mpi_message *received,
                     int num_received, int tag)
{
    assert(num_sent + num_received <= MSGL_MPI_MAX_MESSAGES && g_mpi.num == 0);
    int rc = MPI_SUCCESS;
    g_mpi.num = g_mpi.num_received = 0;
    g_mpi.tag = tag;
    // Any tag: a rank that is in another call is found by it, instead of waited for.
    for (int i = 0; i < num_received && rc == MPI_SUCCESS; i++) {
        const msgl_mpi_message *p = &received[i];
        g_mpi.received[i] = *p;
        rc = MPI_Irecv(p->data, (int)p->bytes, MPI_BYTE, p->rank, MPI_ANY_TAG, g_mpi.comm,
                       &g_mpi.requests[g_mpi.num]);
        if (rc == MPI_SUCCESS) g_mpi.num_received = ++g_mpi.num;
    }
    for (int i = 0; i < num_sent && rc == MPI_SUCCESS; i++) {
        const msgl_mpi_message *p = &sent[i];
        rc = MPI_Isend(p->data, (int)p->bytes, MPI_BYTE, p->rank, tag, g_mpi.comm,
                       &g_mpi.requests[g_mpi.num]);
        if (rc == MPI_SUCCESS) g_mpi.num++;
    }
    return rc == MPI_SUCCESS ? 0 : MSGL_EINTERNAL;
}

static bool as_expected(int message, MPI_Status *s)
{
    int bytes = -1;
    MPI_Get_count(s, MPI_BYTE, &bytes);
    return s->MPI_TAG == g_mpi.tag && (size_t)bytes == g_mpi.received[message].bytes;
}

static bool mpi_test(int *code, int *rank)
{
    MPI_Status status[MSGL_MPI_MAX_MESSAGES];
    int done = 0;
    const int rc = MPI_Testall(g_mpi.num, g_mpi.requests, &done, status);
    *code = 0;
    *rank = -1;
    if (rc == MPI_SUCCESS && !done) return false;
    g_mpi.num = 0;
    if (rc != MPI_SUCCESS) *code = MSGL_EINTERNAL;
    for (int i = 0; i < g_mpi.num_received; i++) {
        const bool failed = rc == MPI_ERR_IN_STATUS && status[i].MPI_ERROR != MPI_SUCCESS &&
                            status[i].MPI_ERROR != MPI_ERR_PENDING;
        if (!failed && (rc != MPI_SUCCESS || as_expected(i, &status[i]))) continue;
        *code = MSGL_EINTERNAL;
        *rank = g_mpi.received[i].rank;
        break;
    }
    return true;
}

static void mpi_finish(void)
{
    MPI_Comm_free(&g_mpi.comm);
    MPI_Finalize();
}

static msgl_mpi_api g_api = {
    .abi = MSGL_MPI_ABI,
    .init = mpi_init,
    .broadcast = mpi_broadcast,
    .start = mpi_start,
    .test = mpi_test,
    .finish = mpi_finish,
};

MSGL_API const msgl_mpi_api *msgl_mpi_plugin(void);

const msgl_mpi_api *msgl_mpi_plugin(void)
{
    int len = 0;
    MPI_Get_library_version(g_mpi.library, &len);
    g_mpi.library[strcspn(g_mpi.library, ",\n")] = '\0';
    g_api.library = g_mpi.library;
    return &g_api;
}
