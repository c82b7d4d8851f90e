#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sentencepiece 0.2.3: its rule "nfkc" is not NFKC, and "nmt_nfkc" keeps U+200D but makes U+200C a space.
# Expected: "nfkc" equals Unicode's NFKC; "nmt_nfkc" (the default of the trainer) adds the handling of controls and spaces.
# Seen: the table has whole characters only, so a Hangul syllable with a final consonant as a separate jamo (U+AC00 U+11A8)
# stays two characters where NFKC has U+AC01. nmt_nfkc makes the zero width non-joiner (an orthographic sign of Persian), the
# direction marks and U+FFFD a space, keeps the joiner and the soft hyphen, deletes U+007F and keeps U+0085, and leaves the
# full-width tilde alone, which "nfkc" makes a ~. nmt_nfkc_cf keeps the sharp s, which nfkc_cf keeps as well, although case
# folding makes it "ss". An own NFKC from a Unicode library does not give the ids of the training.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q sentencepiece==0.2.3
cat >"$dir/show.py" <<'END'
import sys
import unicodedata
from importlib.metadata import version

import sentencepiece


def rule(name):
    return sentencepiece.SentencePieceNormalizer(rule_name=name, add_dummy_prefix=False, escape_whitespaces=False,
                                                 remove_extra_whitespaces=False).normalize


nfkc, nmt, nmt_cf, nfkc_cf = rule("nfkc"), rule("nmt_nfkc"), rule("nmt_nfkc_cf"), rule("nfkc_cf")
print("sentencepiece", version("sentencepiece"), "Unicode", unicodedata.unidata_version)
expected = {"\uac00\u11a8": ("\uac00\u11a8", "\uac00\u11a8"), "a\u200cb": ("a\u200cb", "a b"), "a\u200db": ("a\u200db",) * 2,
            "a\u200eb": ("a\u200eb", "a b"), "a\u00adb": ("a\u00adb",) * 2, "a\ufffdb": ("a\ufffdb", "a b"),
            "a\x7fb": ("a\x7fb", "ab"), "a\x85b": ("a\x85b",) * 2, "\uff5e": ("~", "\uff5e")}
seen = {}
for text in expected:
    seen[text] = (nfkc(text), nmt(text))
    print(f"{ascii(text):18} NFKC {ascii(unicodedata.normalize('NFKC', text)):12} nfkc {ascii(seen[text][0]):18} nmt_nfkc",
          ascii(seen[text][1]))
sharp = [nmt_cf("\u00df"), nfkc_cf("\u00df"), "\u00df".casefold()]
print("sharp s: nmt_nfkc_cf", ascii(sharp[0]), "nfkc_cf", ascii(sharp[1]), "case folding", ascii(sharp[2]))
as_described = seen == expected and sharp == ["\u00df", "\u00df", "ss"]
sys.exit(0 if as_described and unicodedata.normalize("NFKC", "\uac00\u11a8") == "\uac01" else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
