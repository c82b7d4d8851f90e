# SPDX-License-Identifier: Apache-2.0
"""The requests of mixed_load.py: an HTTP client that can be cut anywhere, and questions whose answers can be checked.

A Question's answer is reduced to what has to be the same each time, streamed or not: texts, calls, log-probabilities, why
it ended, how many tokens. On the CPU an answer's bits do not depend on what else is computed.
"""
import json
import random
import re
import socket
import struct

LIMIT_S = 120  # nothing that is asked here takes a tenth of it; a client that waits so long hangs
TOKEN_IDS = 6000  # of models/demo, those below are text


class Lost(Exception):
    """The server closed a connection before the answer's end."""


class Wrong(Exception):
    """An answer that is not what it should be."""


def check(condition, what):
    if not condition:
        raise Wrong(what)


# ---- HTTP ----


def encode(path, body=None, method=None, more=""):
    """A request's bytes. Body: None, bytes or what becomes JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = "%s %s HTTP/1.1\r\nHost: localhost\r\n%s" % (method or ("GET" if body is None else "POST"), path, more)
    if body is not None:
        if "Content-Type" not in more:
            head += "Content-Type: application/json\r\n"
        head += "Content-Length: %d\r\n" % len(data)
    return head.encode() + b"\r\n" + data


class Connection:
    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        self.buffer = b""

    def close(self):
        self.sock.close()

    def fill(self):
        try:
            data = self.sock.recv(1 << 16)
        except (ConnectionError, BrokenPipeError) as e:
            raise Lost(str(e)) from e
        if not data:
            raise Lost("closed after %r" % self.buffer[-80:])
        self.buffer += data

    def send(self, data):
        try:
            self.sock.sendall(data)
        except (ConnectionError, BrokenPipeError) as e:
            raise Lost(str(e)) from e

    def until(self, end):
        while end not in self.buffer:
            self.fill()
        text, self.buffer = self.buffer.split(end, 1)
        return text

    def exactly(self, n):
        while len(self.buffer) < n:
            self.fill()
        text, self.buffer = self.buffer[:n], self.buffer[n:]
        return text

    def head(self):
        """Status and headers, by their names in small letters."""
        first, *lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        check(re.match(r"HTTP/1\.1 \d\d\d ", first), "no status line: %r" % first)
        return int(first[9:12]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}

    def pieces(self, headers):
        """The body as it comes."""
        if headers.get("transfer-encoding") == "chunked":
            while True:
                n = int(self.until(b"\r\n"), 16)
                data = self.exactly(n)
                check(self.exactly(2) == b"\r\n", "a chunk without its end")
                if n == 0:
                    return
                yield data
        elif "content-length" in headers:
            yield self.exactly(int(headers["content-length"]))
        else:
            while True:
                try:
                    self.fill()
                except Lost:
                    yield self.buffer
                    self.buffer = b""
                    return

    def answer(self):
        status, headers = self.head()
        return status, headers, b"".join(self.pieces(headers))

    def cut(self, how):
        """rst, close, or half: no more is sent, and what comes is read to the end, which has to come."""
        if how == "rst":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == "half":
            try:
                self.sock.shutdown(socket.SHUT_WR)
                while self.sock.recv(1 << 16):
                    pass
            except ConnectionError:
                pass
        self.sock.close()


def ask(port, path, body=None, method=None, more=""):
    """(status, JSON or text) over a connection of its own."""
    c = Connection(port)
    try:
        c.send(encode(path, body, method, more))
        status, headers, data = c.answer()
    finally:
        c.close()
    return status, json.loads(data) if headers.get("content-type", "").startswith("application/json") else data.decode()


def events(data):
    """The objects of a stream's events; its last line has to be there."""
    lines = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    check(lines, "a stream without events")
    found = [json.loads(line) for line in lines if line != "[DONE]"]
    for e in found:
        check("error" not in e or e["error"] is None, "an error in a stream: %.200s" % e)
    return found, lines[-1] == "[DONE]"


# ---- what has to be the same of an answer ----


class Choice:
    def __init__(self):
        self.text, self.calls, self.logprobs, self.reason = "", {}, [], None

    def call(self, index, name, arguments):
        old = self.calls.get(index, ("", ""))
        self.calls[index] = (old[0] + (name or ""), old[1] + (arguments or ""))

    def result(self):
        return [self.text, sorted(self.calls.items()), self.logprobs, self.reason]


def usage_of(usage, names=("prompt_tokens", "completion_tokens")):
    return [usage[n] for n in names]


def openai(parts, chat):
    """Of the objects of a stream, or of the one that is the whole answer."""
    choices, usage = {}, None
    for part in parts:
        for c in part["choices"]:
            to = choices.setdefault(c["index"], Choice())
            message = (c.get("delta") or c.get("message") or {}) if chat else {"content": c["text"]}
            to.text += (message.get("reasoning_content") or "") + (message.get("content") or "")
            for i, t in enumerate(message.get("tool_calls") or []):
                to.call(t.get("index", i), t["function"].get("name"), t["function"].get("arguments"))
            lp = c.get("logprobs") or {}
            if chat:
                to.logprobs += [(t["token"], t["logprob"]) for t in lp.get("content") or []]
            else:
                to.logprobs += list(zip(lp.get("tokens") or [], lp.get("token_logprobs") or []))
            to.reason = c.get("finish_reason") or to.reason
        usage = part.get("usage") or usage
    check(usage is not None, "no usage")
    return [choices[i].result() for i in sorted(choices)] + usage_of(usage)


def message(parts):
    """Anthropic's, whole."""
    blocks = [b.get("text") or [b.get("name"), b.get("input")] for b in parts["content"]]
    usage = parts["usage"]  # what was cached is counted apart
    return [blocks, parts["stop_reason"], usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0),
            usage["output_tokens"]]


def message_stream(parts):
    check(parts[-1]["type"] == "message_stop", "a message that does not end")
    whole = dict(parts[0]["message"], content=[])
    for p in parts:
        if p["type"] == "content_block_start":
            whole["content"].append(dict(p["content_block"], json=""))
        elif p["type"] == "content_block_delta":
            block = whole["content"][p["index"]]
            block["text"] = block.get("text", "") + p["delta"].get("text", "")
            block["json"] += p["delta"].get("partial_json", "")
        elif p["type"] == "message_delta":
            whole["stop_reason"] = p["delta"]["stop_reason"]
            whole["usage"] = dict(whole["usage"], **p["usage"])
    for b in whole["content"]:
        if b["json"]:
            b["input"] = json.loads(b["json"])
    return message(whole)


def response(whole):
    items = [[c["text"] for c in i["content"]] if i["type"] == "message" else [i.get("name"), i.get("arguments")]
             for i in whole["output"]]
    return [items, whole["status"], *usage_of(whole["usage"], ("input_tokens", "output_tokens"))]


def response_stream(parts):
    check(parts[-1]["type"] in ("response.completed", "response.incomplete"), "a response that does not end")
    whole = response(parts[-1]["response"])
    text = "".join(p["delta"] for p in parts if p["type"] == "response.output_text.delta")
    check(text == "".join(t for item in whole[0] for t in item if isinstance(item, list) and item[0] == t) or
          any(i["type"] != "message" for i in parts[-1]["response"]["output"]), "the deltas are another text")
    return whole


class Question:
    """A request, and what its answer is reduced to. Same: expected, or None where nothing is known; valid: called with it."""

    def __init__(self, path, body, same=None, valid=None):
        self.path, self.body, self.same, self.valid = path, body, same, valid
        self.streams = path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")

    def encode(self, stream, **more):
        body = dict(self.body, **more)
        if stream:
            body["stream"] = True
            if self.path in ("/v1/chat/completions", "/v1/completions"):
                body["stream_options"] = {"include_usage": True}
        return encode(self.path, body)

    def reduce(self, data, stream):
        if stream:
            parts, done = events(data)
            if self.path == "/v1/messages":
                return message_stream(parts)
            if self.path == "/v1/responses":
                return response_stream(parts)
            check(done, "a stream without [DONE]")
            return openai(parts, "chat" in self.path)
        whole = json.loads(data)
        if self.path == "/v1/messages":
            return message(whole)
        if self.path == "/v1/responses":
            return response(whole)
        if self.path in ("/v1/chat/completions", "/v1/completions"):
            return openai([whole], "chat" in self.path)
        if self.path == "/generate":
            return [[a["text"], a["meta_info"]["finish_reason"]] for a in (whole if isinstance(whole, list) else [whole])]
        return whole

    def verify(self, status, data, stream):
        check(status == 200, "%s: status %d: %.200r to %.200s" % (self.path, status, data, self.body))
        found = self.reduce(data, stream)
        if self.same is not None:
            check(found == self.same, "%s%s: %.600s instead of %.600s to %.300s" % (self.path, " as a stream" * stream, found,
                                                                               self.same, self.body))
        if self.valid is not None:
            self.valid(found)
        return found

    def ask(self, connection, stream):
        connection.send(self.encode(stream))
        status, _, data = connection.answer()
        return self.verify(status, data, stream)


# ---- the fixed ones ----

CHAT, TEXT, ANTHROPIC, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}
TURNS = [["What is 27 + 58?", "And what is 3 + 4?", "Tell me a short story about a fox."],
         ["What is the capital of France?", "What color is the sky?", "Spell cat."],
         ["What is minisgl?", "How many legs does a spider have?", "What day comes after Monday?"]]
SYSTEM = "You are a helpful assistant. Answer in one short sentence, and be kind to whoever asks. " * 6


def user(text):
    return [{"role": "user", "content": text}]


def fixed():
    """Questions with one answer each."""
    greedy = {"temperature": 0, "max_tokens": 24}
    drawn = {"temperature": 0.8, "seed": 7, "max_tokens": 16}
    q = [Question(CHAT, dict(greedy, messages=user("What is %d + %d?" % (a, 61 - a)))) for a in range(11, 19)]
    q += [Question(TEXT, dict(greedy, prompt="Count: %d, %d," % (a, a + 1))) for a in range(1, 7)]
    q += [Question(TEXT, dict(greedy, prompt=[[5, 6, 7, 8 + a], [9 + a, 10, 11]], n=2, logprobs=2)) for a in range(3)]
    q += [Question(TEXT, dict(drawn, prompt="Once upon a time", n=3, logprobs=1)),
          Question(TEXT, dict(drawn, prompt="The sun", n=2, best_of=2)),
          Question(CHAT, dict(drawn, messages=user("Tell me a short story about a fox."), n=4)),
          Question(CHAT, dict(greedy, messages=user("What is the capital of Spain?"), logprobs=True, top_logprobs=3)),
          Question(CHAT, dict(greedy, max_tokens=60, messages=user("How is the weather in Rome?"), tools=[WEATHER],
                              tool_choice="required")),
          Question(CHAT, dict(greedy, max_tokens=60, messages=user("A person as JSON."), response_format={
              "type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}})),
          Question(CHAT, dict(greedy, messages=user("A date."), regex="[0-9]{4}-[01][0-9]-[0-3][0-9]")),
          Question(CHAT, dict(greedy, messages=user("Red or blue?"), guided_choice=["red", "blue"])),
          Question(TEXT, dict(greedy, prompt="One, two", max_tokens=0, echo=True, logprobs=1)),
          Question("/generate", {"text": "Count: 1, 2,", "sampling_params": {"temperature": 0, "max_new_tokens": 12, "n": 2}}),
          Question(ANTHROPIC, dict(greedy, messages=user("What is 12 + 13?"), system="Be short.")),
          Question(ANTHROPIC, dict(greedy, max_tokens=60, messages=user("How is the weather in Oslo?"), tools=[
              {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}], tool_choice={"type": "any"})),
          Question(RESPONSES, {"temperature": 0, "max_output_tokens": 24, "input": "What is 40 + 2?"}),
          Question(RESPONSES, {"temperature": 0, "max_output_tokens": 60, "input": "A person as JSON.", "text": {
              "format": {"type": "json_schema", "name": "p", "schema": PERSON}}}),
          Question("/tokenize", {"prompt": "Hello, world. " * 40}),
          Question("/tokenize", {"messages": user("What is 27 + 58?"), "tools": [WEATHER]}),
          Question("/detokenize", {"tokens": list(range(200, 260))}),
          Question("/apply-template", {"messages": user("What is 27 + 58?"), "tools": [WEATHER]}),
          Question("/v1/messages/count_tokens", {"messages": user("What is 27 + 58?"), "max_tokens": 1})]
    return q


def take_references(port):
    """(questions, conversations) with their answers, asked one after the other, twice."""
    questions = fixed()
    c = Connection(port)
    for q in questions:
        q.same = q.ask(c, False)
        q.ask(c, q.streams)
    talks = []
    for turns in TURNS:
        messages, talk = [{"role": "system", "content": SYSTEM}], []
        for text in turns:
            messages = messages + user(text)
            q = Question(CHAT, {"messages": messages, "temperature": 0, "max_tokens": 40})
            q.same = q.ask(c, False)
            messages = messages + [{"role": "assistant", "content": q.same[0][0]}]
            talk.append(q)
        talks.append(talk)
    c.close()
    return questions, talks


# ---- those that are another each time ----


def fresh_prompt(rng, length):
    return [rng.randrange(TOKEN_IDS) for _ in range(length)]


def fresh(rng):
    """A question that nobody asked before."""
    kind, name = rng.randrange(4), "%08x" % rng.getrandbits(32)
    if kind == 0:
        schema = {"type": "object", "properties": {"k" + name: {"type": "integer"}, "of": {"enum": [name, "none"]}},
                  "required": ["k" + name, "of"], "additionalProperties": False}

        def valid(found):
            if found[0][3] == "stop":
                value = json.loads(found[0][0])
                check(list(value) == ["k" + name, "of"] and isinstance(value["k" + name], int) and
                      value["of"] in (name, "none"), "%s is no %s" % (value, name))

        return Question(CHAT, {"messages": user("Some JSON."), "max_tokens": 60, "seed": 1, "response_format": {
            "type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}, valid=valid)
    if kind == 1:
        pattern = "%s-[a-c]{%d}(x|yz)" % (name, rng.randrange(1, 9))

        def valid(found):
            check(found[0][3] != "stop" or re.fullmatch(pattern, found[0][0]), "%s is no %s" % (found[0], pattern))

        return Question(TEXT, {"prompt": "Say:", "max_tokens": 40, "regex": pattern}, valid=valid)
    length, tokens = rng.choice((4, 40, 300, 900, 1700)), rng.choice((1, 4, 24))

    def valid(found):
        check(found[-2:] == [length, tokens], "%s tokens of usage, not %s" % (found[-2:], [length, tokens]))

    return Question(TEXT, {"prompt": fresh_prompt(rng, length), "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
                           "skip_special_tokens": False}, valid=valid)


def many(n):
    return {"prompt": "x", "max_tokens": 1, "logit_bias": {str(i): 1 for i in range(n)}}


# Path, body, status, and what else the request is.
BAD = [(CHAT, b"{", 400), (CHAT, b"", 400), (CHAT, b"[1]", 400), (CHAT, {}, 400), (CHAT, {"messages": []}, 400),
       (CHAT, {"messages": "x"}, 400), (CHAT, {"messages": user("x"), "n": 1000}, 400),
       (CHAT, {"messages": [{"role": "king", "content": "x"}]}, 400),
       (CHAT, {"messages": user("x"), "temperature": "warm"}, 400), (CHAT, {"messages": user("x"), "model": "other"}, 404),
       (CHAT, {"messages": user("x"), "regex": "(["}, 400),
       (CHAT, {"messages": user("x"), "json_schema": {"type": "thing"}}, 400),
       (CHAT, {"messages": user("x"), "tool_choice": "required"}, 400), (TEXT, {"prompt": [99999999]}, 400),
       (TEXT, {"prompt": [1] * 3000}, 400), (TEXT, {"prompt": "x", "max_tokens": 0}, 400),
       (TEXT, {"prompt": ["x"] * 2000}, 400),
       (TEXT, many(2000), 400), (TEXT, b"\xff" * 2000, 400), (TEXT, b"[" * 20000, 400),
       (TEXT, {"prompt": "x", "guided_grammar": "root ::= a"}, 400),
       (ANTHROPIC, {"messages": user("x")}, 400), (RESPONSES, {"input": 5}, 400), ("/tokenize", {}, 400),
       ("/v1/nothing", {"prompt": "x"}, 404), ("/v1/models", {"prompt": "x"}, 405), (TEXT, None, 405),
       ("/v1/batches/none", None, 404),
       ("/abort_request", {}, 400), ("/v1/batches", {"input_file_id": "none"}, 400)]
BAD_RAW = [(b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 403), (b"GET /health HTTP/1.1\r\n\r\n", 400), (b"nonsense\r\n\r\n", 400),
           (b"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n", 505), (b"GET /" + b"x" * 20000 + b" HTTP/1.1\r\n", 414),
           (encode(TEXT, {"prompt": "x"}, more="Content-Encoding: gzip\r\n"), 415),
           (encode("/health", more="X: " + "y" * 20000 + "\r\n"), 431),
           (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413),
           (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400)]
