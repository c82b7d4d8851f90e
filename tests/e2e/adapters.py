#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters of `minisgl serve`: by name, loaded and taken away while it runs, against peft's log-probabilities.

    adapters.py MINISGL VECTORS

VECTORS has models/qwen3_f32 and the adapters of lora/.
"""
import array
import json
import subprocess
import sys
import threading
from pathlib import Path

from serving import Server, check

PROGRAM, VECTORS = sys.argv[1], Path(sys.argv[2])
MODEL, LORA = VECTORS / "models" / "qwen3_f32", VECTORS / "lora"
IDS = json.loads((MODEL / "prompt.json").read_text())["ids"][:32]
VOCABULARY = 260


def expected(path):
    """Log-probability of each token of the prompt behind those before it."""
    rows = array.array("f", path.read_bytes())
    return [rows[i * VOCABULARY + IDS[i + 1]] for i in range(len(IDS) - 1)]


BASE = expected(MODEL / "expected_f32.bin")
OF = {name: expected(LORA / name / "expected_f32.bin") for name in ("attention", "all", "few", "ends")}


def call(server, path, values=None, headers={}):
    status, text = server.call(path, values, headers)
    return status, json.loads(text) if text.startswith("{") else text


def body(model, **more):
    return dict(model=model, prompt=IDS, max_tokens=1, temperature=0, prompt_logprobs=0, **more)


def said(answer):
    """Log-probabilities of the prompt, in vLLM's form."""
    rows = answer["choices"][0]["prompt_logprobs"]
    return [row[str(token)]["logprob"] for row, token in zip(rows[1:], IDS[1:])]


def near(a, b):
    return max(abs(x - y) for x, y in zip(a, b)) < 1e-3


def ask(server, model, values, what):
    status, answer = call(server, "/v1/completions", body(model))
    check(status == 200 and near(said(answer), values), what)
    check(answer["model"] == model, what + " says its name")


def cached(server, model):
    """Tokens of the prompt that the prefix cache had."""
    status, answer = call(server, "/v1/completions", dict(body(model), prompt_logprobs=None))
    check(status == 200, "answered by %s" % model)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def load(server, name, folder, path="/v1/load_lora_adapter", **more):
    return call(server, path, dict(lora_name=name, lora_path=str(LORA / folder), **more))


def serve(*options):
    return Server(PROGRAM, MODEL, "--dtype", "float32", "--served-model-name", "base", *options)


def test_by_name(server):
    ask(server, "base", BASE, "the base is what it is")
    ask(server, "a", OF["attention"], "an adapter by its name")
    ask(server, "b", OF["all"], "another one")
    status, models = call(server, "/v1/models")
    found = {m["id"]: m.get("parent") for m in models["data"]}
    check(found == {"base": None, "a": "base", "b": "base"}, "/v1/models lists adapters with their parent")
    status, answer = call(server, "/v1/completions", body("base:a"))
    check(status == 200 and near(said(answer), OF["attention"]), "SGLang's MODEL:ADAPTER")
    status, answer = call(server, "/v1/completions", body("base", lora_path="b"))
    check(status == 200 and near(said(answer), OF["all"]), "SGLang's lora_path")
    status, answer = call(server, "/v1/completions", body("c"))
    check(status == 404 and answer["error"]["code"] == "model_not_found", "an unknown name is 404")
    status, answer = call(server, "/generate", dict(text="ab", lora_path="c", sampling_params={}))
    check(status == 404, "so it is in /generate")
    status, answer = call(server, "/generate", dict(text="ab", lora_path="a",
                                                   sampling_params=dict(max_new_tokens=2)))
    check(status == 200, "/generate with an adapter")


def test_while_it_runs(server):
    status, text = load(server, "c", "few")
    check(status == 200, "loaded: %s" % text)
    for _ in range(2):  # more than the two that stay in memory
        for name, folder in (("a", "attention"), ("b", "all"), ("c", "few")):
            ask(server, name, OF[folder], "%s, read again when it is asked for" % name)
    status, answer = load(server, "c", "few")
    check(status == 400 and "load_inplace" in answer["error"]["message"], "a name that is taken is 400")
    before = cached(server, "c"), cached(server, "c")
    check(before[1] > 0, "its prompts are cached")
    status, text = load(server, "c", "ends", load_inplace=True)
    check(status == 200, "another one in its place")
    check(cached(server, "c") == 0, "which shares no prefix with the old one")
    ask(server, "c", OF["ends"], "and answers")
    status, answer = call(server, "/v1/unload_lora_adapter", dict(lora_name="c"))
    check(status == 200, "taken away")
    check(call(server, "/v1/completions", body("c"))[0] == 404, "its name is unknown then")
    check(call(server, "/v1/unload_lora_adapter", dict(lora_name="c"))[0] == 404, "taken away twice is 404")
    status, answer = load(server, "c", "few", "/load_lora_adapter")
    check(status == 200 and set(answer["loaded_adapters"]) == {"a", "b", "c"}, "SGLang's path and answer")
    status, answer = call(server, "/unload_lora_adapter", dict(lora_name="c"))
    check(status == 200 and set(answer["loaded_adapters"]) == {"a", "b"}, "and back")


def test_refused(server):
    status, answer = load(server, "d", "nowhere")
    check(status == 404 and "adapter_config.json" in answer["error"]["message"], "no folder: 404")
    status, answer = load(server, "d", "dora")
    check(status == 400 and "use_dora" in answer["error"]["message"], "DoRA is refused by name")
    status, answer = load(server, "base", "few")
    check(status == 400, "the model's name is no adapter's")
    check(call(server, "/v1/load_lora_adapter", dict(lora_name="d"))[0] == 400, "a path is needed")
    check(call(server, "/v1/load_lora_adapter", dict(lora_name="d", lora_path="x", z=1))[0] == 400,
          "an unknown field is refused")


def test_mixed(server):
    wanted = [("base", BASE), ("a", OF["attention"]), ("b", OF["all"]), ("c", OF["few"])] * 4
    wrong = []

    def one(name, values):
        status, answer = call(server, "/v1/completions", dict(body(name), max_tokens=8))
        if status != 200 or not near(said(answer), values):
            wrong.append((name, status))

    check(load(server, "c", "few")[0] == 200, "loaded")
    threads = [threading.Thread(target=one, args=w) for w in wanted]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(not wrong, "16 requests at once, of four kinds, two of them at a time: %r" % wrong)


def test_start():
    failed = subprocess.run([PROGRAM, "serve", "--model", MODEL, "--port", "0", "--device", "cpu", "--num-pages",
                             "600", "--lora-paths", "x=%s" % (LORA / "dora")], capture_output=True, text=True,
                            timeout=60)
    check(failed.returncode != 0 and "use_dora" in failed.stderr, "a start with one that cannot be used fails")
    with serve() as server:
        status, answer = load(server, "a", "all")
        check(status == 501 and "--enable-lora" in answer["error"]["message"], "without the option it is 501")
    with serve("--enable-lora", "--admin-api-key", "root") as server:
        check(load(server, "a", "all")[0] in (401, 403), "it is for administrators")
        key = {"Authorization": "Bearer root"}
        path, values = "/v1/load_lora_adapter", dict(lora_name="a", lora_path=str(LORA / "all"))
        check(call(server, path, values, key)[0] == 200, "who may load")


with serve("--lora-paths", "a=%s" % (LORA / "attention"), "b=%s" % (LORA / "all"), "--max-loaded-loras", 2,
           "--max-loras-per-batch", 2) as running:
    test_by_name(running)
    test_while_it_runs(running)
    test_refused(running)
    test_mixed(running)
test_start()
