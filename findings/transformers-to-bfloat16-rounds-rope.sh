#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# transformers 5.24.0, torch 2.15.0 (CPU): model.to(torch.bfloat16) rounds the rotary embedding's frequencies with the
# weights; from_pretrained(dtype=torch.bfloat16) leaves them in float32. Both models say that they are bfloat16.
# Expected: the same model either way, or frequencies that a later .float() makes exact again.
# Seen: inv_freq is a buffer that no file has. Loading makes it anew, exactly; .to() casts it, and .float() keeps what is left.
# A frequency is off by up to 0.4 %, so the angle of a token at position 4,000 by up to 0.7. Expected values that a test makes
# by .to(bfloat16).float(), to have the stored weights, are those of another model than the one that was saved.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --no-cache-dir torch==2.15.0 transformers==5.24.0
cat >"$dir/show.py" <<'END'
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
model = LlamaForCausalLM(config).float()
model.save_pretrained(sys.argv[1])
exact = model.model.rotary_emb.inv_freq.clone()
loaded = LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
frequencies = loaded.model.rotary_emb.inv_freq
print("loaded:", loaded.dtype, "with frequencies in", frequencies.dtype, "exact:", torch.equal(frequencies, exact))
model.to(torch.bfloat16)
print("cast:", model.dtype, "with frequencies in", model.model.rotary_emb.inv_freq.dtype)
back = model.float().model.rotary_emb.inv_freq
angle = (4000 * (back - exact)).abs().max().item()
print("cast back: frequencies off by", round(((back - exact) / exact).abs().max().item(), 4), "the angle at 4,000 by", round(angle, 2))
sys.exit(0 if torch.equal(frequencies, exact) and loaded.dtype == torch.bfloat16 and angle > 0.5 else 1)
END
"$dir/venv/bin/python" "$dir/show.py" "$dir/model" 2>/dev/null
