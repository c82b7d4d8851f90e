// SPDX-License-Identifier: Apache-2.0
//
// Values of a render: Python's types as far as templates can see them. All of them are immutable
// (the sandbox forbids mutation) except namespaces, loops, cyclers, joiners and the read position
// of a generator. Strings are UTF-8 and carry, per byte, whether they came from the client.
#ifndef MSGL_TEMPLATE_JINJA_VALUE_H
#define MSGL_TEMPLATE_JINJA_VALUE_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "core/attributes.h"
#include "core/err.h"
#include "template/jinja_mem.h"

// Passes any non-zero status on. Values live in an arena, so there is nothing to undo.
#define MSGL_JTRY(call)                                                                            \
    do {                                                                                           \
        const int try_rc_ = (call);                                                                \
        if (try_rc_ != 0) return try_rc_;                                                          \
    } while (0)

typedef enum msgl_jtype {
    MSGL_J_UNSET = 0, // no value at all: an argument that was not given
    MSGL_J_UNDEF,
    MSGL_J_NONE,
    MSGL_J_BOOL,
    MSGL_J_INT,
    MSGL_J_FLOAT,
    MSGL_J_BIG, // an int beyond 64 bits, as its digits: it is printed and compared, not computed
                // with
    MSGL_J_STR,
    MSGL_J_LIST,
    MSGL_J_TUPLE,
    MSGL_J_DICT,
    MSGL_J_RANGE,
    MSGL_J_VIEW, // dict.keys(), .values(), .items()
    MSGL_J_GEN,  // one-shot iterator (map, select, batch ...), already evaluated
    MSGL_J_NAMESPACE,
    MSGL_J_MACRO,
    MSGL_J_LOOP,
    MSGL_J_FUNC,   // global function
    MSGL_J_METHOD, // method bound to a value
    MSGL_J_CYCLER,
    MSGL_J_JOINER,
} msgl_jtype;

typedef struct msgl_jval {
    msgl_jtype type;
    union {
        bool b;
        int64_t i;
        double f;
        struct msgl_jstr *s;  // STR and BIG
        struct msgl_jlist *l; // LIST and TUPLE
        struct msgl_jdict *d; // DICT and NAMESPACE
        struct msgl_jundef *u;
        struct msgl_jrange *r;
        struct msgl_jview *v;
        struct msgl_jgen *g;
        struct msgl_jmacro *m;
        struct msgl_jloop *loop;
        const struct msgl_jbuiltin *fn;
        struct msgl_jmethod *method;
        struct msgl_jcycler *cycler;
        struct msgl_jjoiner *joiner;
    } as;
} msgl_jval;

// Where bytes come from; what was made of several has the bits of all of them.
typedef uint8_t msgl_jfrom;
enum {
    MSGL_JFROM_TEMPLATE = 0,
    MSGL_JFROM_ANSWER = 1, // an assistant's message, which the model may have written
    MSGL_JFROM_OTHERS = 3, // anything else that the client has sent
};

typedef struct msgl_jstr {
    const char *data;    // not NUL-terminated
    const uint8_t *mask; // a msgl_jfrom for each byte; NULL: all bytes as `untrusted` says
    size_t len;
    size_t chars;            // code points; SIZE_MAX: not counted yet
    struct msgl_jbuf *store; // the buffer that the bytes lie in, when more can be appended there
    msgl_jfrom untrusted;
    bool markup; // went through `safe` or `escape`: `+` escapes what is joined to it
} msgl_jstr;

typedef struct msgl_jlist {
    msgl_jval *items;
    size_t len;
    msgl_jfrom
        untrusted; // came from the client: punctuation of its printed form counts as the client's
} msgl_jlist;

typedef struct msgl_jdict {
    msgl_jval *keys, *vals; // insertion order
    size_t len, cap;
    uint32_t *index; // open addressing, entry + 1; NULL while the dict is small
    size_t index_cap;
    uint64_t seed;
    msgl_jfrom untrusted;
} msgl_jdict;

typedef struct msgl_jundef {
    const char *hint;     // whole message, or NULL: made of the two below
    msgl_jval name;       // the name or subscript that was missing
    const char *obj_type; // type it was missing on; NULL: a variable
} msgl_jundef;

typedef struct msgl_jrange {
    int64_t start, stop, step;
    size_t len;
} msgl_jrange;

typedef enum msgl_jview_kind {
    MSGL_JVIEW_KEYS,
    MSGL_JVIEW_VALUES,
    MSGL_JVIEW_ITEMS
} msgl_jview_kind;
typedef struct msgl_jview {
    msgl_jview_kind kind;
    msgl_jdict *dict;
} msgl_jview;

typedef struct msgl_jgen {
    msgl_jval *items;
    size_t len, pos;
} msgl_jgen;

typedef struct msgl_jcycler {
    msgl_jlist items;
    size_t pos;
} msgl_jcycler;

typedef struct msgl_jjoiner {
    msgl_jval sep;
    bool used;
} msgl_jjoiner;

typedef struct msgl_jmethod {
    const struct msgl_jbuiltin *fn;
    msgl_jval self;
} msgl_jmethod;

typedef struct msgl_jmacro {
    const struct msgl_jnode *node;
    struct msgl_jscope *closure;
} msgl_jmacro;

// Position in anything that can be iterated.
typedef struct msgl_jiter {
    msgl_jval src;
    size_t at; // index, or byte offset in a string
} msgl_jiter;

typedef struct msgl_jloop {
    msgl_jiter iter;
    size_t index0, len;
    msgl_jval prev, cur, next;        // next: UNSET when this is the last
    msgl_jval changed;                // tuple last given to loop.changed(); UNSET before
    const struct msgl_jnode *recurse; // the for node of a recursive loop, else NULL
    struct msgl_jscope *outer;
    int depth0;
} msgl_jloop;

// Names of one block; looked up from the innermost scope outwards, by interned symbol.
typedef struct msgl_jscope {
    struct msgl_jscope *parent;
    const msgl_jstr **names;
    msgl_jval *vals;
    size_t len, cap;
} msgl_jscope;

typedef struct msgl_jclock {
    struct tm tm; // local time
    long usec;
} msgl_jclock;

// Evaluated arguments of a call.
typedef struct msgl_jcall {
    msgl_jval *pos;
    size_t npos;
    const msgl_jstr **kw_names;
    msgl_jval *kw;
    size_t nkw;
} msgl_jcall;

// State of one render.
typedef struct msgl_jctx {
    msgl_jarena arena;
    const struct msgl_chat_template *tmpl;
    msgl_jdict *vars;      // the client's variables
    msgl_jdict *trusted;   // the model folder's variables (special tokens); looked up after vars
    struct msgl_jbuf *out; // where output statements write
    const msgl_jclock *clock;
    size_t steps, max_steps;
    const atomic_bool *cancelled; // may be NULL
    size_t max_string;
    int depth, max_depth;
    bool load_arguments; // of msgl_render_limits
    int line;
    msgl_err *err;
} msgl_jctx;

// --- state and errors (jinja_value.c) ---
void *msgl__jctx_alloc(msgl_jctx *c, size_t size); // NULL: call msgl__jctx_nomem for the status
int msgl__jctx_nomem(msgl_jctx *c, size_t size);
// EINVAL with the template line before the text.
int msgl__jctx_fail(msgl_jctx *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int msgl__jctx_limit(msgl_jctx *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// Takes `n` steps; MSGL_ELIMIT when the budget is spent, MSGL_EABORTED when cancelled.
int msgl__jctx_steps(msgl_jctx *c, size_t n);
// Work that does not show in evaluated nodes, in steps of about 50 ns: over bytes or elements that
// are copied or searched many at once; and by a loop that looks at them one by one.
int msgl__jctx_work(msgl_jctx *c, size_t bytes);
int msgl__jctx_chars(msgl_jctx *c, size_t n);
int msgl__jctx_search(msgl_jctx *c, size_t bytes, size_t needle); // for so many bytes
int msgl__jctx_number(msgl_jctx *c, const msgl_jval *v);          // a number becomes text
int msgl__jctx_enter(msgl_jctx *c); // one level deeper; every success is paired with depth--

static inline msgl_jval msgl__jnone(void)
{
    return (msgl_jval){.type = MSGL_J_NONE};
}
static inline msgl_jval msgl__jbool(bool b)
{
    return (msgl_jval){.type = MSGL_J_BOOL, .as.b = b};
}
static inline msgl_jval msgl__jint(int64_t i)
{
    return (msgl_jval){.type = MSGL_J_INT, .as.i = i};
}
static inline msgl_jval msgl__jfloat(double f)
{
    return (msgl_jval){.type = MSGL_J_FLOAT, .as.f = f};
}
static inline msgl_jval msgl__jstrval(msgl_jstr *s)
{
    return (msgl_jval){.type = MSGL_J_STR, .as.s = s};
}
int msgl__jundef_new(msgl_jctx *c, const char *hint, msgl_jval name, const char *obj_type,
                     msgl_jval *out);
// Fails with the message that the undefined value carries.
int msgl__jundef_fail(msgl_jctx *c, const msgl_jundef *u);

const char *msgl__jtype_name(const msgl_jval *v);     // Python's type name: "str", "NoneType" ...
const char *msgl__jobject_name(const msgl_jval *v);   // as jinja prints it: "str object", "None"
bool msgl__jis_number(const msgl_jval *v);            // BOOL, INT, FLOAT
bool msgl__jas_int(const msgl_jval *v, int64_t *out); // BOOL and INT
double msgl__jas_double(const msgl_jval *v);
bool msgl__jtruth(const msgl_jval *v);
int msgl__jequal(msgl_jctx *c, const msgl_jval *a, const msgl_jval *b, bool *out);
bool msgl__jsame(const msgl_jval *a, const msgl_jval *b); // `is` of Python
// -1, 0, 1; fails for types without an order. `op` only for the message.
int msgl__jcompare(msgl_jctx *c, const msgl_jval *a, const msgl_jval *b, const char *op, int *out);
int msgl__jcontains(msgl_jctx *c, const msgl_jval *item, const msgl_jval *in, bool *out);
// Element count of what has a len(); fails otherwise.
int msgl__jlength(msgl_jctx *c, const msgl_jval *v, size_t *out);
bool msgl__jhas_length(const msgl_jval *v);

// --- containers (jinja_container.c) ---
int msgl__jlist_new(msgl_jctx *c, size_t len, msgl_jlist **out);         // items not set
int msgl__jpair(msgl_jctx *c, msgl_jval a, msgl_jval b, msgl_jval *out); // a tuple
int msgl__jgen_new(msgl_jctx *c, msgl_jval *items, size_t len, msgl_jval *out);
int msgl__jdict_new(msgl_jctx *c, size_t cap, msgl_jdict **out);
int msgl__jdict_set(msgl_jctx *c, msgl_jdict *d, msgl_jval key, msgl_jval val);
// *out points to the value or is NULL, as for a key that is not *hashable. get: such a key fails.
int msgl__jdict_find(msgl_jctx *c, const msgl_jdict *d, const msgl_jval *key, bool *hashable,
                     msgl_jval **out);
int msgl__jdict_get(msgl_jctx *c, const msgl_jdict *d, const msgl_jval *key, msgl_jval **out);
msgl_jval *msgl__jdict_gets(const msgl_jdict *d, const char *key, size_t len);
bool msgl__jiterable(const msgl_jval *v);
int msgl__jiter_init(msgl_jctx *c, const msgl_jval *v, msgl_jiter *it); // fails if not iterable
int msgl__jiter_next(msgl_jctx *c, msgl_jiter *it, msgl_jval *out);     // UNSET at the end
// All that is left of an iterable, as an array (shared with a list's or a tuple's own items).
int msgl__jto_array(msgl_jctx *c, const msgl_jval *v, msgl_jval **items, size_t *len);
// dict(*args, **kwargs)
int msgl__jdict_from(msgl_jctx *c, const msgl_jcall *call, msgl_jdict **out);

// --- text of values (jinja_repr.c, jinja_json.c) ---
int msgl__jto_str(msgl_jctx *c, const msgl_jval *v, msgl_jstr **out); // Python's str()
int msgl__jbuf_add_str_of(struct msgl_jbuf *b, const msgl_jval *v);   // the same, appended
int msgl__jbuf_add_repr(struct msgl_jbuf *b, const msgl_jval *v);     // Python's repr()
enum { MSGL_JFLOAT_MAX = 40 };
size_t msgl__jfloat_repr(double f, char buf[MSGL_JFLOAT_MAX]); // shortest text that reads back
int msgl__jfrom_json(msgl_jctx *c, json_t *j, msgl_jfrom untrusted, msgl_jval *out);
int msgl__jtojson(msgl_jctx *c, const msgl_jval *v, const msgl_jval *arg, msgl_jval *out);
int msgl__jloads(msgl_jctx *c, const msgl_jstr *s, msgl_jval *out); // Python's json.loads

#endif
