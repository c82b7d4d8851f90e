#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tokenizers 0.23.3: the regular expressions of tokenizer.json are Oniguruma's, which reads familiar spellings differently.
# Expected: a pattern of a Split pre-tokenizer, written for Python's regex or Rust's fancy-regex (tiktoken), cuts alike.
# Seen: \h is a hexadecimal digit, not a horizontal space; (?m:.) lets the dot take a newline, and (?s:.) is an error; ^
# holds at every line; (?i:ss) takes one sharp s. Each is silent but (?s:). A reader of tokenizer.json on PCRE2, Rust or
# Python has to translate these, and a converter from a tiktoken pattern has to write them in another way.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q tokenizers==0.23.3 regex==2026.11.19
cat >"$dir/show.py" <<'END'
import sys
from importlib.metadata import version

import regex
from tokenizers import Regex, pre_tokenizers


def oniguruma(pattern, text):
    try:
        return [piece for piece, _ in pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(text)]
    except Exception as e:
        return str(e)


print("tokenizers", version("tokenizers"), "regex", version("regex"))
cases = [
    (r"\h", "<a>", ["<", ">"], ["<a>"]),
    (r"\h", "< >", ["< >"], ["<", ">"]),
    (r"(?m:a.b)", "<a\nb>", ["<", ">"], ["<a\nb>"]),
    (r"(?s:a.b)", "<a\nb>", "Oniguruma error: undefined group option", ["<", ">"]),
    (r"^b", "a\nb>", ["a\n", ">"], ["a\nb>"]),
    (r"(?i:ss)", "<\u00df>", ["<", ">"], ["<\u00df>"]),
]
same = True
for pattern, text, theirs, pythons in cases:
    seen = oniguruma(pattern, text), [piece for piece in regex.split(pattern, text) if piece]
    same = same and seen == (theirs, pythons)
    print(f"{pattern:14} removed from {ascii(text):12} tokenizers: {ascii(seen[0]):42} regex: {ascii(seen[1])}")
sys.exit(0 if same else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
