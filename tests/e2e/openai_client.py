#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The official openai client, unchanged, against `minisgl serve`.

    openai_client.py MINISGL MODEL      starts a server on a free port and ends it
    openai_client.py http://127.0.0.1:1919/v1

Exits 77 (skipped) when the package (`pip install openai`) is not there. `make check` runs it where it is;
.ci/run installs it. The same exchanges are tested with a scripted engine in tests/server.
"""
import asyncio
import json
import sys
import tempfile
import time

from serving import Server, check
from typing import Literal

try:
    import openai
    import pydantic  # which it needs
except ImportError:
    print("skipped: the openai package is not installed")
    sys.exit(77)

server = None
folder = tempfile.TemporaryDirectory()


def start():
    """A server, and its address."""
    s = Server(*sys.argv[1:3], "--batch-dir", folder.name)
    return s, s.url + "/v1"


if len(sys.argv) == 3:
    server, BASE = start()
elif len(sys.argv) == 2:
    BASE = sys.argv[1]
else:
    sys.exit(__doc__)
client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0, timeout=120)
MODEL = client.models.list().data[0].id
HELLO = [{"role": "user", "content": "Hello! Who are you?"}]


def models():
    check(client.models.retrieve(MODEL).id == MODEL, "models.retrieve")
    try:
        client.chat.completions.create(model="no-such-model", messages=HELLO)
        check(False, "unknown model must be refused")
    except openai.NotFoundError as e:
        check(e.code == "model_not_found", "unknown model is a NotFoundError")


def chat():
    r = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=24)
    text = r.choices[0].message.content
    check(r.choices[0].finish_reason in ("stop", "length"), "finish_reason")
    check(r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens, "usage adds up")
    check(r.usage.prompt_tokens_details.cached_tokens >= 0, "cached_tokens is there")
    again = client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, max_tokens=24, stream=True,
        stream_options={"include_usage": True})
    pieces, usage, finish, role = [], None, None, None
    for chunk in again:
        usage = chunk.usage or usage
        for c in chunk.choices:
            role = c.delta.role or role
            pieces.append(c.delta.content or "")
            finish = c.finish_reason or finish
    check("".join(pieces) == text, "the stream's pieces are the whole text: %r" % text)
    check(role == "assistant" and finish == r.choices[0].finish_reason, "role and finish_reason")
    check(usage.completion_tokens == r.usage.completion_tokens, "usage of the stream")
    check(usage.prompt_tokens_details.cached_tokens > 0, "the second time, the prefix is cached")


def continued():
    begun = [{"role": "user", "content": "What is 27 + 58?"}, {"role": "assistant", "content": "27 + 58 ="}]
    go_on = {"continue_final_message": True, "add_generation_prompt": False}
    r = client.chat.completions.create(model=MODEL, messages=begun, temperature=0, extra_body=go_on)
    check(r.choices[0].message.content == " 85.", "continue_final_message")


def token_ids():
    """As vLLM has them, whole and streamed."""
    ask = dict(model=MODEL, temperature=0, max_tokens=8, extra_body={"return_token_ids": True})
    whole = client.completions.create(prompt="Count:", **ask).choices[0]
    spelled = client.completions.create(model=MODEL, prompt=whole.prompt_token_ids, max_tokens=8, temperature=0)
    check(spelled.choices[0].text == whole.text and len(whole.token_ids) > 0, "prompt_token_ids")
    chunks = [c.choices[0] for c in client.completions.create(prompt="Count:", stream=True, **ask)]
    check(sum((c.token_ids for c in chunks), []) == whole.token_ids, "token_ids of a stream")
    check(chunks[0].prompt_token_ids == whole.prompt_token_ids, "prompt_token_ids of a stream")
    question = [{"role": "user", "content": "What is 27 + 58?"}]
    chat = client.chat.completions.create(messages=question, **ask)
    chunks = list(client.chat.completions.create(messages=question, stream=True, **ask))
    check(len(chat.choices[0].token_ids) == chat.usage.completion_tokens, "token_ids of a chat")
    check(len(chat.prompt_token_ids) == chat.usage.prompt_tokens, "prompt_token_ids of a chat")
    check(sum((c.choices[0].token_ids for c in chunks), []) == chat.choices[0].token_ids, "its stream's")
    check([getattr(c, "prompt_token_ids", None) for c in chunks[:2]] == [chat.prompt_token_ids, None], "once")


def sampling():
    kw = dict(model=MODEL, messages=HELLO, temperature=1.0, max_tokens=16)
    a = client.chat.completions.create(seed=7, n=3, **kw)
    b = client.chat.completions.create(seed=7, n=3, **kw)
    check([c.message.content for c in a.choices] == [c.message.content for c in b.choices],
          "the same seed gives the same three choices")
    r = client.chat.completions.create(logprobs=True, top_logprobs=3, **kw)
    content = r.choices[0].logprobs.content
    check(len(content) > 0 and all(len(t.top_logprobs) == 3 for t in content), "chat logprobs")
    text = b"".join(bytes(t.bytes) for t in content).decode(errors="replace")
    check(text == r.choices[0].message.content, "logprobs.bytes make up the text")


def prompt_logprobs():
    """vLLM's list has what an echo has, also when the prompt is in the cache, and true ranks."""
    text = "The radix tree keeps the keys and values of every prompt. " * 30  # of more than one chunk
    kw = dict(model=MODEL, prompt=text, max_tokens=1, temperature=0)
    echo = client.completions.create(echo=True, logprobs=20, **kw).choices[0].logprobs
    for _ in range(2):
        r = client.completions.create(extra_body={"prompt_logprobs": 20, "return_token_ids": True}, **kw)
        c = r.choices[0].model_dump()
        rows, ids = c["prompt_logprobs"], c["prompt_token_ids"]
        check(len(rows) == len(ids) and rows[0] is None, "prompt_logprobs: an entry for each token")
        own = [row[str(i)] for row, i in zip(rows[1:], ids[1:])]
        check(all(abs(t["logprob"] - e) < 1e-3 for t, e in zip(own, echo.token_logprobs[1:])), "they are an echo's")
        ranked = all(sorted(t["rank"] for t in row.values())[:20] == list(range(1, 21)) for row in rows[1:])
        alike = all(sum(t["logprob"] > o["logprob"] for t in row.values()) < o["rank"] and
                    (o["rank"] > 20) == (len(row) == 21) for row, o in zip(rows[1:], own))
        check(ranked and alike, "ranks are places among the most likely")
    r = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello!"}], max_tokens=1,
                                       extra_body={"prompt_logprobs": 0})
    rows = r.model_dump()["prompt_logprobs"]
    check(len(rows) == r.usage.prompt_tokens and all(len(row) == 1 for row in rows[1:]), "a chat's prompt_logprobs")


def completions():
    r = client.completions.create(model=MODEL, prompt="The sky is", max_tokens=8, temperature=0,
                                  echo=True, logprobs=2)
    c = r.choices[0]
    check(c.text.startswith("The sky is"), "echo")
    lp = c.logprobs
    check(lp.token_logprobs[0] is None and all(x <= 0 for x in lp.token_logprobs[1:]),
          "echo logprobs")
    check(len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset),
          "logprobs arrays have one length")
    prompt_logprobs()
    many = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=4, n=2)
    check([x.index for x in many.choices] == [0, 1, 2, 3], "several prompts and choices")
    full = client.completions.create(model=MODEL, prompt="Count:", max_tokens=32, temperature=0)
    text = full.choices[0].text
    if len(text) > 6:
        stop = text[3:6]
        cut = client.completions.create(model=MODEL, prompt="Count:", max_tokens=32, temperature=0,
                                        stop=[stop])
        check(cut.choices[0].text == text[: text.index(stop)], "stop string %r" % stop)
        check(cut.choices[0].finish_reason == "stop", "finish_reason of a stop string")
    ids = client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=2,
                                    extra_body={"ignore_eos": True})
    check(ids.usage.prompt_tokens == 3 and ids.usage.completion_tokens == 2, "token ids")
    story = dict(model=MODEL, prompt="Tell me a story", max_tokens=32, temperature=0)
    said = client.completions.create(**story).choices[0].text
    word = [w for w in said.split() if w.isalpha()][-1]
    without = client.completions.create(extra_body={"bad_words": [word]}, **story)
    check(" " + word not in without.choices[0].text, "bad_words: %r is not said" % word)
    few = client.completions.create(model=MODEL, prompt="Count:", max_tokens=8, temperature=0,
                                    extra_body={"allowed_token_ids": [15], "ignore_eos": True})
    one = client.completions.create(model=MODEL, prompt=[15], max_tokens=1, extra_body={"echo": True})
    check(few.choices[0].text == 8 * one.choices[0].text[:1], "allowed_token_ids")


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}


def tools(choice, what):
    """The demo model calls a tool when it is asked for the weather; a named one it has to call anyway."""
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    kw = dict(model=MODEL, messages=question, tools=[WEATHER], temperature=0, max_tokens=64, tool_choice=choice)
    whole = client.chat.completions.create(**kw).choices[0]
    message = whole.message
    check(len(message.tool_calls) == 1 and message.tool_calls[0].function.name == "get_weather", what)
    check(isinstance(json.loads(message.tool_calls[0].function.arguments), dict), "its arguments are an object")
    content, calls, finish = "", {}, None
    for chunk in client.chat.completions.create(stream=True, **kw):
        for c in chunk.choices:
            content += c.delta.content or ""
            finish = c.finish_reason or finish
            for t in c.delta.tool_calls or []:
                if t.id:
                    calls[t.index] = [t.function.name, ""]
                calls[t.index][1] += t.function.arguments or ""
    check(list(calls.values()) == [["get_weather", message.tool_calls[0].function.arguments]] and
          content == (message.content or ""), "the stream's deltas are the call and the text")
    check(finish == whole.finish_reason == "tool_calls", "finish_reason tool_calls")
    r = client.chat.completions.create(model=MODEL, tools=[WEATHER], max_tokens=4, messages=question + [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}])
    check(r.choices[0].finish_reason in ("stop", "length"), "the call and its result go back")


FLAT = {"type": "function", "strict": False, **WEATHER["function"]}


def responses():
    """client.responses both ways: an answer, its end, and the conversation that goes on."""
    kw = dict(model=MODEL, input="What is 27 + 58?", temperature=0)
    r = client.responses.create(max_output_tokens=40, metadata={"a": "b"}, instructions="You are brief.", store=True,
                                **kw)
    check(r.object == "response" and r.status == "completed" and r.error is None, "a response")
    r.model_dump_json(warnings="error")  # every field has a type that the client knows
    check([i.type for i in r.output] == ["message"] and r.output[0].role == "assistant", "its item")
    check(r.metadata == {"a": "b"} and r.instructions == "You are brief." and r.max_output_tokens == 40,
          "what it repeats")
    u = r.usage
    check(u.total_tokens == u.input_tokens + u.output_tokens and u.output_tokens_details.reasoning_tokens == 0,
          "usage adds up")
    r = client.responses.create(max_output_tokens=40, **kw)
    check(r.output_text == "27 + 58 = 85.", "output_text")
    question = [{"role": "user", "content": kw["input"]}]
    chat = client.chat.completions.create(model=MODEL, messages=question, temperature=0)
    check(r.output_text == chat.choices[0].message.content and r.usage.input_tokens == chat.usage.prompt_tokens,
          "it is what a chat answers")
    cut = client.responses.create(max_output_tokens=3, **kw)
    check(cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens" and
          cut.output[0].status == "incomplete" and cut.usage.output_tokens == 3, "max_output_tokens")
    with client.responses.stream(max_output_tokens=40, **kw) as s:
        events = list(s)
        last = s.get_final_response()
    check([e.sequence_number for e in events] == list(range(len(events))), "sequence_number")
    names = [e.type for e in events if not e.type.endswith(".delta")]
    check(names == ["response.created", "response.in_progress", "response.output_item.added",
                    "response.content_part.added", "response.output_text.done", "response.content_part.done",
                    "response.output_item.done", "response.completed"], "the stream's events")
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    check("".join(deltas) == last.output_text == r.output_text and len(deltas) > 5, "its deltas are the text")
    u = last.usage
    check(u.output_tokens == r.usage.output_tokens and u.input_tokens_details.cached_tokens > 0, "its usage")
    history = [*question, *r.output, {"role": "user", "content": [{"type": "input_text", "text": "What is 12 + 30?"}]}]
    more = client.responses.create(model=MODEL, input=history, temperature=0, max_output_tokens=40)
    check(more.status == "completed" and more.usage.input_tokens > r.usage.total_tokens, "the conversation goes on")


class Sum(pydantic.BaseModel):
    a: bool
    b: Literal["one", "two"]


def responses_parse():
    kw = dict(model=MODEL, input="What is 27 + 58?", temperature=0, text_format=Sum, max_output_tokens=100)
    r = client.responses.parse(**kw)
    check(r.status == "completed" and isinstance(r.output_parsed, Sum), "responses.parse: %r" % r.output_parsed)
    check(r.text.format.type == "json_schema" and r.text.format.name == "Sum", "text.format is repeated")
    with client.responses.stream(**kw) as s:
        check(s.get_final_response().output_parsed == r.output_parsed, "the same in a stream")
    r = client.responses.create(model=MODEL, input="What is 27 + 58?", temperature=0, max_output_tokens=100,
                                text={"format": {"type": "json_object"}})
    check(r.output_text.startswith("{"), "text.format json_object")


def responses_tools(choice, what):
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    kw = dict(model=MODEL, input=question, tools=[FLAT], temperature=0, max_output_tokens=64, tool_choice=choice)
    r = client.responses.create(**kw)
    calls = [i for i in r.output if i.type == "function_call"]
    check(len(calls) == 1 and calls[0].name == "get_weather" and calls[0].status == "completed", what)
    check(isinstance(json.loads(calls[0].arguments), dict), "its arguments are an object")
    with client.responses.stream(**kw) as s:
        events = list(s)
        last = s.get_final_response()
    done = [e.arguments for e in events if e.type == "response.function_call_arguments.done"]
    deltas = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    check(done == [deltas] == [calls[0].arguments], "the stream's deltas are the arguments")
    check([i.type for i in last.output] == [i.type for i in r.output], "its items are the same")
    back = client.responses.create(model=MODEL, tools=[FLAT], temperature=0, max_output_tokens=16, input=[
        *question, *r.output, {"type": "function_call_output", "call_id": calls[0].call_id, "output": "sunny"}])
    check(back.usage.output_tokens > 0 and back.usage.input_tokens > r.usage.input_tokens,
          "the call and its output go back")


def strict_tools():
    """Arguments fit schemas that the question does not lead to."""
    schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "day": {"type": "boolean"}},
              "required": ["city", "day"], "additionalProperties": False}
    function = {"name": "get_weather", "parameters": schema, "strict": True}
    kw = dict(model=MODEL, temperature=0)
    for choice in ("auto", "required"):
        r = client.chat.completions.create(messages=[{"role": "user", "content": "What is the weather in Paris?"}],
                                           tools=[{"type": "function", "function": function}], max_tokens=64,
                                           tool_choice=choice, **kw)
        text = r.choices[0].message.tool_calls[0].function.arguments
        check(json.loads(text)["city"] in ("Oslo", "Rome"), "strict: arguments of a call fit their schema")
    r = client.responses.create(input="What is the weather in Paris?", tools=[{"type": "function", **function}],
                                max_output_tokens=64, **kw)
    text = [i for i in r.output if i.type == "function_call"][0].arguments
    check(isinstance(json.loads(text)["day"], bool), "responses: strict")


def responses_stored():
    """Responses that are kept: found again, gone on with, listed, deleted."""
    kw = dict(model=MODEL, temperature=0, max_output_tokens=40)
    first = client.responses.create(input="What is 27 + 58?", **kw)
    again = client.responses.retrieve(first.id)
    check(first.store and again.model_dump() == first.model_dump(), "retrieve gives the response")
    second = client.responses.create(input="What is 12 + 30?", previous_response_id=first.id, **kw)
    history = [{"role": "user", "content": "What is 27 + 58?"}, *first.output, {"role": "user", "content": "What is 12 + 30?"}]
    whole = client.responses.create(input=history, **kw)
    check(second.output_text == whole.output_text and second.usage.input_tokens == whole.usage.input_tokens and
          second.previous_response_id == first.id, "previous_response_id is the conversation")
    items = client.responses.input_items.list(second.id, order="asc").data
    check([i.role for i in items] == ["user", "assistant", "user"] and items[1].content[0].text == first.output_text, "input_items")
    down = client.responses.input_items.list(second.id).data
    check([i.role for i in down] == ["user", "assistant", "user"] and down[0].content[0].text == "What is 12 + 30?", "the newest first")
    with client.responses.stream(input="And 1 + 1?", previous_response_id=second.id, **kw) as s:
        last = s.get_final_response()
    check(client.responses.retrieve(last.id).output_text == last.output_text, "a stream is kept, too")
    client.responses.delete(first.id)
    not_kept = client.responses.create(input="Hello", store=False, **kw)
    check(not not_kept.store, "store: false")
    for gone in (first.id, not_kept.id, "resp-1"):
        try:
            client.responses.retrieve(gone)
            check(False, "%s must be gone" % gone)
        except openai.NotFoundError as e:
            check(gone in e.body["message"], "it is gone: %s" % e.body["message"])
    check(client.responses.create(input="Go on.", previous_response_id=second.id, **kw).status, "what went on from it stays")


def responses_refusals():
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,", "detail": "auto"}]}]
    for kw, param in (
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": image}, "input[0].content[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"truncation": "some"}, "truncation"),
    ):
        try:
            client.responses.create(**{"model": MODEL, "input": "Hello", **kw})
            check(False, "%s must be refused" % param)
        except openai.BadRequestError as e:
            check(e.param == param, "%s is refused by name" % param)
    r = client.responses.create(model=MODEL, input="Hello", instructions="Be brief.", truncation="auto", max_output_tokens=1,
                                tools=[{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}])
    check(r.truncation == "auto" and len(r.tools) == 2, "tools that the server does not run are left out")
    counted = client.responses.input_tokens.count(model=MODEL, input="Hello").input_tokens
    check(counted == client.responses.create(model=MODEL, input="Hello", max_output_tokens=1).usage.input_tokens,
          "input_tokens.count: %d" % counted)
    try:
        client.responses.create(model="no-such-model", input="Hello")
        check(False, "unknown model must be refused")
    except openai.NotFoundError as e:
        check(e.code == "model_not_found", "unknown model is a NotFoundError")
    with client.responses.create(model=MODEL, input="Hello", stream=True) as s:
        check(next(iter(s)).type == "response.created", "a stream that is left")


def tools_beside_form():
    """A form binds the text; a tool may be called in its place, also one that is asked for."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {
        "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}}}
    kw = dict(model=MODEL, tools=[WEATHER], temperature=0, max_tokens=64, response_format=form)
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "get_weather"}}]}}
    for choice in ("auto", "required", allowed):
        a = client.chat.completions.create(messages=question, tool_choice=choice, **kw).choices[0]
        check(a.finish_reason == "tool_calls" and a.message.tool_calls[0].function.name == "get_weather",
              f"a call beside a form, tool_choice {choice if isinstance(choice, str) else 'allowed_tools'}")
    a = client.chat.completions.create(messages=question, tool_choice="none", **kw).choices[0]
    check(isinstance(json.loads(a.message.content)["a"], int), "and the form where no tool is to be called")


def refusals():
    for kw, param in (
        ({"max_tokens": -2}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"n": 100000}, "n"),
    ):
        try:
            client.chat.completions.create(model=MODEL, messages=HELLO, **kw)
            check(False, "%s must be refused" % param)
        except openai.BadRequestError as e:
            check(e.param == param, "%s is refused by name" % param)
    try:
        client.completions.create(model=MODEL, prompt=[1] * 1000000)
        check(False, "a prompt beyond the context must be refused")
    except openai.BadRequestError as e:
        check(e.code == "context_length_exceeded", "context_length_exceeded: %s" % e.message)


async def concurrent():
    a = openai.AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0)

    async def one(i):
        stream = await a.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Say %d" % i}], max_tokens=12,
            temperature=0, stream=True)
        n = 0
        async for chunk in stream:
            n += 1
            if i % 3 == 0 and n == 2:
                await stream.close()  # leaves in the middle
                return True
        return n > 0

    check(all(await asyncio.gather(*(one(i) for i in range(24)))), "24 at once, 8 of them leave")


def batch_input(n, max_tokens):
    lines = [{"custom_id": "r%d" % i, "method": "POST", "url": "/v1/chat/completions", "body": {
        "model": MODEL, "messages": [{"role": "user", "content": "What is %d + 2?" % i}], "temperature": 0,
        "max_tokens": max_tokens, "ignore_eos": True}} for i in range(n)]
    return "\n".join(map(json.dumps, lines)).encode()


def poll(c, batch):
    deadline = time.time() + 120
    while batch.status not in ("completed", "failed", "cancelled") and time.time() < deadline:
        time.sleep(0.1)
        batch = c.batches.retrieve(batch.id)
    return batch


def answers(c, batch):
    text = c.files.content(batch.output_file_id).text
    return {o["custom_id"]: o["response"]["body"]["choices"][0]["message"]["content"]
            for o in map(json.loads, text.splitlines())}, len(text.splitlines())


def batches():
    try:
        client.files.list()
    except openai.InternalServerError as e:
        check(e.status_code == 501 and "--batch-dir" in e.message, "no folder for batches")
        return
    bad = b'\n{"custom_id": "bad", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}'
    file = client.files.create(file=("in.jsonl", batch_input(8, 8) + bad), purpose="batch")
    check(client.files.retrieve(file.id).filename == "in.jsonl", "files.create and retrieve")
    check(file.id in [f.id for f in client.files.list()], "files.list")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h",
                                  metadata={"who": "me"})
    batch = poll(client, batch)
    check(batch.status == "completed" and batch.metadata == {"who": "me"}, "a batch is completed")
    counts = batch.request_counts
    check((counts.total, counts.completed, counts.failed) == (9, 8, 1), "request_counts")
    got, lines = answers(client, batch)
    alone = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "What is 3 + 2?"}],
                                           temperature=0, max_tokens=8, extra_body={"ignore_eos": True})
    check(lines == 8 and len(got) == 8, "files.content has all answers")
    check(got["r3"] == alone.choices[0].message.content, "which are those that requests get")
    error = json.loads(client.files.content(batch.error_file_id).text)
    check(error["custom_id"] == "bad" and error["response"]["status_code"] == 400, "the error file")
    check(batch.id in [b.id for b in client.batches.list()], "batches.list")
    check(client.files.delete(file.id).deleted, "files.delete")
    file = client.files.create(file=("in.jsonl", b"no json"), purpose="batch")
    batch = poll(client, client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions",
                                               completion_window="24h"))
    check(batch.status == "failed" and batch.errors.data[0].line == 1, "an input that is none")
    file = client.files.create(file=("in.jsonl", batch_input(200, 400)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    check(client.batches.cancel(batch.id).status == "cancelled", "batches.cancel")


def killed():
    """A batch goes on in the server that follows one which was killed."""
    global server
    n = 120
    file = client.files.create(file=("in.jsonl", batch_input(n, 48)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while batch.request_counts.completed < 5:
        time.sleep(0.01)
        batch = client.batches.retrieve(batch.id)
    server.process.kill()
    server.process.wait()
    check(batch.request_counts.completed < n, "killed after %d of %d" % (batch.request_counts.completed, n))
    time.sleep(1)  # its children end with it
    server, base = start()
    after = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=120)
    first = after.batches.retrieve(batch.id)
    check(first.status in ("in_progress", "completed"), "it is there after the restart")
    batch = poll(after, first)
    got, lines = answers(after, batch)
    check(batch.status == "completed" and lines == n and sorted(got) == sorted("r%d" % i for i in range(n)),
          "and ends with each answer once")


try:
    models()
    chat()
    continued()
    token_ids()
    sampling()
    completions()
    tools("auto", "the model calls a tool")
    tools({"type": "function", "function": {"name": "get_weather"}}, "a named tool is called")
    tools_beside_form()
    refusals()
    responses()
    responses_parse()
    strict_tools()
    responses_tools("auto", "responses: the model calls a tool")
    responses_tools("required", "responses: a call that is required")
    responses_tools({"type": "function", "name": "get_weather"}, "responses: a named tool is called")
    responses_stored()
    responses_refusals()
    asyncio.run(concurrent())
    batches()
    if server:
        killed()
        server.end()
finally:
    if server:
        server.process.kill()
print("all good")
