// SPDX-License-Identifier: Apache-2.0
//
// From lines to one text: a line that ends in a backslash goes on in the next one, and all between
// two """ is taken as it is.
#include <string.h>

#include "apps/chat/chat.h"
#include "core/err.h"

static const char MARK[] = "\"\"\"";
enum { MARK_LEN = 3 };

void msgl__chat_input_init(msgl_chat_input *in)
{
    *in = (msgl_chat_input){0};
    msgl__strbuf_init(&in->text, (size_t)1 << 24);
    msgl__strbuf_init(&in->source, (size_t)1 << 25);
}

void msgl__chat_input_free(msgl_chat_input *in)
{
    msgl__strbuf_free(&in->text);
    msgl__strbuf_free(&in->source);
}

void msgl__chat_input_drop(msgl_chat_input *in)
{
    msgl__strbuf_clear(&in->text);
    msgl__strbuf_clear(&in->source);
    in->more = in->block = in->literal = false;
}

static bool is_mark(const char *s, size_t len)
{
    return len >= MARK_LEN && memcmp(s, MARK, MARK_LEN) == 0;
}

// A line of a block; what stands behind its end is white space, or the end is none.
static int block_line(msgl_chat_input *in, const char *line, size_t len)
{
    size_t end = len;
    while (end > 0 && (line[end - 1] == ' ' || line[end - 1] == '\t')) end--;
    const bool ends = end >= MARK_LEN && is_mark(line + end - MARK_LEN, MARK_LEN);
    if (!ends) {
        int rc = msgl__strbuf_add(&in->text, line, len);
        if (rc == 0) rc = msgl__strbuf_addc(&in->text, '\n');
        return rc;
    }
    in->block = in->more = false;
    int rc = msgl__strbuf_add(&in->text, line, end - MARK_LEN);
    // The mark on a line of its own: the line before it is the last.
    if (rc == 0 && end == MARK_LEN && in->text.len > 0 && in->text.data[in->text.len - 1] == '\n')
        in->text.data[--in->text.len] = '\0';
    return rc;
}

static int take_line(msgl_chat_input *in, const char *line, size_t len, bool goes_on)
{
    if (in->block) return block_line(in, line, len);
    if (!in->more && is_mark(line, len)) {
        in->block = in->literal = in->more = true;
        return len == MARK_LEN ? 0 : block_line(in, line + MARK_LEN, len - MARK_LEN);
    }
    const bool escaped = !goes_on && len > 0 && line[len - 1] == '\\';
    in->more = goes_on || escaped;
    int rc = msgl__strbuf_add(&in->text, line, escaped ? len - 1 : len);
    if (rc == 0 && in->more) rc = msgl__strbuf_addc(&in->text, '\n');
    return rc;
}

int msgl__chat_input_line(msgl_chat_input *in, const char *line, size_t len, bool goes_on,
                          msgl_err *err)
{
    if (!in->more) msgl__chat_input_drop(in);
    int rc = 0;
    if (memchr(line, '\0', len) != NULL) {
        msgl__chat_input_drop(in);
        return msgl__err_set(err, MSGL_EFORMAT, "the input has a NUL byte; allowed: text");
    }
    if (in->more) rc = msgl__strbuf_addc(&in->source, '\n');
    if (rc == 0) rc = msgl__strbuf_add(&in->source, line, len);
    if (rc == 0) rc = take_line(in, line, len, goes_on);
    // Read again, a pasted line has to go on as well.
    if (rc == 0 && goes_on && !in->block && in->more) rc = msgl__strbuf_addc(&in->source, '\\');
    if (rc == 0) return 0;
    const size_t max = in->text.max;
    msgl__chat_input_drop(in);
    return rc == MSGL_ELIMIT
               ? msgl__err_set(err, rc, "the input is longer than %zu MiB, which are allowed",
                               max >> 20)
               : msgl__err_set(err, rc, "out of memory for the input");
}

int msgl__chat_input_lines(msgl_chat_input *in, const char *lines, size_t len, bool goes_on,
                           msgl_err *err)
{
    int rc = 0;
    for (const char *end = lines + len, *next; rc == 0; lines = next + 1) {
        next = memchr(lines, '\n', (size_t)(end - lines));
        if (next == NULL)
            return msgl__chat_input_line(in, lines, (size_t)(end - lines), goes_on, err);
        // Text that some other program has written into the history is one text nevertheless.
        const bool ends = next == lines || next[-1] != '\\';
        rc = msgl__chat_input_line(in, lines, (size_t)(next - lines), ends, err);
    }
    return rc;
}
