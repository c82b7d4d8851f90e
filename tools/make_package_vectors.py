#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small packed matrices as the packages that quantise save them, with the values that those packages read back.

    python3 tools/make_package_vectors.py tests/vectors/packages [NAME...]

Each case is a folder: model.safetensors with the tensors of one module m, a matrix [32, 64] of random numbers quantised
and packed by the package on the CPU; config.json with the quantization_config; and values.bin, the matrix in f32 as the
package's own code expands it, its scales made f32 first where that code computes in their type. Names make only those cases.

PyPI packages: torch 2.15.0, numpy 2.4.6, safetensors 0.8.0, transformers 5.24.0, auto-round 0.16.1, hqq 0.2.8.post1, torchao 0.18.0.
Nothing of them is needed
to build, run or test minisgl. Python 3.11, x86-64, one minute.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

ROWS, COLS = 32, 64


def linear(seed, dtype=torch.float32):
    """A layer without bias, [ROWS, COLS]."""
    torch.manual_seed(seed)
    layer = nn.Linear(COLS, ROWS, bias=False, dtype=dtype)
    layer.weight.data.normal_(0, 0.1)
    return layer


# ---- AutoRound ----


def grid(layer, bits, group, sym):
    """Scales f16 and zero points [ROWS, groups] that spread the codes of `bits` over each group's values."""
    w = layer.weight.data.reshape(ROWS, -1, group)
    if sym:
        scale = w.abs().amax(2) / (1 << (bits - 1))
        zero = torch.full_like(scale, 1 << (bits - 1))
    else:
        low, high = w.amin(2).clamp(max=0), w.amax(2).clamp(min=0)
        scale = (high - low) / ((1 << bits) - 1)
        zero = (-low / scale).round().clamp(1, (1 << bits) - 1)
    return scale.half().float(), zero


def auto_round_gptq(seed, packing, bits, group, sym, extra=None):
    """The layouts that AutoRound takes from GPTQ; forward() of the identity is what it expands to."""
    from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

    module = qlinear_torch_zp if packing == "auto_round:auto_gptq" else qlinear_torch
    layer = linear(seed)
    packed = module.QuantLinear(bits, group, COLS, ROWS, bias=False, g_idx=packing.endswith("gptqmodel"))
    packed.device = torch.device("cpu")
    packed.pack(layer, *grid(layer, bits, group, sym), None, device="cpu")
    tensors = {name: t.clone() for name, t in packed.state_dict().items()}
    packed.scales = packed.scales.float()
    config = {"quant_method": "auto-round", "packing_format": packing, "bits": bits, "group_size": group, "sym": sym,
              "data_type": "int", "block_name_to_quantize": "model.layers", "autoround_version": "0.16.1"}
    if extra:
        config |= {"extra_config": {"m": {"bits": bits, "group_size": group}}} | extra
    return tensors, config, packed(torch.eye(COLS)).t()


def auto_round_awq(seed, group):
    """The layout that AutoRound takes from AutoAWQ."""
    from auto_round.export.export_to_awq.utils import WQLinear_GEMM, dequantize_gemm

    layer = linear(seed)
    scale, zero = grid(layer, 4, group, False)
    packed = WQLinear_GEMM.from_linear(layer, 4, group, scales=scale.t().contiguous(), zeros=zero.t().contiguous())
    config = {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": group,
              "sym": False, "data_type": "int"}
    values = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, group).t()
    return dict(packed.state_dict()), config, values


# ---- HQQ ----


def hqq(seed, bits, group, axis, dtype=torch.bfloat16):
    """HQQLinear as its state_dict() is saved; its settings are tensors there."""
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer

    settings = BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis)
    packed = HQQLinear(linear(seed), settings, compute_dtype=dtype, device="cpu")
    meta = packed.meta | {"compute_dtype": torch.float32, "scale": packed.meta["scale"].float(), "zero": packed.meta["zero"].float()}
    config = {"quant_method": "hqq", "quant_config": settings, "skip_modules": ["lm_head"]}
    return packed.state_dict(), config, Quantizer.dequantize(packed.W_q, meta)


# ---- torchao ----


def torchao(seed, settings, dtype=torch.bfloat16):
    """A layer that torchao has quantised, flattened as transformers saves it."""
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import quantize_

    model = nn.ModuleDict({"m": linear(seed, dtype)})
    quantize_(model, settings)
    tensors, metadata = flatten_tensor_state_dict(model.state_dict())
    weight = model["m"].weight
    if type(weight).__name__ == "IntxUnpackedToInt8Tensor":  # whose dequantize() has its dtype
        weight = weight.to(torch.float32)
        values = weight.dequantize()
    else:
        values = weight.dequantize(torch.float32)
    return bare(tensors), {"quant_method": "torchao"}, values, metadata


def bare(tensors):
    """Names without their module."""
    return {name.removeprefix("m."): t for name, t in tensors.items()}


def torchao_int4(seed, group, dtype=torch.bfloat16):
    """Int4Tensor, which torchao itself makes with mslk's kernels alone: its fields as that fills them, numbers from -8 to 7 two
    in a byte with the first in the lower half (mslk's and FBGEMM's pack_int4); expanded by torchao's own function."""
    from torchao.prototype.gptq.api import _int4_row_dequantize_zp
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Int4Tensor

    w = linear(seed).weight.data.reshape(ROWS, -1, group)
    low, high = w.amin(2), w.amax(2)
    scale = ((high - low) / 15).to(dtype)
    zero = (low + scale.float() * 8).to(dtype)
    numbers = ((w - zero.float()[..., None]) / scale.float()[..., None]).round().clamp(-8, 7).reshape(ROWS, COLS).to(torch.int8)
    packed = (numbers[:, ::2] & 15) | (numbers[:, 1::2] << 4)
    scale, zero = scale.t().contiguous(), zero.t().contiguous()
    tensors, metadata = flatten_tensor_state_dict({"m.weight": Int4Tensor(packed, scale, zero, [1, group], torch.Size((ROWS, COLS)))})
    return bare(tensors), {"quant_method": "torchao"}, _int4_row_dequantize_zp(numbers, scale.float(), zero.float(), group), metadata


def torchao_cases():
    from torchao.quantization import (Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, MappingType, PerAxis, PerGroup,
                                      PerRow, PerTensor)

    asymmetric = MappingType.ASYMMETRIC
    return {
        "torchao_int4": lambda: torchao_int4(20, 32),
        "torchao_int4_f32": lambda: torchao_int4(21, 64, torch.float32),
        "torchao_int8": lambda: torchao(22, Int8WeightOnlyConfig(granularity=PerRow())),
        "torchao_int8_tensor": lambda: torchao(23, Int8WeightOnlyConfig(granularity=PerTensor()), torch.float32),
        "torchao_intx_4": lambda: torchao(24, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))),
        "torchao_intx_3": lambda: torchao(
            25, IntxWeightOnlyConfig(weight_dtype=torch.int3, granularity=PerAxis(0), mapping_type=asymmetric), torch.float32),
        "torchao_fp8": lambda: torchao(26, Float8WeightOnlyConfig()),
        "torchao_fp8_tensor": lambda: torchao(27, Float8WeightOnlyConfig(granularity=PerTensor())),
    }


CASES = {
    "auto_round_gptq_4": lambda: auto_round_gptq(1, "auto_round:auto_gptq", 4, 32, False),
    "auto_round_gptq_3": lambda: auto_round_gptq(2, "auto_round:auto_gptq", 3, 64, False),
    "auto_round_gptq_5_sym": lambda: auto_round_gptq(3, "auto_round:auto_gptq", 5, 16, True),
    "auto_round_gptqmodel_4": lambda: auto_round_gptq(4, "auto_round:gptqmodel", 4, 32, True),
    "auto_round_2": lambda: auto_round_gptq(5, "auto_round", 2, 16, False),
    "auto_round_8_among_4": lambda: auto_round_gptq(6, "auto_round", 8, 32, False, {"bits": 4, "group_size": 64}),
    "auto_round_awq": lambda: auto_round_awq(7, 32),
    "hqq_4": lambda: hqq(8, 4, 64, 1),
    "hqq_4_two_rows": lambda: hqq(9, 4, 128, 1, torch.float16),
    "hqq_4_axis_0": lambda: hqq(10, 4, 64, 0),
    "hqq_8": lambda: hqq(11, 8, 32, 1, torch.float16),
    "hqq_3": lambda: hqq(12, 3, 32, 1),
    "hqq_3_axis_0": lambda: hqq(13, 3, 64, 0),
    "hqq_2": lambda: hqq(14, 2, 32, 1, torch.float32),
    "hqq_1": lambda: hqq(15, 1, 64, 1),
    "hqq_6": lambda: hqq(16, 6, 64, 1),
    "hqq_1_58": lambda: hqq(17, 1.58, 64, 1),
}


def main():
    out = Path(sys.argv[1])
    for name, make in (CASES | torchao_cases()).items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        tensors, config, values, *metadata = make()
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"m.{key}": t.detach().contiguous() for key, t in tensors.items()}
        save_file(tensors, folder / "model.safetensors", *metadata)
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}, indent=1) + "\n")
        values = values.detach().to(torch.float32).contiguous()
        assert tuple(values.shape) == (ROWS, COLS), name
        (folder / "values.bin").write_bytes(values.numpy().tobytes())
        print(name, {key: list(t.shape) for key, t in tensors.items()})


if __name__ == "__main__":
    main()
