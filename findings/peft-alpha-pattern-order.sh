#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# peft 0.21.2: an adapter that was saved and loaded again may have another scale.
# Expected: save_pretrained and from_pretrained give the model that was trained.
# Seen: of the patterns in alpha_pattern the first that matches counts, in the order in which they were given; but
# adapter_config.json is written with its keys sorted, so that another one may be first when it is read. Trained with
# {"q_proj": 16, "b.q_proj": 32} and rank 8, layer b.q_proj has the scale 2; loaded, it has 4. No warning. rank_pattern is
# sorted, too. A reader of such files cannot know the order that was meant, and has peft's own results only if it keeps the
# file's.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --no-cache-dir torch==2.15.0 peft==0.21.2 transformers==5.24.0
cat >"$dir/show.py" <<'END'
import json
import sys
import tempfile
from pathlib import Path

import peft
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(8, 8)

    def forward(self, x):
        return self.q_proj(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = Block()

    def forward(self, x):
        return self.b(x)


def scale(model):
    return model.base_model.model.b.q_proj.scaling["default"]


torch.manual_seed(0)
print("peft", peft.__version__)
weights = Model().state_dict()
first = Model()
first.load_state_dict(weights)
config = peft.LoraConfig(
    r=8, lora_alpha=8, target_modules=["q_proj"], init_lora_weights=False, alpha_pattern={"q_proj": 16, "b.q_proj": 32}
)
trained = peft.get_peft_model(first, config)
x = torch.randn(4, 8)
with tempfile.TemporaryDirectory() as folder:
    before, was = trained(x), scale(trained)
    trained.save_pretrained(folder)
    order = list(json.loads((Path(folder) / "adapter_config.json").read_text())["alpha_pattern"])
    second = Model()
    second.load_state_dict(weights)
    loaded = peft.PeftModel.from_pretrained(second, folder)
moved = float((loaded(x) - before).detach().abs().max())
print("scale", was, "->", scale(loaded), " order in the file", order, f" results move by up to {moved:.2f}")
sys.exit(0 if (was, scale(loaded), order) == (2.0, 4.0, ["b.q_proj", "q_proj"]) and moved > 0.01 else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
