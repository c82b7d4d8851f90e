// SPDX-License-Identifier: Apache-2.0
//
// Rendering with a clock that the caller sets: what chat_template.h's functions do with the present
// time, and tests do with a fixed one.
#ifndef MSGL_TEMPLATE_JINJA_RENDER_H
#define MSGL_TEMPLATE_JINJA_RENDER_H

#include "template/chat_template.h"
#include "template/jinja_value.h"

enum {
    MSGL_JDEFAULT_STEPS = 20 << 20,
    MSGL_JDEFAULT_OUTPUT = 32 << 20,
    MSGL_JDEFAULT_DEPTH = 1000,
    MSGL_JMAX_DEPTH = 4000, // what an 8 MiB stack holds with room to spare
};

// `trusted` (may be NULL): variables of the model folder, looked up after `vars`.
int msgl__chat_template_render_at(const msgl_chat_template *t, json_t *vars, json_t *trusted,
                                  const msgl_render_limits *limits, const msgl_jclock *clock,
                                  msgl_rendered *out, msgl_err *err);
void msgl__jclock_now(msgl_jclock *clock); // local time

#endif
