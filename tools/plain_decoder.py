# SPDX-License-Identifier: Apache-2.0
"""A decoder in plain torch, for make_model_vectors.py: models that transformers has no class for,
written from what their authors published (configuration, names of tensors, equations).

InternLM3: Llama whose q, k, v projections have biases by `qkv_bias` and all others by `bias`;
dynamic NTK rope. Bailing (Ling, Ring): q, k and v as rows of one matrix, a softmax router over
experts, `num_shared_experts` times an expert's width for every token. Its second generation: norms
of q and k heads, rotation of `partial_rotary_factor` of a head, and sigmoids whose experts are
chosen with `expert_bias` added, from the groups with the best two, the chosen sigmoids divided by
their sum and multiplied by `routed_scaling_factor`.

Everything is computed in the dtype of the weights, but for norms, rotations, softmax and router,
which are in float32.
"""

import json
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file


def spelled_anew(config):
    """As transformers 5 would write it."""
    c = dict(config)
    rope = dict(c.pop("rope_scaling", None) or {"rope_type": "default"})
    rope["rope_theta"] = c.pop("rope_theta")
    if "partial_rotary_factor" in c:
        rope["partial_rotary_factor"] = c.pop("partial_rotary_factor")
    c["dtype"] = c.pop("torch_dtype")
    return c | dict(rope_parameters=rope)


class PlainDecoder:
    def __init__(self, config, tensors=None):
        self.c = config
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        self.rope = dict(rope)
        self.theta = rope.get("rope_theta", config.get("rope_theta"))
        self.share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        self.fused = config["model_type"].startswith("bailing")
        self.v2 = config["model_type"] == "bailing_moe_v2"
        # What make_model_vectors.py reads of a model of transformers.
        self.config = SimpleNamespace(
            model_type=config["model_type"],
            tie_word_embeddings=config["tie_word_embeddings"],
            sub_configs={},
        )
        self.t = tensors if tensors is not None else {n: torch.empty(s) for n, s in self.shapes()}

    def shapes(self):
        c = self.c
        h, d, i = c["hidden_size"], c["head_dim"], c["intermediate_size"]
        q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d

        def linear(name, n, k, bias):
            yield f"{name}.weight", (n, k)
            if bias:
                yield f"{name}.bias", (n,)

        def mlp(name, width, bias):
            yield from linear(f"{name}.gate_proj", width, h, bias)
            yield from linear(f"{name}.up_proj", width, h, bias)
            yield from linear(f"{name}.down_proj", h, width, bias)

        embed = "word_embeddings" if self.fused else "embed_tokens"
        yield f"model.{embed}.weight", (c["vocab_size"], h)
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            yield f"{at}.input_layernorm.weight", (h,)
            yield f"{at}.post_attention_layernorm.weight", (h,)
            if self.fused:
                name = f"{at}.attention"
                yield from linear(f"{name}.query_key_value", q + 2 * kv, h, c["use_qkv_bias"])
                yield from linear(f"{name}.dense", h, q, c["use_bias"])
            else:
                name = f"{at}.self_attn"
                yield from linear(f"{name}.q_proj", q, h, c["qkv_bias"])
                yield from linear(f"{name}.k_proj", kv, h, c["qkv_bias"])
                yield from linear(f"{name}.v_proj", kv, h, c["qkv_bias"])
                yield from linear(f"{name}.o_proj", h, q, c["bias"])
            if self.v2:
                yield f"{name}.query_layernorm.weight", (d,)
                yield f"{name}.key_layernorm.weight", (d,)
            if not self.fused or layer < c["first_k_dense_replace"]:
                yield from mlp(f"{at}.mlp", i, c.get("bias", False))
                continue
            width = c["moe_intermediate_size"]
            yield f"{at}.mlp.gate.weight", (c["num_experts"], h)
            if self.v2:
                yield f"{at}.mlp.gate.expert_bias", (c["num_experts"],)
            for e in range(c["num_experts"]):
                yield from mlp(f"{at}.mlp.experts.{e}", width, False)
            yield from mlp(f"{at}.mlp.shared_experts", width * c["num_shared_experts"], False)
        yield "model.norm.weight", (h,)
        yield "lm_head.weight", (c["vocab_size"], h)

    def named_parameters(self):
        return self.t.items()

    def parameters(self):
        return self.t.values()

    def named_buffers(self):
        return []

    def to(self, dtype):
        return PlainDecoder(self.c, {n: t.to(dtype) for n, t in self.t.items()})

    def save_pretrained(self, folder):
        save_file(self.t, folder / "model.safetensors", metadata={"format": "pt"})
        anew = dict(sorted(spelled_anew(self.c).items()))
        (folder / "config.json").write_text(json.dumps(anew, indent=2) + "\n")
        (folder / "generation_config.json").write_text(
            json.dumps({k: self.c[k] for k in ("bos_token_id", "eos_token_id")}, indent=2) + "\n"
        )

    def linear(self, name, x):
        return F.linear(x, self.t[f"{name}.weight"], self.t.get(f"{name}.bias"))

    def norm(self, name, x):
        v = x.float()
        v = v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + self.c["rms_norm_eps"])
        return self.t[f"{name}.weight"] * v.to(x.dtype)

    def angles(self, n):
        dim, base = int(self.c["head_dim"] * self.share), self.theta
        most = self.c["max_position_embeddings"]
        if self.rope.get("rope_type") == "dynamic" and n > most:
            factor = self.rope["factor"]
            base *= (factor * n / most - (factor - 1)) ** (dim / (dim - 2))
        inv = base ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        return torch.arange(n, dtype=torch.float32)[:, None] * inv

    def rotate(self, x, angles):
        """x [heads, tokens, head_dim]: pairs (i, half + i)."""
        cos, sin, half = angles.cos(), angles.sin(), angles.shape[-1]
        a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        return torch.cat((turned.to(x.dtype), rest), -1)

    def attention(self, at, x, angles):
        c, n = self.c, x.shape[0]
        heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
        if self.fused:
            at = f"{at}.attention"
            rows = self.linear(f"{at}.query_key_value", x)
        else:
            at = f"{at}.self_attn"
            rows = torch.cat([self.linear(f"{at}.{p}_proj", x) for p in "qkv"], -1)
        q, k, v = rows.view(n, -1, c["head_dim"]).transpose(0, 1).split((heads, kv, kv))
        if self.v2:
            q, k = self.norm(f"{at}.query_layernorm", q), self.norm(f"{at}.key_layernorm", k)
        q, k = self.rotate(q, angles), self.rotate(k, angles)
        k, v = (t.repeat_interleave(heads // kv, 0) for t in (k, v))
        scores = q @ k.transpose(1, 2) / math.sqrt(c["head_dim"])
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        mixed = scores.float().softmax(-1).to(x.dtype) @ v
        return self.linear(f"{at}.{'dense' if self.fused else 'o_proj'}", mixed.transpose(0, 1).reshape(n, -1))

    def mlp(self, at, x):
        gate, up = self.linear(f"{at}.gate_proj", x), self.linear(f"{at}.up_proj", x)
        return self.linear(f"{at}.down_proj", F.silu(gate) * up)

    def route(self, at, x):
        c, top = self.c, self.c["num_experts_per_tok"]
        logits = F.linear(x.float(), self.t[f"{at}.gate.weight"].float())
        if not self.v2:
            weights, ids = logits.softmax(-1).topk(top)
            norms = c["norm_topk_prob"]
            return ids, weights / weights.sum(-1, keepdim=True) if norms else weights
        scores = logits.sigmoid()
        chosen_by = scores + self.t[f"{at}.gate.expert_bias"].float()
        grouped = chosen_by.view(len(x), c["n_group"], -1)
        best = grouped.topk(2).values.sum(-1).topk(c["topk_group"]).indices
        allowed = torch.zeros(len(x), c["n_group"]).scatter(1, best, 1.0).bool()
        grouped = grouped.masked_fill(~allowed[..., None], -math.inf)
        ids = grouped.reshape(len(x), -1).topk(top).indices
        weights = scores.gather(1, ids)
        return ids, weights / (weights.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]

    def experts(self, at, x):
        ids, weights = self.route(at, x)
        out = self.mlp(f"{at}.shared_experts", x)
        for row in range(len(x)):
            for e, w in zip(ids[row].tolist(), weights[row]):
                out[row] += w.to(x.dtype) * self.mlp(f"{at}.experts.{e}", x[row])
        return out

    def __call__(self, ids):
        c, embed = self.c, "word_embeddings" if self.fused else "embed_tokens"
        x = self.t[f"model.{embed}.weight"][ids[0]]
        angles = self.angles(x.shape[0])
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            x = x + self.attention(at, self.norm(f"{at}.input_layernorm", x), angles)
            dense = not self.fused or layer < c["first_k_dense_replace"]
            block = self.mlp if dense else self.experts
            x = x + block(f"{at}.mlp", self.norm(f"{at}.post_attention_layernorm", x))
        return SimpleNamespace(logits=self.linear("lm_head", self.norm("model.norm", x))[None])


def load(folder, dtype, config=None):
    config = config or json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    return PlainDecoder(config, {n: t.to(dtype) for n, t in tensors.items()})
