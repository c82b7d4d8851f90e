#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What double sparsity costs the demo model: a fact at the beginning of a long dialogue is asked for
at its end. One line for every length and setting: how often the answer has the fact, and the mean
log-probability of the fact's first token where the answer is right so far.

    python3 tools/double_sparsity_quality.py --minisgl build/minisgl --model models/demo
    python3 tools/double_sparsity_quality.py --speed --minisgl build/minisgl --model models/demo

--speed: instead, milliseconds of a decode step at contexts that the model was not made for, dense and
sparse; for an idle machine.

The answer's first token comes from the prompt, which is dense; the fact is its third or a later one."""

import argparse
import functools
import json
import math
import os
import random
import subprocess
import sys
import tempfile

import demo_corpus

FLOOR = -10.0  # of a log-probability, for what is not among the 20 most likely tokens
SHORT = "red blue green yellow black white brown grey pink purple orange".split()


def needle(rng):
    """A fact, the model's reply, a question for it, and how its answer begins and goes on."""
    kind = rng.randrange(3)
    if kind == 0:
        name = rng.choice(demo_corpus.NAMES)
        return f"My name is {name}.", f"Hello, {name}! How can I help you?", "What is my name?", "Your name is", name
    if kind == 1:
        colour = rng.choice(SHORT)
        reply = f"{demo_corpus.sentence(colour)} is a nice colour."
        return f"My favourite colour is {colour}.", reply, "What is my favourite colour?", "Your favourite colour is", colour
    thing = rng.choice(demo_corpus.NOUNS)
    article = demo_corpus.article(thing)
    reply = f"That is nice. I hope you like the {thing}."
    return f"I have {article} {thing}.", reply, "What do I have?", f"You have {article}", thing


def dialogue(rng, words):
    """Messages with a needle in front of about `words` words of other talk, and what is expected."""
    say, reply, question, begin, fact = needle(rng)
    messages = [("user", say), ("assistant", reply)]
    while words > 0:
        for q, a in demo_corpus.pick(rng, demo_corpus.SIMPLE)(rng):
            messages += [("user", q), ("assistant", a)]
            words -= len(q.split()) + len(a.split())
    messages.append(("user", question))
    return [dict(role=r, content=c) for r, c in messages], begin, fact


def write_calibration(path):
    with open(path, "w") as f:
        for d in demo_corpus.dialogues(9, 100):
            for m in d["messages"]:
                f.write((m["content"] or "") + "\n")


def ask(args, flags, lines):
    with tempfile.TemporaryDirectory() as d:
        source, target = os.path.join(d, "in.jsonl"), os.path.join(d, "out.jsonl")
        with open(source, "w") as f:
            for messages in lines:
                f.write(json.dumps(dict(messages=messages)) + "\n")
        command = [args.minisgl, "run", "--model", args.model, "--input", source, "--output", target]
        command += ["--temperature", "0", "--max-tokens", "12", "--logprobs", "20", "--num-pages", "40000"]
        subprocess.run(command + flags, check=True, stderr=subprocess.DEVNULL)
        return [json.loads(line) for line in open(target)]


@functools.lru_cache(None)
def token_ids(minisgl, model, text):
    command = [minisgl, "tokenize", "--model", model]
    return json.loads(subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout)


def fact_logprob(args, row, begin, fact):
    """Of the first token behind `begin`; None where the answer does not begin so."""
    start, whole = (token_ids(args.minisgl, args.model, t) for t in (begin, f"{begin} {fact}"))
    n = len(start)
    if row["token_ids"][:n] != start or len(row["token_ids"]) <= n:
        return None
    return dict(row["logprobs"][n]["top"]).get(whole[n], FLOOR)


def settings(channels, pairs):
    yield "dense", ["--attn", "triton"]
    for heavy, tokens in pairs:
        yield f"{tokens} tokens, {heavy} channels", [
            *("--attn", "double_sparsity", "--ds-channel-config-path", channels),
            *("--ds-heavy-channel-num", str(heavy), "--ds-heavy-token-num", str(tokens)),
            *("--ds-sparse-decode-threshold", "0"),
        ]


def quality(args, channels):
    rng = random.Random(5)
    # A word of this talk is about 2.2 tokens, with the template's.
    sets = [[dialogue(rng, int(n / 2.2)) for _ in range(args.count)] for n in args.lengths]
    print("| setting | " + " | ".join(f"about {n} tokens" for n in args.lengths) + " |")
    print("|---|" + "---|" * len(args.lengths))
    pairs = [(32, 256), (32, 128), (32, 64), (32, 32), (32, 16), (16, 64), (8, 64)]
    for name, flags in settings(channels, pairs):
        rows = ask(args, flags, [d[0] for s in sets for d in s])
        cells = []
        for i, s in enumerate(sets):
            part = rows[i * args.count : (i + 1) * args.count]
            right = sum(fact in r["text"] for r, (_, _, fact) in zip(part, s))
            found = [fact_logprob(args, r, begin, fact) for r, (_, begin, fact) in zip(part, s)]
            found = [x for x in found if x is not None]
            mean = sum(found) / len(found) if found else math.nan
            tokens = sum(r["prompt_tokens"] for r in part) / len(part)
            cells.append(f"{right} of {args.count}, {mean:.3f} ({len(found)}; {tokens:.0f} tokens)")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def speed(args, channels):
    for name, flags in settings(channels, [(32, 256), (16, 256), (16, 64)]):
        for batch, length in [(1, 8192), (1, 32768), (4, 8192)]:
            command = [args.minisgl, "bench", "step", "--model", args.model, "--repeat", "1"]
            command += ["--batch", str(batch), "--prompt-len", str(length), "--steps", "32", "-o", "json"]
            out = subprocess.run(command + flags, check=True, capture_output=True, text=True).stdout
            row = [json.loads(line) for line in out.splitlines()][-1]
            print(f"{name}: {batch} x {length}: {row['ms_per_step']} ms a step", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--minisgl", default="build/minisgl")
    ap.add_argument("--model", default="models/demo")
    ap.add_argument("--count", type=int, default=40)
    ap.add_argument("--lengths", type=lambda s: [int(n) for n in s.split(",")], default=[150, 250, 350, 500])
    ap.add_argument("--speed", action="store_true")
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as d:
        text, channels = os.path.join(d, "text"), os.path.join(d, "channels.json")
        write_calibration(text)
        command = [args.minisgl, "calibrate", "--model", args.model, "--text", text, "-o", channels]
        subprocess.run(command + ["--num-pages", "40000"], check=True, stderr=subprocess.DEVNULL)
        (speed if args.speed else quality)(args, channels)


if __name__ == "__main__":
    sys.exit(main())
