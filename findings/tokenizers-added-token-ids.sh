#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tokenizers 0.23.3: the ids of added_tokens in tokenizer.json are not the ids that the tokens get.
# Expected: a token whose entry says "id": 300 has id 300, or the file is refused.
# Seen: ids are given anew in the order of the list, from the number of the vocabulary's tokens on, without a word. Two
# entries that change places change their ids; and where the vocabulary's ids have holes the new id is one that a token
# of the vocabulary has already: "c" is encoded as 5, and 5 is decoded as "<y>".
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q tokenizers==0.23.3
cat >"$dir/show.py" <<'END'
import json
import sys

import tokenizers
from tokenizers import Tokenizer


def load(vocab, added):
    entry = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    return Tokenizer.from_str(json.dumps(dict(
        version="1.0", truncation=None, padding=None, normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None,
        added_tokens=[dict(entry, id=i, content=c) for i, c in added],
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                   fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocab, merges=[]))))


print("tokenizers", tokenizers.__version__)
dense = dict(a=0, b=1, c=2, d=3)
far = load(dense, [(300, "<x>"), (301, "<y>")])
print("file: <x> 300, <y> 301; loaded:", far.token_to_id("<x>"), far.token_to_id("<y>"))
turned = load(dense, [(5, "<x>"), (4, "<y>")])
print("file: <x> 5, <y> 4; loaded:", turned.token_to_id("<x>"), turned.token_to_id("<y>"))
holes = load(dict(a=0, b=1, c=5, d=8), [(9, "<x>"), (10, "<y>")])
ids = holes.encode("c").ids
print("vocabulary a 0, b 1, c 5, d 8; file: <x> 9, <y> 10; loaded:", holes.token_to_id("<x>"), holes.token_to_id("<y>"),
      "- c is encoded as", ids, "which is decoded as", repr(holes.decode(ids, skip_special_tokens=False)))
as_described = [far.token_to_id("<x>"), far.token_to_id("<y>"), turned.token_to_id("<x>"), turned.token_to_id("<y>"), ids,
                holes.token_to_id("<y>"), holes.id_to_token(5)] == [4, 5, 4, 5, [5], 5, "<y>"]
sys.exit(0 if as_described else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
