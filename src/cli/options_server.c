// SPDX-License-Identifier: Apache-2.0
//
// Options of minisgl serve: names and defaults are Mini-SGLang's where it has them.
#include "cli/options.h"
#include "core/attributes.h"
#include "front/metrics.h"
#include "parsers/parser.h"
#include "routing/router.h"

static const msgl_setting ROWS[] = {
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
};
const msgl_setting_table msgl__server_options = {ROWS, MSGL_COUNT(ROWS)};
