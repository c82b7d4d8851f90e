#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_info.sh MINISGL PLUGINS: what `minisgl info` says of each attention backend on GPUs that are not
# here, from stub plug-ins: "yes" only where it can start.
set -u
minisgl=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

model() { # HEADS KV_HEADS HEAD_DIM DTYPE
    cat >"$dir/config.json" <<END
{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "intermediate_size": 64,
 "max_position_embeddings": 4096, "num_attention_heads": $1, "num_hidden_layers": 2,
 "num_key_value_heads": $2, "head_dim": $3, "rms_norm_eps": 1e-06, "torch_dtype": "$4",
 "vocab_size": 32}
END
}
# here CAPABILITY BACKEND TEXT: the last column of the backend's row.
here() {
    MINISGL_PLUGIN_DIR=$plugins STUB_CAPABILITY=$1 "$minisgl" info --model "$dir" -o md >"$dir/out" 2>&1
    if ! grep -q "^| cuda | $2 |.*| $3 |\$" "$dir/out"; then
        failed=$((failed + 1))
        echo "FAILED: capability $1, $2: expected \"$3\" in:"
        grep "^| cuda | $2 |" "$dir/out" || cat "$dir/out"
    fi
}

plugins=$2
model 32 8 128 bfloat16
for capability in 80 89 90 100 120; do
    here $capability fa yes
    here $capability "fi" yes
    here $capability torch_native yes
    here $capability triton yes
done
here 90 trtllm yes
here 80 trtllm "attention backend trtllm needs compute capability 9.0; this GPU has 8.0"
here 100 trtllm "trtllm: its decode kernel is compiled for Hopper (9.0) only; this GPU has 10.0; .*"
model 96 8 128 bfloat16
here 90 "fi" yes
here 90 trtllm "trtllm: no kernel for bfloat16, head_dim 128, 12 query heads per KV head and pages of 64"
model 8 8 96 bfloat16
here 90 fa yes
here 90 "fi" "attention backend fi: no kernel for head_dim 96"
model 8 8 128 float32
here 90 fa yes
here 90 "fi" "attention backend fi: no kernel for a KV cache of float32; those that have one here: fa, torch_native"
cp "$2/minisgl-cuda.so" "$dir" && ln -s "$2/trtllm/minisgl-attn-trtllm.so" "$dir"
plugins=$dir
model 32 8 128 bfloat16
here 90 fa yes
here 90 trtllm yes
here 90 "fi" "attention backend fi: minisgl-attn-fi.so is not in $dir; .*"

[ $failed -eq 0 ] && echo "info: ok"
exit $failed
