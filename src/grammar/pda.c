// SPDX-License-Identifier: Apache-2.0
#include "grammar/pda.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static int room(msgl_pda *p, void **at, int32_t *cap, int64_t need, size_t size)
{
    if (need <= *cap) return 0;
    int64_t grown = *cap < 64 ? 64 : (int64_t)*cap * 2;
    if (grown < need) grown = need;
    void *q = grown > INT32_MAX / 2 ? NULL : msgl__reallocarray(*at, (size_t)grown, size);
    if (q == NULL) return p->rc = MSGL_ENOMEM;
    *at = q;
    *cap = (int32_t)grown;
    return 0;
}

// Doubles a set when it is half full. hash_of gives an entry's hash.
static int set_room(msgl_pda *p, msgl_hash_set *s, uint64_t (*hash_of)(const msgl_pda *, int32_t))
{
    if (s->slot != NULL && (uint32_t)s->n * 2 < s->mask) return 0;
    const uint32_t size = s->slot == NULL ? 256 : (s->mask + 1) * 2;
    int32_t *slot = msgl__calloc(size, sizeof *slot);
    if (slot == NULL) return p->rc = MSGL_ENOMEM;
    for (uint32_t i = 0; s->slot != NULL && i <= s->mask; i++) {
        if (s->slot[i] == 0) continue;
        uint32_t k = (uint32_t)hash_of(p, s->slot[i] - 1) & (size - 1);
        while (slot[k] != 0) k = (k + 1) & (size - 1);
        slot[k] = s->slot[i];
    }
    msgl__free(s->slot);
    s->slot = slot;
    s->mask = size - 1;
    return 0;
}

static uint64_t frame_key(int32_t node, int32_t count, int32_t parent)
{
    return mix(mix(mix(1, (uint32_t)node), (uint32_t)count), (uint32_t)parent);
}

static uint64_t frame_hash(const msgl_pda *p, int32_t i)
{
    return frame_key(p->frames[i].node, p->frames[i].count, p->frames[i].parent);
}

static uint64_t state_hash(const msgl_pda *p, int32_t i)
{
    return p->states[i].hash;
}

static uint64_t config_hash(const msgl_config *c, bool entered)
{
    return mix(mix(mix(2 + entered, (uint32_t)c->node), (uint32_t)c->count), (uint32_t)c->frame);
}

static uint64_t work_hash(const msgl_pda *p, int32_t i)
{
    return config_hash(&p->work[i], p->entered[i]);
}

// The frame's number; -1: deeper than allowed, or a failure.
static int32_t push_frame(msgl_pda *p, int32_t node, int32_t count, int32_t parent)
{
    if (set_room(p, &p->frame_set, frame_hash) != 0) return -1;
    uint32_t k = (uint32_t)frame_key(node, count, parent) & p->frame_set.mask;
    for (; p->frame_set.slot[k] != 0; k = (k + 1) & p->frame_set.mask) {
        const msgl_frame *f = &p->frames[p->frame_set.slot[k] - 1];
        if (f->node == node && f->count == count && f->parent == parent) {
            return p->frame_set.slot[k] - 1;
        }
    }
    const int32_t depth = p->frames[parent].depth + 1;
    if (depth > p->limits->stack_depth) return -1;
    if (room(p, (void **)&p->frames, &p->cap_frames, (int64_t)p->num_frames + 1,
             sizeof *p->frames) != 0) {
        return -1;
    }
    const bool over_unknown = p->frames[parent].over_unknown;
    p->frames[p->num_frames] =
        (msgl_frame){node, count, parent, over_unknown, depth, MSGL_STATE_NEW};
    if (over_unknown && depth > p->unknown_depth) p->unknown_depth = depth;
    p->frame_set.slot[k] = ++p->num_frames;
    p->frame_set.n++;
    return p->num_frames - 1;
}

// Adds a configuration to the closure, once.
static void add(msgl_pda *p, int32_t node, int32_t count, int32_t frame, bool entered)
{
    if (node >= 0 && !msgl__nfa_alive(p->a, node, count)) return;
    if (p->rc != 0 || set_room(p, &p->seen, work_hash) != 0) return;
    const msgl_config c = {node, count, frame};
    uint32_t k = (uint32_t)config_hash(&c, entered) & p->seen.mask;
    for (; p->seen.slot[k] != 0; k = (k + 1) & p->seen.mask) {
        const int32_t i = p->seen.slot[k] - 1;
        const msgl_config *w = &p->work[i];
        if (w->node == node && w->count == count && w->frame == frame && p->entered[i] == entered) {
            return;
        }
    }
    const int64_t need = (int64_t)p->num_work + 1;
    if (need > 4 * (int64_t)p->a->width) {
        p->pruned = true;
        return;
    }
    if (room(p, (void **)&p->work, &p->cap_work, need, sizeof *p->work) != 0 ||
        room(p, (void **)&p->entered, &p->cap_entered, need, 1) != 0) {
        return;
    }
    p->work[p->num_work] = c;
    p->entered[p->num_work] = entered;
    p->seen.slot[k] = ++p->num_work;
    p->seen.n++;
}

static void clear_work(msgl_pda *p)
{
    // Only the slots in use: a set that was large once must not cost every step.
    for (int32_t i = 0; i < p->num_work; i++) {
        uint32_t k = (uint32_t)work_hash(p, i) & p->seen.mask;
        while (p->seen.slot[k] != 0) {
            p->seen.slot[k] = 0;
            k = (k + 1) & p->seen.mask;
        }
    }
    p->seen.n = 0;
    p->num_work = 0;
}

static void leave_frame(msgl_pda *p, int32_t frame, bool entered)
{
    if (frame == MSGL_FRAME_UNKNOWN) {
        add(p, MSGL_NODE_OUT, 0, frame, false);
    } else if (frame == MSGL_FRAME_ROOT) {
        add(p, MSGL_NODE_DONE, 0, frame, false);
    } else {
        const msgl_frame f = p->frames[frame];
        add(p, f.node, f.count, f.parent, entered);
    }
}

static void follow(msgl_pda *p, msgl_config c, bool entered, const msgl_nfa_eps *e)
{
    const msgl_nfa_region *r = e->kind >= MSGL_EPS_ENTER ? &p->a->regions[e->arg] : NULL;
    switch (e->kind) {
    case MSGL_EPS_GO: add(p, e->to, c.count, c.frame, entered); break;
    case MSGL_EPS_TAIL: add(p, p->a->starts[e->arg], 0, c.frame, entered); break;
    case MSGL_EPS_CALL: {
        const int32_t f = push_frame(p, e->to, c.count, c.frame);
        if (f >= 0) add(p, p->a->starts[e->arg], 0, f, entered);
        break;
    }
    case MSGL_EPS_END: leave_frame(p, c.frame, entered); break;
    case MSGL_EPS_ENTER:
        if (r->max == MSGL_GX_INF || c.count < r->max) add(p, e->to, c.count, c.frame, true);
        break;
    case MSGL_EPS_TICK:
        // A round without a byte adds nothing: what may be empty has no least number of rounds.
        if (entered || (r->max != MSGL_GX_INF && c.count >= r->max)) break;
        add(p, e->to, r->max == MSGL_GX_INF && c.count >= r->min ? r->min : c.count + 1, c.frame,
            false);
        break;
    default: // MSGL_EPS_EXIT
        if (c.count >= r->min) add(p, e->to, 0, c.frame, entered);
    }
}

static int config_order(const void *a, const void *b)
{
    const msgl_config *p = a, *q = b;
    if (p->frame != q->frame) return p->frame < q->frame ? -1 : 1;
    if (p->node != q->node) return p->node < q->node ? -1 : 1;
    return (p->count > q->count) - (p->count < q->count);
}

// Closes work[] and keeps of it what waits for a byte or is an end, sorted, each once.
static int32_t close_work(msgl_pda *p)
{
    for (int32_t i = 0; i < p->num_work && p->rc == 0; i++) {
        const msgl_config c = p->work[i];
        const bool entered = p->entered[i];
        if (c.node < 0) continue;
        const msgl_nfa_node *x = &p->a->nodes[c.node];
        for (int32_t k = 0; k < x->num_eps; k++) follow(p, c, entered, &p->a->eps[x->eps + k]);
    }
    const int32_t total = p->num_work;
    p->effort -= total + 1;
    if (p->rc == 0 && p->effort < 0) p->rc = MSGL_ELIMIT;
    if (p->rc != 0 || room(p, (void **)&p->configs, &p->cap_configs,
                           (int64_t)p->num_configs + total, sizeof *p->configs) != 0) {
        clear_work(p);
        return -1;
    }
    msgl_config *out = p->configs + p->num_configs;
    int32_t n = 0;
    for (int32_t i = 0; i < total; i++) {
        const int32_t node = p->work[i].node;
        if (node < 0 || p->a->nodes[node].num_edges > 0) out[n++] = p->work[i];
    }
    clear_work(p);
    if (n > 1) qsort(out, (size_t)n, sizeof *out, config_order);
    int32_t kept = n > 0;
    for (int32_t i = 1; i < n; i++) {
        if (config_order(&out[i], &out[kept - 1]) != 0) out[kept++] = out[i];
    }
    // Each of them leads to an end, so those that are left are texts of the grammar, too.
    if (kept > p->a->width) {
        p->pruned = true;
        kept = p->a->width;
    }
    return kept;
}

// The state of the n configurations behind the last state's.
static int32_t intern(msgl_pda *p, int32_t n)
{
    const msgl_config *c = p->configs + p->num_configs;
    uint64_t h = 3;
    for (int32_t i = 0; i < n; i++) h = mix(h, config_hash(&c[i], false));
    if (set_room(p, &p->state_set, state_hash) != 0) return MSGL_STATE_DEAD;
    uint32_t k = (uint32_t)h & p->state_set.mask;
    for (; p->state_set.slot[k] != 0; k = (k + 1) & p->state_set.mask) {
        const msgl_pda_state *s = &p->states[p->state_set.slot[k] - 1];
        if (s->hash == h && s->n == n &&
            (n == 0 || memcmp(p->configs + s->at, c, (size_t)n * sizeof *c) == 0)) {
            return p->state_set.slot[k] - 1;
        }
    }
    const int32_t id = p->num_states;
    const int64_t classes = p->a->num_classes;
    // A walk through the vocabulary may need more states than are kept in the long run.
    const size_t bytes = (size_t)(id * (classes + 8)) * 4 + (size_t)p->num_configs * sizeof *c;
    if (bytes > 4 * p->limits->matcher_bytes) {
        p->rc = MSGL_ELIMIT;
        return MSGL_STATE_DEAD;
    }
    if (room(p, (void **)&p->states, &p->cap_states, (int64_t)id + 1, sizeof *p->states) != 0 ||
        room(p, (void **)&p->rows, &p->cap_rows, (id + 1) * classes, sizeof *p->rows) != 0) {
        return MSGL_STATE_DEAD;
    }
    p->states[id] = (msgl_pda_state){p->num_configs, n, h};
    for (int64_t i = 0; i < classes; i++) {
        p->rows[id * classes + i] = n == 0 ? MSGL_STATE_DEAD : MSGL_STATE_NEW;
    }
    p->num_configs += n;
    p->num_states++;
    p->state_set.slot[k] = id + 1;
    p->state_set.n++;
    return id;
}

static int32_t finish(msgl_pda *p)
{
    const int32_t n = close_work(p);
    return n < 0 ? MSGL_STATE_DEAD : intern(p, n);
}

int32_t msgl__pda_state(msgl_pda *p, const msgl_config *c, int32_t n)
{
    for (int32_t i = 0; i < n; i++) add(p, c[i].node, c[i].count, c[i].frame, false);
    return finish(p);
}

int32_t msgl__pda_start(msgl_pda *p)
{
    const msgl_config c = {p->a->starts[0], 0, MSGL_FRAME_ROOT};
    return msgl__pda_state(p, &c, 1);
}

int32_t msgl__pda_step_new(msgl_pda *p, int32_t state, uint8_t class)
{
    if (p->rc != 0) return MSGL_STATE_DEAD;
    const uint8_t byte = p->a->byte_of[class];
    const msgl_pda_state s = p->states[state];
    for (int32_t i = 0; i < s.n; i++) {
        const msgl_config c = p->configs[s.at + i];
        if (c.node < 0) continue;
        const msgl_nfa_node *x = &p->a->nodes[c.node];
        for (int32_t k = 0; k < x->num_edges; k++) {
            const msgl_nfa_edge e = p->a->edges[x->edges + k];
            if (!msgl__byte_set_has(&p->a->sets[e.set], byte)) continue;
            add(p, e.to, c.count, c.frame, false);
        }
    }
    const int32_t to = finish(p);
    if (p->rc == 0) p->rows[(int64_t)state * p->a->num_classes + class] = to;
    return to;
}

int32_t msgl__pda_pop(msgl_pda *p, int32_t frame)
{
    if (p->frames[frame].popped == MSGL_STATE_NEW) {
        leave_frame(p, frame, false);
        const int32_t s = finish(p);
        if (p->rc != 0) return MSGL_STATE_DEAD;
        p->frames[frame].popped = s;
    }
    return p->frames[frame].popped;
}

int32_t msgl__pda_plain(const msgl_pda *p, int32_t state)
{
    const msgl_pda_state *s = &p->states[state];
    int32_t most = 0;
    for (int32_t i = 0; i < s->n; i++) {
        const msgl_config c = p->configs[s->at + i];
        if (c.node < 0) continue;
        const msgl_nfa_node *x = &p->a->nodes[c.node];
        if (x->plain == MSGL_PLAIN_ANY) return INT32_MAX;
        if (x->plain != MSGL_PLAIN_COUNTED) continue;
        const int32_t left = p->a->regions[x->region].max - c.count;
        if (left > most) most = left;
    }
    return most;
}

int msgl__pda_init(msgl_pda *p, const msgl_nfa *a, const msgl_grammar_limits *l)
{
    *p = (msgl_pda){.a = a, .limits = l, .effort = MSGL_PDA_EFFORT};
    if (room(p, (void **)&p->frames, &p->cap_frames, 2, sizeof *p->frames) != 0) return p->rc;
    for (int i = 0; i < 2; i++) {
        p->frames[i] = (msgl_frame){0, 0, -1, i == MSGL_FRAME_UNKNOWN, 0, MSGL_STATE_NEW};
    }
    p->num_frames = 2;
    if (close_work(p) == 0) intern(p, 0); // the dead state is number 0
    return p->rc;
}

void msgl__pda_free(msgl_pda *p)
{
    msgl__free(p->frames);
    msgl__free(p->states);
    msgl__free(p->configs);
    msgl__free(p->rows);
    msgl__free(p->frame_set.slot);
    msgl__free(p->state_set.slot);
    msgl__free(p->seen.slot);
    msgl__free(p->work);
    msgl__free(p->entered);
    *p = (msgl_pda){0};
}

static size_t set_bytes(const msgl_hash_set *s)
{
    return s->slot == NULL ? 0 : ((size_t)s->mask + 1) * sizeof *s->slot;
}

size_t msgl__pda_bytes(const msgl_pda *p)
{
    return (size_t)p->cap_frames * sizeof *p->frames + (size_t)p->cap_states * sizeof *p->states +
           (size_t)p->cap_configs * sizeof *p->configs + (size_t)p->cap_rows * sizeof *p->rows +
           (size_t)p->cap_work * sizeof *p->work + (size_t)p->cap_entered +
           set_bytes(&p->frame_set) + set_bytes(&p->state_set) + set_bytes(&p->seen);
}

// The frame of `from` in `to`, where its parents are already, since they are older.
static int copy_frames(msgl_pda *to, const msgl_pda *from, const uint8_t *used, int32_t *map)
{
    for (int32_t i = 2; i < from->num_frames; i++) {
        if (!used[i]) continue;
        const msgl_frame *f = &from->frames[i];
        map[i] = push_frame(to, f->node, f->count, map[f->parent]);
        if (map[i] < 0) return MSGL_ENOMEM;
    }
    return 0;
}

static int copy_roots(msgl_pda *to, const msgl_pda *from, int32_t *roots, int32_t n, uint8_t *used,
                      int32_t *map)
{
    for (int32_t r = 0; r < n; r++) {
        const msgl_pda_state *s = &from->states[roots[r]];
        for (int32_t i = 0; i < s->n; i++) {
            for (int32_t f = from->configs[s->at + i].frame; f > MSGL_FRAME_ROOT && !used[f];
                 f = from->frames[f].parent) {
                used[f] = 1;
            }
        }
    }
    map[0] = 0;
    map[1] = 1;
    int rc = copy_frames(to, from, used, map);
    for (int32_t r = 0; r < n && rc == 0; r++) {
        const msgl_pda_state *s = &from->states[roots[r]];
        for (int32_t i = 0; i < s->n; i++) {
            const msgl_config c = from->configs[s->at + i];
            add(to, c.node, c.count, map[c.frame], false);
        }
        const int32_t id = finish(to);
        rc = to->rc;
        if (rc == 0) roots[r] = id;
    }
    return rc;
}

int msgl__pda_compact(msgl_pda *p, int32_t *roots, int32_t n)
{
    msgl_pda fresh;
    int rc = msgl__pda_init(&fresh, p->a, p->limits);
    uint8_t *used = msgl__calloc((size_t)p->num_frames, 1);
    int32_t *map = msgl__reallocarray(NULL, (size_t)p->num_frames, sizeof *map);
    int32_t *moved = msgl__reallocarray(NULL, (size_t)n, sizeof *moved);
    if (used == NULL || map == NULL || moved == NULL) rc = MSGL_ENOMEM;
    if (rc == 0) {
        memcpy(moved, roots, (size_t)n * sizeof *moved);
        rc = copy_roots(&fresh, p, moved, n, used, map);
    }
    if (rc == 0) {
        memcpy(roots, moved, (size_t)n * sizeof *moved);
        fresh.pruned = p->pruned;
        msgl__pda_free(p);
        *p = fresh;
    } else {
        msgl__pda_free(&fresh);
    }
    msgl__free(used);
    msgl__free(map);
    msgl__free(moved);
    return rc;
}
