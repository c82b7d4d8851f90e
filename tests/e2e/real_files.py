#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two quantised files that people have downloaded answer, and as exact arithmetic does.

usage: real_files.py MINISGL    (MINISGL_REAL_FILES: the folder that bench/peers_files.py has filled; skipped without)
"""
import json
import os
import pathlib
import subprocess
import sys

CAPITALS = {"France": "Paris", "Germany": "Berlin", "Japan": "Tokyo"}


def answer(minisgl, model, prompt, *flags):
    out = subprocess.run([minisgl, "run", "--model", model, "--prompt", prompt, "--max-tokens", "24", "--temperature", "0",
                          *flags], capture_output=True, text=True, check=True, timeout=300).stdout
    return json.loads(out)["text"]


def main():
    minisgl, folder = sys.argv[1], os.environ.get("MINISGL_REAL_FILES")
    if folder is None:
        print("no MINISGL_REAL_FILES")
        sys.exit(77)
    # With activations of 8 bits this model does not name all three, with llama.cpp neither.
    by16 = {"amx_bf16", "avx512_fp16"} <= set(pathlib.Path("/proc/cpuinfo").read_text().split())
    smollm2, gemma3 = f"{folder}/smollm2.gguf", f"{folder}/gemma3.gguf"
    asked = [(smollm2, f"What is the capital of {country}?", capital) for country, capital in CAPITALS.items()]
    for model, prompt, word in [*asked, (gemma3, "What is the largest city of France?", " ")]:
        exact = answer(minisgl, model, prompt, "--dtype", "float32")
        default = answer(minisgl, model, prompt)
        assert word in exact, f"{prompt} {exact}"
        assert default == exact if by16 else default, f"{prompt} {default}, not {exact}"
    info = subprocess.run([minisgl, "info", gemma3], capture_output=True, text=True, check=True).stdout
    assert "Q5_0 " in info and "Q4_K " in info, info
    print("ok")


if __name__ == "__main__":
    main()
