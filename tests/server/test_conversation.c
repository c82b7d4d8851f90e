// SPDX-License-Identifier: Apache-2.0
//
// Conversations as clients send them, rendered by templates that are strict in several ways: system
// messages anywhere, neighbours of one role, contents in parts, null members, and forms of an
// assistant's history. What is right is what transformers 5.24 renders, where it does.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "server/fixture.h"

// Writes every message where it is.
#define PLAIN "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
// As Qwen3.5's: a system message is the first, or there is none.
#define FIRST_ONLY                                                                                 \
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"                        \
    "{{ raise_exception('system first') }}{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
// As gpt-oss's: a later one is not written.
#define DROPS                                                                                      \
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"                             \
    "[{{ m.role }}:{{ m.content | trim }}]{% endif %}{% endfor %}"
// As Llama 2's and Mistral's.
#define TURNS                                                                                      \
    "{% if messages[0].role == 'system' %}[system:{{ messages[0].content }}]"                      \
    "{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif "  \
    "%}"                                                                                           \
    "{% for m in loop_messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"            \
    "{{ raise_exception('turns') }}{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
// As Gemma 2's.
#define NO_SYSTEM                                                                                  \
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"         \
    "{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
#define TO_PARTS                                                                                   \
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }};"        \
    "{% endif %}{% endfor %}{% endfor %}"
// As Gemma 3's: of the system's parts it writes the first only.
#define EITHER                                                                                     \
    "{% macro say(c) %}{% if c is string %}{{ c | trim }}{% else %}{% for p in c %}"               \
    "{{ p.text | trim }}{% endfor %}{% endif %}{% endmacro %}{% for m in messages %}"              \
    "{% if m.role == 'system' %}({{ m.content if m.content is string else m.content[0].text }})"   \
    "{% else %}<{{ say(m.content) }}>{% endif %}{% endfor %}"
#define CALLS                                                                                      \
    "{% for m in messages %}[{{ m.role }}{% if m.content is defined %}:{{ m.content }}{% endif %}" \
    "{% for c in m.tool_calls or [] %}{{ c.id }} {{ c.function | tojson }}{% endfor %}"            \
    "{{ m.tool_call_id }}{% if m.reasoning_content %}~{{ m.reasoning_content }}{% endif %}]"       \
    "{% endfor %}"
#define ADDS "{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}"

#define S(text) "{'role':'system','content':'" text "'}"
#define D(text) "{'role':'developer','content':'" text "'}"
#define U(text) "{'role':'user','content':'" text "'}"
#define A(text) "{'role':'assistant','content':'" text "'}"
#define P(text) "{'type':'text','text':'" text "'}"

static const struct {
    const char *messages, *source, *want; // ' for " in messages
} cases[] = {
    // As they came, where the template can.
    {U("a") "," S("s") "," S("t") "," U("b"), PLAIN, "[user:a][system:s][system:t][user:b]"},
    {S("s") "," U("a"), FIRST_ONLY, "[system:s][user:a]"},
    {U("a") "," U("b"), PLAIN, "[user:a][user:b]"},
    // Else the texts of all in the first message.
    {S("s") "," D("d") "," U("a"), FIRST_ONLY, "[system:s\\n\\nd][user:a]"},
    {U("a") "," A("b") "," U("c") "," S("s"), FIRST_ONLY,
     "[system:s][user:a][assistant:b][user:c]"},
    {S("s") "," U("a") "," S(" Be! ") "," U("b"), DROPS, "[system:s\\n\\n Be!][user:a][user:b]"},
    {U("a") "," S(" Be! ") "," U("b"), DROPS, "[system:Be!][user:a][user:b]"},
    {S("") "," U("a") "," S("t"), FIRST_ONLY, "[system:t][user:a]"},
    {"{'role':'system','content':[" P("s") "," P("t") "]}," S("u") "," U("a"), FIRST_ONLY,
     "[system:s\\nt\\n\\nu][user:a]"},
    // Turns.
    {S("s") "," U("a") "," U("b") "," A("c") "," A("d") "," U("e"), TURNS,
     "[system:s][user:a\\n\\nb][assistant:c\\n\\nd][user:e]"},
    {S("s") "," U("a") "," U("b") "," S("t"), TURNS, "[system:s\\n\\nt][user:a\\n\\nb]"},
    // No system at all.
    {S("s") "," U("a") "," A("b") "," U("c"), NO_SYSTEM, "[user:s\\n\\na][assistant:b][user:c]"},
    {U("a") "," A("b") "," S("s") "," U("c"), NO_SYSTEM, "[user:s\\n\\na][assistant:b][user:c]"},
    // Contents in the form that the template takes.
    {"{'role':'user','content':[" P("a") "," P("b") "]}", PLAIN, "[user:a\\nb]"},
    {"{'role':'user','content':[" P("a") "," P("b") "]}", TO_PARTS, "a;b;"},
    {U("a"), TO_PARTS, "a;"},
    {"{'role':'user','content':[" P(" a ") "," P("b") "]}", EITHER, "<ab>"},
    {U(" a "), EITHER, "<a>"},
    {"{'role':'system','content':[" P("s") "," P("t") "]}," U("a"), EITHER, "(s\\nt)<a>"},
    {"{'role':'user','content':['a',{'type':'input_text','text':'b'}]}", PLAIN, "[user:a\\nb]"},
    // An assistant's history.
    {"{'role':'assistant','content':null,'name':null}," U("a"), CALLS, "[assistant][user:a]"},
    {"{'role':'assistant','content':null}," U("a"), ADDS, "[][a]"},
    {"{'role':'assistant','content':[{'type':'refusal','refusal':'no'}]}", CALLS, "[assistant:no]"},
    {"{'role':'assistant','content':[{'type':'thinking','thinking':'x'}," P("y") "]}", CALLS,
     "[assistant:y~x]"},
    {"{'role':'assistant','content':[{'type':'thinking','thinking':[" P("x") "]}," P("y") "]}",
     CALLS, "[assistant:y~x]"},
    {"{'role':'assistant','content':null,'function_call':{'name':'f','arguments':'{}'}},"
     "{'role':'function','name':'f','content':'42'}",
     CALLS, "[assistantcall_0 {\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {}}][tool:42call_0]"},
    {"{'role':'tool','tool_call_id':'i','content':null}", CALLS, "[tool:i]"},
    // Integers of any size in a call's arguments, whose text is no JSON for most parsers; and a
    // text
    // that is none.
    {"{'role':'assistant','tool_calls':[{'id':'c','type':'function','function':{'name':'f',"
     "'arguments':'{\\'id\\': 12345678901234567890123, \\'n\\': -1}'}}]}",
     CALLS,
     "[assistantc {\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"id\\\": "
     "12345678901234567890123, \\\"n\\\": -1}}]"},
    {"{'role':'assistant','tool_calls':[{'id':'c','type':'function','function':{'name':'f',"
     "'arguments':'{9'}}]}",
     CALLS, "[assistantc {\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \\\"{9\\\"}]"},
    // Tools of other servers are left out.
    {U("a") "],'tools':[{'type':'function','function':{'name':'f'}},{'type':'web_search'},"
            "{'type':'function','function':{'name':'g'}},{'type':'custom','custom':{'name':'h'}}",
     "{% for t in tools %}{{ t.function.name }} {% endfor %}", "f g "},
    {U("a") "],'tools':[{'type':'mcp','server_url':'u'}", "{{ tools is none }}", "True"},
};

// A body with its quotes.
static void quote(const char *text, char *out, size_t size)
{
    size_t n = 0;
    for (; *text != '\0' && n + 1 < size; text++) out[n++] = *text == '\'' ? '"' : *text;
    out[n] = '\0';
}

static void test_rendered(void **state)
{
    static char messages[2048], body[4096], want[512];
    server_fixture s;
    msgl_front_config cfg = msgl__front_config_default();
    (void)state;
    cfg.stop_timeout_ms = 2000;
    cfg.trust_template = true;
    server_open(&s, &cfg, true);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        quote(cases[i].messages, messages, sizeof messages);
        (void)snprintf(body, sizeof body, "{\"messages\":[%s],\"chat_template\":\"%s\"}", messages,
                       cases[i].source);
        (void)snprintf(want, sizeof want, "{\"prompt\":\"%s\"}", cases[i].want);
        response r = client_request(&s, "POST", "/apply-template", body);
        if (r.status != 200 || strcmp(r.body, want) != 0) {
            fail_msg("%s: %d %s, not %s", messages, r.status, r.body, want);
        }
        response_free(&r);
    }
    server_close(&s);
}

// What the template raises is about the messages that the client sent.
static void test_first_error(void **state)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":"
        "\"s\"}],\"chat_template\":\"{{ raise_exception(messages[0].role ~ messages|length) }}\"}";
    server_fixture s;
    msgl_front_config cfg = msgl__front_config_default();
    (void)state;
    cfg.stop_timeout_ms = 2000;
    cfg.trust_template = true;
    server_open(&s, &cfg, true);
    response r = client_request(&s, "POST", "/apply-template", body);
    if (r.status != 400 || strstr(r.body, "user2") == NULL) fail_msg("%d %s", r.status, r.body);
    response_free(&r);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rendered),
        cmocka_unit_test(test_first_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
