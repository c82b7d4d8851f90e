#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`minisgl serve` of encoders, and of decoders that classify or rank: /v1/embeddings, /pooling, /embed_sparse, /classify,
/v1/rerank and /v1/score against what transformers and sentence-transformers computed (tests/vectors/encoders), texts
longer than a step's budget, and what is refused.

    encoders.py MINISGL VECTORS
"""
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

import serving
from serving import check

PROGRAM, VECTORS = sys.argv[1], pathlib.Path(sys.argv[2])


class Server(serving.Server):
    def __init__(self, name, *options):
        folder = VECTORS / name  # or a path by itself
        super().__init__(PROGRAM, folder, *options)
        self.expected = json.loads((folder / "expected.json").read_text())

    def post(self, path, **body):
        status, text = self.call(path, body)
        return status, json.loads(text)


def near(got, want, most=1e-4):
    return len(got) == len(want) and all(abs(a - b) < most for a, b in zip(got, want))


def unit(values):
    length = math.sqrt(sum(v * v for v in values))
    return [v / length for v in values]


def vectors(server, inputs, **more):
    status, answer = server.post("/v1/embeddings", input=inputs, **more)
    check(status == 200, "embeddings of %d inputs: %s" % (len(inputs), status))
    return [d["embedding"] for d in answer["data"]]


def embeds(name):
    with Server(name) as server:
        cases = server.expected["cases"]
        got = vectors(server, [c["ids"] for c in cases])
        check(all(near(g, unit(c["values"])) for g, c in zip(got, cases)), name + ": vectors are those of transformers")
        short = vectors(server, [cases[0]["ids"]], dimensions=8)[0]
        check(near(short, unit(cases[0]["values"][:8])), name + ": dimensions")
        status, answer = server.post("/pooling", input=[c["ids"] for c in cases])
        check(status == 200 and answer["object"] == "list" and [d["data"] for d in answer["data"]] == got
              and answer["data"][0]["object"] == "pooling", name + ": /pooling has the same")
        return got


def budget(whole):
    """Texts of up to 160 tokens where a step has 16, beside each other from several clients: the same bits."""
    with Server("bert", "--max-prefill-length", 16, "--max-running-requests", 3) as server:
        cases, got = server.expected["cases"], {}
        threads = [threading.Thread(target=lambda k=k: got.__setitem__(k, vectors(server, [c["ids"] for c in cases])))
                   for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check(all(got[k] == whole for k in range(4)), "texts longer than a step's budget have the same vectors")


def refusals():
    with Server("bert") as server:
        def refuse(path, says, **body):
            status, answer = server.post(path, **body)
            check(status == 400 and says in answer["error"]["message"], "%s: %s" % (path, answer["error"]["message"]))
        refuse("/v1/embeddings", "maximum context length is 160 tokens. The prompt has 161", input=[[7] * 161])
        refuse("/v1/embeddings", "", input=[[7, 1 << 20]])
        refuse("/v1/embeddings", "", input=[[-1]])
        refuse("/v1/embeddings", "", input=[[]])
        refuse("/v1/embeddings", "maximum context length", input="fox " * 5000)
        refuse("/v1/completions", "makes embeddings", prompt="a")
        refuse("/classify", "has no labels", input="a")
        refuse("/v1/embeddings", "empty", input=["", "a"])
        status, answer = server.post("/v1/rerank", query="a fox", documents=["a fox", "a car"])
        check(status == 200 and abs(answer["results"][0]["relevance_score"] - 1) < 1e-6, "rerank by cosines")


def classifies(name, labels):
    with Server(name) as server:
        cases = [c for c in server.expected["cases"] if c["pair_from"] == 0]
        status, answer = server.post("/classify", input=[c["ids"] for c in cases])
        check(status == 200 and answer["object"] == "list" and answer["usage"]["prompt_tokens"] > 0, name + ": an answer")
        for d, c in zip(answer["data"], cases):
            e = [math.exp(v - max(c["values"])) for v in c["values"]]
            want = [v / sum(e) for v in e]
            if not (near(d["probs"], want) and d["label"] == labels[want.index(max(want))] and d["num_classes"] == len(want)):
                raise AssertionError("%s: %s, not %s" % (name, d, want))
        check(len(answer["data"]) == len(cases), name + ": probabilities and labels are those of transformers")
        for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/rerank", {"query": "a", "documents": ["b"]}),
                           ("/v1/completions", {"prompt": "a"})):
            status, answer = server.post(path, **body)
            check(status == 400 and "classifies texts by 3 labels" in answer["error"]["message"], path + " is refused")


def prompts(name, *options):
    """What texts get before them, as sentence-transformers' encode() has it."""
    with Server(name, *options) as server:
        texts = server.expected["texts"]
        for prompt in {t["prompt_name"] for t in texts}:
            mine = [t for t in texts if t["prompt_name"] == prompt]
            named = {} if prompt is None else {"prompt_name": prompt}
            got = vectors(server, [t["text"] for t in mine], **named)
            check(all(near(g, t["values"], 1e-5) for g, t in zip(got, mine)), "%s: texts behind prompt %s" % (name, prompt))
            status, answer = server.post("/pooling", input=[t["text"] for t in mine], **named)
            check(status == 200 and [d["data"] for d in answer["data"]] == got, name + ": /pooling has the same")
        usual = [t["values"] for t in texts if t["prompt_name"] is None]
        status, answer = server.post("/api/embed", input=[t["text"] for t in texts if t["prompt_name"] is None])
        check(all(near(g, w, 1e-5) for g, w in zip(answer["embeddings"], usual)), name + ": /api/embed has the usual prompt")
        size = len(usual[0])
        short = vectors(server, [texts[0]["text"]], dimensions=size // 2)[0]
        check(near(short, unit(usual[0][:size // 2]), 1e-5), name + ": dimensions")
        status, answer = server.post("/v1/embeddings", input="a", prompt_name="queries")
        check(status == 400 and answer["error"]["param"] == "prompt_name" and "allowed: query, document, none" in
              answer["error"]["message"].replace("document, none, query", "query, document, none"), answer["error"]["message"])
        status, answer = server.post("/v1/embeddings", input="a", dimensions=size + 1)
        check(status == 400 and answer["error"]["param"] == "dimensions", answer["error"]["message"])


def turns(name):
    """Texts in turns of the folder's chat template, as newer sentence-transformers has it: the same tokens, the same vectors."""
    prompts(name)
    with Server(name) as server:
        texts = server.expected["texts"]
        for t in texts:
            named = {} if t["prompt_name"] is None else {"prompt_name": t["prompt_name"]}
            status, answer = server.post("/v1/embeddings", input=t["text"], **named)
            alike = vectors(server, [t["ids"]])
            if not (status == 200 and answer["usage"]["prompt_tokens"] == len(t["ids"]) and answer["data"][0]["embedding"] == alike[0]):
                raise AssertionError("%s: the tokens of %s" % (name, t))
        check(len(texts) > 8, name + ": tokens are those of sentence-transformers")
        plain, spelled = ({"input": "a" + text} for text in ("", "<|im_end|>"))
        counts = [server.post("/v1/embeddings", prompt_name="none", **b)[1]["usage"]["prompt_tokens"] for b in (plain, spelled)]
        check(counts[1] > counts[0] + 1, name + ": what a text spells is no token of the template's")
        usual = vectors(server, ["a", "b"])
        status, answer = server.post("/v1/score", text_1="a", text_2="b")
        if name == "qwen3_turns":  # whose texts have no prompt without a name
            check(status == 200 and abs(answer["data"][0]["score"] - sum(x * y for x, y in zip(*usual))) < 1e-5, name + ": /v1/score")


def strict_turns():
    """A chat template that takes no system's turn, and none at all."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "model"
        shutil.copytree(VECTORS / "qwen3_turns", folder)
        template = folder / "chat_template.jinja"
        template.write_text("{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
                            + template.read_text())
        with Server(folder) as server:
            vectors(server, ["a"])
            status, answer = server.post("/v1/embeddings", input="a", prompt_name="query")
            check(status == 400 and "System role not supported" in answer["error"]["message"], answer["error"]["message"])
        template.unlink()
        failed = subprocess.run([PROGRAM, "serve", "--model", folder, "--port", "0", "--device", "cpu"], capture_output=True,
                                text=True, timeout=serving.LIMIT_S)
        check(failed.returncode != 0 and "embeds texts in its chat template" in failed.stderr, failed.stderr)


def tokens(name, *options):
    """bge-m3's three outputs: vectors of texts, of tokens, and lexical weights."""
    with Server(name, *options) as server:
        all_tokens, ends = server.expected["tokens"], {0, 1, 2, 3}
        texts = [t["text"] for t in all_tokens]
        status, answer = server.post("/pooling", input=texts, task="token_embed")
        check(status == 200, "token_embed: %s" % status)
        for d, t in zip(answer["data"], all_tokens):
            want = t["vectors"][1:]
            check(len(d["data"]) == len(want) and all(near(g, w, 1e-5) for g, w in zip(d["data"], want)),
                  "vectors of the tokens of %r" % t["text"])
        status, answer = server.post("/pooling", input=texts, task="token_classify")
        check(status == 200 and all(near(d["data"], t["weights"][1:-1], 1e-5) for d, t in zip(answer["data"], all_tokens)),
              "weights of tokens")
        status, answer = server.post("/embed_sparse", inputs=texts)
        check(status == 200 and len(answer) == len(texts), "embed_sparse: %s" % status)
        for got, t in zip(answer, all_tokens):
            want = {}
            for token, weight in zip(t["ids"], t["weights"]):
                if token not in ends and weight > 0:
                    want[token] = max(want.get(token, 0), weight)
            check([g["index"] for g in got] == sorted(want) and near([g["value"] for g in got], [want[k] for k in sorted(want)], 1e-5),
                  "lexical weights of %r" % t["text"])
        status, one = server.post("/embed_sparse", inputs=texts[0])
        check(status == 200 and one == answer[:1], "a single text")
        status, dense = server.post("/pooling", input=texts, task="embed")
        check(status == 200 and [d["data"] for d in dense["data"]] == vectors(server, texts), "the task embed is the usual one")
        long = "fox " * 200
        status, cut = server.post("/embed_sparse", inputs=long, truncate=True)
        check(status == 200 and len(cut[0]) > 0, "truncate")
        for path, body, param, code in (("/embed_sparse", {"inputs": long}, "inputs", 400),
                                        ("/pooling", {"input": "a", "task": "plugin"}, "task", 400),
                                        ("/pooling", {"input": "a", "task": "token_embed", "dimensions": 4}, "dimensions", 400)):
            status, error = server.post(path, **body)
            check(status == code and error["error"]["param"] == param, error["error"]["message"])
    with Server("bert") as server:
        status, error = server.post("/embed_sparse", inputs="a")
        check(status == 501 and "sparse_linear.safetensors" in error["error"]["message"], error["error"]["message"])
        status, error = server.post("/pooling", input="a", task="token_embed")
        check(status == 400 and "colbert_linear.safetensors" in error["error"]["message"], error["error"]["message"])


def by_one_token():
    """A reranker by one token's logit, as zerank's, in the present form of its folder and with its first chat template."""
    ranks_pairs("one_token_reranker", "pairs")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "model"
        shutil.copytree(VECTORS / "one_token_reranker", folder)
        (folder / "chat.jinja").replace(folder / "chat_template.jinja")
        ranks_pairs(folder, "chat")


def ranks_pairs(name, key, *options):
    with Server(name, *options) as server:
        pairs = server.expected[key]
        status, answer = server.post("/v1/score", text_1=[p["query"] for p in pairs], text_2=[p["document"] for p in pairs])
        check(status == 200 and near([d["score"] for d in answer["data"]], [p["score"] for p in pairs], 1e-5),
              "%s: scores of %s" % (name, key))
        mine = [p for p in pairs if p["query"] == pairs[0]["query"]]
        status, answer = server.post("/v1/rerank", query=mine[0]["query"], documents=[p["document"] for p in mine])
        best = max(range(len(mine)), key=lambda i: mine[i]["score"])
        check(status == 200 and answer["results"][0]["index"] == best, "%s: the best is first" % name)


def ranks(name):
    with Server(name) as server:
        pairs = server.expected["pairs"]
        for query in sorted({p["query"] for p in pairs}):
            mine = [p for p in pairs if p["query"] == query]
            status, answer = server.post("/v1/rerank", query=query, documents=[p["document"] for p in mine])
            check(status == 200, name + ": rerank")
            scores = [r["relevance_score"] for r in answer["results"]]
            check(scores == sorted(scores, reverse=True), name + ": the best is first")
            got = [s for _, s in sorted((r["index"], r["relevance_score"]) for r in answer["results"])]
            check(near(got, [p["score"] for p in mine]), name + ": scores are those of transformers")
        status, answer = server.post("/v1/score", text_1=[p["query"] for p in pairs], text_2=[p["document"] for p in pairs])
        check(near([d["score"] for d in answer["data"]], [p["score"] for p in pairs]), name + ": pairs of their own queries")
        status, answer = server.post("/v1/rerank", query="a", documents=["b", "fox " * 200])
        check(status == 400 and answer["error"]["param"] == "documents[1]", name + ": a long document is named")
        status, answer = server.post("/classify", input="a fox")
        check(status == 200 and len(answer["data"][0]["probs"]) == 1, name + ": its one label")


whole = embeds("bert")
budget(whole)
for name in ("xlm_roberta", "modernbert", "nomic_bert"):
    embeds(name)
refusals()
for name in ("gemma3_encoder", "bert_dense", "gemma3_encoder_hub", "bge_m3", "bge_m3_whole", "qwen3_dense"):
    embeds(name)
for name in ("gemma3_encoder", "bert_dense", "gemma3_encoder_hub", "qwen3_dense"):
    prompts(name)
for name in ("qwen3_turns", "gemma3_encoder_turns"):
    embeds(name)
    turns(name)
strict_turns()
for name in ("bert_without_prompt", "xlm_roberta_without_prompt"):
    embeds(name)
    prompts(name)
tokens("bge_m3")
tokens("bge_m3_whole")
tokens("bge_m3", "--tp-size", 2)  # on two ranks, as the pairs below, of which the second has to know where another text begins
ranks_pairs("bert_reranker", "pairs", "--tp-size", 2)
prompts("bert_without_prompt", "--tp-size", 2)
for name in ("bert_classifier", "modernbert_classifier", "qwen3_classifier"):
    classifies(name, ["no", "maybe", "yes"])
for name in ("bert_reranker", "xlm_roberta_reranker", "modernbert_reranker", "qwen3_reranker", "llama_reranker", "gemma3_reranker"):
    ranks(name)
    ranks_pairs(name, "pairs")
by_one_token()
