#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# openai-harmony 0.0.8: a constraint behind the channel of a final answer is parsed as the recipient of a call.
# Expected: "<|channel|>final <|constrain|>json<|message|>" is an answer for the user, of content type json: so gpt-oss opens
# its answer when a JSON form is asked for, and behind "to=functions.f" the same words are the content type.
# Seen: without "to=" the last word of the header becomes the recipient ("<|constrain|>json", or "json", or "code"), and the
# content type is None. A server that takes each message with a recipient for a tool call turns a structured answer into
# a call of a tool of that name. Two further words are an error.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q openai-harmony==0.0.8
# The vocabulary comes from a wheel that ships it under the hash of its address (as tiktoken caches it).
"$dir/venv/bin/pip" download -q --no-deps -d "$dir" litellm==1.110.2
python3 -m zipfile -e "$dir"/litellm-*.whl "$dir/wheel"
mkdir "$dir/vocabulary"
cp "$dir/wheel/litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790" \
    "$dir/vocabulary/o200k_base.tiktoken"
cat >"$dir/show.py" <<'END'
import os
import sys
from importlib.metadata import version

os.environ["TIKTOKEN_ENCODINGS_BASE"] = sys.argv[1]
from openai_harmony import HarmonyEncodingName, Role, load_harmony_encoding

encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
print("openai-harmony", version("openai-harmony"))
cases = [("final", ("final", None, None)), ("final <|constrain|>json", ("final", "<|constrain|>json", None)),
         ("analysis code", ("analysis", "code", None)),
         ("commentary to=functions.f <|constrain|>json", ("commentary", "functions.f", "<|constrain|>json"))]
same = True
for header, expected in cases:
    tokens = encoding.encode(f"<|channel|>{header}<|message|>{{}}<|end|>", allowed_special="all")
    (message,) = encoding.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
    seen = (message.channel, message.recipient, message.content_type)
    same = same and seen == expected
    print(f"{header:45} channel {seen[0]}, recipient {seen[1]}, content type {seen[2]}")
sys.exit(0 if same else 1)
END
"$dir/venv/bin/python" "$dir/show.py" "$dir/vocabulary"
