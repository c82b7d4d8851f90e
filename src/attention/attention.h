// SPDX-License-Identifier: Apache-2.0
//
// The attention contract. A backend is one folder that ends in one const descriptor; the set of its
// device has one line for it (registry.c has the CPU's). The descriptor says everything that
// selection, start-up checks, `minisgl info` and the conformance tests need to know; what does not
// fit a field is asked by `supports`.
#ifndef MSGL_ATTENTION_ATTENTION_H
#define MSGL_ATTENTION_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/batch.h"
#include "core/err.h"
#include "kernel/attn_mods.h"
#include "kernel/kernel.h"
#include "kvcache/kvcache.h"

#define MSGL_ATTN_MAX_SET 8
#define MSGL_ATTN_MAX_VARIANTS 8

typedef enum msgl_page_rule {
    MSGL_PAGE_ANY,       // the kernel takes the pool's page size, whatever it is
    MSGL_PAGE_FLATTENED, // the kernel works on pages of 1; larger pool pages are flattened into
                         // slots
    MSGL_PAGE_SET,       // only page_sizes[]; anything else is replaced by page_override
} msgl_page_rule;

typedef struct msgl_attn_backend msgl_attn_backend;
typedef struct msgl_attn_desc msgl_attn_desc;
typedef struct msgl_attn_set msgl_attn_set;
typedef struct msgl_attn_config msgl_attn_config;
typedef struct msgl_expand_kernels msgl_expand_kernels; // expand.h
typedef struct msgl_attn_sparse msgl_attn_sparse;       // double_sparsity/channels.h
typedef struct msgl_dual_pattern msgl_dual_pattern;     // dual_chunk/pattern.h

// Geometry of one layer's attention.
typedef struct msgl_attn_layer {
    int32_t layer;  // index in its group, so into the pool
    float scale;    // of q.k; head_dim^-0.5 unless the model says otherwise
    float softcap;  // s = cap * tanh(s / cap) before masking; 0: off
    int32_t window; // W: a query at position p sees keys in [p - W, p], W + 1 of them; -1: all
    // C: of these only the ones of its own chunk, from p / C * C on (Llama 4's local attention); 0:
    // there are no chunks.
    int32_t chunk;
    // Of encoders: keys behind p are seen, too, with a window those in [p - W, p + W]. Then a step
    // has all tokens of a request or none, and there are no chunks.
    bool bidirectional;
    // Of a pool of E4M3, else not read: it holds K / k_scale and V / v_scale. LATENT has k_scale.
    float k_scale, v_scale;
    // [num_q_heads] of this rank, in device memory: an attention sink of each head, a logit z that
    // is neither scaled nor capped and that only the softmax's denominator has: sum exp(s - m) +
    // exp(z - m). NULL: none.
    const float *sinks;
    // NULL: causal, with the window, chunks and soft cap above. Or functions that take the place of
    // all of these.
    const msgl_attn_mods *mods;
} msgl_attn_layer;

// What q.k and the result are multiplied by beside the layer's scale.
static inline float msgl__attn_k_scale(const msgl_kv_pool *pool, const msgl_attn_layer *l)
{
    return pool->spec.dtype == MSGL_E4M3 ? l->k_scale : 1;
}
static inline float msgl__attn_v_scale(const msgl_kv_pool *pool, const msgl_attn_layer *l)
{
    if (pool->spec.dtype != MSGL_E4M3) return 1;
    return pool->spec.kind == MSGL_CACHE_LATENT ? l->k_scale : l->v_scale;
}

// What layers of one model differ in, as in msgl_attn_layer.
typedef struct msgl_attn_variant {
    int32_t window;
    float softcap;
    bool sinks;                 // whether there are any
    const msgl_attn_mods *mods; // or NULL; outlives the backends
    int32_t chunk;
    bool bidirectional;
} msgl_attn_variant;

// The different variants of a model's layers, so that a backend can refuse one before it is made,
// and has room for what each needs in a step. None: one without any of these.
typedef struct msgl_attn_variants {
    int32_t count;
    msgl_attn_variant all[MSGL_ATTN_MAX_VARIANTS];
} msgl_attn_variants;

// How prompts over a latent cache are computed: like answers, or with K and V of every head
// expanded (attention/expand.h), always or where that takes fewer operations.
typedef enum msgl_prompts {
    MSGL_PROMPTS_ABSORBED,
    MSGL_PROMPTS_CHEAPER,
    MSGL_PROMPTS_EXPANDED,
} msgl_prompts;

typedef struct msgl_attn_expanded {
    msgl_prompts prompts;
    int32_t nope, v_dim; // of a head: of K without its rotary part, of V
} msgl_attn_expanded;

typedef struct msgl_attn_needs {   // what a group of layers and the machine ask of a backend
    msgl_cache_kind cache;         // what the layers keep: MSGL_CACHE_KV or MSGL_CACHE_LATENT
    const msgl_attn_set *backends; // of the device, which there are to choose from
    int32_t capability;            // as in msgl_device
    int32_t num_q_heads, num_kv_heads, head_dim, page_size;
    int32_t v_dim;            // of a head's V; 0: head_dim
    msgl_dtype act, kv_dtype; // of queries and output; of the pool
    bool deterministic;
    bool tree; // steps whose new tokens form trees (msgl_seqs)
    msgl_attn_variants variants;
    // Dual chunk attention (docs/internals/dual-chunk.md): every token has a query for keys of its
    // own chunk of so many tokens, one for those of the chunk before, and one for earlier keys. 0:
    // a token has one query.
    int32_t dual_len;
    const msgl_attn_sparse *sparse; // of backends with labels; NULL: no file says which channels
} msgl_attn_needs;

// What one layer attends with. Row 0 is the sequences' first token.
typedef struct msgl_attn_input {
    // [tokens, num_q_heads, head_dim] of exec->act, rotated; of LATENT groups absorbed: what a
    // head's query has to do with the latent vector, then its rotary part. With dual_len as many
    // elements for each of the three queries, one behind the other, and nothing between tokens.
    const void *q;
    size_t ld; // elements from token to token, a multiple of head_dim
    // 0: results are dense. Or elements from token to token of these, of calls that have lists of
    // chosen keys (device_lists), which are about one KV head of several.
    size_t ld_out;
    // NULL, or the call that would have normed, rotated and stored these tokens before: attention
    // does it instead. q is then rope->qkv, the projection's output, which stays as it is; the pool
    // gets the same bits.
    const msgl_rope_call *rope;
    // The first, or second, of a layer's two calls, which follow each other; the inputs of both are
    // ready before the first one. Where one backend has both it may let them overlap.
    bool first, second;
} msgl_attn_input;

struct msgl_attn_desc {
    const char *name;
    const char *aliases[4]; // NULL-terminated
    const char *summary;    // one line for --help and the matrix
    // Not NULL: this one does not serve that phase, that backend does.
    const char *prefill_by, *decode_by;
    // Not NULL: layers with a soft cap are that backend's work, which auto takes itself for them.
    const char *softcap_by;
    int32_t min_capability; // of the device (msgl_device.capability), for example 90; 0: any
    msgl_page_rule page_rule;
    int32_t page_sizes[MSGL_ATTN_MAX_SET]; // MSGL_PAGE_SET: allowed, 0-terminated
    int32_t page_override;                 // MSGL_PAGE_SET: replaces any other size, with a warning
    int32_t
        head_dims[MSGL_ATTN_MAX_SET]; // allowed, 0-terminated; empty: multiples of 8 up to max_dim
    int32_t max_dim;                  // 0: 256; of LATENT groups MSGL_ATTN_MAX_LATENT
    bool own_v_dim;                   // takes K and V apart whose dimensions differ
    uint32_t caches;                  // bit mask of 1u << msgl_cache_kind; 0: KV
    int32_t max_group;                // largest num_q_heads / num_kv_heads; 0: any
    uint32_t kv_dtypes;               // bit mask of 1u << msgl_dtype
    bool sliding_window, local_chunks, softcap, sinks, bidirectional;
    bool tree;              // takes trees of new tokens; trivially so with one new token a request
    uint32_t masks, scores; // functions of a layer's mods that it has (attn_mods.h); 0: no mods
    bool dual_chunk;        // of layers with dual_len, and of no others
    // Keeps label_dim elements of its own beside each K of the pool, for which it has to see every
    // token, so it serves both phases or none.
    bool labels;
    // NULL, or what may take chunks of LATENT groups from it, with their keys expanded (expand.h).
    const msgl_expand_kernels *expand;
    // Kernels read what lies behind a window and only mask its scores, so that what another request
    // has there would matter if it were infinite: groups of layers with a window keep all tokens.
    bool reads_behind_window;
    bool ragged; // one call takes a step's chunks and answers together
    bool graph;  // decode can be captured
    // begin and forward make all that decode needs of lengths and page table in device memory: both
    // may be lists of chosen keys, which the host never sees (chosen.h).
    bool device_lists;
    bool verifies;           // trees of KV caches need no plan, so that they can be captured, too
    const char *plugin;      // beside its device's, "minisgl-X.so", opened by create; NULL: none
    const char *plugin_hint; // how to get it

    // What the fields above cannot say, asked after them (so the plug-in opens): is there a kernel?
    // 0; MSGL_EUNSUPPORTED with the reason, and `auto` goes on to the next backend; or MSGL_EINVAL
    // when a setting that it reads has a wrong value, which ends the selection. NULL: nothing more.
    int (*supports)(const msgl_attn_needs *needs, msgl_err *err);
    // A remark for the user on the choice of this backend (a setting without effect here), or NULL;
    // the member too may be NULL.
    const char *(*remark)(void);
    // Takes all memory that the backend will ever use; desc is this descriptor. *out is owned by
    // the caller (destroy). What supports has accepted fails for want of memory (lists beyond
    // 32-bit indices are that too) or because the device failed, for nothing else.
    int (*create)(const msgl_attn_desc *desc, const msgl_attn_config *cfg, msgl_attn_backend **out,
                  msgl_err *err);
    void (*destroy)(msgl_attn_backend *b);
    // Host work for a step's sequences, on the scheduler's thread: what the kernels need beside the
    // lengths (work lists, plans), into the memory of seqs->step_slot. A graph's plan fits every
    // launch of it. NULL: nothing.
    int (*prepare)(msgl_attn_backend *b, const msgl_seqs *seqs);
    // On the device's queue, before the step or the launch of its graph, never captured: copies
    // what prepare made to where the kernels read it. NULL: nothing.
    void (*copy_in)(msgl_attn_backend *b, msgl_exec *x, const msgl_seqs *seqs);
    // On the queue, captured with the layers, once the device's page table has the new tokens'
    // slots: makes what the layers share. NULL: nothing.
    void (*begin)(msgl_attn_backend *b, msgl_exec *x, const msgl_seqs *seqs);
    // Attends, with K and V of the new tokens already in the pool (unless in->rope). out [tokens,
    // num_q_heads * the pool's v_dim], dense, of exec->act (f32 on the CPU). Failures go to
    // exec->status.
    void (*forward)(msgl_attn_backend *b, msgl_exec *x, const msgl_attn_layer *layer,
                    const msgl_seqs *seqs, const msgl_attn_input *in, void *out);
    // Whether these sequences' norm, rotation and store of K and V are better done inside forward,
    // by in->rope. NULL: never.
    bool (*takes_rope)(const msgl_attn_backend *b, const msgl_seqs *seqs);
    // Length up to which batches of `size` requests have kernels of their own, so that a graph for
    // them alone is worth having; 0 or NULL: none.
    int32_t (*short_seq_len)(const msgl_attn_backend *b, int32_t size);
};

struct msgl_attn_backend { // first member of every backend's own struct
    const msgl_attn_desc *desc;
};

struct msgl_attn_config {                        // of one group of layers
    int32_t num_q_heads, num_kv_heads, head_dim; // of this rank
    int32_t page_size;
    int32_t max_running; // requests per batch
    int32_t max_seq_len;
    int32_t max_step_tokens; // query tokens per batch
    int32_t
        max_in_flight;  // steps that may be prepared at once, seqs->step_slot in [0, max_in_flight)
    bool deterministic; // results of a request must not depend on the batch (always so for fa on
                        // the CPU)
    bool apart; // answers and chunks come as sequences of their own, whatever the backend could do
    msgl_attn_variants variants;    // of the layers that forward will get
    int32_t dual_len;               // as in msgl_attn_needs
    const msgl_attn_sparse *sparse; // the same; outlives the backend
    msgl_attn_expanded expanded;    // of LATENT groups; then apart, if not absorbed
    // Of layers with dual_len: which keys long prompts see; NULL: all. Outlives the backend.
    const msgl_dual_pattern *pattern;
    const msgl_kernels *kernels;
    const msgl_kv_pool *pool; // of whose v_dim a head's result is
    const msgl_page_table *page_table;
    int32_t num_threads; // of the pool that forward will run on; CPU only
    // Of devices with memory of their own; backends of a device on the host do not look.
    msgl_device *dev;
    // page_table's rows on the device, up to date in every step: token p of row r is place x = r *
    // device_table_stride + p, in page device_table[x / page_size]. The stride is a multiple of
    // page_size, and places fit 31 bits.
    const int32_t *device_table;
    size_t device_table_stride;
    const char *plugin_dir; // where plug-ins are looked for first
};

// A pair that `auto` may choose.
typedef struct msgl_attn_pair {
    int32_t min_capability;
    const char *prefill, *decode;
    bool e4m3, latent; // for such caches alone
} msgl_attn_pair;

// The backends of one kind of device, which is the plug-in's that brings them.
struct msgl_attn_set {
    const char *device;               // in messages: "the CPU", "CUDA"
    const msgl_attn_desc *const *all; // in the order shown to users, NULL-terminated
    // Which pairs `auto` tries where nothing was measured, the best first, up to one without names.
    const msgl_attn_pair *pairs;
    // NULL, or the names of backends as they were measured for such needs, fastest first, at most
    // MSGL_ATTN_AUTO_NAMES and NULL-terminated if fewer; NULL: nothing was measured.
    const char *const *(*measured)(const msgl_attn_needs *n, msgl_phase phase);
    // Longest requests, and most rows that choose, of sparse prompts (dual_chunk/pattern.h); 0:
    // any.
    int32_t max_sparse_keys, max_sparse_last;
};

enum { MSGL_ATTN_AUTO_NAMES = 4 };

// registry.c
extern const msgl_attn_set msgl__attn_cpu;
// By name or alias, one of the set; NULL.
const msgl_attn_desc *msgl__attn_find(const msgl_attn_set *set, const char *name);

// select.c
typedef struct msgl_attn_choice {
    const msgl_attn_desc *prefill, *decode; // equal: one backend serves both
} msgl_attn_choice;

// variants.c: adds one, unless it is there; false: full.
bool msgl__attn_variants_add(msgl_attn_variants *v, msgl_attn_variant variant);
// The different windows, -1 (all keys) where none is listed; returns how many, at least 1.
int32_t msgl__attn_windows(const msgl_attn_variants *v, int32_t windows[MSGL_ATTN_MAX_VARIANTS]);

// spec: "auto", NAME or "PREFILL,DECODE" (exactly one comma; a half may be "auto"). A NAME that
// serves one phase only stands for the pair with its prefill_by or decode_by. Errors: unknown
// name (lists those that the device has), malformed pair (shows the right form), cannot run here
// (says what is missing and how to get it). needs->page_size is the wanted
// one: `auto` takes nothing that would change it, a named backend is asked about the size that
// msgl__attn_page_size gives. *warning (caller's, 256 bytes) gets a line or "".
int msgl__attn_select(const char *spec, const msgl_attn_needs *needs, msgl_attn_choice *out,
                      char warning[256], msgl_err *err);
// The largest head_dim of a descriptor that lists none.
int msgl__attn_max_dim(const msgl_attn_desc *d, msgl_cache_kind cache);
// What `d` named alone stands for: d for both phases, or a pair with its prefill_by or decode_by.
msgl_attn_choice msgl__attn_alone(const msgl_attn_set *set, const msgl_attn_desc *d);
// Checks one backend against the needs, page size included: the descriptor's fields, that its
// plug-in opens, then its supports. 0; MSGL_EUNSUPPORTED or MSGL_EINVAL, see there.
int msgl__attn_supports(const msgl_attn_desc *d, const msgl_attn_needs *needs, msgl_err *err);
// The descriptor's page rule alone; MSGL_EUNSUPPORTED with the sizes it allows.
int msgl__attn_check_page_size(const msgl_attn_desc *d, int32_t size, msgl_err *err);
// The page size that the choice works with: `wanted`, or an override (*warning names both; NULL:
// nobody reads it).
int32_t msgl__attn_page_size(const msgl_attn_choice *c, int32_t wanted, char warning[256]);

// attn.c: the backends of a group of layers, and a step's way through them.
typedef struct msgl_attn {
    msgl_attn_backend *prefill, *decode; // equal: one serves both
    struct msgl_expand *expand; // takes chunks from prefill where it wants them (expand.h), or NULL
} msgl_attn;

// Whether a step's answers and chunks are sequences of their own for this choice: they go to
// different backends or to one that is not ragged. The groups of a model share the sequences, so if
// one of them has to have it so, the others are made with cfg->apart.
bool msgl__attn_apart(const msgl_attn_choice *c);

// Makes the backends of a choice. On failure nothing is left to destroy.
int msgl__attn_create(const msgl_attn_choice *c, const msgl_attn_config *cfg, msgl_attn *out,
                      msgl_err *err);
void msgl__attn_destroy(msgl_attn *a);
// How many msgl_seqs a step of `size` >= 1 requests is, the first num_decode of them answers: one,
// or two where they are apart. Sequences i are the requests [i == 0 ? 0 : ends[0], ends[i]).
int32_t msgl__attn_split_seqs(bool apart, int32_t num_decode, int32_t size, int32_t ends[2]);
// The descriptor's functions of the same names, by the backend that serves the sequences.
int msgl__attn_prepare(const msgl_attn *a, const msgl_seqs *seqs);
void msgl__attn_copy_in(const msgl_attn *a, msgl_exec *x, const msgl_seqs *seqs);
void msgl__attn_begin(const msgl_attn *a, msgl_exec *x, const msgl_seqs *seqs);
void msgl__attn_forward(const msgl_attn *a, msgl_exec *x, const msgl_attn_layer *layer,
                        const msgl_seqs *seqs, const msgl_attn_input *in, void *out);
// Never of related sequences, whose new keys have to be in the pool before any is attended.
bool msgl__attn_takes_rope(const msgl_attn *a, const msgl_seqs *seqs);

#endif
