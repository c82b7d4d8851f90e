// SPDX-License-Identifier: Apache-2.0
//
// Which names a block makes its own before it has given them a value. jinja decides per block,
// once, where each name lives: a name that a block assigns without reading it first belongs to the
// block from its start on, so blocks inside it that run before the assignment find nothing there,
// not a variable of the same name further out. A name assigned in one branch of an if only, or
// known to a block around, is not affected.
#include <stdint.h>

#include "template/jinja_parse.h"

int msgl__jp_frame_open(msgl_jparser *p)
{
    msgl_jframe *f = msgl__jarena_zalloc(p->arena, sizeof *f);
    if (f == NULL) return msgl__jp_nomem(p, sizeof *f);
    f->parent = p->frame;
    f->next = p->frames;
    p->frames = f;
    p->frame = f;
    return 0;
}

void msgl__jp_frame_close(msgl_jparser *p, msgl_jbody *body)
{
    p->frame->body = body;
    p->frame = p->frame->parent;
}

static msgl_jref **bucket(msgl_jparser *p, const msgl_jframe *f, const msgl_jstr *name)
{
    const uintptr_t h = ((uintptr_t)f >> 4) * 31 + ((uintptr_t)name >> 4);
    return &p->refs[h % MSGL_JREFS_HASH];
}

static bool has_ref(msgl_jparser *p, const msgl_jframe *f, const msgl_jstr *name)
{
    for (const msgl_jref *r = *bucket(p, f, name); r != NULL; r = r->chain) {
        if (r->frame == f && r->name == name) return true;
    }
    return false;
}

// Notes the first mention of a name in the current block.
static int note(msgl_jparser *p, const msgl_jstr *name, bool store)
{
    msgl_jframe *f = p->frame;
    if (has_ref(p, f, name)) return 0;
    msgl_jref *r = msgl__jarena_alloc(p->arena, sizeof *r), **slot = bucket(p, f, name);
    if (r == NULL) return msgl__jp_nomem(p, sizeof *r);
    const bool own = store && f->branches == 0;
    *r = (msgl_jref){f, name, *slot, own ? f->stores : NULL};
    *slot = r;
    if (own) {
        f->stores = r;
        f->nstores++;
    }
    return 0;
}

int msgl__jp_note_load(msgl_jparser *p, const msgl_jstr *name)
{
    return p->in_target ? 0 : note(p, name, false);
}

int msgl__jp_note_store(msgl_jparser *p, const msgl_jstr *name)
{
    return note(p, name, true);
}

int msgl__jp_note_target(msgl_jparser *p, const msgl_jnode *target, bool param)
{
    if (target->kind == MSGL_JX_NAME) return note(p, target->sym, !param);
    if (target->kind == MSGL_JX_NSREF) return note(p, target->sym, false);
    for (size_t i = 0; i < target->nlist; i++) {
        MSGL_JTRY(msgl__jp_note_target(p, target->list[i], param));
    }
    return 0;
}

static bool known_outside(msgl_jparser *p, const msgl_jframe *f, const msgl_jstr *name)
{
    for (f = f->parent; f != NULL; f = f->parent) {
        if (has_ref(p, f, name)) return true;
    }
    return false;
}

int msgl__jp_resolve_frames(msgl_jparser *p)
{
    for (msgl_jframe *f = p->frames; f != NULL; f = f->next) {
        if (f->body == NULL || f->nstores == 0) continue;
        const msgl_jstr **own = msgl__jarena_alloc(p->arena, f->nstores * sizeof *own);
        if (own == NULL) return msgl__jp_nomem(p, f->nstores * sizeof *own);
        size_t n = 0;
        for (const msgl_jref *r = f->stores; r != NULL; r = r->next_store) {
            if (!known_outside(p, f, r->name)) own[n++] = r->name;
        }
        f->body->own = own;
        f->body->nown = n;
    }
    return 0;
}
