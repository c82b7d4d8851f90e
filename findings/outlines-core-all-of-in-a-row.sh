#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# outlines_core 0.2.14: allOf of two objects becomes one object behind the other, and bounds of numbers are not looked at.
# Expected: build_regex_from_schema gives a regular expression of the schema's documents, or an error for what it lacks
# (it has errors: for an unknown format, for example).
# Seen: the expression of allOf is the members' expressions in a row, so that {"a": 1}{"b": 2}, which is not JSON, is the
# only text that matches and {"a": 1, "b": 2} is barred. minimum, maximum and multipleOf are dropped without an error. An
# exponent needs its sign: 1e5 and 1E+5 cannot be written where 1e+5 can. The model is forced to a body that no client parses.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q outlines_core==0.2.14
cat >"$dir/show.py" <<'END'
import json
import re
import sys
from importlib.metadata import version

from outlines_core.json_schema import build_regex_from_schema


def has(name):
    return {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}


print("outlines_core", version("outlines_core"))
seen = []
for schema, text, fits in (({"allOf": [has("a"), has("b")]}, '{"a": 1, "b": 2}', True),
                           ({"allOf": [has("a"), has("b")]}, '{"a": 1}{"b": 2}', False),
                           ({"type": "integer", "minimum": 5, "maximum": 9}, "3", False),
                           ({"type": "integer", "multipleOf": 10}, "3", False),
                           ({"type": "number"}, "1e5", True), ({"type": "number"}, "1e+5", True)):
    taken = re.fullmatch(build_regex_from_schema(json.dumps(schema)), text) is not None
    seen.append(taken)
    print(f"{text:17} fits: {fits!s:5} taken: {taken!s:5} {json.dumps(schema)}")
sys.exit(0 if seen == [False, True, True, True, False, True] else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
