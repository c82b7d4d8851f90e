# SPDX-License-Identifier: Apache-2.0
"""The models of tests/vectors/models as make_model_vectors.py makes them: MODELS at the end."""

import torch

VOCAB = 260  # 256 bytes and 4 special tokens; not a multiple of any vector width
EOT, IM_START, IM_END, BOS = 256, 257, 258, 259
# Fields that only Llama's own files have.
LLAMA_ONLY = ("attention_bias", "mlp_bias", "pretraining_tp")
# Two heads to each of K, of the usual width and of one that is not the stream's.
TWO_TO_ONE = dict(num_attention_heads=4, num_key_value_heads=2)
HEADS_OF_32 = dict(head_dim=32, hidden_size=48, **TWO_TO_ONE)


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
    return without(c, *LLAMA_ONLY, "rope_scaling")


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
    return without(c, *LLAMA_ONLY, "rope_scaling")


def dual_chunk(**kw):
    return dict(chunk_size=32, local_size=8, original_max_position_embeddings=12) | kw


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


def mixtral(**kw):
    c = llama(
        architectures=["MixtralForCausalLM"],
        model_type="mixtral",
        intermediate_size=16,
        num_local_experts=8,
        num_experts_per_tok=2,
        output_router_logits=False,
        rope_theta=1000000.0,
        router_aux_loss_coef=0.02,
        sliding_window=None,
    )
    c.update(kw)
    return without(c, "attention_bias", "head_dim", "mlp_bias", "pretraining_tp", "rope_scaling")


def gpt_oss(**kw):
    c = llama(
        architectures=["GptOssForCausalLM"],
        model_type="gpt_oss",
        attention_bias=True,
        experts_per_token=2,
        initial_context_length=32,
        intermediate_size=32,
        layer_types=["sliding_attention", "full_attention"],
        num_attention_heads=4,
        num_experts_per_tok=2,
        num_key_value_heads=2,
        num_local_experts=4,
        output_router_logits=False,
        rope_scaling=gpt_oss_yarn(),
        rope_theta=150000,
        router_aux_loss_coef=0.9,
        sliding_window=16,
        swiglu_limit=7.0,
    )
    c.update(kw)
    return without(c, "bos_token_id", "mlp_bias", "pretraining_tp")


def gpt_oss_yarn(**kw):
    c = dict(
        beta_fast=32.0,
        beta_slow=1.0,
        factor=4.0,
        original_max_position_embeddings=32,
        rope_type="yarn",
        truncate=False,
    )
    c.update(kw)
    return c


def llama4(**kw):
    c = llama(
        architectures=["Llama4ForCausalLM"],
        model_type="llama4_text",
        attention_chunk_size=24,
        attn_scale=0.5,
        attn_temperature_tuning=True,
        floor_scale=16,
        head_dim=32,
        hidden_size=32,
        interleave_moe_layer_step=2,
        intermediate_size=24,
        intermediate_size_mlp=48,
        no_rope_layer_interval=3,
        no_rope_layers=[],
        num_attention_heads=4,
        num_experts_per_tok=1,
        num_hidden_layers=4,
        num_key_value_heads=2,
        num_local_experts=4,
        output_router_logits=False,
        pad_token_id=EOT,
        rope_scaling=dict(
            factor=16.0,
            high_freq_factor=1.0,
            low_freq_factor=1.0,
            original_max_position_embeddings=32,
            rope_type="llama3",
        ),
        rope_theta=500000.0,
        router_aux_loss_coef=0.001,
        router_jitter_noise=0.0,
        use_qk_norm=True,
    )
    c.update(kw)
    return without(c, "mlp_bias", "pretraining_tp")


def llama4_conditional():
    """Without norms of q and k, and dense layers before sparse ones, as Maverick."""
    return dict(
        architectures=["Llama4ForConditionalGeneration"],
        boi_token_index=200080,
        eoi_token_index=200081,
        eos_token_id=[EOT, IM_END],
        image_token_index=200092,
        model_type="llama4",
        text_config=without(
            llama4(
                no_rope_layer_interval=2,
                num_hidden_layers=2,
                rope_scaling=None,
                use_qk_norm=False,
            ),
            "architectures",
            "torch_dtype",
            "transformers_version",
            "eos_token_id",
            "tie_word_embeddings",
        ),
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
        transformers_version="4.51.0.dev0",
        vision_config=dict(
            hidden_size=8,
            image_size=4,
            intermediate_size=8,
            model_type="llama4_vision_model",
            num_attention_heads=1,
            num_hidden_layers=1,
            patch_size=2,
            pixel_shuffle_ratio=0.5,
            projector_input_dim=8,
            projector_output_dim=8,
            vision_output_dim=8,
        ),
    )


def qwen2_moe(**kw):
    c = qwen2(
        architectures=["Qwen2MoeForCausalLM"],
        model_type="qwen2_moe",
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=6,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
        moe_intermediate_size=16,
        norm_topk_prob=False,
        num_experts=8,
        num_experts_per_tok=4,
        output_router_logits=False,
        router_aux_loss_coef=0.001,
        shared_expert_intermediate_size=24,
        tie_word_embeddings=False,
    )
    c.update(kw)
    return without(c, "head_dim")


def phi3(**kw):
    c = llama(
        architectures=["Phi3ForCausalLM"],
        model_type="phi3",
        embd_pdrop=0.0,
        num_key_value_heads=2,
        original_max_position_embeddings=128,
        pad_token_id=EOT,
        resid_pdrop=0.0,
        sliding_window=None,
    )
    c.update(kw)
    return without(c, "head_dim", "mlp_bias", "pretraining_tp")


def longrope(pairs):
    """Scaling in the order of Phi's files: short factors just above 1, long ones up to 16."""
    return dict(
        long_factor=[round(1.0 + 15.0 * (i / (pairs - 1)) ** 2, 4) for i in range(pairs)],
        short_factor=[round(1.0 + 0.05 * i, 4) for i in range(pairs)],
        type="longrope",
    )


def olmo2(**kw):
    c = llama(
        architectures=["Olmo2ForCausalLM"],
        model_type="olmo2",
        pad_token_id=EOT,
        rms_norm_eps=1e-6,
        rope_theta=500000.0,
    )
    c.update(kw)
    return without(c, "bos_token_id", "head_dim", "mlp_bias", "pretraining_tp")


def smollm3(**kw):
    c = llama(
        architectures=["SmolLM3ForCausalLM"],
        model_type="smollm3",
        hidden_size=48,
        intermediate_size=64,
        max_window_layers=4,
        no_rope_layer_interval=4,
        num_hidden_layers=4,
        pad_token_id=EOT,
        rms_norm_eps=1e-6,
        rope_theta=5000000.0,
        sliding_window=None,
        use_sliding_window=False,
    )
    c.update(kw)
    return without(c, "head_dim", "tie_word_embeddings")  # tied: the default of this family


def granite(**kw):
    c = llama(
        architectures=["GraniteForCausalLM"],
        model_type="granite",
        attention_multiplier=0.03125,
        embedding_multiplier=3,
        logits_scaling=4.0,
        pad_token_id=EOT,
        residual_multiplier=0.22,
        tie_word_embeddings=True,
    )
    c.update(kw)
    return without(c, "head_dim", "pretraining_tp")


def gemma2(**kw):
    c = llama(
        architectures=["Gemma2ForCausalLM"],
        model_type="gemma2",
        attn_logit_softcapping=4.0,
        cache_implementation="hybrid",
        final_logit_softcapping=10.0,
        hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh",
        hidden_size=40,
        intermediate_size=64,
        num_hidden_layers=3,
        pad_token_id=EOT,
        query_pre_attn_scalar=24,
        rms_norm_eps=1e-6,
        sliding_window=16,
    )
    c.update(kw)
    return without(c, "mlp_bias", "pretraining_tp", "rope_scaling", "tie_word_embeddings")


def gemma3(**kw):
    c = gemma2(
        architectures=["Gemma3ForCausalLM"],
        model_type="gemma3_text",
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        intermediate_size=48,
        num_hidden_layers=4,
        rope_local_base_freq=10000,
        rope_theta=1000000,
        sliding_window_pattern=3,
    )
    c.update(rope_scaling=dict(factor=8.0, rope_type="linear"), **kw)
    return without(c, "hidden_act")


def gemma3_conditional():
    """As short as the files of gemma-3-4b-it: all that is not here is a default."""
    return dict(
        architectures=["Gemma3ForConditionalGeneration"],
        boi_token_index=255999,
        eoi_token_index=256000,
        eos_token_id=[EOT, IM_END],
        image_token_index=262144,
        initializer_range=0.02,
        mm_tokens_per_image=4,
        model_type="gemma3",
        text_config=dict(
            head_dim=16,
            hidden_size=32,
            intermediate_size=32,
            model_type="gemma3_text",
            num_hidden_layers=6,
            pad_token_id=EOT,
            rope_scaling=dict(factor=8.0, rope_type="linear"),
            sliding_window=16,
            vocab_size=VOCAB,
        ),
        torch_dtype="bfloat16",
        transformers_version="4.50.0.dev0",
        vision_config=dict(
            hidden_size=8,
            image_size=8,
            intermediate_size=8,
            model_type="siglip_vision_model",
            num_attention_heads=1,
            num_hidden_layers=1,
            patch_size=4,
            vision_use_head=False,
        ),
    )


def gemma4(**kw):
    c = dict(
        architectures=["Gemma4ForCausalLM"],
        model_type="gemma4_text",
        attention_bias=False,
        attention_dropout=0.0,
        attention_k_eq_v=False,
        bos_token_id=BOS,
        dtype="bfloat16",
        enable_moe_block=False,
        eos_token_id=[EOT, IM_END],
        final_logit_softcapping=30.0,
        global_head_dim=32,
        head_dim=16,
        hidden_activation="gelu_pytorch_tanh",
        hidden_size=40,
        hidden_size_per_layer_input=0,
        initializer_range=0.02,
        intermediate_size=48,
        layer_types=["sliding_attention"] * 2 + ["full_attention"],
        max_position_embeddings=128,
        moe_intermediate_size=None,
        num_attention_heads=4,
        num_experts=None,
        num_global_key_value_heads=None,
        num_hidden_layers=3,
        num_key_value_heads=2,
        num_kv_shared_layers=0,
        pad_token_id=EOT,
        rms_norm_eps=1e-6,
        rope_parameters=dict(
            full_attention=dict(
                partial_rotary_factor=0.25, rope_theta=1000000.0, rope_type="proportional"
            ),
            sliding_attention=dict(rope_theta=10000.0, rope_type="default"),
        ),
        sliding_window=16,
        tie_word_embeddings=True,
        top_k_experts=None,
        transformers_version="5.5.0.dev0",
        use_bidirectional_attention=None,
        use_cache=True,
        use_double_wide_mlp=False,
        vocab_size=VOCAB,
        vocab_size_per_layer_input=VOCAB,
    )
    c.update(kw)
    return c


def gemma4_conditional():
    """The form of E2B: per-layer embeddings, and the last layers without K and V of their own."""
    sliding, full = "sliding_attention", "full_attention"
    text = gemma4(
        hidden_size=32,
        hidden_size_per_layer_input=8,
        intermediate_size=32,
        layer_types=[sliding, sliding, full, sliding, full],
        num_hidden_layers=5,
        num_key_value_heads=1,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
    )
    return dict(
        architectures=["Gemma4ForConditionalGeneration"],
        audio_config=None,
        dtype="bfloat16",
        eos_token_id=[EOT, IM_END],
        image_token_id=258880,
        initializer_range=0.02,
        model_type="gemma4",
        text_config=without(text, "architectures"),
        tie_word_embeddings=True,
        transformers_version="5.5.0.dev0",
        vision_config=dict(
            global_head_dim=8,
            head_dim=8,
            hidden_size=8,
            intermediate_size=8,
            model_type="gemma4_vision",
            num_attention_heads=1,
            num_hidden_layers=1,
            num_key_value_heads=1,
            patch_size=4,
            position_embedding_size=4,
        ),
    )


def mimo_v2(**kw):
    c = llama(
        architectures=["MiMoV2FlashForCausalLM"],
        model_type="mimo_v2_flash",
        add_full_attention_sink_bias=False,
        add_swa_attention_sink_bias=True,
        attention_chunk_size=16,
        attention_value_scale=0.707,
        head_dim=24,
        hidden_size=32,
        hybrid_layer_pattern=[0, 1, 1, 1],
        intermediate_size=48,
        layernorm_epsilon=1e-5,
        moe_intermediate_size=24,
        moe_layer_freq=[0, 1, 1, 1],
        n_group=1,
        n_routed_experts=4,
        n_shared_experts=None,
        norm_topk_prob=True,
        num_attention_heads=4,
        num_experts_per_tok=2,
        num_hidden_layers=4,
        num_key_value_heads=1,
        partial_rotary_factor=0.334,
        rope_theta=5000000,
        routed_scaling_factor=None,
        scoring_func="sigmoid",
        sliding_window=16,
        sliding_window_size=16,
        swa_head_dim=24,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=2,
        swa_rope_theta=10000,
        swa_v_head_dim=16,
        topk_group=1,
        topk_method="noaux_tc",
        v_head_dim=16,
    )
    c.update(kw)
    return without(c, "mlp_bias", "pretraining_tp", "rms_norm_eps", "rope_scaling")


def glm4(**kw):
    c = llama(
        architectures=["Glm4ForCausalLM"],
        model_type="glm4",
        attention_bias=True,
        eos_token_id=[EOT, IM_START, IM_END],
        hidden_size=48,
        intermediate_size=48,
        pad_token_id=EOT,
        partial_rotary_factor=0.5,
    )
    c.update(kw)
    return without(c, "bos_token_id", "mlp_bias", "pretraining_tp", "rope_scaling")


def deepseek_v2(**kw):
    """As the files of DeepSeek-V2 spell it, fields that only training reads included."""
    c = llama(
        architectures=["DeepseekV2ForCausalLM"],
        model_type="deepseek_v2",
        aux_loss_alpha=0.001,
        ep_size=1,
        first_k_dense_replace=1,
        hidden_size=48,
        intermediate_size=64,
        kv_lora_rank=32,
        moe_intermediate_size=16,
        moe_layer_freq=1,
        n_group=4,
        n_routed_experts=12,
        n_shared_experts=2,
        norm_topk_prob=False,
        num_attention_heads=4,
        num_experts_per_tok=4,
        num_hidden_layers=3,
        num_key_value_heads=4,
        pretraining_tp=1,
        q_lora_rank=24,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        rms_norm_eps=1e-6,
        rope_scaling=deepseek_yarn(mscale=0.707, mscale_all_dim=0.707),
        routed_scaling_factor=1.5,
        scoring_func="softmax",
        seq_aux=True,
        topk_group=2,
        topk_method="group_limited_greedy",
        v_head_dim=16,
    )
    c.update(kw)
    return without(c, "head_dim", "mlp_bias")


def deepseek_yarn(**kw):
    c = dict(
        beta_fast=32,
        beta_slow=1,
        factor=4,
        mscale=1.0,
        mscale_all_dim=1.0,
        original_max_position_embeddings=32,
        type="yarn",
    )
    c.update(kw)
    return c


def deepseek_v3(**kw):
    c = deepseek_v2(
        architectures=["DeepseekV3ForCausalLM"],
        model_type="deepseek_v3",
        n_shared_experts=1,
        norm_topk_prob=True,
        num_nextn_predict_layers=1,
        rope_scaling=deepseek_yarn(),
        routed_scaling_factor=2.5,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
    )
    c.update(kw)
    return c


def glm4_moe_lite(**kw):
    """As the files of GLM-4.7-Flash: DeepSeek-V3 under another name, without groups."""
    c = deepseek_v3(
        architectures=["Glm4MoeLiteForCausalLM"],
        model_type="glm4_moe_lite",
        eos_token_id=[EOT, IM_START, IM_END],
        n_group=1,
        pad_token_id=EOT,
        partial_rotary_factor=1.0,
        rms_norm_eps=1e-5,
        rope_scaling=None,
        rope_theta=1000000,
        routed_scaling_factor=1.8,
        topk_group=1,
    )
    c.update(kw)
    return without(
        c,
        "aux_loss_alpha",
        "bos_token_id",
        "ep_size",
        "moe_layer_freq",
        "pretraining_tp",
        "scoring_func",
        "seq_aux",
    )


def deepseek_v32(**kw):
    """As the files of DeepSeek-V3.2 spell it: V3 and an index."""
    c = deepseek_v3(
        architectures=["DeepseekV32ForCausalLM"],
        index_head_dim=24,
        index_n_heads=12,
        index_topk=48,
        model_type="deepseek_v32",
        num_nextn_predict_layers=0,
    )
    c.update(kw)
    return c


def glm_moe_dsa(**kw):
    """As the files of GLM-5 spell it."""
    c = without(
        deepseek_v32(
            architectures=["GlmMoeDsaForCausalLM"],
            eos_token_id=[EOT, IM_START, IM_END],
            indexer_rope_interleave=True,
            model_type="glm_moe_dsa",
            n_group=1,
            n_routed_experts=8,
            num_experts_per_tok=3,
            pad_token_id=EOT,
            rms_norm_eps=1e-5,
            rope_scaling=None,
            rope_theta=1000000,
            topk_group=1,
            v_head_dim=24,
        ),
        "aux_loss_alpha",
        "bos_token_id",
        "pretraining_tp",
        "seq_aux",
    )
    c.update(kw)
    return c


def qwen3_next(**kw):
    """As the files of Qwen3-Next spell it."""
    c = qwen3_moe(
        architectures=["Qwen3NextForCausalLM"],
        model_type="qwen3_next",
        full_attention_interval=4,
        intermediate_size=48,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_value_head_dim=32,
        moe_intermediate_size=16,
        num_hidden_layers=4,
        partial_rotary_factor=0.25,
        rope_theta=10000000,
        shared_expert_intermediate_size=24,
    )
    c.update(kw)
    return without(c, "attention_bias", "max_window_layers", "sliding_window")


def qwen3_5(**kw):
    """As transformers' Qwen3_5TextConfig, which is what text_config of the files is."""
    c = qwen3_next(
        architectures=["Qwen3_5ForCausalLM"],
        dtype="bfloat16",
        linear_key_head_dim=32,
        linear_num_value_heads=6,
        linear_value_head_dim=16,
        model_type="qwen3_5_text",
        rope_parameters=dict(
            mrope_interleaved=True,
            mrope_section=[3, 3, 2],
            partial_rotary_factor=0.25,
            rope_theta=10000000,
            rope_type="default",
        ),
        tie_word_embeddings=True,
    )
    c.update(kw)
    return without(
        c,
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "output_router_logits",
        "partial_rotary_factor",
        "rope_scaling",
        "rope_theta",
        "router_aux_loss_coef",
        "shared_expert_intermediate_size",
        "torch_dtype",
        "use_sliding_window",
    )


def qwen3_5_moe(**kw):
    c = qwen3_5(
        architectures=["Qwen3_5MoeForCausalLM"],
        model_type="qwen3_5_moe_text",
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        tie_word_embeddings=False,
    )
    c.update(
        moe_intermediate_size=16,
        num_experts=8,
        num_experts_per_tok=2,
        shared_expert_intermediate_size=24,
    )
    c.update(kw)
    return without(c, "full_attention_interval", "intermediate_size")



def qwen3_5_conditional(text):
    """The whole of a model that sees: what the files of Qwen3.5 have."""
    moe = "Moe" in text["architectures"][0]
    name = text["architectures"][0].replace("ForCausalLM", "ForConditionalGeneration")
    return dict(
        architectures=[name],
        image_token_id=EOT,
        model_type="qwen3_5_moe" if moe else "qwen3_5",
        text_config=without(text, "architectures", "transformers_version"),
        tie_word_embeddings=text["tie_word_embeddings"],
        transformers_version="4.57.0.dev0",
        video_token_id=EOT,
        vision_config=dict(
            depth=1,
            hidden_size=8,
            in_channels=3,
            intermediate_size=8,
            model_type="qwen3_5_moe" if moe else "qwen3_5",
            num_heads=1,
            num_position_embeddings=4,
            out_hidden_size=text["hidden_size"],
            patch_size=4,
            spatial_merge_size=1,
            temporal_patch_size=1,
        ),
        vision_end_token_id=EOT,
        vision_start_token_id=EOT,
    )


# Gates and ups beyond the limit of 7, scores as wide as the sinks.
GPT_OSS_GAIN = {"gate_up_proj": 2.5, "down_proj": 0.5, "q_proj": 1.3, "k_proj": 1.3}
# The embedding is scaled up on its way in, and not for the head.
GEMMA4_GAIN = {
    "embed_tokens": 0.2,
    "embed_tokens_per_layer": 5,
    "model.norm": 4,
    "language_model.norm": 1,
    "q_norm": 0.4,
    "k_norm": 0.4,
}
GEMMA4_UNTIED = {"embed_tokens": 0.15, "embed_tokens_per_layer": 2, "q_norm": 0.4, "k_norm": 0.4}
GEMMA_GAIN = {"embed_tokens": 0.2, "model.norm": 5}
# Scores a few units wide; experts small enough that one chosen otherwise in bfloat16 does little.
MLA_GAIN = {"q_b_proj": 1.25, "mlp.gate.": 0.5, "mlp.experts.down_proj": 0.4}
# Scores so flat that a key chosen otherwise in bfloat16 does little.
INDEX_GAIN = {"q_b_proj": 0.4, "o_proj": 0.6, "mlp.gate.": 0.5, "mlp.experts.down_proj": 0.15}
# States carry rounding along, and the norm behind them makes more of it.
DELTA_GAIN = {
    "linear_attn.out_proj": 0.6,
    "mlp.experts.down_proj": 0.25,
    "mlp.gate.": 0.5,
    "model.norm": 0.8,
}

# name -> hub-spelling config and options: dtype of the stored weights, number of shards, which
# spelling config.json gets ("hub" or "tf5"; the other one is config.alt.json), gain (factors of the
# random weights whose name has the key), off (config changes that must each move the result),
# steady (the router has no near-ties), fp8 (matrices of layers are stored as DeepSeek-V3's files have
# them), mtp (the file has parts of a layer for multi-token prediction).
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
    "mixtral": dict(
        config=mixtral(),
        off=dict(num_experts_per_tok=dict(num_experts_per_tok=1), rope=dict(rope_theta=10000.0)),
    ),
    "qwen2_moe": dict(
        config=qwen2_moe(),
        gain={"mlp.gate.": 0.5},  # a router less sure, as one of 60 experts is
        off=dict(
            norm_topk_prob=dict(norm_topk_prob=True),
            num_experts_per_tok=dict(num_experts_per_tok=2),
            rope=dict(rope_theta=10000.0),
        ),
    ),
    "phi3_swa": dict(config=phi3(sliding_window=16), off=dict(window=dict(sliding_window=None))),
    # The prompt is longer than the original length: long factors. Shapes of Phi-4-mini.
    "phi3_longrope_long": dict(
        config=phi3(
            num_attention_heads=4,
            num_key_value_heads=2,
            hidden_size=128,
            intermediate_size=48,
            num_hidden_layers=1,
            original_max_position_embeddings=32,
            partial_rotary_factor=0.75,
            rope_scaling=longrope(12),
            sliding_window=262144,
            tie_word_embeddings=True,
        ),
        off=dict(
            long=dict(original_max_position_embeddings=128),
            attention_factor=dict(rope_scaling=dict(longrope(12), attention_factor=1.0)),
        ),
    ),
    # Prompt and answer are shorter than the original length: short factors.
    "phi3_longrope_short": dict(
        config=phi3(max_position_embeddings=512, rope_scaling=longrope(16), sliding_window=262144),
        off=dict(
            short=dict(original_max_position_embeddings=63),
            attention_factor=dict(rope_scaling=dict(longrope(16), attention_factor=1.0)),
            scaling=dict(rope_scaling=None),
        ),
    ),
    "olmo2": dict(config=olmo2(), off=dict(rope=dict(rope_theta=10000.0))),
    # The list wins over the interval, by which it would be layer 3 that does not rotate.
    "smollm3": dict(
        config=smollm3(no_rope_layers=[1, 1, 0, 1]),
        off=dict(no_rope=dict(no_rope_layers=[1, 1, 1, 1]), interval=dict(no_rope_layers=None)),
    ),
    # Larger weights make up for the multipliers, as training does.
    "granite": dict(
        config=granite(),
        gain={
            "embed_tokens": 0.5,
            "model.norm": 8,
            "q_proj": 2,
            "k_proj": 2,
            "o_proj": 4,
            "down_proj": 4,
        },
        off=dict(
            attention=dict(attention_multiplier=32**-0.5),
            embedding=dict(embedding_multiplier=1),
            residual=dict(residual_multiplier=1.0),
            logits=dict(logits_scaling=1.0),
        ),
    ),
    "gemma2": dict(
        config=gemma2(),
        gain=GEMMA_GAIN,
        off=dict(
            attn_softcap=dict(attn_logit_softcapping=None),
            final_softcap=dict(final_logit_softcapping=None),
            scale=dict(query_pre_attn_scalar=64),
            window=dict(sliding_window=4096),
            alternate=dict(layer_types=["sliding_attention"] * 3),
            gelu=dict(hidden_activation="silu"),
        ),
    ),
    "gemma3": dict(
        config=gemma3(),
        gain=dict(GEMMA_GAIN, q_norm=0.75, k_norm=0.75),
        off=dict(
            scale=dict(query_pre_attn_scalar=64),
            window=dict(sliding_window=4096),
            pattern=dict(sliding_window_pattern=6),
            local=dict(rope_local_base_freq=1000000),
            scaling=dict(rope_scaling=None),
            theta=dict(rope_theta=10000),
        ),
    ),
    "gemma3_conditional": dict(
        config=gemma3_conditional(),
        gain={
            "embed_tokens": 0.4,
            "model.norm": 2.5,
            "q_norm": 1.5,
            "k_norm": 1.5,
            "layers.5.self_attn.q_norm": 3,
        },
        off=dict(
            scale=dict(text_config=dict(query_pre_attn_scalar=16)),
            window=dict(text_config=dict(sliding_window=4096)),
            pattern=dict(text_config=dict(sliding_window_pattern=3)),
            local=dict(text_config=dict(rope_local_base_freq=1000000)),
            scaling=dict(text_config=dict(rope_scaling=None)),
            theta=dict(text_config=dict(rope_theta=10000)),
        ),
    ),
    "glm4": dict(config=glm4(), off=dict(partial=dict(partial_rotary_factor=1.0))),
    "deepseek_v2": dict(
        config=deepseek_v2(),
        gain=MLA_GAIN,
        off=dict(
            groups=dict(topk_method="greedy"),
            top_groups=dict(topk_group=3),
            scale=dict(routed_scaling_factor=1.0),
            mscale=dict(rope_scaling=deepseek_yarn(mscale=0.707, mscale_all_dim=0)),
            yarn=dict(rope_scaling=None),
        ),
    ),
    # Values narrower than keys; mscale and mscale_all_dim differ, so that cos and sin are scaled too.
    "deepseek_v2_lite": dict(
        config=deepseek_v2(
            n_group=1,
            n_routed_experts=8,
            num_experts_per_tok=3,
            q_lora_rank=None,
            qk_nope_head_dim=24,
            rope_scaling=deepseek_yarn(mscale=1.414, mscale_all_dim=0.707),
            routed_scaling_factor=1.0,
            topk_group=1,
            topk_method="greedy",
            v_head_dim=12,
        ),
        gain=MLA_GAIN,
        off=dict(
            mscale=dict(rope_scaling=deepseek_yarn(mscale=0.707, mscale_all_dim=0.707)),
            softmax=dict(rope_scaling=deepseek_yarn(mscale=1.414, mscale_all_dim=0)),
            yarn=dict(rope_scaling=None),
        ),
    ),
    # Latent vectors of the size that fast kernels are made for, which the published models have.
    "deepseek_v2_wide": dict(
        config=deepseek_v2(
            kv_lora_rank=512,
            num_attention_heads=2,
            num_hidden_layers=2,
            num_key_value_heads=2,
            q_lora_rank=None,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        ),
        gain=MLA_GAIN,
    ),
    "deepseek_v3": dict(
        config=deepseek_v3(num_hidden_layers=2),
        gain=MLA_GAIN,
        steady=True,
        off=dict(
            groups=dict(n_group=1, topk_group=1),
            top_groups=dict(topk_group=3),
            norm_topk_prob=dict(norm_topk_prob=False),
            scale=dict(routed_scaling_factor=1.0),
            mscale=dict(rope_scaling=deepseek_yarn(mscale_all_dim=0)),
            yarn=dict(rope_scaling=None),
            interleave=dict(rope_interleave=False),
        ),
    ),
    # Values wider than the part of the keys that does not rotate.
    "glm4_moe_lite": dict(
        config=glm4_moe_lite(
            n_routed_experts=8, num_experts_per_tok=3, num_hidden_layers=2, v_head_dim=24
        ),
        gain=MLA_GAIN,
        off=dict(
            norm_topk_prob=dict(norm_topk_prob=False),
            scale=dict(routed_scaling_factor=1.0),
            rope=dict(rope_theta=10000.0),
        ),
    ),
    # Of 64 keys the last token attends to 48; the index rotates halves, the attention neighbours.
    "deepseek_v32": dict(
        config=deepseek_v32(num_hidden_layers=2),
        gain=INDEX_GAIN,
        off=dict(
            fewer=dict(index_topk=8),
            dense=dict(first_k_dense_replace=0),
        ),
    ),
    # Layer 2 attends to what layer 1 chose; the index rotates neighbours.
    "glm_moe_dsa": dict(
        config=glm_moe_dsa(index_topk_freq=3, num_hidden_layers=3),
        gain=INDEX_GAIN,
        off=dict(
            fewer=dict(index_topk=8),
        ),
    ),
    # Widths below, of and above a block.
    "qwen3_fp8": dict(
        config=qwen3(head_dim=64, hidden_size=128, intermediate_size=256, num_hidden_layers=1),
        fp8=True,
    ),
    "qwen3_next": dict(
        config=qwen3_next(full_attention_interval=3, mlp_only_layers=[1], num_hidden_layers=3),
        gain=DELTA_GAIN,
        mtp=True,
        off=dict(
            norm_topk_prob=dict(norm_topk_prob=False),
            partial=dict(partial_rotary_factor=0.5),
            rope=dict(rope_theta=10000.0),
        ),
    ),
    # Heads as a GPU wants them; the list wins over the interval.
    "qwen3_next_hd128": dict(
        config=qwen3_next(
            head_dim=128,
            hidden_size=32,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            mlp_only_layers=[0],
            num_hidden_layers=3,
        ),
        gain=DELTA_GAIN,
        spelling="tf5",
        off=dict(partial=dict(partial_rotary_factor=1.0)),
    ),
    "qwen3_5": dict(
        config=qwen3_5(),
        gain=DELTA_GAIN,
        mtp=True,
        off=dict(rope=dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    ),
    "qwen3_5_moe": dict(
        config=qwen3_5_moe(),
        gain=DELTA_GAIN,
        off=dict(num_experts_per_tok=dict(num_experts_per_tok=1)),
    ),
    "qwen3_5_conditional": dict(
        config=qwen3_5_conditional(
            qwen3_5(hidden_size=32, num_hidden_layers=2, full_attention_interval=2)
        ),
        gain=DELTA_GAIN,
        mtp=True,
    ),
    "qwen3_5_moe_conditional": dict(
        config=qwen3_5_conditional(qwen3_5_moe(hidden_size=32)), gain=DELTA_GAIN
    ),
    "gpt_oss": dict(
        config=gpt_oss(),
        gain=GPT_OSS_GAIN,
        steady=True,
        off=dict(
            window=dict(sliding_window=4096),
            layers=dict(layer_types=["full_attention", "sliding_attention"]),
            yarn=dict(rope_scaling=dict(rope_type="default")),
            truncate=dict(rope_scaling=gpt_oss_yarn(truncate=True)),
            attention_factor=dict(rope_scaling=gpt_oss_yarn(attention_factor=1.0)),
            experts=dict(num_experts_per_tok=1),
        ),
    ),
    "gpt_oss_mxfp4": dict(config=gpt_oss(), gain=GPT_OSS_GAIN, steady=True, mxfp4=True),
    # Three chunks of 24 tokens (dual_chunk_attention.py); rotations that the scores feel.
    "qwen2_dual_chunk": dict(
        config=qwen2(
            rope_theta=100.0,
            dual_chunk_attention_config=dual_chunk(),
        ),
        off=dict(
            dual_chunk=dict(dual_chunk_attention_config=None),
            local=dict(dual_chunk_attention_config=dual_chunk(chunk_size=40, local_size=16)),
            length=dict(dual_chunk_attention_config=dual_chunk(original_max_position_embeddings=0)),
        ),
    ),
    "llama4": dict(
        config=llama4(),
        steady=True,
        off=dict(
            chunk=dict(attention_chunk_size=4096),
            no_rope=dict(no_rope_layers=[1, 1, 1, 1], layer_types=["chunked_attention"] * 4),
            temper=dict(attn_temperature_tuning=False),
            norm=dict(use_qk_norm=False),
            scaling=dict(rope_scaling=None),
        ),
    ),
    "llama4_conditional": dict(
        config=llama4_conditional(),
        steady=True,
        off=dict(
            chunk=dict(text_config=dict(attention_chunk_size=4096)),
            temper=dict(text_config=dict(attn_temperature_tuning=False)),
        ),
    ),
    "gemma4": dict(
        seed=45000,
        config=gemma4(tie_word_embeddings=False),
        gain=GEMMA4_UNTIED,
        off=dict(
            window=dict(sliding_window=4096),
            softcap=dict(final_logit_softcapping=None),
        ),
    ),
    "gemma4_ple": dict(
        seed=46000,
        config=gemma4(
            hidden_size_per_layer_input=8,
            layer_types=["sliding_attention", "full_attention"],
            num_hidden_layers=2,
            tie_word_embeddings=False,
        ),
        gain=GEMMA4_UNTIED,
    ),
    "gemma4_conditional": dict(
        seed=47000,
        config=gemma4_conditional(),
        gain=dict(GEMMA4_GAIN, post_per_layer_input_norm=0.5, q_norm=0.25),
    ),
    "gemma4_kv": dict(
        seed=48000,
        config=gemma4(
            attention_k_eq_v=True, num_global_key_value_heads=1, tie_word_embeddings=False
        ),
        gain=GEMMA4_UNTIED,
    ),
    "gemma4_moe": dict(
        seed=49000,
        config=gemma4(
            attention_k_eq_v=True,
            enable_moe_block=True,
            layer_types=["sliding_attention", "full_attention"],
            moe_intermediate_size=24,
            num_experts=8,
            num_global_key_value_heads=2,
            num_hidden_layers=2,
            tie_word_embeddings=False,
            top_k_experts=2,
        ),
        gain=GEMMA4_UNTIED,
        steady=True,
    ),
    "mimo_v2": dict(
        seed=50000,
        config=mimo_v2(),
        gain={"experts": 0.7, "layers.1.mlp.gate.weight": 2},
        steady=True,
        off=dict(
            value_scale=dict(attention_value_scale=1.0),
            window=dict(sliding_window_size=4096),
        ),
    ),
    # Heads as released models have them, for which GPUs have kernels of their own.
    "gemma4_hd512": dict(
        seed=51000,
        config=gemma4(
            attention_k_eq_v=True,
            global_head_dim=512,
            head_dim=256,
            hidden_size=24,
            layer_types=["sliding_attention", "full_attention"],
            num_attention_heads=2,
            num_global_key_value_heads=1,
            num_hidden_layers=2,
            num_key_value_heads=1,
            tie_word_embeddings=False,
        ),
        gain=dict(GEMMA4_UNTIED, q_norm=0.2, k_norm=0.2),
    ),
    "mimo_v2_hd192": dict(
        seed=52000,
        config=mimo_v2(
            head_dim=192,
            hidden_size=24,
            hybrid_layer_pattern=[0, 1],
            moe_layer_freq=[0, 1],
            num_hidden_layers=2,
            swa_head_dim=192,
            swa_v_head_dim=128,
            v_head_dim=128,
        ),
        gain={"experts": 0.7, "layers.1.mlp.gate.weight": 2},
        steady=True,
    ),
}
