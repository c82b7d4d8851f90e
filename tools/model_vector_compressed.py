# SPDX-License-Identifier: Apache-2.0
"""Models whose layers attend to compressed keys (DeepSeek-V4), for make_model_vectors.py. The
prompt's 64 tokens close 16 windows of 4 and 8 of 8, and no layer's window reaches them all."""

from model_vector_configs import BOS, IM_END, VOCAB, without

SLIDING, SPARSE, HEAVY = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)


def deepseek_v4(**kw):
    """As the files of DeepSeek-V4 spell it, but for the rates, which theirs leave out."""
    c = dict(
        architectures=["DeepseekV4ForCausalLM"],
        attention_bias=False,
        attention_dropout=0.0,
        bos_token_id=BOS,
        compress_rates={SPARSE: 4, HEAVY: 8},
        compress_ratios=[0, 4, 128],
        compress_rope_theta=160000,
        eos_token_id=IM_END,
        hc_eps=1e-6,
        hc_mult=4,
        hc_sinkhorn_iters=20,
        head_dim=16,
        hidden_act="silu",
        hidden_size=32,
        index_head_dim=16,
        index_n_heads=4,
        index_topk=3,
        initializer_range=0.02,
        max_position_embeddings=128,
        model_type="deepseek_v4",
        moe_intermediate_size=16,
        n_routed_experts=4,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_attention_heads=4,
        num_experts_per_tok=2,
        num_hash_layers=2,
        num_hidden_layers=3,
        num_key_value_heads=1,
        o_groups=2,
        o_lora_rank=12,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        rms_norm_eps=1e-6,
        rope_scaling=dict(
            beta_fast=32,
            beta_slow=1,
            factor=16,
            original_max_position_embeddings=32,
            type="yarn",
        ),
        rope_theta=10000,
        routed_scaling_factor=1.5,
        scoring_func="sqrtsoftplus",
        sliding_window=8,
        swiglu_limit=10.0,
        tie_word_embeddings=False,
        topk_method="noaux_tc",
        torch_dtype="bfloat16",
        transformers_version="4.57.1",
        use_cache=True,
        vocab_size=VOCAB,
    )
    return c | kw


GAIN = {"position_bias": 5.0, "sinks": 2.0, "_hc.base": 4.0, "_hc.fn": 0.5, "mlp.experts.": 0.5, "o_b_proj": 0.7}

COMPRESSED = {
    "deepseek_v4": dict(
        config=deepseek_v4(),
        seed=1000000,
        gain=GAIN,
        steady=True,
        off=dict(
            kinds=dict(compress_ratios=[0, 0, 128]),
            heavy=dict(compress_ratios=[0, 4, 0]),
            window=dict(sliding_window=6),
            top_k=dict(index_topk=2),
            theta=dict(compress_rope_theta=100.0),
            scaling=dict(rope_scaling=None),
            streams=dict(hc_sinkhorn_iters=1),
            scale=dict(routed_scaling_factor=1.0),
            limit=dict(swiglu_limit=0.5),
        ),
    ),
    # Two streams, a hash in the last layer alone, no sliding layer and no scaling of positions.
    "deepseek_v4_tf5": dict(
        config=without(
            deepseek_v4(
                compress_rates={SPARSE: 3, HEAVY: 10},
                hc_mult=2,
                hc_sinkhorn_iters=3,
                index_head_dim=8,
                layer_types=[HEAVY, SPARSE],
                mlp_layer_types=["moe", "hash_moe"],
                num_attention_heads=2,
                num_hidden_layers=2,
                o_groups=1,
                rope_scaling=None,
                sliding_window=5,
            ),
            "compress_ratios",
            "num_hash_layers",
        ),
        seed=1001001,
        gain=GAIN,
        spelling="tf5",
        steady=True,
        off=dict(
            window=dict(sliding_window=4),
            hash=dict(mlp_layer_types=["moe", "moe"]),
            streams=dict(hc_sinkhorn_iters=1),
            top_k=dict(index_topk=2),
        ),
    ),
}
