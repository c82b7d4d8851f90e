// SPDX-License-Identifier: Apache-2.0
//
// GET /radix_tree: the shape of each engine's prefix cache. Lengths and counts only: no token, text
// or time of one, which would tell a client what others have asked.
#include <inttypes.h>

#include "front/endpoints.h"
#include "front/front_impl.h"

static int put_runs(const msgl_msg_tree *t, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(out, "\"tokens\":%" PRId64 ",\"complete\":%s,\"nodes\":[", t->tokens,
                               t->all ? "true" : "false");
    for (int i = 0; i < t->num_runs && rc == 0; i++) {
        const msgl_tree_run *n = &t->runs[i];
        rc = msgl__strbuf_addf(out,
                               "%s{\"parent\":%d,\"tokens\":%d,\"refs\":%d,\"hits\":%" PRId64 "}",
                               i == 0 ? "" : ",", n->parent, n->tokens, n->pins, n->hits);
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static int put_tree(const msgl_front *f, const msgl_replica_stats *all, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"replicas\":["), n = 0;
    for (int i = 0; i < f->cfg.num_replicas && rc == 0; i++) {
        if (all[i].state != MSGL_STATS_GIVEN) continue;
        rc = msgl__strbuf_addf(out, "%s{\"replica\":%d,", n++ == 0 ? "" : ",", i);
        if (rc == 0) rc = put_runs(&all[i].tree, out);
        if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    }
    return rc == 0 ? msgl__strbuf_adds(out, "]}") : rc;
}

static const msgl_example examples[] = {
    {"The tree", MSGL_HTTP_GET, .has = "replicas"},
    {0},
};
const msgl_endpoint msgl__endpoint_radix_tree = {.path = "/radix_tree",
                                                 .help = "The shape of each engine's prefix cache.",
                                                 .examples = examples,
                                                 .method = MSGL_HTTP_GET,
                                                 .ask = MSGL_MSG_GET_TREE,
                                                 .put_stats = put_tree};
