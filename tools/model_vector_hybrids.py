# SPDX-License-Identifier: Apache-2.0
"""Models whose layers carry states (short convolutions, Mamba-2, Kimi Delta Attention), for
model_vector_configs.py. `seed` keeps a model's weights whatever else is in the list."""

from model_vector_configs import BOS, EOT, IM_END, TWO_TO_ONE, VOCAB, without


def base(**kw):
    c = dict(
        **TWO_TO_ONE,
        bos_token_id=BOS,
        eos_token_id=IM_END,
        hidden_size=64,
        initializer_range=0.02,
        max_position_embeddings=128,
        num_hidden_layers=3,
        pad_token_id=EOT,
        torch_dtype="bfloat16",
        transformers_version="4.57.0.dev0",
        use_cache=True,
        vocab_size=VOCAB,
    )
    return c | kw


def lfm2(**kw):
    """As the files of LFM2-350M spell it."""
    return base(
        architectures=["Lfm2ForCausalLM"],
        model_type="lfm2",
        block_auto_adjust_ff_dim=True,
        block_dim=64,
        block_ff_dim=66,
        block_ffn_dim_multiplier=1.0,
        block_mlp_init_scale=1.0,
        block_multiple_of=16,
        block_norm_eps=1e-5,
        block_out_init_scale=1.0,
        block_use_swiglu=True,
        block_use_xavier_init=True,
        conv_L_cache=3,
        conv_bias=False,
        conv_dim=64,
        conv_dim_out=64,
        conv_use_xavier_init=True,
        full_attn_idxs=[1],
        norm_eps=1e-5,
        num_heads=4,
        rope_theta=1000000.0,
        use_pos_enc=True,
    ) | kw


def lfm2_moe(**kw):
    return base(
        architectures=["Lfm2MoeForCausalLM"],
        model_type="lfm2_moe",
        conv_L_cache=3,
        conv_bias=False,
        intermediate_size=64,
        layer_types=["conv", "full_attention", "conv"],
        moe_intermediate_size=24,
        norm_eps=1e-5,
        norm_topk_prob=True,
        num_dense_layers=1,
        num_experts=8,
        num_experts_per_tok=3,
        rope_theta=1000000.0,
        routed_scaling_factor=1.0,
        use_expert_bias=True,
    ) | kw


def mamba(**kw):
    """What Granite 4, Bamba and Falcon-H1 call alike."""
    return base(
        attention_bias=False,
        hidden_act="silu",
        mamba_chunk_size=16,
        mamba_conv_bias=True,
        mamba_d_conv=4,
        mamba_d_head=16,
        mamba_d_state=16,
        mamba_expand=2,
        mamba_n_groups=1,
        mamba_n_heads=8,
        mamba_proj_bias=False,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    ) | kw


def granite_hybrid(**kw):
    """As the files of Granite 4.0 H spell it."""
    return mamba(
        architectures=["GraniteMoeHybridForCausalLM"],
        model_type="granitemoehybrid",
        attention_dropout=0.0,
        attention_multiplier=0.4,
        embedding_multiplier=2,
        intermediate_size=24,
        layer_types=["mamba", "attention", "mamba"],
        logits_scaling=1.2,
        normalization_function="rmsnorm",
        num_experts_per_tok=0,
        num_local_experts=0,
        output_router_logits=False,
        position_embedding_type="nope",
        residual_multiplier=0.6,
        rope_scaling=None,
        rope_theta=10000,
        router_aux_loss_coef=0.01,
        shared_intermediate_size=40,
    ) | kw


def bamba(**kw):
    return mamba(
        architectures=["BambaForCausalLM"],
        model_type="bamba",
        attention_dropout=0.0,
        attn_layer_indices=[1],
        attn_rotary_emb=8,
        intermediate_size=48,
        mlp_bias=False,
        num_logits_to_keep=1,
        rope_scaling=None,
        rope_theta=10000.0,
        z_loss_coefficient=0.0,
    ) | kw


def falcon_h1(**kw):
    return mamba(
        architectures=["FalconH1ForCausalLM"],
        model_type="falcon_h1",
        attention_in_multiplier=0.8,
        attention_out_multiplier=0.7,
        embedding_multiplier=1.5,
        head_dim=16,
        intermediate_size=48,
        key_multiplier=0.6,
        lm_head_multiplier=0.7,
        mamba_d_head=16,
        mamba_d_ssm=96,
        mamba_n_heads=6,
        mamba_norm_before_gate=False,
        mamba_rms_norm=False,
        mamba_use_mlp=True,
        mlp_bias=False,
        mlp_expansion_factor=8,
        mlp_multipliers=[0.7, 0.9],
        num_hidden_layers=2,
        num_logits_to_keep=1,
        projectors_bias=False,
        rope_scaling=None,
        rope_theta=100000000000.0,
        ssm_in_multiplier=1.25,
        ssm_multipliers=[0.8, 1.1, 0.7, 0.9, 0.6],
        ssm_out_multiplier=0.6,
        time_step_floor=0.0001,
        time_step_max=0.1,
        time_step_min=0.001,
    ) | kw


def kimi_linear(**kw):
    """As the files of Kimi-Linear-48B-A3B spell it."""
    c = base(
        architectures=["KimiLinearForCausalLM"],
        model_type="kimi_linear",
        first_k_dense_replace=1,
        head_dim=12,
        hidden_act="silu",
        hidden_size=48,
        intermediate_size=48,
        kv_lora_rank=32,
        linear_attn_config=dict(
            full_attn_layers=[3],
            head_dim=16,
            kda_layers=[1, 2],
            num_heads=4,
            short_conv_kernel_size=4,
        ),
        mla_use_nope=True,
        model_max_length=128,
        moe_intermediate_size=16,
        moe_layer_freq=1,
        moe_renormalize=True,
        moe_router_activation_func="sigmoid",
        num_expert_group=1,
        num_experts=8,
        num_experts_per_token=3,
        num_key_value_heads=4,
        num_nextn_predict_layers=0,
        num_shared_experts=1,
        q_lora_rank=None,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        rms_norm_eps=1e-5,
        rope_scaling=None,
        rope_theta=10000.0,
        routed_scaling_factor=1.5,
        tie_word_embeddings=False,
        topk_group=1,
        use_grouped_topk=True,
        v_head_dim=16,
    ) | kw
    return without(c, "max_position_embeddings")


def nemotron_h(**kw):
    """As the files of Nemotron-H and Nemotron 3 spell it: num_hidden_layers is the pattern's length."""
    return base(
        architectures=["NemotronHForCausalLM"],
        model_type="nemotron_h",
        attention_bias=False,
        attention_dropout=0.0,
        chunk_size=16,
        conv_kernel=4,
        expand=2,
        head_dim=32,
        hybrid_override_pattern="M-M*-",
        intermediate_size=48,
        layer_norm_epsilon=1e-5,
        mamba_head_dim=16,
        mamba_hidden_act="silu",
        mamba_num_heads=6,
        mamba_proj_bias=False,
        mlp_bias=False,
        mlp_hidden_act="relu2",
        n_groups=2,
        num_hidden_layers=5,
        num_logits_to_keep=1,
        rescale_prenorm_residual=True,
        residual_in_fp32=False,
        sliding_window=None,
        ssm_state_size=16,
        tie_word_embeddings=False,
        time_step_floor=0.0001,
        time_step_max=0.1,
        time_step_min=0.5,
        use_bias=False,
        use_conv_bias=True,
    ) | kw


def nemotron_h_moe(**kw):
    return nemotron_h(
        hybrid_override_pattern="ME*E",
        moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=40,
        n_group=1,
        n_routed_experts=8,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=3,
        routed_scaling_factor=1.5,
        topk_group=1,
    ) | kw


def zamba2(**kw):
    """As the files of Zamba2 2.7B: no rotation and no adapters of attention."""
    return base(
        architectures=["Zamba2ForCausalLM"],
        model_type="zamba2",
        adapter_rank=4,
        add_bias_linear=False,
        attention_head_dim=24,
        attention_hidden_size=96,
        ffn_hidden_size=64,
        hidden_act="gelu",
        hidden_size=48,
        hybrid_layer_ids=[1, 2],
        intermediate_size=64,
        kv_channels=12,
        layers_block_type=["mamba", "hybrid", "hybrid"],
        mamba_d_conv=4,
        mamba_d_state=16,
        mamba_expand=2,
        mamba_headdim=16,
        mamba_ngroups=1,
        n_mamba_heads=6,
        num_key_value_heads=4,
        num_mem_blocks=1,
        rms_norm_eps=1e-5,
        time_step_floor=0.0001,
        time_step_max=0.1,
        time_step_min=0.001,
        use_conv_bias=True,
        use_mem_rope=False,
        use_shared_attention_adapter=False,
    ) | kw


# States carry rounding along, and the norm behind them makes more of it.
MAMBA_GAIN = {"mamba.out_proj": 0.6, "model.norm": 0.8, "final_layernorm": 0.8}
NEMOTRON_GAIN = {"mixer.out_proj": 0.6, "norm_f": 0.8}
ZAMBA_GAIN = {
    "mamba.out_proj": 0.6,
    "final_layernorm": 1.0,
    "q_proj": 0.4,
    "k_proj": 0.4,
    ".linear.weight": 0.4,
    "adapter_list": 0.7,
}

HYBRIDS = {
    "lfm2": dict(
        config=lfm2(),
        seed=900000,
        off=dict(
            layers=dict(full_attn_idxs=[2]),
            rope=dict(rope_theta=10000.0),
        ),
    ),
    "lfm2_bias": dict(
        config=lfm2(
            block_auto_adjust_ff_dim=False,
            conv_L_cache=4,
            conv_bias=True,
            num_hidden_layers=2,
            tie_embedding=False,
        ),
        seed=901000,
        spelling="tf5",
    ),
    "lfm2_moe": dict(
        config=lfm2_moe(),
        seed=902000,
        gain={"feed_forward.experts.down_proj": 0.4, "feed_forward.gate.": 0.5},
        off=dict(
            norm_topk_prob=dict(norm_topk_prob=False),
            bias=dict(use_expert_bias=False),
            top_k=dict(num_experts_per_tok=2),
        ),
    ),
    "granite_hybrid": dict(
        config=granite_hybrid(),
        seed=903000,
        gain=MAMBA_GAIN,
        off=dict(
            embedding=dict(embedding_multiplier=1.0),
            residual=dict(residual_multiplier=1.0),
            attention=dict(attention_multiplier=0.2),
            logits=dict(logits_scaling=1.0),
            rope=dict(position_embedding_type="rope"),
        ),
    ),
    # Experts beside the block; rotation; two groups; layer_types by its older name.
    "granite_hybrid_moe": dict(
        config=without(
            granite_hybrid(
                layers_block_type=["attention", "mamba"],
                mamba_n_groups=2,
                mamba_proj_bias=True,
                num_experts_per_tok=3,
                num_hidden_layers=2,
                num_local_experts=8,
                position_embedding_type="rope",
                logits_scaling=0.9,
            ),
            "layer_types",
        ),
        seed=904000,
        gain=MAMBA_GAIN
        | {"block_sparse_moe.output_linear": 0.4, "router.layer": 0.5},
        off=dict(top_k=dict(num_experts_per_tok=2), rope=dict(position_embedding_type=None)),
    ),
    "bamba": dict(
        config=bamba(mamba_n_groups=2, mamba_d_head="auto", mamba_conv_bias=False),
        seed=905000,
        gain=MAMBA_GAIN,
        off=dict(rope=dict(rope_theta=100.0), layers=dict(attn_layer_indices=[0])),
    ),
    "falcon_h1": dict(
        config=falcon_h1(),
        seed=906000,
        gain=MAMBA_GAIN,
        off={k: {k: 1.0} for k in ("ssm_in_multiplier", "ssm_out_multiplier", "key_multiplier")}
        | dict(
            attention=dict(attention_in_multiplier=1.0),
            mlp=dict(mlp_multipliers=[1.0, 1.0]),
            ssm=dict(ssm_multipliers=[1.0] * 5),
        ),
    ),
    # The norm, before the gate; two groups; transformers' spelling.
    "falcon_h1_norm": dict(
        config=falcon_h1(
            mamba_n_groups=2,
            mamba_norm_before_gate=True,
            mamba_rms_norm=True,
            projectors_bias=True,
        ),
        seed=907000,
        gain=MAMBA_GAIN,
        spelling="tf5",
        off=dict(before=dict(mamba_norm_before_gate=False)),
    ),
    "kimi_linear": dict(
        config=kimi_linear(),
        seed=908000,
        gain={
            "self_attn.o_proj": 0.4,
            "experts.down_proj": 0.12,
            "mlp.gate.": 0.5,
            "model.norm": 0.8,
        },
        off=dict(
            top_k=dict(num_experts_per_token=2),
            renormalize=dict(moe_renormalize=False),
            scale=dict(routed_scaling_factor=1.0),
        ),
    ),
    "nemotron_h": dict(
        config=nemotron_h(),
        seed=909000,
        gain=NEMOTRON_GAIN,
        off=dict(
            time_step_min=dict(time_step_min=0.001),
            layers=dict(hybrid_override_pattern="M-*M-"),
        ),
    ),
    "nemotron_h_moe": dict(
        config=nemotron_h_moe(use_bias=True, use_conv_bias=False),
        seed=910000,
        steady=True,
        gain=NEMOTRON_GAIN | {"experts.down_proj": 0.5},
        spelling="tf5",
        off=dict(
            top_k=dict(num_experts_per_tok=2),
            norm_topk_prob=dict(norm_topk_prob=False),
            scale=dict(routed_scaling_factor=1.0),
        ),
    ),
    # Experts of a latent vector; two groups of them; biases.
    "nemotron_h_latent": dict(
        config=nemotron_h_moe(mlp_bias=True, moe_latent_size=32, n_group=2),
        seed=911000,
        steady=True,
        gain=NEMOTRON_GAIN | {"experts.down_proj": 0.5},
        off=dict(groups=dict(n_group=1), top_k=dict(num_experts_per_tok=2)),
    ),
    "zamba2": dict(
        config=zamba2(),
        seed=912002,
        gain=ZAMBA_GAIN,
        off=dict(
            layers=dict(layers_block_type=["mamba", "hybrid", "mamba"]),
            time_step_min=dict(time_step_min=0.5),
            act=dict(hidden_act="silu"),
        ),
    ),
    # As 1.2B and 7B: two blocks in turn, adapters of q, K and V, rotation; two groups; biases. Tied,
    # for without tie_word_embeddings transformers 5.24 shares no blocks either.
    "zamba2_rope": dict(
        config=zamba2(
            add_bias_linear=True,
            attention_head_dim=16,
            attention_hidden_size=64,
            ffn_hidden_size=48,
            hidden_size=32,
            hybrid_layer_ids=[0, 2, 3],
            intermediate_size=48,
            kv_channels=8,
            layers_block_type=["hybrid", "mamba", "hybrid", "hybrid"],
            mamba_ngroups=2,
            n_mamba_heads=4,
            num_hidden_layers=4,
            num_mem_blocks=2,
            use_mem_rope=True,
            use_shared_attention_adapter=True,
        ),
        seed=913000,
        # Embeddings tied to a head of 32 columns are small: with larger blocks the rounding to
        # bfloat16 is more than the generator's margins allow.
        gain=ZAMBA_GAIN | {"embed_tokens": 1.3, "final_layernorm": 0.6, ".linear.weight": 0.12},
        spelling="tf5",
        off=dict(
            theta=dict(rope_theta=100.0),
            rope=dict(use_mem_rope=False),
            adapters=dict(use_shared_attention_adapter=False),
            biases=dict(add_bias_linear=False),
        ),
    ),
}
