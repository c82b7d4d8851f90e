// SPDX-License-Identifier: Apache-2.0
//
// The input is a tokenizer.json; if a NUL byte is in it, what follows is the folder's
// tokenizer_config.json. Loading may fail with one line, but what loads encodes and decodes.
#include <stdint.h>
#include <string.h>

#include "round_trip.h"
#include "tokenizer/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "ab <s> aaab\t12 \xc3\xa9"
                               "e\xcc\x81 \xe2\x98\x83 <|e|> \n ab a";
    const char *json = (const char *)data;
    const char *nul = size > 0 ? memchr(json, 0, size) : NULL;
    const size_t len = nul != NULL ? (size_t)(nul - json) : size;
    const char *config = nul != NULL ? nul + 1 : NULL;
    const size_t config_len = nul != NULL ? size - len - 1 : 0;
    msgl_tokenizer *t = NULL;
    msgl_err err = {0};
    if (msgl__tokenizer_parse(json, len, config, config_len, &t, &err) == 0) {
        round_trip(t, text, sizeof text - 1, NULL);
        msgl__tokenizer_free(t);
    } else if (t != NULL || err.text[0] == '\0' || strchr(err.text, '\n') != NULL) {
        __builtin_trap();
    }
    return 0;
}
