# SPDX-License-Identifier: Apache-2.0
"""Dual chunk attention (An et al. 2024, arXiv 2402.17463) as one formula for each pair of a query and a
key, put into transformers' Qwen2, which has none.

Of a query at position i and a key at j <= i, with L = chunk_size - local_size, c(x) = x // L and
r(x) = x % L, scores have the distance

    r(i) - r(j)                          c(i) == c(j)
    min(r(i) + L, chunk_size) - r(j)     c(i) == c(j) + 1
    min(2 L - 1, chunk_size) - r(j)      beyond

instead of i - j, and are multiplied by f(n)^2, f(n) = max(1, 0.1 ln(n / original) + 1), where n is
the length of the prompt, or i + 1 in the answer behind it.
"""

import torch
from transformers.models.qwen2 import modeling_qwen2

PROMPT = 64  # tokens; what follows them is the answer


def distances(n, chunk_size, local_size):
    length = chunk_size - local_size
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    apart = i // length - j // length
    own = i % length
    near = (own + length).clamp(max=chunk_size)
    far = torch.full_like(own, min(2 * length - 1, chunk_size))
    return torch.where(apart == 0, own, torch.where(apart == 1, near, far)) - j % length


def scores(q, k, apart, theta):
    """q, k [heads, n, dim] without rotation: products of q rotated by the distance against k."""
    half = q.shape[-1] // 2
    angle = apart[..., None] * theta ** (-torch.arange(half) / half)  # [n, n, half]
    q1, q2 = q[:, :, None, :half], q[:, :, None, half:]
    k1, k2 = k[:, None, :, :half], k[:, None, :, half:]
    even, odd = q1 * k1 + q2 * k2, q1 * k2 - q2 * k1
    return (even * angle.cos() + odd * angle.sin()).sum(-1)


def factor(n, original):
    lengths = torch.arange(1, n + 1).clamp(min=min(n, PROMPT))
    if original == 0:
        return torch.ones(n, 1)
    return (0.1 * torch.log(lengths / original) + 1).clamp(min=1)[:, None]


def attend(module, hidden, config):
    """Of one sequence, in float32 between the projections."""
    n, dim = hidden.shape[1], module.head_dim
    q, k, v = (
        p(hidden)[0].float().view(n, -1, dim).transpose(0, 1)
        for p in (module.q_proj, module.k_proj, module.v_proj)
    )
    k, v = (x.repeat_interleave(module.num_key_value_groups, 0) for x in (k, v))
    apart = distances(n, config["chunk_size"], config["local_size"])
    s = scores(q, k, apart, module.config.rope_parameters["rope_theta"]) * module.scaling
    s = s * factor(n, config.get("original_max_position_embeddings", 0)) ** 2
    s = s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    out = (s.softmax(-1) @ v).transpose(0, 1).reshape(1, n, -1)
    return module.o_proj(out.to(hidden.dtype))


def install():
    plain = modeling_qwen2.Qwen2Attention.forward

    def forward(self, hidden_states, *args, **kwargs):
        config = getattr(self.config, "dual_chunk_attention_config", None)
        if config is None:
            return plain(self, hidden_states, *args, **kwargs)
        return attend(self, hidden_states, config), None

    modeling_qwen2.Qwen2Attention.forward = forward
