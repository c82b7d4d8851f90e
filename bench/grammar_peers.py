#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llguidance and xgrammar on the documents that bench_grammar goes through.

usage: grammar_peers.py MODEL_DIR SCHEMAS.json [ROUNDS]     (in a venv with llguidance, xgrammar, numpy)

Each document is cut into the longest tokens of the vocabulary, as there; every mask is timed by
perf_counter around the library's own call into a buffer, so the price of Python's call (some 0.3 us)
is in the figures. A schema that a library refuses, or a document that it does, is counted and left out.
"""
import json
import pathlib
import sys
import time

import numpy as np


def byte_map():
    bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    cs = bs[:]
    for b in range(256):
        if b not in bs:
            bs.append(b)
            cs.append(256 + len(cs) - 188)
    return {chr(c): b for b, c in zip(bs, cs)}


class Words:
    def __init__(self, folder):
        j = json.loads((pathlib.Path(folder) / "tokenizer.json").read_text())
        back = byte_map()
        self.vocab = j["model"]["vocab"]
        self.by_bytes = {bytes(back[c] for c in t): i for t, i in self.vocab.items() if all(c in back for c in t)}
        self.added = {a["content"]: a["id"] for a in j["added_tokens"]}
        for t, i in self.added.items():
            self.by_bytes.pop(t.encode(), None)
        self.longest = max(map(len, self.by_bytes))

    def cut(self, text):
        data, at, out = text.encode(), 0, []
        while at < len(data):
            for n in range(min(self.longest, len(data) - at), 0, -1):
                if data[at:at + n] in self.by_bytes:
                    out.append(self.by_bytes[data[at:at + n]])
                    at += n
                    break
        return out


def show(name, what, s):
    if not s:
        return
    a = np.array(s) * 1e6
    print(f"{name:10} {what:8} n {len(a):7}  mean {a.mean():8.2f}  p50 {np.percentile(a, 50):8.2f}  "
          f"p90 {np.percentile(a, 90):8.2f}  p99 {np.percentile(a, 99):8.2f}  max {a.max():8.2f} us")


class LLGuidance:
    name = "llguidance"

    def __init__(self, folder, words):
        import llguidance
        import llguidance.numpy
        self.l, self.np = llguidance, llguidance.numpy
        eos = next(iter(words.added.values()))
        self.tok = llguidance.LLTokenizer((pathlib.Path(folder) / "tokenizer.json").read_text(), eos_token=eos)
        self.bits = self.np.allocate_token_bitmask(1, self.tok.vocab_size)

    def compile(self, schema):
        g = self.l.LLMatcher.grammar_from_json_schema(schema)
        m = self.l.LLMatcher(self.tok, g)
        if m.is_error():
            raise ValueError(m.get_error())
        return g

    def matcher(self, g):
        return self.l.LLMatcher(self.tok, g)

    def fill(self, m):
        self.np.fill_next_token_bitmask(m, self.bits)

    def accept(self, m, t):
        return m.consume_token(t)


class XGrammar:
    name = "xgrammar"

    def __init__(self, folder, words):
        import xgrammar
        self.x = xgrammar
        n = max(max(words.vocab.values()), max(words.added.values(), default=0)) + 1
        names = [""] * n
        for t, i in list(words.vocab.items()) + list(words.added.items()):
            names[i] = t
        info = xgrammar.TokenizerInfo(names, vocab_type=xgrammar.VocabType.BYTE_LEVEL, vocab_size=n,
                                      stop_token_ids=[next(iter(words.added.values()))])
        self.c = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = np.zeros((1, (n + 31) // 32), dtype=np.int32)
        try:
            import torch
            self.bits = xgrammar.allocate_token_bitmask(1, n)
        except ImportError:
            pass

    def compile(self, schema):
        return self.c.compile_json_schema(schema, any_whitespace=True)

    def matcher(self, g):
        return self.x.GrammarMatcher(g)

    def fill(self, m):
        m.fill_next_token_bitmask(self.bits)

    def accept(self, m, t):
        return m.accept_token(t)


def run(peer, words, cases, rounds):
    compiled, masks, accepts, refused, bad = [], [], [], set(), 0
    for _ in range(rounds):
        for c in cases:
            t0 = time.perf_counter()
            try:
                g = peer.compile(json.dumps(c["schema"]))
            except Exception:
                refused.add(c["name"])
                continue
            compiled.append(time.perf_counter() - t0)
            for d in c["valid"]:
                m = peer.matcher(g)
                for t in words.cut(d):
                    t0 = time.perf_counter()
                    peer.fill(m)
                    t1 = time.perf_counter()
                    ok = peer.accept(m, t)
                    t2 = time.perf_counter()
                    masks.append(t1 - t0)
                    accepts.append(t2 - t1)
                    if not ok:
                        bad += 1
                        break
    show(peer.name, "compile", compiled)
    show(peer.name, "mask", masks)
    show(peer.name, "accept", accepts)
    print(f"{peer.name:10} refused {len(refused)} schemas {sorted(refused)}, {bad // rounds} documents")


def main():
    folder, cases = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text())
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    words = Words(folder)
    for peer in (LLGuidance, XGrammar):
        try:
            p = peer(folder, words)
        except Exception as e:
            print(f"{peer.name:10} cannot run: {e!r}"[:300])
            continue
        run(p, words, cases, rounds)


main()
