#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# jsonschema 4.26.0: "pattern" is Python's dialect, so ^[0-9]+$ takes a newline at the end and \d takes all digits.
# Expected: a pattern is a regular expression of ECMA-262: $ without a flag is the end of the text, \d is 0 to 9, and with
# the u flag, which the specification recommends, \p{L} is a letter.
# Seen: "12\n" fits ^[0-9]+$, and Arabic-Indic digits fit ^\d+$, while a grammar engine (llguidance here, and ECMA's own)
# bars both; \p{L} raises re.error in the middle of the validation. So a validator behind the model does not check what
# the grammar enforced, and a schema that the grammar takes can bring the validator down with an exception that is
# no ValidationError.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q jsonschema==4.26.0 llguidance==1.9.1
cat >"$dir/show.py" <<'END'
import json
import sys
from importlib.metadata import version

from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def takes(schema, value):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    if matcher.is_error():
        return matcher.get_error().splitlines()[0]
    tokens = tokenizer.tokenize_bytes(json.dumps(value, ensure_ascii=False).encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def fits(schema, value):
    try:
        return Draft202012Validator(schema).is_valid(value)
    except Exception as e:
        return f"{type(e).__name__}: {e}"


print("jsonschema", version("jsonschema"), "llguidance", version("llguidance"))
seen = []
for pattern, value in ((r"^[0-9]+$", "12\n"), (r"^\d+$", "\u0661\u0662"), (r"^\p{L}$", "a")):
    schema = {"type": "string", "pattern": pattern}
    seen.append((fits(schema, value), takes(schema, value)))
    print(f"{pattern:10} {ascii(value):15} jsonschema: {seen[-1][0]}, llguidance: {seen[-1][1]}")
sys.exit(0 if seen[:2] == [(True, False)] * 2 and "bad escape" in str(seen[2][0]) and seen[2][1] is True else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
