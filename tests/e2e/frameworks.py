#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Frameworks over the openai client, unchanged, against `minisgl serve`: litellm, langchain-openai.

    frameworks.py MINISGL MODEL

Each is left out where its package is not there; exits 77 (skipped) if all are. `make check` runs it; .ci/run installs
them.
"""
import os
import signal
import subprocess
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # of the package, not of a network
os.environ["LANGSMITH_TRACING"] = "false"

MODEL = "demo"
QUESTION = [{"role": "user", "content": "What is 27 + 58?"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def check(condition, what):
    if not condition:
        raise AssertionError(what)
    print("ok:", what, flush=True)


def with_litellm(base):
    import litellm
    ask = dict(model="openai/" + MODEL, api_base=base, api_key="none", temperature=0)
    r = litellm.completion(messages=QUESTION, max_tokens=40, **ask)
    check(r.choices[0].message.content == "27 + 58 = 85." and r.usage.completion_tokens > 0, "litellm: a chat")
    chunks = list(litellm.completion(messages=QUESTION, max_tokens=40, stream=True, **ask))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    check(text == "27 + 58 = 85." and chunks[-1].choices[0].finish_reason == "stop", "litellm: a stream")
    r = litellm.completion(messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=[WEATHER],
                           tool_choice="required", max_tokens=64, **ask)
    check(r.choices[0].message.tool_calls[0].function.name == "get_weather", "litellm: a call")
    r = litellm.text_completion(model="text-completion-openai/" + MODEL, api_base=base, api_key="none", prompt="Count:",
                                max_tokens=4)
    check(r.choices[0].text, "litellm: a completion")
    try:
        litellm.completion(messages=QUESTION, max_tokens=-1, **ask)
    except litellm.BadRequestError as e:
        check("max_tokens" in str(e), "litellm: a refusal is a BadRequestError")
    else:
        check(False, "litellm: max_tokens -1 must be refused")


def with_langchain(base):
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Sum(BaseModel):
        """The sum of two numbers."""
        result: int
        sure: bool

    model = ChatOpenAI(model=MODEL, base_url=base, api_key="none", temperature=0, max_tokens=64)
    r = model.invoke("What is 27 + 58?")
    check(r.content == "27 + 58 = 85." and r.usage_metadata["output_tokens"] > 0, "langchain: a chat")
    text = "".join(c.content for c in model.stream("What is 27 + 58?"))
    check(text == "27 + 58 = 85.", "langchain: a stream")
    said = model.with_structured_output(Sum, method="json_schema", include_raw=True).invoke("What is 27 + 58?")
    cut = said["raw"].response_metadata["finish_reason"] == "length"  # the demo model may not find an end
    check(isinstance(said["parsed"], Sum) or cut, "langchain: with_structured_output by json_schema")
    said = model.with_structured_output(Sum, method="function_calling").invoke("What is 27 + 58?")
    check(isinstance(said, Sum), "langchain: with_structured_output by function_calling")
    many = model.batch(["What is 27 + 58?"] * 8)
    check(all(m.content == "27 + 58 = 85." for m in many), "langchain: a batch")


CLIENTS = (with_litellm, "litellm"), (with_langchain, "langchain_openai")


def available(name):
    try:
        __import__(name)
    except ImportError:
        print("left out: %s is not installed" % name)
        return False
    return True


def main():
    clients = [run for run, name in CLIENTS if available(name)]
    if not clients:
        sys.exit(77)
    server = subprocess.Popen([sys.argv[1], "serve", "--model", sys.argv[2], "--port", "0", "--num-pages", "6000",
                               "--device", "cpu", "--tool-call-parser", "hermes"], stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        start = line.find("http://")
        if start < 0:
            sys.exit("no address in %r" % line)
        base = line[start:].split()[0]
        for run in clients:
            run(base)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(30)
    check(code == 0, "the server ends with 0")


main()
