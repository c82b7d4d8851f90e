#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# transformers 5.24.0: MiMoV2FlashConfig takes hybrid_layer_pattern, moe_layer_freq and swa_rope_theta, and uses none of them.
# Expected: the fields by which MiMo-V2's config says which layers have a window (1) and which have experts (1), and by which
# base layers with a window rotate, decide that; or they are refused.
# Seen: layer_types, mlp_layer_types and rope_parameters are what they are without the fields (full attention in layers 0, 5, 11,
# ..., experts in all but layer 0, base 10000), while the config keeps the fields, so that a file saved again has both. No warning.
# The released model has the pattern that is built in; one made smaller, with the pattern cut to fit, computes otherwise.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q transformers==5.24.0
cat >"$dir/show.py" <<'END'
import sys

import transformers
from transformers import MiMoV2FlashConfig

print("transformers", transformers.__version__)
plain = MiMoV2FlashConfig(num_hidden_layers=4)
given = dict(hybrid_layer_pattern=[1, 0, 0, 1], moe_layer_freq=[1, 1, 0, 0], swa_rope_theta=777.0)
config = MiMoV2FlashConfig(num_hidden_layers=4, **given)
same = []
for field in ("layer_types", "mlp_layer_types", "rope_parameters"):
    print(field, getattr(config, field))
    same.append(getattr(config, field) == getattr(plain, field))
kept = [config.to_dict().get(field) == value for field, value in given.items()]
print("as without the fields:", same, " kept in the config:", kept)
sys.exit(0 if all(same) and all(kept) else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
