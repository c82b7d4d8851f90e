# SPDX-License-Identifier: Apache-2.0
"""What scripts/gpu-check has measured: one CSV file, and what is read from it.

A section of gpu-check that ran is one group of rows: those with the same machine, commit and section. Its
figures come with a last row, figure `section`, whose value is the seconds it took and whose state is `green` or
says what failed. A group is replaced as a whole, by a later run of the same section, so a state always
belongs to the rows beside it.
"""
import csv

HEADER = ["machine", "commit", "date", "section", "figure", "variant", "value", "unit", "state"]
GREEN = "green"

# figure, variant: what is asked, the better peer (None: not measured), and which way is better.
HIGHER, LOWER = 1, -1
ASKED = {
    ("offline", "0.6B"): (28000, 23310, HIGHER),
    ("offline", "14B"): (6600, 6047, HIGHER),
    ("offline", "30B-A3B"): (6600, 5413, HIGHER),
    ("decode step", "0.6B bs=1"): (0.70, 1.63, LOWER),
    ("decode step", "0.6B bs=8"): (0.75, 1.57, LOWER),
    ("decode step", "0.6B bs=64"): (1.3, 2.29, LOWER),
    ("decode step", "0.6B bs=256"): (2.9, 4.23, LOWER),
    ("decode step", "14B bs=1"): (7.6, 8.47, LOWER),
    ("decode step", "14B bs=8"): (7.8, 8.73, LOWER),
    ("decode step", "14B bs=64"): (8.9, 10.07, LOWER),
    ("decode step", "14B bs=256"): (15.6, 17.3, LOWER),
    ("decode step", "30B-A3B bs=1"): (2.2, 4.30, LOWER),
    ("decode step", "30B-A3B bs=8"): (7.0, 9.29, LOWER),
    ("decode step", "30B-A3B bs=64"): (15.8, 18.2, LOWER),
    ("decode step", "30B-A3B bs=256"): (18.5, 22.4, LOWER),
    ("decode step", "V2-Lite bs=1"): (1.7, 3.49, LOWER),
    ("prefill, median of 3", "0.6B 16x1024"): (600e3, 430e3, HIGHER),
    ("prefill, median of 3", "14B 16x1024"): (25e3, 23.5e3, HIGHER),
    ("prefill, median of 3", "30B-A3B 16x1024"): (88e3, 72.4e3, HIGHER),
    ("prefill, median of 3", "V2-Lite 16x1024"): (120e3, 93.5e3, HIGHER),
    ("first token", "0.6B 1x128"): (2.0, 4.2, LOWER),
    # The peer's random weights send almost all tokens to the same experts, ours to all of them, unless collapsed.
    ("first token", "V2-Lite 1x128"): (9, None, LOWER),
    ("first token", "V2-Lite 1x128, collapsed"): (2.5, 7.7, LOWER),
    ("start to ready", "0.6B"): (3, 47, LOWER),
    ("start to ready", "V2-Lite"): (3, 110, LOWER),
    ("start to ready", "14B int4"): (2, None, LOWER),
}
for name, least in (("14B, 4 free, at 0.7 bs=1", 2.5), ("14B, 4 free, at 0.7 bs=8", 2.2),
                    ("14B int4, 4 free, at 0.7 bs=1", 2.2), ("14B int4, 4 free, at 0.7 bs=8", 1.7),
                    ("14B, head's chain of 4, at 0.7 bs=1", 2.0), ("14B, head's chain of 4, at 0.7 bs=8", 1.7),
                    ("14B, head's tree of 15, 3 deep, at 0.75 bs=1", 2.2),
                    ("14B, head's tree of 15, 5 deep, at 0.75 bs=1", 2.5),
                    ("Qwen3.5 9B, MTP 1, at 0.85 bs=1", 1.6), ("Qwen3.5 9B, MTP 1, at 0.85 bs=16", 1.4),
                    ("V2-Lite, MTP 1, at 0.85 bs=1", 1.2), ("V2-Lite, MTP 1, at 0.85 bs=16", 1.35)):
    ASKED["drafts, tok/s in times those without", name] = (least, None, HIGHER)
ASKED["drafts, a step in times one without", "14B, 7 free behind 8k, at 0 bs=1"] = (1.1, None, LOWER)
for name, at16, at128, peer16, peer128 in (
        ("1x4096 32/8", 540, 580, 539, 578), ("1x16384 32/8", 600, 640, 577, 636),
        ("4x4096 16/8", 500, 530, 447, 510), ("16x1024 16/8", 350, 370, 305, 323),
        ("64x256 16/8", 180, 190, 125, 132), ("1x1024 after 15360 32/8", 610, 655, 608, 655)):
    ASKED["prefill attention", f"fa {name} page=16"] = (at16, peer16, HIGHER)
    ASKED["prefill attention", f"fa {name} page=128"] = (at128, peer128, HIGHER)
for name, least, peer in (("1x8192 32/8", 1.6, 0.98), ("16x1024 32/8", 2.2, 1.62), ("64x1024 16/8", 3.3, 3.05),
                          ("256x1024 16/8", 3.95, 3.89), ("256x1024 40/8", 3.95, 3.82),
                          ("64x8192 32/8", 4.25, 4.27)):
    ASKED["decode attention", f"best of fa, fi {name} page=16"] = (least, peer, HIGHER)
for batch in (64, 256):
    ASKED["decode step, share of 4.2 TB/s", f"V2-Lite bs={batch}"] = (0.85, None, HIGHER)
# 16 q and k heads, 32 v heads of 128; the peer is vLLM 0.24's Triton kernels, of answers the recurrence alone.
for name, most, peer in (("prefill 1x4096", 300, 614), ("prefill 1x16384", 800, 1439), ("prefill 16x1024", 450, 1305),
                         ("prefill 64x256", 450, 1426), ("decode 1", 1.9, 1.9), ("decode 16", 17, 19.6),
                         ("decode 64", 66, 76.6), ("decode 256", 262, 270.3)):
    ASKED["linear attention", f"delta {name}"] = (most, peer, LOWER)
ASKED["FP8 cache, times bf16's speed", "fa 64x8192 32/8 page=16"] = (1.7, None, HIGHER)
# 512 tokens in, 256 out; the peer is vLLM 0.24 under the same load.
for clients, asked, peer in (
        (8, (1020, 110, 220, 7.5, 15), (864, 174, 213, 8.6, 9.4)),
        (64, (4900, 400, 1600, 12, 25), (3962, 841, 1457, 10.7, 22)),
        (256, (6600, 1000, 6500, 30, 65), (5865, 1456, 6011, 21, 364))):
    for what, way, least, theirs in zip(
            ("tok/s", "first token p50", "first token p99", "gap p50", "gap p99"),
            (HIGHER, LOWER, LOWER, LOWER, LOWER), asked, peer):
        ASKED["serve", f"14B {clients} clients, {what}"] = (least, theirs, way)
ASKED["serve", "14B 64 clients without max_tokens, share of the tok/s with it"] = (90, None, HIGHER)
# Packed weights, in times bf16's speed on the card, both in one run; or a share of the memory's speed.
for forms, asked in (
        ("14B int4", {1: 2.6, 8: 2.4, 64: 1.65, 256: 1.1}), ("14B int4 gptq", {1: 2.6, 8: 2.4, 64: 1.65, 256: 1.1}),
        ("14B int4 g32", {1: 2.35, 8: 2.2, 64: 1.55}), ("14B fp8 blocks", {1: 1.65, 8: 1.6, 64: 1.55, 256: 1.35}),
        ("14B fp8 channel", {1: 1.65, 8: 1.6, 64: 1.55, 256: 1.35}),
        ("14B fp8 tensor", {1: 1.65, 8: 1.6, 64: 1.55, 256: 1.35}), ("14B int8", {8: 1.6, 64: 1.3}),
        ("14B w8a8", {8: 1.6, 64: 1.3}), ("30B-A3B int4", {1: 1.7, 8: 2.2, 64: 2.3}),
        ("30B-A3B fp8", {1: 1.4, 8: 1.6, 64: 1.7}), ("gpt-oss-20b mxfp4", {1: 0.7, 64: 0.7}),
        ("8B Q4_K_M", {1: 0.75}), ("8B Q6_K", {1: 0.75}), ("8B Q8_0", {1: 0.75})):
    for batch, least in asked.items():
        ASKED["quant decode", f"{forms} bs={batch}"] = (least, None, HIGHER)
for forms, least in (("14B int4 16x1024", 1), ("14B int4 gptq 16x1024", 1), ("14B int4 g32 16x1024", 1),
                     ("14B fp8 blocks 16x1024", 1.5), ("14B fp8 channel 16x1024", 1.5),
                     ("14B fp8 tensor 16x1024", 1.5), ("30B-A3B fp8 16x1024", 1.4), ("8B Q4_K_M 1x2048", 0.9),
                     ("8B Q6_K 1x2048", 0.9), ("8B Q8_0 1x2048", 0.9)):
    ASKED["quant prefill", forms] = (least, None, HIGHER)
for clients, least in ((8, 1.45), (64, 1.35), (256, 1.35)):
    ASKED["quant serve", f"14B fp8 {clients} clients"] = (least, None, HIGHER)
# Two GPUs, against one of them in the same run.
for what, times in (("decode step, 14B bs=1, 2 GPUs", 1.7), ("decode step, 14B bs=64, 2 GPUs", 1.65),
                    ("decode step, 14B bs=256, 2 GPUs", 1.65), ("decode step, 32B, 1k before bs=64, 2 GPUs", 1.7),
                    ("prefill, 14B 16x1024 bs=16, 2 GPUs", 1.7), ("serve, 14B 256 clients, 2 GPUs", 1.6)):
    ASKED["times one GPU's speed", what] = (times, None, HIGHER)
for size, most in ((10240, 6), (655360, 9)):
    ASKED["all_reduce in a graph", f"{size} bytes on 2 ranks, peer memory"] = (most, None, LOWER)
ASKED["start to ready", "14B, 2 GPUs"] = (6, None, LOWER)
for clients in (8, 64, 256):
    ASKED["simulated, off by", f"14B {clients} clients, tok/s"] = (10, None, LOWER)
    ASKED["simulated, off by", f"14B {clients} clients, first token p50"] = (15, None, LOWER)


def met(figure, variant, value):
    """True, False, or None where nothing is asked."""
    if (figure, variant) not in ASKED:
        return None
    asked, _, way = ASKED[figure, variant]
    return (value - asked) * way >= 0


def number(v):
    if v is None:
        return ""
    return f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.4g}"


def read(path):
    if not path.exists():
        return []
    with open(path, newline="") as f:
        reader = csv.DictReader(f)
        if reader.fieldnames != HEADER:
            raise ValueError(f"{path}: the first line is {reader.fieldnames}, expected {HEADER}")
        return list(reader)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as f:
        w = csv.DictWriter(f, HEADER, lineterminator="\n")
        w.writeheader()
        w.writerows(rows)


def merge(rows, new):
    """Both, and of a section that is in both the one that ran later."""
    groups = {}
    for source in (rows, new):
        here = {}
        for row in source:
            here.setdefault((row["machine"], row["commit"], row["section"]), []).append(row)
        for key, group in here.items():
            if key not in groups or groups[key][0]["date"] <= group[0]["date"]:
                groups[key] = group
    return [row for group in groups.values() for row in group]


def of_commit(rows, commit):
    """Rows of a commit, named by any prefix of its hash that is as long as the recorded one or longer, or
    the other way round. A trailing + (a changed tree) is a commit of its own."""
    def same(recorded):
        return recorded.endswith("+") == commit.endswith("+") and (
            recorded.startswith(commit.rstrip("+")) or commit.startswith(recorded.rstrip("+")))
    return [r for r in rows if same(r["commit"])]


def status(rows, commit, sections):
    """Prints the state of each section at a commit, per machine; True if all are green on one machine."""
    rows = of_commit(rows, commit)
    green = False
    for machine in sorted({r["machine"] for r in rows}) or ["no machine"]:
        here = [r for r in rows if r["machine"] == machine]
        ends = {r["section"]: r for r in here if r["figure"] == "section"}
        print(f"{machine}, commit {commit}")
        for s in sections:
            end = ends.get(s)
            print(f"  {s:13} " + (f"{end['date']}  {float(end['value']):4.0f} s  {end['state']}" if end else "not run"))
        judged = [(r, met(r["figure"], r["variant"], float(r["value"]))) for r in here]
        missed = [r for r, is_met in judged if is_met is False]
        print(f"  {sum(is_met is True for _, is_met in judged)} figures met, {len(missed)} missed"
              + "".join(f"; {r['figure']}, {r['variant']}: {number(float(r['value']))}" for r in missed))
        all_green = all(s in ends and ends[s]["state"] == GREEN for s in sections)
        if all_green and (commit.endswith("+") or commit == "unknown"):
            print("  not green: nobody can say from which source this was built")
        else:
            print("  green" if all_green else "  not green")
            green = green or all_green
    return green


def table(rows, commits):
    """Prints the figures of one or more commits beside each other, per machine."""
    chosen = {c: of_commit(rows, c) for c in commits}
    for machine in sorted({r["machine"] for of in chosen.values() for r in of}):
        values, units = {}, {}
        for c, of in chosen.items():
            for r in of:
                if r["machine"] == machine and r["figure"] != "section":
                    key = (r["figure"], r["variant"])
                    values.setdefault(key, {})[c] = float(r["value"])
                    units[key] = r["unit"]
        print(f"\n{machine}\n\n| figure | variant | {' | '.join(commits)} | unit | asked | better peer | met |")
        print("|---|---|" + "---:|" * len(commits) + "---|---:|---:|---|")
        for (figure, variant), of in values.items():
            asked, peer, _ = ASKED.get((figure, variant), (None, None, None))
            last = [of[c] for c in commits if c in of][-1]
            judged = {None: "", True: "yes", False: "NO"}[met(figure, variant, last)]
            print(f"| {figure} | {variant} | {' | '.join(number(of.get(c)) for c in commits)} | {units[figure, variant]} | "
                  f"{number(asked)} | {number(peer)} | {judged} |")
