// SPDX-License-Identifier: Apache-2.0
//
// The options that are settings of no module below, and how flags are spelled. Names and defaults
// of the serving flags are Mini-SGLang's.
#include <string.h>

#include "cli/args.h"
#include "cli/spellings.h"
#include "core/attributes.h"
#include "core/batch.h"
#include "parsers/parser.h"
#include "routing/router.h"
#include "front/metrics.h"

#define SAMPLING (MSGL_CMD_CHAT | MSGL_CMD_RUN)
#define MSGL_LIST(T, f)                                                                            \
    MSGL_MEMBER(T, f, LIST, _Generic(((T *)0)->f, msgl_list : sizeof(msgl_list)))

static const msgl_setting ROWS[] = {
    {
        .name = "model-source",
        MSGL_TEXT(msgl_args, model_source),
        .choices = "huggingface|modelscope|local",
        .by_default = ": huggingface, or modelscope if VLLM_USE_MODELSCOPE or "
                      "SGLANG_USE_MODELSCOPE is true",
        .commands =
            MSGL_CMD_ENGINE | MSGL_CMD_INFO | MSGL_CMD_TOKENIZE | MSGL_CMD_TEMPLATE | MSGL_CMD_PULL,
        .group = "model",
        .metavar = "NAME",
        .help = "where a model name is looked up: in the hub's local cache, then on the hub; or "
                "nowhere, and --model is a path (docs/hubs.md)",
    },
    {
        .name = "revision",
        MSGL_TEXT(msgl_args, revision),
        .by_default = ": main, of ModelScope master",
        .commands =
            MSGL_CMD_ENGINE | MSGL_CMD_INFO | MSGL_CMD_TOKENIZE | MSGL_CMD_TEMPLATE | MSGL_CMD_PULL,
        .group = "model",
        .metavar = "NAME",
        .help = "branch, tag or commit of a model of a hub; --model ORG/NAME@NAME says the same",
    },

    {
        .name = "prefill-attention-backend",
        MSGL_TEXT(msgl_args, prefill_attention),
        .commands = MSGL_CMD_ENGINE,
        .group = "engine",
        .metavar = "NAME",
        .help = "replaces the prefill half of --attention-backend",
    },
    {
        .name = "decode-attention-backend",
        MSGL_TEXT(msgl_args, decode_attention),
        .commands = MSGL_CMD_ENGINE,
        .group = "engine",
        .metavar = "NAME",
        .help = "replaces the decode half of --attention-backend",
    },
    {
        .name = "speculative-config",
        MSGL_TEXT(msgl_args, speculative_config),
        .commands = MSGL_CMD_ANSWERS,
        .group = "engine",
        .metavar = "JSON",
        .help = "vLLM's object in place of --speculative-algorithm and the options beside it: "
                "method (ngram, suffix, draft_model, eagle3, mtp), model, num_speculative_tokens, "
                "prompt_lookup_min and _max",
    },
    {
        .name = "host",
        MSGL_TEXT(msgl_args, host),
        .preset_text = "127.0.0.1",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "ADDR",
        .help = "address to listen on",
    },
    {
        .name = "uds",
        MSGL_TEXT(msgl_args, uds),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "PATH",
        .help = "listen at a Unix socket instead, which only this user may connect to; --host and "
                "--port are not used then (docs/operations.md)",
    },
    {
        .name = "port",
        MSGL_INT(msgl_args, port),
        .max = 65535,
        .preset = 1919,
        .by_default = "; a MINISGL_PORT of the form tcp://..., which Kubernetes sets, is ignored",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "N",
        .help = "port to listen on; 0 takes a free one and prints it",
    },
    {
        .name = "root-path",
        MSGL_TEXT(msgl_args, root_path),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "PATH",
        .help = "the path below which a proxy serves this server, such as /llm; requests may have "
                "it in front of theirs or not",
    },
    {
        .name = "allowed-hosts",
        MSGL_TEXT(msgl_args, allowed_hosts),
        .by_default = ": on a local --host those of this machine, else any",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "LIST",
        .help = "names, such as box.lan,ai.example.org, that requests may use for this server, and "
                "web pages of which may use it; * is any",
    },
    {
        .name = "load-balance-method",
        MSGL_TEXT(msgl_args, routing_policy),
        .choices = MSGL_ROUTING_NAMES,
        .preset_text = "cache_aware",
        .commands = MSGL_CMD_SERVE | MSGL_CMD_SIMULATE,
        .group = "server",
        .metavar = "NAME",
        .help = "which of --dp-size engines, or simulated replicas, gets a request: the one that "
                "has most of the prompt in "
                "its cache unless it is too busy, the one with the fewest tokens to compute, or "
                "each in turn",
    },
    {
        .name = "balance-rel-threshold",
        MSGL_REAL(msgl_args, balance),
        .min = 1,
        .max = 1e6,
        .preset = MSGL_ROUTER_BALANCE,
        .commands = MSGL_CMD_SERVE | MSGL_CMD_SIMULATE,
        .group = "server",
        .metavar = "X",
        .help = "cache_aware: an engine is too busy that has more to compute than X times the "
                "least busy one and the tokens that are cached (docs/replicas.md)",
    },
    {
        .name = "num-tokenizer",
        MSGL_INT(msgl_args, num_tokenizer),
        .max = 64,
        .by_default = ": one",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "N",
        .help = "tokenizer threads",
    },
    {
        .name = "max-request-memory",
        MSGL_INT(msgl_args, request_memory),
        .min = 16,
        .max = 1 << 20,
        .preset = 1024,
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "MIB",
        .help = "memory that all requests together may hold in the server process, in MiB: bodies, "
                "prompts that wait, answers that are not sent; beyond it requests are answered "
                "429, and one that needs more than a quarter of it 413",
    },
    {
        .name = "max-queued-requests",
        MSGL_INT(msgl_args, max_queued),
        .min = 1,
        .max = 1 << 20,
        .preset = 4096,
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "N",
        .help =
            "choices that may wait for their first token; beyond it requests are answered 429 and "
            "/ready 503",
    },
    {
        .name = "max-connections",
        MSGL_INT(msgl_args, max_connections),
        .min = 1,
        .max = 1 << 20,
        .preset = 4096,
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "N",
        .help = "connections at once, as far as the limit of descriptors has room for them; a "
                "further one takes the place of the one that is idle longest, and when all have a "
                "request only /health and /ready are answered",
    },
    {
        .name = "max-connections-per-address",
        MSGL_INT(msgl_args, max_per_address),
        .max = 1 << 20,
        .by_default = ": no limit",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "N",
        .help = "connections at once from one IPv4 address or the /64 of an IPv6 address; further "
                "ones are answered 429. A proxy is one address",
    },
    {
        .name = "max-body-size",
        MSGL_INT(msgl_args, max_body),
        .min = 1,
        .max = 1024,
        .preset = 32,
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "MIB",
        .help = "bytes of a request's body, in MiB; a larger one is answered 413",
    },
    {
        .name = "timeout-keep-alive",
        MSGL_INT(msgl_args, keep_alive),
        .min = 1,
        .max = 86400,
        .preset = 75,
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "SECONDS",
        .help = "how long a connection may be idle between requests",
    },
    {
        .name = "shutdown-timeout",
        MSGL_INT(msgl_args, shutdown_timeout),
        .max = 86400,
        .preset = 5,
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "SECONDS",
        .help = "how long requests in flight may go on after SIGTERM or Ctrl-C, before they end "
                "with an error; a second signal ends them at once",
    },
    {
        .name = "watchdog-timeout",
        MSGL_INT(msgl_args, watchdog_timeout),
        .max = 86400,
        .preset = 10,
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "SECONDS",
        .help = "end and start the engine again when a step takes longer than this and than ten "
                "times what the steps before it let expect, or between steps it gives no sign of "
                "life for so long, and the front when it gives none for 30 s; 0: never",
    },
    {
        .name = "unknown-fields",
        MSGL_TEXT(msgl_args, unknown_fields),
        .choices = "ignore|warn|refuse",
        .preset_text = "warn",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "WHAT",
        .help =
            "what happens to a request's field that is not read here: nothing, the log names it "
            "once (and what is a letter away from one that is read is answered 400), or the "
            "request is answered 400",
    },
    {
        .name = "added-tokens-from-text",
        MSGL_FLAG(msgl_args, added_from_text),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .help = "in chats, tokens such as <think> and <tool_call>, if the tokenizer does not call "
                "them special, are formed from what anybody's messages spell, as transformers "
                "does; else only from the template's text and the assistant's messages",
    },
    {
        .name = "trust-request-chat-template",
        MSGL_FLAG(msgl_args, trust_template),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .help = "requests may bring a chat_template of their own, within a small budget; without "
                "it such requests are answered 400 (docs/templates.md)",
    },
    {
        .name = "open-schemas",
        MSGL_FLAG(msgl_args, open_schemas),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .help = "answers may have members that a JSON schema's properties do not name, where it "
                "says nothing of them (docs/structured.md)",
    },
    {
        .name = "batch-dir",
        MSGL_TEXT(msgl_args, batch_dir),
        .by_default = ": none",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "DIR",
        .help = "folder for /v1/files and /v1/batches, made if it is not there; what is under way "
                "goes on at the next start (docs/batch.md)",
    },
    {
        .name = "access-log",
        MSGL_FLAG(msgl_args, access_log),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .help = "log a line for each request: method, path, status, milliseconds, X-Request-Id and "
                "the client's address; never what was asked or answered",
    },
    {
        .name = "log-format",
        MSGL_TEXT(msgl_args, log_format),
        .choices = "text|json",
        .preset_text = "text",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "NAME",
        .help = "how the log's lines on standard error look; json: an object a line "
                "(docs/logs.md)",
    },
    {
        .name = "log-stats-interval",
        MSGL_INT(msgl_args, log_stats_interval),
        .max = 86400,
        .preset = 10,
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "SECONDS",
        .help = "between lines of the log about an engine that has something to do: requests, "
                "tokens a second, cache; 0: none",
    },
    {
        .name = "otlp-traces-endpoint",
        MSGL_TEXT(msgl_args, otlp_traces),
        .by_default = ": OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, else OTEL_EXPORTER_OTLP_ENDPOINT with "
                      "/v1/traces, else none",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "URL",
        .help = "where OpenTelemetry's spans of requests are posted to, OTLP/HTTP in JSON; without "
                "a path: /v1/traces; never with what was asked or answered (docs/traces.md)",
    },
    {
        .name = "lora-paths",
        MSGL_LIST(msgl_args, loras),
        .by_default = ": none",
        .commands = MSGL_CMD_SERVE | MSGL_CMD_RUN | MSGL_CMD_BENCH | MSGL_BENCH_STEP,
        .group = "model",
        .metavar = "NAME=PATH",
        .help =
            "serve the adapter in this folder, as PEFT saves it, or GGUF file, as a model of this "
            "name beside the model; further words NAME=PATH are further adapters "
            "(docs/adapters.md)",
    },
    {
        .name = "served-model-name",
        MSGL_LIST(msgl_args, served_names),
        .by_default = ": the last part of --model",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "NAME",
        .help = "the model's name in answers and /v1/models; may be given several times: requests "
                "may use each of them, as they may --model and its last part",
    },
    {
        .name = "cors-origin",
        MSGL_LIST(msgl_args, cors_origins),
        .by_default = ": none",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "ORIGIN",
        .help =
            "an origin, such as https://app.example.org, whose web pages may use the server and "
            "read its answers in a browser; may be given several times; * is any page, which "
            "wants an API key beside it",
    },
    {
        .name = "api-key",
        MSGL_LIST(msgl_args, api_keys),
        .by_default = ": none is needed",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "KEY",
        .help =
            "a key that requests have to bring as Authorization: Bearer KEY, for every path "
            "but /, /health and /ready; may be given several times; others on this machine see it "
            "in the "
            "list of processes, unlike the variable and the file",
    },
    {
        .name = "api-key-file",
        MSGL_TEXT(msgl_args, api_key_file),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "FILE",
        .help = "more such keys, one a line; lines that begin with # are comments; no other user "
                "may read it",
    },
    {
        .name = "admin-api-key",
        MSGL_TEXT(msgl_args, admin_key),
        .by_default = ": none",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "KEY",
        .help =
            "a key with which /abort_request ends anybody's requests, and which /flush_cache then "
            "asks for; it opens everything else, too",
    },
    {
        .name = "admin-api-key-file",
        MSGL_TEXT(msgl_args, admin_key_file),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "FILE",
        .help = "more such keys, as those of --api-key-file",
    },
    {
        .name = "ssl-certfile",
        MSGL_TEXT(msgl_args, ssl_certfile),
        .by_default = ": http",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "FILE",
        .help = "serve https: a PEM file with the certificate and those between it and its root",
    },
    {
        .name = "ssl-keyfile",
        MSGL_TEXT(msgl_args, ssl_keyfile),
        .by_default = ": in --ssl-certfile",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "FILE",
        .help = "a PEM file with the certificate's private key, without a passphrase, which no "
                "other user may read",
    },
    {
        .name = "user",
        MSGL_TEXT(msgl_args, user),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "NAME[:GROUP]",
        .help = "become this user, who has to be able to read the model, once the port is bound; "
                "only root can",
    },
    {
        .name = "seccomp",
        MSGL_TEXT(msgl_args, seccomp),
        .choices = "on|off",
        .preset_text = "on",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "WHETHER",
        .help = "limit the server's processes to the system calls that they need; with a GPU or "
                "MPI it is off (docs/security.md)",
    },
    {
        .name = "cache-salt-by-key",
        MSGL_FLAG(msgl_args, salt_by_key),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .help = "requests share cached prefixes only with those of the same API key, as if the key "
                "were in their cache_salt (docs/security.md)",
    },
    {
        .name = "insecure",
        MSGL_FLAG(msgl_args, insecure),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .help =
            "listen on a --host that other machines reach, or share with any page (--cors-origin "
            "'*'), though no key is needed",
    },
    {
        .name = "metrics-compat",
        MSGL_TEXT(msgl_args, metrics_compat),
        .choices = MSGL_METRICS_COMPAT_NAMES,
        .preset_text = "none",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "NAME",
        .help = "whose names of metrics /metrics has beside its own, for dashboards that exist "
                "(docs/metrics.md)",
    },
    {
        .name = "tool-call-parser",
        MSGL_TEXT(msgl_args, tool_parser),
        .choices = MSGL_TOOL_FORM_NAMES,
        .preset_text = "auto",
        .by_default = ": by the markers in the chat template",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "NAME",
        .help = "the form of the model's tool calls, which become tool_calls in chat answers; none "
                "leaves them in the text",
    },
    {
        .name = "reasoning-parser",
        MSGL_TEXT(msgl_args, reasoning_parser),
        .choices = MSGL_REASONING_FORM_NAMES,
        .preset_text = "auto",
        .by_default = ": by the markers in the chat template",
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .metavar = "NAME",
        .help = "the form of the model's thoughts, which become reasoning_content in chat answers; "
                "none leaves them in the text",
    },
    {
        .name = "shell-mode",
        MSGL_FLAG(msgl_args, shell),
        .commands = MSGL_CMD_SERVE,
        .group = "server",
        .help = "open a shell instead of a server, like `minisgl chat`",
    },

    {
        .name = "prompt",
        MSGL_LIST(msgl_args, prompts),
        .commands = MSGL_CMD_RUN | MSGL_CMD_CHAT,
        .group = "requests",
        .metavar = "TEXT",
        .help = "a prompt; may be given several times (chat: answer it and end)",
    },
    {
        .name = "input",
        MSGL_TEXT(msgl_args, input),
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .metavar = "FILE",
        .help = "JSON lines, each {\"prompt\": text or ids, or \"messages\": [...], fields as over "
                "HTTP}, or OpenAI's batch form; - is standard input (docs/batch.md)",
    },
    {
        .name = "text",
        MSGL_TEXT(msgl_args, text),
        .commands = MSGL_CMD_CALIBRATE,
        .group = "requests",
        .metavar = "FILE",
        .help = "text such as the model will read, cut into prompts as long as it may get them",
    },
    {
        .name = "output",
        MSGL_TEXT(msgl_args, output),
        .by_default = ": standard output; calibrate: none",
        .commands = MSGL_CMD_RUN | MSGL_CMD_CALIBRATE,
        .group = "requests",
        .metavar = "FILE",
        .help = "where the JSON lines go: text, token_ids, finish_reason, line; calibrate: the "
                "channels of every layer and head, in the form that SGLang reads",
    },
    {
        .name = "resume",
        MSGL_FLAG(msgl_args, resume),
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .help = "go on with an --output that an earlier run of the same --input has begun; without "
                "it one that is not empty is refused (docs/batch.md)",
    },
    {
        .name = "chat",
        MSGL_FLAG(msgl_args, chat),
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .help = "put prompts into the model's chat template, which is so anyway",
    },
    {
        .name = "raw",
        MSGL_FLAG(msgl_args, raw),
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .help = "take prompts as they are, to be continued; else a text is a user message in the "
                "model's chat template, if it has one (token ids and OpenAI's batch form are as "
                "they are)",
    },
    {
        .name = "system",
        MSGL_TEXT(msgl_args, system),
        .commands = SAMPLING,
        .group = "requests",
        .metavar = "TEXT",
        .help = "system message before the prompts",
    },
    {
        .name = "stream",
        MSGL_FLAG(msgl_args, stream),
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .help = "answer the prompts one by one, showing the text as it comes and tokens per second",
    },
    {
        .name = "max-tokens",
        MSGL_INT(msgl_args, max_tokens),
        .min = 1,
        .max = 1 << 24,
        .unset = true,
        .by_default = ": what the context leaves; bench serve and offline: 64",
        .commands = SAMPLING | MSGL_CMD_BENCH,
        .group = "requests",
        .metavar = "N",
        .help = "tokens to generate at most",
    },
    {
        .name = "seed",
        MSGL_INT(msgl_args, seed),
        .max = 1e15,
        .preset = -1,
        .unset = true,
        .by_default = ": random",
        .commands = SAMPLING | MSGL_CMD_BENCH,
        .group = "requests",
        .metavar = "N",
        .help = "makes sampling repeatable; bench serve: also chooses the prompts, which are else "
                "the same in every run",
    },
    {
        .name = "stop",
        MSGL_LIST(msgl_args, stop),
        .commands = SAMPLING,
        .group = "requests",
        .metavar = "TEXT",
        .help = "end an answer before this text; may be given several times",
    },
    {
        .name = "logprobs",
        MSGL_INT(msgl_args, logprobs),
        .max = 20,
        .preset = -1,
        .unset = true,
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .metavar = "N",
        .help = "report log-probabilities, and the N most likely tokens at each place",
    },

    {
        .name = "prompt-len",
        MSGL_INT(msgl_args, prompt_len),
        .min = 1,
        .max = 1 << 20,
        .unset = true,
        .by_default = " 512; decode: 128, prefill: 1024, serve: 127",
        .commands = MSGL_CMD_BENCH,
        .group = "bench",
        .metavar = "N",
        .help = "prompt tokens",
    },
    {
        .name = "batch",
        MSGL_TEXT(msgl_args, batch),
        .preset_text = "1",
        .commands = MSGL_CMD_BENCH,
        .group = "bench",
        .metavar = "LIST",
        .help = "batch sizes, such as 1,8,16",
    },
    {
        .name = "chunk",
        MSGL_TEXT(msgl_args, chunk),
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_STEP,
        .group = "bench",
        .metavar = "LIST",
        .help = "step: also steps with so many tokens of another prompt beside the answers",
    },
    {
        .name = "grid",
        MSGL_FLAG(msgl_args, grid),
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_STEP,
        .group = "bench",
        .help = "step: instead, the steps that `minisgl simulate` interpolates between: --batch "
                "answers (default 1,2,4,8,16), chunks of --chunk prompt tokens (default "
                "1,16,64,256,1024) and both together, behind up to --prompt-len tokens (default "
                "1024); what the KV pool has no room for is left out",
    },
    {
        .name = "accept",
        MSGL_TEXT(msgl_args, accept),
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_STEP,
        .group = "bench",
        .metavar = "LIST",
        .help = "step: instead, steps with --drafts drafts of each answer, in turns with steps "
                "without, as if each draft were accepted with these probabilities, as long as all "
                "before it were: 0,0.5,0.9 (docs/speculation.md)",
    },
    {
        .name = "drafts",
        MSGL_INT(msgl_args, drafts),
        .min = 1,
        .max = MSGL_MAX_DRAFTS,
        .preset = 4,
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_STEP,
        .group = "bench",
        .metavar = "N",
        .help = "step, with --accept: drafts of an answer in a step",
    },
    {
        .name = "dummy-loras",
        MSGL_INT(msgl_args, dummy_loras),
        .max = 1024,
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_STEP,
        .group = "bench",
        .metavar = "N",
        .help = "step: so many random adapters, which requests have in turn, and steps without",
    },
    {
        .name = "dummy-lora-rank",
        MSGL_INT(msgl_args, dummy_lora_rank),
        .min = 1,
        .max = 256,
        .preset = 16,
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_STEP,
        .group = "bench",
        .metavar = "R",
        .help = "step, with --dummy-loras: their rank",
    },
    {
        .name = "dummy-lora-modules",
        MSGL_TEXT(msgl_args, dummy_lora_modules),
        .preset_text = "all",
        .choices = "all|attention",
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_STEP,
        .group = "bench",
        .metavar = "WHICH",
        .help = "step, with --dummy-loras: they change all linear layers, or q, k, v and o",
    },
    {
        .name = "steps",
        MSGL_INT(msgl_args, steps),
        .min = 1,
        .max = 1 << 20,
        .unset = true,
        .by_default = " 64; decode: 256",
        .commands = MSGL_CMD_BENCH,
        .group = "bench",
        .metavar = "N",
        .help = "decode steps per measurement",
    },
    {
        .name = "repeat",
        MSGL_INT(msgl_args, repeat),
        .min = 1,
        .max = 1000,
        .unset = true,
        .by_default = " 3; offline: 1",
        .commands = MSGL_CMD_BENCH,
        .group = "bench",
        .metavar = "N",
        .help = "repetitions, of which the median is printed",
    },
    {
        .name = "requests",
        MSGL_INT(msgl_args, requests),
        .min = 1,
        .max = 1 << 20,
        .unset = true,
        .commands = MSGL_CMD_BENCH,
        .group = "bench",
        .metavar = "N",
        .help = "requests in all, all alike (serve: at each concurrency, default 4 for each "
                "client, from 256 clients 3; offline: default those of the public benchmark, "
                "bench/lengths.csv, or 16 if --prompt-len or --max-tokens is given)",
    },
    {
        .name = "routing",
        MSGL_TEXT(msgl_args, routing),
        .choices = "even|collapsed",
        .preset_text = "even",
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_ENGINE,
        .group = "bench",
        .metavar = "HOW",
        .help = "step, decode, prefill, offline, with --dummy-weight: which experts random "
                "routers choose: each token others, or all the same ones",
    },
    {
        .name = "concurrency",
        MSGL_TEXT(msgl_args, concurrency),
        .preset_text = "8",
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_SERVE,
        .group = "bench",
        .metavar = "LIST",
        .help = "serve: clients at a time, one row for each number, such as 8,64,256",
    },
    {
        .name = "open-ended",
        MSGL_FLAG(msgl_args, open_ended),
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_SERVE,
        .group = "bench",
        .help = "serve: requests ask for all that the context leaves, as a chat without max_tokens "
                "does; the client hangs up after --max-tokens",
    },
    {
        .name = "lengths",
        MSGL_TEXT(msgl_args, lengths),
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_OFFLINE,
        .group = "bench",
        .metavar = "FILE",
        .help = "offline: CSV of prompt and output lengths, one request a line",
    },
    {
        .name = "dataset-path",
        MSGL_TEXT(msgl_args, dataset),
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_SPECULATION,
        .group = "bench",
        .metavar = "FILE",
        .help = "speculation: prompts, as lines of `minisgl run --input` (\"messages\" or "
                "\"prompt\", max_tokens, ...), each of which may have a \"class\" "
                "(bench/speculation/prompts.jsonl)",
    },
    {
        .name = "backends",
        MSGL_TEXT(msgl_args, backends),
        .by_default = ": all that run here",
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_ATTN,
        .group = "bench",
        .metavar = "LIST",
        .help = "attn: backends to compare; delta is linear attention",
    },
    {
        .name = "write-table",
        MSGL_TEXT(msgl_args, write_table),
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_ATTN,
        .group = "bench",
        .metavar = "FILE",
        .help =
            "attn, on a GPU: measure which backend is fastest for which heads and page size, "
            "and replace this kind of GPU's rows in FILE (src/cuda/backends/auto_table.inc, which "
            "auto uses)",
    },
    {
        .name = "url",
        MSGL_TEXT(msgl_args, url),
        .by_default = ": a server started for it if --model is given, else http://127.0.0.1:1919",
        .commands = MSGL_CMD_BENCH | MSGL_BENCH_SERVE,
        .group = "bench",
        .metavar = "URL",
        .help = "serve: the OpenAI endpoint to load",
    },
    {
        .name = "step-table",
        MSGL_TEXT(msgl_args, step_table),
        .commands = MSGL_CMD_SIMULATE,
        .group = "bench",
        .metavar = "FILE",
        .help = "how long steps take: what `minisgl bench step --grid -o json` prints",
    },
    {
        .name = "trace",
        MSGL_TEXT(msgl_args, trace),
        .commands = MSGL_CMD_SIMULATE,
        .group = "bench",
        .metavar = "FILE",
        .help = "requests, as JSON lines (docs/simulation.md)",
    },
    {
        .name = "trace-block",
        MSGL_INT(msgl_args, trace_block),
        .min = 1,
        .max = 1 << 20,
        .preset = 512,
        .commands = MSGL_CMD_SIMULATE,
        .group = "bench",
        .metavar = "N",
        .help = "tokens that one of a request's hash_ids stands for",
    },
    {
        .name = "replicas",
        MSGL_TEXT(msgl_args, replicas),
        .preset_text = "1",
        .commands = MSGL_CMD_SIMULATE,
        .group = "bench",
        .metavar = "LIST",
        .help = "servers, one row for each number, such as 1,10,100; up to 10000",
    },
    {
        .name = "clients",
        MSGL_INT(msgl_args, clients),
        .max = 1 << 20,
        .by_default = ": requests come when the trace says",
        .commands = MSGL_CMD_SIMULATE,
        .group = "bench",
        .metavar = "N",
        .help = "so many clients begin at once, and each begins the trace's next conversation when "
                "its last one has ended, as bench serve's do; timestamps are not used",
    },
    {
        .name = "acceptance",
        MSGL_REAL(msgl_args, acceptance),
        .max = 1,
        .commands = MSGL_CMD_SIMULATE,
        .group = "bench",
        .metavar = "X",
        .help = "with --speculative-algorithm: how often a draft is right that stands behind right "
                "ones, of requests whose line has no acceptance of its own",
    },
    {
        .name = "price",
        MSGL_REAL(msgl_args, price),
        .max = 1e9,
        .by_default = ": no cost is printed",
        .commands = MSGL_CMD_SIMULATE,
        .group = "bench",
        .metavar = "X",
        .help = "what a replica costs an hour, in any currency: cost per million tokens, of "
                "answers and of all",
    },
    {
        .name = "format",
        MSGL_TEXT(msgl_args, format),
        .choices = "md|csv|json",
        .preset_text = "md",
        .commands = MSGL_CMD_BENCH | MSGL_CMD_INFO | MSGL_CMD_SIMULATE,
        .group = "bench",
        .metavar = "FORMAT",
        .help = "how rows are printed; info: prints all of its tables so (csv: without the "
                "weights' types)",
    },

    {
        .name = "verbose",
        MSGL_FLAG(msgl_args, verbose),
        .commands = MSGL_CMD_INFO,
        .group = "bench",
        .help = "also what each attention backend can do, and why one cannot run here",
    },
    {
        .name = "decode",
        MSGL_FLAG(msgl_args, decode),
        .commands = MSGL_CMD_TOKENIZE,
        .group = "requests",
        .help = "the reverse: a JSON array of ids on standard input, text out",
    },

    {
        .name = "config",
        MSGL_TEXT(msgl_args, config_file),
        .commands = MSGL_CMD_ALL & ~(unsigned)MSGL_CMD_HELP,
        .group = "help",
        .metavar = "FILE",
        .help = "options that are neither flags nor variables, as YAML: a line NAME: VALUE each, "
                "true or false for a flag, [VALUE, VALUE] where several are allowed "
                "(docs/operations.md)",
    },
    {
        .name = "help",
        MSGL_FLAG(msgl_args, help),
        .commands = MSGL_CMD_ALL,
        .group = "help",
        .help = "show this and end",
    },
    {
        .name = "markdown",
        MSGL_FLAG(msgl_args, markdown),
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .help = "print docs/cli.md",
    },
    {
        .name = "http",
        MSGL_FLAG(msgl_args, http),
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .help = "print docs/http.md",
    },
    {
        .name = "matrix",
        MSGL_FLAG(msgl_args, matrix),
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .help = "print the matrix of attention backends that docs/attention.md has",
    },
    {
        .name = "forms",
        MSGL_FLAG(msgl_args, forms),
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .help = "print the table of forms of weights that docs/packed-weights.md has",
    },
    {
        .name = "man",
        MSGL_FLAG(msgl_args, man),
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .help = "print the manual page: minisgl help --man | man -l -",
    },
    {
        .name = "completion",
        MSGL_TEXT(msgl_args, completion),
        .choices = "bash",
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .metavar = "SHELL",
        .help = "print what completes commands and options: source <(minisgl help --completion "
                "bash)",
    },
};

const msgl_setting_table msgl__cli_settings = {ROWS, MSGL_COUNT(ROWS)};

const char *msgl__option_alias(const msgl_setting *o, int k)
{
    const msgl_spelling *s;
    for (int i = 0; (s = msgl__spelling(i)) != NULL; i++) {
        if (!msgl__spelling_is_alias(s) || strcmp(s->option, o->name) != 0) continue;
        if (k-- == 0) return s->flag;
    }
    return NULL;
}
