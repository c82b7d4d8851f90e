#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The official ollama client, unchanged, against `minisgl serve`.

    ollama_client.py MINISGL MODEL

Exits 77 (skipped) when the package (`pip install ollama`) is not there; .ci/nightly installs it. Calls, thoughts
and lines to the byte are tested with a scripted engine in tests/server.
"""
import json
import math
import sys

from serving import Server, check

try:
    import ollama
except ImportError:
    print("skipped: the ollama package is not installed")
    sys.exit(77)

MODEL = "demo:latest"
ASK = [{"role": "user", "content": "What is 27 + 58?"}]
COLD = {"temperature": 0, "num_predict": 40, "num_ctx": 512}


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
      a: The first.
      b: The second.
    """
    return a + b


def refused(what, status, call, *args, **kw):
    try:
        for _ in [call(*args, **kw)]:
            pass
    except ollama.ResponseError as e:
        check(e.status_code == status and len(e.error) > 20, "%s: %d %s" % (what, e.status_code, e.error))
        return
    check(False, what + " must be refused")


def models(client):
    names = [m.model for m in client.list().models]
    check(names == [MODEL], "list: %s" % names)
    check(client.list().models[0].modified_at.year > 2024 and client.list().models[0].details.format, "its details")
    shown = client.show(MODEL)
    check("completion" in shown.capabilities and shown.template and "temperature" in shown.parameters, "show")
    arch = shown.modelinfo["general.architecture"]
    length = shown.modelinfo[arch + ".context_length"]
    running = client.ps().models
    check([m.model for m in running] == [MODEL] and running[0].context_length == length, "ps: %d tokens" % length)
    check(client.show("demo").modelinfo == shown.modelinfo, "a name without its tag")


def answers(client):
    r = client.chat(MODEL, ASK, options=COLD)
    check(r.message.content == "27 + 58 = 85." and r.message.role == "assistant", "chat")
    check(r.done and r.done_reason == "stop" and r.eval_count > 5 and r.prompt_eval_count > 5, "its end and counts")
    check(r.total_duration >= r.prompt_eval_duration + r.eval_duration > 0, "its durations")
    parts = list(client.chat(MODEL, ASK, options=COLD, stream=True))
    check("".join(p.message.content for p in parts) == r.message.content and len(parts) > 5, "the stream is the answer")
    check([p.done for p in parts] == [False] * (len(parts) - 1) + [True], "and ends once")
    check(parts[-1].eval_count == r.eval_count and parts[-1].done_reason == "stop", "with the same counts")
    g = client.generate(MODEL, ASK[0]["content"], options=COLD)
    check(g.response == r.message.content and g.prompt_eval_count == r.prompt_eval_count, "generate is such a chat")
    parts = list(client.generate(MODEL, ASK[0]["content"], options=COLD, stream=True))
    check("".join(p.response for p in parts) == g.response, "its stream")
    raw = client.generate(MODEL, "Count: 1, 2,", raw=True, options={"ignore_eos": True, "num_predict": 4})
    check(raw.eval_count == 4 and raw.done_reason == "length" and raw.prompt_eval_count < g.prompt_eval_count, "raw")
    cut = client.chat(MODEL, ASK, options={**COLD, "stop": ["="]})
    check(cut.message.content == "27 + 58 ", "stop")
    check(client.generate(MODEL).done_reason == "load" and client.chat(MODEL, []).done_reason == "load", "load")
    begun = client.chat(MODEL, [*ASK, {"role": "assistant", "content": "27 + 58 ="}], options=COLD)
    check(begun.message.content == " 85.", "an answer whose beginning is given goes on there")
    lp = client.chat(MODEL, ASK, options=COLD, logprobs=True, top_logprobs=2)
    check(len(lp.logprobs) >= lp.eval_count - 1 and len(lp.logprobs[0].top_logprobs) == 2, "logprobs")


def forms(client):
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False}
    for kw in ({"format": schema}, {"format": schema, "stream": True}):
        r = client.chat(MODEL, ASK, options=COLD, **kw)
        text = r.message.content if "stream" not in kw else "".join(p.message.content for p in r)
        value = json.loads(text)
        check(list(value) == ["sum"] and isinstance(value["sum"], int), "format of a schema: %s" % text)
    text = client.generate(MODEL, "An object.", format="json", options={"num_predict": 200, "temperature": 0}).response
    check(text.lstrip().startswith("{"), "format json: %s" % text)


def tools(client):
    r = client.chat(MODEL, ASK, tools=[add], options=COLD)
    check(r.done, "tools are taken")
    history = [*ASK, {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 27, "b": 58}}}]},
               {"role": "tool", "tool_name": "add", "content": "85"}]
    r = client.chat(MODEL, history, tools=[add], options=COLD)
    check(r.prompt_eval_count > 20, "a call and its result")
    r = client.chat(MODEL, ASK, think=False, options=COLD)
    check(r.message.content == "27 + 58 = 85.", "think")


def errors(client):
    refused("another model", 404, client.chat, "no-such-model", ASK)
    refused("show of another", 404, client.show, "no-such-model")
    refused("pull", 501, client.pull, "llama3")
    refused("push", 501, client.push, "llama3")
    refused("create", 501, client.create, "llama4", from_="llama3")
    refused("copy", 501, client.copy, "a", "b")
    refused("delete", 501, client.delete, "llama3")
    refused("a picture", 400, client.chat, MODEL, [{"role": "user", "content": "x", "images": ["aGVsbG8gd29ybGQh"]}])
    refused("a bad option", 400, client.chat, MODEL, ASK, options={"temperature": -1})
    refused("embed", 400, client.embed, MODEL, "a text")
    refused("a suffix", 501, client.generate, MODEL, "def f(", suffix="return 1")


def vectors(client):
    one, two = client.embed(MODEL, ["a red fox", "a blue car"]).embeddings
    check(len(one) == len(two) > 8 and abs(math.hypot(*one) - 1) < 1e-4 and one != two, "embed")
    alone = client.embed(MODEL, "a red fox", dimensions=8)
    check(len(alone.embeddings) == 1 and len(alone.embeddings[0]) == 8 and alone.prompt_eval_count > 0, "dimensions")
    old = client.embeddings(MODEL, "a red fox").embedding
    check(max(abs(a - b) for a, b in zip(old, one)) < 1e-5, "embeddings is the same vector")
    long = client.embed(MODEL, "word " * 20000)
    check(len(long.embeddings[0]) == len(one), "a text that is too long is cut")
    refused("or not", 400, client.embed, MODEL, "word " * 20000, truncate=False)
    check(client.show(MODEL).capabilities == ["embedding"], "its capabilities")
    refused("chat", 400, client.chat, MODEL, ASK)


with Server(*sys.argv[1:3]) as server:
    for part in (models, answers, forms, tools, errors):
        part(ollama.Client(server.url, timeout=120))
with Server(*sys.argv[1:3], "--is-embedding") as server:
    vectors(ollama.Client(server.url, timeout=120))
