# SPDX-License-Identifier: Apache-2.0
"""The models of tests/vectors/models as make_model_vectors.py makes them: MODELS at the end."""

import torch

VOCAB = 260  # 256 bytes and 4 special tokens; not a multiple of any vector width
EOT, IM_START, IM_END, BOS = 256, 257, 258, 259


def llama(**kw):
    c = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        attention_bias=False,
        attention_dropout=0.0,
        bos_token_id=BOS,
        eos_token_id=EOT,
        head_dim=64,
        hidden_act="silu",
        hidden_size=64,
        initializer_range=0.02,
        intermediate_size=80,
        max_position_embeddings=128,
        mlp_bias=False,
        num_attention_heads=2,
        num_hidden_layers=2,
        num_key_value_heads=1,
        pretraining_tp=1,
        rms_norm_eps=1e-5,
        rope_scaling=None,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
        transformers_version="4.51.0",
        use_cache=True,
        vocab_size=VOCAB,
    )
    c.update(kw)
    return c


def without(config, *keys):
    return {k: v for k, v in config.items() if k not in keys}


def mistral(**kw):
    c = llama(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=16)
    c.update(kw)
    return without(c, "attention_bias", "mlp_bias", "pretraining_tp", "rope_scaling")


def qwen2(**kw):
    c = llama(
        architectures=["Qwen2ForCausalLM"],
        model_type="qwen2",
        eos_token_id=IM_END,
        bos_token_id=EOT,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        tie_word_embeddings=True,
        use_sliding_window=False,
        sliding_window=16,
        max_window_layers=1,
    )
    c.update(kw)
    return without(c, "attention_bias", "mlp_bias", "pretraining_tp", "rope_scaling")


def qwen3(**kw):
    c = qwen2(
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        attention_bias=False,
        head_dim=128,
        rope_scaling=None,
        sliding_window=None,
        max_window_layers=2,
    )
    c.update(kw)
    return c


def qwen3_moe(**kw):
    c = qwen3(
        architectures=["Qwen3MoeForCausalLM"],
        model_type="qwen3_moe",
        head_dim=64,
        hidden_size=48,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        moe_intermediate_size=32,
        norm_topk_prob=True,
        num_experts=8,
        num_experts_per_tok=2,
        output_router_logits=False,
        router_aux_loss_coef=0.001,
        tie_word_embeddings=False,
    )
    c.update(kw)
    return c


# name -> hub-spelling config and options: dtype of the stored weights, number of shards, which
# spelling config.json gets ("hub" or "tf5"; the other one is config.alt.json).
MODELS = {
    # Llama 2 style: no head_dim, no rope_theta, plain multi-head attention.
    "llama": dict(
        config=without(
            llama(
                hidden_size=128, intermediate_size=64, num_key_value_heads=2, num_hidden_layers=1
            ),
            "head_dim",
            "rope_theta",
        )
    ),
    "llama_tf5": dict(config=llama(), spelling="tf5"),
    "llama_rope_llama3": dict(
        config=llama(
            rope_theta=500000.0,
            eos_token_id=[EOT, IM_END],
            tie_word_embeddings=True,
            rope_scaling=dict(
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
                rope_type="llama3",
            ),
        ),
        generation_config=False,
    ),
    "llama_rope_linear": dict(
        config=llama(head_dim=80, hidden_size=48, rope_scaling=dict(type="linear", factor=4.0))
    ),
    "llama_rope_dynamic": dict(
        config=llama(max_position_embeddings=32, rope_scaling=dict(type="dynamic", factor=2.0))
    ),
    "llama_rope_yarn": dict(
        config=llama(
            head_dim=96,
            hidden_size=48,
            rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
        )
    ),
    "llama_gqa5_sharded": dict(
        config=llama(num_attention_heads=5, hidden_size=80, tie_word_embeddings=True), shards=2
    ),
    "llama_hd256": dict(config=llama(head_dim=256, hidden_size=48, num_hidden_layers=1)),
    "llama_f16": dict(
        config=llama(torch_dtype="float16", tie_word_embeddings=True), dtype=torch.float16
    ),
    "mistral_swa": dict(config=without(mistral(hidden_size=128, intermediate_size=48), "head_dim")),
    "qwen2_gqa7": dict(config=qwen2(num_attention_heads=7, hidden_size=56)),
    "qwen3": dict(config=qwen3(), several_eos=True),
    "qwen3_tf5": dict(config=qwen3(head_dim=64, tie_word_embeddings=False), spelling="tf5"),
    "qwen3_f32": dict(
        config=qwen3(head_dim=64, hidden_size=32, torch_dtype="float32"), dtype=torch.float32
    ),
    "qwen3_moe": dict(config=qwen3_moe()),
    "qwen3_moe_mixed": dict(
        config=qwen3_moe(
            num_hidden_layers=4,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
            num_experts_per_tok=4,
            norm_topk_prob=False,
            hidden_size=32,
            intermediate_size=48,
        ),
        spelling="tf5",
    ),
}
