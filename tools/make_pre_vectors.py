#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Makes tests/vectors/tokenizer/gguf_pre.json: ids of texts by llama.cpp's pre-tokenizers, whose patterns are read from its
source and cut texts in Hugging Face's `tokenizers`.

usage: make_pre_vectors.py LLAMA_CPP_DIR TESTS_VECTORS    (PyPI: tokenizers 0.23)

The vocabulary is learned from the texts as they are, without cuts, until each of them is one token: so every cut shows in
the ids. Of several patterns each splits what the one before it has left, as in llama.cpp; what no pattern matches is a
piece. Where a comment has the model's own pattern (GPT-4o's and Tekken's, of whose \p{M} llama.cpp's version knows
nothing), it is that one.
"""
import json
import pathlib
import re
import sys

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

TEXTS = [
    "Hello world, it's 2024! They'LL say we've 1234567 reasons.", "  two  spaces\tand\ttabs\n\n\nlines \r\n end   ",
    "x = foo(bar[3], 'baz') -> {\"k\": 1.5e-10} // done\n\n\tif (a != b) { return; }", "naïve café Ærøskøbing STRASSE Straße",
    "今天天气很好,我们去公园。 東京は晴れ、カタカナとひらがな。 한국어 문장 12개", "Привет, мир! Это 3-й тест. Ελληνικά άλφα", "😀 👍🏽 — “quotes” … ¿qué? ½ ² Ⅷ",
    "camelCaseWordsAndHTTPServer URL's $1,234.56 50% a+b=c <tag/> ^~|`", "مرحبا بالعالم ١٢٣ हिन्दी पाठ ไทย"
]

# Of Kimi llama.cpp's pattern only starts code of its own; this is the models' (tokenization_kimi.py), whose classes
# intersected with "no Han" are look-aheads here.
NO_HAN = r"(?:(?!\p{Han})[%s])"
UPPER, LOWER = NO_HAN % r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", NO_HAN % r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
BEFORE, BEHIND = r"[^\r\n\p{L}\p{N}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
OWN = {
    "kimi-k2": [
        rf"[\p{{Han}}]+|{BEFORE}{UPPER}*{LOWER}+{BEHIND}|{BEFORE}{UPPER}+{LOWER}*{BEHIND}|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ]
}


def of_source(path):
    """{name: list of patterns} of llama-vocab.cpp."""
    text = path.read_text()
    kinds = {}  # name: pre type
    for condition, kind in re.findall(r"if \(((?:\s*tokenizer_pre == \"[^\"]+\"\s*(?:\|\|)?)+)\)\s*\{\s*pre_type = (\w+);", text):
        for name in re.findall(r'"([^"]+)"', condition):
            kinds[name] = kind
    patterns, waiting = {}, []
    body = text[text.index("struct llm_tokenizer_bpe"):]
    body = body[:body.index("std::vector<std::string> regex_exprs")]
    expression = r"case (\w+):|(default):|((?:\s*//[^\n]*\n)*)\s*regex_exprs = \{(.*?)\n\s*\};"
    for case, default, comment, exprs in re.findall(expression, body, re.S):
        if case or default:
            waiting.append(case or "default")
            continue
        original = re.search(r'original regex from tokenizer.json\s*//\s*("(?:[^"\\]|\\.)*")', comment + exprs)
        lines = [l for l in exprs.split("\n") if not l.strip().startswith("//")]
        lines = [original[1]] if original else lines
        found = [json.loads('"' + s.replace("\\'", "'") + '"') for s in re.findall(r'"((?:[^"\\]|\\.)*)"', "\n".join(lines))]
        patterns.update({k: found for k in waiting})
        waiting = []
    patterns["LLAMA_VOCAB_PRE_TYPE_DEFAULT"] = patterns["default"]
    return {name: patterns.get(kind) for name, kind in kinds.items()} | OWN


def learn():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=20000, min_frequency=1, show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(t.to_str())["model"]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    vectors = pathlib.Path(sys.argv[2]) / "tokenizer"
    model = learn()
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    out = {}
    for name, patterns in of_source(pathlib.Path(sys.argv[1]) / "src" / "llama-vocab.cpp").items():
        if patterns is None or any("AFMoE" in p for p in patterns):  # a property of llama.cpp's own
            continue
        t = Tokenizer(models.BPE(vocab=model["vocab"], merges=merges))
        splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
        t.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        out[name] = [t.encode(text, add_special_tokens=False).ids for text in TEXTS]
    lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(ids, separators=(',', ':'))}" for n, ids in sorted(out.items()))
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    head = {"texts": TEXTS, "tokens": tokens, "merges": [" ".join(m) for m in merges]}
    (vectors / "gguf_pre.json").write_text(json.dumps(head)[:-1] + f',\n"ids": {{\n{lines}\n}}}}\n')
    print(len(out), "names")


if __name__ == "__main__":
    main()
