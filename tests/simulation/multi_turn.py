# SPDX-License-Identifier: Apache-2.0
"""multi_turn.py MINISGL SOURCE: conversations of eight turns on four replicas, by the tools that make traces and
step tables: going where the prefix is cached has to give 1.5 times what going round does."""
import json
import os
import subprocess
import sys
import tempfile

minisgl, source = sys.argv[1:]


def tool(folder, name, out, *args):
    path = os.path.join(folder, out)
    with open(path, "wb") as f:
        subprocess.run([sys.executable, os.path.join(source, "tools", name), *args], stdout=f, check=True)
    return path


def simulate(steps, trace, policy):
    command = [minisgl, "simulate", "--step-table", steps, "--trace", trace, "--num-pages", "9375", "--page-size", "64",
               "--replicas", "4", "--load-balance-method", policy, "-o", "json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


with tempfile.TemporaryDirectory() as folder:
    steps = tool(folder, "make_step_table.py", "steps.jsonl", os.path.join(source, "bench/results/h200.csv"), "14B")
    trace = tool(folder, "make_trace.py", "trace.jsonl", "--conversations", "64", "--turns", "8", "--input", "512",
                 "--output", "64", "--rate", "50")
    cached, around = simulate(steps, trace, "cache_aware"), simulate(steps, trace, "round_robin")

for r in cached, around:
    assert (r["requests"], r["failed"], r["output_tokens"]) == (512, 0, 512 * 64), r
    # Each turn's prompt: 512 new tokens, and 576 for each turn before.
    assert r["prompt_tokens"] == 64 * sum(512 + 576 * turn for turn in range(8)), r
ratio = cached["output_tok_per_s"] / around["output_tok_per_s"]
print(f"cache_aware gives {ratio:.2f} times round_robin's tokens, and finds {cached['cache_hit_pct']} % in caches")
assert ratio >= 1.5, ratio
# All of the turn before is found, in whole pages of 64, where it was not moved.
assert 70 < cached["cache_hit_pct"] <= 77.5, cached
