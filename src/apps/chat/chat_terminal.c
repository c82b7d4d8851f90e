// SPDX-License-Identifier: Apache-2.0
//
// libedit edits and draws; bytes are read here, because its own reading takes Ctrl-C for the end of
// the input, and its own handling of signals sends them to the whole process group.
#include "apps/chat/chat_terminal.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "apps/chat/chat.h"
#include "cli/common.h"
#include "core/attributes.h"
#include "core/mem.h"

enum { CTRL_V = 22, ESC = 27, DEL = 127, MAX_PASTE = 4 << 20 };

struct msgl_terminal {
    EditLine *el;
    History *past;
    bool more;       // the prompt says that the text goes on
    bool brackets;   // the terminal is asked to mark what is pasted
    bool goes_on;    // the line's end was pasted
    bool stopped;    // by Ctrl-C
    wchar_t *pasted; // characters that are to be entered
    size_t next, num_pasted;
};

// ---- signals ----

volatile sig_atomic_t msgl__chat_ended;
static volatile sig_atomic_t g_resized, g_stop, g_continued;
static volatile sig_atomic_t g_interrupted_at; // seconds
static struct termios g_modes;                 // of the terminal as the shell found it
static volatile sig_atomic_t g_has_modes, g_brackets;

static void end_now(int number)
{
    static const char plain[] = "\033[?2004l";
    if (g_has_modes) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &g_modes);
        if (g_brackets && write(STDOUT_FILENO, plain, sizeof plain - 1) < 0) _exit(128 + number);
    }
    _exit(128 + number);
}

static void on_signal(int number)
{
    struct timespec now;
    const int kept = errno;
    switch (number) {
    case SIGWINCH: g_resized = 1; break;
    case SIGTSTP: g_stop = 1; break;
    case SIGCONT: g_continued = 1; break;
    case SIGINT:
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (msgl__cli_interrupted && now.tv_sec - g_interrupted_at > 1) end_now(number);
        if (!msgl__cli_interrupted) g_interrupted_at = (sig_atomic_t)now.tv_sec;
        msgl__cli_interrupted = 1;
        break;
    default:
        if (msgl__chat_ended) end_now(number);
        msgl__chat_ended = number;
        msgl__cli_interrupted = 1;
    }
    errno = kept;
}

static void hear(int number)
{
    struct sigaction sa = {.sa_handler = on_signal};
    sigemptyset(&sa.sa_mask);
    sigaction(number, &sa, NULL);
}

void msgl__chat_catch_signals(void)
{
    struct sigaction before;
    hear(SIGINT);
    hear(SIGTERM);
    hear(SIGQUIT);
    // nohup has it ignored
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) hear(SIGHUP);
}

// ---- bytes ----

// How the terminal is while a line is edited, and while it is not.
static void set_brackets(const msgl_terminal *t, bool on)
{
    if (!t->brackets) return;
    g_brackets = on;
    fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
    fflush(stdout);
}

// Ctrl-Z, then until fg.
static void stop_for_a_while(msgl_terminal *t)
{
    set_brackets(t, false);
    el_set(t->el, EL_PREP_TERM, 0);
    printf("\n");
    fflush(stdout);
    raise(SIGSTOP);
}

static void draw_again(msgl_terminal *t)
{
    el_set(t->el, EL_PREP_TERM, 1);
    set_brackets(t, true);
    el_set(t->el, EL_REFRESH);
}

// Ctrl-C leaves the line where it stands and begins another. What is behind the cursor is written
// again, which moves the terminal's to the end: libedit would draw the whole line at its cursor.
static void leave_line(msgl_terminal *t)
{
    const LineInfo *line = el_line(t->el);
    fwrite(line->cursor, 1, (size_t)(line->lastchar - line->cursor), stdout);
    fputs("^C\r\n", stdout);
    fflush(stdout);
    t->stopped = true;
}

static void handle_signals(msgl_terminal *t)
{
    if (g_resized) {
        g_resized = 0;
        el_resize(t->el);
    }
    if (g_stop) {
        g_stop = 0;
        stop_for_a_while(t);
        g_continued = 1;
    }
    if (g_continued) {
        g_continued = 0;
        draw_again(t);
    }
}

// The next byte; -1: there is none, because of a signal or the end of the input. Signals come while
// it waits and at no other time, so that none is missed between the look and the wait.
static int get_byte(msgl_terminal *t)
{
    static const int HEARD[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP, SIGCONT};
    sigset_t heard, before;
    sigemptyset(&heard);
    for (size_t i = 0; i < MSGL_COUNT(HEARD); i++) sigaddset(&heard, HEARD[i]);
    sigprocmask(SIG_BLOCK, &heard, &before);
    unsigned char byte = 0;
    int result = -2;
    while (result == -2) {
        struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
        handle_signals(t); // those that came before it began to wait, or while it did
        if (msgl__cli_interrupted || msgl__chat_ended) {
            result = -1;
        } else if (ppoll(&in, 1, NULL, &before) > 0) {
            const ssize_t n = read(STDIN_FILENO, &byte, 1);
            if (n > 0) {
                result = byte;
            } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
                result = -1;
            }
        }
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return result;
}

static int get_char(EditLine *el, wchar_t *out)
{
    msgl_terminal *t = NULL;
    el_get(el, EL_CLIENTDATA, (void **)&t);
    if (t->next < t->num_pasted) {
        *out = t->pasted[t->next++];
        t->goes_on = *out == L'\n';
        return 1;
    }
    mbstate_t state = {0};
    for (;;) {
        const int byte = get_byte(t);
        if (byte < 0) {
            if (msgl__cli_interrupted && !msgl__chat_ended) leave_line(t);
            errno = EINTR;
            return -1;
        }
        const char c = (char)byte;
        const size_t n = mbrtowc(out, &c, 1, &state);
        if (n == (size_t)-1) {
            *out = 0xFFFD;
            return 1;
        }
        if (n != (size_t)-2) return 1;
    }
}

// ---- what is pasted ----

// Up to the mark behind it; false: it never came.
static bool read_paste(msgl_terminal *t, msgl_strbuf *out)
{
    static const char MARK[] = "\033[201~";
    const size_t mark = sizeof MARK - 1;
    bool full = false; // the rest is read all the same: it must not be taken for keys
    char end[sizeof MARK] = "";
    for (;;) {
        const int byte = get_byte(t);
        if (byte < 0) return false;
        memmove(end, end + 1, mark - 1);
        end[mark - 1] = (char)byte;
        if (!full && msgl__strbuf_addc(out, (char)byte) != 0) full = true;
        if (memcmp(end, MARK, mark) == 0) break;
    }
    if (!full) out->data[out->len -= mark] = '\0';
    return true;
}

// To characters that are entered as if they were typed: lines end in \n, but the last has no end,
// and what would be a command of the editor is left out.
static void enter_paste(msgl_terminal *t, const msgl_strbuf *text)
{
    const char *p = msgl__strbuf_str(text), *end = p + text->len;
    while (end > p && (end[-1] == '\n' || end[-1] == '\r')) end--;
    wchar_t *to = msgl__reallocarray(t->pasted, (size_t)(end - p) * 2 + 1, sizeof *to);
    if (to == NULL) return;
    t->pasted = to;
    t->next = t->num_pasted = 0;
    mbstate_t state = {0};
    for (bool cr = false; p < end;) {
        wchar_t c;
        size_t n = mbrtowc(&c, p, (size_t)(end - p), &state);
        if (n == (size_t)-1 || n == (size_t)-2) {
            state = (mbstate_t){0};
            c = 0xFFFD;
            n = 1;
        }
        p += n > 0 ? n : 1;
        const bool line = c == L'\r' || (c == L'\n' && !cr);
        cr = c == L'\r';
        if (c == L'\t') to[t->num_pasted++] = CTRL_V; // the next is no key
        if (line || c == L'\t' || (c >= L' ' && c != DEL)) to[t->num_pasted++] = line ? L'\n' : c;
    }
}

// Bound to what the terminal sends in front of a paste.
static unsigned char paste(EditLine *el, wint_t key)
{
    (void)key;
    msgl_terminal *t = NULL;
    el_get(el, EL_CLIENTDATA, (void **)&t);
    msgl_strbuf text;
    msgl__strbuf_init(&text, MAX_PASTE);
    if (read_paste(t, &text)) enter_paste(t, &text);
    msgl__strbuf_free(&text);
    return CC_NORM;
}

// ---- lines ----

static char *prompt_text(EditLine *el)
{
    static char first[] = "> ", next[] = ". ";
    msgl_terminal *t = NULL;
    el_get(el, EL_CLIENTDATA, (void **)&t);
    return t->more ? next : first;
}

msgl_terminal *msgl__terminal_open(void)
{
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return NULL;
    // Terminals speak UTF-8 where nobody has said so, as in containers.
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    msgl_terminal *t = msgl__calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    g_has_modes = tcgetattr(STDIN_FILENO, &g_modes) == 0;
    t->past = history_init();
    t->el = el_init("minisgl", stdin, stdout, stderr);
    if (t->past == NULL || t->el == NULL) {
        msgl__terminal_close(t);
        return NULL;
    }
    HistEvent event;
    history(t->past, &event, H_SETSIZE, MSGL_CHAT_HISTORY_MAX);
    history(t->past, &event, H_SETUNIQUE, 1);
    el_set(t->el, EL_CLIENTDATA, t);
    el_set(t->el, EL_PROMPT, prompt_text);
    el_set(t->el, EL_EDITOR, "emacs");
    el_set(t->el, EL_HIST, history, t->past);
    el_set(t->el, EL_GETCFN, get_char);
    // el_set would copy the texts and never free them.
    static wchar_t name[] = L"paste", help[] = L"enter what is pasted";
    el_wset(t->el, EL_ADDFN, name, help, paste);
    el_set(t->el, EL_BIND, "\\e[200~", "paste", NULL);
    const char *kind = getenv("TERM");
    t->brackets = kind != NULL && strcmp(kind, "dumb") != 0 && strcmp(kind, "emacs") != 0;
    hear(SIGWINCH);
    return t;
}

void msgl__terminal_close(msgl_terminal *t)
{
    if (t == NULL) return;
    if (t->el != NULL) el_end(t->el);
    if (t->past != NULL) history_end(t->past);
    if (g_has_modes) (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &g_modes);
    g_has_modes = 0;
    msgl__free(t->pasted);
    msgl__free(t);
}

msgl_line msgl__terminal_line(msgl_terminal *t, bool more, const char **text, size_t *len,
                              bool *goes_on)
{
    t->more = more;
    t->goes_on = t->stopped = false;
    g_stop = g_continued = 0;
    hear(SIGTSTP);
    hear(SIGCONT);
    // Before the prompt, which libedit shows first: who answers it at once would be echoed twice.
    el_set(t->el, EL_PREP_TERM, 1);
    set_brackets(t, true);
    int n = 0;
    const char *line = el_gets(t->el, &n);
    set_brackets(t, false);
    signal(SIGTSTP, SIG_DFL);
    signal(SIGCONT, SIG_DFL);
    if (t->stopped) {
        t->next = t->num_pasted = 0;
        return MSGL_LINE_INTERRUPTED;
    }
    if (line == NULL || n <= 0) return MSGL_LINE_END;
    *text = line;
    *len = (size_t)n - (line[n - 1] == '\n');
    *goes_on = t->goes_on;
    return MSGL_LINE_READ;
}

void msgl__terminal_remember(msgl_terminal *t, const char *entry)
{
    HistEvent event;
    history(t->past, &event, H_ENTER, entry);
}
