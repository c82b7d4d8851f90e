// SPDX-License-Identifier: Apache-2.0
//
// Texts to ids and back, and conversations to the prompts that the model gets, without the engine:
// POST /tokenize, /detokenize and /apply-template, in the forms of vLLM, SGLang and llama-server,
// whose answers have no field in common but "tokens" and so are one.
#include <string.h>

#include "core/mem.h"
#include "api/vllm/endpoints.h"
#include "api/fields.h"
#include "api/json.h"
#include "utils/utf8.h"

// --- /tokenize ---

// Fields of these alone.
typedef struct tokenize {
    bool many;   // an array was given, whatever its length
    bool pieces; // tokens with their bytes
} tokenize;
static const msgl_own_fields own_fields = {.size = sizeof(tokenize)};

static tokenize *own_of(const msgl_gen_request *r)
{
    return r->own;
}

static const msgl_field_row rows[] = {
    MSGL_ROW_MODEL,
    {"prompt", MSGL_FIELD_ANY, .max_items = MSGL_API_MAX_PROMPTS,
     .help =
         "a string or an array of strings; one of `prompt`, `content` and `messages` is required"},
    {"content", MSGL_FIELD_ANY, .max_items = MSGL_API_MAX_PROMPTS,
     .help = "llama-server's name of `prompt`; `add_special` is then false unless given"},
    {"add_special_tokens", MSGL_FIELD_BOOL, .preset = "true",
     .help = "the tokens that begin a prompt are added"},
    {"add_special", MSGL_FIELD_BOOL, .preset = "true", .help = "llama-server's name of it"},
    {"parse_special", MSGL_FIELD_BOOL, .preset = "true",
     .help = "special tokens that the text spells are tokens"},
    {"with_pieces", MSGL_FIELD_BOOL, .preset = "false",
     .help = "`tokens` are objects with `id` and `piece`"},
    {0},
};
static const msgl_refused_field refused[] = {{"return_token_strs", MSGL_NEUTRAL_FALSE},
                                             {"return_tokens_as_token_ids", MSGL_NEUTRAL_FALSE},
                                             {NULL, MSGL_NEUTRAL_NULL}};
static const msgl_fields fields = {
    .read = rows, .refused = refused, .also = &msgl__conversation_fields};
static const msgl_fields *const objects[] = {&fields, NULL};

// A text or several, which may be empty.
static int parse_texts(const json_t *v, const char *name, msgl_gen_request *out, msgl_api_error *e)
{
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (json_is_array(v) && (n == 0 || n > MSGL_API_MAX_PROMPTS)) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s' has %zu texts; allowed: 1 to %d.", name, n,
                              MSGL_API_MAX_PROMPTS);
    }
    out->prompts = msgl__calloc(n, sizeof *out->prompts);
    if (out->prompts == NULL) return msgl__api_oom(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(text)) {
            return msgl__api_fail(e, 400, name, "invalid_type",
                                  "'%s' must be a string or an array of strings.", name);
        }
        out->prompts[out->num_prompts++] =
            (msgl_prompt){.text = json_string_value(text), .len = json_string_length(text)};
    }
    own_of(out)->many = json_is_array(v);
    return 0;
}

// The one of the three that is there.
static int find_source(const json_t *o, const char **name, msgl_api_error *e)
{
    static const char *const sources[] = {"prompt", "content", "messages"};
    *name = NULL;
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        if (msgl__field(o, sources[i]) == NULL) continue;
        if (*name != NULL) {
            return msgl__api_fail(e, 400, sources[i], "invalid_value",
                                  "'%s' and '%s' are both given; allowed: one of them.", *name,
                                  sources[i]);
        }
        *name = sources[i];
    }
    if (*name != NULL) return 0;
    return msgl__api_fail(e, 400, "prompt", "missing_required_parameter",
                          "'prompt' is missing (or 'content', or 'messages').");
}

static int parse_tokenize(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                          msgl_api_error *e)
{
    const char *source = NULL;
    int rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = find_source(o, &source, e);
    if (rc < 0) return rc;
    // BOS and the like: llama-server, whose text is "content", adds none unless asked.
    bool special = strcmp(source, "content") != 0, parse = true;
    rc = msgl__field_bool(o, "add_special", &special, e);
    if (rc >= 0) rc = msgl__field_bool(o, "add_special_tokens", &special, e);
    if (rc >= 0) rc = msgl__field_bool(o, "parse_special", &parse, e);
    if (rc >= 0) rc = msgl__field_bool(o, "with_pieces", &own_of(out)->pieces, e);
    if (rc < 0) return rc;
    out->without_special_tokens = !special;
    out->special_tokens_are_text = !parse;
    if (strcmp(source, "messages") == 0) return msgl__parse_conversation(o, cfg, out, e);
    return parse_texts(json_object_get(o, source), source, out, e);
}

// A token's bytes as llama-server writes them: a string where they are UTF-8, else numbers.
static int put_piece(const msgl_tokenizer *t, int32_t id, msgl_strbuf *out)
{
    char few[256], *bytes = few;
    const int n = msgl__tokenizer_token_bytes(t, id, few, sizeof few);
    if (n > (int)sizeof few) {
        bytes = msgl__calloc(1, (size_t)n);
        if (bytes == NULL) return MSGL_ENOMEM;
        (void)msgl__tokenizer_token_bytes(t, id, bytes, (size_t)n);
    }
    const size_t len = n < 0 ? 0 : (size_t)n;
    int rc;
    if (msgl__utf8_valid(bytes, len) == len) {
        rc = msgl__json_put_str(out, bytes, len);
    } else {
        rc = msgl__strbuf_addc(out, '[');
        for (size_t i = 0; i < len && rc == 0; i++) {
            rc = msgl__strbuf_addf(out, "%s%d", i == 0 ? "" : ",", (unsigned char)bytes[i]);
        }
        if (rc == 0) rc = msgl__strbuf_addc(out, ']');
    }
    if (bytes != few) msgl__free(bytes);
    return rc;
}

static int put_tokens(const msgl_job *j, const msgl_tokenizer *t, const msgl_ids *ids,
                      msgl_strbuf *out)
{
    int rc = msgl__strbuf_addc(out, '[');
    for (size_t i = 0; i < ids->len && rc == 0; i++) {
        const char *comma = i == 0 ? "" : ",";
        if (!own_of(&j->req)->pieces) {
            rc = msgl__strbuf_addf(out, "%s%d", comma, ids->data[i]);
            continue;
        }
        rc = msgl__strbuf_addf(out, "%s{\"id\":%d,\"piece\":", comma, ids->data[i]);
        if (rc == 0) rc = put_piece(t, ids->data[i], out);
        if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

// Of several texts, "tokens" and "count" are arrays, as from SGLang.
static int put_tokenized(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out)
{
    const bool many = own_of(&j->req)->many;
    int rc = msgl__strbuf_adds(out, many ? "{\"tokens\":[" : "{\"tokens\":");
    for (int i = 0; i < j->req.num_prompts && rc == 0; i++) {
        if (i > 0) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = put_tokens(j, t, &j->ids[i], out);
    }
    if (rc == 0) rc = msgl__strbuf_adds(out, many ? "],\"count\":[" : ",\"count\":");
    for (int i = 0; i < j->req.num_prompts && rc == 0; i++) {
        rc = msgl__strbuf_addf(out, "%s%zu", i == 0 ? "" : ",", j->ids[i].len);
    }
    if (rc == 0 && many) rc = msgl__strbuf_addc(out, ']');
    return rc == 0 ? msgl__strbuf_addf(out, ",\"max_model_len\":%d}", j->max_seq_len) : rc;
}

static const msgl_example tokenize_examples[] = {
    {"A text", MSGL_HTTP_POST, .body = "{\"prompt\": \"Hello\"}",
     .has = "tokens count max_model_len"},
    {"A conversation", MSGL_HTTP_POST,
     .body = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 27 + 58?\"}]}",
     .has = "tokens count max_model_len"},
    {0},
};
const msgl_endpoint msgl__endpoint_tokenize = {
    .path = "/tokenize",
    .own = &own_fields,
    .help = "The tokens of a text, of several, or of a conversation ([tokenize.md](tokenize.md)).",
    .examples = tokenize_examples,
    .method = MSGL_HTTP_POST,
    .parse = parse_tokenize,
    .objects = objects,
    .prompt = MSGL_PROMPT_EITHER,
    .prompt_field = "prompt",
    .put_job = put_tokenized,
};

// --- /detokenize ---

static const msgl_field_row id_rows[] = {
    MSGL_ROW_MODEL,
    {"tokens", MSGL_FIELD_ANY, .required = true, .max_items = MSGL_API_MAX_PROMPTS,
     .help = "an array of token ids, or an array of such"},
    {"skip_special_tokens", MSGL_FIELD_BOOL, .preset = "false",
     .help = "special tokens are not shown as text"},
    {0},
};
static const msgl_fields id_fields = {.read = id_rows};
static const msgl_fields *const id_objects[] = {&id_fields, NULL};

static int parse_detokenize(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                            msgl_api_error *e)
{
    const json_t *tokens = msgl__field(o, "tokens");
    int rc = msgl__check_fields(o, &id_fields, cfg, cfg->unknown_fields, &out->unknown, e);
    out->skip_special = false;
    if (rc == 0) rc = msgl__field_bool(o, "skip_special_tokens", &out->skip_special, e);
    if (rc < 0) return rc;
    const json_t *first = json_array_get(tokens, 0);
    if (json_is_string(tokens) || json_is_string(first)) {
        return msgl__api_fail(e, 400, "tokens", "invalid_type",
                              "'tokens' must be an array of token ids, or an array of such.");
    }
    own_of(out)->many = json_is_array(first);
    if (json_is_array(tokens) && first == NULL) { // no tokens, no text
        out->prompts = msgl__calloc(1, sizeof *out->prompts);
        out->num_prompts = 1;
        return out->prompts != NULL ? 0 : msgl__api_oom(e);
    }
    return msgl__parse_prompts(tokens, "tokens", cfg, out, e);
}

// Ids that the model has and the tokenizer has not are no text.
static int put_text(const msgl_tokenizer *t, const msgl_ids *ids, bool skip_special,
                    msgl_strbuf *out)
{
    msgl_strbuf text;
    msgl__strbuf_init(&text, SIZE_MAX / 2);
    msgl_detok *d = msgl__detok_create(t, skip_special);
    int rc = d != NULL ? 0 : MSGL_ENOMEM;
    for (size_t i = 0; i < ids->len && rc == 0; i++) {
        rc = msgl__detok_push(d, ids->data[i], &text);
        if (rc == MSGL_EINVAL) rc = 0;
    }
    if (rc == 0) rc = msgl__detok_finish(d, &text);
    if (rc == 0) rc = msgl__json_put_str(out, msgl__strbuf_str(&text), text.len);
    msgl__detok_destroy(d);
    msgl__strbuf_free(&text);
    return rc;
}

static int put_texts(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out)
{
    int rc = own_of(&j->req)->many ? msgl__strbuf_addc(out, '[') : 0;
    for (int i = 0; i < j->req.num_prompts && rc == 0; i++) {
        if (i > 0) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = put_text(t, &j->ids[i], j->req.skip_special, out);
    }
    return rc == 0 && own_of(&j->req)->many ? msgl__strbuf_addc(out, ']') : rc;
}

// vLLM's "prompt", llama-server's "content", SGLang's "text".
static int put_detokenized(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out)
{
    static const char *const heads[] = {"{\"prompt\":", ",\"content\":", ",\"text\":"};
    int rc = 0;
    for (int i = 0; i < 3 && rc == 0; i++) {
        rc = msgl__strbuf_adds(out, heads[i]);
        if (rc == 0) rc = put_texts(j, t, out);
    }
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static const msgl_example detokenize_examples[] = {
    {"The text of three tokens", MSGL_HTTP_POST, .body = "{\"tokens\": [72, 101, 108]}",
     .has = "prompt content text"},
    {0},
};
const msgl_endpoint msgl__endpoint_detokenize = {
    .path = "/detokenize",
    .own = &own_fields,
    .help = "The text of tokens.",
    .examples = detokenize_examples,
    .method = MSGL_HTTP_POST,
    .parse = parse_detokenize,
    .objects = id_objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "tokens",
    .put_job = put_detokenized,
};

// --- /apply-template ---

static const msgl_field_row chat_rows[] = {
    MSGL_ROW_MODEL,
    {0},
};
static const msgl_fields chat_fields = {.read = chat_rows, .also = &msgl__conversation_fields};
static const msgl_fields *const chat_objects[] = {&chat_fields, NULL};

static int parse_conversation(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                              msgl_api_error *e)
{
    const int rc = msgl__check_fields(o, &chat_fields, cfg, cfg->unknown_fields, &out->unknown, e);
    return rc == 0 ? msgl__parse_conversation(o, cfg, out, e) : rc;
}

static int put_rendered(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out)
{
    (void)t;
    int rc = msgl__strbuf_adds(out, "{\"prompt\":");
    if (rc == 0) rc = msgl__json_put_str(out, msgl__strbuf_str(&j->rendered), j->rendered.len);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static const msgl_example apply_template_examples[] = {
    {"The prompt of a question", MSGL_HTTP_POST,
     .body = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 27 + 58?\"}]}",
     .has = "prompt"},
    {0},
};
const msgl_endpoint msgl__endpoint_apply_template = {
    .path = "/apply-template",
    .help = "The prompt that the chat template makes of a conversation.",
    .examples = apply_template_examples,
    .method = MSGL_HTTP_POST,
    .parse = parse_conversation,
    .objects = chat_objects,
    .prompt = MSGL_PROMPT_RENDERED,
    .prompt_field = "messages",
    .put_job = put_rendered,
};
