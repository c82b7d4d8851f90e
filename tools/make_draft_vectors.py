#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/drafts: small random targets with draft heads, and what the heads give.

    python3 tools/make_draft_vectors.py tests/vectors/drafts [NAME...]

Needs torch and transformers >= 5 (a CPU is enough; one minute). Targets and the layers of MTP are
transformers' own; what is around such a layer, and all of EAGLE-3's, is written here from
docs/decisions/059-draft-heads.md. Every row is computed anew from all rows before it, without a
cache, so that a reader's cache is compared with none. README.md in the output folder describes the files.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from make_model_vectors import corrections_of, dump, parse, randomise, write_tokenizer
from mimo_heads import MimoHead, WindowLayer, rms, shapes
from model_vector_configs import (
    deepseek_v3,
    glm4_moe_lite,
    llama,
    mimo_v2,
    qwen3,
    qwen3_next,
    without,
)
from model_vector_hybrids import NEMOTRON_GAIN, nemotron_h_moe
from model_vector_switches import glm4_moe
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

TEXT = "A draft is a guess."
QUESTION = "What is chunked prefill?"  # to the demo model
CHAIN = 3  # rows behind the prompt's
MLA_GAIN = dict(q_b_proj=1.5)


# --- heads -------------------------------------------------------------------------------------


def rotate(x, positions, base):
    """Llama's rope: dimension i turns with i + d / 2. x: [rows, heads, d]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def causal(q, k, v):
    """[rows, heads, d] each, k and v with fewer heads; returns [rows, heads * d]."""
    n, groups = len(q), q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    scores.masked_fill_(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(n, -1)


class Eagle3:
    """A folder as SpecForge or speculators writes it."""

    def __init__(self, folder, embedding):
        c = json.loads((folder / "config.json").read_text())
        self.c = c | c.get("transformer_layer_config", {})
        w = load_file(folder / "model.safetensors")
        w = {
            k.replace("layers.0.", "midlayer."): v.float() if v.is_floating_point() else v
            for k, v in w.items()
        }
        self.w, self.embedding = w, w.get("embed_tokens.weight", embedding)
        self.target_ids = torch.arange(self.c["draft_vocab_size"]) + w["d2t"]

    def first(self, states):
        return F.linear(states, self.w["fc.weight"])

    def rows(self, tokens, x):
        """The states g that a chain goes on with, and logits, of all pairs (token, x)."""
        c, w, at = self.c, self.w, "midlayer."
        eps, heads, kv = c["rms_norm_eps"], c["num_attention_heads"], c["num_key_value_heads"]
        d = c.get("head_dim", c["hidden_size"] // heads)
        e = rms(F.embedding(tokens, self.embedding), w[at + "input_layernorm.weight"], eps)
        normed = rms(x, w[at + "hidden_norm.weight"], eps)
        u = torch.cat((e, normed), -1)
        if c.get("norm_before_residual"):
            x = normed
        q, k, v = (
            F.linear(u, w[f"{at}self_attn.{p}_proj.weight"]).view(len(u), n, d)
            for p, n in (("q", heads), ("k", kv), ("v", kv))
        )
        positions = torch.arange(len(u))
        base = c.get("rope_theta", 10000.0)
        y = causal(rotate(q, positions, base), rotate(k, positions, base), v)
        y = x + F.linear(y, w[at + "self_attn.o_proj.weight"])
        z = rms(y, w[at + "post_attention_layernorm.weight"], eps)
        z = F.silu(F.linear(z, w[at + "mlp.gate_proj.weight"])) * F.linear(
            z, w[at + "mlp.up_proj.weight"]
        )
        g = y + F.linear(z, w[at + "mlp.down_proj.weight"])
        return g, F.linear(rms(g, w["norm.weight"], eps), w["lm_head.weight"])


class Mtp:
    """The layer that predicts a token more: `layer` maps [rows, hidden] to the same, causally."""

    def __init__(self, parts, layer, embedding, head, eps, one):
        self.parts, self.layer, self.embedding, self.head = parts, layer, embedding, head
        self.eps, self.one = eps, one  # one: norms multiply by 1 + weight
        self.target_ids = torch.arange(len(head))

    def norm(self, x, name):
        return rms(x, self.parts[name] + self.one, self.eps)

    def first(self, states):
        return states

    def rows(self, tokens, h):
        e = self.norm(F.embedding(tokens, self.embedding), "enorm")
        x = F.linear(torch.cat((e, self.norm(h, "hnorm")), -1), self.parts["fc"])
        g = self.norm(self.layer(x), "norm")
        return g, F.linear(g, self.head)


def layer_of(model, index):
    """A decoder layer of transformers as a function of all rows of one sequence."""

    def run(x):
        n, m = len(x), model.model
        positions = torch.arange(n)[None]
        mask = torch.full((n, n), -math.inf).triu(1)[None, None]
        cos_sin = m.rotary_emb(x[None], positions)
        y = m.layers[index](
            x[None], attention_mask=mask, position_ids=positions, position_embeddings=cos_sin
        )
        return (y[0] if isinstance(y, tuple) else y)[0]

    return run


@torch.no_grad()
def check_layer(model, index, ids):
    """layer_of is what transformers does with that layer between the others."""
    h = model.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    last = model.model.norm(layer_of(model, index)(h[index][0]))
    assert index == len(model.model.layers) - 1 and (last - h[-1][0]).abs().max() < 1e-4


@torch.no_grad()
def check_steady(head, model, states, ids):
    """No expert is chosen otherwise when weights move by a rounding to bfloat16."""
    _, logits, drafts, _ = follow(head, states, ids)
    stored = {k: v.clone() for k, v in model.state_dict().items()}
    for seed in range(4):
        gen = torch.Generator().manual_seed(seed)
        for p in model.parameters():
            p.mul_(1 + torch.randn(p.shape, generator=gen) * 2**-10)
        _, moved, others, _ = follow(head, states, ids)
        assert others == drafts and (moved - logits).abs().max() < 0.5, (seed, drafts, others)
        model.load_state_dict(stored)


# --- what they give ----------------------------------------------------------------------------


@torch.no_grad()
def follow(head, states, ids):
    """A prompt's rows and a chain behind them: states to go on with, logits of the last row and the
    chain's, drafts and by how much each was first."""
    tokens, x = torch.tensor(ids[1:]), head.first(states)
    logits, drafts, margins = [], [], []
    for step in range(CHAIN + 1):
        g, row = head.rows(tokens, x)
        logits.append(row[-1])
        top = row[-1].topk(2)
        drafts.append(int(head.target_ids[top.indices[0]]))
        margins.append(round(float(top.values[0] - top.values[1]), 4))
        if step < CHAIN:
            tokens = torch.cat((tokens, torch.tensor(drafts[-1:])))
            x = torch.cat((x, g[-1:]))
    return g, torch.stack(logits), drafts, margins


@torch.no_grad()
def follow_heads(heads, states, ids):
    """The same of heads that each predict a token further ahead, of all the prompt's rows."""
    tokens, logits, drafts, margins, hidden = torch.tensor(ids[1:]), [], [], [], []
    for head in heads:
        g, row = head.rows(tokens, states)
        hidden.append(g)
        logits.append(row[-1])
        top = row[-1].topk(2)
        drafts.append(int(top.indices[0]))
        margins.append(round(float(top.values[0] - top.values[1]), 4))
        tokens = torch.cat((tokens[1:], top.indices[:1]))
    return torch.cat(hidden), torch.stack(logits), drafts, margins


def write(folder, name, head, states, ids, rest, by=follow):
    g, logits, drafts, margins = by(head, states, ids)
    for file, x in (("states", states), ("hidden", g), ("logits", logits)):
        dump(folder / f"{file}.bin", x)
    meta = dict(
        name=name,
        ids=ids,
        states=list(states.shape),
        hidden=list(g.shape),
        logits=list(logits.shape),
        drafts=drafts,
        margins=margins,
        **rest,
    )
    (folder / "drafts.json").write_text(json.dumps(meta) + "\n")
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    print(f"{name:16s} {size / 1024:5.0f} KiB  drafts {drafts} margins {margins}", flush=True)


@torch.no_grad()
def target_states(model, ids, behind):
    """Streams behind layers `behind` (None: what its head gets), and the token that comes next."""
    out = model.model(torch.tensor([ids]), output_hidden_states=True)
    h = out.hidden_states
    states = h[-1][0] if behind is None else torch.cat([h[i + 1][0] for i in behind], -1)
    logits = model(torch.tensor([ids])).logits[0, -1]
    return states, int(logits.argmax())


def save_target(folder, hub, seed, gain=None):
    """A random model as its hub writes it; returned with the stored values, in float32."""
    folder.mkdir(parents=True)
    model = getattr(transformers, hub["architectures"][0])(parse(hub)).float()
    randomise(model, model.config.tie_word_embeddings, seed, gain or {})
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    model.to(torch.bfloat16)
    for key, p in corrections_of(model):  # float32 in files of any dtype
        p.data = buffers[key]
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(dict(sorted(hub.items())), indent=2) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_tokenizer(folder)
    model.float()
    for key, value in model.named_buffers():  # rope's frequencies would stay rounded
        value.copy_(buffers[key])
    return model.eval()


def random_of(shapes, seed):
    """Matrices that keep a row's size, norms about 1."""
    gen, out = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes.items():
        r = torch.randn(shape, generator=gen)
        # What comes from embeddings and from other rows has to count beside the residual.
        gains = {"fc.weight": 0.3, "q_proj": 2.0, "k_proj": 2.0, "o_proj": 5.0}
        gain = next((g for part, g in gains.items() if part in name), 1.2)
        r = 1 + 0.2 * r if len(shape) == 1 else gain * r / math.sqrt(shape[-1])
        out[name] = r.to(torch.bfloat16)
    return out


def prompt_ids():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = keep + [b for b in range(256) if b not in keep]
    return [order.index(b) for b in TEXT.encode()]


# --- the folders -------------------------------------------------------------------------------


def eagle3_folder(folder, config, seed, own_embedding):
    """Random tensors under SpecForge's names, or those of speculators."""
    c = config | config.get("transformer_layer_config", {})
    h, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    d, mlp = c.get("head_dim", h // heads), c["intermediate_size"]
    at = "layers.0." if "transformer_layer_config" in c else "midlayer."
    shapes = {
        "fc.weight": (h, 3 * (c.get("target_hidden_size") or h)),
        at + "hidden_norm.weight": (h,),
        at + "input_layernorm.weight": (h,),
        at + "post_attention_layernorm.weight": (h,),
        at + "self_attn.q_proj.weight": (heads * d, 2 * h),
        at + "self_attn.k_proj.weight": (kv * d, 2 * h),
        at + "self_attn.v_proj.weight": (kv * d, 2 * h),
        at + "self_attn.o_proj.weight": (h, heads * d),
        at + "mlp.gate_proj.weight": (mlp, h),
        at + "mlp.up_proj.weight": (mlp, h),
        at + "mlp.down_proj.weight": (h, mlp),
        "norm.weight": (h,),
        "lm_head.weight": (c["draft_vocab_size"], h),
    }
    if own_embedding:
        shapes["embed_tokens.weight"] = (c["vocab_size"], h)
    tensors = random_of(shapes, seed)
    gen = torch.Generator().manual_seed(seed + 1)
    vocab = torch.randperm(c["vocab_size"], generator=gen)[: c["draft_vocab_size"]].sort().values
    tensors["d2t"] = vocab - torch.arange(len(vocab))
    tensors["t2d"] = torch.zeros(c["vocab_size"], dtype=torch.bool)
    tensors["t2d"][vocab] = True
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")


def eagle3_config(target, **kw):
    shared = dict(
        architectures=["LlamaForCausalLMEagle3"],
        bos_token_id=target["bos_token_id"],
        draft_vocab_size=96,
        eos_token_id=target["eos_token_id"],
        hidden_size=target["hidden_size"],
        intermediate_size=40,
        num_attention_heads=4,
        num_hidden_layers=1,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        vocab_size=target["vocab_size"],
    )
    unlike = ("mlp_bias", "pretraining_tp") + (() if "head_dim" in kw else ("head_dim",))
    return without(llama(**shared | kw), *unlike)


def eagle3(folder, name, target, config, behind, seed, own_embedding):
    model = save_target(folder / "target", target, seed)
    eagle3_folder(folder / "draft", config, seed + 1, own_embedding)
    ids = prompt_ids()
    states, following = target_states(model, ids, behind)
    head = Eagle3(folder / "draft", model.get_input_embeddings().weight)
    write(folder, name, head, states, ids + [following], dict(aux_layers=behind))


def make_eagle3(folder, name):
    """Layers named as SpecForge does; the target's embedding; heads unlike the target's."""
    target = qwen3(head_dim=32, hidden_size=48, intermediate_size=56, num_hidden_layers=6)
    config = eagle3_config(
        target,
        eagle_config=dict(eagle_aux_hidden_state_layer_ids=[1, 3, 4], use_aux_hidden_state=True),
        head_dim=16,
    )
    eagle3(folder, name, target, config, [1, 3, 4], 109, own_embedding=False)


def make_eagle3_wide(folder, name):
    """Layers by default, behind 1, 3 and 4 of 8; narrower than the target, so with an embedding."""
    target = llama(head_dim=32, hidden_size=40, intermediate_size=48, num_hidden_layers=8)
    config = eagle3_config(target, hidden_size=32, rope_theta=500000.0, target_hidden_size=40)
    eagle3(folder, name, target, config, [1, 3, 4], 103, own_embedding=True)


def make_eagle3_entering(folder, name):
    """Layers named by what enters them, 2, 3 and 5: behind 1, 2 and 4."""
    target = qwen3(head_dim=32, hidden_size=48, intermediate_size=56, num_hidden_layers=6)
    config = eagle3_config(
        target,
        eagle_config=dict(eagle_aux_hidden_state_layer_ids=[2, 3, 5]),
        head_dim=16,
    )
    eagle3(folder, name, target, config, [1, 2, 4], 100, own_embedding=False)


def make_eagle3_speculators(folder, name):
    """As speculators writes it: the normed state is the residual, a trained embedding, and ids of
    what enters layers though the first is 1."""
    target = qwen3(head_dim=32, hidden_size=48, intermediate_size=56, num_hidden_layers=6)
    layer = without(
        eagle3_config(target, head_dim=16),
        *("architectures", "draft_vocab_size", "rope_scaling", "rope_theta", "torch_dtype"),
    ) | dict(rope_parameters=dict(rope_theta=10000.0, rope_type="default"))
    config = dict(
        architectures=["Eagle3DraftModel"],
        draft_vocab_size=96,
        dtype="bfloat16",
        eagle_aux_hidden_state_layer_ids=[1, 3, 5],
        embed_requires_grad=True,
        fc_norm=False,
        norm_before_fc=False,
        norm_before_residual=True,
        norm_output=False,
        speculators_config=dict(
            algorithm="eagle3",
            default_proposal_method="greedy",
            proposal_methods=[dict(proposal_type="greedy", speculative_tokens=3)],
            verifier=dict(architectures=target["architectures"], name_or_path="target"),
        ),
        speculators_model_type="eagle3",
        target_hidden_size=None,
        transformer_layer_config=dict(sorted(layer.items())),
    )
    eagle3(folder, name, target, config, [0, 2, 4], 127, own_embedding=True)


def mtp(folder, name, hub, whole, seed, one, gain=None):
    """A target whose files have a layer more; `whole`: its config with that as a usual layer."""
    big = save_target(folder / "target", whole, seed, gain)
    index, h = hub["num_hidden_layers"], hub["hidden_size"]
    path = folder / "target" / "model.safetensors"
    tensors, layer = load_file(path), f"model.layers.{index}."
    nextn = bool(hub.get("num_nextn_predict_layers"))
    names = (
        dict(
            enorm=layer + "enorm.weight",
            hnorm=layer + "hnorm.weight",
            fc=layer + "eh_proj.weight",
            norm=layer + "shared_head.norm.weight",
        )
        if nextn
        else dict(
            enorm="mtp.pre_fc_norm_embedding.weight",
            hnorm="mtp.pre_fc_norm_hidden.weight",
            fc="mtp.fc.weight",
            norm="mtp.norm.weight",
        )
    )
    parts = random_of(dict(enorm=(h,), hnorm=(h,), fc=(h, 2 * h), norm=(h,)), seed + 1)
    if one:
        for k in ("enorm", "hnorm", "norm"):
            parts[k] = (parts[k].float() - 1).to(torch.bfloat16)
    tensors |= {names[k]: v for k, v in parts.items()}
    embedding = tensors["model.embed_tokens.weight"]
    head = tensors.get("lm_head.weight", embedding)
    if nextn:
        tensors[layer + "embed_tokens.weight"] = embedding.clone()
        tensors[layer + "shared_head.head.weight"] = head.clone()
    else:
        tensors = {k.replace(layer, "mtp.layers.0."): v for k, v in tensors.items()}
    if name == "qwen3_mtp":  # a folder of its own
        own = {k: v for k, v in tensors.items() if k.startswith("mtp.")}
        (folder / "draft").mkdir()
        save_file(own, folder / "draft" / "model.safetensors", metadata={"format": "pt"})
        config = hub | dict(architectures=["Qwen3ForCausalLMMTP"], mtp_num_hidden_layers=1)
        (folder / "draft" / "config.json").write_text(
            json.dumps(dict(sorted(config.items())), indent=2) + "\n"
        )
        tensors = {k: v for k, v in tensors.items() if k not in own}
    save_file(tensors, path, metadata={"format": "pt"})
    (folder / "target" / "config.json").write_text(
        json.dumps(dict(sorted(hub.items())), indent=2) + "\n"
    )

    ids = prompt_ids()
    target = AutoModelForCausalLM.from_pretrained(
        folder / "target", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    states, following = target_states(target, ids, None)
    big.set_attn_implementation("eager")
    run = Mtp(
        {k: v.float() for k, v in parts.items()},
        layer_of(big, index),
        embedding.float(),
        head.float(),
        hub["rms_norm_eps"],
        one,
    )
    check_layer(big, index, ids)
    check_steady(run, big, states, ids + [following])
    write(folder, name, run, states, ids + [following], {})


def make_qwen3_mtp(folder, name):
    hub = qwen3(head_dim=32, hidden_size=48, intermediate_size=56, num_hidden_layers=2)
    mtp(folder, name, hub, hub | dict(num_hidden_layers=3), 41, one=0)


def make_qwen3_next(folder, name):
    hub = qwen3_next(full_attention_interval=3, mlp_only_layers=[1], num_hidden_layers=3)
    kinds = ["linear_attention", "linear_attention", "full_attention", "full_attention"]
    whole = without(hub, "full_attention_interval") | dict(layer_types=kinds, num_hidden_layers=4)
    mtp(folder, name, hub, whole, 51, one=1)


def make_deepseek_v3(folder, name):
    hub = deepseek_v3(num_hidden_layers=2)
    mtp(folder, name, hub, hub | dict(num_hidden_layers=3), 61, one=0, gain=MLA_GAIN)


def make_glm4_moe_lite(folder, name):
    hub = glm4_moe_lite(n_routed_experts=8, num_experts_per_tok=3, num_hidden_layers=2)
    mtp(folder, name, hub, hub | dict(num_hidden_layers=3), 71, one=0, gain=MLA_GAIN)


def make_glm4_moe(folder, name):
    hub = glm4_moe(num_hidden_layers=2)
    mtp(folder, name, hub, hub | dict(num_hidden_layers=3), 81, one=0)


def make_nemotron_h(folder, name):
    """Two layers, attention and experts, in the files of a model with states."""
    hub = nemotron_h_moe(
        hybrid_override_pattern="ME*",
        mtp_hybrid_override_pattern="*E",
        num_hidden_layers=3,
        num_nextn_predict_layers=1,
    )
    whole = hub | dict(hybrid_override_pattern="ME**E", num_hidden_layers=5)
    big = save_target(folder / "target", whole, 84, NEMOTRON_GAIN | {"experts.down_proj": 0.5})
    big.set_attn_implementation("eager")

    def layers(x):
        n = len(x)
        mask, x = torch.full((n, n), -math.inf).triu(1)[None, None], x[None]
        for layer in big.model.layers[3:]:
            x = layer(x, attention_mask=mask)
        return x[0]

    path, h, ids = folder / "target" / "model.safetensors", hub["hidden_size"], prompt_ids()
    parts = random_of(dict(enorm=(h,), hnorm=(h,), fc=(h, 2 * h), norm=(h,)), 85)
    at = dict(enorm="0.enorm", hnorm="0.hnorm", fc="0.eh_proj", norm="1.final_layernorm")
    tensors = load_file(path) | {f"mtp.layers.{at[k]}.weight": v for k, v in parts.items()}
    for layer in range(2):
        own = f"backbone.layers.{3 + layer}."
        tensors = {k.replace(own, f"mtp.layers.{layer}."): v for k, v in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    (folder / "target" / "config.json").write_text(
        json.dumps(dict(sorted(hub.items())), indent=2) + "\n"
    )
    target = AutoModelForCausalLM.from_pretrained(
        folder / "target", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        states = target.model(torch.tensor([ids])).last_hidden_state[0]
        both = big.model(torch.tensor([ids]), output_hidden_states=True)
        again = big.model.norm_f(layers(both.hidden_states[3][0]))
        assert (again - both.last_hidden_state[0]).abs().max() < 1e-4
        following = int(target.lm_head(states[-1]).argmax())
    run = Mtp(
        {k: v.float() for k, v in parts.items()},
        layers,
        tensors["backbone.embeddings.weight"].float(),
        tensors["lm_head.weight"].float(),
        hub["layer_norm_epsilon"],
        0,
    )
    check_steady(run, big, states, ids + [following])
    write(folder, name, run, states, ids + [following], {})


@torch.no_grad()
def check_window_layer(model, hub, index, ids):
    """WindowLayer is what transformers does with the target's layer `index`, which has a window and
    a dense block."""
    at = f"model.layers.{index}."
    own = {k.removeprefix(at): v for k, v in model.state_dict().items() if k.startswith(at)}
    own["self_attn.attention_sink_bias"] = own.pop("self_attn.sinks")
    h = model.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    got = WindowLayer(hub, own, "post_attention_layernorm")(h[index][0])
    assert (got - h[index + 1][0]).abs().max() < 1e-4 and len(ids) > 2 * hub["sliding_window_size"]


def make_mimo_v2(folder, name):
    """Three heads in the target's files, which have no layer like theirs at the end."""
    hub = mimo_v2(
        hybrid_layer_pattern=[0, 1, 0],
        moe_layer_freq=[0, 0, 1],
        num_hidden_layers=3,
        sliding_window=6,
        sliding_window_size=6,
    )
    # Transformers 5.24 does not read hubs' lists of layers.
    kinds = dict(
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        mlp_layer_types=["dense", "dense", "sparse"],
    )
    model = save_target(folder / "target", hub | kinds, 91)
    (folder / "target" / "config.json").write_text(
        json.dumps(dict(sorted(hub.items())), indent=2) + "\n"
    )
    model.set_attn_implementation("eager")
    ids = prompt_ids()
    check_window_layer(model, hub, 1, ids)
    path = folder / "target" / "model.safetensors"
    tensors = load_file(path)
    embedding, out = (tensors[f"{n}.weight"].float() for n in ("model.embed_tokens", "lm_head"))
    heads = []
    for k in range(3):
        own = random_of(shapes(hub), 92 + k)
        tensors |= {f"model.mtp.layers.{k}.{n}": v for n, v in own.items()}
        heads.append(MimoHead(hub, {n: v.float() for n, v in own.items()}, embedding, out))
    save_file(tensors, path, metadata={"format": "pt"})
    states, following = target_states(model, ids, None)
    write(folder, name, heads, states, ids + [following], {}, by=follow_heads)


def demo_target():
    folder = Path(__file__).parent.parent / "models/demo"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    asked = [dict(role="user", content=QUESTION)]
    text = tok.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    return folder, model, tok(text, add_special_tokens=False).input_ids


def make_demo_eagle3(folder, name):
    target, model, ids = demo_target()
    draft = target.parent / "demo-eagle3"
    config = json.loads((draft / "config.json").read_text())
    behind = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    states, following = target_states(model, ids, behind)
    head = Eagle3(draft, model.get_input_embeddings().weight)
    folder.mkdir()
    write(folder, name, head, states, ids + [following], dict(aux_layers=behind))


def make_demo_mtp(folder, name):
    target, model, ids = demo_target()
    draft = target.parent / "demo-mtp"
    tensors = {k: v.float() for k, v in load_file(draft / "model.safetensors").items()}
    config = AutoConfig.from_pretrained(target)
    config.intermediate_size = json.loads((draft / "config.json").read_text())["intermediate_size"]
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    config._attn_implementation = "eager"
    big = transformers.Qwen3ForCausalLM(config).float().eval()
    at = "mtp.layers.0."
    big.model.layers[0].load_state_dict(
        {k.removeprefix(at): v for k, v in tensors.items() if k.startswith(at)}
    )
    parts = dict(
        enorm=tensors["mtp.pre_fc_norm_embedding.weight"],
        hnorm=tensors["mtp.pre_fc_norm_hidden.weight"],
        fc=tensors["mtp.fc.weight"],
        norm=tensors["mtp.norm.weight"],
    )
    embedding = model.get_input_embeddings().weight
    head = Mtp(parts, layer_of(big, 0), embedding, embedding, config.rms_norm_eps, 0)
    states, following = target_states(model, ids, None)
    folder.mkdir()
    write(folder, name, head, states, ids + [following], {})


MAKERS = {k.removeprefix("make_"): f for k, f in dict(globals()).items() if k.startswith("make_")}


def main():
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(MAKERS)
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    for name in names:
        shutil.rmtree(out / name, ignore_errors=True)
        MAKERS[name](out / name, name)


if __name__ == "__main__":
    main()
