#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The official anthropic client, unchanged, against `minisgl serve`.

    anthropic_client.py MINISGL MODEL

Exits 77 (skipped) when the package (`pip install anthropic`) is not there. `make check` runs it where it is;
.ci/run installs it. Thoughts and blocks to the byte are tested with a scripted engine in tests/server.
"""
import json
import sys

from serving import Server, check

try:
    import anthropic
except ImportError:
    print("skipped: the anthropic package is not installed")
    sys.exit(77)

KEY = "a-key-of-this-test"
server = Server(*sys.argv[1:3], "--tool-call-parser", "hermes", "--api-key", KEY)
client = anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=120)
MODEL = "demo"
COLD = {"temperature": 0}  # which the client has no name for any more
ASK = [{"role": "user", "content": "What is 27 + 58?"}]
ADD = {"name": "add", "description": "Adds two numbers.",
       "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                        "required": ["a", "b"]}}


def refused(error, what, **body):
    try:
        client.messages.create(**{"model": MODEL, "max_tokens": 4, "messages": ASK, **body})
    except error as e:
        check(e.body["type"] == "error" and e.body["error"]["message"], "%s: %s" % (what, e.body["error"]["message"]))
        return
    check(False, what + " must be refused")


def whole():
    m = client.messages.create(model=MODEL, max_tokens=40, messages=ASK, extra_body=COLD)
    check(m.type == "message" and m.role == "assistant" and m.model == MODEL, "a message")
    check([b.type for b in m.content] == ["text"] and m.content[0].text == "27 + 58 = 85.", "its text")
    check(m.stop_reason == "end_turn" and m.stop_sequence is None, "its end")
    counted = client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens
    read = m.usage.input_tokens + (m.usage.cache_read_input_tokens or 0)
    check(read == counted and m.usage.output_tokens > 5, "usage is what count_tokens says: %d" % counted)
    begun = ASK + [{"role": "assistant", "content": "27 + 58 ="}]
    m = client.messages.create(model=MODEL, max_tokens=40, messages=begun, extra_body=COLD)
    check(m.content[0].text == " 85.", "an answer whose beginning is given goes on there")
    m = client.messages.create(model=MODEL, max_tokens=2, messages=ASK, extra_body=COLD)
    check(m.stop_reason == "max_tokens" and m.usage.output_tokens == 2, "max_tokens")
    m = client.messages.create(model=MODEL, max_tokens=40, messages=ASK, extra_body=COLD, stop_sequences=["8", "="])
    check((m.stop_reason, m.stop_sequence, m.content[0].text) == ("stop_sequence", "8", "27 + 5"), "stop_sequences")


def text(messages):
    return [{"type": "text", "text": m["content"]} for m in messages]


def turns():
    system = [{"type": "text", "text": "You are brief."}, {"type": "text", "text": "You are exact."}]
    history = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]},
               {"role": "assistant", "content": [{"type": "thinking", "thinking": "A greeting.", "signature": ""},
                                                 {"type": "text", "text": "Hello."}]}, *ASK]
    m = client.messages.create(model=MODEL, max_tokens=8, system=system, messages=history)
    check(m.usage.output_tokens > 0, "a conversation with a system prompt and thoughts")
    late = [*ASK, {"role": "system", "content": "Available agents: none."}]
    own = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    m = client.messages.create(model=MODEL, max_tokens=8, system=system, messages=late, tools=[ADD, own])
    check(m.usage.output_tokens > 0, "a system message behind the user's, and a tool that only Anthropic runs")
    own = [{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}]
    m = client.messages.create(model=MODEL, max_tokens=40, messages=ASK, tools=own, extra_body=COLD)
    check(m.content[0].text == "27 + 58 = 85.", "tools that only Anthropic runs are no tools")
    for source in ({"type": "text", "media_type": "text/plain", "data": "The sky is green."},
                   {"type": "content", "content": [{"type": "text", "text": "The sky is green."}]}):
        attached = [{"role": "user", "content": [{"type": "document", "source": source}, *text(ASK)]}]
        counted = client.messages.count_tokens(model=MODEL, messages=attached).input_tokens
        plain = client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens
        check(counted > plain + 3, "a document's text is read: %s" % source["type"])
    listed = client.models.list().data[0]
    check((listed.type, listed.id, listed.display_name) == ("model", MODEL, MODEL) and listed.created_at.year > 2000,
          "the list of models")
    used = [*ASK, {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add",
                                                     "input": {"a": 27, "b": 58}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
                                          "content": [{"type": "text", "text": "85"}]},
                                         {"type": "text", "text": "And now?"}]}]
    m = client.messages.create(model=MODEL, max_tokens=8, messages=used, tools=[ADD])
    check(m.usage.output_tokens > 0, "a tool's result")
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    used[-1]["content"][0]["content"] = [picture]
    m = client.messages.create(model=MODEL, max_tokens=8, messages=used, tools=[ADD])
    check(m.usage.output_tokens > 0, "a tool's result that is a picture, which is left out")


def streams():
    with client.messages.stream(model=MODEL, max_tokens=40, messages=ASK, extra_body=COLD) as s:
        pieces = list(s.text_stream)
        m = s.get_final_message()
    check("".join(pieces) == m.content[0].text == "27 + 58 = 85." and len(pieces) > 5, "the stream's pieces are the text")
    check(m.stop_reason == "end_turn" and m.usage.output_tokens == 12, "its end and usage")
    with client.messages.stream(model=MODEL, max_tokens=40, messages=ASK, extra_body=COLD) as s:
        for event in s:
            if event.type == "text":
                break  # and the connection is closed
    check(client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens > 0, "a stream that is left")


def tools():
    """A call that is asked for is one, in both forms, whatever this small model makes of its arguments."""
    kw = dict(model=MODEL, max_tokens=48, messages=ASK, tools=[ADD], extra_body=COLD,
              tool_choice={"type": "tool", "name": "add"})
    m = client.messages.create(**kw)
    uses = [b for b in m.content if b.type == "tool_use"]
    check(len(uses) == 1 and uses[0].name == "add" and isinstance(uses[0].input, dict), "a use of the tool: %r" % uses)
    events, text = [], ""
    for event in client.messages.create(stream=True, **kw):
        events.append(event.type)
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            text += event.delta.partial_json
    opened, closed = events.count("content_block_start"), events.count("content_block_stop")
    check(opened == closed >= 1 and events[0] == "message_start" and events[-1] == "message_stop", "its events")
    try:
        same = json.loads(text) == uses[0].input
    except ValueError:
        same = uses[0].input == {"arguments": text}
    check(same, "its deltas are its input: %s" % text)


def errors():
    refused(anthropic.NotFoundError, "another model", model="no-such-model")
    refused(anthropic.BadRequestError, "no messages", messages=[])
    refused(anthropic.BadRequestError, "a picture", messages=[{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]}])
    refused(anthropic.BadRequestError, "an unknown field", extra_body={"max_token": 3})
    try:
        anthropic.Anthropic(base_url=server.url, api_key="another", max_retries=0).messages.create(
            model=MODEL, max_tokens=4, messages=ASK)
        check(False, "another key must be refused")
    except anthropic.AuthenticationError as e:
        check("X-Api-Key" in e.body["error"]["message"], "another key")


try:
    for part in (whole, turns, streams, tools, errors):
        part()
    server.end()
finally:
    server.process.kill()
