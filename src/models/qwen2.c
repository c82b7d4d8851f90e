// SPDX-License-Identifier: Apache-2.0
//
// Qwen2 and Qwen2.5: Llama with biases on q, k and v; some layers may have a sliding window, or all
// have dual chunk attention (Qwen2.5-1M).
#include <stdlib.h>
#include <string.h>

#include "models/archs.h"
#include "models/decoder.h"

// Whether prompts' keys are stored as the original stores them: for comparisons with it.
static bool wants_scaled_keys(msgl_json_reader *r)
{
    static const char name[] = "MINISGL_DUAL_CHUNK_KEYS";
    const char *want = getenv(name);
    if (want == NULL || want[0] == '\0' || strcmp(want, "plain") == 0) return false;
    if (strcmp(want, "scaled") == 0) return true;
    if (r->status == 0) {
        r->status = msgl__err_set(r->err, MSGL_EINVAL, "%s: found \"%.40s\", allowed plain, scaled",
                                  name, want);
    }
    return false;
}

// chunk_size counts the local_size tokens in front of a chunk that still see each other at their
// true distance; the chunks themselves are the difference.
static void read_dual_chunk(msgl_json_reader *r, msgl_model_config *c)
{
    static const char section[] = "dual_chunk_attention_config";
    msgl_json_reader sub = msgl__json_section(r, section);
    if (sub.obj == NULL || sub.status != 0) return;
    if (c->decoder.sliding_window > 0 || msgl__rope_per_request(&c->ropes[0])) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, section, sub.obj,
                          "no sliding window and no rope scaling by length beside it");
        return;
    }
    msgl_dual_chunk *d = &c->ropes[0].dual;
    d->size = msgl__json_int_or(&sub, "chunk_size", 2, INT32_MAX / 4, 8192);
    d->len = d->size - msgl__json_int_or(&sub, "local_size", 0, d->size - 1, 1024);
    d->original = msgl__json_int_or(&sub, "original_max_position_embeddings", 0, INT32_MAX, 0);
    d->scaled_keys = wants_scaled_keys(&sub);
    msgl_sparse_prompts *sparse = &c->decoder.sparse_prompts;
    sparse->enabled = msgl__json_bool_or(&sub, "sparse_attention_enabled", true);
    sparse->threshold = msgl__json_int_or(&sub, "sparse_attention_threshold", 0, INT32_MAX, 32768);
    sparse->last = msgl__json_int_or(&sub, "sparse_attention_last_q", 1, 1024, 64);
    r->status = sub.status;
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qkv_bias = true;
    msgl__decoder_read_windows(r, c);
    read_dual_chunk(r, c);
}

const msgl_arch msgl__arch_qwen2 = {
    .name = "Qwen2ForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
