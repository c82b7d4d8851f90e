// SPDX-License-Identifier: Apache-2.0
//
// The conversation is rendered anew for each answer; the radix cache finds what the model has
// already read.
#include "apps/chat/chat_answer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/chat/chat_terminal.h"
#include "cli/common.h"
#include "core/err.h"
#include "core/mem.h"
#include "llm/llm.h"
#include "utils/clock.h"

enum { MAX_ANSWER = 1 << 28 };

struct turn {
    msgl_parser *parser; // NULL: all is content
    msgl_parts parts;
    msgl_strbuf content, reasoning;
    bool color, dim;
    uint64_t first_ns, end_ns;
    int prompt, tokens, cached, finish;
    char error[256];
};

// ---- showing ----

static void set_dim(struct turn *t, bool dim)
{
    if (t->dim == dim || !t->color) return;
    t->dim = dim;
    fputs(dim ? "\033[2m" : "\033[0m", stdout);
}

// Shows and keeps what became certain of the answer's parts.
static int take_parts(struct turn *t)
{
    int rc = 0;
    const char *bytes = msgl__strbuf_str(&t->parts.bytes);
    for (size_t i = 0; rc == 0 && i < t->parts.count; i++) {
        const bool thought = t->parts.items[i].kind == MSGL_PART_REASONING;
        const size_t len = t->parts.items[i].len;
        if (t->color) {
            if (!thought && t->dim) fputs("\n\n", stdout);
            set_dim(t, thought);
            fwrite(bytes, 1, len, stdout);
        }
        rc = msgl__strbuf_add(thought ? &t->reasoning : &t->content, bytes, len);
        bytes += len;
    }
    msgl__parts_clear(&t->parts);
    return rc;
}

static int take_text(struct turn *t, const char *text, size_t len)
{
    if (t->parser == NULL || !t->color) fwrite(text, 1, len, stdout); // as the model wrote it
    if (t->parser == NULL) return msgl__strbuf_add(&t->content, text, len);
    const int rc = msgl__parser_feed(t->parser, text, len, &t->parts);
    return rc == 0 ? take_parts(t) : rc;
}

static int on_piece(void *ctx, const msgl_piece *p)
{
    struct turn *t = ctx;
    t->end_ns = msgl__now_ns();
    if (t->first_ns == 0) t->first_ns = t->end_ns;
    t->prompt = p->prompt_tokens;
    t->tokens = p->generated_tokens;
    t->cached = p->cached_tokens;
    t->finish = p->finish;
    if (p->error != NULL) snprintf(t->error, sizeof t->error, "%s", p->error);
    if (take_text(t, p->text, p->text_len) != 0) {
        t->finish = MSGL_FAILED;
        snprintf(t->error, sizeof t->error, "no memory for an answer that long");
        return 1;
    }
    if (fflush(stdout) != 0) return 1; // nobody reads it any more
    return msgl__cli_interrupted;      // Ctrl-C ends the answer, not the shell
}

// What the answer took, and why it ended if that was not its end.
static void print_end(const struct turn *t, const msgl_chat *c)
{
    const char *on = t->color ? "\033[2m" : "", *off = t->color ? "\033[0m" : "";
    const double rest = (double)(t->end_ns - t->first_ns) / 1e9;
    printf("\n%s[%d tokens, %.1f tok/s, %d cached; context: %d of %d]%s\n", on, t->tokens,
           rest > 0 ? (double)(t->tokens - 1) / rest : 0.0, t->cached, c->used, c->limit, off);
    if (t->finish == MSGL_NOT_FINISHED) {
        printf("%s[stopped; what has come stays in the conversation, /undo takes it back]%s\n", on,
               off);
    } else if (t->finish == MSGL_LENGTH && c->used >= c->limit) {
        printf("%s[cut: the context is full, %d of %d tokens; /undo takes back this question, "
               "/reset forgets the conversation]%s\n",
               on, c->used, c->limit, off);
    } else if (t->finish == MSGL_LENGTH) {
        printf("%s[cut after %d tokens, which max_tokens allows; /params max_tokens N allows "
               "more, and asking to go on may get the rest]%s\n",
               on, t->tokens, off);
    }
    fflush(stdout);
}

// ---- asking ----

// Whether text with this marker reaches the shell: a special token's would not.
static bool is_shown(const msgl_llm *l, const char *marker)
{
    int32_t *ids = NULL;
    char *text = NULL;
    size_t n = 0, len = 0;
    const bool shown =
        *marker != '\0' && msgl_tokenize(l, marker, strlen(marker), 0, &ids, &n, NULL) == 0 &&
        msgl_detokenize(l, ids, n, 1, &text, &len, NULL) == 0 && strstr(text, marker) != NULL;
    msgl_free(ids);
    msgl_free(text);
    return shown;
}

void msgl__answerer_init(msgl_answerer *a, msgl_llm *llm)
{
    const msgl_chat_templates *templates = msgl__llm_templates(llm);
    *a = (msgl_answerer){.llm = llm, .color = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL};
    if (templates == NULL) return;
    a->form = msgl__reasoning_form("auto", msgl__chat_templates_text(templates));
    if (a->form == NULL) return;
    const char *close = msgl__reasoning_close(a->form);
    char marker[64];
    snprintf(marker, sizeof marker, "%.*s", (int)strcspn(close, "\r\n"), close);
    if (!is_shown(llm, marker)) a->form = NULL;
}

int msgl__answerer_limit(const msgl_answerer *a)
{
    msgl_info info;
    msgl_get_info(a->llm, &info);
    const int64_t pool = (int64_t)info.num_pages * info.page_size;
    return pool < info.max_seq_len ? (int)pool : info.max_seq_len;
}

static void params_of(const msgl_chat *c, const msgl_llm *l, msgl_params *out)
{
    const msgl_args *p = c->params;
    msgl_params_init(l, out);
    msgl__params_from_sampling(&p->sampling, out);
    out->has_seed = p->seed >= 0;
    out->seed = p->seed >= 0 ? (uint64_t)p->seed : 0;
    out->max_tokens = p->max_tokens;
    out->stop = p->stop.items;
    out->num_stop = p->stop.count;
}

static int begin_turn(const msgl_answerer *a, const char *json, struct turn *t, msgl_err *err)
{
    *t = (struct turn){.color = a->color};
    msgl__strbuf_init(&t->content, MAX_ANSWER);
    msgl__strbuf_init(&t->reasoning, MAX_ANSWER);
    msgl__parts_init(&t->parts, MAX_ANSWER);
    if (a->form == NULL) return 0;
    msgl_rendered prompt = {0};
    int rc = msgl__render_chat(msgl__llm_templates(a->llm), json, true, &prompt, err);
    if (rc == 0) {
        const msgl_parser_config cfg = {
            .reasoning = a->form,
            .thinking =
                msgl__reasoning_opened(a->form, msgl__strbuf_str(&prompt.text), prompt.text.len)};
        rc = msgl__parser_create(&cfg, &t->parser);
        if (rc != 0) (void)msgl__err_set(err, rc, "out of memory");
    }
    msgl__rendered_free(&prompt);
    return rc;
}

static void end_turn(struct turn *t)
{
    msgl__parser_free(t->parser);
    msgl__parts_free(&t->parts);
    msgl__strbuf_free(&t->content);
    msgl__strbuf_free(&t->reasoning);
}

static int compute(msgl_llm *l, uint64_t id, msgl_err *err)
{
    int rc;
    while ((rc = msgl_step(l, err)) > 0) {
        // Before its first token no callback could say so.
        if (msgl__cli_interrupted) (void)msgl_abort(l, id);
    }
    return rc;
}

// Answers the question at the end of the conversation and appends the answer.
static int answer(msgl_answerer *a, msgl_chat *c, msgl_err *err)
{
    char *json = msgl__chat_json(c);
    if (json == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    struct turn t;
    uint64_t id = 0;
    msgl_params params;
    params_of(c, a->llm, &params);
    msgl__cli_interrupted = msgl__chat_ended != 0; // one that came just now
    int rc = begin_turn(a, json, &t, err);
    if (rc == 0) {
        rc = msgl_submit_chat(a->llm, json, &params, on_piece, &t, &id, err);
        if (rc == MSGL_ELIMIT)
            rc = msgl__err_prefix(err, rc, "not asked, /undo or /reset makes room");
    }
    msgl__free(json);
    if (rc == 0) rc = compute(a->llm, id, err);
    if (rc == 0 && t.parser != NULL && msgl__parser_finish(t.parser, &t.parts) == 0)
        (void)take_parts(&t);
    set_dim(&t, false);
    if (rc == 0 && t.finish == MSGL_FAILED)
        rc = msgl__err_set(err, MSGL_EINTERNAL, "%.200s", t.error);
    if (rc == 0 && t.tokens == 0 && t.finish == MSGL_NOT_FINISHED)
        rc = msgl__err_set(err, MSGL_EABORTED, "stopped before the answer began; not asked");
    if (rc == 0) {
        c->used = t.prompt + t.tokens;
        rc = msgl__chat_add(c, "assistant", msgl__strbuf_str(&t.content),
                            msgl__strbuf_str(&t.reasoning), err);
        print_end(&t, c);
    } else if (t.tokens > 0) {
        printf("\n");
    }
    end_turn(&t);
    return rc;
}

int msgl__chat_ask(msgl_answerer *a, msgl_chat *c, const char *question, msgl_err *err)
{
    int rc = msgl__chat_add(c, "user", question, NULL, err);
    if (rc != 0) return rc;
    rc = answer(a, c, err);
    if (rc != 0) msgl__chat_drop_last(c);
    return rc;
}

int msgl__chat_answer_again(msgl_answerer *a, msgl_chat *c, msgl_err *err)
{
    json_t *old = NULL;
    if (msgl__chat_last_is(c, "assistant")) {
        old = json_incref(json_array_get(c->messages, json_array_size(c->messages) - 1));
        msgl__chat_drop_last(c);
    }
    const int rc = answer(a, c, err);
    if (rc != 0 && old != NULL) (void)json_array_append(c->messages, old);
    json_decref(old);
    return rc;
}
