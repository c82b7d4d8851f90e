#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/gguf/converted/qwen35.gguf and qwen35moe.gguf of tests/vectors/models/qwen3_5 and qwen3_5_moe.

usage: make_qwen35_gguf.py TESTS_VECTORS    (PyPI: numpy, gguf)

What llama.cpp's converter does with these models (its conversion/qwen.py, classes Qwen3NextModel and
_LinearAttentionVReorderBase), done again with numpy: norms + 1, A_log as -exp of it, taps without their middle dimension,
and the value heads that share a key head no longer side by side but num_key_heads apart. `ssm_out` of the first file is
F64, which no converter writes: it makes readers expand columns in that order. But for that type all tensors are bit for bit,
with their names, types and dimensions, those of the converter itself (of llama-cpp-python 0.3.36, by convert_by_llama_cpp.py
with bf16 and --no-mtp); so are the model's keys. What is left out are the tokenizer and the file's own name and type.
"""
import json
import pathlib
import re
import struct
import sys

import gguf
import numpy as np

NAMES = {
    "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "post_attention_norm.weight",
    "linear_attn.A_log": "ssm_a", "linear_attn.conv1d.weight": "ssm_conv1d.weight", "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight", "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight", "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.norm.weight": "ssm_norm.weight", "linear_attn.out_proj.weight": "ssm_out.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight", "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight", "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
} | {f"mlp.{m}_proj.weight": f"ffn_{m}.weight" for m in ("gate", "up", "down")} | {
    f"mlp.shared_expert.{m}_proj.weight": f"ffn_{m}_shexp.weight" for m in ("gate", "up", "down")}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
       "model.norm.weight": "output_norm.weight"}


def read(path):
    """{name: float32 array} of a file of BF16."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, t in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "BF16", name
        begin, end = (8 + size + o for o in t["data_offsets"])
        words = np.frombuffer(data[begin:end], "<u2").astype("<u4") << 16
        tensors[name] = words.view("<f4").reshape(t["shape"])
    return tensors


def reorder(x, axis, c, width):
    """Heads of `width` along the axis: those of a key head come to stand num_key_heads apart."""
    keys, each = c["linear_num_key_heads"], c["linear_num_value_heads"] // c["linear_num_key_heads"]
    shape = x.shape
    x = x.reshape(*shape[:axis], keys, each, width, *shape[axis + 1:])
    return np.ascontiguousarray(np.swapaxes(x, axis, axis + 1)).reshape(shape)


def convert(name, x, c):
    keys, v = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"], c["linear_value_head_dim"]
    if name.endswith("in_proj_qkv.weight"):
        x = np.concatenate([x[:keys], reorder(x[keys:], 0, c, v)])
    elif name.endswith("in_proj_z.weight"):
        x = reorder(x, 0, c, v)
    elif name.endswith(("in_proj_a.weight", "in_proj_b.weight", "dt_bias")):
        x = reorder(x, 0, c, 1)
    elif name.endswith("A_log"):
        x = -np.exp(reorder(x, 0, c, 1).astype("<f8"))
    elif name.endswith("conv1d.weight"):
        x = x.squeeze(1)
        x = np.concatenate([x[:keys], reorder(x[keys:], 0, c, v)])
    elif name.endswith("out_proj.weight"):
        x = reorder(x, 1, c, v)
    elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        x = x + 1
    return x


def add(w, name, x, f64):
    if x.ndim == 1 or name.endswith(("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "conv1d.weight")):
        w.add_tensor(name, np.ascontiguousarray(x, "<f4"))
    elif f64 and name.endswith("ssm_out.weight"):
        w.add_tensor(name, np.ascontiguousarray(x, "<f8"))
    else:
        words = (np.ascontiguousarray(x, "<f4").view("<u4") >> 16).astype("<u2")
        w.add_tensor(name, words.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def add_values(w, c):
    rope = c["rope_parameters"]
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(c["head_dim"] * rope["partial_rotary_factor"]))
    w.add_rope_dimension_sections([*rope["mrope_section"], 0])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    every = c.get("full_attention_interval", 4)
    layers = [bool((i + 1) % every) for i in range(c["num_hidden_layers"])]
    if "layer_types" in c:
        layers = [t == "linear_attention" for t in c["layer_types"]]
    w.add_array(f"{w.arch}.attention.recurrent_layers", layers)
    w.add_uint32(f"{w.arch}.full_attention_interval", every)
    if "num_experts" in c:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    else:
        w.add_feed_forward_length(c["intermediate_size"])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    vectors = pathlib.Path(sys.argv[1])
    for folder, arch in (("qwen3_5", "qwen35"), ("qwen3_5_moe", "qwen35moe")):
        source = vectors / "models" / folder
        c = json.loads((source / "config.json").read_text())
        w = gguf.GGUFWriter(vectors / "gguf" / "converted" / f"{arch}.gguf", arch)
        add_values(w, c)
        w.add_token_list([f"t{i}" for i in range(c["vocab_size"])])
        experts = {}
        for name, x in read(source / "model.safetensors").items():
            if name.startswith("mtp."):
                continue
            expert = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(\w+)_proj\.weight", name)
            if expert:
                experts.setdefault((expert[1], expert[3]), {})[int(expert[2])] = x
                continue
            block = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
            out = f"blk.{block[1]}.{NAMES[block[2]]}" if block else TOP[name]
            add(w, out, convert(name, x, c), arch == "qwen35")
        for (layer, which), of in experts.items():
            add(w, f"blk.{layer}.ffn_{which}_exps.weight", np.stack([of[i] for i in sorted(of)]), False)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


if __name__ == "__main__":
    main()
