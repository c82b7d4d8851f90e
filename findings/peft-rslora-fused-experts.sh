#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# peft 0.21.2: a Mixtral adapter that was trained with use_rslora before experts were stacked is loaded with another scale.
# Expected: an adapter with w1, w2 and w3 of each expert, r 4 and lora_alpha 4 has the scale 4 / sqrt(4) = 2 with use_rslora, so
# that it computes what the same matrices do with lora_alpha 8 and the scale 8 / 4 = 2 without it.
# Seen: w1 and w3 become one gate_up_proj of twice the rank, and lora_alpha is doubled with it, which leaves alpha / r as it was
# but not alpha / sqrt(r): the scale of gate_up_proj is 8 / sqrt(8) = 2.83, by sqrt(2) too large, while down_proj (w2) keeps 2.
# The two adapters no longer agree. There is no error and no warning. An engine that scales by the file's own numbers differs
# from peft by this factor in the experts' first matrices.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
TMPDIR="$dir" "$dir/venv/bin/pip" install -q --no-cache-dir torch==2.15.0 peft==0.21.2 transformers==5.24.0 numpy==2.4.6
cat >"$dir/show.py" <<'END'
import json
import sys
import tempfile
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import save_file
from transformers import MixtralConfig, MixtralForCausalLM

HIDDEN, INNER, EXPERTS, RANK = 16, 24, 2, 4
IDS = torch.arange(12)[None]


def base():
    torch.manual_seed(0)
    model = MixtralForCausalLM(
        MixtralConfig(vocab_size=32, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=1, num_attention_heads=2,
                      num_key_value_heads=2, num_local_experts=EXPERTS, num_experts_per_tok=2)
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3)
    return model


def matrices():
    """An adapter in the names of the experts one by one, as peft wrote it for transformers 4."""
    torch.manual_seed(1)
    tensors = {}
    for expert in range(EXPERTS):
        for name, out, inp in (("w1", INNER, HIDDEN), ("w2", HIDDEN, INNER), ("w3", INNER, HIDDEN)):
            key = f"base_model.model.model.layers.0.block_sparse_moe.experts.{expert}.{name}"
            tensors[key + ".lora_A.weight"] = torch.randn(RANK, inp) * 0.3
            tensors[key + ".lora_B.weight"] = torch.randn(out, RANK) * 0.3
    return tensors


print("peft", peft.__version__, "transformers", transformers.__version__)
scales, logits = [], []
for alpha, rslora in ((8, False), (4, True)):
    with tempfile.TemporaryDirectory() as folder:
        save_file(matrices(), Path(folder) / "adapter_model.safetensors")
        config = dict(peft_type="LORA", task_type="CAUSAL_LM", r=RANK, lora_alpha=alpha, use_rslora=rslora,
                      target_modules=["w1", "w2", "w3"])
        (Path(folder) / "adapter_config.json").write_text(json.dumps(config))
        model = peft.PeftModel.from_pretrained(base(), folder).eval()
    layers = [m for m in model.modules() if isinstance(m, peft.tuners.lora.ParamWrapper)]
    scales.append({m.parameter_name: round(m.scaling["default"], 3) for m in layers})
    with torch.no_grad():
        logits.append(model(IDS).logits)
    print(f"lora_alpha {alpha}, use_rslora {rslora}: scales {scales[-1]}")
with torch.no_grad():
    effect = float((logits[0] - base()(IDS).logits).abs().max())
moved = float((logits[0] - logits[1]).abs().max())
print(f"the adapter moves logits by up to {effect:.3f}; the two, which mean the same, differ by up to {moved:.3f}")
as_described = [dict(gate_up_proj=2.0, down_proj=2.0), dict(gate_up_proj=2.828, down_proj=2.0)]
sys.exit(0 if scales == as_described and moved > 0.05 * effect else 1)
END
"$dir/venv/bin/python" "$dir/show.py" 2>/dev/null
