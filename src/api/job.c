// SPDX-License-Identifier: Apache-2.0
#include "api/job.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "api/begin_answer.h"
#include "api/conversation.h"
#include "api/endpoint.h"
#include "api/fill_prompt.h"
#include "api/pair_prompt.h"
#include "api/row_values.h"
#include "api/turn_prompt.h"
#include "text/bad_words.h"
#include "text/dry_breakers.h"

enum { ANSWER_MAX = 1 << 30 };

static void free_ids(msgl_job *j)
{
    for (int i = 0; j->ids != NULL && i < j->req.num_prompts; i++) msgl__ids_free(&j->ids[i]);
    msgl__free(j->ids);
    msgl__free(j->marks);
    j->ids = NULL;
    j->marks = NULL;
}

// Frees all that the job has but its error.
static void drop(msgl_job *j)
{
    free_ids(j);
    msgl__gen_request_free(&j->req);
    msgl__strbuf_free(&j->body);
    msgl__strbuf_free(&j->answer);
    msgl__strbuf_free(&j->rendered);
    msgl__claim_free(&j->claim);
}

void msgl__job_free(msgl_job *j)
{
    if (j == NULL) return;
    drop(j);
    msgl__free(j);
}

// 400 for what the request caused, 500 for what it did not.
static int text_fail(msgl_job *j, int rc, const char *param, const msgl_err *err)
{
    const bool theirs = rc == MSGL_EINVAL || rc == MSGL_ELIMIT || rc == MSGL_EFORMAT;
    const char *text = rc == MSGL_ENOMEM ? "Out of memory." : err->text;
    if (*text == '\0') text = "The chat template raised an exception that says nothing.";
    return msgl__api_fail(&j->error, theirs ? 400 : 500, param, theirs ? "invalid_value" : NULL,
                          "%s", text);
}

// Memory for at most n ids, doubled because the array grows by doubling.
static int claim_ids(msgl_job *j, size_t n)
{
    const int rc = msgl__claim_add(&j->claim, MSGL_BUDGET_PROMPT, 2 * n * sizeof(int32_t));
    return rc == 0 ? 0 : msgl__api_fail_memory(&j->error, rc);
}

static int encode(msgl_job *j, const msgl_tokenizer *tokenizer, const char *param, const char *text,
                  size_t len, const msgl_encode_opts *opts, msgl_ids *ids)
{
    msgl_err err = {0};
    // A token has at least one byte, or was added by the post-processor.
    const size_t before = j->claim.bytes,
                 most = len + 16 < opts->max_ids ? len + 16 : opts->max_ids;
    int rc = claim_ids(j, most);
    if (rc != 0) return rc;
    rc = msgl__tokenizer_encode(tokenizer, text, len, opts, ids, &err);
    msgl__claim_count(&j->claim, before + ids->cap * sizeof ids->data[0]);
    if (rc == MSGL_ELIMIT) {
        return msgl__api_fail(
            &j->error, 400, param, "context_length_exceeded",
            "This model's maximum context length is %d tokens, and the prompt has "
            "more than %zu.",
            j->max_seq_len, opts->max_ids);
    }
    return rc == 0 ? 0 : text_fail(j, rc, param, &err);
}

// Kept instead of ids.
static int keep_rendered(msgl_job *j, msgl_rendered *r)
{
    j->rendered = r->text;
    r->text = (msgl_strbuf){0};
    const int rc = msgl__claim_add(&j->claim, MSGL_BUDGET_PROMPT, j->rendered.cap);
    return rc == 0 ? 0 : msgl__api_fail_memory(&j->error, rc);
}

// How the render of a conversation failed. param: the field of its template, if it brings one.
static int render_fail(msgl_job *j, int rc, const char *param, const msgl_conversation *c,
                       const msgl_err *err)
{
    if (rc == MSGL_EBUSY) return msgl__api_fail_memory(&j->error, c->refused);
    if (rc != MSGL_EUNSUPPORTED) return text_fail(j, rc, param, err);
    return msgl__api_fail(&j->error, 400, "continue_final_message", "unsupported_parameter",
                          "'continue_final_message' is true, but this model's chat template does "
                          "not write the last message as it is.");
}

// With the template that the request brings, or the model's.
static int render(msgl_job *j, const msgl_chat_templates *templates, const char *field,
                  msgl_rendered *r)
{
    const json_t *text = j->req.chat.template;
    msgl_chat_template *own = NULL;
    msgl_err err = {0};
    msgl_conversation c = {.templates = templates,
                           .vars = j->req.chat.vars,
                           .continue_final = j->req.chat.continue_final,
                           .claim = &j->claim};
    int rc = 0;
    if (text != NULL) {
        field = "chat_template";
        c.limits = msgl__render_limits_of_request(j->body_len);
        rc = msgl__chat_template_parse(json_string_value(text), json_string_length(text), &own,
                                       &err);
        if (rc == MSGL_EUNSUPPORTED) rc = MSGL_EINVAL; // by templates: theirs, here
        if (rc != 0) return text_fail(j, rc, field, &err);
    }
    c.own = own;
    c.limits.cancelled = &j->cancelled;
    c.limits.load_arguments = true;
    rc = msgl__conversation_render(&c, r, &err);
    msgl__chat_template_free(own);
    if (rc != 0) return render_fail(j, rc, field, &c, &err);
    msgl__conversation_note(c.changed, &j->req.notes);
    return 0;
}

static int encode_chat(msgl_job *j, const msgl_tokenizer *tokenizer,
                       const msgl_chat_templates *templates, const char *field, size_t max_ids)
{
    const bool none = templates == NULL || *msgl__chat_templates_text(templates) == '\0';
    if (none && j->req.chat.template == NULL) {
        return msgl__api_fail(&j->error, 400, field, NULL,
                              "This model has no chat template; use /v1/completions.");
    }
    msgl_rendered r = {0};
    int rc = render(j, templates, field, &r);
    if (rc != 0) {
        // said
    } else if (j->ep->prompt == MSGL_PROMPT_RENDERED) {
        rc = keep_rendered(j, &r);
    } else if ((rc = msgl__begin_answer(&j->req, tokenizer, &r, &j->error)) == 0) {
        // The template writes BOS and the like itself: nothing is added. What came from the client
        // is text, whatever it spells.
        const msgl_encode_opts opts = {.untrusted = r.untrusted,
                                       .num_untrusted = r.num_untrusted,
                                       .foreign = r.foreign,
                                       .num_foreign = j->config.added_from_text ? 0 : r.num_foreign,
                                       .max_ids = max_ids};
        rc = encode(j, tokenizer, field, msgl__strbuf_str(&r.text), r.text.len, &opts, &j->ids[0]);
    }
    msgl__rendered_free(&r);
    return rc;
}

// A text between others, as one.
static int encode_between(msgl_job *j, const msgl_tokenizer *tokenizer, const msgl_prompt *p,
                          const char *field, size_t max_ids, msgl_ids *ids)
{
    const char *before = j->req.before == NULL ? "" : j->req.before;
    const char *behind = j->req.behind == NULL ? "" : j->req.behind;
    const size_t n = strlen(before), end = strlen(behind), len = n + p->len + end;
    const size_t claimed = j->claim.bytes;
    const msgl_encode_opts opts = {.add_special = true, .max_ids = max_ids};
    int rc = msgl__claim_add(&j->claim, MSGL_BUDGET_PROMPT, len);
    if (rc != 0) return msgl__api_fail_memory(&j->error, rc);
    char *all = msgl__malloc(len);
    if (all == NULL) return msgl__api_oom(&j->error);
    memcpy(all, before, n);
    memcpy(all + n, p->text, p->len);
    memcpy(all + n + p->len, behind, end);
    rc = encode(j, tokenizer, field, all, len, &opts, ids);
    msgl__free(all);
    msgl__claim_count(&j->claim, claimed + ids->cap * sizeof ids->data[0]);
    return rc;
}

static int encode_prompt(msgl_job *j, const msgl_tokenizer *tokenizer, msgl_prompt *p,
                         const char *field, size_t max_ids, msgl_ids *ids)
{
    if (p->text == NULL) {
        *ids = (msgl_ids){p->ids, (size_t)p->num_ids, (size_t)p->num_ids};
        p->ids = NULL;
        return 0;
    }
    if (j->req.before != NULL || j->req.behind != NULL)
        return encode_between(j, tokenizer, p, field, max_ids, ids);
    const msgl_text_span all = {0, p->len};
    const msgl_encode_opts opts = {.add_special = !j->req.without_special_tokens,
                                   .untrusted = &all,
                                   .num_untrusted = j->req.special_tokens_are_text,
                                   .max_ids = max_ids};
    return encode(j, tokenizer, field, p->text, p->len, &opts, ids);
}

static int make_marks(msgl_job *j)
{
    if (j->marks != NULL) return 0;
    j->marks = msgl__calloc((size_t)j->req.num_prompts, sizeof *j->marks);
    return j->marks != NULL ? 0 : msgl__api_oom(&j->error);
}

// Marks the tokens of texts that are their prompt's, which is in front of all of them: so many as
// it has by itself, without a special one at its end, as sentence-transformers counts them.
static int mark_prompts(msgl_job *j, const msgl_tokenizer *tokenizer, const char *field,
                        size_t max_ids)
{
    const char *before = j->req.before;
    const msgl_encode_opts opts = {.add_special = true, .max_ids = max_ids};
    msgl_ids ids = {0};
    if (before == NULL || before[0] == '\0') return 0;
    const size_t claimed = j->claim.bytes;
    int rc = make_marks(j);
    if (rc == 0) rc = encode(j, tokenizer, field, before, strlen(before), &opts, &ids);
    size_t n = ids.len;
    if (n > 0 && msgl__tokenizer_is_special(tokenizer, ids.data[n - 1]) != 0) n--;
    msgl__ids_free(&ids);
    msgl__claim_count(&j->claim, claimed);
    for (int i = 0; i < j->req.num_prompts && rc == 0; i++) {
        if (j->req.prompts[i].text != NULL) j->marks[i].pool_from = (int32_t)n;
    }
    return rc;
}

// A query and its document as an encoder was trained with pairs: whatever they spell, they are
// text.
static int encode_pair(msgl_job *j, const msgl_tokenizer *tokenizer, int i, const char *field,
                       size_t max_ids)
{
    const msgl_prompt *document = &j->req.prompts[i];
    const msgl_prompt *query = &j->req.prompts[msgl__pair_query(&j->req, i)];
    const msgl_encode_opts opts = {.max_ids = max_ids};
    const size_t most = query->len + document->len + 16, before = j->claim.bytes;
    msgl_err err = {0};
    size_t from = 0;
    int rc = claim_ids(j, 2 * (most < max_ids ? most : max_ids)); // each alone, then both
    if (rc == 0) rc = make_marks(j);
    if (rc != 0) return rc;
    rc = msgl__tokenizer_encode_pair(tokenizer, query->text, query->len, document->text,
                                     document->len, &opts, &j->ids[i], &from, &err);
    msgl__claim_count(&j->claim, before + j->ids[i].cap * sizeof j->ids[i].data[0]);
    if (rc == MSGL_EUNSUPPORTED) return msgl__api_fail(&j->error, 501, NULL, NULL, "%s", err.text);
    if (rc == MSGL_ELIMIT) {
        return msgl__api_fail(&j->error, 400, field, "context_length_exceeded",
                              "This model's maximum context length is %d tokens, and query and "
                              "document have more than %zu.",
                              j->max_seq_len, max_ids);
    }
    if (rc != 0) return text_fail(j, rc, field, &err);
    j->marks[i].pair_from = from < j->ids[i].len ? (int32_t)from : 0;
    return 0;
}

// Whether prompt i is a text that stands in the model's chat template.
static bool in_turns(const msgl_job *j, int i)
{
    return j->config.text_form.turns && j->ep->pooled && !j->req.pairs.on &&
           j->req.prompts[i].text != NULL;
}

// A document and its query in one prompt, a text in its turn, or a gap with what stands around it:
// special tokens are the form's alone, as in a chat.
static int encode_parts(msgl_job *j, const msgl_tokenizer *tokenizer,
                        const msgl_chat_templates *templates, int i, const char *field,
                        size_t max_ids)
{
    msgl_rendered r = {0};
    msgl_err err = {0};
    const bool gap = j->req.fill != NULL;
    const msgl_render_limits limits = {.cancelled = &j->cancelled};
    int rc = gap ? msgl__fill_render(&j->req, tokenizer, &r, &err)
             : j->req.pairs.on
                 ? msgl__pair_render(&j->req, i, templates, &limits, &r, &err)
                 : msgl__turn_render(&j->config.text_form, j->req.before, &j->req.prompts[i],
                                     templates, &limits, &r, &err);
    if (rc == MSGL_EUNSUPPORTED && gap) {
        rc = msgl__api_fail(&j->error, 501, NULL, NULL, "%s", err.text);
    } else if (rc != 0) {
        rc = text_fail(j, rc, field, &err);
    } else {
        const msgl_encode_opts opts = {.add_special = gap,
                                       .untrusted = r.untrusted,
                                       .num_untrusted = r.num_untrusted,
                                       .foreign = r.untrusted,
                                       .num_foreign =
                                           j->config.added_from_text ? 0 : r.num_untrusted,
                                       .max_ids = max_ids};
        rc = encode(j, tokenizer, field, msgl__strbuf_str(&r.text), r.text.len, &opts, &j->ids[i]);
    }
    msgl__rendered_free(&r);
    return rc;
}

// The end of a prompt, if no more of it is wanted. One token of the context is the answer's.
static void keep_last(const msgl_job *j, msgl_ids *ids)
{
    const size_t fits = (size_t)j->max_seq_len - 1, wanted = (size_t)j->req.last_tokens;
    const size_t most = wanted < fits ? wanted : fits;
    if (wanted == 0 || ids->len <= most) return;
    if (!j->req.keep_first) {
        memmove(ids->data, ids->data + (ids->len - most), most * sizeof *ids->data);
    }
    ids->len = most;
}

// An answer to n tokens can be as long as it has to be at least.
static int check_least(msgl_job *j, size_t n)
{
    const int32_t room = j->max_seq_len - (int32_t)n, max = j->req.max_tokens;
    const int32_t most = max < 0 || max > room ? room : max;
    if (j->req.sampling.min_tokens <= most) return 0;
    return msgl__api_fail(&j->error, 400, "min_tokens", "invalid_value",
                          "'min_tokens' is %d; allowed: at most max_tokens, which is %d.",
                          j->req.sampling.min_tokens, most);
}

static int check_length(msgl_job *j, const msgl_endpoint *ep, const char *param, size_t n)
{
    const bool answered = !ep->pooled || j->config.pooled_size == 0;
    if (n == 0) {
        return msgl__api_fail(&j->error, 400, param, "invalid_value",
                              "'%s' has no tokens; it must have at least one.", param);
    }
    if (n + answered <= (size_t)j->max_seq_len) return answered ? check_least(j, n) : 0;
    return msgl__api_fail(&j->error, 400, param, "context_length_exceeded",
                          "This model's maximum context length is %d tokens. The prompt has "
                          "%zu%s.",
                          j->max_seq_len, n,
                          answered ? ", which leaves no room for an answer" : "");
}

// What stays claimed when the tree is gone.
static size_t detached_bytes(const msgl_job *j)
{
    const msgl_gen_request *r = &j->req;
    size_t n = sizeof *j + r->text_len + msgl__req_extra_bytes(r->extra) + j->answer.cap +
               msgl__tool_set_bytes(r->chat.tools) + r->chat.prefill.cap + r->kept.cap;
    const msgl_own_fields *own = r->own == NULL ? NULL : r->ep->own;
    if (own != NULL) n += own->size + (own->bytes == NULL ? 0 : own->bytes(r->own));
    for (int i = 0; i < r->num_prompts && j->ids != NULL; i++) {
        n += sizeof j->ids[i] + j->ids[i].cap * sizeof j->ids[i].data[0] + sizeof(msgl_prompt);
        if (r->extras != NULL) n += sizeof r->extras[i] + msgl__req_extra_bytes(r->extras[i]);
    }
    return n;
}

// The ids of all prompts. An answer has to fit behind those that the engine gets.
static int make_ids(msgl_job *j, const msgl_endpoint *ep, const msgl_tokenizer *tokenizer,
                    const msgl_chat_templates *templates)
{
    j->ids = msgl__calloc((size_t)j->req.num_prompts, sizeof *j->ids);
    if (j->ids == NULL) return msgl__api_oom(&j->error);
    // Somewhat beyond the limit the exact count still is a help; far beyond, counting is waste.
    const size_t max_ids = (size_t)j->max_seq_len + 65536;
    const bool chat = j->req.chat.vars != NULL;
    const char *field = chat && ep->prompt == MSGL_PROMPT_EITHER ? "messages" : ep->prompt_field;
    char name[sizeof j->error.param];
    int rc = 0;
    if (ep->pooled && j->config.text_form.without_prompt && !j->config.text_form.turns)
        rc = mark_prompts(j, tokenizer, field, max_ids);
    for (int i = 0; i < j->req.num_prompts && rc == 0 && !atomic_load(&j->cancelled); i++) {
        if (ep->name_prompt != NULL) {
            ep->name_prompt(&j->req, i, name, sizeof name);
            field = name;
        }
        rc = chat                   ? encode_chat(j, tokenizer, templates, field, max_ids)
             : j->req.pairs.encoded ? encode_pair(j, tokenizer, i, field, max_ids)
             : j->req.pairs.on || j->req.fill != NULL || in_turns(j, i)
                 ? encode_parts(j, tokenizer, templates, i, field, max_ids)
                 : encode_prompt(j, tokenizer, &j->req.prompts[i], field, max_ids, &j->ids[i]);
        if (rc == 0) keep_last(j, &j->ids[i]);
        if (rc == 0 && !msgl__endpoint_ends_here(ep, &j->req))
            rc = check_length(j, ep, field, j->ids[i].len);
    }
    return rc;
}

// bad_words' tokens, into what goes to the engine.
static int ban_words(msgl_job *j, const msgl_tokenizer *t)
{
    const json_t *words = j->req.bad_words;
    msgl_req_extra_parts parts = msgl__req_extra_parts_of(j->req.extra);
    msgl_req_extra *both = NULL;
    msgl_ids banned = {0};
    msgl_err err = {0};
    char param[64] = "bad_words";
    int rc = 0;
    for (size_t i = 0; i < json_array_size(words) && rc == 0; i++) {
        const json_t *word = json_array_get(words, i);
        rc =
            msgl__bad_word_add(t, json_string_value(word), json_string_length(word), &banned, &err);
        if (rc != 0) (void)snprintf(param, sizeof param, "bad_words[%zu]", i);
    }
    parts.banned = banned.data;
    parts.num_banned = (int64_t)banned.len;
    if (rc == 0) rc = msgl__req_extra_create_with(&parts, j->config.vocab_size, &both, &err);
    msgl__ids_free(&banned);
    if (rc == MSGL_ENOMEM) return msgl__api_oom(&j->error);
    if (rc != 0) {
        return msgl__api_fail(&j->error, 400, param, "invalid_value", "'%s': %s.", param, err.text);
    }
    msgl__req_extra_unref(j->req.extra);
    j->req.extra = both;
    return 0;
}

// The tokens that DRY stops at, the same.
static int break_repeats(msgl_job *j, const msgl_tokenizer *t)
{
    const json_t *list = j->req.dry_breakers;
    const char *texts[MSGL_MAX_BREAKERS];
    msgl_req_extra_parts parts = msgl__req_extra_parts_of(j->req.extra);
    msgl_req_extra *both = NULL;
    msgl_ids ids = {0};
    msgl_err err = {0};
    char param[64] = "dry_sequence_breakers";
    int at = 0, n = (int)json_array_size(list); // at most so many: parse
    for (int i = 0; i < n; i++) texts[i] = json_string_value(json_array_get(list, (size_t)i));
    int rc = msgl__dry_breakers(t, list != NULL ? texts : NULL, n, &ids, &at, &err);
    if (rc != 0) (void)snprintf(param, sizeof param, "dry_sequence_breakers[%d]", at);
    parts.breakers = ids.data;
    parts.num_breakers = (int64_t)ids.len;
    if (rc == 0) rc = msgl__req_extra_create_with(&parts, j->config.vocab_size, &both, &err);
    msgl__ids_free(&ids);
    if (rc == MSGL_ENOMEM) return msgl__api_oom(&j->error);
    if (rc != 0) {
        return msgl__api_fail(&j->error, 400, param, "invalid_value", "'%s': %s.", param, err.text);
    }
    msgl__req_extra_unref(j->req.extra);
    j->req.extra = both;
    return 0;
}

// The answer, after which the ids are not needed any more.
static int end_here(msgl_job *j, const msgl_endpoint *ep, const msgl_tokenizer *tokenizer)
{
    if (atomic_load(&j->cancelled)) return MSGL_EABORTED; // and ids may be missing
    msgl__strbuf_init(&j->answer, ANSWER_MAX);
    int rc = ep->put_job(j, tokenizer, &j->answer);
    if (rc == 0) rc = msgl__claim_add(&j->claim, MSGL_BUDGET_ANSWER, j->answer.cap);
    free_ids(j);
    msgl__strbuf_free(&j->rendered);
    if (rc == MSGL_ENOMEM) return msgl__api_oom(&j->error);
    return rc == 0 ? 0 : msgl__api_fail_memory(&j->error, rc);
}

static int run(msgl_job *j, const msgl_tokenizer *tokenizer, const msgl_chat_templates *templates)
{
    const msgl_endpoint *ep = j->ep;
    const size_t body = j->body.cap, claimed = j->claim.bytes;
    j->body_len = j->body.len;
    int rc = msgl__api_parse(ep, msgl__strbuf_str(&j->body), j->body.len, &j->config, &j->claim,
                             &j->req, &j->error);
    if (rc == MSGL_API_FORM) {
        msgl__claim_sub(&j->claim, j->claim.bytes - claimed);
        return rc;
    }
    msgl__strbuf_free(&j->body);
    msgl__claim_sub(&j->claim, body);
    if (rc == 0) rc = make_ids(j, ep, tokenizer, templates);
    if (rc == 0 && j->req.bad_words != NULL) rc = ban_words(j, tokenizer);
    if (rc == 0 && j->req.sampling.dry_multiplier > 0) rc = break_repeats(j, tokenizer);
    if (rc == 0) rc = msgl__row_values_extras(j);
    if (rc == 0 && msgl__endpoint_ends_here(ep, &j->req)) rc = end_here(j, ep, tokenizer);
    if (rc == 0 && msgl__gen_request_detach(&j->req) != 0) {
        rc = msgl__api_oom(&j->error);
    }
    if (rc == 0) msgl__claim_count(&j->claim, detached_bytes(j));
    return rc;
}

bool msgl__job_run(msgl_job *j, const msgl_tokenizer *tokenizer,
                   const msgl_chat_templates *templates)
{
    j->rc = atomic_load(&j->cancelled) ? MSGL_EABORTED : run(j, tokenizer, templates);
    if (j->rc == MSGL_API_FORM) return false;
    if (j->rc != 0) drop(j);
    return true;
}
