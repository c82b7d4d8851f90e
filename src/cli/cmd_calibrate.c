// SPDX-License-Identifier: Apache-2.0
//
// `minisgl calibrate`: a text goes through the model, prompt by prompt, and what its layers saw of
// queries and keys becomes the file of channels that double sparsity chooses tokens by.
#include <string.h>

#include "cli/common.h"
#include "core/err.h"
#include "core/mem.h"
#include "utils/file.h"

#define MAX_TEXT ((size_t)1 << 30)

struct calibration {
    size_t done, total; // tokens
    char error[256];
};

static int on_piece(void *ctx, const msgl_piece *p)
{
    struct calibration *c = ctx;
    if (p->error != NULL) snprintf(c->error, sizeof c->error, "%s", p->error);
    if (p->finish != MSGL_NOT_FINISHED) c->done += (size_t)p->prompt_tokens;
    msgl__cli_bar("tokens", c->done, c->total, "");
    return msgl__cli_interrupted;
}

// Computes the ids as prompts of `most` tokens each; the last one has what is left.
static int compute(msgl_llm *l, const int32_t *ids, size_t n, size_t most, msgl_err *err)
{
    struct calibration c = {.total = n};
    msgl_params params;
    msgl_params_init(l, &params);
    params.max_tokens = 1;
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < n; at += most) {
        const size_t count = n - at < most ? n - at : most;
        rc = msgl_submit_ids(l, ids + at, count, &params, on_piece, &c, NULL, err);
    }
    if (rc == 0) rc = msgl_run(l, err);
    msgl__cli_bar_clear();
    if (rc != 0 || c.error[0] == '\0') return rc;
    return msgl__err_set(err, MSGL_EINTERNAL, "%.200s", c.error);
}

static int calibrate(const msgl_args *a, msgl_llm *l, const char *text, size_t len, msgl_err *err)
{
    msgl_info info;
    int32_t *ids = NULL;
    size_t n = 0;
    msgl_get_info(l, &info);
    int rc = msgl_tokenize(l, text, len, 1, &ids, &n, err);
    if (rc == 0 && n == 0) rc = msgl__err_set(err, MSGL_EINVAL, "--text %.180s: empty", a->text);
    if (rc == 0) rc = compute(l, ids, n, (size_t)info.max_seq_len - 1, err);
    msgl_free(ids);
    if (rc == 0 && !msgl__cli_interrupted) rc = msgl_write_channels(l, a->output, err);
    if (rc == 0) fprintf(stderr, "%s: channels from %zu tokens\n", a->output, n);
    return rc;
}

int msgl__cmd_calibrate(const msgl_args *a)
{
    msgl_err err;
    if (a->text == NULL || a->output == NULL) {
        msgl__err_set(&err, MSGL_EINVAL,
                      "give a text and where the channels go: --text FILE, "
                      "-o FILE");
        return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    }
    char *text = NULL, *dir = NULL, attention[128];
    size_t len = 0;
    msgl_llm *l = NULL;
    msgl_options o;
    int rc = msgl__file_read(a->text, MAX_TEXT, &text, &len, &err);
    if (rc == 0) rc = msgl__cli_options(a, &o, &dir, attention, &err);
    if (rc == 0) {
        o.prefill_first = 1; // nobody watches
        o.ds_calibrate = 1;
        o.ds_channel_config_path = NULL;
        o.attention = "double_sparsity";
        if (strcmp(o.device, "auto") == 0) o.device = "cpu";
        rc = msgl_open(&o, &l, &err);
    }
    if (rc == 0) {
        msgl__cli_catch_interrupt();
        rc = calibrate(a, l, text, len, &err);
    }
    msgl_close(l);
    msgl_free(dir);
    msgl__free(text);
    if (msgl__cli_interrupted) return MSGL_EXIT_INTERRUPTED;
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
