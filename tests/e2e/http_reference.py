#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The curl lines of docs/http.md, run as they stand there, from top to bottom, against `minisgl serve`: the status, the
type and the members of each answer are what the page says.

    http_reference.py MINISGL MODEL PAGE

Exits 77 (skipped) if there is no curl. FILE, BATCH and RESPONSE of the page are the ids of what was stored and begun.
"""
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from serving import Server

ADDRESS = "http://127.0.0.1:1919"
# Long enough that the batch has not ended when the page cancels it.
REQUESTS = [{"custom_id": "r%d" % i, "method": "POST", "url": "/v1/completions",
             "body": {"prompt": "Count: ", "max_tokens": 400, "ignore_eos": True}} for i in range(200)]
ANSWER = re.compile(r"Answer: (\d+), `([^`]*)`(?: with ((?:`\w+`(?:, )?)+))?(?:; its end has `(.*)`)?\.$")


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def examples(page):
    """(title of the endpoint, curl line, match of what its answer is) of each example."""
    title = line = None
    for text in open(page, encoding="utf-8"):
        text = text.rstrip("\n")
        if text.startswith("## "):
            check(line is None, "%s: no answer to %s" % (title, line))
            title = text[3:]
        elif text.startswith("    curl "):
            line = text.strip()
        elif text.startswith("Answer: "):
            says = ANSWER.match(text)
            check(line is not None and says is not None, "%s: %s" % (title, text))
            yield title, line, says
            line = None


def events(body):
    """The data of a stream's events that are JSON."""
    found = []
    for line in body.splitlines():
        check(line == "" or line.startswith(("data: ", "event: ", ":")), "not a stream: %r" % line)
        if line.startswith("data: {"):
            found.append(json.loads(line[6:]))
    return found


def run(line, base, variables, folder):
    line = line.replace(ADDRESS, base) + " -w '\\n%{http_code} %{content_type}' --max-time 120"
    out = subprocess.run(["sh", "-euc", line], cwd=folder, env=dict(os.environ, **variables), capture_output=True, timeout=180)
    check(out.returncode == 0, "curl ended with %d: %s" % (out.returncode, line))
    body, _, last = out.stdout.decode().rpartition("\n")
    status, _, kind = last.partition(" ")
    return body, status, kind


def check_answer(body, status, kind, says):
    names = re.findall(r"`(\w+)`", says.group(3) or "")
    check((status, kind) == says.group(1, 2), "%s %s: %.300s" % (status, kind, body))
    stream = kind == "text/event-stream"
    answer = None
    if stream:
        found = events(body)
        answer = found[0] if found else None
        check(says.group(4) in body.rstrip().splitlines()[-1], "the end of the stream: %r" % body[-200:])
    elif kind == "application/x-ndjson":
        lines = body.rstrip("\n").split("\n")
        answer = json.loads(lines[0])
        check(says.group(4) in lines[-1], "the end of the lines: %r" % lines[-1])
    elif kind == "application/json":
        answer = json.loads(body)
    check(all(name in answer for name in names), "%s of %.300s" % (names, body))
    return answer


def run_all(page, base, pools, labels, weights, folder):
    """pools, labels, weights: the bases of servers that make embeddings, that classify, and that make lexical weights, and answer nothing."""
    of_vectors = ("/v1/embeddings", "/api/embed", "/api/embeddings", "/rerank", "/score", "/pooling")
    variables, count, titles = {}, 0, set()
    for title, line, says in examples(page):
        try:
            server = pools if title.endswith(of_vectors) else labels if title.endswith("/classify") else base
            server = weights if title.endswith("/embed_sparse") else base if "label_token_ids" in line else server
            answer = check_answer(*run(line, server, variables, folder), says)
        except AssertionError as e:
            raise AssertionError("%s\n%s\n%s" % (title, line, e))
        made = {"/v1/files": "FILE", "/v1/batches": "BATCH", "/v1/responses": "RESPONSE"}.get(title.split(" ")[-1])
        if made and (" -d " in line or " -F " in line) and "id" in answer:
            variables[made] = answer["id"]
        count += 1
        titles.add(title)
    print("ok: %d lines of %d endpoints" % (count, len(titles)), flush=True)
    check(set(variables) == {"FILE", "BATCH", "RESPONSE"} and count > len(titles), "lines are missing: %s" % sorted(titles))


def main():
    if shutil.which("curl") is None:
        print("left out: there is no curl")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/requests.jsonl", "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in REQUESTS)
        os.mkdir(folder + "/batches")
        start = functools.partial(Server, *sys.argv[1:3])
        vectors = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../vectors/encoders/")
        with start("--batch-dir", folder + "/batches") as answers, start("--is-embedding") as pools, Server(
                sys.argv[1], vectors + "bert_classifier") as labels, Server(sys.argv[1], vectors + "bge_m3") as weights:
            run_all(os.path.abspath(sys.argv[3]), answers.url, pools.url, labels.url, weights.url, folder)


main()
