// SPDX-License-Identifier: Apache-2.0
//
// minisgl's public C interface, the only installed header.
//
// Load a Hugging Face model folder or a GGUF file, submit requests, receive tokens through a
// callback, abort. Every object is opaque and owned by the library unless a comment says otherwise.
// No function exits, prints or aborts; each returns a status (0 or a negative MSGL_E code) and the
// cold ones fill a caller-owned msgl_err with one line of text.
#ifndef MINISGL_MINISGL_H
#define MINISGL_MINISGL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MSGL_API __attribute__((visibility("default")))
#else
#define MSGL_API
#endif

// Status codes: name, value, text. Values never change meaning once released.
#define MSGL_STATUS_MAP(X)                                                                         \
    X(OK, 0, "success")                                                                            \
    X(EINVAL, -1, "invalid argument")                                                              \
    X(ENOMEM, -2, "out of memory")                                                                 \
    X(EIO, -3, "input or output failed")                                                           \
    X(ENOENT, -4, "not found")                                                                     \
    X(EFORMAT, -5, "malformed data")                                                               \
    X(EUNSUPPORTED, -6, "not supported")                                                           \
    X(ELIMIT, -7, "limit exceeded")                                                                \
    X(EBUSY, -8, "busy")                                                                           \
    X(ECLOSED, -9, "closed")                                                                       \
    X(EABORTED, -10, "aborted")                                                                    \
    X(ENUMERIC, -11, "numerical failure")                                                          \
    X(EINTERNAL, -12, "internal error")                                                            \
    X(EDEVICE, -13, "device failure")                                                              \
    X(EPEER, -14, "another rank failed")

enum {
#define MSGL_STATUS_ENUM(name, value, text) MSGL_##name = (value),
    MSGL_STATUS_MAP(MSGL_STATUS_ENUM)
#undef MSGL_STATUS_ENUM
};

#define MSGL_ERR_TEXT_SIZE 256

// Filled on failure: the code that was returned and one line of text without a newline.
typedef struct msgl_err {
    int code;
    char text[MSGL_ERR_TEXT_SIZE];
} msgl_err;

// ---- engine ----

// Called on the thread that opens or runs the engine; `line` has no newline.
typedef void (*msgl_line_fn)(void *ctx, const char *line);
// stage: "weights" and the like; done of total bytes.
typedef void (*msgl_progress_fn)(void *ctx, const char *stage, uint64_t done, uint64_t total);

// How to open a model. Fill with msgl_options_init, then change what you need. Strings are borrowed
// during msgl_open only, which refuses what the program's flags refuse, naming the field.
typedef struct msgl_options {
    // Required: folder with config.json, *.safetensors, tokenizer.json; or a GGUF file.
    const char *model_dir;
    const char *device;         // "auto", "cpu", "cuda", "cuda:N", "cuda:N,N" for two ranks, ...
    const char *dtype;          // "auto", "bfloat16", "float16", "float32"
    const char *weight_dtype;   // those, or "int8"; auto: as dtype
    const char *kv_cache_dtype; // as dtype's; auto: as dtype
    const char *attention;      // "auto", a backend's name, or "PREFILL,DECODE"
    const char *cache_type;     // "radix" or "naive"
    const char *moe_backend;
    const char *cpu_level;  // NULL: the best that the CPU has; else ref, avx2, avx512, ...
    int dummy_weight;       // 1: random weights, no weights needed
    int threads;            // 0: one per physical core
    int max_running;        // requests computed at once
    int max_seq_len;        // 0: the model's
    int max_prefill_tokens; // prompt tokens per step
    int page_size;          // tokens per KV page
    int num_pages;          // 0: from memory_ratio
    double memory_ratio; // share of the free memory that the KV pool may take; 0: 0.9 of a GPU's;
                         // 0.4 of the host's, but at most 8 times the weights, or what 4 requests
                         // of max_seq_len need
    // Instead, as vLLM and SGLang say it: shares of all memory of the GPU or host. The first is of
    // weights, workspace and KV pool, the second of weights and KV pool alone. 0: not given.
    double gpu_memory_utilization, mem_fraction_static;
    int overlap;       // 1: prepare step n + 1 while step n runs
    int prefill_first; // 1: all prompts before any answer goes on; for batch jobs, which want
                       // throughput. 0: prompts in portions, so that no stream stalls
    int graph_max_bs;  // GPU: largest decode batch captured as a graph; 0: none, -1: by its memory
    int deterministic; // GPU: 1: an answer does not depend on what else is in the batch, on chunks,
                       // pages, graphs or the prefix cache. The CPU always computes so
    int return_hidden_states;  // 1: requests may ask for the hidden states of their tokens
    msgl_line_fn log;          // the memory plan and warnings; NULL: dropped
    msgl_progress_fn progress; // loading; NULL: none
    void *ctx;                 // passed to both
    // Double sparsity: attention "double_sparsity", or double_sparsity 1 with "triton". The file
    // that says which channels of K are heavy, and of which of its types, "q", "k" or "qk".
    const char *ds_channel_config_path, *ds_heavy_channel_type;
    int double_sparsity;
    int ds_heavy_channel_num;       // of them, a multiple of 8
    int ds_heavy_token_num;         // tokens that a head attends to
    int ds_sparse_decode_threshold; // shorter requests attend to all their tokens
    int ds_calibrate;               // 1: nothing is sparse; msgl_write_channels makes the file
    int collapsed_routing;          // 1, with dummy_weight: all tokens go to the same experts
    // Processes that share the model, each with its part of every layer; 1: this one alone. The
    // others are forked by msgl_open, before which the process must have no threads.
    int tp_size;
    const char *nccl_path; // libnccl.so.2 for ranks on GPUs; "auto": looked for; "none": without
    int disable_custom_all_reduce; // 1: ranks on GPUs exchange everything through NCCL
    int ep_size; // parts that experts are shared out in, which divide tp_size; 0: as is best
    // 1: the tp_size processes are those of an MPI job, which mpirun or srun has started. Rank 0
    // opens the model, each of the others calls msgl_follow instead. None has set up MPI itself.
    int mpi;
    const char *dist_init_addr; // where rank 0 listens for ranks of other hosts, "HOST:PORT"; NULL:
                                // with mpi at the name of its host
    // The tp_size processes are on so many hosts, as many on each, and this is host node_rank. Host
    // 0's first process opens the model, on each other one a process calls msgl_follow instead,
    // with the same tp_size, nnodes and dist_init_addr. 1 and 0: this host alone.
    int nnodes, node_rank;
    // Engines of this model on this machine, and which of them this is: it takes its share of the
    // cores and of the free memory. 1 and 0: this one alone.
    int dp_size, dp_rank;
    int is_embedding; // 1: prompts become vectors, as `minisgl serve` gives them; not by msgl_open
    int is_reranker;  // 1: they become the logits of these two tokens; the same
    int score_token_ids[2]; // the second -1: there is one
    // Several tokens of an answer a step: what guesses at them (docs/speculation.md): "none",
    // "NGRAM", "SUFFIX", "STANDALONE", "EAGLE3", "NEXTN", or "auto". Answers stay what they are.
    const char *speculative_algorithm;
    const char *speculative_draft_model_path; // of the last three: as model_dir
    int speculative_num_steps;  // drafts that a draft model makes at most; 0: as pays, up to 8
    int speculative_eagle_topk; // drafts at a token that a head makes: 1, or more and drafts are
                                // trees
    int speculative_num_draft_tokens; // that a step verifies of an answer at most, with the known
                                      // one before them; 0: as many as pay
    int speculative_ngram_min, speculative_ngram_max; // tokens that NGRAM matches; 0: 1 and 12
    // The chat template in place of the model's: a file, or a template's text; NULL: the model's.
    const char *chat_template;
    // Low-rank adapters beside the model (docs/adapters.md). 1: requests may have one; then room in
    // step memory for ranks up to max_lora_rank, for so many different ones in a step, and how many
    // stay in memory, of which the least recently used gives way.
    int enable_lora, max_lora_rank, max_loras_per_batch, max_loaded_loras;
    void *reserved[1];
} msgl_options;

MSGL_API void msgl_options_init(msgl_options *o);

// A loaded model with its scheduler. One thread at a time may use it.
typedef struct msgl_llm msgl_llm;

// Loads the model and takes all memory. On success *out is the caller's, until msgl_close.
MSGL_API int msgl_open(const msgl_options *o, msgl_llm **out, msgl_err *err);
// Ends all requests (without callbacks) and frees everything. NULL is allowed.
MSGL_API void msgl_close(msgl_llm *l);
// What a process of an MPI job (o->mpi) does that is not its rank 0, or one of another host than
// the first (o->node_rank), which forks its ranks and must have no threads: it works for rank 0's
// model until that is closed. Of o only model_dir, device, threads, cpu_level and what says how to
// meet count. 0, or MSGL_ECLOSED: rank 0 failed, or was told why this rank cannot go on, and says
// so; else a failure that rank 0 does not know of. A process can do this, or open a model with
// o->mpi, once; but a host's ranks start again, and wait for rank 0 to, when they had begun to work
// and one of all ranks fails.
MSGL_API int msgl_follow(const msgl_options *o, msgl_err *err);

typedef struct msgl_info {
    int vocab_size, max_seq_len, max_running, num_pages, page_size;
    const char *attention, *device, *dtype, *architecture; // valid until msgl_close
    uint64_t weight_bytes, kv_bytes;
} msgl_info;
MSGL_API void msgl_get_info(const msgl_llm *l, msgl_info *out);

// ---- requests ----

// Added to the logit of a token before every choice.
typedef struct msgl_bias {
    int32_t token;
    float value; // -100 to 100
} msgl_bias;

// What msgl_params.grammar is.
typedef enum msgl_grammar_kind {
    MSGL_GRAMMAR_NONE,
    MSGL_GRAMMAR_JSON_OBJECT,      // any JSON object
    MSGL_GRAMMAR_JSON_SCHEMA,      // objects have no members that their `properties` do not name,
                                   // unless `additionalProperties` says so
    MSGL_GRAMMAR_REGEX,            // of the whole answer
    MSGL_GRAMMAR_CHOICE,           // a JSON array of strings: one of them
    MSGL_GRAMMAR_GBNF,             // llama.cpp's, from the rule root
    MSGL_GRAMMAR_LARK,             // from the rule start
    MSGL_GRAMMAR_JSON_SCHEMA_OPEN, // objects may have any, as the standard has it
} msgl_grammar_kind;

typedef struct msgl_params {
    float temperature; // 0: greedy. msgl_params_init takes the model's own defaults for the first
                       // five
    float top_p;
    float min_p;
    int top_k;                // 0 or -1: off
    float repetition_penalty; // 0.01 to 100; 1: off. Divides or multiplies logits of tokens that
                              // are in the prompt or the answer, so that they become smaller
    // -2 to 2; 0: off. Taken off the logits of tokens that are in the answer: as often as they are,
    // and once.
    float frequency_penalty, presence_penalty;
    uint64_t seed;  // used when has_seed
    int has_seed;   // 0: a random seed per request
    int max_tokens; // 0: what the context leaves
    int ignore_eos;
    int logprobs; // -1: none; 0..20: log-probability of each token and of this many alternatives
    int prompt_logprobs;     // -1: none; 0..20: the same for the prompt's tokens from the second on
    const char *const *stop; // text before which an answer ends; borrowed until the request is done
    int num_stop;
    const int32_t *stop_token_ids; // copied
    int num_stop_token_ids;
    const msgl_bias *logit_bias; // copied; at most 1,024, of different tokens
    int num_logit_bias;
    // What the answer has to be: NULL, or a text of this kind (copied; of MSGL_GRAMMAR_JSON_OBJECT
    // any). The answer then ends where the grammar does, with MSGL_STOP.
    const char *grammar;
    msgl_grammar_kind grammar_kind;
    // Tokens that the answer has at least: before, no end token is chosen, and stop strings are not
    // looked for. Not beside a grammar.
    int min_tokens;
    // What the answer is made of (0: all tokens; copied; at most 16,384), and strings that it does
    // not have, by the tokens that spell them (borrowed until msgl_submit_ returns; at most 256, of
    // 1 to 256 bytes). Neither beside a grammar.
    int num_allowed_token_ids;
    const int32_t *allowed_token_ids;
    const char *const *bad_words;
    int num_bad_words;
    // llama.cpp's further samplers, in the order of docs/sampling.md.
    float typical_p;                      // 1: off
    float xtc_probability, xtc_threshold; // 0: off
    float top_n_sigma;                    // 0 or less: off
    float dynatemp_range, dynatemp_exponent;
    float dry_multiplier, dry_base; // 0: off
    int dry_allowed_length, dry_penalty_last_n;
    // Texts within a token behind which DRY sees no repeat (borrowed until msgl_submit_ returns; at
    // most 64, of 1 to 40 bytes); NULL: a line's end, a colon, a quote and an asterisk.
    const char *const *dry_sequence_breakers;
    int num_dry_sequence_breakers;
    int mirostat; // 0: off; 2
    float mirostat_tau, mirostat_eta;
    // With msgl_options.speculative_algorithm: drafts in a step at most; 0: none, -1: as many as
    // pay.
    int speculative;
    // With msgl_options.enable_lora: NULL, or the adapter that the request has, its folder, as PEFT
    // saves it, or GGUF file (copied). It is read when it is first asked for, and stays what it was
    // then.
    const char *lora_path;
    void *reserved[2];
} msgl_params;

MSGL_API void msgl_params_init(const msgl_llm *l, msgl_params *p);

enum { MSGL_NOT_FINISHED, MSGL_STOP, MSGL_LENGTH, MSGL_ABORTED, MSGL_FAILED };

typedef struct msgl_logprob {
    int32_t token;
    float logprob; // natural logarithm
    int position;  // of the token in prompt plus answer
    int num_top;
    const int32_t *top_tokens; // most likely first
    const float *top_logprobs;
} msgl_logprob;

// What one step brought to one request. Pointers are valid during the callback.
typedef struct msgl_piece {
    uint64_t request;
    int32_t token;    // -1: none in this step
    const char *text; // what became certain, UTF-8, perhaps empty; stop strings never appear in it
    size_t text_len;
    int finish; // MSGL_NOT_FINISHED ... MSGL_FAILED; anything but the first is this request's last
                // piece
    int status; // MSGL_FAILED: a MSGL_E code, and `error` says why
    const char *error;
    int prompt_tokens, cached_tokens, generated_tokens; // so far
    int num_logprobs;
    const msgl_logprob *logprobs;
} msgl_piece;

// Return 0 to go on, anything else to abort this request (it then gets no further callback).
// A callback may submit and abort requests.
typedef int (*msgl_piece_fn)(void *ctx, const msgl_piece *piece);

// Each queues a request and returns at once; *id (may be NULL) names it. params NULL: the defaults.
// `text` is tokenized with the model's special tokens around it, as a completion prompt.
MSGL_API int msgl_submit_text(msgl_llm *l, const char *text, size_t len, const msgl_params *params,
                              msgl_piece_fn fn, void *ctx, uint64_t *id, msgl_err *err);
MSGL_API int msgl_submit_ids(msgl_llm *l, const int32_t *ids, size_t n, const msgl_params *params,
                             msgl_piece_fn fn, void *ctx, uint64_t *id, msgl_err *err);
// `json` is an object with "messages" and whatever else the chat template reads ("tools",
// "add_generation_prompt": default true).
MSGL_API int msgl_submit_chat(msgl_llm *l, const char *json, const msgl_params *params,
                              msgl_piece_fn fn, void *ctx, uint64_t *id, msgl_err *err);
// Ends a request; it gets no further callback. MSGL_ENOENT if it is not in flight.
MSGL_API int msgl_abort(msgl_llm *l, uint64_t id);

// Computes until no request is left, or one step: callbacks run on this thread. Negative: the
// engine failed, and every request had its callback with MSGL_FAILED. msgl_step returns 1 while
// work is left.
MSGL_API int msgl_run(msgl_llm *l, msgl_err *err);
MSGL_API int msgl_step(msgl_llm *l, msgl_err *err);
// Of a model opened with ds_calibrate: writes which channels were heavy in all that was computed.
MSGL_API int msgl_write_channels(msgl_llm *l, const char *path, msgl_err *err);
// Drops the prefix cache.
MSGL_API void msgl_flush_cache(msgl_llm *l);

// Text to ids and back; *ids and *text are freed with msgl_free.
MSGL_API int msgl_tokenize(const msgl_llm *l, const char *text, size_t len, int add_special,
                           int32_t **ids, size_t *n, msgl_err *err);
MSGL_API int msgl_detokenize(const msgl_llm *l, const int32_t *ids, size_t n, int skip_special,
                             char **text, size_t *len, msgl_err *err);
MSGL_API void msgl_free(void *p);

MSGL_API const char *msgl_version(void);
MSGL_API const char *msgl_status_text(int code);

#ifdef __cplusplus
}
#endif
#endif
