#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# transformers 5.24.0: add_bos_token and add_eos_token are ignored for a byte-level tokenizer.json.
# Expected: "add_bos_token": true in tokenizer_config.json puts bos_token in front, or is refused.
# Seen: with PreTrainedTokenizerFast, GPT2Tokenizer and Qwen2Tokenizer over a byte-level tokenizer.json the ids are the same
# with the flags true and false: only the file's post_processor counts. The attribute add_bos_token reads
# False even where the file says true, without a warning. A server that follows the flag gives one token more than
# transformers, and a double <s> where the chat template writes one.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q transformers==5.24.0 tokenizers==0.23.3
cat >"$dir/show.py" <<'END'
import json
import os
import sys
import tempfile
import warnings

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.simplefilter("ignore")
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
byte_level = Tokenizer(models.BPE(vocab=vocab, merges=[]))
byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
byte_level.add_special_tokens(["<s>", "</s>"])
print("transformers", transformers.__version__)
seen = []
with tempfile.TemporaryDirectory() as folder:
    byte_level.save(os.path.join(folder, "tokenizer.json"))
    for name in ("PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer"):
        for flag in (True, False):
            with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
                json.dump(dict(tokenizer_class=name, bos_token="<s>", eos_token="</s>", unk_token="<unk>", add_bos_token=flag,
                               add_eos_token=flag), file)
            auto = transformers.AutoTokenizer.from_pretrained(folder)
            seen.append((auto.convert_ids_to_tokens(auto("a").input_ids), getattr(auto, "add_bos_token", None)))
            print(f"{name:25} flags {flag!s:5} tokens {seen[-1][0]}, add_bos_token reads {seen[-1][1]}")
sys.exit(0 if seen == [(["a"], False)] * 6 else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
