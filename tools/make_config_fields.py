#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/models/fields.json: the numbers, truth values and nulls among the fields that transformers'
configuration class of each supported architecture has, with their defaults.

    python3 tools/make_config_fields.py > tests/vectors/models/fields.json

Needs transformers >= 5.24 alone. tests/models/test_config_fields.c changes each of them and expects to see that something
becomes of it; docs/decisions/041-unknown-config-fields.md says why. Never needed to build, run or test.
"""

import json
import re
from pathlib import Path

import transformers

# Of what sees too: the class of its text half.
TEXT = {
    "Gemma3ForCausalLM": "Gemma3TextConfig",
    "Gemma3ForConditionalGeneration": "Gemma3TextConfig",
    "Gemma4ForCausalLM": "Gemma4TextConfig",
    "Gemma4ForConditionalGeneration": "Gemma4TextConfig",
    "Llama4ForCausalLM": "Llama4TextConfig",
    "Llama4ForConditionalGeneration": "Llama4TextConfig",
    "KimiK25ForConditionalGeneration": "DeepseekV3Config",
    "MiniMaxM3VLForCausalLM": "MiniMaxM3VLTextConfig",
    "MiniMaxM3SparseForConditionalGeneration": "MiniMaxM3VLTextConfig",
    "Mistral3ForConditionalGeneration": "Ministral3Config",
    "Qwen3VLForConditionalGeneration": "Qwen3VLTextConfig",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3VLMoeTextConfig",
    "Qwen3_5ForCausalLM": "Qwen3_5TextConfig",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5TextConfig",
    "Qwen3_5MoeForCausalLM": "Qwen3_5MoeTextConfig",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeTextConfig",
    "Qwen4ExpForCausalLM": "Qwen4ExpTextConfig",
    "Qwen4ExpForConditionalGeneration": "Qwen4ExpTextConfig",
}
# Those that transformers has no class for: the published configuration_internlm3.py, configuration_bailing_moe.py
# and configuration_bailing_moe_v2.py.
COMMON = dict(
    attention_dropout=0.0, bos_token_id=1, eos_token_id=2, head_dim=None, hidden_size=4096, initializer_range=0.02,
    intermediate_size=11008, max_position_embeddings=32768, num_attention_heads=32, num_hidden_layers=32,
    num_key_value_heads=None, pad_token_id=0, rms_norm_eps=1e-06, rope_theta=10000.0, tie_word_embeddings=False,
    use_cache=True, vocab_size=128512,
)
BAILING = COMMON | dict(
    embedding_dropout=0.1, first_k_dense_replace=0, moe_intermediate_size=None, norm_head=False, norm_topk_prob=True,
    num_experts=16, num_experts_per_tok=2, num_shared_experts=0, output_dropout=0.1, output_router_logits=False,
    use_bias=True, use_qkv_bias=False,
)
PUBLISHED = {
    "InternLM3ForCausalLM": COMMON | dict(bias=False, qkv_bias=False),
    "BailingMoeForCausalLM": BAILING,
    "BailingMoeV2ForCausalLM": BAILING
    | dict(n_group=8, partial_rotary_factor=0.5, routed_scaling_factor=2.5, topk_group=4, use_qk_norm=True),
}


def names():
    """Of the architectures that make text, as their files register them; draft heads are no models by themselves."""
    found = []
    for path in sorted((Path(__file__).parent.parent / "src/models").glob("*.c")):
        if path.name == "draft_heads.c":
            continue
        found += re.findall(r'\.name = "(\w+For(?:CausalLM|Conditional)\w*)"', path.read_text())
    return sorted(found)


def fields(architecture):
    if architecture in PUBLISHED:
        return dict(sorted(PUBLISHED[architecture].items()))
    name = TEXT.get(architecture) or re.sub("For[A-Z].*", "Config", architecture)
    own = getattr(transformers, name)().to_dict()
    common = transformers.PreTrainedConfig().to_dict()
    return {k: v for k, v in sorted(own.items()) if k not in common and isinstance(v, (int, float, bool, type(None)))}


def main():
    rows = [f" {json.dumps(a)}: {json.dumps(fields(a))}" for a in names()]
    print("{\n" + ",\n".join(rows) + "\n}")


if __name__ == "__main__":
    main()
