// SPDX-License-Identifier: Apache-2.0
//
// GET /metrics: Prometheus' text format, version 0.0.4. The numbers are the front's own (metrics.h)
// and those of the engines' last reports, at most about a second old: a scrape asks nobody, so it
// is answered as well while an engine loads or hangs.
#include "front/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "front/endpoints.h"
#include "front/front_impl.h"

static const int STATUSES[MSGL_METRICS_STATUSES] = {
    200, 204, 304, 400, 401, 403, 404, 405, 408, 413, 414, 415, 417, 429, 431, 500, 501, 503, 505};

void msgl__metrics_answer(msgl_metrics *m, int label, int status)
{
    int i = 0;
    while (i < MSGL_METRICS_STATUSES - 1 && STATUSES[i] != status) i++;
    if (label < 0 || label >= MSGL_METRICS_ENDPOINTS) label = 0;
    m->answers[label][i]++;
}

void msgl__metrics_error(msgl_metrics *m, const msgl_api_error *e)
{
    const char *code = e->code != NULL ? e->code : e->type;
    int i = 0;
    if (code == NULL) code = "other";
    while (i < MSGL_METRICS_ERRORS - 1 && m->errors[i].code != NULL &&
           strcmp(m->errors[i].code, code) != 0) {
        i++;
    }
    m->errors[i].code = i < MSGL_METRICS_ERRORS - 1 ? code : "other";
    m->errors[i].count++;
}

// --- writing ---

// Where the text goes, and whether all of it went there.
typedef struct page {
    const msgl_front *f;
    msgl_strbuf *out;
    int rc;
} page;

#define PUT(p, ...)                                                                                \
    do {                                                                                           \
        if ((p)->rc == 0) (p)->rc = msgl__strbuf_addf((p)->out, __VA_ARGS__);                      \
    } while (0)

static void family(page *p, const char *name, const char *type, const char *help)
{
    PUT(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

// A label's value: backslash, quote and newline are escaped.
static void put_value(page *p, const char *value)
{
    for (const char *s = value; *s != '\0'; s++) {
        const bool escaped = *s == '\n' || *s == '\\' || *s == '"';
        if (escaped && p->rc == 0) p->rc = msgl__strbuf_addc(p->out, '\\');
        if (p->rc == 0) p->rc = msgl__strbuf_addc(p->out, *s == '\n' ? 'n' : *s);
    }
}

// Which labels a family's samples have beside their own.
typedef enum labels {
    LABELS_OURS,  // replica, where there are several
    LABELS_MODEL, // model_name and engine, as vLLM's; SGLang's readers look at the first
} labels;

// "{replica="1"": whether anything was opened. which < 0: of the front, or of all.
static bool put_labels(page *p, labels kind, int which)
{
    if (kind == LABELS_MODEL) {
        PUT(p, "{model_name=\"");
        put_value(p, p->f->cfg.model_name);
        PUT(p, "\"");
        if (which >= 0) PUT(p, ",engine=\"%d\"", which);
        return true;
    }
    if (which < 0 || p->f->cfg.num_replicas == 1) return false;
    PUT(p, "{replica=\"%d\"", which);
    return true;
}

static void sample(page *p, const char *name, labels kind, int which, const char *value)
{
    PUT(p, "%s", name);
    PUT(p, "%s %s\n", put_labels(p, kind, which) ? "}" : "", value);
}

static void put_histogram(page *p, const char *name, labels kind, int which,
                          const msgl_durations *h)
{
    uint64_t sum = 0;
    for (int i = 0; i <= MSGL_DURATION_BOUNDS; i++) {
        sum += h->counts[i];
        PUT(p, "%s_bucket", name);
        PUT(p, "%sle=\"", put_labels(p, kind, which) ? "," : "{");
        if (i < MSGL_DURATION_BOUNDS) {
            PUT(p, "%g\"} %" PRIu64 "\n", (double)msgl__duration_bounds[i] / 1e6, sum);
        } else {
            PUT(p, "+Inf\"} %" PRIu64 "\n", sum);
        }
    }
    PUT(p, "%s_sum", name);
    PUT(p, "%s %.9g\n", put_labels(p, kind, which) ? "}" : "", (double)h->sum_ns / 1e9);
    PUT(p, "%s_count", name);
    PUT(p, "%s %" PRIu64 "\n", put_labels(p, kind, which) ? "}" : "", sum);
}

// --- what the engines report ---

// A number of a replica; the front's queue in front of it counts as its own.
typedef double (*number_fn)(const replica *r);

#define NUMBER(name, expression)                                                                   \
    static double name(const replica *r)                                                           \
    {                                                                                              \
        return (double)(expression);                                                               \
    }
NUMBER(up, msgl__replica_serves(r))
NUMBER(running, r->report.stats.running)
NUMBER(waiting, r->report.stats.waiting + r->queued)
NUMBER(prompt_tokens, r->report.stats.prompt_tokens)
NUMBER(generated_tokens, r->report.stats.generated_tokens)
NUMBER(cached_tokens, r->report.stats.cached_tokens)
NUMBER(requests_done, r->report.stats.requests_done)
NUMBER(requests_aborted, r->report.stats.requests_aborted)
NUMBER(requests_retracted, r->report.stats.requests_retracted)
NUMBER(drafted_tokens, r->report.stats.drafted_tokens)
NUMBER(accepted_tokens, r->report.stats.accepted_tokens)
NUMBER(engine_memory, r->report.process.memory)
NUMBER(engine_cpu, (double)r->report.process.cpu_us / 1e6)
NUMBER(pages_used, r->report.stats.total_pages == 0
                       ? 0
                       : (double)r->report.stats.used_pages / r->report.stats.total_pages)
NUMBER(tokens_used, (double)r->report.stats.used_pages * r->engine.page_size)
NUMBER(hit_rate, r->report.stats.prompt_tokens == 0 ? 0
                                                    : (double)r->report.stats.cached_tokens /
                                                          (double)r->report.stats.prompt_tokens)
#undef NUMBER

typedef struct row {
    const char *name, *type, *help;
    number_fn of;
} row;

static const char COUNTER[] = "counter", GAUGE[] = "gauge", HISTOGRAM[] = "histogram";

static const row OURS[] = {
    {"minisgl_engine_up", GAUGE, "1 while the engine takes requests.", up},
    {"minisgl_requests_running", GAUGE, "Requests in steps.", running},
    {"minisgl_requests_waiting", GAUGE, "Requests queued for the engine, here or there.", waiting},
    {"minisgl_prompt_tokens_total", COUNTER, "Tokens of admitted prompts, cached ones included.",
     prompt_tokens},
    {"minisgl_generation_tokens_total", COUNTER, "Tokens generated.", generated_tokens},
    {"minisgl_cached_tokens_total", COUNTER, "Prompt tokens found in the prefix cache.",
     cached_tokens},
    {"minisgl_engine_requests_done_total", COUNTER, "Choices that the engine has ended.",
     requests_done},
    {"minisgl_engine_requests_aborted_total", COUNTER, "Choices that the engine was told to drop.",
     requests_aborted},
    {"minisgl_engine_requests_retracted_total", COUNTER,
     "Returns to the queue for want of pages; the answer went on later.", requests_retracted},
    {"minisgl_drafted_tokens_total", COUNTER, "Drafts of answers that steps computed.",
     drafted_tokens},
    {"minisgl_accepted_tokens_total", COUNTER, "Drafts that were right.", accepted_tokens},
    {"minisgl_engine_resident_memory_bytes", GAUGE, "Resident memory of the engine's process.",
     engine_memory},
    {"minisgl_engine_cpu_seconds_total", COUNTER, "Processor time of the engine's process.",
     engine_cpu},
};

// Names and meanings of vLLM's v1 loggers.
static const row VLLM[] = {
    {"vllm:num_requests_running", GAUGE, "Requests in steps.", running},
    {"vllm:num_requests_waiting", GAUGE, "Requests queued.", waiting},
    {"vllm:kv_cache_usage_perc", GAUGE, "Share of pages in use, 0 to 1.", pages_used},
    {"vllm:prefix_cache_queries_total", COUNTER, "Prompt tokens looked up.", prompt_tokens},
    {"vllm:prefix_cache_hits_total", COUNTER, "Prompt tokens found.", cached_tokens},
    {"vllm:spec_decode_num_draft_tokens_total", COUNTER, "Drafts computed.", drafted_tokens},
    {"vllm:spec_decode_num_accepted_tokens_total", COUNTER, "Drafts that were right.",
     accepted_tokens},
    {"vllm:num_preemptions_total", COUNTER, "Returns to the queue.", requests_retracted},
    {"vllm:prompt_tokens_total", COUNTER, "Tokens of prompts.", prompt_tokens},
    {"vllm:generation_tokens_total", COUNTER, "Tokens generated.", generated_tokens},
};

// Names and meanings of SGLang's page on production metrics.
static const row SGLANG[] = {
    {"sglang:num_running_reqs", GAUGE, "Requests in steps.", running},
    {"sglang:num_queue_reqs", GAUGE, "Requests queued.", waiting},
    {"sglang:token_usage", GAUGE, "Share of pages in use, 0 to 1.", pages_used},
    {"sglang:num_used_tokens", GAUGE, "Tokens that the pages in use have room for.", tokens_used},
    {"sglang:cache_hit_rate", GAUGE, "Cached share of prompt tokens so far.", hit_rate},
    {"sglang:prompt_tokens_total", COUNTER, "Tokens of prompts.", prompt_tokens},
    {"sglang:generation_tokens_total", COUNTER, "Tokens generated.", generated_tokens},
};

static void put_rows(page *p, const row *rows, size_t n, labels kind)
{
    for (size_t i = 0; i < n; i++) {
        family(p, rows[i].name, rows[i].type, rows[i].help);
        for (int k = 0; k < p->f->cfg.num_replicas; k++) {
            char value[40];
            (void)snprintf(value, sizeof value, "%.15g", rows[i].of(&p->f->replicas[k]));
            sample(p, rows[i].name, kind, k, value);
        }
    }
}

static void group_sample(page *p, const char *name, int which, int group, uint64_t value)
{
    PUT(p, "%s", name);
    PUT(p, "%sgroup=\"%d\"} %" PRIu64 "\n", put_labels(p, LABELS_OURS, which) ? "," : "{", group,
        value);
}

static void put_pools(page *p)
{
    static const struct {
        const char *name, *type, *help;
    } all[] = {
        {"minisgl_pool_pages", GAUGE, "Pages of the cache, or checkpoints of states, by group."},
        {"minisgl_pool_pages_used", GAUGE, "Those that running requests own."},
        {"minisgl_pool_pages_cached", GAUGE, "Those that the prefix cache has."},
        {"minisgl_evictions_total", COUNTER, "Those taken from the prefix cache for want of room."},
    };
    for (int i = 0; i < (int)MSGL_COUNT(all); i++) {
        family(p, all[i].name, all[i].type, all[i].help);
        for (int k = 0; k < p->f->cfg.num_replicas; k++) {
            const msgl_msg_report *r = &p->f->replicas[k].report;
            for (int g = 0; g < r->num_groups; g++) {
                const int32_t total = r->groups[g].total, cached = r->groups[g].cached;
                const int32_t used = total - r->groups[g].free - cached;
                const uint64_t values[] = {(uint64_t)total, (uint64_t)(used < 0 ? 0 : used),
                                           (uint64_t)cached, r->groups[g].evicted};
                group_sample(p, all[i].name, k, g, values[i]);
            }
        }
    }
}

// By how far behind a known token they are: the first is 1; in the last all that are further.
static void put_drafts(page *p)
{
    static const struct {
        const char *name, *help;
    } all[] = {
        {"minisgl_drafted_tokens_at_total", "Drafts computed, by their place behind a token."},
        {"minisgl_accepted_tokens_at_total", "Those that were right."},
    };
    for (int i = 0; i < (int)MSGL_COUNT(all); i++) {
        family(p, all[i].name, COUNTER, all[i].help);
        for (int k = 0; k < p->f->cfg.num_replicas; k++) {
            const msgl_msg_report *r = &p->f->replicas[k].report;
            const uint64_t *at = i == 0 ? r->drafted_at : r->accepted_at;
            for (int n = 0; n < MSGL_DRAFT_POSITIONS && r->drafted_at[n] > 0; n++) {
                PUT(p, "%s", all[i].name);
                PUT(p, "%sposition=\"%d\"} %" PRIu64 "\n",
                    put_labels(p, LABELS_OURS, k) ? "," : "{", n + 1, at[n]);
            }
        }
    }
}

static void put_steps(page *p)
{
    static const char name[] = "minisgl_step_seconds";
    family(p, name, HISTOGRAM, "How long steps took to compute.");
    for (int k = 0; k < p->f->cfg.num_replicas; k++) {
        put_histogram(p, name, LABELS_OURS, k, &p->f->replicas[k].report.steps);
    }
}

// --- what the front counts ---

static void put_answers(page *p)
{
    static const char name[] = "minisgl_http_requests_total";
    family(p, name, COUNTER, "Answers by endpoint and status; path none: refused before one.");
    const msgl_endpoint *const *all = p->f->cfg.endpoints;
    for (int i = 0; i == 0 || all[i - 1] != NULL; i++) {
        const msgl_endpoint *ep = i == 0 ? NULL : all[i - 1];
        for (int s = 0; s < MSGL_METRICS_STATUSES; s++) {
            const uint64_t n = p->f->metrics.answers[i][s];
            if (n == 0) continue;
            PUT(p, "%s{path=\"%s\",code=\"%d\"} %" PRIu64 "\n", name,
                ep == NULL ? "none" : ep->path, STATUSES[s], n);
        }
    }
}

static void put_errors(page *p)
{
    static const char name[] = "minisgl_errors_total";
    family(p, name, COUNTER, "Errors by the code, or else type, of their object.");
    for (int i = 0; i < MSGL_METRICS_ERRORS && p->f->metrics.errors[i].code != NULL; i++) {
        PUT(p, "%s{code=\"%s\"} %" PRIu64 "\n", name, p->f->metrics.errors[i].code,
            p->f->metrics.errors[i].count);
    }
}

static void put_durations(page *p, const char *prefix, const char *gap, labels kind)
{
    const msgl_metrics *m = &p->f->metrics;
    const struct {
        const char *name, *help;
        const msgl_durations *h;
    } all[] = {
        {"time_to_first_token_seconds", "From a request's arrival to its first token.",
         &m->first_token},
        {gap, "Between two tokens, or steps' tokens, of a choice.", &m->gap},
        {"e2e_request_latency_seconds", "From a request's arrival to the end of its answer.",
         &m->latency},
    };
    for (size_t i = 0; i < MSGL_COUNT(all); i++) {
        char name[80];
        (void)snprintf(name, sizeof name, "%s%s", prefix, all[i].name);
        family(p, name, HISTOGRAM, all[i].help);
        put_histogram(p, name, kind, -1, all[i].h);
    }
}

static void put_front(page *p)
{
    const msgl_process_use use = msgl__process_use();
    family(p, "minisgl_requests_aborted_total", COUNTER,
           "Requests whose client left before the answer was complete.");
    PUT(p, "minisgl_requests_aborted_total %" PRIu64 "\n", p->f->metrics.clients_gone);
    family(p, "minisgl_requests_open", GAUGE, "Requests between their arrival and their end.");
    PUT(p, "minisgl_requests_open %d\n", p->f->num_gens);
    family(p, "minisgl_connections", GAUGE, "Open connections.");
    PUT(p, "minisgl_connections %d\n", msgl__http_server_connections(p->f->http));
    family(p, "process_resident_memory_bytes", GAUGE, "Resident memory of the server's process.");
    PUT(p, "process_resident_memory_bytes %" PRIu64 "\n", use.memory);
    family(p, "process_cpu_seconds_total", COUNTER, "Processor time of the server's process.");
    PUT(p, "process_cpu_seconds_total %.6f\n", (double)use.cpu_us / 1e6);
}

static void put_traces(page *p)
{
    const msgl_traces *t = p->f->cfg.traces;
    if (t == NULL) return;
    const struct {
        const char *name, *help;
        uint64_t value;
    } all[] = {
        {"minisgl_spans_exported_total", "Spans of traces that the collector has taken.",
         atomic_load(&t->counts->exported)},
        {"minisgl_spans_dropped_total", "Spans that it refused, or that there was no room for.",
         atomic_load(&t->counts->dropped)},
    };
    for (size_t i = 0; i < MSGL_COUNT(all); i++) {
        family(p, all[i].name, COUNTER, all[i].help);
        PUT(p, "%s %" PRIu64 "\n", all[i].name, all[i].value);
    }
}

static int put_metrics(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)rest, (void)status;
    page p = {.f = f, .out = out};
    put_rows(&p, OURS, MSGL_COUNT(OURS), LABELS_OURS);
    put_pools(&p);
    put_steps(&p);
    put_drafts(&p);
    put_durations(&p, "minisgl_", "inter_token_seconds", LABELS_OURS);
    put_answers(&p);
    put_errors(&p);
    put_front(&p);
    put_traces(&p);
    if (f->cfg.metrics_compat == MSGL_METRICS_VLLM) {
        put_rows(&p, VLLM, MSGL_COUNT(VLLM), LABELS_MODEL);
        put_durations(&p, "vllm:", "inter_token_latency_seconds", LABELS_MODEL);
    } else if (f->cfg.metrics_compat == MSGL_METRICS_SGLANG) {
        put_rows(&p, SGLANG, MSGL_COUNT(SGLANG), LABELS_MODEL);
        put_durations(&p, "sglang:", "time_per_output_token_seconds", LABELS_MODEL);
    }
    return p.rc;
}

static const msgl_example examples[] = {
    {.help = "All of them", .method = MSGL_HTTP_GET},
    {0},
};
const msgl_endpoint msgl__endpoint_metrics = {
    .path = "/metrics",
    .help = "Counters in Prometheus' text form ([metrics.md](metrics.md)).",
    .examples = examples,
    .method = MSGL_HTTP_GET,
    .type = "text/plain; version=0.0.4; charset=utf-8",
    .put_now = put_metrics};
