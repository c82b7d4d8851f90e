#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`minisgl serve` of encoders: /v1/embeddings, /classify, /v1/rerank and /v1/score against what transformers computed
(tests/vectors/encoders), texts longer than a step's budget, and what is refused.

    encoders.py MINISGL VECTORS
"""
import json
import math
import pathlib
import sys
import threading

import serving
from serving import check

PROGRAM, VECTORS = sys.argv[1], pathlib.Path(sys.argv[2])


class Server(serving.Server):
    def __init__(self, name, *options):
        super().__init__(PROGRAM, VECTORS / name, *options)
        self.expected = json.loads((VECTORS / name / "expected.json").read_text())

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
for name in ("bert_classifier", "modernbert_classifier"):
    classifies(name, ["no", "maybe", "yes"])
for name in ("bert_reranker", "xlm_roberta_reranker", "modernbert_reranker"):
    ranks(name)
