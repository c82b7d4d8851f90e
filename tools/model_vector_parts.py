# SPDX-License-Identifier: Apache-2.0
"""More models of tests/vectors/models (see model_vector_configs.py): those with LayerNorms,
feed-forward blocks without a gate, blocks beside each other and routers of their own; and those that
transformers has no class for, which plain_decoder.py computes."""

from model_vector_configs import EOT, IM_END, LLAMA_ONLY, TWO_TO_ONE, llama, without

LONG = dict(
    long_factor=[1.0 + 0.5 * i for i in range(8)],
    long_mscale=1.25,
    original_max_position_embeddings=64,
    short_factor=[1.0 + 0.125 * i for i in range(8)],
    short_mscale=1.25,
    type="longrope",
)


def bare(config, *more):
    """Without what only Llama has, and further keys."""
    return without(config, "mlp_bias", "pretraining_tp", "rope_scaling", "head_dim", *more)


def arcee(**kw):
    c = llama(
        architectures=["ArceeForCausalLM"],
        model_type="arcee",
        attention_bias=True,
        hidden_act="relu2",
        mlp_bias=True,
        rope_scaling=dict(factor=4.0, original_max_position_embeddings=32, rope_type="yarn"),
    )
    return without(c | kw, "pretraining_tp")


def starcoder2(**kw):
    c = llama(
        architectures=["Starcoder2ForCausalLM"],
        model_type="starcoder2",
        **TWO_TO_ONE,
        hidden_act="gelu_pytorch_tanh",
        intermediate_size=96,
        norm_epsilon=1e-5,
        sliding_window=16,
        use_bias=True,
    )
    return bare(c | kw, "attention_bias", "rms_norm_eps", "tie_word_embeddings")


def stablelm(**kw):
    c = llama(
        architectures=["StableLmForCausalLM"],
        model_type="stablelm",
        **TWO_TO_ONE,
        layer_norm_eps=1e-5,
        use_qkv_bias=True,
    )
    return bare(c | kw, "attention_bias", "rms_norm_eps")


def cohere(**kw):
    c = llama(
        architectures=["CohereForCausalLM"],
        model_type="cohere",
        **TWO_TO_ONE,
        layer_norm_eps=1e-5,
        use_qk_norm=True,
    )
    return bare(c | kw, "rms_norm_eps", "tie_word_embeddings")


def cohere2(**kw):
    c = cohere(
        architectures=["Cohere2ForCausalLM"],
        model_type="cohere2",
        attention_bias=True,
        layer_switch=3,
        logit_scale=0.5,
        num_hidden_layers=3,
        sliding_window=16,
        sliding_window_pattern=3,
        use_gated_activation=True,
        use_parallel_block=True,
    )
    return without(c | kw, "use_qk_norm")


def apertus(**kw):
    c = llama(
        architectures=["ApertusForCausalLM"],
        model_type="apertus",
        **TWO_TO_ONE,
        hidden_act="xielu",
        rope_theta=12000000.0,
        rope_scaling=dict(
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
            rope_type="llama3",
        ),
    )
    return without(c | kw, "head_dim", "mlp_bias", "pretraining_tp")


def phimoe(**kw):
    c = llama(
        architectures=["PhiMoEForCausalLM"],
        model_type="phimoe",
        **TWO_TO_ONE,
        attention_bias=True,
        hidden_size=64,
        intermediate_size=16,
        lm_head_bias=True,
        num_experts_per_tok=2,
        num_local_experts=8,
        rope_scaling=LONG,
        router_jitter_noise=0.2,
        sliding_window=40,
    )
    return without(c | kw, "mlp_bias", "pretraining_tp", "head_dim")


def internlm3(**kw):
    c = llama(
        architectures=["InternLM3ForCausalLM"],
        model_type="internlm3",
        bias=True,
        head_dim=24,
        max_position_embeddings=32,
        num_attention_heads=3,
        qkv_bias=True,
        rope_scaling=dict(factor=2.0, rope_type="dynamic"),
    )
    return without(c | kw, *LLAMA_ONLY)


def bailing(**kw):
    c = llama(
        architectures=["BailingMoeForCausalLM"],
        model_type="bailing_moe",
        first_k_dense_replace=0,
        head_dim=32,
        hidden_size=48,
        intermediate_size=80,
        moe_intermediate_size=16,
        norm_head=False,
        norm_softmax=False,
        norm_topk_prob=True,
        num_experts=8,
        num_experts_per_tok=2,
        num_shared_experts=2,
        use_bias=True,
        use_qkv_bias=True,
    )
    return without(c | kw, *LLAMA_ONLY, "rope_scaling")


def bailing_v2(**kw):
    c = bailing(
        architectures=["BailingMoeV2ForCausalLM"],
        model_type="bailing_moe_v2",
        eos_token_id=IM_END,
        first_k_dense_replace=1,
        moe_router_enable_expert_bias=True,
        n_group=4,
        num_experts=16,
        num_experts_per_tok=4,
        num_hidden_layers=3,
        num_shared_experts=1,
        pad_token_id=EOT,
        partial_rotary_factor=0.5,
        routed_scaling_factor=2.5,
        score_function="sigmoid",
        topk_group=2,
        use_bias=False,
        use_qk_norm=True,
        use_qkv_bias=False,
    )
    return c | kw


FUSED_GAIN = {
    "word_embeddings": 5,
    "query_key_value.weight": 1.25,
    "mlp.gate.weight": 0.5,
    "mlp.experts": 0.6,
    "expert_bias": 0.5,
}

# Experts that one more or less of near the best changes little.
MIXER_GAIN = {"experts.down_proj": 0.12}

MODELS = {
    "arcee": dict(
        config=arcee(),
        gain={"down_proj": 0.6},
        off=dict(activation=dict(hidden_act="gelu"), yarn=dict(rope_scaling=None)),
    ),
    "starcoder2": dict(
        config=starcoder2(),
        off=dict(window=dict(sliding_window=None), activation=dict(hidden_act="silu")),
    ),
    "stablelm": dict(config=stablelm(), off=dict(rotary=dict(partial_rotary_factor=0.5))),
    "stablelm_parallel": dict(
        config=stablelm(
            partial_rotary_factor=0.5,
            qk_layernorm=True,
            tie_word_embeddings=True,
            use_parallel_residual=True,
            use_qkv_bias=False,
        ),
        off=dict(qk_norm=dict(qk_layernorm=False)),
    ),
    # The logits' usual scale of 1/16, and a norm that makes up for it.
    "cohere": dict(
        config=cohere(),
        gain={"model.norm": 12},
        off=dict(qk_norm=dict(use_qk_norm=False), theta=dict(rope_theta=500000.0)),
    ),
    "cohere2": dict(
        config=cohere2(),
        gain={"model.norm": 2},
        off=dict(
            window=dict(sliding_window=4096),
            layers=dict(sliding_window_pattern=2),
            scale=dict(logit_scale=0.25),
        ),
    ),
    "apertus": dict(config=apertus(), off=dict(rope=dict(rope_scaling=dict(rope_type="default")))),
    "phimoe": dict(
        config=phimoe(),
        transformers_class="PhimoeForCausalLM",
        gain=MIXER_GAIN,
        steady=True,
        off=dict(
            mixer=dict(router_jitter_noise=0.01),
            window=dict(sliding_window=4096),
            scale=dict(rope_scaling=LONG | dict(short_mscale=1.0, long_mscale=1.0)),
        ),
    ),
    "phimoe_tf5": dict(
        config=phimoe(
            architectures=["PhimoeForCausalLM"],
            attention_bias=False,
            lm_head_bias=False,
            rope_scaling=None,
            sliding_window=None,
        ),
        spelling="tf5",
        gain=MIXER_GAIN,
        steady=True,
    ),
    "internlm3": dict(config=internlm3(), plain=True),
    "internlm3_plain": dict(
        config=internlm3(bias=False, rope_scaling=None, max_position_embeddings=128), plain=True
    ),
    "bailing_moe": dict(
        config=bailing(),
        gain=FUSED_GAIN,
        plain=True,
        steady=True,
        off=dict(norm=dict(norm_topk_prob=False)),
    ),
    "bailing_moe_v2": dict(
        config=bailing_v2(),
        gain=FUSED_GAIN,
        plain=True,
        steady=True,
        off=dict(
            groups=dict(n_group=1, topk_group=1),
            rotary=dict(partial_rotary_factor=1.0),
            scale=dict(routed_scaling_factor=1.0),
        ),
    ),
}
