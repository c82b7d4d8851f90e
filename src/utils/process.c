// SPDX-License-Identifier: Apache-2.0
#include "utils/process.h"

#include <fcntl.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// The second number of /proc/self/statm: resident pages.
static uint64_t resident(void)
{
    char text[128] = "";
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    const char *second = n > 0 ? strchr(text, ' ') : NULL;
    return second == NULL ? 0 : strtoull(second, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t us(struct timeval t)
{
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_usec;
}

msgl_process_use msgl__process_use(void)
{
    struct rusage r;
    msgl_process_use use = {.memory = resident()};
    if (getrusage(RUSAGE_SELF, &r) == 0) use.cpu_us = us(r.ru_utime) + us(r.ru_stime);
    return use;
}

_Noreturn void msgl__process_end(int status)
{
    fflush(NULL);
#if defined(__SANITIZE_ADDRESS__)
    // One that failed may be killed amid the check, whose helper would be left behind.
    if (status == 0 && __lsan_do_recoverable_leak_check() != 0) status = MSGL_EXIT_LEAKS;
#endif
    _exit(status);
}
