#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# openai-harmony 0.0.8: the TypeScript that describes a tool to gpt-oss loses what pydantic's schemas say.
# Expected: a parameter's schema is rendered as its type; what has no counterpart is at least a comment.
# Seen: enum without "type" (an Enum of pydantic has it, a hand-written one often not), anyOf (each Optional), allOf and $ref
# (each nested model) are "any": of "$defs" nothing reaches the model. A map (additionalProperties) is an empty object. The
# second line of a description stands outside the comment, as TypeScript code, and quotes inside enum values are not
# escaped. Calls then have invented members, and prompts differ from those of gpt-oss's own chat template.
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
from openai_harmony import (Conversation, DeveloperContent, HarmonyEncodingName, Message, Role, ToolDescription,
                            load_harmony_encoding)

encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
parameters = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["m", "ft"]},
        "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "point": {"$ref": "#/$defs/Point"},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "quoted": {"type": "string", "enum": ['5"']},
        "plain": {"type": "string", "description": "first line\nsecond line"},
    },
    "$defs": {"Point": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
}
tool = ToolDescription.new("f", "A tool.", parameters=parameters)
developer = DeveloperContent.new().with_function_tools([tool])
conversation = Conversation.from_messages([Message.from_role_and_content(Role.DEVELOPER, developer)])
text = encoding.decode_utf8(encoding.render_conversation(conversation))
print("openai-harmony", version("openai-harmony"))
print(text)
lines = ["unit?: any,", "optional?: any,", "point?: any,", "counts?: {\n    },", 'quoted?: "5"",',
         "// first line\nsecond line\nplain?: string,"]
sys.exit(0 if all("\n" + line + "\n" in text for line in lines) and "lat" not in text else 1)
END
"$dir/venv/bin/python" "$dir/show.py" "$dir/vocabulary"
