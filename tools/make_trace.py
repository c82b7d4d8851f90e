#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a trace for `minisgl simulate` (docs/simulation.md): conversations that begin at random times
(a Poisson process) and whose next turn comes some time after the last answer (exponential).

    python3 tools/make_trace.py --conversations 64 --turns 8 --input 512 --output 64 > multi_turn.jsonl
"""
import argparse
import json
import random
import sys

BLOCK = 512  # tokens of a hash id, as `minisgl simulate --trace-block` takes them by default


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--conversations", type=int, default=64)
    p.add_argument("--turns", type=int, default=8, help="requests of each conversation")
    p.add_argument("--input", type=int, default=512, help="new tokens of a turn")
    p.add_argument("--output", type=int, default=64, help="tokens of an answer")
    p.add_argument("--rate", type=float, default=0, help="conversations that begin in a second; 0: all at once")
    p.add_argument("--delay", type=float, default=0, help="mean seconds from an answer to the next turn")
    p.add_argument("--system", type=int, default=0,
                   help=f"blocks of {BLOCK} tokens that all conversations begin with, before --input")
    p.add_argument("--acceptance", type=float, default=0,
                   help="probability that a draft is right which stands behind right ones; 0: left to the command")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    rng = random.Random(a.seed)
    start, out = 0.0, sys.stdout
    for c in range(a.conversations):
        if a.rate > 0:
            start += rng.expovariate(a.rate)
        for turn in range(a.turns):
            line = {"input_length": a.input, "output_length": a.output}
            if a.acceptance > 0:
                line["acceptance"] = a.acceptance
            if turn == 0:
                line["timestamp"] = round(1000 * start, 3)
                if a.system > 0:
                    line["input_length"] += BLOCK * a.system
                    line["hash_ids"] = list(range(a.system))
            elif a.delay > 0:
                line["delay"] = round(1000 * rng.expovariate(1 / a.delay), 3)
            if a.turns > 1:
                line["session_id"] = c
            out.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
