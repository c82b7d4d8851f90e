#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# auto-round 0.16.1: packed as auto_round:auto_gptq with 5, 6 or 7 bits, a zero point of 0 is read back as 2^bits.
# Expected: what is packed has the values that were quantised; or, as with 2, 3, 4 and 8 bits, a zero point of 0, which that
# layout cannot hold, becomes 1, and its group is off by one step.
# Seen: pack_generic_bits stores zero points less one and masks -1 to its bits (31 of 5), without the clamp that the packers
# of the other bits have; forward() adds 1 to that and has 32. All values of the group are 2^bits steps too low: of weights
# from 0.1 to 1, which asymmetric quantisation gives the zero point 0, by 1.03 with 5 bits. There is no error. The other
# layout with these bits, auto_round, is right.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --no-cache-dir auto-round==0.16.1 torch==2.15.0 transformers==5.24.0
cat >"$dir/show.py" <<'END'
import sys
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

ROWS, COLS, GROUP = 32, 64, 32
wrong = {}
for layout, module in (("auto_round", qlinear_torch), ("auto_round:auto_gptq", qlinear_torch_zp)):
    for bits in (4, 5, 6, 7, 8):
        torch.manual_seed(0)
        layer = nn.Linear(COLS, ROWS, bias=False)
        layer.weight.data.uniform_(0.1, 1)
        scale = torch.full((ROWS, COLS // GROUP), 1 / ((1 << bits) - 1))
        packed = module.QuantLinear(bits, GROUP, COLS, ROWS, bias=False)
        packed.device = torch.device("cpu")
        packed.pack(layer, scale, torch.zeros_like(scale), None, device="cpu")
        packed.scales = packed.scales.float()
        off = (packed(torch.eye(COLS)).t() - layer.weight).abs().max().item()
        wrong[layout, bits] = off > 0.5
        print(f"{layout:20} {bits} bits, zero point 0: off by up to {off:.3f}" + ("   <--" if off > 0.5 else ""))
sys.exit(0 if {key for key, bad in wrong.items() if bad} == {("auto_round:auto_gptq", bits) for bits in (5, 6, 7)} else 1)
END
"$dir/venv/bin/python" "$dir/show.py" 2>/dev/null
