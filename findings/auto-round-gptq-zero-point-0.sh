#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# auto-round 0.16.1: exported as GPTQ, not symmetric, a group without negative weights comes back a step too low.
# Expected: the zero point of such a group is 0, and what it is made of, codes times the scale, comes back; or 0 is refused, as
# GPTQ's first version stores zero points less one.
# Seen: the packer of the format auto_gptq (and of auto_round:auto_gptq) stores max(zero - 1, 0), so that 0 is read as
# 1, by AutoRound's own layer too: of weights that are codes times 0.25, each comes back 0.25 less. With zero points of
# 1 and more they come back exactly. There is no warning. Weights that AutoRound tuned in the belief of a zero point of 0 are
# off by a whole step, three times the usual error, in all groups that have no negative weight.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
TMPDIR="$dir" "$dir/venv/bin/pip" install -q --no-cache-dir auto-round==0.16.1 torch==2.15.0 transformers==5.24.0 numpy==2.4.6
cat >"$dir/show.py" <<'END'
import sys
from importlib.metadata import version

import torch
from auto_round_extension.torch.qlinear_torch_zp import QuantLinear

print("auto-round", version("auto-round"))
torch.manual_seed(0)
seen = []
for bits in (2, 3, 4, 8):
    for zero in (0, 1, 2):
        codes = torch.randint(0, 2**bits, (64, 128))
        layer = torch.nn.Linear(128, 64, bias=False)
        layer.weight.data = (codes - zero) * 0.25
        packed = QuantLinear(bits, 64, 128, 64, False)
        packed.pack(layer, torch.full((64, 2), 0.25), torch.full((64, 2), float(zero)), None, device="cpu")
        packed.scales = packed.scales.float()
        packed.post_init()
        steps = (packed(torch.eye(128)).T - layer.weight) / 0.25
        seen.append((zero, steps.min().item(), steps.max().item()))
        print(f"{bits} bits, zero point {zero}: comes back off by {steps.min():g} to {steps.max():g} steps"
              + ("   <--" if steps.abs().max() > 0 else ""))
sys.exit(0 if all(low == high == (-1 if zero == 0 else 0) for zero, low, high in seen) else 1)
END
"$dir/venv/bin/python" "$dir/show.py" 2>/dev/null
