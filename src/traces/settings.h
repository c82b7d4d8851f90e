// SPDX-License-Identifier: Apache-2.0
//
// Where traces go: of --otlp-traces-endpoint, and of the variables that OpenTelemetry's
// specification gives to exporters (docs/traces.md has those that are read).
#ifndef MSGL_TRACES_SETTINGS_H
#define MSGL_TRACES_SETTINGS_H

#include <jansson.h>

#include "core/err.h"
#include "utils/log.h"

typedef struct msgl_traces_settings {
    char *url;        // that is posted to; NULL: there are no traces
    char **headers;   // "Name: value" [num_headers], secrets among them
    int num_headers;  //
    json_t *resource; // an object of strings, with service.name
    char *ca_file;    // of certificates that are trusted; NULL: the system's
    int delay_ms;     // at most between a span and its export
    int timeout_ms;   // of one export
} msgl_traces_settings;

// option: of the command line, or NULL. MSGL_EINVAL names the option or variable and what is
// allowed, never what could be a secret. What is wrong with variables that somebody may have set
// for all programs alike is a line of the log.
int msgl__traces_settings(const char *option, const msgl_log *log, msgl_traces_settings *out,
                          msgl_err *err);
void msgl__traces_settings_free(msgl_traces_settings *s);

#endif
