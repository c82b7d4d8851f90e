#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints as JSON what the limits of a GGUF file follow from: bytes read for a token, products, shape.

usage: gguf_facts.py FILE.gguf

It needs gguf (PyPI), so that bench/peers runs it by the Python of its virtual environment.
"""
import json
import pathlib
import sys

import gguf


def facts(path):
    reader = gguf.GGUFReader(path)
    names = {t.name for t in reader.tensors}

    def field(name, default=None):
        found = reader.get_field(f"{reader.get_field('general.architecture').contents()}.{name}")
        return default if found is None else found.contents()

    # Of a table of its own an answer's token reads one row; a tied one is read as the head.
    table = "token_embd.weight" if "output.weight" in names else None
    heads = field("attention.head_count")
    each = field("embedding_length") // heads
    key, value = field("attention.key_length", each), field("attention.value_length", each)
    layers = field("block_count")
    return {
        "file_bytes": pathlib.Path(path).stat().st_size,
        "read_bytes": sum(int(t.n_bytes) for t in reader.tensors if t.name != table),
        # A prompt's last token alone goes through the head.
        "layer_weights": sum(int(t.n_elements) for t in reader.tensors
                             if len(t.shape) == 2 and t.name not in ("token_embd.weight", "output.weight")),
        "kv_bytes": 2 * layers * field("attention.head_count_kv", heads) * (key + value),
        "attention_width": layers * heads * (key + value),
    }


if __name__ == "__main__":
    print(json.dumps(facts(sys.argv[1])))
