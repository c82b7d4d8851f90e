#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything that docs/hostile-inputs.md says comes over HTTP, sent to `minisgl serve` with the model that ships.

    hostile.py MINISGL MODEL

Each input has one right status and names what is wrong. Behind each, another client's plain request is answered as it was
at the start; at the end nothing runs, all pages and descriptors are free, and it is still the same processes.
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

program, model = sys.argv[1:3]
LIMIT_S = 60  # until a server counts as hanging, however busy the machine
CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TALK = [{"role": "user", "content": "x"}]
PLAIN = {"prompt": "Count: 1, 2,", "max_tokens": 8, "temperature": 0, "logprobs": 2}
BASES = {  # an answer of one token from each form of each endpoint that makes some
    (CHAT, None): {"messages": TALK, "max_tokens": 1},
    (COMPLETIONS, None): {"prompt": "x", "max_tokens": 1},
    (GENERATE, None): {"prompt": "x", "max_tokens": 1},
    (GENERATE, "sampling_params"): {"text": "x", "sampling_params": {"max_new_tokens": 1}},
    (MESSAGES, None): {"messages": TALK, "max_tokens": 1},
    ("/v1/messages/count_tokens", None): {"messages": TALK, "max_tokens": 1},
    (RESPONSES, None): {"input": "x", "max_output_tokens": 1},
    ("/v1/embeddings", None): {"input": "x"},
}
# Fields that only SGLang's form of /generate has, whose prompt is `text`.
OF_SGLANG = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs", "lora_path",
             "token_ids_logprob", "return_hidden_states", "input_embeds")
# What no field of a number takes, or only within its limits; the first four are no JSON.
NUMBERS = ["NaN", "Infinity", "0x1", "01", '"5"', "true", "[]", "{}", "null", "-1", "-2147483648", "2147483648",
           "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1e308", "-1e308", "1e999", "1.5", "1e-300"]
NO_JSON = NUMBERS[:4]
vocab = json.load(open(model + "/config.json"))["vocab_size"]
servers = []


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def until(what, condition):
    end = time.monotonic() + LIMIT_S
    while not condition():
        check(time.monotonic() < end, "not in %d s: %s" % (LIMIT_S, what))
        time.sleep(0.02)


def children(pid):
    """In the order in which they were started."""
    return [int(p) for p in pathlib.Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()]


def gone(pids):
    def ended(p):
        try:
            return pathlib.Path("/proc/%d/stat" % p).read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True
    return all(ended(p) for p in pids)


class Server:
    def __init__(self, *more, model=model, port=0, ready=True):
        # Memory that was freed is the system's again soon under the address sanitizer, too.
        options = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=4"
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen([program, "serve", model, "--port", str(port), "--device", "cpu", "--threads", "1",
                                         *(more if "--num-pages" in more else (*more, "--num-pages", "6000"))],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True, start_new_session=True,
                                        env=dict(os.environ, ASAN_OPTIONS=options))
        servers.append(self)
        self.longest = 0
        if ready:
            line = self.process.stdout.readline()
            found = re.search(r"http://127.0.0.1:(\d+)/v1", line)
            check(found, "no address in %r; %s" % (line, self.said()))
            self.port = int(found.group(1))
            *self.engines, self.front = self.children = children(self.process.pid)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), LIMIT_S)

    def raw(self, data, then=b"", finish=False):
        """(status, body) of what answers these bytes, None if nothing does; `finish` closes the sending half."""
        with self.connect() as c:
            with contextlib.suppress(OSError):  # refused before all of it was sent
                c.sendall(data)
                c.sendall(then)
                if finish:
                    c.shutdown(socket.SHUT_WR)
            r = http.client.HTTPResponse(c)
            try:
                r.begin()
                return r.status, r.read()
            except (http.client.HTTPException, OSError):
                return None

    def call(self, path, body=None, headers={}):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            if body is None:
                c.request("GET", path, headers=headers)
            else:
                c.request("POST", path, body if isinstance(body, (str, bytes)) else json.dumps(body),
                          {"Content-Type": "application/json", **headers})
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()

    def plain(self):
        """The choice, with its log-probabilities, that another client gets."""
        start = time.monotonic()
        status, body = self.call(COMPLETIONS, PLAIN)
        self.longest = max(self.longest, time.monotonic() - start)
        check(status == 200, "a plain request: %d %s" % (status, body[:300]))
        return json.loads(body)["choices"][0]

    def stats(self):
        return json.loads(self.call("/get_server_info")[1])

    def idle(self):
        info = self.stats()
        s = info.get("stats") or {}
        open_ones = re.search(rb"^minisgl_requests_open(?:\{.*\})? (\d+)", self.call("/metrics")[1], re.M)
        return (s and s["used_pages"] == s["running"] == s["waiting"] == 0 and int(open_ones[1]) == 0 and
                s["free_pages"] + s["cached_pages"] == s["total_pages"])

    def fds(self):
        return [len(os.listdir("/proc/%d/fd" % p)) for p in self.children]

    def memory(self):
        """KiB of all its processes."""
        return sum(int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path("/proc/%d/status" % p).read_text())[1])
                   for p in self.children)

    def quiet(self):
        """No sanitizer has spoken."""
        said = self.said()
        check(not re.search("Sanitizer|runtime error:|Assertion", said), said)

    def healthy(self):
        """Nor was a process started anew."""
        self.quiet()
        check(children(self.process.pid) == self.children, "processes were started anew:\n" + self.said())

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(LIMIT_S)
        check(code == 0, "it ends with %d:\n%s" % (code, self.said()))
        check(gone(self.children), "processes are left")
        self.quiet()


def message_of(body):
    """The message, and the field that is wrong, of an error in any form."""
    error = json.loads(body)["error"]
    return (error, None) if isinstance(error, str) else (error["message"], error.get("param"))  # a string: Ollama's


def row(s, path, body, status, says="", param=None):
    """One input: its status (several: any of them), what its message has, and that the next request is served."""
    allowed = status if isinstance(status, tuple) else (status,)
    got, text = s.call(path, body)
    what = "%s %.300s: %d %.500s" % (path, body if isinstance(body, (str, bytes)) else json.dumps(body), got, text)
    check(got in allowed, what)
    if got >= 400:
        message, field = message_of(text)
        check(says in message and (param is None or param == field), what)
        check(not re.search(r"0x[0-9a-f]{6,}|/tmp|\.c:\d", message), what)  # addresses, places in the source
    check(s.plain() == s.expected, "another client's answer changed behind " + what)
    return text


# ---- 8, 9, 11, 12, 14: every number of every endpoint, as `minisgl help --http` lists them


def reference():
    """Of each "## TITLE" of the page: (name, type, limits, the object that it stands in) of each field."""
    page = subprocess.run([program, "help", "--http"], capture_output=True, text=True, check=True).stdout
    sections = {}
    for part in re.split(r"^## ", page, flags=re.M)[1:]:
        title, _, text = part.partition("\n")
        rows, place = [], None
        for line in text.splitlines():
            inside = re.match(r"In `(\w+)`:", line)
            cells = [c.strip() for c in line.strip("|").split("|")]
            if inside:
                place = inside[1]
            elif line.startswith("| `") and len(cells) == 5:
                rows.append((cells[0].strip("`"), cells[1], cells[2], place))
            elif line.startswith("And: "):
                rows += [(link, "section", "", place) for link in re.findall(r"\[(Fields of [^]]*)\]", line)]
            elif line.startswith("Its fields are those of "):
                rows.append(("POST " + line.split()[-1].rstrip("."), "section", "", place))
        sections[title] = rows

    def resolve(rows, into):
        for name, kind, limits, place in rows:
            if kind == "section":
                yield from resolve(sections[name], into or place)
            else:
                yield name, kind, limits, into or place
    return {title: list(resolve(rows, None)) for title, rows in sections.items()}


def answer_to(kind, limits, value):
    """400 or 200 to this value of a field; None: either, what the rest of the request is decides."""
    if value == "null":
        return 200
    if value in NO_JSON or value[0] in '"t[{':
        return 400
    number = float(value)
    if limits.startswith("-1, or ") and value == "-1":
        return 200
    bounds = re.search(r"(\S+) to (\S+)", limits)
    if kind == "integer" and not re.fullmatch(r"-?\d+", value):
        return 400
    if abs(number) >= 2 ** 63 and value != "9223372036854775807":
        return 400
    if bounds and not float(bounds[1]) <= number <= float(bounds[2]):
        return 400
    return None


def base_of(path, place, name, usual):
    """A body of its own that the field may stand in."""
    of_sglang = path == GENERATE and name in OF_SGLANG
    return json.loads(json.dumps(BASES[path, "sampling_params"] if of_sglang else usual))


def numbers_of(s, path, place, name, kind, limits):
    base = base_of(path, place, name, BASES[path, place])
    inner = base[place] if place else base
    inner.pop(name, None)
    if name == "max_completion_tokens":
        inner.pop("max_tokens")
    if name == "max_tokens" and path == CHAT:
        inner["max_completion_tokens"] = 1
    for value in NUMBERS:
        inner[name] = "@"
        body = json.dumps(base).replace('"@"', value)
        want = answer_to(kind, limits, value)
        if value == "null" and name == "max_tokens" and path == MESSAGES:
            want = 400  # has to be given
        status, text = s.call(path, body)
        check(status == want or (want is None and status in (200, 400)), "%s %s: %d %s" % (path, body, status, text[:300]))
        if status == 400 and value not in NO_JSON:
            message, param = message_of(text)
            check(name in message, "%s %s: %s" % (path, body, message))
            check(param is None or param.split(".")[-1] == name, "%s %s: %s" % (path, body, param))
    check(s.plain() == s.expected, "another client's answer changed behind %s of %s" % (name, path))


def numbers(s, vectors=False):
    """Of the endpoints that answer, or of the one that makes vectors, by a server of its own."""
    count = 0
    fields = reference()
    for (path, place), base in BASES.items():
        if (path == "/v1/embeddings") != vectors:
            continue
        for name, kind, limits, where in fields["POST " + path]:
            if kind in ("integer", "number") and where == place:
                numbers_of(s, path, place, name, kind, limits)
                count += 1
    check(count > (0 if vectors else 90), "only %d fields are tabled" % count)
    return "%d fields, %d values each" % (count, len(NUMBERS))


TYPES = {"string": '"x"', "boolean": "true", "integer": "7", "number": "0.5", "object": '{"a":1}', "array": "[{}]"}


def types(s):
    """Every other field, as every type of JSON: named where it is the wrong one, and never worse than refused."""
    count = 0
    fields = reference()
    others = {"/tokenize": {"messages": TALK}, "/apply-template": {"messages": TALK}, "/detokenize": {"tokens": [1]},
              "/abort_request": {"rid": "nobody"}, "/v1/batches": {}}
    for (path, place), base in [*BASES.items(), *(((p, None), b) for p, b in others.items())]:
        title = next(t for t in fields if t.split(", ")[-1].endswith("POST " + path) or t == "GET, POST " + path)
        for name, kind, _, where in fields[title]:
            if where != place:
                continue
            for sort, value in [*TYPES.items(), ("list", '[5,null,"",[[]],{"a":[]}]'), ("empty", '""'),
                                ("long", '"%s"' % ("é" * 70000))]:
                body = base_of(path, place, name, base)
                (body[place] if place else body)[name] = "@"
                status, text = s.call(path, json.dumps(body).replace('"@"', value))
                what = "%s %s %.60s: %d %s" % (path, name, value, status, text[:300])
                check(status in (200, 400, 404, 413, 501), what)
                right = kind.split(" ")[0]
                wrong = sort in TYPES and right in TYPES and sort != right and (sort, right) != ("integer", "number")
                if wrong and status != 501 and path != "/v1/embeddings":
                    check(status == 400 and name in message_of(text)[0], what)
            check(s.plain() == s.expected, "another client's answer changed behind %s of %s" % (name, path))
            count += 1
    check(count > 250, "only %d fields are tabled" % count)
    return "%d fields" % count


def vectors(s):
    """The same of the server that makes vectors instead of answers."""
    pools = Server("--is-embedding", "--num-pages", "600")
    pools.expected = None
    pools.plain = lambda: None if pools.call("/v1/embeddings", {"input": "x"})[0] == 200 else "refused"
    said = numbers(pools, True)
    for texts in ([], [""], ["x"] * 1025, [[]], [[-1]], [[vocab]], [None], {"a": 1}, [["x"]]):
        row(pools, "/v1/embeddings", {"input": texts}, 400, "input", None)
    pools.healthy()
    pools.stop()
    return said


def token_ids(s):
    """8, 13: every list of tokens, with what is no token."""
    ids = [*NUMBERS, str(vocab), str(vocab + 1), str(1 << 32), '"abc"']
    places = [(COMPLETIONS, '{"prompt":[%s],"max_tokens":1}'), (COMPLETIONS, '{"prompt":[[1],[%s]],"max_tokens":1}'),
              (GENERATE, '{"input_ids":[%s],"sampling_params":{"max_new_tokens":1}}'), ("/detokenize", '{"tokens":[%s]}')]
    for field in ("stop_token_ids", "allowed_token_ids"):
        places.append((COMPLETIONS, '{"prompt":"x","max_tokens":1,"%s":[%%s]}' % field))
        places.append((GENERATE, '{"text":"x","sampling_params":{"max_new_tokens":1,"%s":[%%s]}}' % field))
        places.append((RESPONSES, '{"input":"x","max_output_tokens":1,"%s":[%%s]}' % field))
    for pair in ("[[%s,1]]", "[[1,1],[%s,1]]"):
        places.append((COMPLETIONS, '{"prompt":"x","max_tokens":1,"logit_bias":%s}' % pair))
    for path, body in places:
        for value in ids:
            if value[0] in '"[' and re.search(r'"(prompt|input_ids|tokens)":\[%', body):
                continue  # a list of prompts
            status, text = s.call(path, body % value)
            check(status == 400, "%s %s: %d %s" % (path, body % value, status, text[:300]))
        check(s.plain() == s.expected, "another client's answer changed behind %s %s" % (path, body))
        status, text = s.call(path, body % (vocab - 1))
        check(status == 200, "the last token: %s %s: %d %s" % (path, body, status, text[:300]))
    return "%d lists, %d ids each" % (len(places), len(ids))


# ---- 9 to 14, 16 to 23, 26, 29, 30, 35, 37, 43: one request each


def values(s):
    def of(path=COMPLETIONS, says="", **more):
        base = {"messages": TALK, "max_tokens": 4} if path == CHAT else {"prompt": "x", "max_tokens": 4}
        row(s, path, {**base, **more}, 400, says)

    for empty in ("", [], [[]], [""], [[1], []], None):
        of(prompt=empty, says="prompt")
    row(s, CHAT, {"messages": []}, 400, "messages")
    row(s, MESSAGES, {"messages": [], "max_tokens": 1}, 400, "messages")
    row(s, RESPONSES, {"input": []}, 400, "input")
    for path in (CHAT, COMPLETIONS, GENERATE):
        for n in (10 ** 6, -1, 0):
            of(path, n=n, says="'n'")
        of(path, max_tokens=0, says="max_tokens")
    of(best_of=10 ** 9, says="best_of")
    of(best_of=5, n=4, says="best_of")
    of(logprobs=10 ** 6, says="logprobs")
    of(CHAT, logprobs=True, top_logprobs=10 ** 6, says="top_logprobs")
    of(prompt_logprobs=10 ** 6, says="prompt_logprobs")
    for least in (10 ** 9, 5):
        of(min_tokens=least, says="min_tokens")
    of(max_tokens=None, min_tokens=10 ** 9, says="min_tokens")
    row(s, CHAT, {"messages": TALK, "min_tokens": 2 ** 31 - 1}, 400, "min_tokens", "min_tokens")
    check(s.call("/health")[0] == 200, "/health")
    of(temperature=1e300, says="temperature")
    of(top_p=0, says="top_p")
    for name in ("prompt_embeds", "chat_template"):
        of(**{name: "AAAA"}, says=name)
        of(CHAT, **{name: "{% for i in range(10**9) %}{% endfor %}"}, says=name)
    for adapter in ("AAAA", "../../etc", "a" * 10000):
        row(s, COMPLETIONS, {"prompt": "x", "max_tokens": 1, "lora_path": adapter}, 404)
    row(s, GENERATE, {"text": "x", "sampling_params": {}, "input_embeds": [[1.0]]}, 400, "input_embeds")
    row(s, COMPLETIONS, {"prompt": ["x"] * 10 ** 6, "max_tokens": 1}, 400, "prompt")
    row(s, COMPLETIONS, {"prompt": [[1], [1] * 3000, [2]], "max_tokens": 1}, 400, "context")
    row(s, COMPLETIONS, {"prompt": [[1], [1] * 1000, [2, 3]], "max_tokens": 1}, 200)
    row(s, COMPLETIONS, {"prompt": ["x"] * 64, "n": 128, "max_tokens": 1}, 400)
    for name in ("../x", "/etc/passwd", "..%2f..%2fetc", "demo/../demo", "a" * 10000):
        of(model=name, says="") if name == "" else row(s, COMPLETIONS, {"prompt": "x", "model": name}, 404)
    for name in ("tokenize", "messages", "tools", "chat_template", "return_dict"):
        of(CHAT, chat_template_kwargs={name: True}, says=name)
    row(s, CHAT, {"messages": TALK, "max_tokens": 2, "chat_template_kwargs": {
        "bos_token": "<|im_end|>", "deep": [[[[{}]]]], "x": "y" * 10 ** 6}}, 200)
    # Extreme, and right.
    for more in ({"temperature": 1e-300}, {"temperature": 10 ** 6}, {"top_p": 1e-37}, {"seed": -2 ** 63}, {"top_k": 2 ** 31 - 1},
                 {"allowed_token_ids": [5], "logit_bias": {"5": -100}}, {"logit_bias": {str(i): -100 for i in range(1024)}},
                 {"stop_token_ids": [vocab - 1] * 16}, {"frequency_penalty": -2, "repetition_penalty": 0.01}):
        row(s, COMPLETIONS, {"prompt": "x", "max_tokens": 4, **more}, 200)


def neighbours(s):
    """13: tokens at the edge of the vocabulary change nobody else's logits."""
    ids = [vocab - 1, vocab, vocab + 1, -1, 2 ** 31 - 1]
    bad, stop = [], threading.Event()

    def beside():
        while not stop.is_set():
            if s.plain() != s.expected:
                bad.append("another client's answer changed")

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        for i in ids:
            want = 200 if 0 <= i < vocab else 400
            for more in ({"logit_bias": {str(i): 100}}, {"logit_bias": {str(i): -100, "0": 100}}, {"allowed_token_ids": [i]},
                         {"stop_token_ids": [i]}, {"allowed_token_ids": [0, i, 1]}):
                for drawn in (0, 1):
                    body = {"prompt": "Count: 1,", "max_tokens": 6, "n": 4, "temperature": drawn, "ignore_eos": True, **more}
                    row(s, COMPLETIONS, body, want, next(iter(more)) if want == 400 else "")
        for more, says in (({"logit_bias": {"abc": 1}}, "logit_bias"), ({"logit_bias": {"1": 101}}, "logit_bias"),
                           ({"logit_bias": {"1": "1"}}, "logit_bias"), ({"logit_bias": [[1]]}, "logit_bias"),
                           ({"logit_bias": {str(i): 0 for i in range(10 ** 5)}}, "logit_bias"),
                           ({"allowed_token_ids": []}, "allowed_token_ids"),
                           ({"allowed_token_ids": [1] * 10 ** 5}, "allowed_token_ids"), ({"bad_words": [""]}, "bad_words"),
                           ({"bad_words": ["a" * 257]}, "bad_words"), ({"bad_words": ["a"] * 257}, "bad_words"),
                           ({"bad_words": [5]}, "bad_words"), ({"bad_words": "a"}, "bad_words")):
            row(s, COMPLETIONS, {"prompt": "x", "max_tokens": 2, **more}, 400, says)
        row(s, COMPLETIONS, {"prompt": "x", "max_tokens": 2, "bad_words": ["\x7f", "<|im_end|>", "\u00e9", " x"]}, 200)
    finally:
        stop.set()
        thread.join(LIMIT_S)
    check(not bad, bad[:1])


def constraints(s):
    """16 to 21: schemas, patterns and grammars that are none, or too much."""
    def of(status, says="", **more):
        row(s, COMPLETIONS, {"prompt": "x", "max_tokens": 40, **more}, status, says)

    for schema in ({"type": "nope"}, {"type": 5}, {"enum": []}, {"pattern": "["}, {"type": "string", "pattern": 5}, False, 7,
                   {"$ref": "#/nowhere"}, {"minItems": -1}, {"minItems": 10 ** 9}, "{", "[]",
                   {"allOf": [{"type": "string"}, {"type": "number"}]}, {"type": "string", "pattern": "^[^\\s\\S]$"}):
        of(400, "guided_json", guided_json=schema)
        of(400, "response_format", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    # What is a schema but cannot be kept: nothing is fetched.
    for schema in ({"$ref": "http://127.0.0.1/x"}, {"not": {}}):
        of(400, "response_format", response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}})
        of(200, guided_json=schema)
    for pattern in ("[", "*a", "(?<=x)", "(?=a)b", "^+[a-z]$", "^{2}times$", "(", ")", "a{2,1}", "\\", "[z-a]", "[^\\s\\S]",
                    "a{999999999999}", ".{1,65535}{1,65535}", "(" * 30000, "(" * 60000 + ")" * 60000):
        for field in ("guided_regex", "regex"):
            of(400, field, **{field: pattern})
        row(s, GENERATE, {"text": "x", "sampling_params": {"regex": pattern}}, 400, "regex")
    for grammar in ("root ::= root", "root ::= x", "root ::= (", "root ::= " + "(" * 60000, "::=", "root ::= \"\\", "{"):
        of(400, "grammar", grammar=grammar)
    of(400, "guided_choice", guided_choice=[])
    of(400, "guided_choice", guided_choice=[5])
    of(400, "structured_outputs", structured_outputs={"regex": "a", "json": {}})
    # No request for one: fields of grammars that are empty.
    of(200, guided_regex="", grammar="")
    # Deep, wide, and without end: bounded work, and the request's own end.
    of(200, guided_grammar="root ::= r0\n" + "".join("r%d ::= r%d\n" % (i, i + 1) for i in range(5000)) + 'r5000 ::= "x"\n')
    deep = '{"items":' * 10 ** 4 + "true" + "}" * 10 ** 4
    row(s, COMPLETIONS, '{"prompt":"x","guided_json":%s}' % deep, 400, "levels deep")
    of(400, "guided_json", guided_json=deep)
    of(400, "guided_json", guided_json='{"items":' * 500 + "true" + "}" * 500)
    for opening in ("[", '{"a":'):
        row(s, COMPLETIONS, '{"prompt":"x","metadata":' + opening * 10 ** 6, 400, "levels deep")
    for pattern in ("(a+)+b", "(a|a)*b", "(a*)*b", "(a|aa){1,9000}b", "(.*a){1,400}b", "((a{1,90}){1,90}){1,90}b",
                    "(a|b)*a(a|b){300}"):
        of(200, guided_regex=pattern, ignore_eos=True, logit_bias={"97": 100})
    # Too many ways to read what has been written: some are left out, the answer goes on.
    of(200, grammar='root ::= root root root | "a"', ignore_eos=True)
    # Sums of sums of schemas: work is counted.
    defs = {"d%d" % i: {"allOf": [{"$ref": "#/$defs/d%d" % (i + 1)}] * 2} for i in range(30)}
    of(200, guided_json={"$ref": "#/$defs/d0", "$defs": {**defs, "d30": {"type": "null"}}})
    wide = "|".join("[a-z]%s?%d" % (chr(65 + i % 26), i) for i in range(20000))
    of(400, "limit: alternatives", guided_regex=wide)
    # What ends in itself: an answer that cannot end within its tokens does, and says so.
    text = row(s, COMPLETIONS, {"prompt": "x", "max_tokens": 9, "guided_json": {"type": "array", "minItems": 10 ** 6}}, 200)
    check(json.loads(text)["choices"][0]["finish_reason"] == "length", text)


def tools(s):
    """17, 37: definitions of tools, and calls in the history."""
    def tool(parameters, **more):
        return [{"type": "function", "function": {"name": "f", "parameters": parameters, **more}}]

    for pattern in ("^+[a-z]$", "^{2}times$", 5, "(", "(?=a)"):
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
        for choice in ("auto", "required"):
            row(s, CHAT, {"messages": TALK, "tools": tool(schema, strict=True), "tool_choice": choice}, 400, "tools")
            row(s, CHAT, {"messages": TALK, "tools": tool(schema), "tool_choice": choice, "max_tokens": 4}, 200)
    for bad in ([], [5], [{}], [{"type": "function"}], tool(5), tool({"type": "nope"}, strict=True), "x", {"a": 1},
                [{"type": "function", "function": {"name": 5}}]):
        row(s, CHAT, {"messages": TALK, "tools": bad, "tool_choice": "required"}, 400, "tool")
    odd = [{"type": "function", "function": {"name": '"a b\n</tool_call>\\'}}]
    row(s, CHAT, {"messages": TALK, "tools": odd, "tool_choice": "required", "max_tokens": 9}, 200)
    row(s, CHAT, {"messages": TALK, "tools": tool({}), "tool_choice": {"type": "function", "function": {"name": "g"}}}, 400,
        "tool_choice")

    def history(arguments):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return {"messages": [*TALK, {"role": "assistant", "content": None, "tool_calls": [call]},
                             {"role": "tool", "tool_call_id": "1", "content": "y"}], "max_tokens": 2}

    # What a model wrote may be no JSON: it is a text to the template.
    for arguments in ('{"a":"b"c"}', "{", "", "null", "[1]", "\x7f", "</tool_call>", "NaN", '{"a":1,"a":2}', 5, None, ["x"], True):
        row(s, CHAT, history(arguments), 200)
    for long, says in (("{" * 10 ** 5, "context"), ('{"a":' * 10 ** 5, "nested more than"), ('{"a":"' + "x" * 10 ** 7 + '"}', "context")):
        row(s, CHAT, history(long), 400, says)
    for text in ("\\ud800", "\\udc00\\ud800", "\\ud800x", "\\u0000"):
        for body in ('{"messages":[{"role":"user","content":"%s"}]}', '{"messages":[{"role":"%s","content":"x"}]}'):
            row(s, CHAT, body % text, 400)
        row(s, CHAT, json.dumps(history("@")).replace("@", text), 400)
    for bad in (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"):
        row(s, CHAT, b'{"messages":[{"role":"user","content":"' + bad + b'"}]}', 400, "JSON")
    for role in ("root", "", 5, None):
        row(s, CHAT, {"messages": [{"role": role, "content": "x"}]}, 400, "role")


def images(s):
    """26, 35: nothing is fetched, whatever a message names."""
    with socket.socket() as trap:
        trap.bind(("127.0.0.1", 0))
        trap.listen()
        trap.setblocking(False)
        there = "http://127.0.0.1:%d/a.png" % trap.getsockname()[1]
        tiny = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        for url in (there, "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd", tiny, "data:,", "", "gopher://x"):
            for kind in ("image_url", "video_url", "audio_url", "input_audio"):
                row(s, CHAT, {"messages": [{"role": "user", "content": [{"type": kind, kind: {"url": url}}]}]}, 400, "text only")
            row(s, MESSAGES, {"max_tokens": 1, "messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "url", "url": url}}]}]}, 400, "text only")
            row(s, RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}, 400,
                "text only")
            row(s, GENERATE, {"text": "x", "sampling_params": {}, "image_data": url or there}, 400, "image_data")
            row(s, CHAT, {"messages": [{"role": "user", "content": "![a](%s)" % url}], "max_tokens": 2}, 200)
        try:
            trap.accept()
            raise AssertionError("the server has fetched " + there)
        except BlockingIOError:
            pass


def special_tokens(s):
    """34: what a message spells becomes no token that the tokenizer calls its own."""
    added = json.load(open(model + "/tokenizer.json"))["added_tokens"]

    def count(content, token):
        status, text = s.call("/tokenize", {"messages": [{"role": "user", "content": content}]})
        check(status == 200, text[:300])
        return json.loads(text)["tokens"].count(token)

    everything = " ".join(t["content"] for t in added)
    for t in added:
        for content in (t["content"], [{"type": "text", "text": t["content"]}], everything):
            check(count(content, t["id"]) == count("x", t["id"]), "%s is formed from a message" % t["content"])
    for content in (everything, "<|image_pad|><|vision_start|>" * 100):
        row(s, CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 2}, 200)
    row(s, COMPLETIONS, {"prompt": everything, "max_tokens": 2}, 200)
    return "%d added tokens" % len(added)


def many_schemas(s, count=1200, warm=600):
    """20: as many grammars as requests, and no more memory."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=LIMIT_S)
    for i in range(count):
        if i == warm:
            before = s.memory()
        schema = {"type": "object", "properties": {"field %d" % i: {"type": "integer", "minimum": i}}}
        c.request("POST", COMPLETIONS, json.dumps({"prompt": "x", "max_tokens": 1, "guided_json": schema}))
        r = c.getresponse()
        body = r.read()
        check(r.status == 200, body[:300])
    c.close()
    grown = s.memory() - before
    check(grown < 12 << 10, "%d schemas more take %d KiB" % (count - warm, grown))
    check(s.plain() == s.expected, "another client's answer changed behind many schemas")
    return "%d KiB for the last %d" % (grown, count - warm)


# ---- 27 to 30: bytes that are no request


POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = b'{"prompt":"x","max_tokens":1}'


def with_length(text):
    return POST + b"Content-Length: " + text + b"\r\n\r\n" + BODY


def chunked(text, more=b""):
    return POST + more + b"Transfer-Encoding: chunked\r\n\r\n" + text


FRAMING = [  # bytes, the statuses that are right
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10 ** 6, 431),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 10 ** 7, 431),
    (b"GET /" + b"a" * 10 ** 7, 414),
    (b"\0" * 100000, (400, 414)),
    (b"a" * 10 ** 6, (400, 414)),
    (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", 400),
    (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 505),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 505)),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", 400),
    (b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n", (400, 405, 501)),
    (b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", (400, 404, 405, 501)),
    *((with_length(text), (400, 413)) for text in (
        b"-1", b"+29", b"1e3", b"0x1d", b"", b" ", b"29,29", b"29 29", b"9223372036854775807", b"9223372036854775808",
        b"18446744073709551645", b"9" * 40, b"10737418240", b"33554433000", b"29\r\nContent-Length: 30")),
    *((chunked(text), (400, 413)) for text in (
        b"ffffffffffffffff\r\n", b"7fffffffffffffff\r\n", b"10000000000000000\r\n", b"-1\r\n", b"0x1d\r\n", b"\r\n", b"1d\n",
        b"+1d\r\n", b" 1d\r\n", b"1d;" + b"e" * 10 ** 6, b"g\r\n", b"1\r\nab\r\n", b"1d\r\n" + BODY + b"0\r\n")),
    (chunked(b"0\r\n" + b"T: v\r\n" * 10 ** 5), 431),
    (chunked(b"0\r\n\r\n", b"Content-Length: 29\r\n"), 400),
    (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
    *((POST + b"Transfer-Encoding: " + text + b"\r\n\r\n0\r\n\r\n", (400, 501)) for text in (
        b"gzip, chunked", b"xchunked", b"chunked, chunked", b"identity", b"chunked\r\nTransfer-Encoding: chunked")),
    (POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (POST + b"Content-Encoding: gzip\r\nContent-Length: 29\r\n\r\n" + BODY, 415),
    (POST + b"Expect: 200-ok\r\nContent-Length: 29\r\n\r\n" + BODY, 417),
]


def framing(s):
    for data, status in FRAMING:
        got = s.raw(data, finish=True)
        allowed = status if isinstance(status, tuple) else (status,)
        check(got is not None and got[0] in allowed, "%r: %s" % (data[:200], got))
        check(s.plain() == s.expected, "another client's answer changed behind %r" % data[:200])
    # Bytes as chunks: one request, whose body is a megabyte of spaces.
    before = s.memory()
    text = BODY + b" " * 10 ** 6
    got = s.raw(chunked(b"".join(b"1\r\n%c\r\n" % c for c in text) + b"0\r\n\r\n"))
    check(got and got[0] == 200, got)
    check(s.memory() < before + (24 << 10), "%d KiB for a body in small chunks" % (s.memory() - before))
    check(s.plain() == s.expected, "another client's answer changed behind small chunks")
    return "%d" % len(FRAMING)


def paths(s):
    for path in (b"/../../etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"/..%2f..%2fetc%2fpasswd", b"//etc/passwd", b"/v1/../../x",
                 b"/v1/models/../../../etc/passwd", b"/v1/models/%2e%2e%2fx", b"/%00", b"/index.html%00.js", b"/\xff", b"/%zz",
                 b"/v1/files/../../../etc/passwd/content", b"/v1/files/%2e%2e%2f%2e%2e%2fetc%2fpasswd/content",
                 b"/v1/batches/../x", b"/page.js/../../x", b"/a\\..\\b", b"/%0d%0aX:%20y", b"http://169.254.169.254/x", b"*"):
        got = s.raw(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        check(got and got[0] in (400, 404, 405, 501), "%r: %s" % (path, got))
        check(b"root:" not in got[1] and json.loads(got[1])["error"]["message"], got)
        check(s.plain() == s.expected, "another client's answer changed behind %r" % path)


def absent(s):
    """7, 25: what other servers let anybody load, restore or run is not there."""
    for path in ("/slots/0?action=restore", "/slots/0?action=save", "/lora-adapters", "/collective_rpc", "/update_weights", "/start_profile", "/api/blobs/x",
                 "/pause", "/open_session", "/set_internal_state"):
        row(s, path, {"filename": "../../x", "model": "../x", "path": "/etc/passwd"}, 404)
    row(s, "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "/etc/passwd"}, 501)  # only with --enable-lora
    for path in ("/etc/passwd", "/etc", "../../../etc/passwd", "/dev/zero", "", "a" * 10000):  # for admins; shows no file
        status, text = s.call("/update_weights_from_disk", json.dumps({"model_path": path}))
        check(status == 400 and b"root:" not in text, "%.60r: %d %s" % (path, status, text[:300]))
        check(s.plain() == s.expected, "another client's answer changed behind %.60r" % path)
    row(s, "/props", {"chat_template": "x"}, 405)  # is read, and set by nobody
    for path in ("/api/pull", "/api/create"):  # known by name, to say what to do instead
        row(s, path, {"model": "../x"}, 501)


def stored(s):
    """30: names of uploaded files, ids of files and batches, and lines that are no requests."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/batches")
        one = Server("--num-pages", "600", "--batch-dir", folder + "/batches")
        one.expected = one.plain()

        def upload(name, text, purpose=b"batch"):
            form = (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + purpose + b'\r\n--b\r\nContent-Disposition: '
                    b'form-data; name="file"; filename="' + name + b'"\r\n\r\n' + text + b"\r\n--b--\r\n")
            return one.call("/v1/files", form, {"Content-Type": "multipart/form-data; boundary=b"})

        lines = [b"{", b"5", b"{}", b"\xff", b'{"custom_id":"a"}', b"[" * 10 ** 5,
                 b'{"custom_id":"a","method":"POST","url":"/../x","body":{}}',
                 b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":5}',
                 b'{"custom_id":5,"method":"GET","url":5,"body":{"prompt":"x","max_tokens":-1}}']
        for name in (b"../../evil", b"/etc/evil", b"a\\..\\b", b"", b"a\0b", b"x" * 5000):
            for text in (b"", b"\0" * 1000, *lines):
                status, body = upload(name, text)
                check(status in (200, 400, 413), "%r %r: %d %s" % (name[:50], text[:50], status, body[:300]))
                if status == 200:
                    got, body = one.call("/v1/batches", {"input_file_id": json.loads(body)["id"], "endpoint": COMPLETIONS,
                                                         "completion_window": "24h"})
                    check(got in (200, 400), "%r: %d %s" % (text[:50], got, body[:300]))
        check(upload(b"a", b"{}", b"../x")[0] == 400, "a purpose that is none")
        for path in ("/v1/files/", "/v1/batches/"):
            for name in ("..", "../..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "file-", "file-" + "a" * 3000, "batch_../x", "%00"):
                for end in ("", "/content", "/cancel"):
                    status, body = one.call(path + name + end)
                    check(status in (400, 404, 405) and b"root:" not in body, "%s: %d %s" % (path + name + end, status, body[:300]))
            row(one, "/v1/batches", {"input_file_id": "../../etc/passwd", "endpoint": COMPLETIONS, "completion_window": "1"}, (400, 404))
        check(os.listdir(folder) == ["batches"], os.listdir(folder))
        until("batches have ended", lambda: all(b["status"] in ("completed", "failed")
                                                for b in json.loads(one.call("/v1/batches")[1])["data"]))
        until("nothing is left", one.idle)
        one.healthy()
        one.stop()


# ---- 38: clients that leave


def leaving(s):
    long_one = {"prompt": [10 + i % 900 for i in range(1500)], "max_tokens": 400, "ignore_eos": True}
    body = json.dumps({**long_one, "stream": True, "n": 2}).encode()
    whole = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for reset in (False, True):
        for phase in (b"", whole[:20], whole[:70], whole[:-100], whole, None):
            ones = []
            for _ in range(6):
                c = s.connect()
                if reset:
                    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                c.sendall(whole if phase is None else phase)
                ones.append(c)
            if phase is None:  # as soon as the first of them answers
                check(ones[0].recv(1), "no answer")
            elif phase == whole:
                time.sleep(0.05)
            for c in ones:
                c.close()
        until("clients that left leave nothing", s.idle)
        check(s.plain() == s.expected, "another client's answer changed behind clients that left")


# ---- 24, 31, 38, 40, 42, 43: servers of their own


def listening(server):
    """The ports where any of its processes listens."""
    inodes = set()
    for p in [server.process.pid, *server.children, *(c for p in server.children for c in children(p))]:
        for fd in os.listdir("/proc/%d/fd" % p):
            with contextlib.suppress(OSError):
                inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink("/proc/%d/fd/%s" % (p, fd))))
    ports = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in open("/proc/net/" + table).readlines()[1:]:
                f = line.split()
                if f[9] in inodes and (f[3] == "0A" or table.startswith("udp")):
                    ports.add((table, f[1].split(":")[0], int(f[1].split(":")[1], 16)))
    return ports


def sockets(s):
    ranks = Server("--tp-size", "2")
    check(listening(ranks) == {("tcp", "0100007F", ranks.port)}, "listens at %s" % listening(ranks))
    ranks.plain()
    ranks.stop()


def small_pool(s):
    """40: what can never fit is refused, and keeps nobody waiting."""
    small = Server("--num-pages", "300", "--max-running-requests", "4")
    small.expected = small.plain()
    bad, threads = [], []

    def one():
        if small.plain() != small.expected:
            bad.append("changed")

    for i in range(10):
        for body in ({"prompt": [5] * 300, "max_tokens": 1}, {"prompt": [[1], [5] * 400], "max_tokens": 1}):
            status, text = small.call(COMPLETIONS, {**body, "ignore_eos": True})
            check(status == 400 and b"context_length_exceeded" in text, "%d %s" % (status, text[:300]))
        threads.append(threading.Thread(target=one))
        threads[-1].start()
    for t in threads:
        t.join(LIMIT_S)
    check(not bad, bad[:1])
    row(small, COMPLETIONS, {"prompt": [5] * 200, "max_tokens": 100, "ignore_eos": True}, 200)
    until("all pages are free", small.idle)
    small.healthy()
    small.stop()


def poison(folder, bits):
    """A copy of the model whose last norm has this bfloat16 in it."""
    shutil.copytree(model, folder)
    for path in pathlib.Path(folder).glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        if "model.norm.weight" in header:
            at = 8 + size + header["model.norm.weight"]["data_offsets"][0]
            data[at:at + 2] = struct.pack("<H", bits)
            path.write_bytes(data)
            return
    raise AssertionError("no model.norm.weight")


def not_a_number(s):
    """43: weights that make every logit NaN, or infinite: the request ends, the server does not."""
    for bits in (0x7fc0, 0x7f80):
        with tempfile.TemporaryDirectory() as folder:
            poison(folder + "/m", bits)
            ill = Server("--num-pages", "300", model=folder + "/m")
            for body in (PLAIN, {**PLAIN, "temperature": 1}, {**PLAIN, "n": 3}, {**PLAIN, "guided_regex": "[ab]+"},
                         {**PLAIN, "stream": True}):
                status, text = ill.call(COMPLETIONS, body)
                check(status in (200, 500), "%d %s" % (status, text[:300]))
                if status == 200 and not body.get("stream"):
                    check(all(c["finish_reason"] == "error" or bits == 0x7f80 for c in json.loads(text)["choices"]), text[:300])
                check(ill.call("/health")[0] == 200, "/health")
            until("all pages are free", ill.idle)
            ill.healthy()
            ill.stop()


def model_templates(s):
    """22, 23: a model's own template that works without end, reaches for Python, or refuses: that request's end."""
    loops = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
    for template, says in ((loops, "steps"), ("{{ 'a' * 10 ** 10 }}", "bytes"), ("{{ ''.__class__.__mro__ }}", ""),
                           ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deep"), ("{{ raise_exception('no') }}", "no")):
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(model):
                os.symlink(os.path.abspath(model + "/" + name), folder + "/" + name)
            os.unlink(folder + "/chat_template.jinja")
            pathlib.Path(folder + "/chat_template.jinja").write_text(template)
            one = Server("--num-pages", "600", model=folder)
            one.expected = one.plain()
            check(one.expected == s.expected, "the same model")
            for path, body in ((CHAT, {"messages": TALK}), (MESSAGES, {"messages": TALK, "max_tokens": 1}),
                               (RESPONSES, {"input": "x"}), ("/apply-template", {"messages": TALK})):
                row(one, path, body, 400, says)
            until("nothing is left", one.idle)
            one.healthy()
            one.stop()


def killed(s):
    """38: kill -9 of the launcher takes everything along, and the port is free again."""
    def again(port):  # a port that is not listened on may be the other end's of some connection for a moment
        for _ in range(20):
            with contextlib.suppress(AssertionError):
                return Server("--num-pages", "600", port=port)
            time.sleep(0.2)
        return Server("--num-pages", "600", port=port)

    port = 0
    for _ in range(4):
        one = again(port)
        port = one.port
        stream = one.connect()
        body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 500, "ignore_eos": True, "stream": True}).encode()
        stream.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        check(stream.recv(1), "no answer")
        one.process.kill()
        one.process.wait(LIMIT_S)
        until("its processes end with it", lambda: gone(one.children))
        stream.close()
        one.quiet()


def signals(s):
    """42: SIGTERM and SIGINT at any time, to the process or to its group, once or twice."""
    for number in (signal.SIGTERM, signal.SIGINT):
        for delay in (0.0, 0.01, 0.03, 0.1, 0.3):
            for group in (False, True):
                one = Server("--num-pages", "600", ready=False)
                time.sleep(delay)
                (os.killpg if group else os.kill)(one.process.pid, number)
                code = one.process.wait(LIMIT_S)
                # By the signal itself before the program has begun.
                check(code in (0, -number), "%d after %.2f s:\n%s" % (code, delay, one.said()))
                one.quiet()
        for twice in (False, True):
            one = Server("--num-pages", "3000")
            stream = one.connect()
            body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 1500 if twice else 20, "ignore_eos": True, "stream": True}).encode()
            stream.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            check(stream.recv(1), "no answer")
            os.killpg(one.process.pid, number)
            if twice:
                time.sleep(0.2)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.process.pid, number)
            code = one.process.wait(LIMIT_S)
            check(code == 0 or (twice and code == 130), "%d:\n%s" % (code, one.said()))
            until("no process is left", lambda: gone(one.children))
            stream.close()
            one.quiet()


def keys(s):
    """31: a wrong key is refused, however much of it is right; test_guard.c has the comparison."""
    one = Server("--num-pages", "300", "--api-key", "sk-secret-0123456789")
    for key in ("", "s", "sk-secret-012345678", "sk-secret-0123456788", "sk-secret-01234567890", "SK-SECRET-0123456789", "a" * 8000,
                "sk-secret-0123456789,x"):
        for path in ("/v1/models", "/metrics", "/get_server_info", "/tokenize", "/abort_request", "/flush_cache", "/radix_tree"):
            body = {"prompt": "x"} if path in ("/tokenize", "/abort_request", "/flush_cache") else None
            status, text = one.call(path, body, {"Authorization": "Bearer " + key})
            check(status == 401 and b"sk-secret" not in text, "%s: %d %s" % (path, status, text))
    check(one.call("/v1/models", None, {"Authorization": "Bearer sk-secret-0123456789"})[0] == 200, "the key")
    check("sk-secret" not in one.said(), "the log has the key")
    one.stop()


def main():
    parts = [numbers, types, token_ids, values, neighbours, constraints, tools, images, special_tokens, many_schemas, framing, paths,
             absent, stored, leaving, vectors, sockets, small_pool, not_a_number, model_templates, killed, signals, keys]
    chosen = sys.argv[3:]
    s = Server()
    s.expected = s.plain()
    check(s.plain() == s.expected, "a greedy answer is the same again")
    check(s.call(COMPLETIONS, "{")[0] == 400, "no JSON")
    until("a connection that ended is closed", s.idle)
    time.sleep(0.5)
    fds = s.fds()
    for part in parts:
        if not chosen or part.__name__ in chosen:
            start = time.monotonic()
            said = part(s)
            until("nothing is left of %s" % part.__name__, s.idle)
            s.healthy()
            print("ok: %s%s, %.1f s" % (part.__name__, ", " + said if said else "", time.monotonic() - start), flush=True)
    until("descriptors are %s, as at the start" % fds, lambda: s.fds() == fds)
    print("ok: nothing is left; the slowest plain request took %.2f s" % s.longest, flush=True)
    s.stop()


try:
    main()
finally:
    for each in servers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
