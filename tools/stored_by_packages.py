#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cases of check_stored_by_packages.py, which runs this in an environment that has the packages.

    stored_by_packages.py EXPAND_STORED WORD PART

WORD: only cases whose form or package has it in its name. PART: "", or the earlier release that this environment has.
Written are lines of JSON, one a case.
"""
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

CASES = []
ZEROS = "sign of zero"


def case(form, package):
    """A function that gives (what is special, folder, {tensor: values of the package}), and, where minisgl may refuse the
    folder, True. It is given Folders and a random generator."""
    def add(function):
        CASES.append((form, package, function))
        return function
    return add


def expanded(program, folder):
    """{tensor: [values]} as minisgl reads the folder, or its error."""
    run = subprocess.run([program, folder], capture_output=True)
    if run.returncode != 0:
        return run.stderr.decode().strip()
    out, at, data = {}, 0, run.stdout
    while at < len(data):
        end = data.index(b"\n", at)
        name, *_, rows, cols, ways = data[at:end].decode().split()
        shape = int(ways), int(rows), int(cols)
        at, n = end + 1, 4 * int(np.prod(shape))
        out[name] = np.frombuffer(data[at:at + n], "<f4").reshape(shape)
        at += n
    return out


def words(x):
    """Bits of f32, with all NaN the same."""
    return np.where(np.isnan(x), np.uint32(0x7FC00000), np.ascontiguousarray(x, "<f4").view("<u4"))


def difference(got, want):
    """None if all bits are the same, "sign of zero", or the first element that differs."""
    differ = words(got) != words(want)
    if not differ.any():
        return None
    if not differ[(got != 0) | (want != 0)].any():
        return ZEROS
    i = np.unravel_index(np.argmax(differ), got.shape)
    return f"{differ.sum()} differ, the first [{i[0]}, {i[1]}] is {got[i]!r}, not {want[i]!r}"


def check(program, folder, want, may_refuse=False):
    """A row's result: what is to be said, whether it is as it should be, matrices, values."""
    got = expanded(program, folder)
    if isinstance(got, str):
        return got, may_refuse, 0, 0
    if set(got) != set(want):
        return f"other tensors: {sorted(set(got) ^ set(want))}", False, 0, 0
    values, zeros = 0, False
    for name, x in want.items():
        x = torch.as_tensor(x).detach().to(torch.float32).numpy()
        x = x.reshape(-1, x.shape[-1])
        if got[name].shape[1:] != x.shape:
            return f"{name} is {got[name].shape[1:]}, not {x.shape}", False, 0, 0
        for way in got[name]:
            said = difference(way, x)
            if said not in (None, ZEROS):
                return f"{name}: {said}", False, 0, 0
            zeros = zeros or said == ZEROS
        values += x.size
    return f"the same but for the {ZEROS}" if zeros else "the same bits", True, len(want), values


class Folders:
    def __init__(self, root):
        self.root, self.n = Path(root), 0

    def __call__(self):
        self.n += 1
        folder = self.root / str(self.n)
        folder.mkdir()
        return folder

    def write(self, tensors, config, metadata={}):
        """A folder with these tensors and a config.json with this quantization_config."""
        folder = self()
        save_file({k: v.detach().contiguous() for k, v in tensors.items()}, folder / "model.safetensors",
                  {"format": "pt"} | metadata)
        (folder / "config.json").write_text(json.dumps(dict(quantization_config=config)))
        return folder


def named(module, tensors):
    return {f"{module}.{k}": v for k, v in tensors.items() if v is not None}


def read(folder):
    """All tensors of a folder."""
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as f:
            out |= {k: f.get_tensor(k) for k in f.keys()}
    return out


def random_codes(bits, rows, cols, group, gen, symmetric=False, dtype=torch.float16, zeros_from=0):
    """Codes [rows, cols], zero points and scales [rows, groups], and the f32 matrix that they are."""
    groups = cols // group
    q = torch.randint(0, 2**bits, (rows, cols), generator=gen)
    z = torch.randint(zeros_from, 2**bits, (rows, groups), generator=gen)
    if symmetric:
        z[:] = 2**(bits - 1)
    s = (torch.rand(rows, groups, generator=gen) * 0.02 + 1e-3).to(dtype)
    w = (q - z.repeat_interleave(group, 1)).float() * s.float().repeat_interleave(group, 1)
    return q, z, s, w


def linear(w):
    m = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    m.weight = torch.nn.Parameter(w.clone(), requires_grad=False)
    return m


def normal(rows, cols, gen, dtype=torch.float32):
    """Random weights with columns of very different sizes and a row of zeros."""
    w = torch.randn(rows, cols, generator=gen) * torch.exp(torch.randn(cols, generator=gen)) * 0.05
    w[3] = 0
    return w.to(dtype)


def tiny_llama(dtype=torch.bfloat16, seed=0):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(seed)
    config = LlamaConfig(hidden_size=256, intermediate_size=384, num_hidden_layers=1, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=64, max_position_embeddings=64,
                         architectures=["LlamaForCausalLM"])
    return LlamaForCausalLM(config).to(dtype).eval()


# ---- AWQ ----


def awq_config(group, kind="gemm"):
    return dict(quant_method="awq", bits=4, group_size=group, version=kind, zero_point=True)


@case("AWQ gemm", "autoawq")
def awq_gemm(new, gen):
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm
    for group in (32, 64, 128, -1):
        size = group if group > 0 else 256
        _, z, s, w = random_codes(4, 64, 256, size, gen)
        m = WQLinear_GEMM.from_linear(linear(w), 4, size, scales=s.T.contiguous(), zeros=z.T.contiguous())
        want = dequantize_gemm(m.qweight, m.qzeros, m.scales.float(), 4, size).T
        folder = new.write(named("m", dict(qweight=m.qweight, qzeros=m.qzeros, scales=m.scales)), awq_config(group))
        yield f"groups of {group}", folder, {"m.weight": want}


@case("AWQ gemm", "gptqmodel")
def awq_gptqmodel(new, gen):
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
    for group in (32, 128):
        i32 = dict(generator=gen, dtype=torch.int32)
        qweight = torch.randint(-2**31, 2**31, (256, 6), **i32)
        qzeros = torch.randint(-2**31, 2**31, (256 // group, 6), **i32)
        scales = (torch.rand(256 // group, 48, generator=gen) * 0.02).half()
        want = dequantize_gemm(qweight, qzeros, scales.float(), 4, group).T
        folder = new.write(named("m", dict(qweight=qweight, qzeros=qzeros, scales=scales)), awq_config(group))
        yield f"groups of {group}, random words", folder, {"m.weight": want}


@case("AWQ gemv", "autoawq")
def awq_gemv(new, gen):
    """It has no expansion on a CPU: the values are those that it was given to pack."""
    from awq.modules.linear.gemv import WQLinear_GEMV
    for group, cols in ((32, 256), (32, 544), (64, 256), (64, 576), (128, 256), (128, 1152)):
        _, z, s, w = random_codes(4, 24, cols, group, gen)
        m = WQLinear_GEMV.from_linear(linear(w), 4, group, scales=s, zeros=z)
        folder = new.write(named("m", dict(qweight=m.qweight, qzeros=m.qzeros, scales=m.scales)), awq_config(group, "gemv"))
        yield f"groups of {group}, {cols} columns", folder, {"m.weight": w}


# ---- GPTQ ----


def gptq_config(bits, group, kind, **more):
    return dict(quant_method="gptq", bits=bits, group_size=group, checkpoint_format=kind, **more)


def scattered(bits, z, s, order, gen):
    """Random codes whose columns have these groups."""
    q = torch.randint(0, 2**bits, (len(z), len(order)), generator=gen)
    return (q - z[:, order.long()]) * s[:, order.long()].float()


def gptq_tensors(m):
    return named("m", {k: getattr(m, k).clone() for k in ("qweight", "qzeros", "scales", "g_idx")})


@case("GPTQ", "gptqmodel")
def gptq_gptqmodel(new, gen):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module, convert_gptq_v2_to_v1_format_module
    for bits in (2, 3, 4, 8):
        for symmetric in (True, False):
            for group, ordered in ((32, False), (128, True), (-1, False)):
                size = group if group > 0 else 256
                _, z, s, w = random_codes(bits, 64, 256, size, gen, symmetric)
                order = torch.arange(256, dtype=torch.int32) // size
                if ordered:
                    order = order[torch.randperm(256, generator=gen)]
                    w = scattered(bits, z, s, order, gen)
                m = TorchLinear(bits=bits, group_size=group, sym=symmetric, desc_act=ordered, in_features=256,
                                out_features=64)
                m.pack_original(linear(w), s.float(), z.float(), order)
                m.post_init()
                label = f"{bits} bits, {'' if symmetric else 'not '}symmetric, groups of {group}{', desc_act' * ordered}"
                said = dict(sym=symmetric, desc_act=ordered)
                v2 = gptq_tensors(m)
                half = m.scales
                m.scales = half.float()
                want = m.dequantize_weight().T
                yield label + ", v2", new.write(v2, gptq_config(bits, group, "gptq_v2", **said)), {"m.weight": want}
                m.scales = half
                convert_gptq_v2_to_v1_format_module(m, QuantizeConfig(bits=bits, group_size=group))
                v1 = gptq_tensors(m)
                convert_gptq_v1_to_v2_format_module(m, bits, torch.int32)
                m.scales = half.float()
                yield (label + ", v1", new.write(v1, gptq_config(bits, group, "gptq", **said)),
                       {"m.weight": m.dequantize_weight().T}, bits == 3 and not symmetric)


@case("GPTQ of sizes that groups and words do not divide", "gptqmodel")
def gptq_ragged(new, gen):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    for bits, rows, cols, group in ((4, 64, 320, 128), (4, 44, 256, 64), (8, 42, 256, 64), (2, 40, 320, 128)):
        order = torch.arange(cols, dtype=torch.int32) // group
        z = torch.randint(0, 2**bits, (rows, int(order[-1]) + 1), generator=gen)
        s = (torch.rand(z.shape, generator=gen) * 0.02 + 1e-3).half()
        w = scattered(bits, z, s, order, gen)
        m = TorchLinear(bits=bits, group_size=group, sym=False, desc_act=False, in_features=cols, out_features=rows)
        m.pack_original(linear(w), s.float(), z.float(), order)
        m.post_init()
        tensors = gptq_tensors(m)
        m.scales = m.scales.float()
        given = gptq_config(bits, group, "gptq_v2", sym=False, desc_act=False)
        folder = new.write(tensors, given)
        yield f"{bits} bits, {rows} x {cols}, groups of {group}", folder, {"m.weight": m.dequantize_weight().T}


def auto_gptq():
    """Its module of packing, without its models, which need a transformers of its time."""
    root = Path(find_spec("auto_gptq").submodule_search_locations[0])
    for name in ("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    from auto_gptq.nn_modules.qlinear import qlinear_cuda
    qlinear_cuda._autogptq_cuda_available = False
    return qlinear_cuda.QuantLinear


@case("GPTQ", "auto-gptq")
def gptq_auto_gptq(new, gen):
    """Its matrix times the unit matrix. Zero points from 1 on: of 0 its packer makes bits of its neighbours."""
    QuantLinear = auto_gptq()
    for bits in (2, 3, 4, 8):
        for symmetric in (True, False):
            for group, ordered in ((32, False), (128, True)):
                _, z, s, w = random_codes(bits, 64, 256, group, gen, symmetric, zeros_from=1)
                order = torch.arange(256, dtype=torch.int32) // group
                if ordered:
                    order = order[torch.randperm(256, generator=gen)]
                    w = scattered(bits, z, s, order, gen)
                m = QuantLinear(bits, group, 256, 64, False, weight_dtype=torch.float16)
                m.pack(linear(w), s.float(), z.float(), order)
                label = f"{bits} bits, {'' if symmetric else 'not '}symmetric, groups of {group}{', desc_act' * ordered}"
                folder = new.write(gptq_tensors(m), gptq_config(bits, group, "gptq", sym=symmetric, desc_act=ordered))
                m.scales = m.scales.float()
                yield label, folder, {"m.weight": m(torch.eye(256)).T}, bits == 3 and not symmetric


# ---- compressed-tensors ----


def scheme_of(args):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    args = QuantizationArgs(**args)
    return QuantizationScheme(targets=["Linear"], weights=args), args


def compressed_config(kind, args):
    return dict(quant_method="compressed-tensors", format=kind, version=version("compressed-tensors"),
                config_groups=dict(group_0=dict(targets=["Linear"], weights=args.model_dump(mode="json"))))


def extremes(w, args):
    """Least and largest values of what shares a scale, in the shape of the scales."""
    rows, cols = w.shape
    if args.strategy == "tensor":
        return w.min().reshape(1), w.max().reshape(1)
    if args.strategy == "channel":
        return w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    if args.strategy == "block":
        high, wide = args.block_structure
        blocks = torch.nn.functional.pad(w, (0, -cols % wide, 0, -rows % high))
        blocks = blocks.reshape(-(-rows // high), high, -(-cols // wide), wide)
        return blocks.amin((1, 3)), blocks.amax((1, 3))
    groups = w.reshape(rows, -1, args.group_size)
    return groups.amin(2), groups.amax(2)


def compressed(new, gen, kind, given, rows=48, cols=256, dtype=torch.bfloat16, order=False):
    """The folder and the values of one matrix."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
    scheme, args = scheme_of(given)
    w = normal(rows, cols, gen, dtype)
    state, whole = dict(weight=w), None
    low, high = extremes(w, args)
    if args.strategy == "tensor_group":
        whole = generate_gparam(*(x.reshape(1) for x in (w.min(), w.max())))
        state["weight_global_scale"] = whole
    state["weight_scale"], zero = calculate_qparams(low, high, args, whole)
    if whole is None and args.num_bits != 4 and "mx" not in kind:
        state["weight_scale"] = state["weight_scale"].to(dtype)
    state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(kind)
    packed = compressor.compress(state, scheme)
    folder = new.write(named("m", packed), compressed_config(kind, args))
    wide = dict(packed)
    if wide["weight_scale"].dtype in (torch.bfloat16, torch.float16):
        wide["weight_scale"] = wide["weight_scale"].float()
    if "fp4" in kind:
        return folder, {"m.weight": fp4_value(packed, args)}
    return folder, {"m.weight": compressor.decompress(wide, scheme)["weight"]}


def fp4_value(packed, args):
    """What decompress() does in bf16, by its parts in f32."""
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    code, scale, whole = (packed.get(k) for k in ("weight_packed", "weight_scale", "weight_global_scale"))
    numbers = unpack_fp4_from_uint8(code, code.shape[0], 2 * code.shape[1], torch.float32)
    scale = decompress_mx_scale(scale) if scale.dtype == torch.uint8 else scale
    return dequantize(numbers, scale.float(), args=args, global_scale=whole, dtype=torch.float32)


def words_of(more):
    return " ".join(map(str, more.values()))


@case("pack-quantized", "compressed-tensors")
def packed_quantized(new, gen):
    for bits in range(2, 9):
        for symmetric in (True, False):
            for more in (dict(strategy="channel"), *(dict(strategy="group", group_size=n) for n in (32, 128))):
                given = dict(num_bits=bits, type="int", symmetric=symmetric, **more)
                for dtype in (torch.bfloat16, torch.float16, torch.float32):
                    label = f"{bits} bits, {'' if symmetric else 'not '}symmetric, {words_of(more)}, {dtype}"
                    yield label, *compressed(new, gen, "pack-quantized", given, dtype=dtype)
    for symmetric in (True, False):
        given = dict(num_bits=4, type="int", symmetric=symmetric, strategy="tensor")
        yield f"{'' if symmetric else 'not '}symmetric, tensor", *compressed(new, gen, "pack-quantized", given)
    for bits in (3, 4, 7):
        given = dict(num_bits=bits, type="int", symmetric=False, strategy="channel")
        yield f"{bits} bits, 37 rows of 101", *compressed(new, gen, "pack-quantized", given, 37, 101)


@case("INT8", "compressed-tensors")
def int_quantized(new, gen):
    for symmetric in (True, False):
        for more in (dict(strategy="tensor"), dict(strategy="channel"), dict(strategy="group", group_size=64)):
            given = dict(num_bits=8, type="int", symmetric=symmetric, **more)
            yield (f"{'' if symmetric else 'not '}symmetric, {words_of(more)}",
                   *compressed(new, gen, "int-quantized", given))


@case("FP8", "compressed-tensors")
def float_quantized(new, gen):
    for more in (dict(strategy="tensor"), dict(strategy="channel"), dict(strategy="group", group_size=64),
                 dict(strategy="block", block_structure=[128, 128]), dict(strategy="block", block_structure=[64, 32])):
        for kind in ("float-quantized", "naive-quantized"):
            given = dict(num_bits=8, type="float", symmetric=True, **more)
            for rows, cols in ((48, 256), (200, 320)):
                yield (f"{kind}, {words_of(more)}, {rows} x {cols}", *compressed(new, gen, kind, given, rows, cols))


@case("NVFP4", "compressed-tensors")
def nvfp4(new, gen):
    given = dict(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16,
                 scale_dtype="torch.float8_e4m3fn", zp_dtype="torch.float8_e4m3fn")
    for dtype in (torch.bfloat16, torch.float32):
        yield f"{dtype}", *compressed(new, gen, "nvfp4-pack-quantized", given, dtype=dtype)


@case("MXFP4", "compressed-tensors")
def mxfp4(new, gen):
    given = dict(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32, scale_dtype="torch.uint8",
                 zp_dtype="torch.uint8")
    yield "", *compressed(new, gen, "mxfp4-pack-quantized", given)


@case("MXFP8", "compressed-tensors")
def mxfp8(new, gen):
    given = dict(num_bits=8, type="float", symmetric=True, strategy="group", group_size=32, scale_dtype="torch.uint8",
                 zp_dtype="torch.uint8")
    yield "", *compressed(new, gen, "mxfp8-quantized", given)


# ---- FP8 and MXFP4 of transformers, FP8 of FBGEMM ----


@case("FP8", "transformers")
def fp8_transformers(new, gen):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
    for block, scale in (((128, 128), "float"), ((128, 128), "ue8m0"), ((32, 64), "float"), (None, "float")):
        config = types.SimpleNamespace(weight_block_size=block, scale_fmt=scale)
        tensors = Fp8Quantize(types.SimpleNamespace(quantization_config=config)).convert(
            {"m.weight": normal(256, 384, gen, torch.bfloat16)})
        want = Fp8Dequantize(None)._dequantize_one(*tensors.values(), output_dtype=torch.float32)
        given = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=block)
        yield f"blocks {block}, {scale} scales", new.write(tensors, given), {"m.weight": want}
    weight = torch.randn(64, 256, generator=gen).to(torch.float8_e4m3fn)
    scale = torch.randint(100, 150, (64, 8), generator=gen, dtype=torch.uint8)
    want = Fp8Dequantize(None)._dequantize_one(weight, scale, output_dtype=torch.float32)
    given = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[1, 32])
    yield "exponents of 32", new.write(named("m", dict(weight=weight, weight_scale_inv=scale)), given), {"m.weight": want}


@case("FP8", "fbgemm-gpu-genai")
def fp8_fbgemm(new, gen):
    """Its quantiser on a CPU; it multiplies and does not expand, so the values are number * scale of the row."""
    from fbgemm_gpu.experimental.gemm.triton_gemm.fp8_gemm import quantize_fp8_row
    weight, scale = quantize_fp8_row(normal(96, 256, gen, torch.bfloat16), use_triton=False)
    weight = weight.to(torch.float8_e4m3fn)
    tensors = named("m", dict(weight=weight, weight_scale=scale.view(-1, 1)))
    given = dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0)
    yield "", new.write(tensors, given), {"m.weight": weight.float() * scale.view(-1, 1)}


@case("MXFP4 of gpt-oss", "transformers")
def mxfp4_gpt_oss(new, gen):
    """Random bytes: the packer needs a GPU."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    blocks = torch.randint(0, 256, (3, 16, 4, 16), generator=gen, dtype=torch.uint8)
    scales = torch.randint(80, 180, (3, 16, 4), generator=gen, dtype=torch.uint8)
    want = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    tensors = {"m.gate_up_proj_blocks": blocks, "m.gate_up_proj_scales": scales}
    yield "random bytes", new.write(tensors, dict(quant_method="mxfp4")), {"m.gate_up_proj": want}


# ---- ModelOpt ----

MODELOPT = {"FP8": "FP8_DEFAULT_CFG", "FP8 a row": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
            "FP8 128 x 128": "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", "MXFP8": "MXFP8_DEFAULT_CFG", "NVFP4": "NVFP4_DEFAULT_CFG",
            "NVFP4, weights alone": "W4A16_NVFP4_CFG"}


def modelopt_value(t, beside):
    """A tensor of an exported folder, by the class that its format is."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor
    scale = beside["weight_scale"]
    if t.dtype == torch.uint8:
        shape = torch.Size((t.shape[0], t.shape[1] * 2))
        return NVFP4QTensor(shape, torch.float32, t).dequantize(
            torch.float32, scale=scale, double_scale=beside["weight_scale_2"], block_sizes={-1: 16})
    if scale.dtype == torch.uint8:
        return MXFP8QTensor(t.shape, torch.float32, t).dequantize(torch.float32, scale=scale)
    if scale.ndim == 4:
        return FP8QTensor(t.shape, torch.float32, t).dequantize(
            torch.float32, scale=scale.squeeze(3).squeeze(1), block_sizes={-1: 128, -2: 128})
    return FP8QTensor(t.shape, torch.float32, t).dequantize(torch.float32, scale=scale.view(-1, 1) if scale.ndim else scale)


@case("FP8, MXFP8, NVFP4", "nvidia-modelopt")
def modelopt(new, gen):
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    for name, config in MODELOPT.items():
        folder = new()
        model = mtq.quantize(tiny_llama(), getattr(mtq, config), lambda m: m(torch.arange(32)[None]))
        export_hf_checkpoint(model, export_dir=folder)
        tensors = read(folder)
        want = {}
        for k, t in tensors.items():
            if k.endswith(".weight") and t.dtype in (torch.uint8, torch.float8_e4m3fn):
                module = k.removesuffix("weight")
                want[k] = modelopt_value(t, {s.removeprefix(module): v for s, v in tensors.items() if s.startswith(module)})
        yield f"{name}, a whole model", folder, want


# ---- bitsandbytes ----


@case("NF4, FP4", "bitsandbytes")
def bnb_4(new, gen):
    import bitsandbytes as bnb
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            for block, rows, cols in ((64, 96, 256), (128, 40, 192), (64, 7, 33)):
                w = normal(rows, cols, gen, torch.float32)
                code, state = bnb.functional.quantize_4bit(w, blocksize=block, compress_statistics=nested, quant_type=kind)
                if cols % block != 0:  # findings/bitsandbytes-cpu-4bit-rows.sh
                    _, flat = bnb.functional.quantize_4bit(w.flatten(), blocksize=block, compress_statistics=nested,
                                                           quant_type=kind)
                    want = bnb.functional.dequantize_4bit(code, flat).reshape(rows, cols)
                else:
                    want = bnb.functional.dequantize_4bit(code, state)
                tensors = named("m", dict(weight=code)) | named("m.weight", state.as_dict(packed=True))
                given = dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type=kind)
                label = f"{kind}, {'nested, ' * nested}blocks of {block}, {rows} x {cols}"
                yield label, new.write(tensors, given), {"m.weight": want}


@case("INT8", "bitsandbytes")
def bnb_8(new, gen):
    import bitsandbytes as bnb
    code, scb, _ = bnb.functional.int8_vectorwise_quant(normal(96, 256, gen, torch.float16))
    want = bnb.functional.int8_vectorwise_dequant(code, scb)
    tensors = named("m", dict(weight=code, SCB=scb, weight_format=torch.tensor(0, dtype=torch.uint8)))
    yield "", new.write(tensors, dict(quant_method="bitsandbytes", load_in_8bit=True)), {"m.weight": want}


@case("NF4, FP4, INT8 of a whole model", "bitsandbytes")
def bnb_model(new, gen):
    import bitsandbytes as bnb
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    plain = new()
    tiny_llama().save_pretrained(plain)
    for label, config in (("nf4", BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")),
                          ("nf4 in bfloat16", BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                                                 bnb_4bit_quant_storage=torch.bfloat16)),
                          ("fp4, nested", BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)),
                          ("int8", BitsAndBytesConfig(load_in_8bit=True))):
        folder, want = new(), {}
        model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config, device_map="cpu")
        model.save_pretrained(folder)
        for name, m in model.named_modules():
            if isinstance(m, bnb.nn.Linear4bit):
                m.weight.quant_state.dtype = torch.float32
                want[f"{name}.weight"] = bnb.functional.dequantize_4bit(m.weight.data.view(torch.uint8), m.weight.quant_state)
            elif isinstance(m, bnb.nn.Linear8bitLt):
                want[f"{name}.weight"] = bnb.functional.int8_vectorwise_dequant(m.weight.data, m.weight.SCB)
        yield label, folder, want


# ---- MLX ----


@case("MLX", "mlx")
def mlx(new, gen):
    import mlx.core as mx
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for dtype in ("float32", "float16", "bfloat16"):
                w = mx.array(normal(48, 256, gen).numpy()).astype(getattr(mx, dtype))
                code, scales, biases = mx.quantize(w, group_size=group, bits=bits)
                want = mx.dequantize(code, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=bits)
                folder = new()
                mx.save_safetensors(str(folder / "model.safetensors"),
                                    {"m.weight": code, "m.scales": scales, "m.biases": biases}, {"format": "mlx"})
                (folder / "config.json").write_text(json.dumps(dict(quantization=dict(group_size=group, bits=bits))))
                yield f"{bits} bits, groups of {group}, {dtype}", folder, {"m.weight": np.array(want)}


# ---- AutoRound, which writes the forms of others ----


def gptq_value(tensors, module, bits, group):
    """Of tensors of the first version, by GPTQModel."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module
    t = {k: tensors[f"{module}.{k}"].clone() for k in ("qweight", "qzeros", "scales")}
    cols, rows = t["qweight"].shape[0] * 32 // bits, t["qweight"].shape[1]
    m = TorchLinear(bits=bits, group_size=group, sym=True, desc_act=False, in_features=cols, out_features=rows)
    m.qweight, m.qzeros, m.scales = t["qweight"], t["qzeros"], t["scales"].float()
    m.g_idx = torch.arange(cols, dtype=torch.int32) // group
    m.post_init()
    convert_gptq_v1_to_v2_format_module(m, bits, torch.int32)
    return m.dequantize_weight().T


def awq_value(tensors, module, bits, group):
    from auto_round.export.export_to_awq.utils import dequantize_gemm
    t = {k: tensors[f"{module}.{k}"] for k in ("qweight", "qzeros", "scales")}
    return dequantize_gemm(t["qweight"], t["qzeros"], t["scales"].float(), bits, group).T


def mlx_value(tensors, module, bits, group):
    import mlx.core as mx
    code, scales, biases = (mx.array(tensors[f"{module}.{k}"].numpy()) for k in ("weight", "scales", "biases"))
    return np.array(mx.dequantize(code, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=bits))


def small_tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    ids = {f"t{i}": i for i in range(64)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(ids, unk_token="t0")))


@case("GPTQ, AWQ, MLX, auto-round of a whole model", "auto-round")
def auto_round(new, gen):
    """Expanded by the package whose form it is; no further from the model than codes of so many bits are."""
    from auto_round import AutoRound
    for form, value, all_bits in (("auto_gptq", gptq_value, (2, 3, 4, 8)), ("auto_awq", awq_value, (4,)),
                                  ("mlx", mlx_value, (2, 3, 4, 5, 6, 8)), ("auto_round", gptq_value, (2, 4, 8))):
        for bits in all_bits:
            for symmetric in (True, False):
                if bits == 8 and not symmetric or form == "auto_round" and not symmetric:
                    continue  # it does not write the one, and packs the other as AWQ
                folder, model = new(), tiny_llama()
                whole = {f"{k}.weight": m.weight.detach().float() for k, m in model.named_modules()
                         if isinstance(m, torch.nn.Linear)}
                made = AutoRound(model, small_tokenizer(), scheme=f"W{bits}A16", sym=symmetric, group_size=64, iters=0,
                                 disable_opt_rtn=True, device_map="cpu")
                made.quantize_and_save(str(folder), format=form)
                folder = next(folder.rglob("config.json")).parent
                tensors = read(folder)
                modules = [k.removesuffix(".scales") for k in tensors if k.endswith(".scales")]
                want = {f"{m}.weight": torch.as_tensor(value(tensors, m, bits, 64)) for m in modules}
                far = max((w - whole[k]).std() / whole[k].std() for k, w in want.items())
                assert far < 5 * 2.0**-bits, f"{form}, {bits} bits: {far} of a deviation"
                yield (f"{form}, {bits} bits, {'' if symmetric else 'not '}symmetric", folder, want,
                       form == "auto_round" or form == "auto_gptq" and bits == 3 and not symmetric)


@case("INT8, MXFP4, MXFP8 of a whole model", "auto-round")
def auto_round_compressed(new, gen):
    """Expanded by compressed-tensors."""
    from auto_round import AutoRound
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    for scheme in ("INT8_W8A8", "MXFP4", "MXFP8"):
        folder = new()
        made = AutoRound(tiny_llama(), small_tokenizer(), scheme=scheme, iters=0, disable_opt_rtn=True, device_map="cpu")
        made.quantize_and_save(str(folder), format="llm_compressor")
        folder = next(folder.rglob("config.json")).parent
        given, tensors, want = json.loads((folder / "config.json").read_text())["quantization_config"], read(folder), {}
        of_all = next(iter(QuantizationConfig.model_validate(given).config_groups.values()))
        for module in {k.rpartition(".")[0] for k in tensors if k.endswith(".weight_scale")}:
            state = {k.removeprefix(f"{module}."): t for k, t in tensors.items() if k.startswith(f"{module}.")}
            if "fp4" in given["format"]:
                want[f"{module}.weight"] = fp4_value(state, of_all.weights)
                continue
            if state["weight_scale"].dtype == torch.float16:
                state["weight_scale"] = state["weight_scale"].float()
            compressor = BaseCompressor.get_value_from_registry(given["format"])
            want[f"{module}.weight"] = compressor.decompress(state, of_all)["weight"]
        yield scheme, folder, want


# ---- HQQ, torchao ----


@case("HQQ", "hqq")
def hqq(new, gen):
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
    for bits in (8, 4, 3, 2, 1):
        given = BaseQuantizeConfig(nbits=bits, group_size=64)
        made = HQQLinear(linear(normal(64, 256, gen)), given, compute_dtype=torch.float32, device="cpu")
        tensors = {k: v for k, v in named("m", made.state_dict()).items() if isinstance(v, torch.Tensor)}
        config = dict(quant_method="hqq", quant_config=given, skip_modules=["lm_head"])
        yield f"{bits} bits", new.write(tensors, config), {"m.weight": made.dequantize()}, True


@case("INT8, FP8", "torchao")
def torchao(new, gen):
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    for config in (Int8WeightOnlyConfig(), Float8WeightOnlyConfig()):
        model = torch.nn.ModuleDict(dict(m=linear(normal(64, 256, gen))))
        quantize_(model, config)
        tensors, said = flatten_tensor_state_dict(model.state_dict())
        folder = new.write(tensors, dict(quant_method="torchao"), metadata=said)
        yield type(config).__name__, folder, {"m.weight": model["m"].weight.dequantize()}, True


# ---- earlier releases ----


@case("pack-quantized", "compressed-tensors 0.12.2")
def packed_before_0_18(new, gen):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import unpack_from_int32
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams
    compressor = BaseCompressor.load_from_registry("pack-quantized", config=None)
    for bits in range(2, 9):
        for symmetric in (True, False):
            for more in (dict(strategy="channel"), dict(strategy="group", group_size=32)):
                for cols, order in ((256, False), (64, False), (256, True)):
                    if order and more["strategy"] != "group":
                        continue
                    _, args = scheme_of(dict(num_bits=bits, type="int", symmetric=symmetric, **more))
                    w = normal(48, cols, gen, torch.bfloat16)
                    scale, zero = calculate_qparams(*extremes(w, args), args)
                    state = dict(weight_scale=scale.float(), weight_zero_point=zero)
                    if order:
                        state["weight_g_idx"] = torch.randperm(cols, generator=gen).to(torch.int32) // 32
                    packed = compressor.compress_weight(w, scale.float(), args, zero, state.get("weight_g_idx"))
                    # decompress_weight() has no packed zero points; these are what it is made of.
                    numbers = unpack_from_int32(packed["weight_packed"], bits, w.shape)
                    want = dequantize(numbers, scale.float(), zero, args, g_idx=state.get("weight_g_idx"))
                    packed = state | packed
                    if symmetric:
                        del packed["weight_zero_point"]
                    yield (f"{bits} bits, {'' if symmetric else 'not '}symmetric, {more['strategy']}, {cols} columns"
                           f"{', g_idx' * order}", new.write(named("m", packed), compressed_config("pack-quantized", args)),
                           {"m.weight": want})


def main():
    program, only, part = sys.argv[1:]
    status = 0
    for form, package, function in CASES:
        name, _, release = package.partition(" ")
        if only not in f"{form} {package}" or package != (part or name):
            continue
        gen = torch.Generator().manual_seed(len(form) + 7 * len(package))
        rows, noise = [], io.StringIO()
        with tempfile.TemporaryDirectory() as root:
            try:
                with redirect_stdout(noise), redirect_stderr(noise):
                    for label, folder, *of in function(Folders(root), gen):
                        said, good, matrices, values = check(program, folder, *of)
                        rows.append(dict(label=label, said=said.replace(str(folder), "."), good=good,
                                         refused=good and matrices == 0, matrices=matrices, values=values))
            except Exception as e:
                traceback.print_exc()
                rows.append(dict(label="", said=f"{type(e).__name__}: {e}", good=False, refused=False, matrices=0, values=0))
        for row in rows:
            print(json.dumps(dict(form=form, package=f"{name} {version(name)}") | row), flush=True)
            status = status if row["good"] else 1
    sys.exit(status)


if __name__ == "__main__":
    main()
