#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/tokenizer/unicode_data.c: the Unicode facts that `tokenizers` uses, asked of `tokenizers`.

Its regex engine, its \\w, its punctuation and its normalizers each carry their own Unicode version;
no system library has the same mix. So every code point is put to the library itself (PyPI
`tokenizers`), and only the answers are stored. What a normalization form does to a character is
taken from Python's unicodedata at build time of the table and from utf8proc at run time; the table
holds the characters that are newer than the normalizer's Unicode version ("inert").

usage: make_unicode_tables.py [OUTPUT]
"""
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

GCS = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp "
       "Cc Cf Co Cn Cs").split()
SCRIPTS = "Han Hiragana Katakana Hangul Latin Cyrillic Greek Arabic Hebrew Thai Devanagari".split()
ALTERNATING = 30  # a run of Lu, Ll, Lu, Ll ...
CPS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, CPS))


def removed_by(pre_tokenizer):
    """The code points that a pre-tokenizer with behaviour "removed" takes out of a text of all."""
    kept = bytearray(len(TEXT))
    for piece, (start, _) in pre_tokenizer.pre_tokenize_str(TEXT):
        kept[start:start + len(piece)] = b"\1" * len(piece)
    return {c for c, k in zip(CPS, kept) if not k}


def ranges(cps):
    out = []
    for c in sorted(cps):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def categories():
    gc = {c: "Cs" for c in range(0xD800, 0xE000)}
    for name in GCS[:-1]:
        for c in removed_by(pre_tokenizers.Split(Regex(r"\p{%s}" % name), "removed")):
            gc[c] = name
    return gc


def gc_runs(gc):
    """(start, value) of each run; stretches of alternating Lu, Ll become one run."""
    runs, c = [], 0
    while c < 0x110000:
        if gc[c] == "Lu" and gc.get(c + 1) == "Ll" and gc.get(c + 2) == "Lu" and gc.get(c + 3) == "Ll":
            end = c
            while gc.get(end) == "Lu" and gc.get(end + 1) == "Ll":
                end += 2
            runs.append((c, ALTERNATING))
            c = end
            continue
        end = c
        while end < 0x110000 and gc[end] == gc[c]:
            end += 1
            if gc[c] == "Lu" and gc.get(end) == "Ll" and gc.get(end + 1) == "Lu":
                break
        if runs and runs[-1][1] == GCS.index(gc[c]):
            pass
        else:
            runs.append((c, GCS.index(gc[c])))
        c = end
    return runs


def inert(gc):
    """Characters that unicodedata gives a decomposition or a combining class, `tokenizers` not."""
    forms = {f: getattr(normalizers, f)() for f in ("NFD", "NFKD")}
    low, high = "\u0334", "\u0345"  # combining classes 1 and 240
    out = set()
    for c in CPS:
        ch = chr(c)
        if unicodedata.category(ch) == "Cn" and gc[c] != "Cn":
            out.add(c)  # newer than unicodedata, so newer than the normalizer too
            continue
        tests = [("NFD", ch), ("NFKD", ch), ("NFD", "a" + ch + low + high), ("NFD", "a" + high + ch)]
        if any(forms[f].normalize_str(s) != unicodedata.normalize(f, s) for f, s in tests):
            out.add(c)
    for c in out:  # inert must mean: nothing happens to it
        assert forms["NFKD"].normalize_str("a" + high + chr(c)) == "a" + high + chr(c)
    return out


def seconds(inert_set):
    """Characters that can join a preceding one under composition."""
    out = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for c in CPS:
        d = unicodedata.decomposition(chr(c))
        if d and not d.startswith("<") and " " in d and c not in inert_set:
            first, second = (int(x, 16) for x in d.split())
            if unicodedata.normalize("NFC", chr(first) + chr(second)) == chr(c):
                out.add(second)
    return out


def lower_extra():
    """(first, last, delta) of simple lower-case mappings newer than Unicode 14."""
    lower, out = normalizers.Lowercase(), []
    for c in CPS:
        got = lower.normalize_str(chr(c))
        if got == chr(c).lower() or len(got) != 1:
            continue
        delta = ord(got) - c
        if out and out[-1][1] == c - 1 and out[-1][2] == delta:
            out[-1][1] = c
        else:
            out.append([c, c, delta])
    return out


def emit(f, items, fmt, per_line):
    for i in range(0, len(items), per_line):
        f.write("    " + " ".join(fmt % tuple(x) for x in items[i:i + per_line]) + "\n")


def main():
    gc = categories()
    inert_set = inert(gc)
    punct = removed_by(pre_tokenizers.Punctuation("removed"))
    own = {c for c in CPS if gc[c][0] == "P" or (c < 128 and chr(c) in "$+<=>^`|~")}
    # Lower-case stability: everything else must be what Python's Unicode 14 says.
    tables = [("msgl__uni_punct_flips", ranges(punct ^ own)),
              ("msgl__uni_inert", ranges(inert_set)),
              ("msgl__uni_seconds", ranges(seconds(inert_set)))]
    path = sys.argv[1] if len(sys.argv) > 1 else "src/tokenizer/unicode_data.c"
    with open(path, "w") as f:
        f.write("// SPDX-License-Identifier: Apache-2.0\n//\n"
                "// Generated by tools/make_unicode_tables.py; do not edit. What each table means:\n"
                "// unicode_data.h.\n// clang-format off\n"
                '#include "tokenizer/unicode_data.h"\n\n')
        runs = gc_runs(gc)
        f.write("const uint32_t msgl__uni_gc_runs[] = {\n")
        emit(f, [(s << 8 | v,) for s, v in runs], "0x%x,", 8)
        f.write("};\nconst size_t msgl__uni_num_gc_runs = %d;\n" % len(runs))
        for name, table in tables:
            f.write("\nconst msgl_uni_range %s[] = {\n" % name)
            emit(f, table, "{0x%x, 0x%x},", 4)
            f.write("};\nconst size_t %s = %d;\n" % (name.replace("uni_", "uni_num_"), len(table)))
        script_ranges, first = [], []
        for name in SCRIPTS:
            first.append((name, len(script_ranges)))
            script_ranges += ranges(removed_by(pre_tokenizers.Split(Regex(r"\p{%s}" % name), "removed")))
        f.write("\nconst msgl_uni_range msgl__uni_script_ranges[] = {\n")
        emit(f, script_ranges, "{0x%x, 0x%x},", 4)
        f.write("};\n\nconst msgl_uni_script msgl__uni_scripts[] = {\n")
        ends = [b for _, b in first[1:]] + [len(script_ranges)]
        emit(f, [(n, a, b - a) for (n, a), b in zip(first, ends)], '{"%s", %d, %d},', 3)
        f.write("};\nconst size_t msgl__uni_num_scripts = %d;\n" % len(first))
        extra = lower_extra()
        f.write("\nconst msgl_uni_lower msgl__uni_lower[] = {\n")
        emit(f, extra, "{0x%x, 0x%x, %d},", 3)
        f.write("};\nconst size_t msgl__uni_num_lower = %d;\n" % len(extra))


if __name__ == "__main__":
    main()
