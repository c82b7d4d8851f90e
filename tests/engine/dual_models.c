// SPDX-License-Identifier: Apache-2.0
#include "engine/dual_models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/parity.h"

void dual_make(folder *f, const char *model, json_t *dual)
{
    char from[512], weights[128];
    folder_make(f);
    parity_path(from, model, "config.json");
    json_t *c = json_load_file(from, 0, NULL), *given = json_object();
    json_object_update(given, json_object_get(c, "dual_chunk_attention_config"));
    json_object_update_new(given, dual);
    json_object_set_new(c, "dual_chunk_attention_config", given);
    folder_write_json(f, "config.json", c);
    json_decref(c);
    parity_path(from, model, "model.safetensors");
    folder_path(f, "model.safetensors", weights, sizeof weights);
    char *real = realpath(from, NULL); // vectors may be named from the working directory
    assert_non_null(real);
    assert_int_equal(symlink(real, weights), 0);
    free(real);
}

void dual_make_sparse(folder *f, int first, int second)
{
    dual_make(
        f, "qwen2_dual_chunk",
        json_pack("{s:i, s:i}", "sparse_attention_threshold", 20, "sparse_attention_last_q", 4));
    json_t *list = json_array();
    for (int layer = 0; layer < 2; layer++) {
        json_array_append_new(list,
                              json_pack("{s:[siif], s:[siif]}", "0", "vertical_and_slash", 0, first,
                                        1.0, "1", "vertical_and_slash", 0, second, 0.5));
    }
    folder_write_json(f, "sparse_attention_config.json", list);
    json_decref(list);
}
