// SPDX-License-Identifier: Apache-2.0
//
// What is told of one request in traces, and its form in OTLP's JSON. Nothing of a prompt or an
// answer is in it. A span is one packet from the front to the exporter, which are the same program.
#ifndef MSGL_TRACES_SPAN_H
#define MSGL_TRACES_SPAN_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

// Why choices ended, by the names of OpenAI's finish_reason.
typedef enum msgl_span_finish {
    MSGL_SPAN_STOP,
    MSGL_SPAN_LENGTH,
    MSGL_SPAN_TOOL_CALLS,
    MSGL_SPAN_ABORT,
    MSGL_SPAN_NUM_FINISHES,
} msgl_span_finish;

enum { MSGL_SPAN_CHOICES = 16 }; // whose ends are told, of one request

typedef struct msgl_span {
    uint8_t trace_id[16], span_id[8], parent_id[8];
    uint8_t has_parent; // 0: no; the same below
    // Unix time; the rest is since then, 0: it did not come to that.
    uint64_t start_ns;
    uint64_t sent_ns, first_ns, end_ns; // given to an engine, first token, end
    char path[40], operation[24];       // of the endpoint; of gen_ai.operation.name, "": none
    char request_id[132], response_id[48];
    int32_t status; // HTTP; 0: there was no answer
    char error[48]; // an error's code, or its type; "": none
    uint8_t client_gone;
    uint8_t read; // what follows is known
    uint8_t stream, sampled;
    int32_t choices, max_tokens, top_k; // max_tokens -1: not given
    float temperature, top_p, frequency_penalty, presence_penalty;
    int64_t input_tokens, cached_tokens, output_tokens, reasoning_tokens;
    int32_t num_finishes;
    uint8_t finishes[MSGL_SPAN_CHOICES];
} msgl_span;

// What is the same in all of them.
typedef struct msgl_span_origin {
    const char *model, *scheme; // served name; "http" or "https", of requests
    const json_t *resource;     // an object of strings: the resource's attributes
} msgl_span_origin;

// Makes the most of a packet that another process sent: texts end, what is out of range is none.
void msgl__span_check(msgl_span *s);
// Spans that it becomes in OTLP: its own, and one of each phase that it came to.
int msgl__span_count(const msgl_span *s);
// An ExportTraceServiceRequest of spans[n], to be freed with msgl__free; NULL: no memory.
char *msgl__spans_encode(const msgl_span_origin *from, const msgl_span *spans, int n);

#endif
