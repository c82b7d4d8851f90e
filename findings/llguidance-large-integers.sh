#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# llguidance 1.9.1: an integer beyond 2^53 in const or enum forces another integer.
# Expected: {"const": 1234567890123456789} lets the model write 1234567890123456789 and nothing else.
# Seen: numbers of const and enum pass through a double, so the only answer that the grammar takes is 1234567890123456768;
# the number asked for is refused. "minimum" is rounded in the same way, and "maximum": 18446744073709551615 (an unsigned
# 64-bit field) ends at 9223372036854775807. Ids of 64 bits (of messages, users, rows) are the common case: with a grammar
# the model cannot but name a wrong one, and there is no error. Ids as strings are safe.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q llguidance==1.9.1
cat >"$dir/show.py" <<'END'
import json
import sys
from importlib.metadata import version

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def matcher(schema):
    return LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))


def takes(schema, text):
    m = matcher(schema)
    tokens = tokenizer.tokenize_bytes(text.encode())
    return m.try_consume_tokens(tokens) == len(tokens) and m.is_accepting()


print("llguidance", version("llguidance"))
forced = []
for schema in ({"const": 9007199254740993}, {"const": 1234567890123456789}, {"enum": [1234567890123456789]},
               {"const": "1234567890123456789"}):
    forced.append(bytes(matcher(schema).compute_ff_tokens()).decode())
    print(json.dumps(schema), "forces", forced[-1])
bounds = [takes({"type": "integer", "minimum": 9007199254740993}, "9007199254740992"),
          takes({"type": "integer", "maximum": 18446744073709551615}, "9223372036854775807"),
          takes({"type": "integer", "maximum": 18446744073709551615}, "9223372036854775808")]
print("minimum 9007199254740993 takes 9007199254740992:", bounds[0])
print("maximum 18446744073709551615 takes 9223372036854775807:", bounds[1], "and 9223372036854775808:", bounds[2])
as_described = forced == ["9007199254740992", "1234567890123456768", "1234567890123456768", '"1234567890123456789"']
sys.exit(0 if as_described and bounds == [True, True, False] else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
