#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tokenizers 0.23.3: its Precompiled normalizer loses accents that sentencepiece 0.2.3 keeps, with the same table.
# Expected: "Precompiled" with a SentencePiece model's precompiled_charsmap (so converted XLM-R, T5 and other tokenizers carry
# it) normalizes as SentencePiece does: the longest entry of the table is replaced, then the rest is looked at.
# Seen: it looks up a grapheme as a whole and takes the shortest entry at its start, and what follows in the grapheme is
# gone: full-width A with an acute becomes A (SentencePiece: A with acute), the second accent of Vietnamese-like stacks is
# dropped, the ligature fi keeps no mark; CR LF becomes one space, not two; half-width kana with a mark stay decomposed.
# Ids differ from those the model was trained with, in either direction of a port, and no error shows it.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q tokenizers==0.23.3 sentencepiece==0.2.3
cat >"$dir/show.py" <<'END'
import io
import sys
from importlib.metadata import version

import sentencepiece
from tokenizers import normalizers

model = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([f"the quick brown fox {i} jumps over" for i in range(200)]), model_writer=model, vocab_size=60,
    model_type="bpe", normalization_rule_name="nmt_nfkc", minloglevel=2, hard_vocab_limit=False)


def field(data, wanted):
    """The bytes of the length-delimited field `wanted` of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            varint()
        elif key & 7 == 2:
            size = varint()
            if key >> 3 == wanted:
                return data[at:at + size]
            at += size
        else:
            at += 4 if key & 7 == 5 else 8
    raise KeyError(wanted)


charsmap = field(field(model.getvalue(), 3), 2)  # normalizer_spec.precompiled_charsmap
theirs = normalizers.Precompiled(charsmap)
own = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc", add_dummy_prefix=False, escape_whitespaces=False,
                                            remove_extra_whitespaces=False)
print("tokenizers", version("tokenizers"), "sentencepiece", version("sentencepiece"))
expected = {"\uff21\u0301": ("\u00c1", "A"), "e\u0301\u0302": ("\u00e9\u0302", "\u00e9"), "\ufb01\u0301": ("fi\u0301", "fi"),
            "A\u030a\u0301": ("\u01fa", "\u00c5"), "a\r\nb": ("a  b", "a b"), "\uff76\uff9e": ("\u30ac", "\u30ab\u3099"),
            "a\u0301": ("\u00e1", "\u00e1")}
seen = {text: (own.normalize(text), theirs.normalize_str(text)) for text in expected}
for text, (a, b) in seen.items():
    print(f"{ascii(text):18} sentencepiece {ascii(a):14} tokenizers {ascii(b):16}" + ("" if a == b else "<--"))
sys.exit(0 if seen == expected else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
