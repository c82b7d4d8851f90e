// SPDX-License-Identifier: Apache-2.0
//
// The shell without its terminal and its model: lines to texts, commands, the conversation and its
// files, parameters, the file of the history.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "apps/chat/chat.h"
#include "core/attributes.h"
#include "core/mem.h"

static msgl_err err;
static char dir[] = "/tmp/minisgl-chat-XXXXXX";
static char said[4096]; // what the last command printed
static const char *question;

static const char *in_dir(const char *name)
{
    static char path[2][256];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void read_file(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    out[fread(out, 1, size - 1, f)] = '\0';
    fclose(f);
}

// ---- lines ----

// Feeds lines; the text, if it is complete after the last of them and not before.
static const char *text_of(msgl_chat_input *in, const char *const *lines, int n)
{
    in->more = false;
    for (int i = 0; i < n; i++) {
        assert_int_equal(i > 0, in->more);
        assert_int_equal(msgl__chat_input_line(in, lines[i], strlen(lines[i]), false, &err), 0);
    }
    assert_false(in->more);
    return msgl__strbuf_str(&in->text);
}
#define TEXT(in, ...)                                                                              \
    text_of(in, (const char *const[]){__VA_ARGS__},                                                \
            MSGL_COUNT(((const char *const[]){__VA_ARGS__})))

static void test_lines(void **state)
{
    (void)state;
    msgl_chat_input in;
    msgl__chat_input_init(&in);
    assert_string_equal(TEXT(&in, "one"), "one");
    assert_string_equal(TEXT(&in, ""), "");
    assert_string_equal(TEXT(&in, "one\\", "two\\", "three"), "one\ntwo\nthree");
    assert_string_equal(msgl__strbuf_str(&in.source), "one\\\ntwo\\\nthree");
    assert_false(in.literal);
    assert_string_equal(TEXT(&in, "\"\"\"", "/one \\", "", "two", "\"\"\""), "/one \\\n\ntwo");
    assert_true(in.literal);
    assert_string_equal(msgl__strbuf_str(&in.source), "\"\"\"\n/one \\\n\ntwo\n\"\"\"");
    assert_string_equal(TEXT(&in, "\"\"\"one", "two\"\"\" "), "one\ntwo");
    assert_string_equal(TEXT(&in, "\"\"\"one\"\"\""), "one");
    assert_string_equal(TEXT(&in, "\"\"\"", "\"\"\""), "");
    assert_string_equal(TEXT(&in, "say \"\"\" to it"), "say \"\"\" to it");
    assert_false(in.literal);
    // NUL
    assert_int_equal(msgl__chat_input_line(&in, "a\0b", 3, false, &err), MSGL_EFORMAT);
    assert_non_null(strstr(err.text, "NUL"));
    assert_false(in.more);
    // More than is allowed gives the text up.
    in.text.max = 4;
    assert_int_equal(msgl__chat_input_line(&in, "12345", 5, false, &err), MSGL_ELIMIT);
    assert_string_equal(TEXT(&in, "123"), "123");
    msgl__chat_input_free(&in);
}

// What was pasted is one text, and so it is when the history brings it back.
static void test_pasted_lines(void **state)
{
    (void)state;
    msgl_chat_input in, again;
    msgl__chat_input_init(&in);
    msgl__chat_input_init(&again);
    static const char *const pastes[][3] = {
        {"one", "/reset", "three"}, {"#define A \\", "  1 \\", "b"}, {"\"\"\"", "a \\", "b\"\"\""}};
    static const char *const texts[] = {"one\n/reset\nthree", "#define A \\\n  1 \\\nb", "a \\\nb"};
    for (size_t i = 0; i < MSGL_COUNT(texts); i++) {
        for (int j = 0; j < 3; j++) {
            const char *line = pastes[i][j];
            assert_int_equal(msgl__chat_input_line(&in, line, strlen(line), j < 2, &err), 0);
        }
        assert_false(in.more);
        assert_string_equal(msgl__strbuf_str(&in.text), texts[i]);
        const char *source = msgl__strbuf_str(&in.source);
        assert_int_equal(msgl__chat_input_lines(&again, source, strlen(source), false, &err), 0);
        assert_false(again.more);
        assert_string_equal(msgl__strbuf_str(&again.text), texts[i]);
        assert_string_equal(msgl__strbuf_str(&again.source), source);
    }
    // Written into the history by something else.
    assert_int_equal(msgl__chat_input_lines(&in, "a\nb", 3, false, &err), 0);
    assert_string_equal(msgl__strbuf_str(&in.text), "a\nb");
    msgl__chat_input_free(&in);
    msgl__chat_input_free(&again);
}

// ---- commands ----

static void begin(msgl_chat *c, const char *system)
{
    static msgl_args args;
    static const msgl_command CHAT = {"chat", MSGL_CMD_CHAT, "", "", NULL};
    assert_int_equal(msgl__args_parse(&CHAT, 0, NULL, &args, &err), 0);
    args.sampling.temperature = 0.5f;
    args.system = system;
    assert_int_equal(msgl__chat_init(c, &args, 2048, &err), 0);
}

static int enter(msgl_chat *c, const char *text, msgl_chat_act *act)
{
    FILE *out = tmpfile();
    assert_non_null(out);
    err.text[0] = '\0';
    const int rc = msgl__chat_enter(c, text, false, out, act, &question, &err);
    rewind(out);
    said[fread(said, 1, sizeof said - 1, out)] = '\0';
    fclose(out);
    return rc;
}

static msgl_chat_act act_of(msgl_chat *c, const char *text)
{
    msgl_chat_act act;
    if (enter(c, text, &act) != 0) fail_msg("%s: %s", text, err.text);
    return act;
}

// The command fails with this in its one line.
static void refused(msgl_chat *c, const char *text, const char *words)
{
    msgl_chat_act act;
    assert_int_not_equal(enter(c, text, &act), 0);
    assert_int_equal(act, MSGL_CHAT_NOTHING);
    if (strstr(err.text, words) == NULL)
        fail_msg("%s: \"%s\" has no \"%s\"", text, err.text, words);
    assert_null(strchr(err.text, '\n'));
}

static void exchange(msgl_chat *c, const char *asked, const char *answered)
{
    assert_int_equal(msgl__chat_add(c, "user", asked, NULL, &err), 0);
    assert_int_equal(msgl__chat_add(c, "assistant", answered, NULL, &err), 0);
}

static void is_json(const msgl_chat *c, const char *expected)
{
    char *json = msgl__chat_json(c);
    assert_string_equal(json, expected);
    msgl__free(json);
}

static void test_texts(void **state)
{
    (void)state;
    msgl_chat c;
    begin(&c, NULL);
    assert_int_equal(act_of(&c, "hello"), MSGL_CHAT_ASK);
    assert_string_equal(question, "hello");
    assert_int_equal(act_of(&c, "//etc/hosts is what?"), MSGL_CHAT_ASK);
    assert_string_equal(question, "/etc/hosts is what?");
    assert_int_equal(act_of(&c, " /etc"), MSGL_CHAT_ASK);
    assert_int_equal(act_of(&c, ""), MSGL_CHAT_NOTHING);
    assert_int_equal(act_of(&c, " \n\t"), MSGL_CHAT_NOTHING);
    msgl_chat_act act;
    assert_int_equal(msgl__chat_enter(&c, "/exit", true, stdout, &act, &question, &err), 0);
    assert_int_equal(act, MSGL_CHAT_ASK);
    assert_string_equal(question, "/exit");
    static const char *const ends[] = {"/exit", "/quit", "/bye", "/exit  "};
    for (size_t i = 0; i < MSGL_COUNT(ends); i++)
        assert_int_equal(act_of(&c, ends[i]), MSGL_CHAT_END);
    refused(&c, "/nonsense", "no command /nonsense; commands: /help, /reset, /system, ");
    assert_non_null(strstr(err.text, "/exit; // begins a text with /"));
    refused(&c, "/", "no command /; commands");
    static const char *const asked[] = {"/etc/hosts is what?", "/etc/hosts", "/etc is what?",
                                        "/.bashrc has what in it?"};
    for (size_t i = 0; i < MSGL_COUNT(asked); i++) {
        assert_int_equal(act_of(&c, asked[i]), MSGL_CHAT_ASK);
        assert_string_equal(question, asked[i]);
    }
    refused(&c, "/sytem You are a pirate", "no command /sytem; commands");
    refused(&c, "/nonsense 0.5", "no command /nonsense; commands");
    refused(&c, "/exit now", "/exit is followed by \"now\"; allowed: nothing");
    assert_int_equal(act_of(&c, "/help"), MSGL_CHAT_NOTHING);
    assert_non_null(strstr(said, "/regenerate, /retry"));
    assert_non_null(strstr(said, "Ctrl-C stops an answer"));
    msgl__chat_free(&c);
}

static void test_conversation(void **state)
{
    (void)state;
    msgl_chat c;
    begin(&c, "be brief");
    refused(&c, "/undo", "no question");
    refused(&c, "/regenerate", "no answer");
    exchange(&c, "a", "b");
    exchange(&c, "c", "d");
    assert_int_equal(act_of(&c, "/regenerate"), MSGL_CHAT_ANSWER);
    act_of(&c, "/undo");
    is_json(&c,
            "{\"messages\":[{\"role\":\"system\",\"content\":\"be brief\"},"
            "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}");
    act_of(&c, "/system");
    assert_string_equal(said, "be brief\n");
    act_of(&c, "/system be long\nvery");
    assert_string_equal(msgl__chat_system(&c), "be long\nvery");
    assert_int_equal(json_array_size(c.messages), 3);
    act_of(&c, "/reset");
    assert_non_null(strstr(said, "forgotten"));
    is_json(&c, "{\"messages\":[{\"role\":\"system\",\"content\":\"be long\\nvery\"}]}");
    act_of(&c, "/system -");
    is_json(&c, "{\"messages\":[]}");
    act_of(&c, "/system");
    assert_string_equal(said, "no system message\n");
    assert_int_equal(msgl__chat_add(&c, "assistant", "x", "hm", &err), 0);
    is_json(&c, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\","
                "\"reasoning_content\":\"hm\"}]}");
    assert_int_equal(msgl__chat_add(&c, "user", "\xff", NULL, &err), MSGL_EFORMAT);
    refused(&c, "/system \xff", "UTF-8");
    assert_int_equal(json_array_size(c.messages), 1);
    msgl__chat_free(&c);
}

static void test_params(void **state)
{
    (void)state;
    msgl_chat c;
    begin(&c, NULL);
    act_of(&c, "/params");
    static const char *const names[] = {"temperature          0.5\n",
                                        "top_p ",
                                        "top_k ",
                                        "min_p ",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "repetition_penalty",
                                        "max_tokens           not set: what the context leaves",
                                        "seed                 not set: random"};
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        if (strstr(said, names[i]) == NULL) fail_msg("no %s in %s", names[i], said);
    }
    assert_null(strstr(said, "logprobs"));
    act_of(&c, "/params temperature 0");
    assert_string_equal(said, "  temperature          0\n");
    assert_true(c.params->sampling.temperature == 0);
    act_of(&c, "/params top-p=0.25");
    assert_true(c.params->sampling.top_p == 0.25f);
    act_of(&c, "/params --max-tokens 7");
    assert_int_equal(c.params->max_tokens, 7);
    act_of(&c, "/params seed 12345678901");
    assert_true(c.params->seed == 12345678901);
    act_of(&c, "/params seed default");
    assert_true(c.params->seed == -1);
    act_of(&c, "/params temperature default");
    assert_string_equal(said, "  temperature          0.5\n");
    refused(&c, "/params top_p 2", "top_p is \"2\"; allowed: a number from 1e-37 to 1");
    assert_true(c.params->sampling.top_p == 0.25f);
    refused(&c, "/params max_tokens 0", "max_tokens is \"0\"; allowed: a whole number from 1");
    refused(&c, "/params temperature hot", "temperature is \"hot\"");
    refused(&c, "/params temprature 1", "no parameter \"temprature\"; allowed: max_tokens, seed");
    refused(&c, "/params logprobs 1", "no parameter");
    refused(&c, "/params system x", "no parameter");
    refused(&c, "/params top_p", "/params top_p has no value");
    msgl__chat_free(&c);
}

static void test_files(void **state)
{
    (void)state;
    msgl_chat c, d;
    begin(&c, "be brief");
    begin(&d, NULL);
    exchange(&c, "h\xc3\xa9", "a\nb");
    char command[300], text[4096];
    snprintf(command, sizeof command, "/save %s", in_dir("a b.json"));
    act_of(&c, command);
    assert_non_null(strstr(said, "3 messages saved in "));
    refused(&c, command, "a b.json exists; /save -f FILE");
    exchange(&c, "more", "and more");
    snprintf(command, sizeof command, "/save -f %s", in_dir("a b.json"));
    act_of(&c, command);
    snprintf(command, sizeof command, "/load %s", in_dir("a b.json"));
    act_of(&d, command);
    assert_string_equal(said, "5 messages loaded\n");
    char *json = msgl__chat_json(&c);
    is_json(&d, json);
    msgl__free(json);
    assert_int_equal(setenv("HOME", dir, 1), 0);
    act_of(&d, "/save ~/home.json");
    read_file(in_dir("home.json"), text, sizeof text);
    assert_int_equal(text[0], '[');
    refused(&c, "/save", "/save FILE");
    refused(&c, "/save -f", "/save FILE");
    refused(&c, "/load", "/load FILE");
    refused(&c, "/load ~/none.json", "none.json");
    refused(&c, "/save ~/none/x.json", "No such file");
    static const char *const bad[][2] = {
        {"{", "bad.json: line 1"},
        {"{\"a\": 1}", "no conversation; allowed: a JSON array"},
        {"[7]", "message 1 has the role \"\""},
        {"[{\"role\": \"user\"}]", "message 1 has no content"},
        {"[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"system\", \"content\": \"b\"}]",
         "message 2 has the role system; allowed: the first"},
        {"{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}",
         "the role \"tool\"; allowed: system, user, assistant"}};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        write_file(in_dir("bad.json"), bad[i][0]);
        refused(&d, "/load ~/bad.json", bad[i][1]);
        assert_int_equal(json_array_size(d.messages), 5);
    }
    write_file(in_dir("half.json"), "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}");
    act_of(&d, "/load ~/half.json");
    assert_non_null(strstr(said, "/regenerate answers"));
    assert_int_equal(act_of(&d, "/regenerate"), MSGL_CHAT_ANSWER);
    msgl__chat_free(&c);
    msgl__chat_free(&d);
}

// ---- history ----

static struct {
    char first[64], last[64];
    int count;
} found;

static void count_entry(void *ctx, const char *entry)
{
    (void)ctx;
    if (found.count++ == 0) snprintf(found.first, sizeof found.first, "%s", entry);
    snprintf(found.last, sizeof found.last, "%s", entry);
}

static void read_history(const char *path)
{
    memset(&found, 0, sizeof found);
    assert_int_equal(msgl__chat_history_read(path, count_entry, NULL, &err), 0);
}

static void test_history(void **state)
{
    (void)state;
    char path[1024], tail[64];
    assert_int_equal(setenv("HOME", dir, 1), 0);
    assert_int_equal(setenv("XDG_STATE_HOME", "relative", 1), 0);
    assert_int_equal(msgl__chat_history_path(path, sizeof path, &err), 0);
    assert_string_equal(path, in_dir(".local/state/minisgl/chat_history"));
    assert_int_equal(setenv("XDG_STATE_HOME", in_dir("state"), 1), 0);
    assert_int_equal(msgl__chat_history_path(path, sizeof path, &err), 0);
    assert_string_equal(path, in_dir("state/minisgl/chat_history"));
    read_history(path);
    assert_int_equal(found.count, 0);
    assert_int_equal(msgl__chat_history_add(path, "one \\n\\", &err), 0);
    assert_int_equal(msgl__chat_history_add(path, "two\nlines", &err), 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    read_history(path);
    assert_int_equal(found.count, 2);
    assert_string_equal(found.first, "one \\n\\");
    assert_string_equal(found.last, "two\nlines");
    // It is read to its newest entries, and cut when it has become much too long.
    for (int i = 2; i < MSGL_CHAT_HISTORY_MAX * 2; i++) {
        snprintf(tail, sizeof tail, "entry %d", i);
        assert_int_equal(msgl__chat_history_add(path, tail, &err), 0);
    }
    assert_int_equal(stat(path, &st), 0);
    const off_t before = st.st_size;
    for (int i = 0; i < 2; i++) {
        read_history(path);
        assert_int_equal(found.count, MSGL_CHAT_HISTORY_MAX);
        snprintf(tail, sizeof tail, "entry %d", MSGL_CHAT_HISTORY_MAX);
        assert_string_equal(found.first, tail);
        assert_string_equal(found.last, "entry 1999");
    }
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size < before * 2 / 3);
    assert_int_equal(st.st_mode & 0777, 0600);
    // What cannot be a history is told, and harms nothing.
    assert_int_equal(mkfifo(in_dir("fifo"), 0600), 0);
    assert_int_equal(msgl__chat_history_add(in_dir("fifo"), "x", &err), MSGL_EIO);
    assert_int_equal(msgl__chat_history_read(in_dir("fifo"), count_entry, NULL, &err), MSGL_EIO);
    assert_int_equal(msgl__chat_history_add("/dev/null/minisgl/x", "x", &err), MSGL_EIO);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int remove_dir(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),   cmocka_unit_test(test_pasted_lines),
        cmocka_unit_test(test_texts),   cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_params),  cmocka_unit_test(test_files),
        cmocka_unit_test(test_history),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
