#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""doc_tables.py [--write]: the tables of figures in README.md, docs/gpu.md and docs/packed-weights.md are what bench/results has.

A table stands between `<!-- figures: NAME -->` and `<!-- end of figures -->`. A figure is the newest row of its
section; the peer's is the one that scripts/gpu_results.py compares with. With --write the pages are changed, else a
page that is not current is an error.
"""
import csv
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import gpu_results  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
CARDS = {"NVIDIA H200": "H200", "NVIDIA H100 80GB HBM3": "H100"}


def number(value):
    """1,003 or 24.2: three or more digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cpu():
    """minisgl beside llama.cpp on one CPU, one row a figure of bench/results/cpu-xeon-amx-2t.csv."""
    rows = {(r["figure"], r["variant"]): r for r in csv.DictReader(open(RESULTS / "cpu-xeon-amx-2t.csv", newline=""))}
    shown = (("prefill of 512 tokens, tok/s", "prefill", "512"),
             ("decode, 1 answer, tok/s", "decode", "batch 1"),
             ("decode, 8 answers, tok/s", "decode", "batch 8"),
             ("decode, 16 answers, tok/s", "decode", "batch 16"),
             ("served to 8 clients (127 in, 64 out), tok/s", "serve", "output_tok_per_s"),
             ("the same: first token p50, ms", "serve", "ttft_p50_ms"),
             ("the same: longest gap, ms", "serve", "itl_max_ms"),
             ("resident when ready, MB", "serve", "rss_mb"))
    yield "| | minisgl | llama.cpp | ratio | share of the machine's limit |"
    yield "|---|---|---|---|---|"
    for label, figure, variant in shown:
        r = rows[figure, variant]
        share = f"{100 * float(r['share']):.0f} %" if r["share"] else ""
        yield (f"| {label} | {number(float(r['minisgl']))} | {number(float(r['llama_cpp']))} | "
               f"{float(r['ratio']):.1f}x | {share} |")


def quantised():
    """Quantised files beside llama.cpp on one CPU, a row a file."""
    rows = {(r["file"], r["figure"], r["variant"]): r
            for r in csv.DictReader(open(RESULTS / "cpu-quantised-xeon-amx-2t.csv", newline=""))}
    shown = (("decode", "batch 1"), ("decode", "batch 8"), ("decode", "batch 16"), ("prefill", "512"),
             ("serve", "output_tok_per_s"))
    yield "| file | " + " | ".join(("decode 1", "decode 8", "decode 16", "prompt of 512", "8 clients")) + " |"
    yield "|---" * (len(shown) + 1) + "|"

    def cell(r):
        return f"{number(float(r['minisgl']))} ({float(r['ratio']):.2f}x)" if r else ""

    for file in dict.fromkeys(name for name, *_ in rows):
        cells = [cell(rows.get((file, *what))) for what in shown]
        if any(cells):
            yield f"| {file} | " + " | ".join(cells) + " |"


def kept():
    """Forms that a weight keeps, on one CPU: bf16's time in multiples of theirs, and what they lose, at two levels."""
    rows = list(csv.DictReader(open(RESULTS / "kept-forms-xeon-amx-2t.csv", newline="")))
    levels = list(dict.fromkeys(r["level"] for r in rows))
    counts = [key[5:] for key in rows[0] if key.startswith("rows_")]
    yield ("| form | " + " | ".join(f"{level}: {', '.join(counts)} rows" for level in levels) + " | " +
           " | ".join(f"KL, {level}" for level in levels) + " |")
    yield "|---" * (2 * len(levels) + 1) + "|"
    for form in dict.fromkeys(r["form"] for r in rows):
        own = {r["level"]: r for r in rows if r["form"] == form}
        speeds = [", ".join(own[x]["rows_" + n] or "-" for n in counts) for x in levels]
        losses = [own[x]["kl"] and f"{float(own[x]['kl']):.1e}" for x in levels]
        yield f"| {form} | " + " | ".join(speeds + losses) + " |"


def newest(rows):
    """{(figure, variant): row} of the last rows of each."""
    found = {}
    for r in rows:
        key = r["figure"], r["variant"]
        if key not in found or found[key]["date"] <= r["date"]:
            found[key] = r
    return found


def gpu():
    """One H200 beside the better peer."""
    rows = newest(gpu_results.read(RESULTS / "h200.csv"))
    shown = [("14B served to {} clients, tok/s", "serve", "14B {} clients, tok/s", (8, 64, 256)),
             ("the same: first token p50, ms", "serve", "14B {} clients, first token p50", (8, 64, 256)),
             ("0.6B decode step, {} answers, ms", "decode step", "0.6B bs={}", (1, 8, 64, 256)),
             ("14B decode step, {} answers, ms", "decode step", "14B bs={}", (1, 8, 64, 256)),
             ("30B-A3B decode step, {} answers, ms", "decode step", "30B-A3B bs={}", (1, 8, 64, 256)),
             ("prompts of 16 x 1,024 tokens, {}, tok/s", "prefill, median of 3", "{} 16x1024",
              ("0.6B", "14B", "30B-A3B")),
             ("0.6B: 128 tokens to the first one, ms", "first token", "0.6B 1x128", ("",)),
             ("0.6B: start to ready, s", "start to ready", "0.6B", ("",))]
    commits = set()
    yield "| | minisgl | better peer |"
    yield "|---|---|---|"
    for label, figure, variant, of in shown:
        keys = [(figure, variant.format(v)) for v in of]
        peers = [gpu_results.ASKED[k][1] for k in keys]
        commits.update(rows[k]["commit"] for k in keys)
        yield (f"| {label.format(' / '.join(map(str, of)))} | "
               f"{' / '.join(number(float(rows[k]['value'])) for k in keys)} | {' / '.join(map(number, peers))} |")
    yield ""
    yield f"Commits: {', '.join(sorted(commits))}."


def packed():
    """Packed weights on one H200, in times the speed of bf16 ones in the same run: scripts/gpu-check quant_*."""
    rows = newest(gpu_results.read(RESULTS / "h200.csv"))
    commits = set()

    def cell(variants):
        found = [rows.get(v) for v in variants]
        commits.update(r["commit"] for r in found if r)
        return ", ".join(f"{float(r['value']):.2f}" if r else "-" for r in found) if any(found) else ""

    def shares(form):
        keys = [("quant decode", f"{form} bs={n}") for n in (1, 64)]
        ms = [rows.get(("quant decode, ms_per_step", v)) for _, v in keys]
        return [f"{float(m['value']):.3g} ms ({float(rows[k]['value']):.0%})" for k, m in zip(keys, ms) if m]

    yield "| | decode 1, 8, 64, 256 | prompts of 16 x 1,024 | 8, 64, 256 clients |"
    yield "|---|---|---|---|"
    for shape, forms in (("14B", ("int4", "int4 gptq", "int4 g32", "fp8 blocks", "fp8 channel", "fp8 tensor", "int8", "w8a8")),
                         ("30B-A3B", ("int4", "fp8"))):
        for form in forms:
            decode = cell([("quant decode", f"{shape} {form} bs={n}") for n in (1, 8, 64, 256)])
            prompts = cell([("quant prefill", f"{shape} {form} 16x1024")])
            clients = [("quant serve", f"{shape} fp8 {n} clients") for n in (8, 64, 256)]
            yield f"| {shape}, {form} | {decode} | {prompts} | {cell(clients) if form == 'fp8 blocks' else ''} |"
    yield ""
    yield "Steps of one answer, and of 64, as a share of what reading the card's memory has reached: " + "; ".join(
        f"{form} {', '.join(shares(form))}" for form in ("gpt-oss-20b mxfp4", "8B Q4_K_M", "8B Q6_K", "8B Q8_0")) + "."
    prompts = [f"{form} {cell([('quant prefill', f'8B {form} 1x2048')])}" for form in ("Q4_K_M", "Q6_K", "Q8_0")]
    yield f"A prompt of 2,048 of 8B, in times bf16's speed: {', '.join(prompts)}."
    yield f"Commits: {', '.join(sorted(commits))}."


def runs():
    """What has run on which GPUs: the newest day of each section of scripts/gpu-check, a row a machine."""
    yield "| GPU (compute capability 9.0) | sections of `scripts/gpu-check`, with their last day and commit |"
    yield "|---|---|"
    for path in sorted(RESULTS.glob("h[0-9]*.csv")):
        last = {}
        for r in gpu_results.read(path):
            last[r["section"]] = (r["date"][:10], r["commit"], CARDS[r["machine"]])
        count = path.stem.partition("-x")[2] or "1"
        card = next(iter(last.values()))[2]
        cells = ", ".join(f"{s} ({day}, {commit})" for s, (day, commit, _) in sorted(last.items()))
        yield f"| {count} x {card} | {cells} |"


TABLES = {"cpu": cpu, "quantised": quantised, "kept": kept, "gpu": gpu, "packed": packed, "runs": runs}


def main():
    write = sys.argv[1:] == ["--write"]
    if sys.argv[1:] and not write:
        sys.exit(__doc__)
    stale = False
    for page in (ROOT / "README.md", ROOT / "docs" / "gpu.md", ROOT / "docs" / "packed-weights.md"):
        text = page.read_text()
        new = re.sub(r"(<!-- figures: (\w+) -->\n).*?(?=<!-- end of figures -->)",
                     lambda m: m[1] + "\n".join(TABLES[m[2]]()) + "\n", text, flags=re.S)
        if new == text:
            continue
        if write:
            page.write_text(new)
        else:
            stale = True
            print(f"{page.relative_to(ROOT)}: its figures are not those of bench/results: scripts/doc_tables.py --write")
    sys.exit(stale)


main()
