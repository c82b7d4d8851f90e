// SPDX-License-Identifier: Apache-2.0
#include "parsers/marks.h"

#include <stdbool.h>
#include <string.h>

enum { MORE = -1, NONE = -2 };

static int look(const msgl_match *m, const char *const *marks)
{
    int found = NONE;
    for (int i = 0; marks[i] != NULL; i++) {
        if (strncmp(marks[i], m->buf, (size_t)m->len) != 0) continue;
        if (marks[i][m->len] == '\0') return i;
        found = MORE;
    }
    return found;
}

static bool begins_mark(const char *const *marks, char c)
{
    bool any = false;
    for (int i = 0; marks[i] != NULL; i++) any = any || marks[i][0] == c;
    return any;
}

int msgl__match_add(msgl_match *m, const char *const *marks, char c, char plain[MSGL_MARK_MAX],
                    int *n)
{
    if (m->len == 0 && !begins_mark(marks, c)) { // nearly every byte of an answer
        plain[0] = c;
        *n = 1;
        return -1;
    }
    *n = 0;
    m->buf[m->len++] = c;
    while (m->len > 0) {
        // A NUL in the text is no end of a marker.
        const int found = m->buf[m->len - 1] == '\0' ? NONE : look(m, marks);
        if (found >= 0) m->len = 0;
        if (found != NONE) return found < 0 ? -1 : found;
        plain[(*n)++] = m->buf[0];
        m->len--;
        memmove(m->buf, m->buf + 1, (size_t)m->len);
    }
    return -1;
}
