#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# llama-cpp-python 0.3.36: its llama.cpp's converter makes a model of experts, of width 0, of a dense Nemotron-H.
# Expected: a Nemotron-H of a Mamba-2, an MLP and an attention layer that transformers 5.24.0 saved becomes a GGUF file of the
# architecture nemotron_h, with the MLP's width of 48 for its layer.
# Seen: transformers puts the fields of experts into the config of every Nemotron-H (8 experts, 2 of them in use), and names
# layers in layers_block_type. The converter takes the presence of num_experts_per_tok for experts and does not know the kind
# "mlp" of layers_block_type: the file says nemotron_h_moe, 8 experts and widths of [0, 0, 0], while its tensors are those of a
# dense MLP, 32 x 48, and no expert. There is no error. It is so whether the converter reads config.json as it is, as it does with
# the transformers 4.57.6 that it asks for, or through transformers 5.24.0; that makes experts even of the released form of the
# config (hybrid_override_pattern, no field of experts), which is converted well where it is read as it is.
# An engine that takes the width from the file finds 0, and is told of experts that are not there.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
TMPDIR="$dir" "$dir/venv/bin/pip" install -q --no-cache-dir torch==2.15.0 transformers==5.24.0 numpy==2.4.6
TMPDIR="$dir" "$dir/venv/bin/pip" download -q --no-cache-dir --no-deps --no-binary llama-cpp-python -d "$dir" llama-cpp-python==0.3.36
tar -xzf "$dir/llama_cpp_python-0.3.36.tar.gz" -C "$dir"
cat >"$dir/show.py" <<'END'
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import NemotronHConfig, NemotronHForCausalLM

sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
import gguf
from conversion import ModelBase, get_model_class


def converted(folder, hparams):
    kind = get_model_class(hparams["architectures"][0])
    kind.set_vocab = kind._set_vocab_none  # the folder has no tokenizer
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.ALL_F32, folder / "model.gguf", hparams=hparams).write()
    file = gguf.GGUFReader(folder / "model.gguf")
    arch = file.fields["general.architecture"].contents()
    fields = {name.removeprefix(arch + "."): field.contents() for name, field in file.fields.items()}
    tensors = {t.name: tuple(map(int, t.shape)) for t in file.tensors if "ffn" in t.name}
    return arch, fields["feed_forward_length"], fields.get("expert_count"), tensors


def both(folder):
    """Converted by the config as the file has it, and as transformers reads it."""
    as_it_is = json.loads((folder / "config.json").read_text())
    return [converted(folder, as_it_is), converted(folder, ModelBase.load_hparams(folder, False))]


print("transformers", transformers.__version__, "llama-cpp-python 0.3.36")
got = []
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    NemotronHForCausalLM(
        NemotronHConfig(vocab_size=32, hidden_size=32, intermediate_size=48, layers_block_type=["mamba", "mlp", "attention"],
                        num_attention_heads=2, num_key_value_heads=1, head_dim=16, mamba_num_heads=4, mamba_head_dim=16,
                        n_groups=1, ssm_state_size=16)
    ).save_pretrained(folder)
    got += both(folder)
    config = json.loads((folder / "config.json").read_text())
    experts = [field for field in config if "expert" in field or "moe" in field or field in ("n_group", "topk_group")]
    for field in experts + ["layers_block_type", "mtp_layers_block_type"]:
        config.pop(field, None)
    (folder / "config.json").write_text(json.dumps(dict(config, num_hidden_layers=3, hybrid_override_pattern="M-*")))
    got += both(folder)
FORMS = ("as saved, read as it is", "as saved, through transformers", "released form, read as it is",
         "released form, through transformers")
for form, (arch, widths, count, tensors) in zip(FORMS, got):
    print(f"{form}: {arch}, feed_forward_length {widths}, expert_count {count}, tensors {tensors}")
mlp = {"blk.1.ffn_down.weight": (48, 32), "blk.1.ffn_up.weight": (32, 48)}
wrong, right = ("nemotron_h_moe", [0, 0, 0], 8, mlp), ("nemotron_h", [0, 48, 0], None, mlp)
sys.exit(0 if got == [wrong, wrong, right, wrong] else 1)
END
"$dir/venv/bin/python" "$dir/show.py" "$dir/llama_cpp_python-0.3.36/vendor/llama.cpp" 2>/dev/null
