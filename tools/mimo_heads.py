# SPDX-License-Identifier: Apache-2.0
"""The layers that predict further tokens of MiMo-V2-Flash, for make_draft_vectors.py: transformers
has no class for them (it leaves model.mtp.* alone), so they are written here from what their authors
published (configuration, names of tensors) and from what SGLang and vLLM say that they compute.

A layer with the window's attention and a dense block behind the product of embedding and state.
Everything is in float32, of all rows of one sequence at once.
"""

import math

import torch
import torch.nn.functional as F


def rms(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class WindowLayer:
    """A decoder layer by its tensors, names behind "layers.N."; ffn_norm: the norm before its dense
    block, which has another name in a layer that predicts a token more."""

    def __init__(self, config, tensors, ffn_norm):
        self.c, self.t, self.ffn_norm = config, tensors, ffn_norm

    def linear(self, name, x):
        return F.linear(x, self.t[f"{name}.weight"])

    def norm(self, name, x):
        return rms(x, self.t[f"{name}.weight"], self.c["layernorm_epsilon"])

    def rotate(self, x):
        """x [heads, rows, head_dim]: pairs (i, half + i) of the first dimensions."""
        half = int(x.shape[-1] * self.c["partial_rotary_factor"]) // 2
        turns = self.c["swa_rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(x.shape[1])[:, None] * turns
        cos, sin = angles.cos().float(), angles.sin().float()
        a, b, rest = x.split((half, half, x.shape[-1] - 2 * half), -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)

    def attention(self, x):
        c, n = self.c, len(x)
        heads, kv = c["swa_num_attention_heads"], c["swa_num_key_value_heads"]

        def project(part, num):
            return self.linear(f"self_attn.{part}_proj", x).view(n, num, -1).transpose(0, 1)

        q, k = self.rotate(project("q", heads)), self.rotate(project("k", kv))
        v = project("v", kv) * c["attention_value_scale"]
        k, v = (t.repeat_interleave(heads // kv, 0) for t in (k, v))
        scores = q @ k.transpose(1, 2) / math.sqrt(c["swa_head_dim"])
        # sliding_window_size does not count the query's own key: of 2, row 5 sees keys 3, 4 and 5.
        behind = torch.arange(n)[:, None] - torch.arange(n)
        hidden = (behind < 0) | (behind > c["sliding_window_size"])
        scores = scores.masked_fill(hidden, -math.inf)
        sinks = self.t["self_attn.attention_sink_bias"].view(-1, 1, 1).expand(heads, n, 1)
        mixed = torch.cat((scores, sinks), -1).softmax(-1)[..., :n] @ v
        return self.linear("self_attn.o_proj", mixed.transpose(0, 1).reshape(n, -1))

    def __call__(self, x):
        x = x + self.attention(self.norm("input_layernorm", x))
        y = self.norm(self.ffn_norm, x)
        y = F.silu(self.linear("mlp.gate_proj", y)) * self.linear("mlp.up_proj", y)
        return x + self.linear("mlp.down_proj", y)


def shapes(c):
    """Of a layer that predicts a token more: names behind "model.mtp.layers.N."."""
    h, width = c["hidden_size"], c["intermediate_size"]
    heads, kv = c["swa_num_attention_heads"], c["swa_num_key_value_heads"]
    d, v = c["swa_head_dim"], c["swa_v_head_dim"]
    norms = ("enorm", "hnorm", "input_layernorm", "pre_mlp_layernorm", "final_layernorm")
    return {f"{name}.weight": (h,) for name in norms} | {
        "eh_proj.weight": (h, 2 * h),
        "self_attn.q_proj.weight": (heads * d, h),
        "self_attn.k_proj.weight": (kv * d, h),
        "self_attn.v_proj.weight": (kv * v, h),
        "self_attn.o_proj.weight": (h, heads * v),
        "self_attn.attention_sink_bias": (heads,),
        "mlp.gate_proj.weight": (width, h),
        "mlp.up_proj.weight": (width, h),
        "mlp.down_proj.weight": (h, width),
    }


class MimoHead:
    """tensors: as of `shapes`; embedding and head [vocab, hidden]: the target's."""

    def __init__(self, config, tensors, embedding, head):
        self.layer = WindowLayer(config, tensors, "pre_mlp_layernorm")
        self.embedding, self.head = embedding, head
        self.target_ids = torch.arange(len(head))

    def first(self, states):
        return states

    def rows(self, tokens, states):
        """What a chain goes on with, and logits, of all pairs (token, state)."""
        norm = self.layer.norm
        pairs = norm("enorm", F.embedding(tokens, self.embedding)), norm("hnorm", states)
        g = norm("final_layernorm", self.layer(self.layer.linear("eh_proj", torch.cat(pairs, -1))))
        return g, F.linear(g, self.head)
