#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model's tokenizer on its corpus and writes the folder's text files.

    python3 tools/demo_tokenizer.py models/demo        # needs the PyPI package tokenizers

Writes tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json. Byte-level
BPE in the shape of Qwen's pipeline: NFC, one regular expression, bytes; one token per digit.
"""

import json
import shutil
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

from demo_corpus import dialogues
from demo_corpus_language import SPELLED

VOCAB = 6144
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def texts():
    for dialogue in dialogues(seed=7, count=60000):
        for m in dialogue["messages"]:
            yield m["role"]
            if not m["content"].isupper():  # upper case is rare outside this corpus too
                yield m["content"]
        if "tools" in dialogue:
            yield json.dumps(dialogue["tools"])
    for _ in range(10):
        for w in SPELLED:
            yield f" {w} {w.capitalize()}"


def build():
    tok = Tokenizer(models.BPE(byte_fallback=False, fuse_unk=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    size = VOCAB - len(SPECIAL) - len(MARKS)
    tok.train_from_iterator(
        texts(),
        trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            show_progress=False,
            max_token_length=24,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    assert tok.get_vocab_size() == size, tok.get_vocab_size()
    for names, special in ((SPECIAL, True), (MARKS, False)):
        tok.add_tokens([AddedToken(s, special=special, normalized=False) for s in names])
    return tok


def main():
    out = Path(sys.argv[1])
    tok = build()
    tok.save(str(out / "tokenizer.json"))
    ids = {s: tok.token_to_id(s) for s in SPECIAL + MARKS}
    flags = dict(lstrip=False, normalized=False, rstrip=False, single_word=False)
    template = Path(__file__).with_name("demo_chat_template.jinja")
    shutil.copy(template, out / "chat_template.jinja")
    config = dict(
        add_bos_token=False,
        add_prefix_space=False,
        added_tokens_decoder={
            str(i): dict(content=s, special=s in SPECIAL, **flags) for s, i in ids.items()
        },
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        bos_token=None,
        chat_template=template.read_text(),
        clean_up_tokenization_spaces=False,
        eos_token="<|im_end|>",
        errors="replace",
        model_max_length=2048,
        pad_token="<|endoftext|>",
        split_special_tokens=False,
        tokenizer_class="PreTrainedTokenizerFast",
        unk_token=None,
    )
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = dict(
        bos_token_id=ids["<|endoftext|>"],
        do_sample=True,
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]],
        pad_token_id=ids["<|endoftext|>"],
        temperature=0.3,
        top_k=20,
        top_p=0.9,
        transformers_version="5.17.0",
    )
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


if __name__ == "__main__":
    main()
