#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# xgrammar 0.2.8: a string with minLength or maxLength cannot hold an escape, but can hold bare control characters.
# Expected: lengths bound the number of characters; "minLength": 1, as pydantic writes it for Field(min_length=1), excludes
# the empty string and nothing else.
# Seen: as soon as a length is given, the grammar is any character but quote, backslash, CR and LF. So no \" and no \n: code,
# quotations and paths cannot be written in such a field, and a model that wants a quote ends the string early. A bare TAB
# or U+0001 is taken, which every JSON parser refuses. Without a length both are right, so nobody who tests with plain
# strings sees it. (torch and transformers are replaced by stand-ins: they are imported, but not needed to compile and
# match a grammar. With the real ones the results were the same.)
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
for schema in ({"type": "string"}, {"type": "string", "minLength": 1}, {"type": "string", "maxLength": 50}):
    for text in ('"ab"', r'"a\"b"', r'"a\nb"', r'"C:\\x"', '"a\tb"', '"a\x01b"'):
        try:
            json.loads(text)
            is_json = True
        except ValueError:
            is_json = False
        taken = takes(schema, text)
        seen.append(taken)
        print(f"{json.dumps(schema):40} {text!r:12} JSON: {is_json!s:5} taken: {taken}" + ("" if taken == is_json else "   <--"))
plain = [True, True, True, True, False, False]
bounded = [True, False, False, False, True, True]
sys.exit(0 if seen == plain + bounded + bounded else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
