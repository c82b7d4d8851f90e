#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each form that a weight keeps costs on this CPU: time of a product beside bf16's, and loss.

usage: bench/kept_forms.py BUILD [--levels amx,avx512vnni] [--rounds 3] [--csv FILE]

Products are of one 2048 x 2048 weight after the other, more than caches hold, times 1, 8 and 512 rows, all forms and bf16 in
one run (`checkkern --bench`); the loss is that of tests/engine/test_kept_loss.c.
"""
import argparse
import csv
import datetime
import os
import pathlib
import re
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = (1, 8, 512)


def run(*argv, **env):
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, env={**os.environ, **env}).stdout


def times(build, level, threads):
    """{(form, rows): microseconds}"""
    out = run(build / "tests" / "kernel" / "checkkern", "--test=codes", "--bench", f"--cpu={level}",
              f"--threads={threads}")
    lines = re.findall(rf"^{level} +(\S+)_m(\d+) +([\d.]+) us", out, re.M)
    return {(form, int(m)): float(us) for form, m, us in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--levels", default="amx,avx512vnni")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-loss", action="store_true", help="leaves out what takes longest")
    parser.add_argument("--csv", type=pathlib.Path)
    args = parser.parse_args()
    losses = "" if args.no_loss else run(args.build / "tests" / "engine" / "test_kept_loss", MINISGL_TESTS="full")
    losses = {(form, level): kl for form, level, kl in re.findall(r"^(\w+),(\w+),([\d.e-]+),", losses, re.M)}
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())[1]
    commit = run("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    machine = [f"{cpu} x{args.threads}", commit, datetime.date.today().isoformat()]
    table = []
    for level in args.levels.split(","):
        rounds = [times(args.build, level, args.threads) for _ in range(args.rounds)]
        for form in dict.fromkeys(form for form, _ in rounds[0]):
            faster = [f'{statistics.median(r["bfloat16", m] / r[form, m] for r in rounds):.2f}'
                      if (form, m) in rounds[0] else "" for m in ROWS]
            table.append([form, level, *faster, losses.get((form, level), ""), *machine])
            print(" ".join(table[-1][:6]), flush=True)
    if args.csv:
        with open(args.csv, "w", newline="") as f:
            w = csv.writer(f, lineterminator="\n")
            w.writerow(["form", "level", *(f"rows_{m}" for m in ROWS), "kl", "machine", "commit", "date"])
            w.writerows(table)


if __name__ == "__main__":
    main()
