#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that others have written, unchanged, against `minisgl serve`: litellm, langchain-openai (clients.txt), and
instructor, llama-index, lm-eval, guidellm (clients-openai2.txt, which do not go with the former).

    frameworks.py MINISGL MODEL

Each is left out where its package is not there; exits 77 (skipped) if all are. .ci/nightly installs
both lists, and runs it with the Python of each.
"""
import json
import os
import subprocess
import sys
import tempfile
import typing

from serving import check, with_server

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # of the package, not of a network
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

MODEL = "demo"
QUESTION = [{"role": "user", "content": "What is 27 + 58?"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


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
        litellm.completion(messages=QUESTION, max_tokens=-2, **ask)
    except litellm.BadRequestError as e:
        check("max_tokens" in str(e), "litellm: a refusal is a BadRequestError")
    else:
        check(False, "litellm: max_tokens -2 must be refused")


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


def sums_class():
    from pydantic import BaseModel

    class Sum(BaseModel, extra="forbid"):  # finite, so that the demo model finds an end
        """The sum of two numbers."""
        result: typing.Literal[84, 85, 86]
        sure: bool

    return Sum


def with_instructor(base):
    import instructor
    import openai
    from instructor.core.exceptions import InstructorRetryException
    Sum = sums_class()
    ask = dict(model=MODEL, response_model=Sum, max_retries=0, max_tokens=200, temperature=0, messages=QUESTION)

    def client(mode):
        return instructor.from_openai(openai.OpenAI(base_url=base, api_key="none"), mode=mode)

    by_schema = client(instructor.Mode.JSON_SCHEMA)
    said, raw = by_schema.chat.completions.create_with_completion(**ask)
    check(isinstance(said, Sum) and raw.usage.completion_tokens > 0, "instructor: an object by JSON schema")
    last = list(by_schema.chat.completions.create_partial(**ask))[-1]
    check((last.result, last.sure) == (said.result, said.sure), "instructor: the same as a stream of parts")
    # The call is forced, its arguments are an object; that they fit the schema is not (docs/tools.md).
    try:
        _, raw = client(instructor.Mode.TOOLS).chat.completions.create_with_completion(**ask)
    except InstructorRetryException as e:
        raw = e.last_completion
    call = raw.choices[0].message.tool_calls[0].function
    check(call.name == "Sum" and isinstance(json.loads(call.arguments), dict), "instructor: a call")
    said = client(instructor.Mode.RESPONSES_TOOLS).responses.create(
        model=MODEL, input=QUESTION, response_model=Sum, max_retries=0, max_output_tokens=64, temperature=0)
    check(isinstance(said, Sum), "instructor: a call of Responses, beside a form")


def with_llama_index(base):
    from llama_index.core.llms import ChatMessage
    from llama_index.core.prompts import PromptTemplate
    from llama_index.llms.openai_like import OpenAILike
    Sum = sums_class()
    ask = dict(model=MODEL, api_base=base, api_key="none", temperature=0, max_tokens=64, context_window=2048)
    chat = OpenAILike(is_chat_model=True, should_use_structured_outputs=True, **ask)
    question = [ChatMessage(role="user", content=QUESTION[0]["content"])]
    r = chat.chat(question)
    check(r.message.content == "27 + 58 = 85." and r.raw.usage.completion_tokens > 0, "llama-index: a chat")
    text = "".join(c.delta or "" for c in chat.stream_chat(question))
    check(text == "27 + 58 = 85.", "llama-index: a stream")
    said = chat.structured_predict(Sum, PromptTemplate(QUESTION[0]["content"]))
    check(isinstance(said, Sum), "llama-index: structured_predict")
    plain = OpenAILike(is_chat_model=False, **ask)
    whole = plain.complete("Count: 1, 2,").text
    parts = [c.delta or "" for c in plain.stream_complete("Count: 1, 2,")]
    check(whole and "".join(parts) == whole, "llama-index: a completion, whole and as a stream")


# lm-eval's own form of a task: one scores given answers (echo with log-probabilities), one answers itself.
TASKS = {"sums_choice": {
    "output_type": "multiple_choice", "doc_to_choice": "{{[right, wrong]}}", "doc_to_target": 0,
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}, "sums_generate": {
    "output_type": "generate_until", "doc_to_target": "{{right}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 40, "do_sample": False, "temperature": 0},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}}
SUMS = [{"question": "What is %d + %d?" % s, "right": "%d + %d = %d." % (*s, sum(s)),
         "wrong": "%d + %d = %d." % (*s, sum(s) - 10)} for s in ((27, 58), (12, 30), (41, 25))]


def with_lm_eval(base):
    import lm_eval
    from lm_eval.tasks import TaskManager
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_DATASETS_CACHE"] = folder + "/cache"
        with open(folder + "/sums.jsonl", "w") as f:
            f.writelines(json.dumps(s) + "\n" for s in SUMS)
        for name, task in TASKS.items():
            common = {"task": name, "dataset_path": "json", "test_split": "test", "doc_to_text": "{{question}}",
                      "dataset_kwargs": {"data_files": {"test": folder + "/sums.jsonl"}}}
            with open(folder + "/%s.yaml" % name, "w") as f:
                json.dump({**common, **task}, f)  # which is YAML, too
        ask = dict(task_manager=TaskManager(include_path=folder, include_defaults=False), apply_chat_template=True,
                   log_samples=True, bootstrap_iters=0)

        def choose(chat, **tokens):
            r = lm_eval.simple_evaluate(
                model="local-completions", tasks=["sums_choice"],
                model_args=dict(base_url=base + "/completions", model=MODEL, num_concurrent=4, **tokens),
                **{**ask, "apply_chat_template": chat})
            return r, [[one[0] for one in s["resps"]] for s in r["samples"]["sums_choice"]]

        own = dict(tokenizer_backend="huggingface", tokenizer=os.path.abspath(sys.argv[2]))
        r, likely = choose(True, **own)
        check(r["results"]["sums_choice"]["acc,none"] == 1 and len(likely) == len(SUMS), "lm-eval: log-likelihoods choose")
        check(all(right[1] and not wrong[1] and right[0] > wrong[0] for right, wrong in likely), "lm-eval: greedy or not")
        # With tokens of the server the package has no template for what is not generated.
        (_, here), (_, there) = choose(False, **own), choose(False, tokenizer_backend="remote")
        check(len(here) == len(SUMS) and all(abs(a[0] - b[0]) < 1e-3 and a[1] == b[1]
                                             for pair in zip(here, there) for a, b in zip(*pair)),
              "lm-eval: the server's tokens are the tokenizer's")
        r = lm_eval.simple_evaluate(
            model="local-chat-completions", tasks=["sums_generate"],
            model_args=dict(base_url=base + "/chat/completions", model=MODEL, num_concurrent=4), **ask)
        check(r["results"]["sums_generate"]["exact_match,none"] == 1, "lm-eval: answers")


def with_guidellm(base):
    import transformers
    with tempfile.TemporaryDirectory() as folder:
        report = folder + "/report.json"
        out = subprocess.run([sys.executable, "-m", "guidellm", "benchmark", "--target", base.removesuffix("/v1"),
                              "--model", MODEL, "--processor", os.path.abspath(sys.argv[2]), "--rate-type", "concurrent",
                              "--rate", "4", "--max-requests", "12", "--output-path", report, "--disable-console-outputs",
                              "--data", '{"prompt_tokens": 32, "output_tokens": 16}'],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        check(out.returncode == 0, "guidellm: a benchmark runs" if out.returncode == 0 else out.stdout)
        with open(report) as f:
            found = json.load(f)["benchmarks"][0]
    totals = {k: found["request_totals"][k] for k in ("successful", "errored", "incomplete")}
    check(totals == {"successful": 12, "errored": 0, "incomplete": 0}, "guidellm: %s" % totals)
    requests = found["requests"]["successful"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(os.path.abspath(sys.argv[2]))
    counts = [(r["prompt_tokens"], r["output_tokens"]) for r in requests]
    check(counts == [(len(tokenizer(r["prompt"])["input_ids"]), 16) for r in requests], "guidellm: tokens are counted")
    check(all(r["start_time"] < r["first_token_time"] <= r["last_token_time"] for r in requests), "guidellm: tokens are timed")


CLIENTS = ((with_litellm, "litellm"), (with_langchain, "langchain_openai"), (with_instructor, "instructor"),
           (with_llama_index, "llama_index.llms.openai_like"), (with_lm_eval, "lm_eval"), (with_guidellm, "guidellm"))

with_server(CLIENTS, "--tool-call-parser", "hermes")
