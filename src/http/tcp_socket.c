// SPDX-License-Identifier: Apache-2.0
#include "http/tcp_socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int msgl__tcp_listen(const char *host, int port, int *fd, int *bound_port, msgl_err *err)
{
    if (port < 0 || port > 65535) {
        return msgl__err_set(err, MSGL_EINVAL, "port is %d; allowed: 0 to 65535", port);
    }
    char service[8];
    (void)snprintf(service, sizeof service, "%d", port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    const int gai = getaddrinfo(host, service, &hints, &list);
    if (gai != 0) {
        return msgl__err_set(err, MSGL_EINVAL, "host %s: %s", host, gai_strerror(gai));
    }
    int saved = EADDRNOTAVAIL;
    *fd = -1;
    for (const struct addrinfo *a = list; a != NULL && *fd < 0; a = a->ai_next) {
        const int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        const int one = 1;
        if (s >= 0 && setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
            bind(s, a->ai_addr, a->ai_addrlen) == 0 && listen(s, 1024) == 0) {
            *fd = s;
        } else {
            saved = errno;
            if (s >= 0) close(s);
        }
    }
    freeaddrinfo(list);
    if (*fd < 0) {
        return msgl__err_set(err, MSGL_EIO, "cannot listen on %s port %d: %s", host, port,
                             strerror(saved));
    }
    struct sockaddr_storage addr;
    socklen_t len = sizeof addr;
    *bound_port = port;
    if (getsockname(*fd, (struct sockaddr *)&addr, &len) == 0) {
        *bound_port = addr.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&addr)->sin6_port)
                                                 : ntohs(((struct sockaddr_in *)&addr)->sin_port);
    }
    return 0;
}
