#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/routing: which experts transformers' routers choose, and their weights.

    python3 tools/make_routing_vectors.py tests/vectors/routing

Each router multiplies by the identity, so that what it gets are its logits. Needs torch and
transformers >= 5 (a CPU, seconds). README.md in the output folder describes the file.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import DeepseekV2Config, DeepseekV3Config, Glm4MoeLiteConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.glm4_moe_lite.modeling_glm4_moe_lite import Glm4MoeLiteTopkRouter

ROWS = 3
CLEAR = 1e-4  # between the last chosen and the first that is not

# As in the config.json of the models.
ROUTERS = {
    "DeepSeek-V2": (
        DeepseekV2TopkRouter,
        DeepseekV2Config,
        dict(
            n_routed_experts=160,
            num_experts_per_tok=6,
            n_group=8,
            topk_group=3,
            topk_method="group_limited_greedy",
            norm_topk_prob=False,
            routed_scaling_factor=16.0,
        ),
    ),
    "DeepSeek-V2-Lite": (
        DeepseekV2TopkRouter,
        DeepseekV2Config,
        dict(
            n_routed_experts=64,
            num_experts_per_tok=6,
            n_group=1,
            topk_group=1,
            topk_method="greedy",
            norm_topk_prob=False,
            routed_scaling_factor=1.0,
        ),
    ),
    "DeepSeek-V3": (
        DeepseekV3TopkRouter,
        DeepseekV3Config,
        dict(
            n_routed_experts=256,
            num_experts_per_tok=8,
            n_group=8,
            topk_group=4,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
        ),
    ),
    "GLM-4.7-Flash": (
        Glm4MoeLiteTopkRouter,
        Glm4MoeLiteConfig,
        dict(
            n_routed_experts=64,
            num_experts_per_tok=4,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.8,
        ),
    ),
}


def grid(x):
    """Few digits."""
    return (x * 64).round() / 64


def gap(values, k):
    best = values.sort(descending=True).values
    return float(best[k - 1] - best[k]) if k < len(best) else 1.0


def clear(logits, correction, c):
    """No rounding changes the choice."""
    scores = logits.double().softmax(-1) if correction is None else logits.double().sigmoid()
    values = scores if correction is None else scores + correction
    groups = values.view(c["n_group"], -1)
    best = groups.max(-1).values if correction is None else groups.topk(2).values.sum(-1)
    chosen = best.topk(c["topk_group"]).indices
    inside = groups[chosen].flatten()
    return min(gap(best, c["topk_group"]), gap(inside, c["num_experts_per_tok"])) > CLEAR


@torch.no_grad()
def make(name, module, config_class, fields, gen):
    n = fields["n_routed_experts"]
    router = module(config_class(hidden_size=n, num_attention_heads=1, **fields))
    router.weight.copy_(torch.eye(n))
    sigmoid = hasattr(router, "e_score_correction_bias")
    correction = None
    if sigmoid:
        correction = grid(0.2 * torch.randn(n, generator=gen))
        router.e_score_correction_bias.copy_(correction)
    rows = []
    while len(rows) < ROWS:
        logits = grid(1.5 * torch.randn(n, generator=gen))
        if not clear(logits, correction, fields):
            continue
        got, weights, ids = router(logits[None])
        assert torch.equal(got[0], logits)
        rows.append(dict(logits=logits.tolist(), ids=ids[0].tolist(), weights=weights[0].tolist()))
    return dict(
        name=name,
        experts=n,
        top_k=fields["num_experts_per_tok"],
        sigmoid=sigmoid,
        norm_topk=fields["norm_topk_prob"],
        scale=fields["routed_scaling_factor"],
        num_groups=fields["n_group"],
        top_groups=fields["topk_group"],
        group_pairs=sigmoid,
        correction=correction.tolist() if sigmoid else None,
        rows=rows,
    )


def main():
    gen = torch.Generator().manual_seed(0)
    out = Path(sys.argv[1])
    out.mkdir(exist_ok=True)
    made = [make(name, *router, gen) for name, router in ROUTERS.items()]
    lines = ",\n".join(json.dumps(m) for m in made)
    (out / "routers.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
