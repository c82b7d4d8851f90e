#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# xgrammar 0.2.8: a name that stands in "required" alone is barred in the default mode, and never required.
# Expected: {"type": "object", "required": ["z"]} takes objects that have z, of any type: "properties" need not list it.
# Seen: with the default strict_mode (a missing additionalProperties means false) the only answer is {}, which the schema
# forbids, and {"z": 1}, which it asks for, is refused. With strict_mode=False z is possible, but {} is taken too. Where
# "properties" has an optional a, the undeclared z makes a required in its place: {"a": 1} is taken without z, {"z": 1} is
# refused in either mode. Such schemas come from tools that keep "required" apart from the properties, in a base or a
# variant. (torch and transformers are replaced by stand-ins, which are not needed to compile and match a grammar.)
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


print("xgrammar", version("xgrammar"))
seen = []
for schema, texts in (({"type": "object", "required": ["z"]}, ("{}", '{"z": 1}')),
                      ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["z"]},
                       ('{"a": 1}', '{"z": 1}', '{"a": 1, "z": 1}'))):
    print(json.dumps(schema))
    for strict in (True, False):
        for text in texts:
            fits = "z" in json.loads(text)
            seen.append(takes(schema, text, strict_mode=strict))
            print(f"  strict_mode={strict!s:5} {text:16} fits: {fits!s:5} taken: {seen[-1]}")
sys.exit(0 if seen == [True, False, True, True, True, False, False, True, False, True] else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
