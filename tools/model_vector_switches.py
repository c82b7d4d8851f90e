# SPDX-License-Identifier: Apache-2.0
"""Further models of tests/vectors/models: architectures that are Llama's layers with other switches. As
model_vector_configs.py, which has what is common to all of them; made with transformers 5.24."""

from model_vector_configs import (
    EOT,
    GEMMA_GAIN,
    HEADS_OF_32,
    IM_END,
    IM_START,
    LLAMA_ONLY,
    MLA_GAIN,
    TWO_TO_ONE,
    deepseek_v3,
    gemma2,
    llama,
    olmo2,
    qwen3,
    qwen3_moe,
    without,
)


def glm4_moe(**kw):
    """As the files of GLM-4.5 to 4.7."""
    c = llama(
        architectures=["Glm4MoeForCausalLM"],
        model_type="glm4_moe",
        **HEADS_OF_32,
        attention_bias=True,
        eos_token_id=[EOT, IM_START, IM_END],
        first_k_dense_replace=1,
        intermediate_size=64,
        moe_intermediate_size=16,
        n_group=2,
        n_routed_experts=8,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=3,
        num_hidden_layers=3,
        num_nextn_predict_layers=1,
        pad_token_id=EOT,
        partial_rotary_factor=0.5,
        rope_theta=1000000,
        routed_scaling_factor=2.5,
        topk_group=1,
        use_qk_norm=True,
    )
    return without(c | kw, "bos_token_id", "mlp_bias", "pretraining_tp")


def minimax_m2(**kw):
    """As the files of MiniMax-M2, whose share of rotated dimensions has a field of its own."""
    c = llama(
        architectures=["MiniMaxM2ForCausalLM"],
        model_type="minimax_m2",
        **HEADS_OF_32,
        attn_type_list=[1, 1],
        intermediate_size=16,
        num_experts_per_tok=3,
        num_local_experts=8,
        output_router_logits=False,
        qk_norm_type="per_layer",
        rms_norm_eps=1e-6,
        rope_theta=5000000,
        rotary_dim=16,
        router_aux_loss_coef=0.001,
        router_jitter_noise=0.0,
        scoring_func="sigmoid",
        shared_intermediate_size=0,
        use_qk_norm=True,
        use_routing_bias=True,
    )
    return without(c | kw, *LLAMA_ONLY, "rope_scaling")


def minimax_m3(**kw):
    """The language half of MiniMax-M3, in the names of its files."""
    c = minimax_m2(
        architectures=["MiniMaxM3VLForCausalLM"],
        model_type="minimax_m3_vl_text",
        dense_intermediate_size=64,
        hidden_act="swigluoai",
        num_hidden_layers=3,
        moe_layer_freq=[0, 1, 1],
        partial_rotary_factor=0.5,
        routed_scaling_factor=2.0,
        shared_intermediate_size=24,
        sparse_attention_config=dict(
            sparse_attention_freq=[0, 1, 1],
            sparse_block_size=8,
            sparse_index_dim=16,
            sparse_local_block=1,
            sparse_num_index_heads=2,
            sparse_topk_blocks=3,
        ),
        swiglu_alpha=1.702,
        swiglu_limit=7.0,
    )
    return without(c | kw, "attn_type_list", "qk_norm_type", "scoring_func", "use_qk_norm", "use_routing_bias")


M3_BLOCKS = minimax_m3()["sparse_attention_config"]


def minimax_m3_conditional(**kw):
    """The whole of it, whose tower is left alone."""
    vision = dict(
        hidden_size=8,
        image_size=8,
        intermediate_size=8,
        model_type="minimax_m3_vl_vision",
        num_attention_heads=1,
        num_hidden_layers=1,
        patch_size=4,
        spatial_merge_size=1,
        temporal_patch_size=1,
    )
    text = minimax_m3(
        num_hidden_layers=2,
        moe_layer_freq=[1, 0],
        sparse_attention_config=M3_BLOCKS
        | dict(
            sparse_attention_freq=[1, 0],
            sparse_block_size=5,
            sparse_index_dim=32,
            sparse_local_block=2,
            sparse_topk_blocks=4,
        ),
    )
    c = dict(
        architectures=["MiniMaxM3SparseForConditionalGeneration"],
        eos_token_id=EOT,
        image_token_index=10,
        model_type="minimax_m3_vl",
        projector_hidden_size=8,
        text_config=without(text, "architectures", "transformers_version"),
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
        transformers_version="5.2.0",
        video_token_index=11,
        vision_config=vision,
    )
    return c | kw


def ministral_rope(**kw):
    c = dict(
        beta_fast=32.0,
        beta_slow=1.0,
        factor=16.0,
        llama_4_scaling_beta=0.1,
        mscale=1.0,
        mscale_all_dim=1.0,
        original_max_position_embeddings=16,
        rope_theta=1000000.0,
        rope_type="yarn",
        type="yarn",
    )
    return c | kw


def ministral3(**kw):
    c = llama(
        architectures=["Ministral3ForCausalLM"],
        model_type="ministral3",
        **HEADS_OF_32,
        dtype="bfloat16",
        max_position_embeddings=256,
        rope_parameters=ministral_rope(llama_4_scaling_beta=0.5),
        sliding_window=None,
    )
    drop = (*LLAMA_ONLY, "rope_scaling", "rope_theta", "torch_dtype")
    return without(c | kw, *drop)


PIXTRAL = dict(
    head_dim=8,
    hidden_act="gelu",
    hidden_size=8,
    image_size=8,
    intermediate_size=8,
    model_type="pixtral",
    num_attention_heads=1,
    num_channels=3,
    num_hidden_layers=1,
    patch_size=4,
)


def mistral3(text, **kw):
    """As the files of Mistral Small 3.1 and of Ministral 3, whose language models differ."""
    c = dict(
        architectures=["Mistral3ForConditionalGeneration"],
        eos_token_id=[EOT, IM_END],
        image_token_index=10,
        model_type="mistral3",
        multimodal_projector_bias=False,
        tie_word_embeddings=False,
        projector_hidden_act="gelu",
        spatial_merge_size=2,
        text_config=without(text, "architectures", "transformers_version", "eos_token_id"),
        torch_dtype="bfloat16",
        transformers_version="4.50.0.dev0",
        vision_config=PIXTRAL,
        vision_feature_layer=-1,
    )
    return c | kw


def mistral_small():
    """Without the window, which a Mistral would have."""
    text = llama(
        model_type="mistral",
        **HEADS_OF_32,
        rope_theta=1000000000.0,
        sliding_window=None,
    )
    return without(text, *LLAMA_ONLY, "rope_scaling", "tie_word_embeddings")


def qwen3_vl(text, model_type):
    vision = dict(
        deepstack_visual_indexes=[0],
        depth=1,
        hidden_act="gelu_pytorch_tanh",
        hidden_size=8,
        in_channels=3,
        intermediate_size=8,
        model_type=model_type,
        num_heads=1,
        num_position_embeddings=4,
        out_hidden_size=text["hidden_size"],
        patch_size=4,
        spatial_merge_size=1,
        temporal_patch_size=1,
    )
    name = "Qwen3VLMoe" if model_type.endswith("moe") else "Qwen3VL"
    return dict(
        architectures=[f"{name}ForConditionalGeneration"],
        image_token_id=EOT,
        model_type=model_type,
        text_config=without(text, "architectures", "transformers_version", "torch_dtype")
        | dict(dtype="bfloat16", model_type=f"{model_type}_text"),
        tie_word_embeddings=text["tie_word_embeddings"],
        transformers_version="4.57.0.dev0",
        video_token_id=EOT,
        vision_config=vision,
        vision_end_token_id=EOT,
        vision_start_token_id=EOT,
    )


MROPE = dict(mrope_interleaved=True, mrope_section=[8, 4, 4], rope_type="default")
NO_WINDOW = ("use_sliding_window", "sliding_window", "max_window_layers")


def qwen3_vl_moe():
    """A dense layer between sparse ones."""
    text = qwen3_moe(
        head_dim=32,
        hidden_size=32,
        mlp_only_layers=[1],
        moe_intermediate_size=24,
        num_attention_heads=4,
        num_hidden_layers=3,
        rope_scaling=MROPE,
        rope_theta=5000000,
    )
    return qwen3_vl(without(text, *NO_WINDOW, "norm_topk_prob"), "qwen3_vl_moe")


def gemma(**kw):
    """As the files of Gemma 1, which call the tanh form of GELU gelu."""
    c = gemma2(
        architectures=["GemmaForCausalLM"],
        model_type="gemma",
        hidden_act="gelu",
        num_hidden_layers=2,
        rope_scaling=None,
    )
    drop = ("attn_logit_softcapping", "cache_implementation", "final_logit_softcapping", "query_pre_attn_scalar")
    return without(c | kw, *drop, "hidden_activation", "sliding_window")


def seed_oss(**kw):
    c = llama(
        architectures=["SeedOssForCausalLM"],
        model_type="seed_oss",
        **HEADS_OF_32,
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        pad_token_id=EOT,
        residual_dropout=0.1,
        rms_norm_eps=1e-6,
        rope_scaling=dict(rope_type="default"),
        rope_theta=10000000.0,
    )
    return c | kw


def olmo3(**kw):
    """Of four layers the last sees all tokens, and rotates by yarn."""
    c = olmo2(
        architectures=["Olmo3ForCausalLM"],
        model_type="olmo3",
        **TWO_TO_ONE,
        hidden_size=64,
        max_position_embeddings=256,
        num_hidden_layers=4,
        rope_scaling=dict(
            attention_factor=1.2079441541679836,
            beta_fast=32,
            beta_slow=1,
            factor=8.0,
            original_max_position_embeddings=32,
            rope_type="yarn",
        ),
        sliding_window=16,
    )
    return c | kw


def ernie4_5(**kw):
    c = llama(
        architectures=["Ernie4_5ForCausalLM"],
        model_type="ernie4_5",
        **HEADS_OF_32,
        pad_token_id=EOT,
        rope_theta=500000.0,
        tie_word_embeddings=True,
        use_bias=True,
    )
    return without(c | kw, *LLAMA_ONLY, "rope_scaling")


def ernie4_5_moe(**kw):
    c = ernie4_5(
        architectures=["Ernie4_5_MoeForCausalLM"],
        model_type="ernie4_5_moe",
        hidden_size=64,
        moe_capacity=[64, 64, 64],
        moe_gate="topk",
        moe_intermediate_size=16,
        moe_k=3,
        moe_layer_end_index=-1,
        moe_layer_interval=1,
        moe_layer_start_index=1,
        moe_num_experts=8,
        moe_num_shared_experts=2,
        moe_use_aux_free=True,
        use_bias=False,
        num_hidden_layers=3,
    )
    return without(c | kw, "head_dim")


def dots1(**kw):
    c = glm4_moe(
        architectures=["Dots1ForCausalLM"],
        model_type="dots1",
        attention_bias=False,
        eos_token_id=EOT,
        max_window_layers=2,
        norm_topk_prob=True,
        scoring_func="sigmoid",
        sliding_window=16,
    )
    return without(c | kw, "num_nextn_predict_layers", "partial_rotary_factor", "use_qk_norm")


def hunyuan_rope(**kw):
    c = dict(alpha=1000.0, beta_fast=32, beta_slow=1, factor=1.0, mscale=1.0, mscale_all_dim=1.0, type="dynamic")
    return c | kw


def hunyuan(**kw):
    c = llama(
        architectures=["HunYuanDenseV1ForCausalLM"],
        model_type="hunyuan_v1_dense",
        **HEADS_OF_32,
        attention_bias=True,
        pad_token_id=EOT,
        rope_scaling=hunyuan_rope(),
        use_cla=False,
        use_qk_norm=True,
    )
    return without(c | kw, "mlp_bias", "pretraining_tp")


def hunyuan_moe(**kw):
    c = hunyuan(
        architectures=["HunYuanMoEV1ForCausalLM"],
        model_type="hunyuan_v1_moe",
        attention_bias=False,
        intermediate_size=24,
        moe_intermediate_size=[24, 24],
        moe_topk=[2, 2],
        num_experts=8,
        num_shared_expert=[1, 1],
        use_mixed_mlp_moe=True,
    )
    return c | kw


def exaone4(**kw):
    """Of four layers the last sees all tokens, and does not rotate."""
    c = llama(
        architectures=["Exaone4ForCausalLM"],
        model_type="exaone4",
        **HEADS_OF_32,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
        num_hidden_layers=4,
        rope_theta=1000000,
        sliding_window=16,
        sliding_window_pattern="LLLG",
    )
    return without(c | kw, *LLAMA_ONLY)


def olmoe(**kw):
    c = olmo2(
        architectures=["OlmoeForCausalLM"],
        model_type="olmoe",
        **TWO_TO_ONE,
        clip_qkv=1.5,
        hidden_size=64,
        intermediate_size=16,
        norm_topk_prob=False,
        num_experts=8,
        num_experts_per_tok=3,
        output_router_logits=False,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        router_aux_loss_coef=0.01,
    )
    return c | kw


def kimi_k25():
    """Kimi-K2 that also sees: DeepSeek-V3 in an object of its own."""
    text = without(
        deepseek_v3(
            model_type="kimi_k2", n_group=1, num_hidden_layers=2, num_nextn_predict_layers=0, topk_group=1
        ),
        "architectures",
        "torch_dtype",
        "transformers_version",
    )
    return dict(
        architectures=["KimiK25ForConditionalGeneration"],
        eos_token_id=EOT,
        model_type="kimi_k25",
        text_config=text | dict(dtype="bfloat16"),
        tie_word_embeddings=False,
        transformers_version="4.57.1",
        vision_config=dict(
            hidden_size=8,
            intermediate_size=8,
            model_type="kimi_k25_vision",
            num_attention_heads=1,
            num_hidden_layers=1,
            patch_size=4,
            pos_emb_height=2,
            pos_emb_time=1,
            pos_emb_width=2,
        ),
    )


# Experts small enough that one chosen otherwise in bfloat16 does little.
MOE_GAIN = {"mlp.gate.": 0.5, "mlp.experts.down_proj": 0.4}
# And scores so flat that a block chosen otherwise does little, too.
M3_GAIN = {"mlp.gate.": 0.4, "mlp.experts.down_proj": 0.1, "self_attn.q_proj": 0.3, "o_proj": 0.3, "v_proj": 0.7}
VL_MOE_GAIN = {"mlp.gate.": 0.4, "mlp.experts.down_proj": 0.15}

MODELS = {
    "glm4_moe": dict(
        config=glm4_moe(),
        gain=MOE_GAIN,
        steady=True,
        off=dict(
            norm=dict(use_qk_norm=False),
            partial=dict(partial_rotary_factor=1.0),
            groups=dict(n_group=1),
            norm_topk_prob=dict(norm_topk_prob=False),
            scale=dict(routed_scaling_factor=1.0),
            rope=dict(rope_theta=10000.0),
        ),
    ),
    # As GLM-4.5-Air: without norms of q and K, and without groups.
    "glm4_moe_air": dict(
        config=glm4_moe(
            first_k_dense_replace=0,
            n_group=1,
            num_hidden_layers=2,
            routed_scaling_factor=1.0,
            use_qk_norm=False,
        ),
        gain=MOE_GAIN,
        steady=True,
        spelling="tf5",
    ),
    "minimax_m2": dict(
        config=minimax_m2(),
        gain=MOE_GAIN,
        steady=True,
        off=dict(
            partial=dict(rotary_dim=32),
            rope=dict(rope_theta=10000.0),
            experts=dict(num_experts_per_tok=1),
        ),
    ),
    "ministral3": dict(
        config=ministral3(),
        off=dict(
            temper=dict(rope_parameters=ministral_rope(llama_4_scaling_beta=0.0)),
            every=dict(
                rope_parameters=ministral_rope(llama_4_scaling_beta=0.5, original_max_position_embeddings=64)
            ),
        ),
    ),
    "mistral3": dict(config=mistral3(mistral_small())),
    # As Ministral 3's smallest: tied, as its language model says.
    "mistral3_ministral": dict(
        config=mistral3(
            ministral3(tie_word_embeddings=True, rope_parameters=ministral_rope(llama_4_scaling_beta=0.5)),
            tie_word_embeddings=True,
        ),
        off=dict(temper=dict(text_config=dict(rope_parameters=ministral_rope(llama_4_scaling_beta=0.0)))),
    ),
    "qwen3_vl": dict(
        config=qwen3_vl(
            without(
                qwen3(head_dim=32, num_attention_heads=4, rope_scaling=MROPE, rope_theta=5000000, hidden_size=32),
                *NO_WINDOW,
            ),
            "qwen3_vl",
        ),
    ),
    # As hubs store experts, and as transformers 5 does.
    "qwen3_vl_moe": dict(
        config=qwen3_vl_moe(), gain=VL_MOE_GAIN, steady=True, columns_first=True
    ),
    "qwen3_vl_moe_tf5": dict(
        config=qwen3_vl_moe(), gain=VL_MOE_GAIN, steady=True, spelling="tf5"
    ),
    "gemma": dict(
        config=gemma(),
        seed=108001,
        gain=GEMMA_GAIN,
        off=dict(gelu=dict(hidden_act="silu"), head=dict(rope_theta=1000.0)),
    ),
    "seed_oss": dict(config=seed_oss(), off=dict(rope=dict(rope_theta=10000.0))),
    "olmo3": dict(
        config=olmo3(),
        off=dict(
            window=dict(sliding_window=4096),
            layers=dict(layer_types=["full_attention"] + ["sliding_attention"] * 3),
            yarn=dict(rope_scaling=None),
        ),
    ),
    "ernie4_5": dict(config=ernie4_5(), off=dict(rope=dict(rope_theta=10000.0))),
    # A sum of probabilities below the least is divided by that.
    "ernie4_5_moe": dict(
        config=ernie4_5_moe(moe_norm_min=0.9),
        gain={"mlp.gate.weight": 0.5, "mlp.experts.down_proj": 0.4, "e_score": 1.0},
        steady=True,
        off=dict(
            least=dict(moe_norm_min=1e-12),
            sparse=dict(moe_layer_start_index=2),
            interval=dict(moe_layer_interval=2),
        ),
    ),
    "dots1": dict(
        config=dots1(),
        gain=MOE_GAIN,
        steady=True,
        off=dict(
            groups=dict(n_group=1),
            norm_topk_prob=dict(norm_topk_prob=False),
            scale=dict(routed_scaling_factor=1.0),
            window=dict(sliding_window=None),
        ),
    ),
    "hunyuan": dict(
        config=hunyuan(),
        gain={"query_layernorm": 1.4, "key_layernorm": 1.4},
        off=dict(alpha=dict(rope_scaling=hunyuan_rope(alpha=2.0))),
    ),
    "hunyuan_moe": dict(
        config=hunyuan_moe(),
        gain={"query_layernorm": 1.4, "key_layernorm": 1.4, "mlp.experts.down_proj": 0.4},
        steady=True,
        off=dict(experts=dict(moe_topk=1)),
    ),
    "exaone4": dict(
        config=exaone4(),
        off=dict(
            window=dict(sliding_window=4096),
            layers=dict(layer_types=["full_attention"] + ["sliding_attention"] * 3),
            rope=dict(rope_theta=10000.0),
        ),
    ),
    # Without a window all layers rotate and see all tokens.
    "exaone4_full": dict(
        config=without(
            exaone4(num_hidden_layers=2, sliding_window=None, layer_types=["full_attention"] * 2),
            "sliding_window_pattern",
        ),
        spelling="tf5",
    ),
    "olmoe": dict(
        config=olmoe(),
        gain=MOE_GAIN,
        steady=True,
        off=dict(
            clip=dict(clip_qkv=None),
            norm_topk_prob=dict(norm_topk_prob=True),
        ),
    ),
    "kimi_k25": dict(
        config=kimi_k25(),
        transformers_class="Kimi_K25ForConditionalGeneration",
        gain=MLA_GAIN,
        steady=True,
    ),
    # Blocks of 8 keys, of which each KV head has the last and 2 others.
    "minimax_m3": dict(
        config=minimax_m3(),
        seed=150000,
        gain=M3_GAIN,
        off=dict(
            blocks=dict(sparse_attention_config=dict(sparse_attention_freq=[0, 0, 0])),
            size=dict(sparse_attention_config=M3_BLOCKS | dict(sparse_block_size=4)),
            top_k=dict(sparse_attention_config=M3_BLOCKS | dict(sparse_topk_blocks=2)),
            layers=dict(sparse_attention_config=M3_BLOCKS | dict(sparse_attention_freq=[1, 1, 0])),
            scale=dict(routed_scaling_factor=1.0),
            experts=dict(num_experts_per_tok=1),
        ),
    ),
    # Heads and index keys as released models have them.
    "minimax_m3_hd128": dict(
        config=minimax_m3(
            head_dim=128,
            hidden_size=24,
            moe_layer_freq=[0, 1],
            num_hidden_layers=2,
            rotary_dim=64,
            sparse_attention_config=M3_BLOCKS
            | dict(sparse_attention_freq=[0, 1], sparse_index_dim=128),
        ),
        seed=152000,
        gain=M3_GAIN,
        off=dict(
            blocks=dict(sparse_attention_config=dict(sparse_attention_freq=[0, 0])),
            top_k=dict(
                sparse_attention_config=M3_BLOCKS
                | dict(sparse_attention_freq=[0, 1], sparse_index_dim=128, sparse_topk_blocks=2)
            ),
        ),
    ),
    "minimax_m3_conditional": dict(
        config=minimax_m3_conditional(),
        transformers_class="MiniMaxM3SparseForConditionalGeneration",
        seed=151000,
        gain=M3_GAIN,
    ),
}
