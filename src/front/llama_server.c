// SPDX-License-Identifier: Apache-2.0
//
// GET /props and /slots of llama-server: what the server has, and how many of the requests that it
// can run at once it runs. Whose they are, and what they ask, is told to nobody.
#include <string.h>

#include "api/json.h"
#include "api/llama_server/answer.h"
#include "front/endpoints.h"
#include "front/front_impl.h"

static int num_slots(const msgl_front *f)
{
    return msgl__front_engine(f)->max_running * f->cfg.num_replicas;
}

static int put_text(const char *name, const char *text, msgl_strbuf *out)
{
    const int rc = msgl__strbuf_addf(out, ",\"%s\":", name);
    return rc == 0 ? msgl__json_put_str(out, text, strlen(text)) : rc;
}

static int put_props(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)rest, (void)status;
    int rc = msgl__strbuf_addf(
        out, "{\"default_generation_settings\":{\"n_ctx\":%d,\"speculative\":false,\"params\":",
        msgl__front_engine(f)->max_seq_len);
    if (rc == 0) rc = msgl__llama_put_settings(&f->api.defaults, -1, out);
    if (rc == 0) rc = msgl__strbuf_addf(out, "},\"total_slots\":%d", num_slots(f));
    if (rc == 0) rc = put_text("model_alias", f->cfg.model_name, out);
    if (rc == 0) rc = put_text("model_path", f->shown_path, out);
    if (rc == 0) rc = put_text("chat_template", f->api.template_text, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"modalities\":{\"vision\":false,\"audio\":false}");
    if (rc == 0) rc = put_text("build_info", "minisgl " MSGL_VERSION, out);
    return rc == 0 ? msgl__strbuf_adds(out, ",\"is_sleeping\":false}") : rc;
}

static int put_slots(const msgl_front *f, const msgl_replica_stats *all, msgl_strbuf *out)
{
    const msgl_msg_ready *r = msgl__front_engine(f);
    int rc = msgl__strbuf_addc(out, '['), id = 0;
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        const int running = all[i].state == MSGL_STATS_GIVEN ? all[i].stats.running : 0;
        for (int k = 0; k < r->max_running && rc == 0; k++, id++) {
            rc = msgl__strbuf_addf(
                out, "%s{\"id\":%d,\"n_ctx\":%d,\"speculative\":false,\"is_processing\":%s}",
                id == 0 ? "" : ",", id, r->max_seq_len, k < running ? "true" : "false");
        }
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static const msgl_example props_examples[] = {
    {"The server", MSGL_HTTP_GET,
     .has = "default_generation_settings total_slots model_alias chat_template"},
    {0},
};
const msgl_endpoint msgl__endpoint_llama_props = {
    .path = "/props",
    .help = "What llama-server's clients ask before they begin: the context's length, the sampling "
            "defaults, the template.",
    .examples = props_examples,
    .method = MSGL_HTTP_GET,
    .put_error = msgl__llama_put_error,
    .put_now = put_props};
static const msgl_example slots_examples[] = {
    {.help = "The slots", .method = MSGL_HTTP_GET},
    {0},
};
const msgl_endpoint msgl__endpoint_llama_slots = {
    .path = "/slots",
    .help = "An array with an object for each request that can run at once: `id`, `n_ctx`, "
            "`is_processing`.",
    .examples = slots_examples,
    .method = MSGL_HTTP_GET,
    .put_error = msgl__llama_put_error,
    .ask = MSGL_MSG_GET_STATS,
    .put_stats = put_slots};
