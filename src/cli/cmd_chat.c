// SPDX-License-Identifier: Apache-2.0
//
// `minisgl chat`: a shell. The conversation is kept as messages and rendered anew each turn; the
// radix cache finds what the model has already read.
#include <histedit.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/common.h"
#include "core/err.h"
#include "core/mem.h"
#include "utils/clock.h"
#include "utils/strbuf.h"

struct turn {
    msgl_strbuf text;
    uint64_t first_ns, end_ns;
    int tokens, cached, finish;
    char error[256];
};

static int on_piece(void *ctx, const msgl_piece *p)
{
    struct turn *t = ctx;
    t->end_ns = msgl__now_ns();
    if (t->first_ns == 0) t->first_ns = t->end_ns;
    t->tokens = p->generated_tokens;
    t->cached = p->cached_tokens;
    t->finish = p->finish;
    if (p->error != NULL) snprintf(t->error, sizeof t->error, "%s", p->error);
    fwrite(p->text, 1, p->text_len, stdout);
    fflush(stdout);
    if (msgl__strbuf_add(&t->text, p->text, p->text_len) != 0) return 1;
    return msgl__cli_interrupted; // Ctrl-C ends the answer, not the shell
}

static json_t *new_conversation(const msgl_args *a)
{
    json_t *messages = json_array();
    if (a->system != NULL) {
        json_array_append_new(messages,
                              json_pack("{s:s,s:s}", "role", "system", "content", a->system));
    }
    return messages;
}

// One question and its answer. A failure takes the question back out of the conversation.
static int answer(const msgl_args *a, msgl_llm *l, json_t *messages, const char *question,
                  msgl_err *err)
{
    json_t *user = json_pack("{s:s,s:s}", "role", "user", "content", question);
    if (user == NULL) return msgl__err_set(err, MSGL_EFORMAT, "the input is not valid UTF-8");
    json_array_append_new(messages, user);
    json_t *vars = json_pack("{s:O}", "messages", messages);
    char *json = json_dumps(vars, JSON_COMPACT);
    json_decref(vars);
    msgl_params params;
    msgl__cli_params(a, l, &params);
    struct turn t = {0};
    msgl__strbuf_init(&t.text, (size_t)1 << 28);
    msgl__cli_interrupted = 0;
    int rc = msgl_submit_chat(l, json, &params, on_piece, &t, NULL, err);
    msgl__free(json);
    if (rc == 0) rc = msgl_run(l, err);
    if (rc == 0 && t.finish == MSGL_FAILED)
        rc = msgl__err_set(err, MSGL_EINTERNAL, "%.200s", t.error);
    if (rc != 0) {
        json_array_remove(messages, json_array_size(messages) - 1);
    } else {
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "assistant", "content",
                                                  msgl__strbuf_str(&t.text)));
        const double rest = (double)(t.end_ns - t.first_ns) / 1e9;
        const bool color = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL;
        printf("\n%s[%d tokens, %.1f tok/s, %d cached]%s\n", color ? "\033[2m" : "", t.tokens,
               rest > 0 ? (double)(t.tokens - 1) / rest : 0.0, t.cached, color ? "\033[0m" : "");
    }
    msgl__strbuf_free(&t.text);
    return rc;
}

static char *prompt_text(EditLine *el)
{
    (void)el;
    static char text[] = "> ";
    return text;
}

// Reads lines until /exit or the end of the input; with a terminal, with history and editing.
static void shell(const msgl_args *a, msgl_llm *l)
{
    json_t *messages = new_conversation(a);
    EditLine *el = isatty(STDIN_FILENO) ? el_init("minisgl", stdin, stdout, stderr) : NULL;
    History *past = history_init();
    HistEvent event;
    history(past, &event, H_SETSIZE, 500);
    if (el != NULL) {
        el_set(el, EL_PROMPT, prompt_text);
        el_set(el, EL_EDITOR, "emacs");
        el_set(el, EL_HIST, history, past);
        el_set(el, EL_SIGNAL, 1);
    }
    char *plain = NULL;
    size_t cap = 0;
    for (;;) {
        int n;
        const char *text = el != NULL ? el_gets(el, &n) : NULL;
        if (el == NULL) text = (n = (int)getline(&plain, &cap, stdin)) > 0 ? plain : NULL;
        if (text == NULL || n <= 0) break;
        char *line = msgl__strndup(text, strcspn(text, "\r\n"));
        if (line == NULL) break;
        if (el != NULL && *line != '\0') history(past, &event, H_ENTER, line);
        if (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0) {
            msgl__free(line);
            break;
        }
        if (strcmp(line, "/reset") == 0) {
            json_decref(messages);
            messages = new_conversation(a);
            printf("conversation forgotten\n");
        } else if (line[0] == '/') {
            printf("commands: /reset forgets the conversation, /exit ends\n");
        } else if (*line != '\0') {
            msgl_err bad;
            const int failed = answer(a, l, messages, line, &bad);
            if (failed != 0) fprintf(stderr, "minisgl: %s\n", bad.text);
        }
        msgl__free(line);
    }
    msgl__free(plain);
    history_end(past);
    if (el != NULL) {
        el_end(el);
        printf("\n");
    }
    json_decref(messages);
}

int msgl__cmd_chat(const msgl_args *a)
{
    msgl_err err;
    msgl_llm *l = NULL;
    int rc = msgl__cli_open(a, false, &l, &err);
    if (rc == 0) {
        msgl__cli_catch_interrupt();
        if (a->prompts.count > 0) {
            json_t *messages = new_conversation(a);
            for (int i = 0; rc == 0 && i < a->prompts.count; i++) {
                rc = answer(a, l, messages, a->prompts.items[i], &err);
            }
            json_decref(messages);
        } else {
            shell(a, l);
        }
    }
    msgl_close(l);
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
