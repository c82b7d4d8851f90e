#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# transformers 5.24.0: from_pretrained of an HQQ folder returns a model whose quantised layers are random.
# Expected: the folder is read, as transformers 4.57 does, which saved it in this form; or refused, as quantising with
# HqqConfig is ("not available yet", NotImplementedError).
# Seen: nothing makes HQQ's modules from W_q, scale and zero. A report lists these as UNEXPECTED and the layers' weights as
# MISSING, "newly initialized", and the model is returned. Of two loads the layers differ. Whoever does not read the report
# generates noise.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --no-cache-dir torch==2.15.0 transformers==5.24.0 accelerate==1.15.0 setuptools==84.2.1 wheel==0.48.0 \
    termcolor==3.3.0 einops==0.8.2
"$dir/venv/bin/pip" install -q --no-cache-dir --no-deps --no-build-isolation hqq==0.2.8.post1
cat >"$dir/show.py" <<'END'
import json
import sys
from pathlib import Path

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

folder = Path(sys.argv[1])
config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=64)
model = LlamaForCausalLM(config)
tensors = {name: t for name, t in model.state_dict().items() if not name.endswith("_proj.weight")}
settings = BaseQuantizeConfig(nbits=4, group_size=64, axis=1)
for name, layer in model.named_modules():
    if name.endswith("_proj"):
        packed = HQQLinear(layer, settings, compute_dtype=torch.float32, device="cpu", del_orig=False)
        tensors |= {f"{name}.{key}": t for key, t in packed.state_dict().items()}
save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
quantization = {"quant_method": "hqq", "quant_config": settings, "skip_modules": ["lm_head"]}
(folder / "config.json").write_text(json.dumps(config.to_dict() | {"architectures": ["LlamaForCausalLM"], "quantization_config": quantization}))
original = model.model.layers[0].self_attn.q_proj.weight
loaded = [AutoModelForCausalLM.from_pretrained(folder).model.layers[0].self_attn.q_proj for _ in range(2)]
kinds = [type(layer).__name__ for layer in loaded]
off = [(layer.weight - original).norm().item() / original.norm().item() for layer in loaded] if kinds == ["Linear"] * 2 else []
print("q_proj is", kinds, "off by", [round(x, 2) for x in off], "of its own size")
same = len(off) == 2 and torch.equal(loaded[0].weight, loaded[1].weight)
sys.exit(0 if len(off) == 2 and min(off) > 1 and not same else 1)
END
mkdir "$dir/model"
"$dir/venv/bin/python" "$dir/show.py" "$dir/model" 2>/dev/null
