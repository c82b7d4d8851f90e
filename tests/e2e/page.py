#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page at `/` in a headless Chromium, against `minisgl serve`.

    page.py MINISGL MODEL                      starts servers on free ports and ends them
    page.py MINISGL MODEL --screenshots DIR    makes page-light.png, page-dark.png and page-narrow.png instead

Exits 77 (skipped) without the package (`pip install playwright`) or without /usr/bin/chromium (scripts/setup --ci
installs it; playwright's own browsers are not used). What a model would have to be talked into, thoughts and attacks,
is answered in the browser instead of the server.
"""
import concurrent.futures
import json
import os
import re
import sys
import time
import urllib.request

from serving import Server, check

CHROMIUM = "/usr/bin/chromium"
try:
    from playwright.sync_api import sync_playwright
except ImportError:
    print("skipped: the playwright package is not installed")
    sys.exit(77)
if not os.access(CHROMIUM, os.X_OK):
    print("skipped: there is no " + CHROMIUM)
    sys.exit(77)
if len(sys.argv) not in (3, 5):
    sys.exit(__doc__)
servers = []


def serve(*options):
    servers.append(Server(*sys.argv[1:3], *options))
    return servers[-1].url + "/"


class Tab:
    """A page in a context of its own, with all that it asks for and complains about."""

    def __init__(self, browser, url, **options):
        options.setdefault("viewport", {"width": 1280, "height": 800})
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.asked, self.complaints = [], []
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("dialog", lambda d: d.accept())
        self.page.add_init_script("""window.violations = [];
            document.addEventListener('securitypolicyviolation', (e) => window.violations.push(e.violatedDirective))""")
        self.url = url
        self.page.goto(url)
        self.page.wait_for_selector("#model option", state="attached")

    def close(self, allowed=()):
        complaints = [c for c in self.complaints if not any(a in c for a in allowed)]
        check(self.page.evaluate("window.violations") == [] and complaints == [],
              "nothing is refused by the policy, no errors %s" % complaints)
        strangers = [u for u in self.asked if not u.startswith((self.url, "data:", "blob:"))]
        check(strangers == [], "only its own server is asked %s" % strangers)
        check(self.page.evaluate("window.hacked === undefined"), "nothing that was shown ran")
        self.context.close()

    def until(self, condition):
        """Without playwright's own wait_for_function, which evaluates text in the page: the policy refuses that."""
        end = time.monotonic() + 30
        while not self.page.evaluate(condition):
            if time.monotonic() > end:
                raise AssertionError("not in time: " + condition)
            self.page.wait_for_timeout(50)

    def ask(self, text):
        self.page.fill("#ask", text)
        self.page.press("#ask", "Enter")
        self.page.wait_for_selector("#send:not([hidden])")

    def messages(self, role):
        return [m.inner_text() for m in self.page.query_selector_all(".message.%s .body" % role)]

    def setting(self, **values):
        self.page.click("#show-settings")
        for name, value in values.items():
            field = self.page.locator("#settings-form [name=%s]" % name)
            if name in ("thinking", "tool_choice"):
                field.select_option(value)
            else:
                field.fill(value)
        self.page.click("#settings-form button.main")
        self.page.wait_for_selector("#settings", state="hidden")

    def script(self, *deltas, finish="stop", status=200):
        """The next chats are answered with these deltas; returns where their bodies are put."""
        bodies = []
        events = [{"choices": [{"index": 0, "delta": d}]} for d in deltas]
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        text = "".join("data: %s\n\n" % json.dumps(e) for e in events) + "data: [DONE]\n\n"

        def answer(route):
            bodies.append(route.request.post_data_json)
            route.fulfill(status=status, content_type="text/event-stream", body=text)
        self.page.unroute("**/v1/chat/completions")
        self.page.route("**/v1/chat/completions", answer)
        return bodies


def chat(browser, url):
    tab = Tab(browser, url)
    page = tab.page
    check(page.evaluate("document.activeElement.id") == "ask", "the message field has the focus")
    tab.setting(temperature="0", seed="7")
    tab.ask("What is 27 + 58?")
    check("85" in tab.messages("assistant")[0], "a question is answered: %r" % tab.messages("assistant"))
    check(re.search(r"\d+ tokens . ([\d.]+/s . )?first after \d+ ms . prompt \d+", page.inner_text(".facts")), "with its figures")
    check("85" in page.inner_text("#spoken"), "and is read out")
    # Shift+Enter begins a line.
    page.fill("#ask", "")
    page.type("#ask", "one")
    page.press("#ask", "Shift+Enter")
    page.type("#ask", "two")
    check(page.input_value("#ask") == "one\ntwo", "Shift+Enter begins a line")
    tab.ask("Hello! Who are you?")
    check(len(tab.messages("assistant")) == 2, "the conversation goes on")
    page.hover(".message.user >> nth=0")
    page.click(".message.user >> nth=0 >> text=Edit")
    page.fill(".edit textarea", "What is 11 + 12?")
    page.press(".edit textarea", "Enter")
    page.wait_for_selector("#send:not([hidden])")
    check(tab.messages("user") == ["What is 11 + 12?"] and "23" in tab.messages("assistant")[0],
          "an edited message is asked anew, and what came behind it is gone")
    before = tab.messages("assistant")
    page.click("text=Regenerate")
    page.wait_for_selector("#send:not([hidden])")
    check(tab.messages("assistant") == before, "regenerate: the same answer, greedy")
    tab.script({"content": "another one"})
    page.click("text=Regenerate")
    page.wait_for_selector("#send:not([hidden])")
    place = ".message.assistant .others"
    check(tab.messages("assistant") == ["another one"] and "3 of 3" in page.inner_text(place), "regenerate: another answer")
    tab.script({"content": "later"})
    tab.ask("And then?")
    page.click("[data-action=before]")
    check(tab.messages("assistant") == before and "2 of 3" in page.inner_text(place), "the answer before is kept")
    page.click("[data-action=before]")
    check(page.is_disabled("[data-action=before]") and "1 of 3" in page.inner_text(place), "and the first")
    page.reload()
    for _ in range(2):
        page.click("[data-action=behind]")
    check(tab.messages("assistant") == ["another one", "later"] and page.is_disabled("[data-action=behind]"),
          "also behind a reload, and with what came behind the last: %r" % tab.messages("assistant"))
    for _ in range(2):
        page.click("[data-action=before]")
    page.reload()
    check(tab.messages("assistant") == before, "conversations outlive a reload")
    other = tab.context.new_page()
    other.goto(url)
    check(other.is_visible(".welcome") and "What is 11" in other.inner_text("#chat-list"), "another tab begins a new one")
    other.click("text=What is 11")
    check(other.query_selector(".message.assistant .body").inner_text() == before[0], "and can open the old one")
    other.close()
    page.click("#new-chat")
    check(tab.messages("user") == [] and page.is_visible(".welcome"), "a new conversation")
    with page.expect_download() as download:
        page.click("#export")
    with open(download.value.path(), encoding="utf-8") as f:
        check(json.load(f)[0]["messages"][0]["content"] == "What is 11 + 12?", "export")
    page.click("#delete-all")
    check(page.evaluate("localStorage.getItem('minisgl.chats')") == "[]", "delete")
    tab.close()


def metric(url, name):
    with urllib.request.urlopen(url + "metrics") as r:
        return sum(float(line.split()[-1]) for line in r.read().decode().split("\n") if re.match(name + r"[ {]", line))


def stop(browser, url):
    tab = Tab(browser, url)
    page = tab.page

    def endless(route):
        body = route.request.post_data_json
        body.update(ignore_eos=True, max_tokens=4000)
        route.continue_(post_data=json.dumps(body))
    page.route("**/v1/chat/completions", endless)
    for key in (True, False):
        gone = metric(url, "minisgl_requests_aborted_total")
        page.fill("#ask", "Tell me a short story about a fox.")
        page.press("#ask", "Enter")
        tab.until("document.querySelector('.message:last-child .body').innerText.length > 20")
        check(page.is_visible("#stop") and not page.is_visible("#send"), "while it streams there is Stop")
        if key:
            page.keyboard.press("Escape")
        else:
            page.click("#stop")
        page.wait_for_selector("#send:not([hidden])")
        check(page.inner_text(".message:last-child .facts") == "stopped", "stopped by " + ("Esc" if key else "the button"))
        end = time.monotonic() + 20
        while metric(url, "minisgl_requests_aborted_total") == gone and time.monotonic() < end:
            page.wait_for_timeout(100)
        check(metric(url, "minisgl_requests_aborted_total") == gone + 1, "the server knows")
    tab.close()


def errors(browser, url):
    tab = Tab(browser, url)
    tab.page.click("#show-settings")
    for name, value, why in (("temperature", "-1", "allowed: from 0"), ("top_p", "1.5", "allowed: 0.0001 to 1"), ("seed", "1.5", "allowed: whole numbers")):
        tab.page.fill("[name=%s]" % name, value)
        check(tab.page.inner_text("[name=%s] + .bad" % name) == why, "a bad %s is said when it is entered" % name)
    tab.page.click("#settings-form button.main")
    check(tab.page.is_visible("#settings") and tab.page.evaluate("document.activeElement.name") == "temperature", "and is not saved")
    for name, value in (("temperature", "0.33"), ("top_p", ""), ("seed", "")):
        tab.page.fill("[name=%s]" % name, value)
    check(not tab.page.is_visible("[name=temperature] + .bad"), "a good one is not complained of")
    tab.page.click("#settings-form button.main")
    tab.setting(tools='[{"type": "function", "function": {}}]')
    tab.ask("Hello!")
    text = tab.page.inner_text(".error")
    check("400" in text and "function" in text, "an error of the server is shown as it is: %r" % text)
    tab.setting(temperature="", tools="")
    tab.page.click("#show-settings")
    tab.page.fill("[name=tools]", "{nonsense")
    tab.page.click("#settings-form button.main")
    check("JSON" in tab.page.inner_text("#tools-error"), "tools that are no JSON are refused in the form")
    tab.page.keyboard.press("Escape")
    tab.script({"content": "half"})
    tab.page.unroute("**/v1/chat/completions")
    tab.page.route("**/v1/chat/completions", lambda r: r.fulfill(status=200, content_type="text/event-stream", body='data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\ndata: {"error":{"message":"The engine stopped.","type":"server_error"}}\n\n'))
    tab.ask("Again")
    check("half" in tab.messages("assistant")[-1] and "The engine stopped." in tab.page.inner_text(".message:last-child .error"),
          "an error inside of a stream keeps what came before")
    tab.close(allowed=("status of 400",))


def tools(browser, url):
    tab = Tab(browser, url)
    page = tab.page
    page.click("#show-settings")
    page.click("#tools-example")
    page.click("#settings-form button.main")
    tab.setting(system="Be brief.", temperature="0")
    tab.ask("What is the weather in Paris?")
    check(page.inner_text(".call h4") == "get_weather" and '"city": "Paris"' in page.inner_text(".call pre"),
          "a call is shown apart")
    bodies = tab.script({"reasoning_content": "The tool says"}, {"reasoning_content": " rain."}, {"content": "It **rains**."})
    page.fill(".call textarea", '{"sky": "rain"}')
    page.click("text=Send results")
    page.wait_for_selector("#send:not([hidden])")
    sent = bodies[0]["messages"]
    check([m["role"] for m in sent] == ["system", "user", "assistant", "tool"], "results go back to the model")
    check(sent[3]["content"] == '{"sky": "rain"}' and sent[3]["tool_call_id"] == sent[2]["tool_calls"][0]["id"],
          "as the result of that call")
    check(bodies[0]["tools"][0]["function"]["name"] == "get_weather" and bodies[0]["temperature"] == 0, "with the settings")
    thoughts = page.locator(".thoughts")
    check(thoughts.get_attribute("open") is None and not page.is_visible(".thoughts > div"), "thoughts are folded once there is an answer")
    page.click(".thoughts summary")
    check(page.inner_text(".thoughts > div") == "The tool says rain.", "and can be unfolded")
    check(page.inner_text(".message:last-child strong") == "rains", "the answer is apart")
    tab.close()


ATTACKS = [
    "<script>window.hacked = 1</script>", "<img src=x onerror='window.hacked = 1'>", "<svg onload=window.hacked=1>",
    "[a](javascript:window.hacked=1)", "[a](JaVaScRiPt:window.hacked=1)", "[a](java\tscript:window.hacked=1)",
    "[a](&#106;avascript:window.hacked=1)", "[a](data:text/html,<script>window.hacked=1</script>)", "![a](javascript:window.hacked=1)",
    "![x](https://example.com/p.png)", "<a href='javascript:window.hacked=1'>a</a>", "<javascript:window.hacked=1>",
    "[a](https://example.com/\" onclick=\"window.hacked=1)", "```html\n<script>window.hacked=1</script>\n```",
    "```\" onmouseover=\"window.hacked=1\n```", "| <img src=x onerror=window.hacked=1> | b |\n|---|---|\n| `<b>` | c |",
    "# <iframe src='javascript:window.hacked=1'>", "> <style>*{display:none}</style>", "`<b>`", "[a](vbscript:x)",
    "[<img src=x onerror=window.hacked=1>](https://example.com)", "<https://example.com/'onclick='window.hacked=1>",
]
RENDER = """(text) => {
    const box = document.createElement('div');
    box.append(renderMarkdown(text));
    document.body.append(box);
    const all = [...box.querySelectorAll('*')];
    const out = {names: [...new Set(all.map((e) => e.localName))], text: box.textContent, html: box.innerHTML,
        links: all.filter((e) => e.hasAttribute('href')).map((e) => e.getAttribute('href')),
        attributes: [...new Set(all.flatMap((e) => e.getAttributeNames()))]};
    for (const a of box.querySelectorAll('a')) a.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
    box.remove();
    return out;
}"""
SAMPLE = """# One

Some *emphasis*, **strong**, ***both***, ~~gone~~, `code <b>` and snake_case_name, 2 * 3 * 4.
A [link](https://example.com/a_(b)) and https://example.com/x_y_z.

1. first
2. second
   - deep
   - deeper

     paragraph
3. third

| a | b |
|:--|--:|
| 1 \\| 2 | `x|y` |

> quoted
> - list

```c
int main(void) { return *p; }
```

---
- [ ] open
* star
"""


def markdown(browser, url):
    tab = Tab(browser, url)
    for attack in ATTACKS:
        r = tab.page.evaluate(RENDER, attack)
        allowed = {"p", "a", "code", "pre", "div", "span", "button", "table", "thead", "tbody", "tr", "th", "td", "h1", "blockquote", "br"}
        ok = set(r["names"]) <= allowed and all(re.match("https?://", h) for h in r["links"])
        ok = ok and set(r["attributes"]) <= {"class", "href", "target", "rel", "type", "data-copy", "tabindex"}
        check(ok, "harmless: %r %s" % (attack, "" if ok else r["html"]))
    check("<script>window.hacked = 1</script>" in tab.page.evaluate(RENDER, ATTACKS[0])["text"], "tags are text")
    html = tab.page.evaluate(RENDER, SAMPLE)["html"]
    for part in ("<h1>One</h1>", "<em>emphasis</em>", "<strong>strong</strong>", "<strong><em>both</em></strong>", "<del>gone</del>",
                 "<code>code &lt;b&gt;</code>", "snake_case_name, 2 * 3 * 4.", ">link</a>", 'href="https://example.com/a_(b)"',
                 'rel="noopener noreferrer"', '">https://example.com/x_y_z</a>.', "<ol><li>first</li><li>second<ul><li>deep</li><li>",
                 "<p>paragraph</p></li></ul></li><li>third</li></ol>", '<th class="right">b</th>', "<td>1 | 2</td>",
                 "<code>x|y</code>", "<blockquote><p>quoted</p><ul><li>list</li></ul></blockquote>", "<span>c</span>",
                 "<code>int main(void) { return *p; }</code>", "<hr>", "<li>[ ] open</li>"):
        check(part in html, "markdown: %s%s" % (part, "" if part in html else " in " + html))
    for text in ("[" * 20000, "*" * 20000, "`" * 20000, "> " * 5000, "- " * 5000, "a *b " * 4000, "|" * 20000 + "\n" + "|-" * 9000,
                 "# " + " " * 20000 + "x", "[a](" * 5000, "~~a_b" * 4000, "<http://" * 3000, "(" * 20000, "1. " * 4000):
        ms = tab.page.evaluate("(t) => { const b = performance.now(); renderMarkdown(t); return performance.now() - b; }", text)
        check(ms < 3000, "%r and so on takes %d ms" % (text[:8], ms))
    # The same through the page: what the user writes, and what the model answers.
    tab.script({"content": "\n\n".join(ATTACKS)}, {"reasoning_content": "<img src=x onerror=window.hacked=1>"},
               {"tool_calls": [{"index": 0, "id": "<b>", "function": {"name": "<script>", "arguments": "<img src=x onerror=window.hacked=1>"}}]})
    tab.ask("<img src=x onerror=window.hacked=1><script>window.hacked=1</script>")
    check(tab.page.query_selector("#messages img, #messages script, #messages iframe, #messages svg") is None, "no element of it is in the page")
    tab.page.reload()
    check(tab.messages("user")[0].startswith("<img src=x"), "nor after a reload")
    tab.script({"content": "```py\nprint(1)\nprint(2)\n```"})
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.ask("Code")
    tab.page.click(".code >> nth=-1 >> text=Copy")
    check(tab.page.evaluate("navigator.clipboard.readText()") == "print(1)\nprint(2)", "code is copied as it is")
    tab.close()


def storage(browser, url):
    tab = Tab(browser, url)
    page = tab.page
    for junk in ('{"a":1}', '[1,null,{"id":"x","messages":[null,{"role":"user","content":{}},{"role":"system"},{"role":"tool","calls":[null]}]}]',
                 "not json", '"text"', '[{"id":1,"messages":[]}]'):
        page.evaluate("(j) => { for (const n of ['chats', 'settings', 'theme']) localStorage.setItem('minisgl.' + n, j); }", junk)
        page.reload()
        check(page.is_visible("#ask") and page.query_selector("#model option") is not None or page.wait_for_selector("#model option", state="attached"),
              "it begins with %r in storage" % junk)
    page.evaluate("localStorage.clear()")
    page.reload()
    sizes = page.evaluate("""() => {
        const add = (n, text) => { for (let i = 0; i < n; i++) store.touch({id: 'c' + i + n, title: '', messages: [{role: 'user', content: text}]}); };
        const stored = () => localStorage.getItem('minisgl.chats');
        add(60, 'x');
        const many = JSON.parse(stored()).length;
        add(4, 'y'.repeat(900000));
        return [many, JSON.parse(stored()).length, stored().length];
    }""")
    check(sizes[0] == 50 and sizes[1] == 2 and sizes[2] < 2000000, "what is kept is bounded: %s" % sizes)
    tab.close()


def key(browser):
    url = serve("--api-key", "sk-page")
    tab = Tab(browser, url)
    page = tab.page
    page.wait_for_selector("#key-dialog[open]")
    check("API key" in page.inner_text("#key-text"), "the key is asked for in the server's words")
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    tab.until("document.querySelector('#key-text').textContent.includes('not valid')")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "sk-page")
    page.press("#key", "Enter")
    tab.until("document.querySelector('#model').value !== ''")
    tab.ask("What is 27 + 58?")
    check("85" in tab.messages("assistant")[0], "with the key it answers")
    check(page.evaluate("sessionStorage.getItem('minisgl.key')") == "sk-page", "it is kept for the tab")
    check("sk-page" not in page.evaluate("JSON.stringify(localStorage)"), "and nowhere else")
    page.reload()
    tab.until("document.querySelector('#model').value !== ''")
    check(not page.is_visible("#key-dialog"), "a reload does not ask again")
    tab.close(allowed=("status of 401",))


def live(browser, url):
    tab = Tab(browser, url)
    page = tab.page
    load(url, 12)
    tab.until("document.querySelectorAll('#tree rect').length > 3")
    check(page.inner_text("#engines") == "1 / 1", "engines")
    check(re.search(r"[\d.,k ]+ tokens in \d+ runs", page.inner_text("#tree-text")), "radix tree: " + page.inner_text("#tree-text"))
    check(" of 6000" in page.inner_text("#pools"), "pool: " + page.inner_text("#pools").replace("\n", " "))
    check(page.inner_text("#hit").endswith("%"), "prefix cache: " + page.inner_text("#hit"))
    load(url, 24)
    tab.until("parseFloat(document.querySelector('#rate').textContent) > 0")
    check(True, "tokens per second: " + page.inner_text("#rate"))
    page.click("#show-live")
    page.wait_for_timeout(1200)
    n = len(tab.asked)
    page.wait_for_timeout(1500)
    check(len(tab.asked) == n and not page.is_visible("#live"), "a panel that is closed asks for nothing")
    tree = json.load(urllib.request.urlopen(url + "radix_tree"))
    names = {name for r in tree["replicas"] for node in r["nodes"] for name in node}
    check(names == {"parent", "tokens", "refs", "hits"}, "the tree has lengths and counts only")
    tab.close()


def drafts(browser):
    tab = Tab(browser, serve("--speculative-algorithm", "SUFFIX"))
    page = tab.page
    tab.until("document.querySelector('#rate').textContent !== '\u2013'")
    check(not page.is_visible("#drafts-line"), "no line of drafts before there are any")
    tab.setting(temperature="0")
    tab.ask("Tell me a story about a fox.")
    tab.ask("Please say that again.")
    facts = page.inner_text(".message:last-child .facts")
    check(re.search(r" \d+ of \d+ drafts? right ", facts), "drafts of an answer that says the same again: " + facts)
    tab.until("document.querySelector('#drafts').textContent.endsWith('%)')")
    check(page.is_visible("#drafts-line"), "drafts of the server: " + page.inner_text("#drafts"))
    tab.close()


def load(url, n):
    questions = ["What is %d + %d?" % (i, i + 7) for i in range(20)] + ["Tell me a short story about a %s." % a for a in
                 ("fox", "cat", "king", "bear")]

    def one(i):
        body = {"model": "demo", "messages": [{"role": "user", "content": questions[i % len(questions)]}], "seed": i}
        request = urllib.request.Request(url + "v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request).read()
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(n)))


def keyboard(browser, url):
    tab = Tab(browser, url)
    page = tab.page
    page.focus(".skip")
    order, outlines = [], []
    for i in range(30):
        if i > 0:
            page.keyboard.press("Tab")
        at = page.evaluate("""() => { const e = document.activeElement, s = getComputedStyle(e);
            return [e.id || e.className || e.localName, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0]; }""")
        if at[0] == "body":
            break
        order.append(at[0])
        outlines.append(at)
    wanted = ["skip", "model", "show-settings", "theme", "show-live", "new-chat", "export", "delete-all", "scroller", "ask", "send", "tree"]
    check([o for o in order if o in wanted] == wanted, "the order of the focus: %s" % order)
    check(all(visible for _, visible in outlines), "the focus can be seen: %s" % outlines)
    unnamed = page.evaluate("""() => [...document.querySelectorAll('button, input, select, textarea, svg[role]')].filter((e) =>
        !e.textContent.trim() && !e.getAttribute('aria-label') && !(e.labels && e.labels.length)).map((e) => e.outerHTML)""")
    check(unnamed == [], "everything has a name %s" % unnamed)
    page.focus("#show-settings")
    page.keyboard.press("Enter")
    check(page.is_visible("#settings"), "a dialog opens by key")
    page.keyboard.press("Escape")
    check(not page.is_visible("#settings") and page.evaluate("document.activeElement.id") == "show-settings", "and gives the focus back")
    tab.close()


def looks(browser, url):
    tab = Tab(browser, url, color_scheme="light", reduced_motion="reduce")
    page = tab.page
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    check(light != dark, "dark and light follow the system: %s, %s" % (light, dark))
    page.click("#theme")
    check(page.evaluate(ground) == light and page.inner_text("#theme") == "Theme: light", "the switch: light")
    page.reload()
    check(page.evaluate(ground) == light, "which is kept")
    page.click("#theme")
    page.emulate_media(color_scheme="light")
    check(page.evaluate(ground) == dark, "the switch: dark")
    contrast = page.evaluate("""() => { const of = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => { x /= 255;
            return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
        const out = [];
        for (const theme of ['light', 'dark']) { document.documentElement.dataset.theme = theme;
            for (const [e, ground] of [['#keys', 'body'], ['#new-chat', '#new-chat'], ['#export', 'body'], ['.top h1', '.top']]) {
                const a = of(getComputedStyle(document.querySelector(e)).color), b = of(getComputedStyle(document.querySelector(ground)).backgroundColor);
                out.push([theme, e, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]); } }
        return out; }""")
    check(all(c[2] >= 4.5 for c in contrast), "contrast of 4.5 and more: %s" % [round(c[2], 1) for c in contrast])
    tab.close()
    tab = Tab(browser, url, viewport={"width": 360, "height": 740}, reduced_motion="reduce")
    page = tab.page
    tab.script({"content": SAMPLE + "\n`" + "x" * 300 + "` " + "y" * 300 + "\n\n```\n" + "z" * 300 + "\n```\n\n|" + "a|" * 30 + "\n|" + "-|" * 30},
               {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "n" * 60, "arguments": "\"" + "w" * 300 + "\""}}]})
    tab.ask("u" * 300)
    wide = "[document.documentElement.scrollWidth, document.querySelector('#scroller').scrollWidth]"
    check(max(page.evaluate(wide)) <= 360, "at 360 px nothing scrolls sideways: %s" % page.evaluate(wide))
    check(not page.is_visible("#live") and not page.is_visible("#chats"), "one column")
    page.click("#show-chats")
    check(page.is_visible("#chats") and page.evaluate("document.activeElement.id") == "new-chat", "conversations come over it")
    page.keyboard.press("Escape")
    check(not page.is_visible("#chats"), "and go by Esc")
    page.click("#show-live")
    page.wait_for_timeout(300)
    check(page.is_visible("#live") and max(page.evaluate(wide)) <= 360, "as does the panel")
    page.click("#show-live")
    page.click("#show-settings")
    box = page.locator("#settings").bounding_box()
    check(box["x"] >= 0 and box["x"] + box["width"] <= 360 and page.evaluate("(e => e.scrollWidth <= e.clientWidth)(document.querySelector('#settings'))"),
          "the settings fit")
    check(page.evaluate("getComputedStyle(document.querySelector('button')).transitionDuration") in ("0s", "0ms"), "nothing moves for who wants that")
    page.keyboard.press("Escape")
    tab.close()


def screenshots(browser, url, folder):
    def shot(tab, name):
        path = os.path.join(folder, name)
        tab.page.screenshot(path=path)
        check(os.path.getsize(path) < 150000, "%s: %d bytes" % (name, os.path.getsize(path)))

    load(url, 60)
    for name, options in (("page-light.png", {"color_scheme": "light", "viewport": {"width": 1240, "height": 740}}), ("page-dark.png", {"color_scheme": "dark"}),
                          ("page-narrow.png", {"color_scheme": "light", "viewport": {"width": 360, "height": 720}})):
        tab = Tab(browser, url, **options)
        tab.setting(temperature="0", system="")
        if name == "page-dark.png":
            tab.page.click("#show-settings")
            tab.page.click("#tools-example")
            tab.page.click("#settings-form button.main")
            tab.ask("What is the weather in Paris?")
        else:
            for talk in (("Hello! Who are you?",), ("What is the capital of France?",),
                         ("What is minisgl?", "What is 27 + 58?", "Tell me a short story about a fox.")):
                if tab.page.is_visible("#new-chat"):
                    tab.page.click("#new-chat")
                for text in talk:
                    tab.ask(text)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            others = pool.submit(lambda: [(load(url, n), time.sleep(1)) for n in (90, 30, 150, 60, 200, 160)])
            tab.page.wait_for_timeout(1000 if name == "page-narrow.png" else 14000)
            shot(tab, name)
            others.result()
        tab.context.close()


try:
    with sync_playwright() as p:
        b = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        address = serve()
        if len(sys.argv) == 5:
            screenshots(b, address, sys.argv[4])
        else:
            for test in (chat, stop, errors, tools, markdown, live, keyboard, looks, storage):
                print("--", test.__name__)
                test(b, address)
            print("-- key")
            key(b)
            print("-- drafts")
            drafts(b)
        b.close()
    for s in servers:
        s.end()
finally:
    for s in servers:
        s.process.kill()
