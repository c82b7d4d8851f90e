// SPDX-License-Identifier: Apache-2.0
//
// A message as one frame (frame.h) and back: the kind is its type, the body its fields one after
// the other. Arrays have their length in front of them; a frame that claims 2^31 elements does not
// make the reader allocate for them before they are seen.
#ifndef MSGL_MESSAGE_CODEC_H
#define MSGL_MESSAGE_CODEC_H

#include <stddef.h>

#include "message/message.h"
#include "utils/strbuf.h"

#define MSGL_MSG_FRAME_MAX ((size_t)64 << 20)    // bytes of one encoded message's body
#define MSGL_MSG_DECODED_MAX ((size_t)512 << 20) // bytes of one decoded message's arrays and texts

// Where a decoded message's arrays and texts are. It is empty if zero-initialised. Blocks are kept
// from message to message, so that after a few small ones need no allocation.
typedef struct msgl_msg_mem {
    struct msgl_msg_block *head;
    size_t total;          // bytes handed out since the last reset
    msgl_req_extra *extra; // of the decoded request, with a reference
} msgl_msg_mem;
void msgl__msg_mem_reset(msgl_msg_mem *m);
void msgl__msg_mem_free(msgl_msg_mem *m);

// Appends the encoded message to *out. MSGL_EINVAL for a message that decode would refuse,
// MSGL_ELIMIT, MSGL_ENOMEM; *out is then as before.
int msgl__msg_encode(const msgl_msg *m, msgl_strbuf *out);

// Decodes exactly the frame data[0, len). *out points into mem (reset first). MSGL_EFORMAT:
// truncated, trailing bytes, a value out of range, an unknown type (err names the field and the
// byte offset); MSGL_ELIMIT; MSGL_ENOMEM.
int msgl__msg_decode(const void *data, size_t len, msgl_msg_mem *mem, msgl_msg *out, msgl_err *err);

#endif
