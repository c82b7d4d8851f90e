#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# transformers 5.24.0: MiniMax-M3's text class neither writes nor reads the names that the whole model's class has in its files.
# Expected: MiniMaxM3VLForCausalLM.save_pretrained writes what MiniMaxM3SparseForConditionalGeneration does for its text part,
# without the prefix, as MixtralForCausalLM does with its stacked experts: a w1, w2 and w3 for each, gate_proj and up_proj apart.
# Seen: the text class writes its members' names: experts.gate_up_proj and experts.down_proj with all experts in one tensor,
# mlp.gate for block_sparse_moe.gate, self_attn.indexer.* for index_*, a gate_up_proj in dense and shared parts. Its own
# from_pretrained reads these alone: the text part of the whole model's file, without the prefix, comes back with all of that
# left at random, which a report on standard error tells and no exception. An engine has to know two layouts for one model.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
TMPDIR="$dir" "$dir/venv/bin/pip" install -q --no-cache-dir torch==2.15.0 transformers==5.24.0 numpy==2.4.6
cat >"$dir/show.py" <<'END'
import sys
import tempfile
from pathlib import Path

import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    MiniMaxM3SparseForConditionalGeneration,
    MiniMaxM3VLConfig,
    MiniMaxM3VLForCausalLM,
    MiniMaxM3VLTextConfig,
)

TEXT = dict(vocab_size=32, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, rotary_dim=8, num_local_experts=2, num_experts_per_tok=1, dense_intermediate_size=32,
            shared_intermediate_size=16, index_n_heads=1, index_head_dim=16, mlp_layer_types=["dense", "sparse"],
            layer_types=["full_attention", "minimax_m3_sparse"], bos_token_id=1, eos_token_id=2)
VISION = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)


def saved(model, folder):
    model.save_pretrained(folder)
    return load_file(Path(folder) / "model.safetensors")


print("transformers", transformers.__version__)
with tempfile.TemporaryDirectory() as folder:
    whole = saved(MiniMaxM3SparseForConditionalGeneration(
        MiniMaxM3VLConfig(text_config=dict(TEXT), vision_config=VISION, projector_hidden_size=32)), folder)
part = {name.removeprefix("language_model."): t for name, t in whole.items() if name.startswith("language_model.")}
with tempfile.TemporaryDirectory() as folder:
    own = saved(MiniMaxM3VLForCausalLM(MiniMaxM3VLTextConfig(**TEXT)), folder)
    (_, from_own) = MiniMaxM3VLForCausalLM.from_pretrained(folder, output_loading_info=True)
    save_file(part, Path(folder) / "model.safetensors", metadata=dict(format="pt"))
    (_, from_part) = MiniMaxM3VLForCausalLM.from_pretrained(folder, output_loading_info=True)
print("only in the whole model's file:", *sorted(part.keys() - own.keys()), sep="\n    ")
print("only in the text class's file:", *sorted(own.keys() - part.keys()), sep="\n    ")
print(f"left at random of {len(own)} tensors when the text class reads its own file: {len(from_own['missing_keys'])}, the text part "
      f"of the whole model's: {len(from_part['missing_keys'])}")
experts = [f"model.layers.1.block_sparse_moe.experts.{e}.w{i}.weight" for e in (0, 1) for i in (1, 2, 3)]
stacked = [f"model.layers.1.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")]
good = set(experts) <= part.keys() - own.keys() and set(stacked) <= own.keys() - part.keys()
good = good and any(".indexer." in name for name in own) and any(".index_q_proj." in name for name in part)
sys.exit(0 if good and not from_own["missing_keys"] and from_part["missing_keys"] == own.keys() - part.keys() else 1)
END
"$dir/venv/bin/python" "$dir/show.py" 2>/dev/null
