// SPDX-License-Identifier: Apache-2.0
#include "apps/simulation/step_table.h"

#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "apps/simulation/json_lines.h"

enum { MAX_POINTS = 4096, MAX_TILE = 1 << 20 };

typedef struct point {
    double x, y, value;
} point;

// Points in order of x, then y; those of the same x are a line.
typedef struct surface {
    point *points; // [MAX_POINTS]
    int *lines;    // [num_lines + 1] first point of each
    int num_points, num_lines;
    double least; // half of the smallest value: what continuing never falls below
} surface;

typedef enum phase { DECODE, PREFILL, MIXED, NUM_PHASES } phase;

static const char *const PHASES[NUM_PHASES] = {"decode", "prefill", "mixed"};

struct msgl_step_table {
    // Milliseconds over (answers, context) and (chunk, prefix); MIXED: the ratio to the estimate,
    // over (answers, chunk).
    surface of[NUM_PHASES];
    int32_t tile;
};

// ---- surfaces ----

static int by_place(const void *a, const void *b)
{
    const point *p = a, *q = b;
    if (p->x != q->x) return p->x < q->x ? -1 : 1;
    return (p->y > q->y) - (p->y < q->y);
}

// Sorts the points, makes one of those in the same place, and finds the lines.
static void build(surface *s)
{
    qsort(s->points, (size_t)s->num_points, sizeof *s->points, by_place);
    int n = 0;
    for (int i = 0; i < s->num_points;) {
        point p = s->points[i];
        int same = 1;
        while (i + same < s->num_points && by_place(&p, &s->points[i + same]) == 0) same++;
        p.value = 0;
        for (int k = 0; k < same; k++) p.value += s->points[i + k].value / same;
        s->points[n++] = p;
        i += same;
    }
    s->num_points = n;
    s->num_lines = 0;
    for (int i = 0; i < n; i++) {
        if (i == 0 || s->points[i].x != s->points[i - 1].x) s->lines[s->num_lines++] = i;
        if (i == 0 || s->points[i].value / 2 < s->least) s->least = s->points[i].value / 2;
    }
    s->lines[s->num_lines] = n;
}

static double between(double x0, double v0, double x1, double v1, double x)
{
    return v0 + (v1 - v0) * (x - x0) / (x1 - x0);
}

static double on_line(const surface *s, int line, double y)
{
    const point *p = &s->points[s->lines[line]];
    const int n = s->lines[line + 1] - s->lines[line];
    if (n == 1) return p->value;
    int i = 0;
    while (i + 2 < n && y > p[i + 1].y) i++;
    return between(p[i].y, p[i].value, p[i + 1].y, p[i + 1].value, y);
}

static double at(const surface *s, double x, double y)
{
    int i = 0;
    while (i + 2 < s->num_lines && x > s->points[s->lines[i + 1]].x) i++;
    const double x0 = s->points[s->lines[i]].x;
    double value = on_line(s, i, y);
    if (x > x0 && s->num_lines > 1) {
        value = between(x0, value, s->points[s->lines[i + 1]].x, on_line(s, i + 1, y), x);
    }
    return value > s->least ? value : s->least;
}

// Of a surface that is not continued beyond its ends.
static double at_nearest(const surface *s, double x, double y)
{
    const double most = s->points[s->lines[s->num_lines - 1]].x;
    double values[2] = {0}, places[2] = {0};
    int i = 0;
    while (i + 2 < s->num_lines && x > s->points[s->lines[i + 1]].x) i++;
    for (int k = 0; k < 2; k++) {
        const int line = i + k < s->num_lines ? i + k : i;
        const point *first = &s->points[s->lines[line]], *last = &s->points[s->lines[line + 1] - 1];
        places[k] = first->x;
        values[k] = on_line(s, line, y < first->y ? first->y : y > last->y ? last->y : y);
    }
    if (x <= places[0] || places[0] == places[1]) return values[0];
    return between(places[0], values[0], places[1], values[1], x < most ? x : most);
}

// ---- steps ----

msgl_step_shape msgl__step_shape_of(const msgl_batch *b)
{
    msgl_step_shape s = {0};
    double context = 0, pairs = 0; // of a new token of a chunk and one before it
    for (int32_t i = 0; i < b->size; i++) {
        const msgl_batch_req *r = &b->reqs[i];
        const bool answers = i < b->num_decode || r->num_drafts > 0;
        const double n = msgl__extend_len(r) - answers;
        s.answers += answers;
        s.chunk += n;
        context += answers ? r->cached_len : 0;
        pairs += n * (r->cached_len + answers + n / 2);
    }
    if (s.answers > 0) s.context = context / s.answers;
    if (s.chunk > 0) s.prefix = pairs / s.chunk - s.chunk / 2;
    return s;
}

static double estimate(const msgl_step_table *t, const msgl_step_shape *s)
{
    const surface *chunk = &t->of[PREFILL];
    if (s->answers == 0) return at(chunk, s->chunk, s->prefix);
    const double answers = at(&t->of[DECODE], s->answers, s->context);
    if (s->chunk == 0) return answers;
    const double ms = answers + at(chunk, s->chunk + s->answers, 0) - at(chunk, s->answers, 0) +
                      at(chunk, s->chunk, s->prefix) - at(chunk, s->chunk, 0);
    return ms > answers ? ms : answers;
}

uint64_t msgl__step_table_ns(const msgl_step_table *t, const msgl_step_shape *s)
{
    double ms = estimate(t, s);
    if (s->answers > 0 && s->chunk > 0 && t->of[MIXED].num_points > 0) {
        ms *= at_nearest(&t->of[MIXED], s->answers, s->chunk);
    }
    const double ns = ms * 1e6;
    return ns < 1 ? 1 : (uint64_t)ns;
}

int32_t msgl__step_table_tile(const msgl_step_table *t)
{
    return t->tile;
}

// ---- reading ----

typedef struct reader {
    msgl_step_table *table;
    msgl_step_shape *shapes; // [MAX_POINTS] of the mixed points
} reader;

static int phase_of(const msgl_json_line *line, phase *out, msgl_err *err)
{
    const char *name = json_string_value(json_object_get(line->object, "phase"));
    for (int i = 0; name != NULL && i < NUM_PHASES; i++) {
        if (strcmp(name, PHASES[i]) != 0) continue;
        *out = (phase)i;
        return 0;
    }
    return msgl__json_line_error(line, "phase", "\"decode\", \"prefill\" or \"mixed\"", err);
}

static int read_row(void *ctx, const msgl_json_line *line, msgl_err *err)
{
    reader *r = ctx;
    phase p = DECODE;
    msgl_step_shape s = {0};
    double ms = 0, tile = 0;
    int rc = phase_of(line, &p, err);
    if (rc == 0 && p != PREFILL) {
        rc = msgl__json_line_number(line, "batch", 1, 1 << 20, NULL, &s.answers, err);
        if (rc == 0) {
            rc = msgl__json_line_number(line, "context", 0, 1 << 30, NULL, &s.context, err);
        }
    }
    if (rc == 0 && p != DECODE) {
        rc = msgl__json_line_number(line, "chunk", 1, 1 << 30, NULL, &s.chunk, err);
        if (rc == 0) rc = msgl__json_line_number(line, "prefix", 0, 1 << 30, NULL, &s.prefix, err);
    }
    if (rc == 0) rc = msgl__json_line_number(line, "ms_per_step", 1e-6, 1e9, NULL, &ms, err);
    if (rc == 0) rc = msgl__json_line_number(line, "tile", 0, MAX_TILE, NULL, &tile, err);
    if (rc != 0) return rc;
    surface *to = &r->table->of[p];
    if (to->num_points == MAX_POINTS) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s: more than %d rows of a phase", line->name,
                             (int)MAX_POINTS);
    }
    if (p == MIXED) r->shapes[to->num_points] = s;
    to->points[to->num_points++] = (point){.x = p == PREFILL ? s.chunk : s.answers,
                                           .y = p == PREFILL  ? s.prefix
                                                : p == DECODE ? s.context
                                                              : s.chunk,
                                           .value = ms};
    r->table->tile = (int32_t)tile;
    return 0;
}

static int build_all(reader *r, const char *path, msgl_err *err)
{
    msgl_step_table *t = r->table;
    for (int p = DECODE; p <= PREFILL; p++) {
        if (t->of[p].num_points == 0) {
            return msgl__err_set(err, MSGL_EFORMAT, "%s: no row with phase \"%s\"", path,
                                 PHASES[p]);
        }
        build(&t->of[p]);
    }
    surface *mixed = &t->of[MIXED];
    for (int i = 0; i < mixed->num_points; i++)
        mixed->points[i].value /= estimate(t, &r->shapes[i]);
    build(mixed);
    return 0;
}

int msgl__step_table_load(const char *path, msgl_step_table **out, msgl_err *err)
{
    *out = NULL;
    reader r = {.table = msgl__calloc(1, sizeof *r.table),
                .shapes = msgl__reallocarray(NULL, MAX_POINTS, sizeof *r.shapes)};
    bool ok = r.table != NULL && r.shapes != NULL;
    for (int p = 0; ok && p < NUM_PHASES; p++) {
        surface *s = &r.table->of[p];
        s->points = msgl__reallocarray(NULL, MAX_POINTS, sizeof *s->points);
        s->lines = msgl__reallocarray(NULL, MAX_POINTS + 1, sizeof *s->lines);
        ok = s->points != NULL && s->lines != NULL;
    }
    int rc = ok ? 0 : msgl__err_set(err, MSGL_ENOMEM, "step table: out of memory");
    if (rc == 0) rc = msgl__json_lines_read(path, read_row, &r, err);
    if (rc == 0) rc = build_all(&r, path, err);
    msgl__free(r.shapes);
    if (rc != 0) {
        msgl__step_table_destroy(r.table);
        return rc;
    }
    *out = r.table;
    return 0;
}

void msgl__step_table_destroy(msgl_step_table *t)
{
    if (t == NULL) return;
    for (int p = 0; p < NUM_PHASES; p++) {
        msgl__free(t->of[p].points);
        msgl__free(t->of[p].lines);
    }
    msgl__free(t);
}
