// SPDX-License-Identifier: Apache-2.0
#include "api/json.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "utils/json.h"

// Upper bounds of what jansson 2.14 takes from the heap on a 64-bit machine, malloc's rounding
// included: an object with its first buckets, an array with its first slots, and whatever a comma
// or colon separates (number, string without its text, or member; with the growth of its table).
// The digits of an integer beyond 64 bits are in the text, as those of a string are.
enum { OBJECT_BYTES = 256, ARRAY_BYTES = 144, ITEM_BYTES = 104 };

// Reading recurses per level and spends memory per value, so both are counted first. Brackets and
// commas inside strings do not count.
static int check_caps(const char *s, size_t len, msgl_json_room *room, msgl_err *err)
{
    size_t depth = 0, objects = 0, arrays = 0, items = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        const char c = s[i];
        if (in_string) {
            if (c == '\\') i++;
            if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (c == '[') arrays++;
            if (c == '{') objects++;
            if (++depth > MSGL_JSON_MAX_DEPTH) {
                return msgl__err_set(err, MSGL_EFORMAT,
                                     "The JSON body is nested more than %d levels deep.",
                                     MSGL_JSON_MAX_DEPTH);
            }
        } else if (c == ']' || c == '}') {
            if (depth > 0) depth--;
        } else if (c == ',' || c == ':') {
            items++;
        }
    }
    const size_t values = objects + arrays + items;
    if (values > MSGL_JSON_MAX_VALUES - room->values) {
        return msgl__err_set(err, MSGL_ELIMIT, "The JSON body has more than %d values.",
                             MSGL_JSON_MAX_VALUES);
    }
    // The bytes of strings are in len, and so is the text itself while it is read.
    size_t bytes = objects * OBJECT_BYTES + arrays * ARRAY_BYTES + items * ITEM_BYTES + len;
    if (room->copied) bytes *= 2;
    const int rc =
        room->claim == NULL ? 0 : msgl__claim_add(room->claim, MSGL_BUDGET_PROMPT, bytes);
    if (rc != 0) return msgl__err_set(err, rc, "%s", msgl__budget_refusal(rc));
    room->values += values;
    return 0;
}

// The innermost member in which the byte at `end` of a JSON text is, "" for none.
static void member_at(const char *s, size_t end, char name[64])
{
    size_t depth = 0, from = 0, begin[MSGL_JSON_MAX_DEPTH + 1] = {0};
    size_t len[MSGL_JSON_MAX_DEPTH + 1] = {0}; // of the last name at each depth
    for (size_t i = 0; i < end && depth < MSGL_JSON_MAX_DEPTH; i++) {
        if (s[i] == '"') {
            for (from = ++i; i < end && s[i] != '"'; i++) i += s[i] == '\\';
            size_t next = i + 1;
            while (next < end && memchr(" \t\r\n", s[next], 4) != NULL) next++;
            if (next >= end || s[next] != ':') continue;
            begin[depth] = from;
            len[depth] = i - from;
        } else if (s[i] == '{' || s[i] == '[') {
            len[++depth] = 0;
        } else if (depth > 0 && (s[i] == '}' || s[i] == ']')) {
            depth--;
        }
    }
    while (depth > 0 && len[depth] == 0) depth--;
    const size_t n = len[depth] < 63 ? len[depth] : 63;
    memcpy(name, s + begin[depth], n);
    name[n] = '\0';
}

static void say_what(const char *text, size_t len, const json_error_t *je, msgl_err *err)
{
    char name[64] = "";
    const size_t at = (size_t)(je->position > 0 ? je->position : 0);
    const bool large = json_error_code(je) == json_error_numeric_overflow; // JSON, but too much
    if (large) member_at(text, at < len ? at : len, name);
    if (name[0] != '\0') {
        (void)msgl__err_set(err, MSGL_EFORMAT,
                            "'%s' has a number beyond 1.8e308: %s (line %d, column %d)", name,
                            je->text, je->line, je->column);
    } else {
        (void)msgl__err_set(err, MSGL_EFORMAT,
                            "The body is not valid JSON: %s (line %d, column %d)", je->text,
                            je->line, je->column);
    }
}

json_t *msgl__json_parse_object(const char *text, size_t len, msgl_json_room *room, msgl_err *err)
{
    if (check_caps(text, len, room, err) != 0) return NULL;
    json_error_t je;
    int rc;
    json_t *root = msgl__json_loadb(text, len, 0, &je, &rc);
    if (rc == MSGL_ENOMEM) (void)msgl__err_set(err, rc, "Out of memory.");
    if (rc == MSGL_EFORMAT) say_what(text, len, &je, err);
    if (root == NULL) return NULL;
    if (!json_is_object(root)) {
        json_decref(root);
        (void)msgl__err_set(err, MSGL_EFORMAT, "The JSON body must be an object.");
        return NULL;
    }
    return root;
}

int msgl__json_put_logprob(msgl_strbuf *out, double v)
{
    if (isnan(v)) return msgl__strbuf_adds(out, "null");
    if (v < -9999.0) v = -9999.0;
    return msgl__strbuf_addf(out, "%.9g", v);
}

enum { DIGITS = 9, NUMBER_BYTES = 24 };

// Writes a number as JSON, with as many digits as tell it from every other float: 0.015625 is
// 1.5625e-2. It takes 30 ns, where printf takes 300, on the event loop that all connections wait
// for; an answer may have a million of them.
static size_t write_number(float value, char out[NUMBER_BYTES])
{
    char *at = out;
    double v = fabs((double)value);
    int exponent = 0;
    if (!isfinite(value)) {
        memcpy(out, "null", 4);
        return 4;
    }
    if (v == 0) {
        *at = '0';
        return 1;
    }
    if (value < 0) *at++ = '-';
    for (; v < 1; v *= 10) exponent--;
    for (; v >= 10; v /= 10) exponent++;
    uint32_t digits = (uint32_t)(v * 1e8 + 0.5);
    if (digits >= 1000000000u) { // 9.999999996
        digits /= 10;
        exponent++;
    }
    char text[DIGITS];
    for (int i = DIGITS - 1; i >= 0; i--, digits /= 10) text[i] = (char)('0' + digits % 10);
    int used = DIGITS;
    while (used > 1 && text[used - 1] == '0') used--;
    *at++ = text[0];
    if (used > 1) {
        *at++ = '.';
        memcpy(at, text + 1, (size_t)used - 1);
        at += used - 1;
    }
    if (exponent == 0) return (size_t)(at - out);
    *at++ = 'e';
    if (exponent < 0) *at++ = '-';
    if (abs(exponent) >= 10) *at++ = (char)('0' + abs(exponent) / 10);
    *at++ = (char)('0' + abs(exponent) % 10);
    return (size_t)(at - out);
}

int msgl__json_put_floats(msgl_strbuf *out, const float *values, int32_t n)
{
    char number[NUMBER_BYTES];
    int rc = msgl__strbuf_addc(out, '[');
    for (int32_t i = 0; i < n && rc == 0; i++) {
        if (i > 0) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = msgl__strbuf_add(out, number, write_number(values[i], number));
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}
