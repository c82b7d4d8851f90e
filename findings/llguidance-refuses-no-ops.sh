#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# llguidance 1.9.1: keywords and values that allow everything are refused as unimplemented.
# Expected: "uniqueItems": false and "minContains": 0 without contains say nothing, and "format" is an annotation for what is
# unknown: they are skipped, as title and readOnly are.
# Seen: each is an error for the whole schema ("Unimplemented keys", "Unknown format"), although the same engine takes
# contentEncoding and unknown keywords such as x-order without a word. A $ref to a class whose name is not ASCII, as pydantic
# writes it ("#/$defs/Groesse" with an umlaut), is an invalid URI. Generators (OpenAPI tools, protobuf plug-ins) write such
# defaults out, so a server that hands schemas on has to strip them or answer 400.
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
name = "Gr\u00f6\u00dfe"
cases = [
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": False}, False),
    ({"type": "array", "items": {"type": "integer"}, "minContains": 0}, False),
    ({"type": "object", "propertyNames": True}, False),
    ({"type": "string", "format": "password"}, False),
    ({"$ref": f"#/$defs/{name}", "$defs": {name: {"type": "integer"}}}, False),
    ({"type": "string", "contentEncoding": "base64"}, True),
    ({"type": "string", "x-order": 1, "title": "t", "readOnly": True}, True),
]
print("llguidance", version("llguidance"))
seen = []
for schema, _ in cases:
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    seen.append(not matcher.is_error())
    print(f"{json.dumps(schema, ensure_ascii=False):75}", "taken" if seen[-1] else matcher.get_error().splitlines()[0])
sys.exit(0 if seen == [taken for _, taken in cases] else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
