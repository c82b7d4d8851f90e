#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/speculation.svg: what drafts bring by their acceptance, of the figures that scripts/gpu-check drafts has measured.

usage: tools/draw_speculation.py [CSV] >docs/speculation.svg     (default: bench/results/h200.csv, its last commit with drafts)
"""
import csv
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURE = "drafts, tok/s in times those without"
CURVES = [  # (what, batch size), colour, dashes
    (("14B, 4 free", "1"), "#1b6ca8", ""), (("14B, 4 free", "8"), "#1b6ca8", "6 3"),
    (("14B, 4 free", "32"), "#1b6ca8", "2 3"), (("14B int4, 4 free", "1"), "#c2571a", ""),
    (("14B int4, 4 free", "8"), "#c2571a", "6 3"), (("14B, head's chain of 4", "1"), "#3a7d44", ""),
    (("14B, head's chain of 4", "8"), "#3a7d44", "6 3")]
LEFT, TOP, WIDTH, HEIGHT, MOST = 46, 16, 420, 300, 4.0


def points(path):
    """{(what, batch size): {acceptance: times}} of the last commit in the file that has such figures."""
    with open(path, newline="") as f:
        rows = [r for r in csv.DictReader(f) if r["figure"] == FIGURE]
    if not rows:
        sys.exit(f"{path}: no figure \"{FIGURE}\"; scripts/gpu-check drafts measures it")
    out = {}
    for r in rows:
        m = re.fullmatch(r"(.*), at ([0-9.]+) bs=(\d+)", r["variant"])
        if m and r["commit"] == rows[-1]["commit"]:
            out.setdefault((m[1], m[3]), {})[float(m[2])] = float(r["value"])
    return out, rows[-1]


def at(acceptance, times):
    return f"{LEFT + acceptance * WIDTH:.1f},{TOP + HEIGHT * (1 - min(times, MOST) / MOST):.1f}"


def main():
    measured, row = points(sys.argv[1] if len(sys.argv) > 1 else ROOT / "bench/results/h200.csv")
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {TOP + HEIGHT + 44}" font-family="sans-serif" font-size="12">')
    print('<rect width="100%" height="100%" fill="#fff"/>')
    for times in range(5):
        y = TOP + HEIGHT * (1 - times / MOST)
        print(f'<path d="M{LEFT} {y}h{WIDTH}" stroke="{"#888" if times == 1 else "#ddd"}"/>'
              f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{times}x</text>')
    for tenth in range(0, 10, 2):
        x = LEFT + tenth / 10 * WIDTH
        print(f'<text x="{x}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{tenth / 10:g}</text>')
    print(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle">acceptance of a draft, set; '
          f'{row["machine"]}, {row["commit"]}</text>')
    for i, (key, colour, dashes) in enumerate(CURVES):
        line = " ".join(at(a, t) for a, t in sorted(measured.get(key, {}).items()))
        style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        print(f'<polyline points="{line}" fill="none" {style}/>')
        y = TOP + 12 + 22 * i
        print(f'<path d="M{LEFT + WIDTH + 16} {y}h28" {style}/><text x="{LEFT + WIDTH + 52}" y="{y + 4}">'
              f'{key[0]}, {key[1]} at once</text>')
    print("</svg>")


main()
