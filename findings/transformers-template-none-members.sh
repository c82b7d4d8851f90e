#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# transformers 5.24.0: a message's members that are None are gone before the chat template sees them.
# Expected: {"role": "assistant", "content": None, "tool_calls": [...]}, the form of OpenAI's API, reaches the template as it
# is: content is defined and none, and "| tojson" writes null.
# Seen: apply_chat_template drops top-level None members, so "content is defined" is false, m.content.strip() is an error of
# an undefined member and m | tojson has no content; a None inside the arguments stays. A keyword argument x=None is kept
# and printed as "None". An engine with its own Jinja that hands null through, or "" in its place, renders another
# prompt for templates with "is defined", "is none" or tojson.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q transformers==5.24.0 tokenizers==0.23.3 jinja2==3.1.6
cat >"$dir/show.py" <<'END'
import os
import sys
import warnings

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.simplefilter("ignore")
import transformers
from tokenizers import Tokenizer, models

tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
call = dict(type="function", function=dict(name="f", arguments=dict(x=None)))
messages = [dict(role="assistant", content=None, tool_calls=[call])]
seen = []
print("transformers", transformers.__version__)
for template in ("{{ messages[0].keys() | list }}", "{{ messages[0].content is defined }}", "{{ messages[0].content is none }}",
                 "{{ messages[0] | tojson }}", "{{ messages[0].content.strip() }}", "{{ x }}"):
    try:
        seen.append(tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, x=None))
    except Exception as e:
        seen.append(type(e).__name__)
    print(f"{template:40} {seen[-1]}")
written = '{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": null}}}]}'
sys.exit(0 if seen == ["['role', 'tool_calls']", "False", "False", written, "UndefinedError", "None"] else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
