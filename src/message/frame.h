// SPDX-License-Identifier: Apache-2.0
//
// The one framing between the processes of this program: a head of 8 bytes, then a body. Messages
// between front and engine have it (message.h), those between ranks (engine/rank_wire.h), and the
// packets between launcher and front (launch/control.h). Both ends are the same program on machines
// of one kind, so numbers are in the machine's own form.
#ifndef MSGL_MESSAGE_FRAME_H
#define MSGL_MESSAGE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "utils/strbuf.h"

typedef struct msgl_frame_head {
    uint32_t bytes; // of the body
    uint32_t kind;  // what the two ends agree on; not 0
} msgl_frame_head;

// Appends a head, at *start; the body is what is appended behind it. 0, or the buffer's error.
int msgl__frame_begin(msgl_strbuf *b, size_t *start);
// Ends the body of the head at `start`, which gets its length. MSGL_ELIMIT: it has more than `max`
// bytes.
int msgl__frame_end(msgl_strbuf *b, size_t start, uint32_t kind, size_t max);
// Looks at the first `have` bytes of a stream. 1: they begin with a whole frame, whose head is
// *out; 0: not yet; MSGL_EFORMAT: its body would have more than `max` bytes, or its kind is 0.
int msgl__frame_peek(const void *data, size_t have, size_t max, msgl_frame_head *out);

#endif
