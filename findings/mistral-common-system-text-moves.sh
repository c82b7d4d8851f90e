#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mistral-common 1.13.1: in the formats v2 and v3 the system text moves to the last user message at every turn.
# Expected: the system text stands at the beginning of the prompt, so that the next turn's prompt continues this turn's.
# Seen: v1 puts it into the first [INST], v7 has [SYSTEM_PROMPT] at its place, but v2, v3 and v3-tekken (Mistral 7B v0.3,
# Mixtral 8x22B, Nemo) put it into the last [INST]. So with a system text the prompts of two turns are equal only up to the
# first <s>[INST], and a prefix cache has nothing to reuse: each turn's prefill is the whole conversation. The position is
# also part of what the model was trained with: a template that always puts it first is wrong for these, silently.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q mistral-common==1.13.1 sentencepiece==0.2.3
cat >"$dir/show.py" <<'END'
import os
import sys
import warnings
from importlib.metadata import version

warnings.simplefilter("ignore")
import mistral_common
from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

turns = [SystemMessage(content="SYS"), UserMessage(content="one"), AssistantMessage(content="two"), UserMessage(content="three")]
folder = os.path.join(os.path.dirname(mistral_common.__file__), "data")
print("mistral-common", version("mistral-common"))
same = True
for name, moves in (("tokenizer.model.v1", False), ("mistral_instruct_tokenizer_240216.model.v2", True),
                    ("mistral_instruct_tokenizer_240323.model.v3", True), ("tekken_240718.json", True),
                    ("mistral_instruct_tokenizer_241114.model.v7", False)):
    tokenizer = MistralTokenizer.from_file(os.path.join(folder, name))
    first, second = (tokenizer.encode_chat_completion(ChatCompletionRequest(messages=turns[:n])) for n in (2, 4))
    shared = os.path.commonprefix([first.tokens, second.tokens])
    same = same and (len(shared) < len(first.tokens)) == moves
    print(f"{name}: {second.text!r}")
    print(f"    the second turn's prompt begins with {len(shared)} of the first turn's {len(first.tokens)} tokens")
sys.exit(0 if same else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
