# SPDX-License-Identifier: Apache-2.0
"""Models with several residual streams, for make_model_vectors.py. `seed` keeps a model's weights whatever else is
in the list."""

from model_vector_configs import EOT, TWO_TO_ONE, qwen3_5_conditional, qwen3_5_moe, without

SPACE = 220  # in a prompt's text: n-grams end at it, as it is the first of the model's ends
PLE = dict(
    heads_per_ngram=2,
    make_ngram_vocab_size_divisible_by=8,
    ngram_size=3,
    ngram_vocab_size_base=40,
    ple_conv_kernel_size=4,
    ple_embed_dim=32,
    ple_layer_ids=[1],
    split_ngram_parts=5,
)
QSA = dict(
    indexer_budget=16,
    indexer_compress_ratio=4,
    indexer_head_dim=16,
    indexer_kv_heads=1,
    indexer_n_heads=3,
)


def qwen4_exp(**kw):
    """As transformers' Qwen4ExpTextConfig, which is what text_config of the files is."""
    c = qwen3_5_moe(
        architectures=["Qwen4ExpForCausalLM"],
        model_type="qwen4_exp_text",
        eos_token_id=[SPACE, EOT],
        hc_count=3,
        hc_lowrank=8,
        head_dim=32,
        hidden_size=32,
        layer_types=["linear_attention", "full_attention"],
        linear_key_head_dim=16,
        linear_num_value_heads=4,
        norm_topk_prob=True,
        num_hidden_layers=2,
        **TWO_TO_ONE,
        output_gate_type="sigmoid",
        rope_parameters=dict(
            mrope_interleaved=True,
            mrope_section=[2, 1, 1],
            partial_rotary_factor=0.25,
            rope_theta=10000000,
            rope_type="default",
        ),
        seed=1234,
    )
    return c | PLE | QSA | kw


def conditional(text):
    """The whole of a model that sees."""
    c = qwen3_5_conditional(text)
    c["model_type"] = "qwen4_exp"
    c["vision_config"]["model_type"] = "qwen4_exp_vision"
    return c


GAIN = {
    "linear_attn.out_proj": 0.6,
    "mlp.experts.down_proj": 0.1,
    "mlp.gate.": 0.4,
    "lm_head": 1.6,
    "self_attn.o_proj": 1.3,
    "self_attn.v_proj": 1.3,
}

STREAMS = {
    # Blocks of 4 keys, of which a token has 4 beside those behind the last whole one.
    "qwen4_exp": dict(
        config=qwen4_exp(),
        seed=950000,
        gain=GAIN,
        mtp=True,
        steady=True,
        untied=True,
        off=dict(
            budget=dict(indexer_budget=8),
            ratio=dict(indexer_compress_ratio=2),
            gate=dict(output_gate_type=None),
            ends=dict(eos_token_id=EOT),
            ngrams=dict(ple_layer_ids=[]),
        ),
    ),
    # Two layers with n-grams, the second of which continues the first one's primes; bigrams alone.
    "qwen4_exp_ngrams": dict(
        config=qwen4_exp(
            full_attention_interval=3,
            layer_types=None,
            num_hidden_layers=3,
            output_gate_type=None,
            ngram_size=2,
            ple_conv_kernel_size=3,
            ple_layer_ids=[2, 1],
            split_ngram_parts=1,
        ),
        seed=951000,
        gain=GAIN,
        spelling="tf5",
        steady=True,
        untied=True,
    ),
    # Neither n-grams nor an index: attention to all keys, which a budget of 128 is here.
    "qwen4_exp_full": dict(
        config=without(qwen4_exp(indexer_budget=128), *PLE),
        seed=953000,
        gain=GAIN,
        no_index=True,
        steady=True,
    ),
    # Without n-grams; the index alone.
    "qwen4_exp_conditional": dict(
        config=conditional(
            without(
                qwen4_exp(
                    layer_types=["indexed_attention", "linear_attention"],
                    indexer_budget=20,
                    indexer_compress_ratio=5,
                ),
                *PLE,
            )
        ),
        seed=952000,
        gain=GAIN,
        steady=True,
        untied=True,
    ),
}
