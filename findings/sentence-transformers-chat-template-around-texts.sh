#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sentence-transformers 6.2.0: a decoder whose tokenizer has a chat template embeds and ranks texts as chats.
# Expected: encode(["a b"]) embeds the tokens of the text, a prompt is put in front of them, and a pair for a CrossEncoder is the
# two texts, as with a tokenizer that has no template; the same model in a folder of an older version gives the same vectors.
# Seen: the text is the content of a user's turn and the prompt that of a system's turn before it. The two of a pair are turns
# of the roles "query" and "document", whether the template knows them or not. No warning; what shows it is "message" in the
# modality_config, which a save writes to sentence_bert_config.json. A folder without that field, as older versions wrote it,
# goes on with the plain text, so that the same weights and tokenizer have two embeddings of one text. Most chat models
# have a template, and embedding models made of them. An engine has to read the field, and render the template for such folders.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
TMPDIR="$dir" "$dir/venv/bin/pip" install -q --no-cache-dir sentence-transformers==6.2.0 torch==2.15.0 transformers==5.24.0 \
    tokenizers==0.23.3 numpy==2.4.6
cat >"$dir/show.py" <<'END'
import json
import sys
import tempfile
from pathlib import Path

import sentence_transformers
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForSequenceClassification, Qwen3Model

TEMPLATE = "{% for m in messages %}[ {{ m.role }} : {{ m.content }} ] {% endfor %}"
WORDS = "<pad> <unk> [ ] : a b c system user query document".split()
SHAPE = dict(vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
             num_key_value_heads=2, head_dim=8, pad_token_id=0)


def make(folder, model, template):
    torch.manual_seed(0)
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)


def read(model, texts, **kwargs):
    return model.tokenizer.decode(model.preprocess(texts, **kwargs)["input_ids"][0]).strip()


print("sentence-transformers", sentence_transformers.__version__, "transformers", transformers.__version__)
got = []
for template in (None, TEMPLATE):
    with tempfile.TemporaryDirectory() as folder:
        make(folder, Qwen3Model(Qwen3Config(**SHAPE)), template)
        encoder = SentenceTransformer(folder, device="cpu")
        got += [read(encoder, ["a b"]), read(encoder, ["a b"], prompt="c ")]
    with tempfile.TemporaryDirectory() as folder:
        make(folder, Qwen3ForSequenceClassification(Qwen3Config(**SHAPE, num_labels=1)), template)
        got.append(read(CrossEncoder(folder, device="cpu"), [("a", "b")]))
    print("with a template:" if template else "without a template:", got[-3:])
with tempfile.TemporaryDirectory() as folder:
    encoder.save_pretrained(folder)
    again = SentenceTransformer(folder, device="cpu")
    (Path(folder) / "sentence_bert_config.json").write_text(json.dumps(dict(max_seq_length=512, do_lower_case=False)))
    older = SentenceTransformer(folder, device="cpu")
    got += [read(again, ["a b"]), read(older, ["a b"])]
    cosine = float(again.encode(["a b"])[0] @ older.encode(["a b"])[0])
    cosine /= float(torch.tensor(again.encode(["a b"])[0]).norm() * torch.tensor(older.encode(["a b"])[0]).norm())
print("saved:", got[-2], "  without modality_config in the file:", got[-1], f"  cosine of the two embeddings {cosine:.3f}")
chat = "[ user : a b ]"
as_described = ["a b", "c a b", "a b", chat, f"[ system : c ] {chat}", "[ query : a ] [ document : b ]", chat, "a b"]
sys.exit(0 if got == as_described and cosine < 0.99 else 1)
END
HF_HUB_OFFLINE=1 "$dir/venv/bin/python" "$dir/show.py" 2>/dev/null
