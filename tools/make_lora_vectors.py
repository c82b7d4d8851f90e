#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/lora: small random adapters of the models of tests/vectors/models.

    python3 tools/make_lora_vectors.py tests/vectors [NAME...]

Needs torch, transformers >= 5, peft and gguf (a CPU is enough; one minute). Each folder is what
save_pretrained of peft writes, but for fields that name a path, and has expected_f32.bin besides:
little-endian f32 [32, vocabulary], the log-softmax of the logits at the first 32 positions of the
model's prompt.json, of the base in f32 with the adapter as peft loads it from the folder.
"""

import json
import sys
from pathlib import Path

import gguf
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

POSITIONS = 32
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

# Name: model, arguments of LoraConfig.
ADAPTERS = {
    "attention": ("qwen3_f32", dict(r=4, lora_alpha=8, target_modules=ATTENTION)),
    "all": ("qwen3_f32", dict(r=8, lora_alpha=16, use_rslora=True, target_modules="all-linear")),
    "few": ("qwen3_f32", dict(r=3, lora_alpha=7, target_modules=r".*layers\.1\..*(q|down)_proj")),
    # Behind "few" in captured steps: a larger rank, of layers that "few" has changed.
    "wide": ("qwen3_f32", dict(r=20, lora_alpha=40, target_modules=r".*layers\.1\..*(q|down)_proj")),
    # PEFT sorts the keys on save and takes the first that matches: what is read is what counts.
    "patterns": (
        "qwen3_f32",
        dict(
            r=8,
            lora_alpha=8,
            target_modules=["q_proj", "v_proj", "up_proj"],
            alpha_pattern={"q_proj": 16, r"layers\.0\.self_attn\.q_proj": 64, "self_attn.v_proj": 4},
            rank_pattern={r"layers\.0\.mlp\.up_proj": 2},
        ),
    ),
    "ends": (
        "qwen3_f32",
        dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "lm_head", "o_proj"]),
    ),
    "head": ("llama", dict(r=4, lora_alpha=8, target_modules=["lm_head", "k_proj"])),
    "biased": ("qwen2_gqa7", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "fused": ("phi3_swa", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "pairs": ("glm4", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "norms": ("gemma3", dict(r=4, lora_alpha=8, target_modules=ATTENTION + ["embed_tokens", "down_proj"])),
    "gated": (
        "qwen3_next",
        dict(r=4, lora_alpha=8, target_modules=ATTENTION + ["in_proj_qkvz", "in_proj_ba", "out_proj"]),
    ),
    "latent": (
        "deepseek_v2",
        dict(r=4, lora_alpha=8, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]),
    ),
    "latent_kv": (
        "deepseek_v2",
        dict(r=4, lora_alpha=8, target_modules=["kv_b_proj", "o_proj"], alpha_pattern={r"layers\.1\..*": 5}),
    ),
    "beside_experts": ("qwen3_moe", dict(r=4, lora_alpha=8, target_modules=ATTENTION)),
    "shared_expert": (
        "qwen2_moe",
        dict(r=4, lora_alpha=8, target_modules=r".*shared_expert\.(gate|up|down)_proj"),
    ),
    "channels": (
        "kimi_linear",
        dict(r=4, lora_alpha=8, target_modules=["q_proj", "f_a_proj", "f_b_proj", "b_proj", "g_b_proj", "o_proj"]),
    ),
    "gate_names": ("kimi_linear", dict(r=4, lora_alpha=8, target_modules=["f_a_proj", "f_b_proj"])),
    "convolved": ("lfm2", dict(r=4, lora_alpha=8, target_modules=["in_proj", "out_proj", "w1", "w2", "v_proj"])),
    "recurrent": (
        "falcon_h1",
        dict(r=4, lora_alpha=8, target_modules=["in_proj", "q_proj", "k_proj", "gate_proj", "down_proj"]),
    ),
    "side_by_side": ("cohere2", dict(r=4, lora_alpha=8, target_modules=ATTENTION + ["up_proj", "down_proj"])),
    "no_gate": ("starcoder2", dict(r=4, lora_alpha=8, target_modules=["q_proj", "o_proj", "c_fc", "c_proj"])),
    "experts": (
        "qwen3_moe",
        dict(
            r=2,
            lora_alpha=4,
            target_modules=["q_proj"],
            target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            alpha_pattern={r"layers\.1\.mlp\.experts\.gate_up_proj": 9},
        ),
    ),
    "experts_alternate": (
        "gpt_oss",
        dict(r=3, lora_alpha=4, target_modules=[], target_parameters=["mlp.experts.gate_up_proj"]),
    ),
    "experts_down": (
        "gpt_oss",
        dict(r=3, lora_alpha=4, target_modules=[], target_parameters=["mlp.experts.down_proj"]),
    ),
    "experts_plain": (
        "nemotron_h_moe",
        dict(r=2, lora_alpha=4, target_modules=[], target_parameters=["experts.up_proj", "experts.down_proj"]),
    ),
    "saved": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])),
    "saved_tied": ("qwen3_f32", dict(r=4, lora_alpha=8, target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
    "saved_biased": (
        "qwen2_gqa7",
        dict(r=4, lora_alpha=8, target_modules=["q_proj", "gate_proj"], modules_to_save=["k_proj", "up_proj"]),
    ),
    "tokens": (
        "llama",
        dict(
            r=4,
            lora_alpha=8,
            target_modules=["q_proj"],
            trainable_token_indices={"embed_tokens": [97, 98, 40, 32, 116], "lm_head": [101, 100]},
        ),
    ),
    "tokens_tied": (
        "qwen3_f32",
        dict(r=4, lora_alpha=8, target_modules=["q_proj"], trainable_token_indices=[97, 98, 40, 32, 116, 101]),
    ),
    "per_layer": (
        "gemma4_ple",
        dict(r=4, lora_alpha=8, target_modules=ATTENTION + ["per_layer_input_gate", "per_layer_projection", "up_proj"]),
    ),
}
# Refused by name.
REFUSED = {
    "dora": ("qwen3_f32", dict(r=4, lora_alpha=8, use_dora=True, target_modules=["q_proj"])),
    "saved_module": (
        "qwen3_f32",
        dict(r=4, lora_alpha=8, target_modules=["q_proj"], modules_to_save=["norm"]),
    ),
}
# Adapters in GGUF files, of the folders in tests/vectors/gguf; their prompt is that of models/llama.
GGUF = {
    "gguf_llama": (
        "llama",
        dict(r=4, lora_alpha=8, target_modules=ATTENTION + ["gate_proj", "down_proj", "embed_tokens"]),
    ),
    "gguf_llama_blocks": (
        "llama",
        dict(r=32, lora_alpha=8, target_modules=ATTENTION + ["up_proj", "down_proj", "embed_tokens"]),
    ),
}
# What the tensors of one of them are, by turns; Q8_0 is what llama.cpp's converter writes beside floats.
Type = gguf.GGMLQuantizationType
BLOCKS = {"gguf_llama_blocks": [Type.Q8_0, Type.Q4_0, Type.Q8_0, Type.Q5_1, Type.MXFP4, Type.Q4_1, Type.Q5_0]}


def make(root, name, model, arguments, folder="models"):
    torch.manual_seed(sum(map(ord, name)))
    base = root / folder / model
    out = root / "lora" / name
    net = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    wrapped = get_peft_model(net, LoraConfig(task_type="CAUSAL_LM", **arguments))
    for key, p in wrapped.named_parameters():
        if "lora_" in key and "magnitude" not in key:
            torch.nn.init.normal_(p, std=0.06 if "_B" in key else p.shape[-1] ** -0.5)
        elif "modules_to_save" in key or "trainable_tokens_delta" in key:
            p.data += 0.3 * p.std() * torch.randn_like(p)
    wrapped.save_pretrained(out, save_embedding_layers=False)
    (out / "README.md").unlink()
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = model
    for field in ("target_modules", "target_parameters", "modules_to_save"):
        if isinstance(config[field], list):
            config[field].sort()
    # Not the order that PEFT saves in, so that a reader who sorts, or prefers the longest, is found.
    config["alpha_pattern"] = dict(reversed(config["alpha_pattern"].items()))
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return out


def expect(root, name, model, out, folder="models"):
    base = root / folder / model
    net = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    ids = torch.tensor([json.loads((root / "models" / model / "prompt.json").read_text())["ids"][:POSITIONS]])
    with torch.no_grad():
        plain = net(ids).logits[0].log_softmax(-1)
        wrapped = PeftModel.from_pretrained(net, out)
        rows = wrapped(ids).logits[0].log_softmax(-1)
    assert (rows - plain).abs().max() > 0.05, name
    (out / "expected_f32.bin").write_bytes(rows.float().numpy().tobytes())
    print(f"{name}: changes log-probabilities by up to {(rows - plain).abs().max():.3f}")


def permute(w, heads):
    """Rows of q or k as llama.cpp's converter moves them (LlamaModel.permute)."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def round_blocks(out, types):
    """Makes the folder's values those of blocks, which are returned by tensor, by gguf-py's dequantize. Rows are those of
    the GGUF file but for their order."""
    path = out / "adapter_model.safetensors"
    tensors, blocks = load_file(path), {}
    for i, (key, w) in enumerate(sorted(tensors.items())):
        turned, kind = key.endswith("lora_embedding_A"), types[i % len(types)]
        blocks[key] = gguf.quantize((w.T if turned else w).contiguous().numpy(), kind), kind
        w = torch.from_numpy(gguf.dequantize(*blocks[key]))
        tensors[key] = (w.T if turned else w).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    return blocks


def to_gguf(root, model, out, blocks):
    """The folder as one file, in its place; of what blocks there are these."""
    config = json.loads((root / "gguf" / model / "config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    writer = gguf.GGUFWriter(out / "adapter.gguf", "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA,
                       json.loads((out / "adapter_config.json").read_text())["lora_alpha"])
    for key, w in sorted(load_file(out / "adapter_model.safetensors").items()):
        packed, kind = blocks.get(key, (None, None))
        key = key.removeprefix("base_model.model.").removesuffix(".weight")
        module, part = key.rsplit(".", 1)
        if part == "lora_embedding_A":
            w = w.T.contiguous()
        w = packed if packed is not None else w.numpy()
        if part == "lora_B" and module.rsplit(".", 1)[1] in heads:
            w = permute(w, heads[module.rsplit(".", 1)[1]])
        writer.add_tensor(names.get_name(module) + ".weight.lora_" + part[-1].lower(), w, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (out / file).unlink()


# Experts that are modules of their own, as PEFT saved them of models whose experts were not stacked.
def make_apart(root):
    out = root / "lora" / "experts_apart"
    out.mkdir(exist_ok=True)
    torch.manual_seed(7)
    hidden, inter, experts, rank = 48, 32, 8, 2
    tensors = {}
    for layer in range(2):
        for e in range(experts):
            for part, n, k in (("gate_proj", inter, hidden), ("up_proj", inter, hidden), ("down_proj", hidden, inter)):
                key = f"base_model.model.model.layers.{layer}.mlp.experts.{e}.{part}"
                tensors[key + ".lora_A.weight"] = torch.randn(rank, k) * k**-0.5
                tensors[key + ".lora_B.weight"] = torch.randn(n, rank) * 0.06
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    config = json.loads((root / "lora" / "beside_experts" / "adapter_config.json").read_text())
    config |= dict(r=rank, lora_alpha=5, target_modules=["down_proj", "gate_proj", "up_proj"])
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return out


# What modules are called by the checkpoint's own class, which adapters that were trained with it have.
OWN_NAMES = {"channels": (".forget_gate.", ".")}


def rename(out, of_transformers, own):
    path = out / "adapter_model.safetensors"
    tensors = {k.replace(of_transformers, own): v for k, v in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def main():
    root, names = Path(sys.argv[1]), sys.argv[2:]
    for name, (model, arguments) in ADAPTERS.items():
        if not names or name in names:
            out = make(root, name, model, arguments)
            expect(root, name, model, out)
            if name in OWN_NAMES:
                rename(out, *OWN_NAMES[name])
    for name, (model, arguments) in REFUSED.items():
        if not names or name in names:
            make(root, name, model, arguments)
    for name, (model, arguments) in GGUF.items():
        if not names or name in names:
            out = make(root, name, model, arguments, "gguf")
            blocks = round_blocks(out, BLOCKS[name]) if name in BLOCKS else {}
            expect(root, name, model, out, "gguf")
            to_gguf(root, model, out, blocks)
    if not names or "experts_apart" in names:
        expect(root, "experts_apart", "qwen3_moe", make_apart(root))


main()
