#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_pull_gguf.sh MINISGL MODEL [PYTHON]: which GGUF files of a hub's model are downloaded, whole and in parts.
# shellcheck source=tests/cli/hub_setup.sh
. "$(dirname "$0")/hub_setup.sh"
vectors=$(cd "$(dirname "$0")/../vectors/gguf" && pwd)
served="$dir/served"
mkdir -p "$served/Q8_0"
for no in 1 2 3; do cp "$vectors/split/llama-q8_0-0000$no-of-00003.gguf" "$served/Q8_0/m-Q8_0-0000$no-of-00003.gguf"; done
cp "$vectors/qwen3-f16.gguf" "$served/m-F16.gguf"
cp "$vectors/qwen2-bf16.gguf" "$served/m-BF16.gguf"
cp "$vectors/llama-f32.gguf" "$served/mmproj-m-F16.gguf"
echo x >"$served/m-q4_k_m.gguf"
parts="$dir/parts" beside="$dir/beside"
mkdir -p "$parts/Q4_K_M" "$beside"
for no in 1 2 3; do cp "$served/Q8_0/m-Q8_0-0000$no-of-00003.gguf" "$parts/Q4_K_M/m-Q4_K_M-0000$no-of-00003.gguf"; done
cp "$vectors/qwen3-f16.gguf" "$parts/m-Q8_0.gguf"
cp "$vectors/llama-f32.gguf" "$beside/mmproj-m-Q4_K_M.gguf"

for source in huggingface modelscope; do
    export MINISGL_MODEL_SOURCE=$source
    snapshot="$HF_HOME/hub/models--org--small/snapshots/$commit"
    [ $source = huggingface ] || snapshot="$MODELSCOPE_CACHE/models/org--small/snapshots/master"
    first="$snapshot/Q8_0/m-Q8_0-00001-of-00003.gguf"
    fresh "folder=$served"
    expect "a type, in parts" 0 "^$first\$" "$minisgl" pull org/small:q8_0
    expect "all parts and nothing else" 0 "^3$" log "^store"
    expect "it runs" 0 "LlamaForCausalLM" env HF_HUB_OFFLINE=1 "$minisgl" info org/small:Q8_0
    expect "under no type, what is here" 0 "^$first\$" env HF_HUB_OFFLINE=1 "$minisgl" pull org/small
    expect "under any part's name" 0 "^$first\$" env HF_HUB_OFFLINE=1 "$minisgl" pull org/small/Q8_0/m-Q8_0-00003-of-00003.gguf
    expect "another type is not here" 1 "org/small:BF16 (revision .*) is not in the cache" env HF_HUB_OFFLINE=1 \
        "$minisgl" pull org/small:BF16
    rm "$snapshot/Q8_0/m-Q8_0-00002-of-00003.gguf"
    expect "a part is missing here" 1 "is not in the cache" env HF_HUB_OFFLINE=1 "$minisgl" pull org/small:Q8_0
    expect "and comes" 0 "^$first\$" "$minisgl" pull org/small/Q8_0/m-Q8_0-00002-of-00003.gguf
    expect "F16 is no BF16, and no projector" 0 "^$snapshot/m-F16.gguf\$" "$minisgl" pull org/small:F16
    expect "BF16" 0 "Qwen2ForCausalLM" "$minisgl" info org/small:bf16
    expect "no such type" 1 "has no .gguf file of type Q5_K; its 4 are Q8_0/.*, m-BF16.gguf, m-F16.gguf, \.\.\.\$" "$minisgl" pull org/small:Q5_K
    expect "no such file" 1 "org/small has no file none.gguf" "$minisgl" pull org/small/none.gguf
    fresh "folder=$served"
    expect "no type: Q4_K_M, and how to have another" 0 \
        "org/small has 4 GGUF models: m-q4_k_m.gguf is taken; org/small:TYPE or org/small/FILE.gguf names another" "$minisgl" pull org/small
    expect "its path" 0 "^$snapshot/m-q4_k_m.gguf\$" env HF_HUB_OFFLINE=1 "$minisgl" pull org/small
    expect "nothing else" 0 "^1$" log "^store"
    expect "Q4_K_M by name" 0 "^$snapshot/m-q4_k_m.gguf\$" env HF_HUB_OFFLINE=1 "$minisgl" pull org/small:Q4_K_M
    fresh "folder=$parts"
    expect "no type: Q4_K_M in parts, in a folder, before Q8_0" 0 "^$snapshot/Q4_K_M/m-Q4_K_M-00001-of-00003.gguf\$" "$minisgl" pull org/small
    expect "all of its parts" 0 "^3$" log "^store"
    expect "a command that starts from it" 0 "LlamaForCausalLM" "$minisgl" info org/small
    fresh "folder=$beside"
    expect "a projector alone" 1 "org/small has no model: found mmproj-m-Q4_K_M.gguf, allowed .* other than projectors (mmproj)" "$minisgl" pull org/small
    expect "nor of a type" 1 "org/small has no model: found mmproj-m-Q4_K_M.gguf" "$minisgl" pull org/small:Q4_K_M
    expect "nothing came" 1 "^0$" log "^store"
done

fresh "folder=$served"
expect "a word that is no type" 1 "behind \":\" only the type of a .gguf file" "$minisgl" pull "org/small:a/b"
rm "$served/Q8_0/m-Q8_0-00002-of-00003.gguf"
expect "a part is missing there" 1 "org/small has 2 of the 3 files that .*00001-of-00003.gguf is one of" "$minisgl" pull org/small:Q8_0
rm -r "$served/Q8_0" "$served/m-F16.gguf" "$served/m-BF16.gguf"
mv "$served/m-q4_k_m.gguf" "$served/m-Q5_K_M.gguf"
expect "one alone is taken" 0 "m-Q5_K_M.gguf\$" "$minisgl" pull org/small
cp "$served/m-Q5_K_M.gguf" "$served/m-Q6_K.gguf"
fresh "folder=$served"
expect "of two of other types the first, which is said" 0 "org/small has 2 GGUF models: m-Q5_K_M.gguf is taken" "$minisgl" pull org/small
cp "$model/"*.safetensors* "$model/config.json" "$served"
cp "$vectors/qwen3-f16.gguf" "$served/m-Q4_K_M.gguf"
fresh "folder=$served"
expect "safetensors before GGUF" 0 "org--small/snapshots/master\$" "$minisgl" pull org/small
expect "no GGUF file came" 1 "^0$" log "\.gguf"
expect "but by its type" 0 "m-Q4_K_M.gguf\$" "$minisgl" pull org/small:Q4_K_M
fresh
expect "a type of what has none" 1 "org/small has no \*.gguf" "$minisgl" pull org/small:Q8_0
expect "the stand-in had no errors" 1 "^0$" sh -c "grep -v 'BrokenPipe\|ConnectionReset' \"$dir/server\" | grep -c Error"

echo "$passed passed, $failed failed (hub $port, store $store)"
[ $failed -eq 0 ]
