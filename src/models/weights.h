// SPDX-License-Identifier: Apache-2.0
//
// From a checkpoint's tensors to packed weights. An architecture first declares what it wants: a
// weight, and which tensors make up which of its rows (so q, k, v become one matrix). That alone
// gives the bytes needed, before anything is allocated; then one region is taken and every tensor
// is checked, packed into its place, and its pages of the file are given back.
#ifndef MSGL_MODELS_WEIGHTS_H
#define MSGL_MODELS_WEIGHTS_H

#include "kernel/kernel.h"
#include "models/checkpoint.h"

#define MSGL_TENSOR_NAME 96

// The numbers from, from + 1, ..., from + count - 1.
typedef struct msgl_range {
    int32_t from, count;
} msgl_range;

#define MSGL_MAX_KEPT 8

// The rows and columns of a weight, or elements of a vector, that one rank of several keeps. The
// kept rows are stored without gaps. Example: period 8, rows {2, 2}, periods {1, 2} keep the rows
// 10, 11, 18 and 19: rows 2 and 3 of the second and of the third eight.
typedef struct msgl_kept {
    msgl_range rows[MSGL_MAX_KEPT]; // [num_rows] ascending, within each period
    int32_t num_rows;               // 0: all rows are kept
    int32_t period;                 // rows of a period; 0: all rows of the weight are one
    msgl_range periods;             // periods that rows are kept of; count 0: all of them
    msgl_range cols;                // columns that are kept; count 0: all
    int32_t all_cols;               // columns of the whole weight
} msgl_kept;

// Files have a layer's experts in one of two forms, and a model may want either of them.
typedef enum msgl_form {
    MSGL_FORM_ANY,     // of both
    MSGL_FORM_APART,   // a tensor for each expert and part
    MSGL_FORM_STACKED, // one that has all of them
} msgl_form;

// One tensor that the model wants: rows [row, row + rows) of a weight with cols columns, or
// elements [row, row + rows) of an f32 vector (cols 0).
typedef struct msgl_wanted {
    char name[MSGL_TENSOR_NAME];
    msgl_weight *weight; // NULL: vector
    float **vector;
    float dummy;       // value that a vector gets without a checkpoint
    float add;         // to the elements of a vector
    float times;       // not 0: which they are then multiplied by
    bool log_of_minus; // elements x of a vector become log(-x)
    int32_t row, rows, cols;
    // One rank of several reads rows [skip, skip + rows) and columns [first_col, first_col + cols)
    // of the unsharded_rows x all_cols that a single rank would read. Example: rank 1 of 2 of a
    // weight of 6 x 4, split by rows, has unsharded_rows 6, skip 3, rows 3. rows 0: nothing is
    // read, but the tensor has to be in the checkpoint.
    int32_t unsharded_rows, skip, all_cols, first_col;
    // Not 0: the tensor stacks several weights. It has tensor_rows rows, and row i of this weight
    // is its row first + i; or, transposed, column j of this weight is its row first + j.
    int32_t tensor_rows, first;
    bool transposed;
    // Not 0: the tensor's first dimension are `experts` experts. A weight is expert number
    // `expert`, which the file has as [rows, cols], or with by_columns as [cols, rows] (blocks of
    // MXFP4 are [rows, cols] in both cases). A vector is all experts one after the other, or with
    // tensor_rows the elements from `first` on. Example: 4 experts of 16, tensor_rows 64, first 32,
    // rows 16: expert 2's.
    int32_t experts, expert;
    bool by_columns;
    // The file has the rows that rotate together as neighbours, and the kernels want them in
    // halves. In every head of `head` rows the first `unpaired` ones stay, and of the 2 * pairs
    // behind them rows 2 i and 2 i + 1 move to places i and pairs + i. Example: head 6, unpaired 2,
    // pairs 2: the file's rows 0 1 2 3 4 5 become 0 1 2 4 3 5. pairs 0: nothing moves, whatever
    // head is.
    int32_t head, unpaired, pairs;
    // Not 0: columns are heads of head_cols, which the model has by groups of group_heads and the
    // file has head_groups apart. Example: 2 groups of 3; the file's heads 0 1 2 3 4 5 become
    // 0 2 4 1 3 5.
    int32_t head_groups, group_heads, head_cols;
    int32_t taps;  // not 0: the vector's tensor is [rows / taps, 1, taps]
    int32_t below; // not 0: the vector's tensor has integers, from 0 to below - 1
    bool router;   // experts are chosen by these rows
    msgl_form form;
} msgl_wanted;

// A tensor of one element that the checkpoint may have, and the host's float that it then becomes:
// the scale of a layer's quantised cache.
typedef struct msgl_optional_scale {
    char name[MSGL_TENSOR_NAME];
    float *to;
} msgl_optional_scale;

enum { MSGL_MAX_NUMBERS = 64 };

// A tensor of whole numbers that the checkpoint may have, with what config.json says already.
typedef struct msgl_known_numbers {
    char name[MSGL_TENSOR_NAME];
    int64_t values[MSGL_MAX_NUMBERS]; // [num]
    int32_t num;
} msgl_known_numbers;

// Two weights that are one in the file and in memory: *to is what *of is.
typedef struct msgl_same_weight {
    msgl_weight *to;
    const msgl_weight *of;
} msgl_same_weight;

// A vector of n ones that no tensor says anything about.
typedef struct msgl_ones {
    float **vector;
    int32_t n;
} msgl_ones;

// A piece of the region: where its address goes once there is one.
typedef struct msgl_placement {
    void **where;
    size_t offset, bytes;
} msgl_placement;

// What the formats of weights are chosen by, each in models/keep.c: one for when the plan is made,
// which a weight has unless its tensors may stay as their file has them.
typedef struct msgl_weight_formats {
    const msgl_gemm_kernels *kernels; // whose table has them
    msgl_dtype dtype; // of what choices depend on; with MSGL_F32 no activation is rounded either
    const msgl_wformat *converted; // of all others, ...
    bool keeps; // ... but of tensors in blocks, or codes with scales, that the device multiplies
} msgl_weight_formats;

// A weight that was planned.
typedef struct msgl_planned {
    msgl_weight *w;
    size_t place; // index of its data among the places
    bool exact;   // choices depend on it
} msgl_planned;

typedef struct msgl_weight_plan {
    struct msgl_plan_kept *kept; // by weight or vector
    size_t num_kept, cap_kept;
    size_t declared; // first of the wanted that were declared last
    msgl_weight_formats formats;
    const char *const
        *ignored; // [num_ignored] beginnings of names that are someone else's, or NULL
    int32_t num_ignored;
    bool ignores_all;       // so are all that are not declared
    int32_t shared_kv_from; // not 0: so are K and V of layers from this one on (Gemma 4's files)
    int32_t ignored_from;   // not 0: so are those of "model.layers.N." from this N on
    msgl_form form;         // of what is declared next
    msgl_wanted *wanted;
    size_t num_wanted, cap_wanted;
    msgl_placement *places;
    size_t num_places, cap_places;
    msgl_planned *planned;
    size_t num_planned, cap_planned;
    msgl_weight *parts;           // of weights with rows of several formats; see msgl__weights_keep
    struct msgl_kept_form *forms; // formats of weights that are kept
    bool keeps;                   // some weights are as the file has them
    msgl_optional_scale *scales;
    size_t num_scales, cap_scales;
    msgl_known_numbers *numbers;
    size_t num_numbers, cap_numbers;
    msgl_ones *ones;
    size_t num_ones, cap_ones;
    msgl_same_weight *same;
    size_t num_same, cap_same;
    size_t bytes;   // of the region
    bool collapsed; // without a checkpoint: routers are 0, and all tokens go to the same experts
    msgl_err *err;
    int status; // first failure
} msgl_weight_plan;

// formats: or NULL, of a plan without weights.
void msgl__weight_plan_init(msgl_weight_plan *p, const msgl_weight_formats *formats, msgl_err *err);
void msgl__weight_plan_free(msgl_weight_plan *p);
// Of a plan that was loaded: leaves what tells whether another one has the same layout.
void msgl__weight_plan_trim(msgl_weight_plan *p);

// Of the weight (msgl_weight *) or vector (float **) `what`, of which this rank only has what is
// kept: msgl__plan_weight and msgl__plan_vector are given its size, all that follows counts rows,
// elements and columns of the whole. Before what follows.
void msgl__plan_keep(msgl_weight_plan *p, const void *what, const msgl_kept *kept);

// Declares a packed weight [n, k], and the tensor that holds some of its rows. w must stay where it
// is until the plan was placed. n 0: another rank's, which has no place; its tensors have to be
// there.
void msgl__plan_weight(msgl_weight_plan *p, msgl_weight *w, int32_t n, int32_t k);
// *to is `of`, which was declared before: its rows, its format and its place.
void msgl__plan_same_weight(msgl_weight_plan *p, msgl_weight *to, const msgl_weight *of);
// Does so again, when formats or places are others.
void msgl__plan_take_same(const msgl_weight_plan *p);
// The same for a small one on which choices depend, such as a router.
void msgl__plan_exact_weight(msgl_weight_plan *p, msgl_weight *w, int32_t n, int32_t k);
void msgl__plan_rows(msgl_weight_plan *p, msgl_weight *w, int32_t row, int32_t rows,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));
// The same for an f32 vector of n elements.
void msgl__plan_vector(msgl_weight_plan *p, float **v, int32_t n);
// A vector that is always 1, in every checkpoint.
void msgl__plan_ones(msgl_weight_plan *p, float **v, int32_t n);
void msgl__plan_elements(msgl_weight_plan *p, float **v, int32_t at, int32_t n, float dummy,
                         const char *fmt, ...) __attribute__((format(printf, 6, 7)));
// Of the tensor declared last. Its vector is stored as what is missing to 1 (norms of Gemma).
void msgl__plan_add_one(msgl_weight_plan *p);
// Its vector's elements are multiplied by a factor, not 0.
void msgl__plan_times(msgl_weight_plan *p, float factor);
// Its vector is stored as what minus the exponential of it is (A_log in GGUF files).
void msgl__plan_log_of_minus(msgl_weight_plan *p);
// Its rows are heads of `head` rows, of which 2 * pairs behind `unpaired` ones rotate as pairs of
// neighbours (GLM, GPT-J): kernels rotate (i, pairs + i), and scores of q and K do not depend on
// the order.
void msgl__plan_pairs(msgl_weight_plan *p, int32_t head, int32_t unpaired, int32_t pairs);
// The heads of its columns are in the file's order (msgl_wanted.head_groups).
void msgl__plan_column_heads(msgl_weight_plan *p, int32_t groups, int32_t each, int32_t cols);
// It has the weights of a convolution by channel, so many a channel.
void msgl__plan_taps(msgl_weight_plan *p, int32_t taps);
// It has integers from 0 to below - 1, I64 or I32 in the file; below up to 2^24, which f32 has.
void msgl__plan_integers(msgl_weight_plan *p, int32_t below);
// It has tensor_rows rows, of which those from `first` on are wanted; transposed: as columns.
void msgl__plan_slice(msgl_weight_plan *p, int32_t tensor_rows, int32_t first, bool transposed);

// It has one more dimension in front, of `experts`; see msgl_wanted.
void msgl__plan_expert(msgl_weight_plan *p, int32_t experts, int32_t expert, bool by_columns);

// The tensors that are declared from here on are those of a checkpoint in this form alone.
void msgl__plan_form(msgl_weight_plan *p, msgl_form form);

// The weight whose rows were declared last is a router's.
void msgl__plan_router(msgl_weight_plan *p);

// Declares a scale: *to, which must stay where it is, is overwritten if the checkpoint has the
// tensor. It has to be finite and above 0.
void msgl__plan_scale(msgl_weight_plan *p, float *to, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// Declares numbers [num <= MSGL_MAX_NUMBERS] that nothing is read of: where the checkpoint has the
// tensor, I64, it has to have these.
void msgl__plan_numbers(msgl_weight_plan *p, const int64_t *values, int32_t num, const char *fmt,
                        ...) __attribute__((format(printf, 4, 5)));

// For msgl__weights_keep. A piece of the region; offsets of the pieces from number `first` on,
// behind the p->bytes in front of them.
void msgl__plan_place(msgl_weight_plan *p, void **where, size_t bytes);
void msgl__plan_lay_out(msgl_weight_plan *p, size_t first);
// Whether an expert's matrix in a tensor of all is as it is multiplied in a product x W. Packed
// rows lie along the sum always.
bool msgl__columns_first(const msgl_wanted *w, const msgl_tensor *t);

// The dimensions that the tensor has to have, t being it or one that is packed or not as it is;
// returns how many.
int32_t msgl__wanted_shape(const msgl_wanted *w, const msgl_tensor *t, int64_t shape[3]);

// The format of a weight that does not stay as its file has it; exact: choices depend on it.
const msgl_wformat *msgl__planned_format(const msgl_weight_formats *f, bool exact);

// Of a checked checkpoint, before the plan is placed: weights whose tensors are in blocks, or codes
// with scales, that the device multiplies (msgl_gemm_kernels.keep) get the format of these, a
// weight made of several tensors maybe parts of several formats. What is transposed or cut within a
// block stays as planned, and so does everything unless p->formats.keeps. Fills p->parts and
// p->forms, which the caller takes over (msgl__free, msgl__kept_forms_free).
int msgl__weights_keep(msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err);
void msgl__kept_forms_free(struct msgl_kept_form *forms);
// Whether weights in these formats, of two plans for one device, have the same bytes for the same
// values.
bool msgl__same_format(const msgl_wformat *a, const msgl_wformat *b);

// Called with bytes of the checkpoint done and in all.
typedef void (*msgl_load_progress)(void *ctx, uint64_t done, uint64_t total);

// Hands out addresses in `region` (zeroed, p->bytes long, device memory).
void msgl__weight_plan_place(msgl_weight_plan *p, void *region);
// The plan's tensors whose names begin with `own` are called `other` and the rest of the name,
// those of them that the checkpoint has by that name alone. A '*' in both stands for the number of
// a layer.
void msgl__weights_rename(msgl_weight_plan *p, const msgl_checkpoint *c, const char *own,
                          const char *other);
// Leaves the tensors of the one form that the checkpoint is in: stacked if it has one of those, or
// if the model knows no other. NULL: there is no checkpoint, and the first form will do. Before
// what follows, of plans with forms.
void msgl__weights_choose_form(msgl_weight_plan *p, const msgl_checkpoint *c);
// Checks that the checkpoint has exactly the wanted tensors with the wanted shapes (surplus that
// is known to be harmless aside). Reads no data.
int msgl__weights_check(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err);
// Of a checkpoint that has some of the wanted tensors, with the wanted shapes, and no others; the
// plan then wants those alone. Reads no data.
int msgl__weights_check_some(msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err);
// Fills the placed weights from a checked checkpoint, in the order of the file.
int msgl__weights_load(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_exec *x,
                       msgl_load_progress progress, void *ctx, msgl_err *err);
// n elements of one value.
void msgl__fill_vector(float *to, int32_t n, float value, msgl_exec *x);
// Those of the plan that are 1.
void msgl__fill_ones(const msgl_weight_plan *p, msgl_exec *x);

// A wanted tensor with its source, in the order of the file.
typedef struct msgl_load_item {
    const msgl_wanted *want;
    const msgl_tensor *tensor;
    size_t from, bytes; // of the tensor, that are read
} msgl_load_item;

// items [p->num_wanted] of a checked checkpoint; returns how many bytes they read.
uint64_t msgl__load_items(const msgl_weight_plan *p, const msgl_checkpoint *c,
                          msgl_load_item *items);

// Fills a placed weight, or rows of it, from the n tensors that it wants, whose `want` and `tensor`
// are given. Reads all at once: for tensors that are in memory.
void msgl__load_weight(const msgl_load_item *items, size_t n, msgl_exec *x);

// Far enough ahead to keep a disk busy, near enough to stay in the page cache.
#define MSGL_READ_AHEAD ((uint64_t)64 << 20)
// While `done` bytes of the n items are packed: the end of the items from `first` on that the disk
// has to be asked for, so that MSGL_READ_AHEAD bytes are on their way. *asked counts all asked for.
size_t msgl__read_ahead(const msgl_load_item *items, size_t n, size_t first, uint64_t done,
                        uint64_t *asked);

// Fills them with deterministic random values of standard deviation 0.02 (norms: 1, biases: 0;
// p->collapsed: routers 0, which makes all scores equal, and of equal ones the first are chosen).
// c: NULL, or the one of msgl__dummy_checkpoint that the plan was kept by, whose packed tensors
// make up their weights; those of equal shape have the same values.
int msgl__weights_dummy(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_exec *x,
                        msgl_load_progress progress, void *ctx, msgl_err *err);

#endif
