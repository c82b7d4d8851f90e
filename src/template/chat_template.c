// SPDX-License-Identifier: Apache-2.0
//
// The public face of the interpreter: parse once, render many times.
#include "template/chat_template.h"

#include <string.h>

#include "core/mem.h"
#include "template/jinja_eval.h"
#include "template/jinja_parse.h"
#include "template/jinja_render.h"

enum {
    MAX_SOURCE = 4 << 20,
    TREE_MEMORY = 256 << 20,
    // A render keeps every intermediate string until its end.
    MEMORY_PER_OUTPUT = 8,
    BASE_MEMORY = 64 << 20,
    // Of a request's template, besides what each byte of the request adds. A step is some 50 ns; a
    // usual template takes 20 to 70 a message, and one for four bytes that it looks at.
    REQUEST_STEPS = 512 << 10,
    REQUEST_OUTPUT = 1 << 20,
    REQUEST_MEMORY = 16 << 20,
    REQUEST_DEPTH = 200,
    // Of a byte: an empty list or object is two, and a value of some 100 bytes.
    OUTPUT_PER_BYTE = 4,
    MEMORY_PER_BYTE = 64,
};

// Messages may quote template or client text: one line of valid UTF-8 leaves.
static int clean(msgl_err *err, int rc)
{
    if (rc == 0 || err == NULL) return rc;
    const size_t len = strlen(err->text);
    for (size_t at; (at = msgl__utf8_valid(err->text, len)) < len;) err->text[at] = '?';
    for (char *p = err->text; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20) *p = ' ';
    }
    return rc;
}

int msgl__chat_template_parse(const char *source, size_t len, msgl_chat_template **out,
                              msgl_err *err)
{
    *out = NULL;
    if (len > MAX_SOURCE) {
        return msgl__err_set(err, MSGL_ELIMIT, "chat template of %zu bytes; at most %d", len,
                             (int)MAX_SOURCE);
    }
    msgl_chat_template *t = msgl__calloc(1, sizeof *t);
    if (t == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory for the chat template");
    msgl__jarena_init(&t->arena, TREE_MEMORY);
    const int rc = msgl__jparse(t, source, len, err);
    if (rc != 0) {
        msgl__chat_template_free(t);
        return clean(err, rc);
    }
    *out = t;
    return 0;
}

void msgl__chat_template_free(msgl_chat_template *t)
{
    if (t == NULL) return;
    msgl__jarena_free(&t->arena);
    msgl__free(t);
}

void msgl__rendered_free(msgl_rendered *r)
{
    msgl__strbuf_free(&r->text);
    msgl__free(r->untrusted);
    msgl__free(r->foreign);
    *r = (msgl_rendered){0};
}

void msgl__jclock_now(msgl_jclock *clock)
{
    struct timespec now = {0};
    *clock = (msgl_jclock){0};
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &clock->tm);
    clock->usec = now.tv_nsec / 1000;
}

static bool has_bit(const msgl_jbuf *b, size_t i, msgl_jfrom bit)
{
    return ((b->mask != NULL ? b->mask[i] : b->untrusted) & bit) != 0;
}

// The runs of bytes with this bit, in new memory. MSGL_ENOMEM.
static int give_spans(const msgl_jbuf *b, msgl_jfrom bit, msgl_text_span **out, size_t *count)
{
    size_t n = 0;
    for (size_t i = 0; i < b->len; i++)
        n += has_bit(b, i, bit) && !(i > 0 && has_bit(b, i - 1, bit));
    if (n == 0) return 0;
    *out = msgl__reallocarray(NULL, n, sizeof **out);
    if (*out == NULL) return MSGL_ENOMEM;
    for (size_t i = 0; i < b->len; i++) {
        if (!has_bit(b, i, bit)) continue;
        if (i == 0 || !has_bit(b, i - 1, bit)) (*out)[(*count)++].start = i;
        (*out)[*count - 1].end = i + 1;
    }
    return 0;
}

// Text and spans of the output buffer.
static int give_result(const msgl_jctx *c, size_t max, msgl_rendered *out)
{
    const msgl_jbuf *b = c->out;
    msgl_rendered r = {0};
    msgl__strbuf_init(&r.text, max + 1);
    int rc = msgl__strbuf_add(&r.text, b->len > 0 ? b->data : "", b->len);
    if (rc == 0) rc = give_spans(b, MSGL_JFROM_ANSWER, &r.untrusted, &r.num_untrusted);
    if (rc == 0) {
        rc = give_spans(b, MSGL_JFROM_OTHERS & ~MSGL_JFROM_ANSWER, &r.foreign, &r.num_foreign);
    }
    if (rc != 0) {
        msgl__rendered_free(&r);
        return msgl__err_set(c->err, rc, "no memory for the rendered chat template");
    }
    *out = r;
    return 0;
}

static int read_vars(msgl_jctx *c, json_t *vars, msgl_jfrom untrusted, msgl_jdict **out)
{
    msgl_jval v;
    *out = NULL;
    if (vars == NULL) return 0;
    if (!json_is_object(vars)) {
        return msgl__err_set(c->err, MSGL_EINVAL,
                             "the variables of a chat template must be a JSON object");
    }
    MSGL_JTRY(msgl__jfrom_json(c, vars, untrusted, &v));
    *out = v.as.d;
    return 0;
}

// Assistants' messages again, as what they are: the model's own words, in what the client says.
static int read_answers(msgl_jctx *c, json_t *vars)
{
    json_t *messages = json_object_get(vars, "messages");
    if (c->vars == NULL || !json_is_array(messages)) return 0;
    msgl_jlist *l = msgl__jdict_gets(c->vars, "messages", 8)->as.l;
    for (size_t i = 0; i < l->len; i++) {
        json_t *m = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        if (role == NULL || strcmp(role, "assistant") != 0) continue;
        MSGL_JTRY(msgl__jfrom_json(c, m, MSGL_JFROM_ANSWER, &l->items[i]));
    }
    return 0;
}

static const msgl_jval *known(const msgl_jdict *d, const char *key)
{
    const msgl_jval *v = msgl__jdict_gets(d, key, strlen(key));
    return v != NULL && v->type != MSGL_J_NONE ? v : NULL;
}

static int set_key(msgl_jctx *c, msgl_jdict *d, const char *key, msgl_jval v)
{
    msgl_jstr *k;
    MSGL_JTRY(msgl__jstr_ref(c, key, strlen(key), true, &k));
    return msgl__jdict_set(c, d, msgl__jstrval(k), v);
}

// OpenAI's newer clients send `developer` instead of `system`. A template that never compares with
// the word cannot mean it: Qwen3's skips such a message without a sign, ChatML's writes a role that
// the model has never seen. For these it is what it replaces, the system message. (transformers
// leaves it as it is.)
static bool is_foreign_developer(const msgl_jctx *c, const msgl_jdict *message)
{
    const msgl_jval *role = c->tmpl->knows_developer ? NULL : known(message, "role");
    return role != NULL && role->type == MSGL_J_STR && msgl__jstr_is(role->as.s, "developer");
}

// Clients name a message's reasoning in three ways. As transformers does, the template finds it as
// reasoning_content and, unless the message has its own, as thinking.
static int canonical_message(msgl_jctx *c, msgl_jval *message)
{
    if (message->type != MSGL_J_DICT) return 0;
    const msgl_jdict *old = message->as.d;
    const msgl_jval *r = known(old, "reasoning_content");
    if (r == NULL) r = known(old, "thinking");
    if (r == NULL) r = known(old, "reasoning");
    const bool developer = is_foreign_developer(c, old);
    if (r == NULL && !developer) return 0;
    msgl_jdict *d;
    MSGL_JTRY(msgl__jdict_new(c, old->len + 2, &d));
    d->untrusted = old->untrusted;
    if (r != NULL) MSGL_JTRY(set_key(c, d, "thinking", *r));
    for (size_t i = 0; i < old->len; i++) {
        MSGL_JTRY(msgl__jdict_set(c, d, old->keys[i], old->vals[i]));
    }
    if (r != NULL) MSGL_JTRY(set_key(c, d, "reasoning_content", *r));
    if (developer) {
        msgl_jstr *system;
        MSGL_JTRY(msgl__jstr_ref(c, "system", 6, false, &system));
        MSGL_JTRY(set_key(c, d, "role", msgl__jstrval(system)));
    }
    message->as.d = d;
    return 0;
}

// The arguments of one call, if they are a text that is a JSON object: the object. A text that is
// no JSON stays one, as models do write such.
static int load_arguments(msgl_jctx *c, const msgl_jval *call)
{
    const msgl_jval *function = call->type == MSGL_J_DICT ? known(call->as.d, "function") : NULL;
    if (function == NULL || function->type != MSGL_J_DICT) return 0;
    msgl_jval *arguments = msgl__jdict_gets(function->as.d, "arguments", 9), v;
    if (arguments == NULL || arguments->type != MSGL_J_STR) return 0;
    const int depth = c->depth, rc = msgl__jloads(c, arguments->as.s, &v);
    c->depth = depth;
    if (rc == 0 && v.type == MSGL_J_DICT) *arguments = v;
    return rc == MSGL_EINVAL ? 0 : rc;
}

static int load_calls(msgl_jctx *c, const msgl_jval *message)
{
    const msgl_jval *calls =
        message->type == MSGL_J_DICT ? known(message->as.d, "tool_calls") : NULL;
    if (!c->load_arguments || calls == NULL || calls->type != MSGL_J_LIST) return 0;
    for (size_t i = 0; i < calls->as.l->len; i++) {
        MSGL_JTRY(load_arguments(c, &calls->as.l->items[i]));
    }
    return 0;
}

static int canonical_messages(msgl_jctx *c)
{
    const msgl_jval *m = msgl__jdict_gets(c->vars, "messages", 8);
    if (m == NULL || m->type != MSGL_J_LIST) return 0;
    for (size_t i = 0; i < m->as.l->len; i++) {
        MSGL_JTRY(canonical_message(c, &m->as.l->items[i]));
        MSGL_JTRY(load_calls(c, &m->as.l->items[i]));
    }
    return 0;
}

// base + per_byte * bytes, up to `most`.
static size_t grown(size_t base, size_t per_byte, size_t bytes, size_t most)
{
    return bytes < (most - base) / per_byte ? base + per_byte * bytes : most;
}

msgl_render_limits msgl__render_limits_of_request(size_t bytes)
{
    const size_t most = (size_t)MEMORY_PER_OUTPUT * MSGL_JDEFAULT_OUTPUT + BASE_MEMORY;
    return (msgl_render_limits){
        .max_steps = grown(REQUEST_STEPS, 1, bytes, MSGL_JDEFAULT_STEPS),
        .max_output = grown(REQUEST_OUTPUT, OUTPUT_PER_BYTE, bytes, MSGL_JDEFAULT_OUTPUT),
        .max_memory = grown(REQUEST_MEMORY, MEMORY_PER_BYTE, bytes, most),
        .max_depth = REQUEST_DEPTH,
    };
}

static int render(msgl_jctx *c, json_t *vars, json_t *trusted)
{
    msgl_jscope *root;
    MSGL_JTRY(read_vars(c, vars, MSGL_JFROM_OTHERS, &c->vars));
    MSGL_JTRY(read_answers(c, vars));
    MSGL_JTRY(read_vars(c, trusted, MSGL_JFROM_TEMPLATE, &c->trusted));
    if (c->vars == NULL) MSGL_JTRY(msgl__jdict_new(c, 0, &c->vars));
    MSGL_JTRY(canonical_messages(c));
    MSGL_JTRY(msgl__jbuf_new(c, 4096, &c->out));
    MSGL_JTRY(msgl__jscope_new(c, NULL, &root));
    return msgl__jexec_body(c, root, &c->tmpl->body);
}

int msgl__chat_template_render_at(const msgl_chat_template *t, json_t *vars, json_t *trusted,
                                  const msgl_render_limits *limits, const msgl_jclock *clock,
                                  msgl_rendered *out, msgl_err *err)
{
    const msgl_render_limits none = {0}, *l = limits != NULL ? limits : &none;
    msgl_jctx c = {.tmpl = t, .clock = clock, .err = err, .line = 1};
    c.max_steps = l->max_steps ? l->max_steps : MSGL_JDEFAULT_STEPS;
    c.max_string = l->max_output ? l->max_output : MSGL_JDEFAULT_OUTPUT;
    c.max_depth = l->max_depth > 0 ? l->max_depth : MSGL_JDEFAULT_DEPTH;
    if (c.max_depth > MSGL_JMAX_DEPTH) c.max_depth = MSGL_JMAX_DEPTH;
    c.cancelled = l->cancelled;
    c.load_arguments = l->load_arguments;
    size_t memory = l->max_memory;
    if (memory == 0 && (msgl__size_mul(c.max_string, MEMORY_PER_OUTPUT, &memory) != 0 ||
                        msgl__size_add(memory, BASE_MEMORY, &memory) != 0)) {
        memory = SIZE_MAX;
    }
    msgl__jarena_init(&c.arena, memory);
    int rc = render(&c, vars, trusted);
    if (rc == 0) rc = give_result(&c, c.max_string, out);
    msgl__jarena_free(&c.arena);
    return clean(err, rc);
}

int msgl__chat_template_render(const msgl_chat_template *t, json_t *vars,
                               const msgl_render_limits *limits, msgl_rendered *out, msgl_err *err)
{
    msgl_jclock now;
    msgl__jclock_now(&now);
    return msgl__chat_template_render_at(t, vars, NULL, limits, &now, out, err);
}
