#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/tokenizer/kimi: a small tokenizer in the files that Kimi models have, and what `tiktoken`
(PyPI) makes of the texts of make_tokenizer_vectors.py with MoonshotAI's pattern. Needed to change the vectors,
never to run the tests.

The ranks are the order of merging of a small byte-level BPE, and some tokens that no merge makes: whole pieces,
and such that can be cut in two ways.

usage: make_tiktoken_vectors.py [OUTPUT_DIR]
"""
import base64
import json
import os
import random
import sys

import make_tokenizer_vectors as vectors
import tiktoken

NO_HAN = r"&&[^\p{Han}]]"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}" + NO_HAN, r"[\p{Ll}\p{Lm}\p{Lo}\p{M}" + NO_HAN
START, SUFFIX = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", START + UPPER + "*" + LOWER + "+" + SUFFIX, START + UPPER + "+" + LOWER + "*" + SUFFIX,
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
SPECIALS = 256
NAMED = {0: ("[BOS]", True), 1: ("[EOS]", True), 2: ("<|im_end|>", True), 3: ("<|im_user|>", True),
         11: ("<|tool_calls_section_begin|>", False), 22: ("<think>", False), 255: ("[PAD]", True)}
EXTRA = ["HELLO'S WORLD'Ve", "今天Hello今天 world中文", "a今b天 ﹅々〇x", "aaaaaaaa aaa aaaaa", "xyxyxyx yxyxy", "1234567 12 ٣٤٥٦",
         "<|reserved_token_", "ǅabc ʰx ªº"]


def ranks():
    """bytes -> rank: the bytes, then what merging makes, then what it does not."""
    chars = {c: b for b, c in zip(*byte_alphabet())}
    pre = vectors.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens, _ = vectors.train(pre, 700, sorted(chars), True)
    made = [bytes(chars[c] for c in t) for t in tokens]
    single = [bytes([b]) for b in range(256)]
    more = [b"aaa", b"aa", b"xyx", b"yxy", b"xyxyx", "中文".encode(), "今天天".encode(), b"   x", b"\xe4\xbb", b"Hello'S", b" " * 40]
    found = dict.fromkeys(single + [m for m in made if len(m) > 1] + more)
    return {t: i for i, t in enumerate(found)}


def byte_alphabet():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return keep + rest, [chr(b) for b in keep] + [chr(256 + i) for i in range(len(rest))]


def case(enc, ids, plain, **more):
    """`skipped`: without the special tokens, those of ids that are not in `plain`."""
    j = {**more, "ids": ids, "decoded": enc.decode(ids)}
    skipped = enc.decode([i for i in ids if i in plain])
    return j if skipped == j["decoded"] else {**j, "skipped": skipped}


def cases(enc, named, plain, size):
    rng, encode, decode = random.Random(11), [], []
    for text in vectors.texts_for(list(named), rng) + EXTRA:
        ids = enc.encode(text, allowed_special="all")
        assert enc.decode(ids) == text
        encode.append(case(enc, ids, plain, text=text))
    for _ in range(120):
        ids = [rng.randrange(size) for _ in range(rng.randint(1, 12))]
        decode.append(case(enc, ids, plain))
    return {"encode": encode, "decode": decode}


def main():
    out = os.path.join(sys.argv[1] if len(sys.argv) > 1 else "tests/vectors/tokenizer", "kimi")
    os.makedirs(out, exist_ok=True)
    table = ranks()
    first = len(table)
    special = {NAMED[i][0] if i in NAMED else f"<|reserved_token_{first + i}|>": first + i for i in range(SPECIALS)}
    enc = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=table, special_tokens=special)
    with open(os.path.join(out, "tiktoken.model"), "w") as f:
        for token, rank in sorted(table.items(), key=lambda x: x[1]):
            f.write(f"{base64.b64encode(token).decode()} {rank}\n")
    decoder = {str(first + i): {"content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                                "special": s} for i, (c, s) in NAMED.items()}
    config = {"added_tokens_decoder": decoder, "tokenizer_class": "TikTokenTokenizer",
              "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}}
    with open(os.path.join(out, "tokenizer_config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")
    with open(os.path.join(out, "cases.json"), "w") as f:
        named = [NAMED[i][0] for i in NAMED] + [f"<|reserved_token_{first + 9}|>"]
        plain = {*range(first), *(first + i for i, (_, s) in NAMED.items() if not s)}
        j = cases(enc, named, plain, first + SPECIALS)
        f.write('{"encode":')
        f.write("[\n" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in j["encode"]) + '\n],"decode":')
        f.write("[\n" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in j["decode"]) + "\n]}\n")


if __name__ == "__main__":
    main()
