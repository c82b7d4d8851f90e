#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes random adapters of all linear layers of a dense model, to be measured with.

    python3 tools/make_bench_adapter.py bench/models/qwen3-0.6b OUT [RANK [COUNT]]

Needs torch and safetensors. OUT/0, OUT/1, ... are PEFT folders.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file


def main():
    config = json.loads((Path(sys.argv[1]) / "config.json").read_text())
    out = Path(sys.argv[2])
    rank, count = (int(x) for x in (sys.argv[3:] + ["16", "4"][len(sys.argv) - 3 :])[:2])
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim") or hidden // heads
    sizes = {
        "self_attn.q_proj": (heads * head, hidden),
        "self_attn.k_proj": (kv * head, hidden),
        "self_attn.v_proj": (kv * head, hidden),
        "self_attn.o_proj": (hidden, heads * head),
        "mlp.gate_proj": (inter, hidden),
        "mlp.up_proj": (inter, hidden),
        "mlp.down_proj": (hidden, inter),
    }
    for i in range(count):
        torch.manual_seed(i)
        tensors = {}
        for layer in range(config["num_hidden_layers"]):
            for name, (rows, cols) in sizes.items():
                at = f"base_model.model.model.layers.{layer}.{name}"
                a, b = torch.randn(rank, cols) * cols**-0.5, torch.randn(rows, rank) * 0.01
                tensors[at + ".lora_A.weight"] = a.bfloat16()
                tensors[at + ".lora_B.weight"] = b.bfloat16()
        folder = out / str(i)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "adapter_model.safetensors")
        settings = dict(peft_type="LORA", r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        (folder / "adapter_config.json").write_text(json.dumps(settings))


main()
