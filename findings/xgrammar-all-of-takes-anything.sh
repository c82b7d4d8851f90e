#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# xgrammar 0.2.8: allOf of two schemas takes any JSON, and keywords beside $ref, anyOf or enum are dropped.
# Expected: allOf is the conjunction (or is refused, as other engines do with what they cannot compile); "maximum" beside
# "$ref" counts since draft 2019-09; "type" beside "enum" narrows the enum.
# Seen: two members in allOf give a grammar of any JSON value, so that a list is taken where both members ask for an object;
# only the log has a warning. Beside $ref, anyOf and enum the other keywords have no effect, without a warning. pydantic
# and OpenAPI write inheritance as allOf: a server that trusts the grammar answers 200 with text that does not fit.
# (torch and transformers are replaced by stand-ins, which are not needed to compile and match a grammar.)
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --no-deps xgrammar==0.2.8 apache-tvm-ffi==0.1.15.post2 numpy==2.3.5 typing_extensions==4.16.0 \
    pydantic==2.14.4 pydantic-core==2.50.5 annotated-types==0.8.0 typing-inspection==0.4.5
cat >"$dir/show.py" <<'END'
import json
import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import tvm_ffi  # Imported first, so that it does not look at the stand-ins.

for absent in ("torch", "transformers"):
    sys.modules[absent] = MagicMock()
import xgrammar
from xgrammar.testing import _is_grammar_accept_string


def takes(schema, text, **options):
    return _is_grammar_accept_string(xgrammar.Grammar.from_json_schema(json.dumps(schema), **options), text)


def has(name):
    return {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}


print("xgrammar", version("xgrammar"))
cases = [
    ({"allOf": [has("a"), has("b")]}, "[1, 2]"),
    ({"allOf": [has("a"), has("b")]}, '"text"'),
    ({"allOf": [has("a"), has("b")]}, '{"b": 2}'),
    ({"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": {"type": "integer"}}}, "5"),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}], "maximum": 3}, "5"),
    ({"type": "integer", "enum": [1, "a"]}, '"a"'),
]
seen = [takes(schema, text) for schema, text in cases]
for (schema, text), taken in zip(cases, seen):
    print(f"{text:10} does not fit, taken: {taken}   {json.dumps(schema)}")
sys.exit(0 if all(seen) and not takes({"type": "integer", "maximum": 3}, "5") else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
