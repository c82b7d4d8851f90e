#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# transformers 5.24.0: AutoTokenizer builds the normalizer anew from the class, whatever tokenizer.json has.
# Expected: AutoTokenizer of a folder with a tokenizer.json gives the ids of that file (tokenizers.Tokenizer.from_file).
# Seen: with "tokenizer_class": "LlamaTokenizer" in tokenizer_config.json the file's Prepend and Replace normalizers (Llama 2
# and its descendants have them) are replaced by a Metaspace pre-tokenizer, with "GemmaTokenizer" by another pair: a space behind
# a special token is one token less, and a word behind one loses its prefix. With "PreTrainedTokenizerFast" the file
# counts. So the ids of a chat prompt depend on which of the two readers a server has, and a parity test against
# AutoTokenizer alone blames the reader that follows the file.
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
from tokenizers import Tokenizer, models, normalizers

vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "\u2581": 3, "a": 4, "b": 5, "\u2581a": 6, "\u2581b": 7}
plain = Tokenizer(models.BPE(vocab=vocab, merges=[("\u2581", "a"), ("\u2581", "b")], unk_token="<unk>"))
plain.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
plain.add_special_tokens(["<unk>", "<s>", "</s>"])
seen = {}
with tempfile.TemporaryDirectory() as folder:
    plain.save(os.path.join(folder, "tokenizer.json"))
    for name in ("PreTrainedTokenizerFast", "LlamaTokenizer", "GemmaTokenizer"):
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
            json.dump(dict(tokenizer_class=name, bos_token="<s>", eos_token="</s>", unk_token="<unk>"), file)
        auto = transformers.AutoTokenizer.from_pretrained(folder)
        seen[name] = [auto.convert_ids_to_tokens(auto(text, add_special_tokens=False).input_ids) for text in ("a</s> b", "</s>a")]
file_says = [plain.encode(text).tokens for text in ("a</s> b", "</s>a")]
print("transformers", transformers.__version__)
print(f"{'tokenizer.json':25}", *file_says)
for name, tokens in seen.items():
    print(f"{name:25}", *tokens, "" if tokens == file_says else "  <--")
a, b, m = "\u2581a", "\u2581b", "\u2581"
as_described = file_says == [[a, "</s>", m, b], ["</s>", a]] and seen == {
    "PreTrainedTokenizerFast": file_says, "LlamaTokenizer": [[a, "</s>", b], ["</s>", "a"]],
    "GemmaTokenizer": [["a", "</s>", b], ["</s>", "a"]]}
sys.exit(0 if as_described else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
