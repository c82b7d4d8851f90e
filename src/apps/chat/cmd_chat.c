// SPDX-License-Identifier: Apache-2.0
//
// `minisgl chat`: a shell. Lines come from a terminal or from a pipe; chat_commands.c says what a
// text wants, chat_answer.c has it answered.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "apps/chat/chat.h"
#include "apps/chat/chat_answer.h"
#include "apps/chat/chat_terminal.h"
#include "cli/common.h"
#include "core/err.h"
#include "core/mem.h"
#include "llm/llm.h"

struct shell {
    msgl_answerer answerer;
    msgl_chat chat;
    msgl_chat_input input;
    msgl_terminal *terminal; // NULL: lines come from a pipe or a file
    char *line;              // of those
    size_t cap;
    char history[1024]; // the file; "": none
    bool failed;
};

static void complain(struct shell *s, const msgl_err *err)
{
    s->failed = true;
    fflush(stdout);
    (void)msgl__cli_fail(0, err);
}

// ---- history ----

static void remember(void *ctx, const char *entry)
{
    msgl__terminal_remember(ctx, entry);
}

// What is wrong with the history is said once, and it is done without.
static void without_history(struct shell *s, const msgl_err *err)
{
    fprintf(stderr, "minisgl: warning: no history is kept: %s\n", err->text);
    s->history[0] = '\0';
}

static void open_history(struct shell *s)
{
    msgl_err err;
    int rc = msgl__chat_history_path(s->history, sizeof s->history, &err);
    if (rc == 0) rc = msgl__chat_history_read(s->history, remember, s->terminal, &err);
    if (rc != 0) without_history(s, &err);
}

static void keep_in_history(struct shell *s)
{
    const char *entry = msgl__strbuf_str(&s->input.source);
    msgl_err err;
    if (s->terminal == NULL || *entry == '\0' || *entry == ' ' || *entry == '\t') return;
    remember(s->terminal, entry);
    if (s->history[0] != '\0' && msgl__chat_history_add(s->history, entry, &err) != 0)
        without_history(s, &err);
}

// ---- lines ----

static msgl_line next_line(struct shell *s, const char **text, size_t *len, bool *goes_on)
{
    *goes_on = false;
    if (s->terminal != NULL) {
        msgl__cli_interrupted = msgl__chat_ended != 0;
        return msgl__terminal_line(s->terminal, s->input.more, text, len, goes_on);
    }
    const ssize_t n = getline(&s->line, &s->cap, stdin);
    if (msgl__cli_interrupted) return MSGL_LINE_INTERRUPTED;
    if (n <= 0) return MSGL_LINE_END;
    *text = s->line;
    *len = (size_t)n;
    while (*len > 0 && (s->line[*len - 1] == '\n' || s->line[*len - 1] == '\r')) --*len;
    return MSGL_LINE_READ;
}

// Reads lines until a text is complete. false: there is no more. What the input's end or Ctrl-D
// leaves of a text is one.
static bool next_text(struct shell *s)
{
    s->input.more = false;
    for (;;) {
        const char *text;
        size_t len;
        bool goes_on;
        msgl_err err;
        switch (next_line(s, &text, &len, &goes_on)) {
        case MSGL_LINE_READ:
            if (msgl__chat_input_lines(&s->input, text, len, goes_on, &err) != 0) {
                complain(s, &err);
            } else if (!s->input.more) {
                return true;
            }
            break;
        case MSGL_LINE_INTERRUPTED:
            if (s->terminal == NULL) return false;
            msgl__chat_input_drop(&s->input);
            break;
        case MSGL_LINE_END:
            if (s->terminal != NULL) printf("\n");
            if (msgl__chat_ended || !s->input.more) return false;
            s->input.more = s->input.block = false;
            return true;
        }
    }
}

// ---- the shell ----

// Until /exit, the end of the input, or what ends the process.
static void shell(struct shell *s)
{
    msgl_chat_act act = MSGL_CHAT_NOTHING;
    while (act != MSGL_CHAT_END && !msgl__chat_ended && !ferror(stdout) && next_text(s)) {
        keep_in_history(s);
        const char *question = NULL;
        msgl_err err;
        int rc = msgl__chat_enter(&s->chat, msgl__strbuf_str(&s->input.text), s->input.literal,
                                  stdout, &act, &question, &err);
        if (rc == 0 && act == MSGL_CHAT_ASK)
            rc = msgl__chat_ask(&s->answerer, &s->chat, question, &err);
        if (rc == 0 && act == MSGL_CHAT_ANSWER)
            rc = msgl__chat_answer_again(&s->answerer, &s->chat, &err);
        if (rc != 0) complain(s, &err);
        if (msgl__cli_interrupted && s->terminal == NULL) break; // nobody is there to go on
    }
}

static void open_terminal(struct shell *s)
{
    s->terminal = msgl__terminal_open();
    if (s->terminal == NULL) return;
    open_history(s);
    printf("%d tokens of context. /help shows the commands, Ctrl-D ends.\n", s->chat.limit);
}

static void prompts(struct shell *s, const msgl_list *list)
{
    msgl_err err;
    for (int i = 0; !s->failed && i < list->count && !msgl__cli_interrupted; i++) {
        if (msgl__chat_ask(&s->answerer, &s->chat, list->items[i], &err) != 0) complain(s, &err);
    }
}

static int run(struct shell *s, const msgl_args *a)
{
    const bool asked = a->prompts.count > 0;
    if (asked) {
        prompts(s, &a->prompts);
    } else {
        open_terminal(s);
        shell(s);
    }
    const bool alone = s->terminal == NULL;
    msgl__terminal_close(s->terminal);
    if (msgl__chat_ended) return 128 + msgl__chat_ended;
    if (alone && msgl__cli_interrupted) return MSGL_EXIT_INTERRUPTED;
    // On a terminal somebody has read what failed, and has gone on.
    return alone && s->failed ? MSGL_EXIT_FAILED : MSGL_EXIT_OK;
}

// The options, with the model's own defaults where none was given.
static msgl_args *with_defaults(const msgl_args *a, const msgl_llm *l)
{
    msgl_args *all = msgl__malloc(sizeof *all);
    if (all == NULL) return NULL;
    *all = *a;
    msgl_params params;
    msgl__cli_params(a, l, &params);
    msgl__params_to_sampling(&params, &all->sampling);
    return all;
}

int msgl__cmd_chat(const msgl_args *a)
{
    static struct shell s;
    msgl_err err;
    msgl_llm *l = NULL;
    int rc = msgl__cli_open(a, false, &l, &err);
    if (rc == 0) {
        msgl__answerer_init(&s.answerer, l);
        msgl__chat_input_init(&s.input);
        msgl_args *all = with_defaults(a, l);
        rc = all != NULL ? msgl__chat_init(&s.chat, all, msgl__answerer_limit(&s.answerer), &err)
                         : msgl__err_set(&err, MSGL_ENOMEM, "out of memory");
        msgl__free(all);
    }
    int code = MSGL_EXIT_FAILED;
    if (rc == 0) {
        msgl__chat_catch_signals();
        code = run(&s, a);
        msgl__chat_free(&s.chat);
        msgl__chat_input_free(&s.input);
        msgl__free(s.line);
    }
    msgl_close(l);
    return rc == 0 ? code : msgl__cli_fail(code, &err);
}
