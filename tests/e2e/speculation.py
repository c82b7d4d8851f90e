#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers with drafts are those without, in bytes, over HTTP, many at once, on one process and on two ranks.

    speculation.py MINISGL MODEL STATES

STATES: a model with recurrent layers, of 128 tokens.
"""
import concurrent.futures
import json
import sys
import time

import serving
from serving import check

PROGRAM, MODEL, STATES = sys.argv[1:]
EDIT = "Repeat: one two three four five six seven eight nine ten. one two three four five"
NAMES = {"type": "object", "properties": {"all": {"type": "array", "minItems": 6, "maxItems": 6, "items": {
    "type": "object", "properties": {"first_name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "maximum": 9, "minimum": 0}},
    "required": ["first_name", "age"]}}}, "required": ["all"]}
ASKED = [
    {"prompt": EDIT, "temperature": 0, "ignore_eos": True},
    {"prompt": EDIT, "temperature": 0, "ignore_eos": True, "logprobs": 2},
    {"prompt": "What is 27 + 58? " * 4, "temperature": 0, "ignore_eos": True, "stop": ["85."]},
    {"prompt": EDIT, "temperature": 0.7, "seed": 5, "ignore_eos": True},
    {"prompt": "What is 27 + 58? " * 4, "temperature": 1, "seed": 6, "n": 3, "frequency_penalty": 0.3},
    {"prompt": EDIT, "temperature": 0, "ignore_eos": True, "bad_words": [" two", "seven"], "min_tokens": 20},
    {"prompt": EDIT, "temperature": 0, "response_format": {"type": "json_object"}},
    {"prompt": EDIT, "temperature": 0, "ignore_eos": True, "cache_salt": "x"},
    {"prompt": "Six people: ", "temperature": 0, "guided_json": NAMES, "max_tokens": 300},
    {"prompt": "Six people: ", "temperature": 1, "seed": 3, "logprobs": 1, "guided_json": NAMES, "max_tokens": 300},
]
# Weights at random repeat nothing by themselves.
PIECES = [{"prompt": "one two " * (1 + i % 3), "max_tokens": 90, "temperature": i % 2, "seed": i, "logprobs": i % 4,
           "guided_regex": "(one|two|four|eleven)( (one|two|four|eleven)){9,30}"} for i in range(8)]


def answers(*options, model=MODEL, asked=ASKED):
    """What is said to all at once, then one by one; and what usage says of drafts."""
    with serving.Server(PROGRAM, model, *options) as s:
        def ask(body):
            return json.loads(s.call("/v1/completions", {"max_tokens": 100, **body})[1])
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            all_of = list(pool.map(ask, asked))
        all_of += [ask(body) for body in asked]
        details = [a["usage"].get("completion_tokens_details", {}) for a in all_of]
        if options[:1] == ("--speculative-algorithm",) and "--speculative-draft-model-path" not in options:
            # How many of one answer are made depends on the machine.
            guided = [d for body, d in zip(asked, details[-len(asked):]) if any(key.startswith("guided") for key in body)]
            right = sum(d.get("accepted_prediction_tokens", 0) for d in guided)
            check(right > 20, "%d drafts under grammars were right" % right)
        without = ask({**asked[0], "speculative": False})["usage"]
        check("completion_tokens_details" not in without, "none where a request wants none")
        time.sleep(1.5)  # until the engine's next report
        text = s.call("/metrics")[1]
        drafted = sum(float(line.split()[-1]) for line in text.splitlines()
                      if line.startswith("minisgl_drafted_tokens_total"))
        return [a["choices"] for a in all_of], details, drafted


def compare(plain, *options, **which):
    name = " ".join(map(str, options))
    got, details, drafted = answers("--speculative-algorithm", *options, **which)
    check(got == plain, "%s: choices are the same" % name)
    if "--speculative-draft-model-path" in options:
        return  # whether it pays beside a model as small as this depends on the machine
    accepted = sum(d.get("accepted_prediction_tokens", 0) for d in details)
    wrong = sum(d.get("rejected_prediction_tokens", 0) for d in details)
    check(accepted > 50, "%d drafts were right, and %d wrong" % (accepted, wrong))
    check(drafted >= accepted + wrong, "/metrics counts them: %d" % drafted)  # and those behind an answer's end


alone, details, drafted = answers()
check(not any(details) and drafted == 0, "without the option there are no drafts")
compare(alone, "SUFFIX")
compare(alone, "STANDALONE", "--speculative-draft-model-path", MODEL)
compare(alone, "EAGLE3", "--speculative-draft-model-path", MODEL + "-eagle3")
compare(alone, "NEXTN", "--speculative-draft-model-path", MODEL + "-mtp")
compare(alone, "NGRAM", "--speculative-num-draft-tokens", 4, "--disable-overlap-scheduling")
two_ranks, _, _ = answers("--tp-size", 2)
compare(two_ranks, "auto", "--tp-size", 2)
compare(two_ranks, "STANDALONE", "--speculative-draft-model-path", MODEL, "--tp-size", 2)
compare(two_ranks, "EAGLE3", "--speculative-draft-model-path", MODEL + "-eagle3", "--tp-size", 2)
compare(two_ranks, "NEXTN", "--speculative-draft-model-path", MODEL + "-mtp", "--tp-size", 2)
states = {"model": STATES, "asked": PIECES}
alone, details, drafted = answers("--memory-ratio", "0.01", **states)
compare(alone, "SUFFIX", "--memory-ratio", "0.01", **states)
two_ranks, _, _ = answers("--tp-size", 2, **states)
compare(two_ranks, "NGRAM", "--tp-size", 2, **states)
