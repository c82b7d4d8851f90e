#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a step table for `minisgl simulate` from the figures that scripts/gpu-check keeps: the latest decode
steps and prefill rate of a model in bench/results/h200.csv.

    python3 tools/make_step_table.py bench/results/h200.csv 14B > bench/results/steps-h200-14b.jsonl

These are few: answers of 1 to 256 requests behind 128 to 383 tokens, and 16 prompts of 1,024 tokens in one
step. A step of few prompt tokens is taken to last as long as one of as many answers, since it does the same
products. A table with contexts, prefixes and mixed steps needs `minisgl bench step --grid -o json` on the GPU.
"""
import csv
import json
import re
import sys

CONTEXT = 256  # in the middle of the 256 steps behind a prompt of 128 that `minisgl bench decode` takes
TILE = 128     # of a GPU engine's runner


def main(path, model):
    steps, rate, prompts = {}, None, None
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            m = re.fullmatch(re.escape(model) + r" bs=(\d+)", row["variant"])
            if row["figure"] == "decode step" and m:
                steps[int(m[1])] = float(row["value"])
            m = re.fullmatch(re.escape(model) + r" (\d+)x(\d+)", row["variant"])
            if row["figure"] == "prefill, median of 3" and m:
                prompts, rate = (int(m[1]), int(m[2])), float(row["value"])
    if not steps or rate is None:
        sys.exit(f"{path}: no decode steps or no prefill of {model!r}")

    def write(phase, ms, batch=0, context=0, chunk=0, prefix=0):
        print(json.dumps({"phase": phase, "batch": batch, "context": context, "chunk": chunk, "prefix": prefix,
                          "tile": TILE, "ms_per_step": round(ms, 4)}, separators=(",", ":")))

    for batch, ms in sorted(steps.items()):
        write("decode", ms, batch=batch, context=CONTEXT)
    for batch, ms in sorted(steps.items()):
        write("prefill", ms, chunk=batch)
    tokens = prompts[0] * prompts[1]
    write("prefill", 1000 * tokens / rate, chunk=tokens)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
