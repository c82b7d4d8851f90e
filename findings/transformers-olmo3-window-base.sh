#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# transformers 5.24.0: Olmo3's rope_theta reaches the layers without a window alone.
# Expected: {"rope_theta": 1234} in the config of an Olmo 3 is the base of all layers, as it was where the field stood alone;
# Olmo 3's layers differ in that a rope_scaling counts in full layers only.
# Seen: rope_parameters has 1234 for full_attention and 500000 for sliding_attention, with a rope_scaling beside it and without,
# and no warning. Three of four layers rotate by another base than the config says. An engine that takes the one base for all
# layers, or that is compared with transformers on a model trained by other code, is off by more than rounding.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q transformers==5.24.0
cat >"$dir/show.py" <<'END'
import json
import sys

import transformers
from transformers import Olmo3Config

print("transformers", transformers.__version__)
bases = []
yarn = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=8192)
for scaling in (None, yarn):
    fields = dict(num_hidden_layers=4, rope_theta=1234.0, max_position_embeddings=65536)
    if scaling is not None:
        fields["rope_scaling"] = dict(scaling)
    config = Olmo3Config(**fields)
    kinds = {kind: p["rope_theta"] for kind, p in config.rope_parameters.items()}
    print("rope_scaling", None if scaling is None else scaling["rope_type"], json.dumps(kinds), config.layer_types)
    bases.append(kinds)
sys.exit(0 if bases == [dict(sliding_attention=500000.0, full_attention=1234.0)] * 2 else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
