#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the benchmark's model: a random bf16 Qwen3, as a Hugging Face folder and as GGUF.

usage: make_bench_model.py OUT_DIR [--shape DIR] [--layers N] [--gguf-only]

Speed does not depend on the values of the weights, so they are random; shapes, vocabulary size and
tied head are those of the shape's config.json (bench/models). The tokenizer is byte-level with no merges
but a few, so that a text of n ASCII characters has about n tokens. Needs numpy and gguf (PyPI).
"""
import argparse
import json
import pathlib
import struct

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEMPLATE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def tensors(c):
    """(Hugging Face name, GGUF name, shape) of a config's tensors, in file order."""
    hidden, ffn = c["hidden_size"], c["intermediate_size"]
    q, kv = (c[heads] * c["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embed_tokens.weight", "token_embd.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        h, g = f"model.layers.{i}.", f"blk.{i}."
        yield h + "input_layernorm.weight", g + "attn_norm.weight", (hidden,)
        yield h + "self_attn.q_proj.weight", g + "attn_q.weight", (q, hidden)
        yield h + "self_attn.k_proj.weight", g + "attn_k.weight", (kv, hidden)
        yield h + "self_attn.v_proj.weight", g + "attn_v.weight", (kv, hidden)
        yield h + "self_attn.q_norm.weight", g + "attn_q_norm.weight", (c["head_dim"],)
        yield h + "self_attn.k_norm.weight", g + "attn_k_norm.weight", (c["head_dim"],)
        yield h + "self_attn.o_proj.weight", g + "attn_output.weight", (hidden, q)
        yield h + "post_attention_layernorm.weight", g + "ffn_norm.weight", (hidden,)
        yield h + "mlp.gate_proj.weight", g + "ffn_gate.weight", (ffn, hidden)
        yield h + "mlp.up_proj.weight", g + "ffn_up.weight", (ffn, hidden)
        yield h + "mlp.down_proj.weight", g + "ffn_down.weight", (hidden, ffn)
    yield "model.norm.weight", "output_norm.weight", (hidden,)


def bf16(values):
    """f32 -> bf16 bits, rounded to nearest even."""
    u = values.view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def values(shape, rng):
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[1] ** -0.5)


def vocabulary(size):
    """256 byte tokens in GPT-2's printable spelling, a few merges, fillers, control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelling = {b: chr(b) for b in printable}
    for n, b in enumerate(b for b in range(256) if b not in spelling):
        spelling[b] = chr(256 + n)
    tokens = [spelling[b] for b in range(256)]
    merges = [("Ġ", "t"), ("h", "e"), ("i", "n")]
    tokens += [a + b for a, b in merges]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens += [f"[filler{i}]" for i in range(size - len(tokens) - len(special))]
    return tokens, merges, special


def write_folder(out, config, tokens, merges, special):
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
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [config["eos_token_id"]]}))


def safetensors_header(path, config):
    """A file of bf16 tensors, open where their data comes: only one of them is ever in memory."""
    header, at = {}, 0
    for name, _, shape in tensors(config):
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    f = open(path, "wb")
    f.write(struct.pack("<Q", len(text)) + text)
    return f


def gguf_header(path, c, tokens, merges, special):
    """A GGUF file, open where the tensors' data comes."""
    w = gguf.GGUFWriter(path, "qwen3")
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens + special)
    w.add_token_types([gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * len(special))
    w.add_token_merges([f"{a} {b}" for a, b in merges])
    w.add_eos_token_id(c["eos_token_id"])
    w.add_pad_token_id(c["bos_token_id"])
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)
    for _, name, shape in tensors(c):
        if len(shape) == 1:
            w.add_tensor_info(name, shape, np.dtype(np.float32), 4 * shape[0])
        else:
            w.add_tensor_info(name, (shape[0], 2 * shape[1]), np.dtype(np.uint8), 2 * shape[0] * shape[1],
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    return w


def write_weights(config, writer, safetensors):
    rng = np.random.default_rng(0)
    for _, _, shape in tensors(config):
        v = values(shape, rng)
        half = bf16(v)
        writer.write_tensor_data(v if len(shape) == 1 else half.view(np.uint8))
        if safetensors:
            safetensors.write(half.tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--shape", type=pathlib.Path, default=ROOT / "bench" / "models" / "qwen3-0.6b",
                        help="folder of the config.json")
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--gguf-only", action="store_true", help="no folder of Hugging Face's, half the disk")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    config = json.loads((args.shape / "config.json").read_text())
    vocab = config["vocab_size"]
    config.update(num_hidden_layers=args.layers or config["num_hidden_layers"], rope_scaling=None,
                  eos_token_id=vocab - 1, bos_token_id=vocab - 3)
    text = vocabulary(vocab)
    if not args.gguf_only:
        write_folder(args.out, config, *text)
    safetensors = None if args.gguf_only else safetensors_header(args.out / "model.safetensors", config)
    writer = gguf_header(args.out / "model.gguf", config, *text)
    write_weights(config, writer, safetensors)
    writer.close()
    if safetensors:
        safetensors.close()


if __name__ == "__main__":
    main()
