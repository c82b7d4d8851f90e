#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the benchmark's model: a random bf16 Qwen3-0.6B, as a Hugging Face folder and as GGUF.

usage: make_bench_model.py OUT_DIR [--layers N]

Speed does not depend on the values of the weights, so they are random; shapes, vocabulary size and
tied head are those of Qwen3-0.6B. The tokenizer is byte-level with no merges but a few, so that a text
of n ASCII characters has about n tokens. Needs numpy and gguf (PyPI).
"""
import argparse
import json
import pathlib
import struct

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 1024, 16, 8, 128, 3072, 151936
THETA, EPS, CONTEXT = 1000000.0, 1e-6, 40960
TEMPLATE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def tensors(layers):
    """(Hugging Face name, GGUF name, shape), in file order."""
    yield "model.embed_tokens.weight", "token_embd.weight", (VOCAB, HIDDEN)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for i in range(layers):
        h, g = f"model.layers.{i}.", f"blk.{i}."
        yield h + "input_layernorm.weight", g + "attn_norm.weight", (HIDDEN,)
        yield h + "self_attn.q_proj.weight", g + "attn_q.weight", (q, HIDDEN)
        yield h + "self_attn.k_proj.weight", g + "attn_k.weight", (kv, HIDDEN)
        yield h + "self_attn.v_proj.weight", g + "attn_v.weight", (kv, HIDDEN)
        yield h + "self_attn.q_norm.weight", g + "attn_q_norm.weight", (HEAD_DIM,)
        yield h + "self_attn.k_norm.weight", g + "attn_k_norm.weight", (HEAD_DIM,)
        yield h + "self_attn.o_proj.weight", g + "attn_output.weight", (HIDDEN, q)
        yield h + "post_attention_layernorm.weight", g + "ffn_norm.weight", (HIDDEN,)
        yield h + "mlp.gate_proj.weight", g + "ffn_gate.weight", (FFN, HIDDEN)
        yield h + "mlp.up_proj.weight", g + "ffn_up.weight", (FFN, HIDDEN)
        yield h + "mlp.down_proj.weight", g + "ffn_down.weight", (HIDDEN, FFN)
    yield "model.norm.weight", "output_norm.weight", (HIDDEN,)


def bf16(values):
    """f32 -> bf16 bits, rounded to nearest even."""
    u = values.view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def values(shape, rng):
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[1] ** -0.5)


def vocabulary():
    """256 byte tokens in GPT-2's printable spelling, a few merges, fillers, control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelling = {b: chr(b) for b in printable}
    for n, b in enumerate(b for b in range(256) if b not in spelling):
        spelling[b] = chr(256 + n)
    tokens = [spelling[b] for b in range(256)]
    merges = [("Ġ", "t"), ("h", "e"), ("i", "n")]
    tokens += [a + b for a, b in merges]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens += [f"[filler{i}]" for i in range(VOCAB - len(tokens) - len(special))]
    return tokens, merges, special


def write_folder(out, layers, tokens, merges, special):
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": HIDDEN,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "intermediate_size": FFN, "vocab_size": VOCAB, "hidden_act": "silu",
        "rms_norm_eps": EPS, "rope_theta": THETA, "rope_scaling": None,
        "max_position_embeddings": CONTEXT, "tie_word_embeddings": True, "attention_bias": False,
        "torch_dtype": "bfloat16", "eos_token_id": VOCAB - 1, "bos_token_id": VOCAB - 3,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1))
    vocab = {t: i for i, t in enumerate(tokens)}
    added = [{"id": len(tokens) + i, "content": s, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": True} for i, s in enumerate(special)]
    split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    (out / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                           "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                    "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                  "vocab": vocab, "merges": [f"{a} {b}" for a, b in merges]}}, ensure_ascii=False))
    (out / "tokenizer_config.json").write_text(json.dumps({
        "chat_template": TEMPLATE, "eos_token": special[2], "pad_token": special[0]}))
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [VOCAB - 1]}))


def write_weights(out, layers, writer):
    rng = np.random.default_rng(0)
    header, at = {}, 0
    plan = list(tensors(layers))
    for name, _, shape in plan:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(out / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, short, shape in plan:
            v = values(shape, rng)
            half = bf16(v)
            f.write(half.tobytes())
            if len(shape) == 1:
                writer.add_tensor(short, v)
            else:
                writer.add_tensor(short, half.view(np.uint8), raw_shape=(shape[0], shape[1] * 2),
                                  raw_dtype=gguf.GGMLQuantizationType.BF16)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=28)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokens, merges, special = vocabulary()
    write_folder(args.out, args.layers, tokens, merges, special)
    w = gguf.GGUFWriter(args.out / "model.gguf", "qwen3")
    w.add_context_length(CONTEXT)
    w.add_embedding_length(HIDDEN)
    w.add_block_count(args.layers)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD_DIM)
    w.add_value_length(HEAD_DIM)
    w.add_rope_freq_base(THETA)
    w.add_layer_norm_rms_eps(EPS)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens + special)
    w.add_token_types([gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * len(special))
    w.add_token_merges([f"{a} {b}" for a, b in merges])
    w.add_eos_token_id(VOCAB - 1)
    w.add_pad_token_id(VOCAB - 3)
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)
    write_weights(args.out, args.layers, w)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
