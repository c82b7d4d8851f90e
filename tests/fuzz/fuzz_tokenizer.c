// SPDX-License-Identifier: Apache-2.0
//
// The input is text for one of a few tokenizers with the pipelines of real models; its first four
// bytes choose the tokenizer, the span of it that is untrusted, and options.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "round_trip.h"
#include "tokenizer/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int ok)
{
    if (!ok) __builtin_trap();
}

#define BYTES_SPLIT "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define SP_DECODER                                                                                 \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"          \
    "\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"        \
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"
#define VOCAB                                                                                      \
    "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xc4\xa0\":3,\"\xe2\x96\x81\":4,\"<0xE2>\":" \
    "5,"                                                                                           \
    "\"<0x98>\":6,\"<0x83>\":7,\"\xc3\xa2\":8,\"aa\":9,\"aaaa\":10,\"\xe2\x96\x81"                 \
    "a\":11,\"<u>\":12,"                                                                           \
    "\"s\":13},\"merges\":[\"a b\",\"a a\",\"aa aa\",\"\xe2\x96\x81 a\"],\"unk_token\":\"<u>\","   \
    "\"byte_fallback\":true,\"fuse_unk\":true}"
#define ADDED                                                                                      \
    "\"added_tokens\":[{\"id\":20,\"content\":\"<s>\",\"special\":true,\"normalized\":true},"      \
    "{\"id\":21,\"content\":\"<|e|>\",\"special\":true,\"rstrip\":true},"                          \
    "{\"id\":22,\"content\":\"ab a\",\"special\":false,\"single_word\":true,\"lstrip\":true}]"

static const char *const models[] = {
    "{\"pre_tokenizer\":" BYTES_SPLIT ",\"decoder\":{\"type\":\"ByteLevel\"}," ADDED "," VOCAB "}",
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
    "\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":"
    "\"\xe2\x96\x81\"}]},\"decoder\":" SP_DECODER "," ADDED "," VOCAB "}",
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":"
    "\"Lowercase\"},{\"type\":\"NFD\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\","
    "\"pretokenizers\":["
    "{\"type\":\"Whitespace\"},{\"type\":\"Digits\",\"individual_digits\":false},{\"type\":"
    "\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"first\"}]}," ADDED
    "," VOCAB "}",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *p = (const char *)data;
    if (n < 4) return 0;
    static msgl_tokenizer *loaded[3]; // kept for the whole run: loading is most of the time
    const int k = (unsigned char)p[0] % 3;
    const size_t len = n - 4;
    msgl_text_span span = {(unsigned char)p[1], (unsigned char)p[1] + (size_t)(unsigned char)p[2]};
    msgl_encode_opts opts = {.add_special = p[3] & 1, .untrusted = &span, .num_untrusted = 1};
    if (span.end > len) opts.num_untrusted = 0;
    if ((p[3] & 2) != 0) opts.max_ids = 3;
    if (loaded[k] == NULL) {
        const char *json = models[k];
        require(msgl__tokenizer_parse(json, strlen(json), NULL, 0, &loaded[k], NULL) == 0);
    }
    char *text = malloc(len > 0 ? len : 1); // exact, so that a read past the end is seen
    require(text != NULL);
    memcpy(text, p + 4, len);
    round_trip(loaded[k], text, len, &opts);
    free(text);
    return 0;
}
