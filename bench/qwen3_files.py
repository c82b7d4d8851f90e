# SPDX-License-Identifier: Apache-2.0
"""Tensors of a Qwen3 and safetensors files of random ones in bfloat16, for benchmarks that have to read files."""
import array
import json
import random
import struct


def tensors(config):
    """{name: shape} of a checkpoint with this config.json."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = dim * config["num_attention_heads"], dim * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in (("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)),
                            ("self_attn.q_norm", (dim,)), ("self_attn.k_norm", (dim,)), ("self_attn.q_proj", (q, hidden)),
                            ("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden)),
                            ("self_attn.o_proj", (hidden, q)), ("mlp.gate_proj", (inner, hidden)),
                            ("mlp.up_proj", (inner, hidden)), ("mlp.down_proj", (hidden, inner))):
            shapes["model.layers.%d.%s.weight" % (layer, name)] = shape
    return shapes


def size_of(shape):
    """Bytes in bfloat16."""
    return 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)


def noise(seed, exponent, count):
    """Bytes of `count` values of bfloat16 of either sign, from 2^exponent to less than twice that."""
    rng = random.Random(seed)
    bits = (exponent + 127) << 7
    return array.array("H", (bits | (rng.getrandbits(16) & 0x807F) for _ in range(count))).tobytes()


def write(path, shapes, values):
    """A safetensors file of {name: shape}; the bytes `values` over and over are its data."""
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size_of(shape)]}
        end += size_of(shape)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        while end > 0:
            f.write(values[:end])
            end -= min(end, len(values))
