// SPDX-License-Identifier: Apache-2.0
#include "launch/control.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "message/frame.h"
#include "utils/packet.h"

typedef struct packet {
    msgl_frame_head head;
    int32_t replica;
    char text[MSGL_CONTROL_TEXT];
} packet;

enum { EMPTY = sizeof(packet) - MSGL_CONTROL_TEXT }; // bytes of one without text

int msgl__control_send(int fd, msgl_control kind, int replica, const char *text, int pass_fd)
{
    size_t n = text == NULL ? 0 : strlen(text);
    if (n > MSGL_CONTROL_TEXT) n = MSGL_CONTROL_TEXT;
    packet p = {.head.kind = kind, .replica = replica};
    p.head.bytes = (uint32_t)(EMPTY - sizeof p.head + n);
    if (n > 0) memcpy(p.text, text, n);
    return msgl__packet_send(fd, &p, EMPTY + n, pass_fd);
}

int msgl__control_recv(int fd, int *replica, char *text, int *passed_fd)
{
    packet p;
    msgl_frame_head head;
    int passed;
    const ssize_t n = msgl__packet_recv(fd, &p, sizeof p, &passed);
    const bool whole =
        n >= EMPTY && msgl__frame_peek(&p, (size_t)n, sizeof p - sizeof head, &head) == 1;
    if (passed >= 0 && (!whole || passed_fd == NULL)) {
        close(passed);
        passed = -1;
    }
    if (passed_fd != NULL) *passed_fd = passed;
    if (n <= 0) return (int)n;
    if (!whole) return -1;
    memcpy(text, p.text, (size_t)n - EMPTY);
    text[n - EMPTY] = '\0';
    *replica = p.replica;
    return (int)head.kind;
}
