#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/gguf: small models and tokenizers as GGUF files beside the Hugging Face folders that
they come from. Or converts one folder. Files are laid out as llama.cpp's convert_hf_to_gguf.py does it:
the same keys, tensor names (from gguf-py's own map), types and order of rows.

    python3 tools/make_gguf_vectors.py tests/vectors [LLAMA_CPP_DIR [NAME...]]
    python3 tools/make_gguf_vectors.py tests/vectors --models NAME...  # of those that it converts itself
    python3 tools/make_gguf_vectors.py --convert MODEL_DIR FILE.gguf TYPE PRE
    python3 tools/make_gguf_vectors.py --split FILE.gguf TENSORS OUT.gguf  # as OUT-00001-of-0000N.gguf

With LLAMA_CPP_DIR (convert_by_llama_cpp.py says what it is), only tests/vectors/gguf/converted: a model of every
further architecture, or one of tests/vectors/models, written by llama.cpp's converter itself. TYPE: F32, F16, BF16 or Q8_0. PRE: the pre-tokenizer's name, or llama for a SentencePiece model. Needs gguf,
torch, safetensors and transformers >= 5. Never needed to build, run or test; README.md in the output folder
describes the files.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from make_model_vectors import save_model, write_tokenizer
from model_vector_hybrids import bamba, falcon_h1, granite_hybrid, kimi_linear, nemotron_h, nemotron_h_moe
from model_vector_parts import arcee, bailing, cohere, cohere2, internlm3, phimoe, starcoder2
from model_vector_configs import (
    deepseek_v2, deepseek_v3, gemma2, gemma3, glm4, gpt_oss, granite, llama, llama4, longrope, mixtral, olmo2, phi3,
    qwen2, qwen2_moe, qwen3, qwen3_moe, qwen3_next, smollm3,
)
from model_vector_switches import (
    dots1, ernie4_5, ernie4_5_moe, exaone4, gemma, glm4_moe, hunyuan, hunyuan_moe, minimax_m2, ministral3, olmo3, olmoe,
    qwen3_vl, seed_oss, MROPE,
)

SMALL = dict(hidden_size=32, intermediate_size=32, head_dim=8, num_attention_heads=4, num_key_value_heads=2)
WHOLE = dict(hidden_size=32, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2)
LLAMA3 = dict(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32, rope_type="llama3"
)

# name -> config, dtype of the folder's weights, types of the GGUF files.
MODELS = {
    # Weights that Q8_0 holds exactly.
    "llama": dict(
        config=llama(**SMALL, tie_word_embeddings=True, torch_dtype="float32"),
        dtype=torch.float32,
        types=["F32", "Q8_0"],
    ),
    "llama3": dict(
        config=llama(**SMALL, num_hidden_layers=1, tie_word_embeddings=True, rope_scaling=LLAMA3, rope_theta=500000.0),
        types=["BF16"],
    ),
    # Biases; yarn.
    "qwen2": dict(
        config=dict(
            qwen2(**SMALL, num_hidden_layers=1),
            rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
        ),
        types=["BF16"],
    ),
    # Weights that F16 holds exactly.
    "qwen3": dict(
        config=qwen3(**dict(SMALL, head_dim=16), num_hidden_layers=1, tie_word_embeddings=False), types=["F16"]
    ),
    # Written here by the converter's rules: relu squared, LayerNorms, blocks beside each other.
    "arcee": dict(config=arcee(**SMALL, num_hidden_layers=1), types=["F32"]),
    "starcoder2": dict(config=starcoder2(**WHOLE, num_hidden_layers=1, sliding_window=None), types=["F32"]),
    "command-r": dict(config=cohere(**WHOLE, num_hidden_layers=1), types=["F32"]),
    "cohere2": dict(
        config=cohere2(**WHOLE, num_hidden_layers=4, sliding_window_pattern=4, attention_bias=False), types=["F32"]
    ),
    # Biases of q, k and v alone, which transformers 5.24, and so the converter, has not.
    "internlm3": dict(
        config=internlm3(
            **SMALL, num_hidden_layers=1, bias=False, max_position_embeddings=128, rope_scaling=None
        ),
        plain=True,
        types=["F32"],
    ),
}
# What the files do not say is as llama.cpp takes it: Gemma's scale and pattern, SmolLM3's layers without positions,
# Llama 4's chunks and temperature, all layers sparse where there is no step.
TINY = dict(hidden_size=32, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2)
EXPERTS = dict(moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
LATENT = dict(
    hidden_size=32, intermediate_size=32, num_hidden_layers=2, n_routed_experts=4, n_group=2, topk_group=1,
    num_experts_per_tok=2, q_lora_rank=16, kv_lora_rank=16,
)
HYBRID = dict(hidden_size=32, mamba_d_head=16, mamba_n_heads=4, num_hidden_layers=2)
NEMOTRON = dict(
    hidden_size=32, head_dim=16, intermediate_size=32, mamba_num_heads=4, num_hidden_layers=3, time_step_min=0.001
)
ONES = (
    "attention_in_multiplier", "attention_out_multiplier", "embedding_multiplier", "key_multiplier",
    "lm_head_multiplier", "ssm_in_multiplier", "ssm_out_multiplier",
)
LONG_OF_PHIMOE = dict(
    long_factor=[1.0 + 0.5 * i for i in range(4)],
    long_mscale=1.243163121016122,
    original_max_position_embeddings=64,
    short_factor=[1.0 + 0.125 * i for i in range(4)],
    short_mscale=1.243163121016122,
    type="longrope",
)
CONVERTED = {
    "gemma2": (gemma2(**TINY, head_dim=16, query_pre_attn_scalar=16), []),
    "gemma3": (
        gemma3(**TINY, head_dim=8, query_pre_attn_scalar=8, num_hidden_layers=6, sliding_window_pattern=6), []
    ),
    "qwen3moe": (qwen3_moe(**TINY, **EXPERTS, head_dim=16), []),
    "qwen2moe": (
        qwen2_moe(**TINY, **EXPERTS, num_hidden_layers=2, decoder_sparse_step=1, mlp_only_layers=[]), []
    ),
    "mixtral": (mixtral(**dict(TINY, intermediate_size=16), num_local_experts=4), []),
    "phi3": (phi3(**TINY, sliding_window=16), []),
    "phi3-long": (
        phi3(**TINY, max_position_embeddings=128, original_max_position_embeddings=32, partial_rotary_factor=0.5,
             num_hidden_layers=1, rope_scaling=longrope(2)), []
    ),
    "granite": (granite(**TINY), []),
    "smollm3": (smollm3(**TINY), []),
    "olmo2": (olmo2(**TINY), []),
    "glm4": (glm4(**TINY, head_dim=16), []),
    "gpt-oss": (gpt_oss(**TINY, head_dim=16, tie_word_embeddings=True), []),
    "deepseek2": (deepseek_v2(**LATENT), []),
    "deepseek2-v3": (deepseek_v3(**LATENT), []),
    "llama4": (
        llama4(hidden_size=32, head_dim=8, attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1,
               no_rope_layer_interval=4), []
    ),
    # Gate and up of the experts in one tensor; without the layers that predict further tokens.
    "qwen3next": (
        qwen3_next(hidden_size=32, intermediate_size=32, head_dim=32, num_experts=4, linear_value_head_dim=16),
        ["--no-mtp", "--fuse-gate-up-exps"],
    ),
    "gemma": (gemma(**TINY, head_dim=16), []),
    "mistral3": (ministral3(**TINY, head_dim=16), []),
    "qwen3vl": (qwen3_vl(qwen3(**TINY, head_dim=16, rope_scaling=MROPE), "qwen3_vl"), []),
    "qwen3vlmoe": (qwen3_vl(qwen3_moe(**TINY, **EXPERTS, head_dim=16, rope_scaling=MROPE), "qwen3_vl_moe"), []),
    "glm4moe": (glm4_moe(**TINY, head_dim=16, n_group=1, n_routed_experts=4, num_experts_per_tok=2), ["--no-mtp"]),
    "minimax-m2": (
        minimax_m2(**dict(TINY, intermediate_size=16), head_dim=16, rotary_dim=8, num_local_experts=4), []
    ),
    "seed_oss": (seed_oss(**TINY, head_dim=16), []),
    "olmo3": (olmo3(**TINY), []),
    "olmoe": (olmoe(**dict(TINY, intermediate_size=16), num_experts=4, clip_qkv=None), []),
    "ernie4_5": (ernie4_5(**TINY, head_dim=16), []),
    # As many shared experts as the converter takes the width to be of: intermediate_size over the heads of K.
    "ernie4_5-moe": (
        ernie4_5_moe(
            **TINY, moe_intermediate_size=16, moe_num_experts=4, moe_k=2, moe_num_shared_experts=1
        ),
        [],
    ),
    "dots1": (
        dots1(
            **TINY, head_dim=16, n_group=1, n_routed_experts=4, num_experts_per_tok=2, sliding_window=None,
            num_hidden_layers=2,
        ),
        [],
    ),
    "hunyuan-dense": (hunyuan(**TINY, head_dim=16, max_position_embeddings=32768), []),
    "hunyuan-moe": (
        hunyuan_moe(
            **dict(TINY, intermediate_size=16), head_dim=16, num_experts=4, moe_intermediate_size=[16, 16],
            rope_scaling=None,
        ),
        [],
    ),
    "exaone4": (exaone4(**TINY, head_dim=16), []),
    # What files cannot say has the value that they stand for: the least step of Nemotron-H, PhiMoE's factor of
    # cosines and sines, and its jitter. Falcon-H1's multipliers are powers of two, which change no digit of the weights
    # that they are put in.
    "granitehybrid-moe": (
        granite_hybrid(
            **HYBRID, layer_types=["attention", "mamba"], mamba_n_groups=2, mamba_proj_bias=True, num_experts_per_tok=3,
            num_local_experts=8, shared_intermediate_size=24,
        ),
        [],
    ),
    "bamba": (bamba(**HYBRID, attn_layer_indices=[1], attn_rotary_emb=4, intermediate_size=32, mamba_n_groups=2), []),
    "falcon-h1": (
        falcon_h1(
            **HYBRID, attention_in_multiplier=0.5, attention_out_multiplier=2.0, embedding_multiplier=4.0, head_dim=8,
            intermediate_size=32, key_multiplier=0.25, lm_head_multiplier=0.5, mamba_d_ssm=64,
            mlp_multipliers=[0.5, 0.25], ssm_in_multiplier=2.0, ssm_multipliers=[0.5, 2.0, 0.25, 4.0, 0.5],
            ssm_out_multiplier=0.25, projectors_bias=False, time_step_min=0.0,
        ),
        [],
    ),
    "falcon-h1-norm": (
        falcon_h1(
            **HYBRID, **{k: 1.0 for k in ONES}, head_dim=8, intermediate_size=32, mamba_d_ssm=64, mamba_n_groups=2,
            mamba_rms_norm=True, mlp_multipliers=[1.0, 1.0], ssm_multipliers=[1.0] * 5,
        ),
        [],
    ),
    "nemotron_h": (nemotron_h(**NEMOTRON, hybrid_override_pattern="M-*"), []),
    "nemotron_h_moe": (
        nemotron_h_moe(
            **NEMOTRON, hybrid_override_pattern="ME*", moe_intermediate_size=16, moe_shared_expert_intermediate_size=24,
            n_routed_experts=4, num_experts_per_tok=2,
        ),
        [],
    ),
    "nemotron_h_latent": (
        nemotron_h_moe(
            **NEMOTRON, hybrid_override_pattern="ME*", mlp_bias=False, moe_intermediate_size=16, moe_latent_size=16,
            moe_shared_expert_intermediate_size=24, n_group=2, n_routed_experts=4, num_experts_per_tok=2, topk_group=1,
        ),
        [],
    ),
    "bailingmoe": (
        bailing(**dict(TINY, intermediate_size=48), head_dim=16, num_experts=4, use_bias=False, use_qkv_bias=False),
        [],
        dict(plain=True),
    ),
    "phimoe": (
        phimoe(
            **TINY, num_local_experts=4, max_position_embeddings=128, num_hidden_layers=2, rope_scaling=LONG_OF_PHIMOE,
            router_jitter_noise=0.01,
        ),
        [],
        dict(transformers_class="PhimoeForCausalLM"),
    ),
    "kimi-linear": (kimi_linear(hidden_size=32, intermediate_size=32, kv_lora_rank=16, num_experts=4), []),
}
# File -> the folder of tests/vectors/models that it is made of, and options.
CONVERTED_MODELS = {
    "gemma4": ("gemma4_conditional", []),
    "gemma4-kv": ("gemma4_kv", []),
    "gemma4-moe": ("gemma4_moe", []),
    "lfm2": ("lfm2", []),
    "lfm2moe": ("lfm2_moe", []),
    "granitehybrid": ("granite_hybrid", []),
    "mimo2": ("mimo_v2", []),
    "deepseek32": ("deepseek_v32", []),
    "glm-dsa": ("glm_moe_dsa", []),
    "stablelm": ("stablelm", []),
    "stablelm-parallel": ("stablelm_parallel", []),
    "bailingmoe2": ("bailing_moe_v2", []),
    "apertus": ("apertus", []),
}
TOKENIZERS = {
    "gpt2": "gpt-2", "qwen2": "qwen2", "llama3": "llama-bpe", "tekken": "tekken", "smollm": "smollm", "spm": "llama"
}
ARCHS = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MistralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "InternLM3ForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "ArceeForCausalLM": gguf.MODEL_ARCH.ARCEE,
    "Starcoder2ForCausalLM": gguf.MODEL_ARCH.STARCODER2,
    "CohereForCausalLM": gguf.MODEL_ARCH.COMMAND_R,
    "Cohere2ForCausalLM": gguf.MODEL_ARCH.COHERE2,
}


def read(folder, name):
    path = Path(folder) / name
    return json.loads(path.read_text()) if path.is_file() else {}


# ---- metadata ----


def add_config(w, c, ftype):
    rope = dict(c.get("rope_scaling") or {})
    rope.update(c.get("rope_parameters") or {})
    rope_type = rope.get("rope_type", rope.get("type"))
    head_dim = c.get("head_dim")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_rope_freq_base(c.get("rope_theta", rope.get("rope_theta", 10000.0)))
    if "rms_norm_eps" in c:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    else:
        w.add_layer_norm_eps(c.get("norm_epsilon", c.get("layer_norm_eps")))
    if w.arch in ("command-r", "cohere2"):
        w.add_logit_scale(c.get("logit_scale", 0.0625))
        w.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if w.arch == "cohere2":
        w.add_sliding_window(c["sliding_window"])
        w.add_rope_dimension_count(c["hidden_size"] // c["num_attention_heads"])
    if rope_type in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(rope_type))
        w.add_rope_scaling_factor(rope["factor"])
    if rope_type == "yarn":
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if head_dim is not None:
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    w.add_file_type(ftype)
    if w.arch == "llama":
        w.add_vocab_size(c["vocab_size"])
        w.add_rope_dimension_count(head_dim or c["hidden_size"] // c["num_attention_heads"])
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_sampling(w, g):
    for key, add in [
        ("top_k", w.add_sampling_top_k), ("top_p", w.add_sampling_top_p), ("min_p", w.add_sampling_min_p),
        ("temperature", w.add_sampling_temp), ("repetition_penalty", w.add_sampling_penalty_repeat),
    ]:
        if key in g:
            add(g[key])


def looks_special(text):
    return text.startswith("<|") and text.endswith("|>")


def token_lists(tok, size):
    """Text, type and SentencePiece score of ids 0 to size - 1."""
    T = gguf.TokenType
    by_id = {i: t for t, i in tok["model"]["vocab"].items()}
    added = {a["id"]: a for a in tok["added_tokens"]}
    texts, types, scores = [], [], []
    pieces = -256 - 3
    for i in range(size):
        text, kind = by_id.get(i), T.NORMAL
        if i in added:
            text = added[i]["content"]
            kind = T.CONTROL if added[i]["special"] or looks_special(text) else T.USER_DEFINED
        if text is not None and text == tok["model"].get("unk_token") and tok["model"]["byte_fallback"]:
            kind = T.UNKNOWN
        if tok["model"]["byte_fallback"] and text is not None and text.startswith("<0x"):
            kind = T.BYTE
        if text is None:
            text, kind = f"[PAD{i}]", T.UNUSED
        texts.append(text)
        types.append(int(kind))
        scores.append(-float(i + pieces) if kind == T.NORMAL else 0.0)
    return texts, types, scores


def adds_token(tok, first):
    """Whether the post-processor puts a token before, or after, the text; None: it does not say."""
    post = tok.get("post_processor") or {}
    said = None
    for p in post.get("processors", [post]):
        if p.get("type") == "ByteLevel" and said is None:
            said = False
        elif p.get("type") == "TemplateProcessing":
            said = "SpecialToken" in p["single"][0 if first else -1]
    return said


def add_tokenizer(w, folder, pre, size=None):
    tok, conf = read(folder, "tokenizer.json"), read(folder, "tokenizer_config.json")
    ids = {a["content"]: a["id"] for a in tok["added_tokens"]} | tok["model"]["vocab"]
    texts, types, scores = token_lists(tok, size or max(ids.values()) + 1)
    spm = pre == "llama"
    w.add_tokenizer_model("llama" if spm else "gpt2")
    w.add_tokenizer_pre("default" if spm else pre)
    w.add_token_list(texts)
    if spm:
        w.add_token_scores(scores)
    w.add_token_types(types)
    merges = tok["model"]["merges"]
    if not spm and merges:
        w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    for kind in ("bos", "eos", "unk", "pad"):
        name = conf.get(f"{kind}_token")
        if name is None and not conf and kind == "bos":  # the tokenizers without a config: what they put first
            name = next((t for t in ("<s>", "<|begin_of_text|>") if t in ids), None)
        if name is not None:
            getattr(w, f"add_{kind}_token_id")(ids[name if isinstance(name, str) else name["content"]])
    for first, add in ((True, w.add_add_bos_token), (False, w.add_add_eos_token)):
        if adds_token(tok, first) is not None:
            add(adds_token(tok, first))
    template = Path(folder) / "chat_template.jinja"
    text = template.read_text() if template.is_file() else conf.get("chat_template")
    if text:
        w.add_chat_template(text)


# ---- tensors ----


def interleave(x, heads):
    """Rows of each head: the two halves that rotate together become neighbours."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def rope_factors(c):
    r, d = c["rope_scaling"], c["head_dim"]
    low, high = r["low_freq_factor"], r["high_freq_factor"]
    out = []
    for f in 1.0 / (c["rope_theta"] ** (torch.arange(0, d, 2, dtype=torch.float32) / d)):
        turns = r["original_max_position_embeddings"] / (2 * np.pi / float(f))
        smooth = min(max((turns - low) / (high - low), 0), 1)
        out.append(1 / ((1 - smooth) / r["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def add_tensors(w, folder, c, arch, kind):
    names = gguf.get_tensor_name_map(arch, c["num_hidden_layers"])
    if (c.get("rope_scaling") or {}).get("rope_type") == "llama3":
        w.add_tensor("rope_freqs.weight", rope_factors(c))
    for path in sorted(Path(folder).glob("*.safetensors")):
        for name, t in load_file(path).items():
            x = t.to(torch.float32).numpy()
            permuted = arch in (gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.ARCEE)
            if permuted and ".q_proj." in name:
                x = interleave(x, c["num_attention_heads"])
            if permuted and ".k_proj." in name:
                x = interleave(x, c["num_key_value_heads"])
            stored = gguf.GGMLQuantizationType[kind if x.ndim > 1 else "F32"]
            if x.shape[-1] % gguf.GGML_QUANT_SIZES[stored][0] != 0:
                stored = gguf.GGMLQuantizationType.F16
            w.add_tensor(names.get_name(name, (".weight", ".bias")), quantize(x, stored), raw_dtype=stored)


def convert(folder, out, kind, pre):
    c = read(folder, "config.json")
    arch = ARCHS[c["architectures"][0]]
    w = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[arch])
    w.add_type(gguf.GGUFType.MODEL)
    add_sampling(w, read(folder, "generation_config.json"))
    w.add_name(Path(folder).name)
    add_config(w, c, gguf.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"])
    add_tokenizer(w, folder, pre, c["vocab_size"])
    add_tensors(w, folder, c, arch, kind)
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# ---- the vectors ----


def make_exact(path, kinds):
    """Rounds a folder's weights to what all of the file types hold."""
    weights = load_file(path)
    for name, t in weights.items():
        x = t.to(torch.float32).numpy()
        if "F16" in kinds:  # bf16 has 8 bits: down to 2^-17 they are in f16's subnormal numbers too
            x[np.abs(x) < 2.0**-16] = 0
        if "Q8_0" in kinds and x.ndim > 1:
            q8 = gguf.GGMLQuantizationType.Q8_0
            x = dequantize(quantize(x, q8), q8)
            assert np.array_equal(x, dequantize(quantize(x, q8), q8)), name
        weights[name] = torch.from_numpy(x).to(t.dtype).contiguous()
    save_file(weights, path, metadata={"format": "pt"})


def make_models(root, names):
    for seed, (name, spec) in enumerate(MODELS.items()):
        if names and name not in names:
            continue
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_model(folder, name, spec, 7000 + seed)
        (folder / "config.alt.json").unlink()
        write_tokenizer(folder)
        make_exact(folder / "model.safetensors", spec["types"])
        for kind in spec["types"]:
            convert(folder, root / f"{name}-{kind.lower()}.gguf", kind, "gpt-2")
    (root / "split").mkdir(exist_ok=True)
    split(root / "qwen3-f16.gguf", 12, root / "split/qwen3-f16.gguf")
    split(root / "llama-q8_0.gguf", 12, root / "split/llama-q8_0.gguf", small_first=True)


def split(source, most, out, small_first=False):
    """Parts of a file with at most so many tensors each, and if asked for none in the first, by gguf-py's writer."""
    r = gguf.GGUFReader(source)
    arch = r.fields["general.architecture"].contents()
    w = gguf.GGUFWriter(out, arch, split_max_tensors=most, small_first_shard=small_first)
    for name, field in r.fields.items():
        kind = field.types[0]
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        w.add_key_value(name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for t in r.tensors:
        w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    finish(w)


def name_dense_layer(folder):
    """The one dense layer of Kimi Linear as hubs' files call it, which transformers 5.24 saves as a sparse one."""
    path = folder / "model.safetensors"
    own, hub = "layers.0.block_sparse_moe.", "layers.0.mlp."
    save_file({k.replace(own, hub): t for k, t in load_file(path).items()}, path, metadata={"format": "pt"})


def make_converted(root, llama_cpp, names):
    """Folder and file of each model, or of those named; the file has the dtype of the folder, and its norms float32."""
    script = Path(__file__).with_name("convert_by_llama_cpp.py")
    for seed, (name, (config, options, *more)) in enumerate(CONVERTED.items()):
        if names and name not in names:
            continue
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        # The converter takes Qwen3-VL-MoE's experts as hubs have them.
        spec = dict(config=config, columns_first=name == "qwen3vlmoe", **(more[0] if more else {}))
        save_model(folder, name, spec, 7100 + seed)
        (folder / "config.alt.json").unlink()
        if name == "kimi-linear":
            name_dense_layer(folder)
        write_tokenizer(folder)
        out = root / f"{name}.gguf"
        subprocess.run([sys.executable, script, llama_cpp, folder, out, "bf16", *options], check=True)
    for name, (model, options) in CONVERTED_MODELS.items():
        if names and name not in names:
            continue
        folder, out = root.parent.parent / "models" / model, root / f"{name}.gguf"
        subprocess.run([sys.executable, script, llama_cpp, folder, out, "bf16", *options], check=True)


def make_tokenizers(source, out):
    out.mkdir(exist_ok=True)
    for name, pre in TOKENIZERS.items():
        w = gguf.GGUFWriter(out / f"{name}.gguf", "llama")
        w.add_type("vocab")
        add_tokenizer(w, source / name, pre)
        finish(w)


def main():
    torch.manual_seed(0)
    if len(sys.argv) == 6 and sys.argv[1] == "--convert":
        convert(*sys.argv[2:])
    elif len(sys.argv) == 5 and sys.argv[1] == "--split":
        split(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    elif len(sys.argv) >= 4 and sys.argv[2] == "--models":
        make_models(Path(sys.argv[1]) / "gguf", sys.argv[3:])
    elif len(sys.argv) >= 3:
        make_converted(Path(sys.argv[1]) / "gguf" / "converted", sys.argv[2], sys.argv[3:])
    elif len(sys.argv) == 2:
        root = Path(sys.argv[1])
        make_models(root / "gguf", [])
        make_tokenizers(root / "tokenizer", root / "gguf" / "tokenizers")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
