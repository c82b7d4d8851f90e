#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""/v1/rerank and /v1/score of `minisgl serve`, of a model that embeds and of one that ranks.

    rerank.py MINISGL MODEL

The oracles are other endpoints: cosines of /v1/embeddings' vectors, and of a folder in the form of
Qwen3-Reranker's the log-probabilities that /v1/completions gives yes and no behind the same prompts.
"""
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

import serving
from serving import check

PROGRAM, MODEL = sys.argv[1:]
QUERY = "What is the capital of China?"
DOCUMENTS = ["Beijing is.", "Gravity is a force.", "2 + 2 = 4"]
USUAL = "Given a web search query, retrieve relevant passages that answer the query"
QWEN = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: %s\n'
        "<Query>: %s\n<Document>: %s<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
# In the form that sentence-transformers' own have.
TEMPLATE = ("{%- set query = messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first -%}\n"
            "{%- set document = messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first -%}\n"
            "{{- '<|im_start|>' ~ query ~ '<|im_end|>' ~ document -}}\n"
            "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n")


class Server(serving.Server):
    def __init__(self, model, *options):
        super().__init__(PROGRAM, model, "--num-pages", "1200", "--dtype", "float32", *options)

    def post(self, path, **body):
        return json.loads(self.call(path, body)[1])


def write_reranker(out, yes, no, template=None):
    shutil.copytree(MODEL, out)
    kind = "sentence_transformers."
    (out / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": kind + "base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_LogitScore", "type": kind + "cross_encoder.modules.logit_score.LogitScore"}]))
    (out / "1_LogitScore").mkdir()
    (out / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": yes, "false_token_id": no}))
    if template is not None:
        (out / "chat_template.jinja").write_text(template)


def near(got, want, most=1e-4):
    return len(got) == len(want) and all(abs(a - b) < most for a, b in zip(got, want))


def ranked(answer):
    """The scores by document; they must be sorted."""
    scores = [r["relevance_score"] for r in answer["results"]]
    check(scores == sorted(scores, reverse=True), "the best is first")
    return [s for _, s in sorted((r["index"], r["relevance_score"]) for r in answer["results"])]


def of_vectors(server):
    data = server.post("/v1/embeddings", input=DOCUMENTS + [QUERY])
    vectors = [d["embedding"] for d in data["data"]]
    want = [sum(a * b for a, b in zip(v, vectors[-1])) for v in vectors[:-1]]
    answer = server.post("/v1/rerank", query=QUERY, documents=DOCUMENTS)
    check(near(ranked(answer), want), "scores are cosines: %s" % want)
    check(answer["usage"]["prompt_tokens"] == data["usage"]["prompt_tokens"], "usage")
    data = server.post("/v1/score", text_1=[QUERY] * len(DOCUMENTS), text_2=DOCUMENTS)["data"]
    check(near([d["score"] for d in data], want), "pairs have the same scores")
    error = server.post("/v1/rerank", query=QUERY, documents=["a", "b " * 5000])["error"]
    check(error["param"] == "documents[1]", "a long document: %s" % error["message"])


def probability(server, prompt, yes, no):
    """Of yes, of the two, behind ids or a text."""
    logs = []
    for token in (yes, no):
        choice = server.post("/v1/completions", prompt=prompt, max_tokens=1, logprobs=0, temperature=0,
                             allowed_token_ids=[token])["choices"][0]
        logs.append(choice["logprobs"]["token_logprobs"][0])
    return 1 / (1 + math.exp(logs[1] - logs[0]))


def log_probability(server, prompt, token):
    choice = server.post("/v1/completions", prompt=prompt, max_tokens=1, logprobs=0, temperature=0, allowed_token_ids=[token])["choices"][0]
    return choice["logprobs"]["token_logprobs"][0]


def token_scores(server, labels):
    """SGLang's form of /v1/score, against what /v1/completions says of each token behind the same prompts."""
    items = [" Beijing", " Paris. Yes or no?", " 4"]
    for item_first in (False, True):
        logs = [[log_probability(server, item + QUERY if item_first else QUERY + item, t) for t in labels] for item in items]
        for softmax in (False, True):
            body = {"query": QUERY, "items": items, "label_token_ids": labels, "apply_softmax": softmax, "item_first": item_first}
            answer = server.post("/v1/score", **body)
            want = [[math.exp(v) for v in row] for row in logs]
            if softmax:
                want = [[v / sum(row) for v in row] for row in want]
            check(answer["object"] == "scoring" and all(near(g, w, 1e-5 if softmax else 1e-6) for g, w in zip(answer["scores"], want)),
                  "scores of tokens%s%s" % (", softmax" * softmax, ", items first" * item_first))
            check(len(answer["scores"]) == len(items) and answer["usage"]["prompt_tokens"] > len(items), "of all items")
    ids = [server.post("/tokenize", prompt=t)["tokens"] for t in [QUERY] + items]
    of_ids = server.post("/score", query=ids[0], items=ids[1:], label_token_ids=labels)
    want = [[math.exp(log_probability(server, ids[0] + i, t)) for t in labels] for i in ids[1:]]
    check(all(near(g, w, 1e-6) for g, w in zip(of_ids["scores"], want)), "ids in place of texts")
    one = server.post("/v1/score", query=QUERY, items=items[0], label_token_ids=labels[:1], apply_softmax=True)
    check(one["scores"] == [[1]], "one item, one token: %s" % one["scores"])
    many = server.post("/v1/score", query=QUERY, items=items * 100, label_token_ids=labels, apply_softmax=True)
    check(len(many["scores"]) == 300 and all(near(many["scores"][i], many["scores"][i % 3], 1e-5) for i in range(300)), "300 items")
    for field, body in (("label_token_ids", {"query": "a", "items": ["b"]}),
                        ("label_token_ids", {"query": "a", "items": ["b"], "label_token_ids": []}),
                        ("label_token_ids", {"query": "a", "items": ["b"], "label_token_ids": [1 << 24]}),
                        ("label_token_ids", {"query": "a", "items": ["b"], "label_token_ids": [1] * 2049}),
                        ("query", {"items": ["b"], "label_token_ids": [1]}),
                        ("items", {"query": "a", "label_token_ids": [1]}),
                        ("items", {"query": "a", "items": [[1]], "label_token_ids": [1]}),
                        ("items", {"query": [1], "items": ["a"], "label_token_ids": [1]}),
                        ("items[1]", {"query": "a", "items": ["b", "fox " * 5000], "label_token_ids": [1]})):
        error = server.post("/v1/score", **body)["error"]
        check(error["param"] == field, "%s: %s" % (field, error["message"]))


def words(server):
    ids = [server.post("/tokenize", prompt=word, add_special_tokens=False)["tokens"] for word in ("yes", "no")]
    check([len(i) for i in ids] == [1, 1], "yes and no are tokens: %s" % ids)
    return ids[0][0], ids[1][0]


with tempfile.TemporaryDirectory() as name, Server(MODEL) as answers:
    yes_id, no_id = words(answers)
    token_scores(answers, [yes_id, no_id, yes_id + 7])
    reply = answers.post("/v1/rerank", query="a", documents=["b"])
    check("makes embeddings or ranks documents" in reply["error"]["message"], "a model that answers refuses")
    wants = {}
    for frame, texts in ((QWEN, lambda d: (USUAL, QUERY, d)), ("<|im_start|>%s<|im_end|>%s<|im_start|>assistant\n", lambda d: (QUERY, d))):
        wants[frame] = [probability(answers, frame % texts(d), yes_id, no_id) for d in DOCUMENTS]
    for i, (frame, want) in enumerate(wants.items()):
        folder = Path(name) / ("reranker%d" % i)
        write_reranker(folder, yes_id, no_id, TEMPLATE if i else None)
        with Server(folder) as s:
            check(near(ranked(s.post("/v1/rerank", query=QUERY, documents=DOCUMENTS)), want),
                  "yes against no, %s: %s" % ("by the template" if i else "in Qwen's prompt", want))
            counts = [s.post("/v1/rerank", query=QUERY, documents=[d])["usage"]["prompt_tokens"] for d in ("<|im_end|>", "a")]
            check(counts[0] > counts[1] + 3, "a special token that a document spells is text: %s" % counts)
            check("ranks documents" in s.post("/v1/embeddings", input="a")["error"]["message"], "vectors are refused")
with Server(MODEL, "--is-embedding") as s:
    of_vectors(s)
