#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# transformers 5.24.0: Gemma 3's sliding_window in a file is not the window in use where use_bidirectional_attention is set.
# Expected: with {"sliding_window": 8} each token sees 8 positions up to its own, as it does without the flag, or 8 on each side;
# a config that is read and written again says what it said.
# Seen: reading makes 8 // 2 + 1 = 5 of it, the bound that a distance has to stay under, so that a token sees 4 others on each
# side; the config object has 5, while writing puts (5 - 1) * 2 = 8 back. An odd number does not come back: 7 is read as 4,
# reaches 3, and is written as 6. EmbeddingGemma is such a model. An engine that takes the file's number for the reach to each
# side attends twice as far as the model, one that takes half of it (4) for an exclusive bound is short of one on each side,
# and neither shows in texts shorter than the window.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
TMPDIR="$dir" "$dir/venv/bin/pip" install -q --no-cache-dir torch==2.15.0 transformers==5.24.0 numpy==2.4.6
cat >"$dir/show.py" <<'END'
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, Gemma3TextModel

SHAPE = dict(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, head_dim=16,
             num_key_value_heads=1, layer_types=["sliding_attention"], model_type="gemma3_text")
MIDDLE, TOKENS = 16, 33


def reach(config):
    """How far before and after itself the middle token sees, by the gradient of its output."""
    torch.manual_seed(0)
    x = torch.randn(1, TOKENS, SHAPE["hidden_size"], requires_grad=True)
    Gemma3TextModel(config).eval()(inputs_embeds=x).last_hidden_state[0, MIDDLE].square().sum().backward()
    seen = x.grad[0].abs().sum(-1).nonzero().flatten()
    return MIDDLE - int(seen[0]), int(seen[-1]) - MIDDLE


print("transformers", transformers.__version__, "torch", torch.__version__)
got = []
for both_ways in (False, True):
    for window in (7, 8):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.json"
            file.write_text(json.dumps(dict(SHAPE, sliding_window=window, use_bidirectional_attention=both_ways)))
            config = AutoConfig.from_pretrained(folder)
            config.save_pretrained(folder)
            written = json.loads(file.read_text())["sliding_window"]
        before, after = reach(config)
        got.append((window, config.sliding_window, written, before, after))
        print(f"use_bidirectional_attention {both_ways}: in the file {window}, in the config {config.sliding_window}, written "
              f"{written}; a token sees {before} before it and {after} after it")
sys.exit(0 if got == [(7, 7, 7, 6, 0), (8, 8, 8, 7, 0), (7, 4, 6, 3, 3), (8, 5, 8, 4, 4)] else 1)
END
"$dir/venv/bin/python" "$dir/show.py" 2>/dev/null
