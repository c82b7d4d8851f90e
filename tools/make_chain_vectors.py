#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/sampling/chain.json: tokens chosen by llama.cpp's further samplers.

    python3 tools/make_chain_vectors.py tests/vectors/sampling

Each sampler is written from its definition in docs/sampling.md, over lists in f64, with nothing of
minisgl's way of computing it: distributions are sorted and renormalised at every step, DRY compares
every suffix with every other. Needs Python's standard library alone.
"""

import json
import math
import random
import struct
import sys
from pathlib import Path

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
SEEDS = 40

OFF = dict(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    frequency_penalty=0.0,
    presence_penalty=0.0,
    typical_p=1.0,
    xtc_probability=0.0,
    xtc_threshold=0.1,
    top_n_sigma=-1.0,
    dynatemp_range=0.0,
    dynatemp_exponent=1.0,
    dry_multiplier=0.0,
    dry_base=1.75,
    dry_allowed_length=2,
    dry_penalty_last_n=-1,
    mirostat=0,
    mirostat_tau=5.0,
    mirostat_eta=0.1,
)

# `ties`: logits are multiples of 1/2; `history`: a text whose letters are the tokens.
CASES = [
    dict(typical_p=0.3),
    dict(typical_p=0.9),
    dict(typical_p=0.5, ties=True),
    dict(typical_p=0.2, ties=True, top_k=9),
    dict(typical_p=0.7, temperature=0.6, top_p=0.8),
    dict(typical_p=0.6, temperature=1.8, min_p=0.05),
    dict(typical_p=1e-6),
    dict(xtc_probability=1.0, xtc_threshold=0.05),
    dict(xtc_probability=0.5, xtc_threshold=0.1, temperature=0.8),
    dict(xtc_probability=1.0, xtc_threshold=0.04, ties=True),
    dict(xtc_probability=1.0, xtc_threshold=0.5),
    dict(xtc_probability=1.0, xtc_threshold=0.0, top_k=6),
    dict(xtc_probability=0.7, xtc_threshold=0.1, top_k=8, top_p=0.9, min_p=0.02),
    dict(top_n_sigma=1.0),
    dict(top_n_sigma=2.0, temperature=2.5),
    dict(top_n_sigma=1.5, ties=True, top_k=20),
    dict(two=True, top_n_sigma=2.0),
    dict(two=True, top_n_sigma=1.9),
    dict(dynatemp_range=0.5),
    dict(dynatemp_range=0.9, dynatemp_exponent=2.0, temperature=0.7),
    dict(dynatemp_range=3.0, dynatemp_exponent=0.5, temperature=1.0, top_p=0.9),
    dict(mirostat=2),
    dict(mirostat=2, mirostat_tau=2.0, mirostat_eta=0.3, mu=2.5),
    dict(mirostat=2, mirostat_tau=1.0, mirostat_eta=0.3, mu=-4.0),
    dict(mirostat=2, mirostat_tau=3.0, temperature=0.7, top_k=2, typical_p=0.1, ties=True),
    dict(temperature=0.0, typical_p=0.3, xtc_probability=1.0, mirostat=2),
    dict(dry_multiplier=0.8, history="abccbcyabc"),
    dict(dry_multiplier=2.0, dry_allowed_length=1, history="abccbcyabc"),
    dict(dry_multiplier=2.0, dry_allowed_length=1, history="abccbcyabc", breakers="b"),
    dict(dry_multiplier=2.0, dry_allowed_length=1, history="abccbcyabc", breakers="cz"),
    dict(dry_multiplier=2.0, dry_allowed_length=2, history="xabcdabcdab", breakers="c"),
    dict(dry_multiplier=0.5, dry_allowed_length=0, history="abccbcyabc"),
    dict(dry_multiplier=0.7, dry_base=1.0, history="aaaaaaaaaaaa"),
    dict(dry_multiplier=0.7, dry_base=1.2, history="a" * 90),
    dict(dry_multiplier=1.5, dry_penalty_last_n=6, history="abcdeabcdxabcabcd"),
    dict(dry_multiplier=1.5, dry_penalty_last_n=0, history="abcabcabc"),
    dict(dry_multiplier=1.5, history="ab"),
    dict(
        dry_multiplier=1.1,
        dry_allowed_length=1,
        history="abcdabceabcfabc",
        repetition_penalty=1.4,
        frequency_penalty=0.4,
        presence_penalty=0.3,
        temperature=0.8,
        top_k=20,
        typical_p=0.95,
        top_p=0.97,
        min_p=0.001,
        xtc_probability=0.5,
        top_n_sigma=2.5,
        dynatemp_range=0.3,
    ),
    dict(dry_multiplier=1.0, dry_allowed_length=1, history="abcabdabeab", mirostat=2, mirostat_tau=3),
]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def mix(x):
    z = (x + STEP) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def uniform(seed, position, which):
    z = mix((seed + STEP * position) & MASK)
    z = z ^ MASK if which else z
    return (((mix(z) + STEP) & MASK) >> 11) / 2.0**53


def softmax(logits):
    top = max(logits.values())
    e = {t: math.exp(l - top) for t, l in logits.items()}
    total = math.fsum(e.values())
    return {t: v / total for t, v in e.items()}


def entropy(p):
    return -math.fsum(v * math.log(v) for v in p.values() if v > 0)


def ranked(p):
    return sorted(p, key=lambda t: (-p[t], t))


def prefix(order, p, share, beyond):
    kept, mass = [], 0.0
    for t in order:
        kept.append(t)
        mass += p[t]
        if mass > share + 1e-12 or (not beyond and mass >= share - 1e-12):
            break
    return kept


def penalised(logits, s, prompt, answer):
    out = list(logits)
    for t in set(prompt + answer):
        out[t] = out[t] / f32(s["repetition_penalty"]) if out[t] > 0 else out[t] * f32(s["repetition_penalty"])
    for t in set(answer):
        out[t] -= f32(s["frequency_penalty"]) * answer.count(t) + f32(s["presence_penalty"])
    return out


def dry(logits, s, history, breakers):
    last = s["dry_penalty_last_n"]
    h = history if last < 0 else history[len(history) - min(last, len(history)) :]
    allowed = s["dry_allowed_length"]
    if s["dry_multiplier"] <= 0 or len(h) <= allowed:
        return logits
    since = next((i for i, t in enumerate(reversed(h)) if t in breakers), len(h))
    if since < allowed:
        return logits
    longest = {}
    for at in range(len(h) - 1):  # the history up to h[at] ends like all of it, then h[at + 1] came
        n = 0
        while n <= at and h[at - n] == h[len(h) - 1 - n]:
            n += 1
        n = min(n, since)
        if n >= allowed and h[at + 1] not in breakers:
            longest[h[at + 1]] = max(n, longest.get(h[at + 1], 0))
    base = f32(s["dry_base"])
    most = int(88.7228391 / math.log(base)) if base > 1.000001 else 0
    out = list(logits)
    for t, n in longest.items():
        out[t] -= f32(s["dry_multiplier"]) * base ** min(n - allowed, most)
    return out


def filtered(logits, s, coin):
    """{token: probability} of what is left."""
    left = {t: l for t, l in enumerate(logits) if l > -math.inf}
    values = list(left.values())
    t0 = f32(s["temperature"])
    r = f32(s["dynatemp_range"])
    if r > 0 and len(values) > 1:
        share = entropy(softmax(left)) / math.log(len(values))
        low = max(0.0, t0 - r)
        t0 = low + (t0 + r - low) * min(1.0, share) ** f32(s["dynatemp_exponent"])
    n = f32(s["top_n_sigma"])
    if n > 0:
        mean = math.fsum(values) / len(values)
        sigma = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
        left = {t: l for t, l in left.items() if l >= max(values) - n * sigma}
    left = {t: l / t0 for t, l in left.items()}
    if 0 < s["top_k"] < len(left):
        left = {t: left[t] for t in ranked(left)[: s["top_k"]]}
    if s["typical_p"] < 1:
        p = softmax(left)
        h = entropy(p)
        order = sorted(p, key=lambda t: (f32(abs(-math.log(p[t]) - h)), t))
        left = {t: left[t] for t in prefix(order, p, f32(s["typical_p"]), True)}
    if s["top_p"] < 1:
        p = softmax(left)
        left = {t: left[t] for t in prefix(ranked(p), p, f32(s["top_p"]), False)}
    best = max(left.values())
    left = {t: l for t, l in left.items() if math.exp(l - best) >= f32(s["min_p"])}
    if coin < f32(s["xtc_probability"]):
        p = softmax(left)
        likely = [t for t in ranked(p) if p[t] >= f32(s["xtc_threshold"])]
        left = {t: l for t, l in left.items() if t not in likely[:-1]}
    return softmax(left)


def mirostat(logits, s, mu):
    t0 = f32(s["temperature"])
    p = softmax({t: l / t0 for t, l in enumerate(logits) if l > -math.inf})
    left = [t for t in p if -math.log2(p[t]) <= mu] or ranked(p)[:1]
    total = math.fsum(p[t] for t in left)
    return {t: p[t] / total for t in left}


def choose(p, u):
    """The first token, by id, at which the sum exceeds u; None where that is too close to say."""
    total = 0.0
    for t in sorted(p):
        if abs(total - u) < 1e-7 and total > 0:
            return None
        total += p[t]
        if total > u + 1e-7:
            return t
    return None


def make(case, index, rng):
    case = dict(case)
    vocab = [64, 97, 130][index % 3]
    ties, two = case.pop("ties", False), case.pop("two", False)
    history = [ord(c) - ord("a") for c in case.pop("history", "hgf")]
    breakers = [ord(c) - ord("a") for c in case.pop("breakers", "")]
    mu = f32(case.pop("mu", 2 * case.get("mirostat_tau", 5.0)))
    s = dict(OFF, **case)
    logits = [rng.gauss(0, 2.5) for _ in range(vocab)]
    if ties:
        logits = [round(2 * l) / 2 for l in logits]
    if two:  # mean 0 and deviation 1: the smaller ones are at the limit of two deviations
        logits = [1.0 - 2 * (i % 2) for i in range(vocab - vocab % 2)]
    if not ties and not two:
        for t in set(history):
            logits[t] = rng.gauss(3, 1)
    logits = [f32(l) for l in logits]
    if index % 4 == 1 and not two:
        logits[60] = -math.inf
    prompt, answer = history[: len(history) // 2], history[len(history) // 2 :]
    changed = dry(penalised(logits, s, prompt, answer), s, history, breakers)
    tokens, after = [], []
    for seed in range(SEEDS):
        u, coin = (uniform(seed, len(history), which) for which in (0, 1))
        if s["temperature"] == 0:
            best = max(range(len(logits)), key=lambda t: (changed[t], -t))
            tokens.append(best)
            after.append(mu)
            continue
        p = mirostat(changed, s, mu) if s["mirostat"] else filtered(changed, s, coin)
        t = choose(p, u)
        tokens.append(-1 if t is None else t)
        surprise = 0 if t is None else -math.log2(p[t])
        after.append(mu - f32(s["mirostat_eta"]) * (surprise - f32(s["mirostat_tau"])) if s["mirostat"] else mu)
    return dict(
        s, prompt=prompt, answer=answer, breakers=breakers, mu=mu, logits=[bits(l) for l in logits], tokens=tokens,
        mu_after=[round(m, 7) for m in after]
    )


def main():
    rng = random.Random(5)
    cases = [make(c, i, rng) for i, c in enumerate(CASES)]
    path = Path(sys.argv[1]) / "chain.json"
    path.write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    for c, full in zip(CASES, cases):
        print(len(set(full["tokens"])), full["tokens"].count(-1), c)


if __name__ == "__main__":
    main()
