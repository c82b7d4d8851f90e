// SPDX-License-Identifier: Apache-2.0
//
// Two targets, chosen by the first byte. 'j': the rest is a tokenizer.json; loading it may fail,
// but what loads must encode and decode without harm. Anything else: the rest is text for one of a
// few tokenizers with the pipelines of real models, with the spans that the next bytes say
// untrusted. Build with -fsanitize=fuzzer,address,undefined and link msgl_tokenizer.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/load.h"
#include "utils/utf8.h"

static void require(int ok)
{
    if (!ok) __builtin_trap();
}

// Encodes, decodes in both ways, and compares them.
static void round_trip(const msgl_tokenizer *t, const char *text, size_t n,
                       const msgl_encode_opts *opts)
{
    msgl_ids ids = {0};
    msgl_strbuf whole, stream;
    msgl__strbuf_init(&whole, (size_t)1 << 26);
    msgl__strbuf_init(&stream, (size_t)1 << 26);
    if (msgl__tokenizer_encode(t, text, n, opts, &ids, NULL) == 0) {
        for (int skip = 0; skip < 2; skip++) {
            msgl__strbuf_clear(&whole);
            msgl__strbuf_clear(&stream);
            require(msgl__tokenizer_decode(t, ids.data, ids.len, skip, &whole, NULL) == 0);
            msgl_detok *d = msgl__detok_create(t, skip);
            require(d != NULL);
            for (size_t i = 0; i < ids.len; i++) {
                const size_t at = stream.len;
                require(msgl__detok_push(d, ids.data[i], &stream) == 0);
                const size_t piece = stream.len - at;
                require(msgl__utf8_valid(msgl__strbuf_str(&stream) + at, piece) == piece);
            }
            require(msgl__detok_finish(d, &stream) == 0);
            msgl__detok_destroy(d);
            require(whole.len == stream.len);
            require(memcmp(msgl__strbuf_str(&whole), msgl__strbuf_str(&stream), whole.len) == 0);
        }
    }
    msgl__strbuf_free(&whole);
    msgl__strbuf_free(&stream);
    msgl__ids_free(&ids);
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

static void fuzz_text(const char *p, size_t n)
{
    if (n < 4) return;
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
}

static void fuzz_json(const char *p, size_t n)
{
    static const char text[] = "ab <s> aaab\t12 \xc3\xa9"
                               "e\xcc\x81 \xe2\x98\x83 <|e|> \n ab a";
    msgl_tokenizer *t = NULL;
    msgl_err err = {0};
    if (msgl__tokenizer_parse(p, n, NULL, 0, &t, &err) != 0) {
        require(t == NULL && err.text[0] != '\0');
        return;
    }
    round_trip(t, text, sizeof(text) - 1, NULL);
    msgl__tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    if (data[0] == 'j') {
        fuzz_json((const char *)data + 1, size - 1);
    } else {
        fuzz_text((const char *)data, size);
    }
    return 0;
}
