#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Frameworks of agents and further clients that others have written, unchanged, against `minisgl serve`: openai-agents,
pydantic-ai, smolagents, autogen, dspy, outlines, mistralai, llm, langchain-anthropic (clients.txt).

    agent_clients.py MINISGL MODEL

Each is left out where its package is not there; exits 77 (skipped) if all are. .ci/nightly installs them. The demo model
calls a tool when it is asked for the weather, and goes on calling: loops are cut off where the first call is known.
"""
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import typing

from serving import check, with_server

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # of the package, not of a network
os.environ["LANGSMITH_TRACING"] = "false"

MODEL = "demo"
QUESTION = "What is 27 + 58?"
ANSWER = "27 + 58 = 85."
WEATHER = "What is the weather in Paris?"


def sums_class():
    from pydantic import BaseModel

    class Sum(BaseModel):  # finite, so that the demo model finds an end
        """The sum of two numbers."""
        result: typing.Literal[84, 85, 86]
        sure: bool

    return Sum


def weather_tool(called):
    """A function for a framework to make a tool of; appends the cities that it is asked for."""
    def get_weather(city: str) -> str:
        """weather of a city

        Args:
            city: the city's name
        """
        called.append(city)
        return "sunny"

    return get_weather


def with_openai_agents(base):
    import agents
    import openai
    Sum = sums_class()
    agents.set_tracing_disabled(True)
    clients = []  # kept, since each would close itself in whatever loop runs when it is freed
    for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
        called = []

        def agent(choice=None, **more):
            clients.append(openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0))  # each of one event loop
            settings = agents.ModelSettings(temperature=0, max_tokens=64, tool_choice=choice)
            return agents.Agent(name="helper", instructions="You are brief.", model=kind(MODEL, clients[-1]),
                                model_settings=settings, **more)

        def ask(helper, question, **more):
            return agents.Runner.run_sync(helper, question, **more).final_output

        tool = agents.function_tool(weather_tool(called))
        name = "openai-agents, %s: " % kind.__name__
        check(ask(agent(), QUESTION) == ANSWER, name + "an answer")
        check(isinstance(ask(agent(output_type=Sum), QUESTION), Sum), name + "output_type")
        try:
            ask(agent(output_type=Sum, tools=[tool]), WEATHER, max_turns=1)
        except agents.MaxTurnsExceeded:
            pass
        check(called == ["Paris"], name + "a tool beside output_type is called")
        said = ask(agent("none", output_type=Sum, tools=[tool]), WEATHER)
        check(isinstance(said, Sum) and len(called) == 1, name + "and the type is kept where none is to be called")
        said = ask(agent("required", tools=[tool], tool_use_behavior="stop_on_first_tool"), QUESTION)
        check(said == "sunny" and len(called) == 2, name + "a tool that is asked for is called")

        async def stream():
            run = agents.Runner.run_streamed(agent(), QUESTION)
            deltas = [e.data.delta async for e in run.stream_events()
                      if e.type == "raw_response_event" and e.data.type == "response.output_text.delta"]
            return "".join(deltas), run.final_output

        check(asyncio.run(stream()) == (ANSWER, ANSWER), name + "a stream")


def with_pydantic_ai(base):
    from pydantic_ai import Agent, NativeOutput, UsageLimits
    from pydantic_ai.exceptions import UsageLimitExceeded
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider
    Sum = sums_class()
    own = OpenAIProvider(base_url=base, api_key="none")
    other = AnthropicProvider(base_url=base.removesuffix("/v1"), api_key="none")
    for kind, provider in ((OpenAIChatModel, own), (OpenAIResponsesModel, own), (AnthropicModel, other)):
        name = "pydantic-ai, %s: " % kind.__name__

        def agent(**more):
            return Agent(kind(MODEL, provider=provider), model_settings={"temperature": 0, "max_tokens": 64}, **more)

        said = agent(instructions="You are brief.", system_prompt="You are exact.").run_sync(QUESTION)
        check(said.output == ANSWER and said.usage.output_tokens > 0, name + "instructions beside a system_prompt")
        check(isinstance(agent(output_type=Sum).run_sync(QUESTION).output, Sum), name + "an output by a tool")
        if kind is AnthropicModel:
            continue  # native output is of models that the package knows
        native = agent(output_type=NativeOutput(Sum))
        check(isinstance(native.run_sync(QUESTION).output, Sum), name + "a native output")
        called = []
        both = agent(output_type=NativeOutput(Sum), tools=[weather_tool(called)])
        try:
            both.run_sync(WEATHER, usage_limits=UsageLimits(request_limit=1))
        except UsageLimitExceeded:
            pass
        check(called == ["Paris"], name + "a tool beside a native output is called")

        async def stream():
            async with agent().run_stream(QUESTION) as run:
                return "".join([delta async for delta in run.stream_text(delta=True)])

        check(asyncio.run(stream()) == ANSWER, name + "a stream")


def with_smolagents(base):
    import smolagents
    called = []
    tool = smolagents.tool(weather_tool(called))
    model = smolagents.OpenAIServerModel(MODEL, api_base=base, api_key="none", temperature=0, max_tokens=64)
    ask = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    check(model.generate(ask).content == ANSWER, "smolagents: an answer")
    check("".join(d.content or "" for d in model.generate_stream(ask)) == ANSWER, "smolagents: a stream")
    agent = smolagents.ToolCallingAgent(tools=[tool], model=model, max_steps=1, verbosity_level=0)
    agent.run(WEATHER)
    check(called == ["Paris"], "smolagents: its agent calls a tool")
    # An agent of code asks for JSON of this schema; what stands in it is the model's.
    said = model.generate(ask, response_format={"type": "json_schema", "json_schema": {
        "name": "Sum", "strict": True, "schema": {**sums_class().model_json_schema(), "additionalProperties": False}}})
    check(json.loads(said.content)["result"] in (84, 85, 86), "smolagents: response_format")


def with_autogen(base):
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelInfo, UserMessage
    from autogen_ext.models.openai import OpenAIChatCompletionClient
    Sum = sums_class()
    called = []
    tool = weather_tool(called)

    async def run():
        info = ModelInfo(vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True)
        client = OpenAIChatCompletionClient(model=MODEL, base_url=base, api_key="none", temperature=0, max_tokens=64,
                                            model_info=info)
        ask = [UserMessage(content=QUESTION, source="user")]
        r = await client.create(ask)
        check(r.content == ANSWER and r.usage.completion_tokens > 0, "autogen: an answer")
        parts = [part async for part in client.create_stream(ask)]
        check("".join(parts[:-1]) == parts[-1].content == ANSWER, "autogen: a stream")
        check(Sum.model_validate_json((await client.create(ask, json_output=Sum)).content), "autogen: json_output")
        agent = AssistantAgent("helper", model_client=client, tools=[tool], system_message="You are brief.")
        said = (await agent.run(task=WEATHER)).messages[-1].content
        check(said == "sunny" and called == ["Paris"], "autogen: its agent calls a tool")
        await client.close()

    asyncio.run(run())


def with_dspy(base):
    import dspy

    class Add(dspy.Signature):
        """Adds two numbers."""
        question: str = dspy.InputField()
        result: typing.Literal["84", "85"] = dspy.OutputField()

    def model(**more):
        return dspy.LM("openai/" + MODEL, api_base=base, api_key="none", max_tokens=100, cache=False, **more)

    check(model(temperature=0)(QUESTION) == [ANSWER], "dspy: an answer")
    check(len(model(temperature=0.5, n=2)(QUESTION)) == 2, "dspy: two answers")
    check(model(temperature=0, model_type="responses")(QUESTION) == [{"text": ANSWER}], "dspy: an answer of Responses")
    # The package asks for no form of models that it does not know, and this model would find none.
    form = {"properties": {"result": {"enum": ["84", "85"]}}, "required": ["result"]}
    with dspy.context(lm=model(temperature=0, extra_body={"guided_json": form}), adapter=dspy.JSONAdapter()):
        check(dspy.Predict(Add)(question=QUESTION).result in ("84", "85"), "dspy: Predict")


def with_outlines(base):
    import openai
    import outlines
    Sum = sums_class()
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
    ask = dict(max_tokens=64, temperature=0)
    model = outlines.from_openai(client, MODEL)
    check(model(QUESTION, **ask) == ANSWER, "outlines: an answer")
    check(Sum.model_validate_json(model(QUESTION, Sum, **ask)), "outlines: a class")
    check("".join(model.stream(QUESTION, **ask)) == ANSWER, "outlines: a stream")
    for kind in (outlines.from_vllm, outlines.from_sglang):
        model, name = kind(client, MODEL), "outlines, %s: " % kind.__name__
        check(Sum.model_validate_json(model(QUESTION, Sum, **ask)), name + "a class")
        check(model(QUESTION, typing.Literal["Rome", "Oslo"], **ask) in ("Rome", "Oslo"), name + "a choice")
        said = model(QUESTION, outlines.regex("[0-9]{3}"), **ask)
        check(len(said) == 3 and said.isdigit(), name + "a regular expression")
    said = outlines.from_vllm(client, MODEL)(QUESTION, outlines.cfg('start: "yes" | "no"'), **ask)
    check(said in ("yes", "no"), "outlines: a grammar")


def with_mistralai(base):
    from mistralai.client import Mistral
    Sum = sums_class()
    client = Mistral(api_key="none", server_url=base.removesuffix("/v1"))
    ask = dict(model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=64)
    # The package knows types of its own alone, and keeps another one's entry as it came.
    check([m.raw["id"] for m in client.models.list().data] == [MODEL], "mistralai: models.list")
    r = client.chat.complete(**ask)
    check(r.choices[0].message.content == ANSWER and r.usage.completion_tokens > 0, "mistralai: an answer")
    parts = [e.data.choices[0].delta.content or "" for e in client.chat.stream(**ask)]
    check("".join(parts) == ANSWER, "mistralai: a stream")
    tool = {"type": "function", "function": {"name": "get_weather", "description": "weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    for choice in ("any", "required", {"type": "function", "function": {"name": "get_weather"}}):
        r = client.chat.complete(tools=[tool], tool_choice=choice, **ask).choices[0]
        call = r.message.tool_calls[0].function
        check(r.finish_reason == "tool_calls" and call.name == "get_weather" and "city" in json.loads(call.arguments),
              "mistralai: tool_choice %s" % (choice if isinstance(choice, str) else "of a name"))
    r = client.chat.parse(response_format=Sum, **ask)
    check(isinstance(r.choices[0].message.parsed, Sum), "mistralai: chat.parse")


FUNCTION = '''
def get_weather(city: str) -> str:
    "weather of a city"
    return "sunny"
'''


def with_llm(base):
    with tempfile.TemporaryDirectory() as folder:
        models = [{"model_id": MODEL, "model_name": MODEL, "api_base": base, "supports_tools": True, "supports_schema": True}]
        with open(folder + "/extra-openai-models.yaml", "w") as f:
            json.dump(models, f)  # which is YAML, too
        environment = dict(os.environ, LLM_USER_PATH=folder, OPENAI_API_KEY="none")

        def llm(*words):
            r = subprocess.run([sys.executable, "-m", "llm", *words], env=environment, capture_output=True, text=True,
                               timeout=120)
            return r.returncode, r.stdout.strip(), r.stderr

        cold = ("-m", MODEL, "-o", "temperature", "0")
        check(llm(*cold, QUESTION)[:2] == (0, ANSWER), "llm: a prompt, streamed")
        check(llm(*cold, "--no-stream", "-s", "You are brief.", QUESTION)[:2] == (0, ANSWER), "llm: whole, with a system prompt")
        check(llm("-c", "-o", "temperature", "0", "What is 12 + 30?")[:2] == (0, "12 + 30 = 42."), "llm: it goes on")
        code, text, _ = llm(*cold, "--schema", json.dumps(sums_class().model_json_schema()), QUESTION)
        check(code == 0 and json.loads(text)["result"] in (84, 85, 86), "llm: a schema")
        _, text, errors = llm(*cold, "--functions", FUNCTION, "--td", "--cl", "2", WEATHER)
        check("get_weather({'city': 'Paris'})" in errors and "sunny" in errors, "llm: a tool")


def with_langchain_anthropic(base):
    from langchain_anthropic import ChatAnthropic
    Sum = sums_class()
    model = ChatAnthropic(model=MODEL, base_url=base.removesuffix("/v1"), api_key="none", max_tokens=64, temperature=0)
    r = model.invoke(QUESTION)
    check(r.content == ANSWER and r.usage_metadata["output_tokens"] > 0, "langchain-anthropic: an answer")
    check("".join(c.text for c in model.stream(QUESTION)) == ANSWER, "langchain-anthropic: a stream")
    for method in ("json_schema", "function_calling"):
        said = model.with_structured_output(Sum, method=method).invoke(QUESTION)
        check(isinstance(said, Sum), "langchain-anthropic: with_structured_output by " + method)
    searching = model.bind_tools([{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}])
    check(searching.invoke(QUESTION).content == ANSWER, "langchain-anthropic: a tool that the server does not run")
    calling = model.bind_tools([weather_tool([])], tool_choice="any")
    calls = calling.invoke(QUESTION).tool_calls
    check([c["name"] for c in calls] == ["get_weather"] and "city" in calls[0]["args"], "langchain-anthropic: a call")


with_server(((with_openai_agents, "agents"), (with_pydantic_ai, "pydantic_ai"), (with_smolagents, "smolagents"),
             (with_autogen, "autogen_ext.models.openai"), (with_dspy, "dspy"), (with_outlines, "outlines"),
             (with_mistralai, "mistralai.client"), (with_llm, "llm"), (with_langchain_anthropic, "langchain_anthropic")))
