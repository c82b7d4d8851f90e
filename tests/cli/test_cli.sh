#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_cli.sh MINISGL MODEL: the commands as a user types them, right and wrong.
set -u
minisgl=$1
model=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck source=tests/cli/expect.sh
. "$(dirname "$0")/expect.sh"

same() { # NAME FILE FILE
    if cmp -s "$2" "$3"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $1"
        diff "$2" "$3" | head -5
    fi
}

expect "no command" 2 "usage: minisgl COMMAND" "$minisgl"
expect "help" 0 "usage: minisgl COMMAND" "$minisgl" --help
expect "help of a command" 0 "MINISGL_MAX_TOKENS" "$minisgl" run --help
expect "version" 0 "^minisgl [0-9]" "$minisgl" --version
expect "open to all" 1 "api-key-file FILE makes them need a key, --insecure lets them" \
    "$minisgl" serve --model "$model" --host 0.0.0.0 --port 0
expect "a key that is none" 1 "API key 1 is not valid" "$minisgl" serve --model "$model" --port 0 --api-key "a b"
expect "any page without a key" 1 "any web page" "$minisgl" serve --model "$model" --port 0 --cors-origin '*'
expect "salts of no keys" 1 "cache-salt-by-key needs keys" "$minisgl" serve --model "$model" --port 0 --cache-salt-by-key
expect "unknown command" 2 "unknown command \"serv\"" "$minisgl" serv
expect "help of a command by its name" 0 "MINISGL_MAX_TOKENS" "$minisgl" help run
expect "help of no command" 2 "unknown command \"serv\"" "$minisgl" help serv
expect "version, in short" 0 "^minisgl [0-9]" "$minisgl" -V
expect "mistyped flag" 2 "did you mean --model?" "$minisgl" run --modle x
expect "no model" 1 "\-\-model PATH is needed" "$minisgl" run --prompt x
expect "no such model" 1 "no such folder" "$minisgl" run --model "$dir/none" --prompt x
expect "a file as model" 1 "test_cli.sh: not a GGUF file" "$minisgl" run --model "$0" --prompt x
expect "an empty folder" 1 "config.json\|tokenizer.json" "$minisgl" run --model "$dir" --prompt x
expect "nothing to run" 2 "give either --prompt" "$minisgl" run --model "$model"
expect "unknown backend" 1 "fa, fi" "$minisgl" run --model "$model" --attn fax --prompt x
expect "a pair for a half" 1 "minisgl: --prefill-attention-backend is \"fa,fi\"; allowed: one backend" "$minisgl" run \
    --model "$model" --prefill-attention-backend fa,fi --prompt x
expect "malformed pair" 1 "PREFILL,DECODE" "$minisgl" run --model "$model" --attn a,b,c --prompt x
expect "unknown level" 1 "allowed: ref" env MINISGL_CPU=sse9 "$minisgl" run --model "$model" --prompt x
expect "prompt too long" 1 "tokens" "$minisgl" run --model "$model" --max-seq-len-override 8 --prompt \
    "one two three four five six seven eight nine ten eleven twelve"
expect "calibrate without a text" 2 "\-\-text FILE, -o FILE" "$minisgl" calibrate --model "$model"
expect "calibrate on no file" 1 "none.txt" "$minisgl" calibrate --model "$model" --text "$dir/none.txt" -o "$dir/channels"
echo "a few words of text, and some more of it, to look at" >"$dir/text"
expect "calibrate" 0 "channels: channels from [0-9]* tokens" "$minisgl" calibrate --model "$model" --text "$dir/text" \
    -o "$dir/channels" --num-pages 4096 --max-seq-len-override 9
expect "the channels' form" 0 '"model.layers.0.self_attn.qk_proj": \[\[[0-9]*, ' cat "$dir/channels"
expect "double sparsity without channels" 1 "minisgl calibrate --model DIR" "$minisgl" run --model "$model" \
    --attn double_sparsity --prompt x
expect "double sparsity" 0 '"token_ids":' "$minisgl" run --model "$model" --attn triton --enable-double-sparsity \
    --ds-channel-config-path "$dir/channels" --ds-heavy-channel-num 8 --ds-heavy-token-num 2 \
    --ds-sparse-decode-threshold 0 --prompt "a few words of text" --max-tokens 4 --num-pages 4096
expect "info" 0 "^  torch_native  *yes " "$minisgl" info "$model"
expect "info without a GPU" 0 "^  flashmla  *-  *-  " env MINISGL_PLUGIN_DIR="$dir" "$minisgl" info "$model"
expect "info, why not" 0 "not here: attention backend flashmla: no kernel for layers that keep" "$minisgl" info "$model" --verbose
expect "info, one line for a backend" 0 "^1$" sh -c "'$minisgl' info '$model' | grep -c '^  fa '"
expect "info in 100 columns" 1 "^0$" sh -c "{ '$minisgl' info '$model'; '$minisgl' info; } | sed 1,6d | grep -c '.\{101\}'"
expect "info as CSV" 0 '^cpu,fi,"FlashInfer: ragged token indices, .* per batch",' "$minisgl" info "$model" -o csv
expect "info as a table" 0 "^| cpu | fa | FlashAttention: .*| yes |$" "$minisgl" info "$model" -o md
if command -v groff >/dev/null; then
    expect "a manual page without warnings" 1 "^0$" sh -c "'$minisgl' help --man | groff -man -Tutf8 -ww 2>&1 >/dev/null | grep -c ."
fi
# A pipe whose reader has gone ends as with other tools: by SIGPIPE, without a word.
expect "a reader that has gone" 141 "^quiet$" python3 -c '
import subprocess, sys
reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
reader.wait()
run = subprocess.run(sys.argv[1:], stdout=reader.stdin, stderr=subprocess.PIPE)
print(run.stderr.decode() or "quiet")
sys.exit(128 - run.returncode)' "$minisgl" help --man
expect "bench step" 0 '"phase":"decode"' "$minisgl" bench step --model "$model" --prompt-len 16 \
    --batch 1,2 --steps 4 --repeat 1 -o json
expect "bench step, mixed" 0 '"phase":"mixed","batch":2,"prompt_len":16,"chunk":8,' "$minisgl" bench step \
    --model "$model" --prompt-len 16 --batch 2 --chunk 8,16 --steps 4 --repeat 1 -o json
expect "bench step, chunk beyond the prompt" 2 "chunk is \"17\"; allowed: up to 63 numbers from 1 to 16" \
    "$minisgl" bench step --model "$model" --prompt-len 16 --chunk 17
# At acceptance 0 an answer gets one token a step, at 1 all drafts and one more.
"$minisgl" bench step --model "$model" --prompt-len 16 --batch 1,3 --steps 8 --repeat 2 --accept 0.0,1 --drafts 3 -o json >"$dir/rows" 2>"$dir/said"
expect "bench step, drafts" 0 '"batch":3,"prompt_len":16,"drafts":3,"set_acceptance":0.0,"tokens_per_step":1.0,' cat "$dir/rows"
expect "bench step, all drafts accepted" 0 '"batch":1,.*"set_acceptance":1.0,"tokens_per_step":4.0,.*"step_ratio":.*"speedup":' cat "$dir/rows"
expect "bench step, a row each" 0 "^4$" grep -c '"phase":"drafts"' "$dir/rows"
expect "bench step says that acceptance is set" 0 "acceptance is set, by random numbers, and not measured" cat "$dir/said"
expect "bench step, acceptance above 1" 2 'accept is "0.5,1.5"; allowed: up to 32 numbers from 0 to 1' \
    "$minisgl" bench step --model "$model" --accept 0.5,1.5
expect "bench step, drafts beside a chunk" 2 "accept: not with --chunk" "$minisgl" bench step --model "$model" --accept 1 --chunk 4
expect "bench step, drafts in the grid" 2 "accept: not with --grid" "$minisgl" bench step --model "$model" --accept 1 --grid
expect "bench step, drafts without acceptance" 2 "drafts: only with --accept" "$minisgl" bench step --model "$model" --drafts 4
expect "bench step, too many drafts" 1 "batch 8 x --drafts 63 is 504 drafts a step; allowed: up to 256" \
    "$minisgl" bench step --model "$model" --prompt-len 16 --steps 8 --batch 8 --accept 1 --drafts 63
expect "bench step, drafts of a recurrent model" 0 '"tokens_per_step":5.0,' "$minisgl" bench step \
    --model "$(dirname "$0")/../vectors/models/qwen3_next" --dummy-weight --accept 1 --prompt-len 16 --steps 40 --batch 1 -o json
expect "bench step, grid" 0 '"phase":"mixed","batch":2,"context":8,"chunk":4,"prefix":0,"tile":8,"ms_per_step":' "$minisgl" bench step \
    --model "$model" --grid --prompt-len 16 --batch 1,2 --chunk 4,8 --repeat 1 -o json
cp "$dir/out" "$dir/grid" && grep '^{' "$dir/grid" >"$dir/steps.jsonl"
expect "the grid is a table of all three kinds" 0 "^16$" grep -c '"phase":"\(decode\|prefill\|mixed\)"' "$dir/steps.jsonl"
for turn in 1 2 3; do
    for session in a b c; do
        echo "{\"timestamp\":5,\"input_length\":100,\"output_length\":$turn,\"session_id\":\"$session\"}"
    done
done >"$dir/trace.jsonl"
# Prompts of 100, 201 and 303 tokens, of which the cache has all but the last of the turn before.
simulated='"requests":9,"failed":0,.*"prompt_tokens":1812,"cached_tokens":906,"output_tokens":18,"cache_hit_pct":50.0,'
expect "simulate" 0 "\"replicas\":1,\"routing\":\"cache_aware\",$simulated" "$minisgl" simulate --step-table "$dir/steps.jsonl" \
    --trace "$dir/trace.jsonl" --num-pages 4096 -o json
expect "simulate with clients and a price" 0 "$simulated.*cost_per_m_output_tokens" "$minisgl" simulate \
    --step-table "$dir/steps.jsonl" --trace "$dir/trace.jsonl" --num-pages 4096 --clients 1 --price 2.5 -o json
expect "simulate, one row for each number" 0 "^| 3 | total_tokens | 9 | 0 |" "$minisgl" simulate --step-table "$dir/steps.jsonl" \
    --trace "$dir/trace.jsonl" --num-pages 4096 --replicas 1,3 --load-balance-method total_tokens
# Each token of an answer but the first is a step's or an accepted draft.
for output in 190 200 210; do echo "{\"timestamp\":0,\"input_length\":64,\"output_length\":$output}"; done >"$dir/repeats.jsonl"
expect "simulate with drafts" 0 '"output_tokens":600,.*"retracted":0,"drafted_tokens":[1-9][0-9]*,"accepted_tokens":[1-9]' "$minisgl" simulate \
    --step-table "$dir/steps.jsonl" --trace "$dir/repeats.jsonl" --num-pages 4096 --speculative-algorithm NGRAM --acceptance 1 -o json
expect "simulate with drafts of nothing" 0 '"drafted_tokens":0,"accepted_tokens":0}' "$minisgl" simulate \
    --step-table "$dir/steps.jsonl" --trace "$dir/repeats.jsonl" --num-pages 4096 --speculative-algorithm SUFFIX -o json
expect "simulate, drafts of a model" 2 "STANDALONE: what a draft model takes is not simulated" "$minisgl" simulate \
    --step-table "$dir/steps.jsonl" --trace "$dir/repeats.jsonl" --num-pages 4096 --speculative-algorithm STANDALONE
expect "simulate, acceptance above 1" 2 "acceptance is \"1.5\"; allowed: a number from 0 to 1" "$minisgl" simulate \
    --step-table "$dir/steps.jsonl" --trace "$dir/repeats.jsonl" --num-pages 4096 --acceptance 1.5
expect "simulate without files" 2 "give \-\-step-table FILE and \-\-trace FILE" "$minisgl" simulate
expect "simulate without pages" 2 "give \-\-num-pages N" "$minisgl" simulate --step-table "$dir/steps.jsonl" --trace "$dir/trace.jsonl"
expect "simulate, no such file" 1 "none.jsonl" "$minisgl" simulate --step-table "$dir/none.jsonl" --trace "$dir/trace.jsonl" --num-pages 1
expect "simulate, a trace as a table" 1 "trace.jsonl: line 1: phase is missing" "$minisgl" simulate --step-table "$dir/trace.jsonl" \
    --trace "$dir/trace.jsonl" --num-pages 1
expect "simulate, too many replicas" 2 "replicas is \"20000\"; allowed: up to 32 numbers from 1 to 10000" "$minisgl" simulate \
    --step-table "$dir/steps.jsonl" --trace "$dir/trace.jsonl" --num-pages 1 --replicas 20000
expect "simulate, unknown routing" 2 "cache_aware, total_tokens\|cache_aware|total_tokens" "$minisgl" simulate --load-balance-method best
expect "simulate, too few pages" 1 "9 of 9 requests failed, the first with: prompt has 100 tokens" "$minisgl" simulate \
    --step-table "$dir/steps.jsonl" --trace "$dir/trace.jsonl" --num-pages 50
echo '{"timestamp":6,"input_length":0,"output_length":1}' >>"$dir/trace.jsonl"
expect "simulate, a bad line" 1 "trace.jsonl: line 10: input_length is 0; allowed: 1 to 16777216" "$minisgl" simulate \
    --step-table "$dir/steps.jsonl" --trace "$dir/trace.jsonl" --num-pages 4096
expect "bench decode, another one's option" 2 "bench decode does not read --chunk; bench step does" \
    "$minisgl" bench decode --model "$model" --chunk 8
expect "bench decode, another one's option in front" 2 "bench decode does not read --url; bench serve does" \
    "$minisgl" bench --url http://127.0.0.1:1 decode --model "$model"
expect "options of two benchmarks" 2 "bench step does not read --backends; bench attn does" "$minisgl" bench --chunk 8 --backends fa
expect "bench offline" 0 "output_tok_per_s" "$minisgl" bench offline --model "$model" --requests 3 \
    --prompt-len 8 --max-tokens 4
# The second is asked for what it said, and its answer is accepted by drafts; the first has none of them.
cat >"$dir/prompts.jsonl" <<'EOF'
{"class":"one","prompt":"Hello!","max_tokens":4}

{"class":"again","messages":[{"role":"user","content":"Tell me a story."},{"role":"assistant","content":"Long ago, a brave fox named Sam lived in a big city. Sam was afraid of the old house. Every night, Sam could not sleep."},{"role":"user","content":"Please say that again."}],"max_tokens":40}
EOF
"$minisgl" bench speculation --model "$model" --dataset-path "$dir/prompts.jsonl" --repeat 2 -o json >"$dir/rows" 2>"$dir/said"
expect "bench speculation, a row for each class" 0 '^{"class":"one","prompts":1,"tokens":4.0,"drafts":.*"same_answers":1}' cat "$dir/rows"
expect "bench speculation, an answer that repeats" 0 '^{"class":"again","prompts":1,"tokens":40.0,"drafts":[1-9].*"same_answers":1}' cat "$dir/rows"
expect "bench speculation, all of them" 0 '^{"class":"all","prompts":2,"tokens":22.0,.*"speedup":.*"same_answers":2}' cat "$dir/rows"
expect "bench speculation, those that repeat" 0 '^{"class":"over 70 % accepted","prompts":[01],' cat "$dir/rows"
expect "bench speculation, rows in all" 0 "^4$" grep -c . "$dir/rows"
expect "bench speculation without prompts" 2 "bench speculation: give --dataset-path FILE" "$minisgl" bench speculation --model "$model"
expect "bench speculation, no such file" 1 "none.jsonl: No such file" "$minisgl" bench speculation --model "$model" --dataset-path "$dir/none.jsonl"
echo '{"prompt":"a","max_tokens":4,"beam":2}' >>"$dir/prompts.jsonl"
expect "bench speculation, an unknown field" 1 "prompts.jsonl: line 4: .*beam" "$minisgl" bench speculation --model "$model" --dataset-path "$dir/prompts.jsonl"
echo '{"class":7,"prompt":"a"}' >"$dir/prompts.jsonl"
expect "bench speculation, a class that is none" 1 "line 1: class: allowed: a text" "$minisgl" bench speculation --model "$model" --dataset-path "$dir/prompts.jsonl"
echo '[]' >"$dir/prompts.jsonl"
expect "bench speculation, no object" 1 "line 1: not a JSON object" "$minisgl" bench speculation --model "$model" --dataset-path "$dir/prompts.jsonl"
: >"$dir/prompts.jsonl"
expect "bench speculation, an empty file" 1 "prompts.jsonl: no prompts" "$minisgl" bench speculation --model "$model" --dataset-path "$dir/prompts.jsonl"
expect "bench offline, prompts" 2 "bench offline does not read --dataset-path; bench speculation does" \
    "$minisgl" bench offline --model "$model" --dataset-path "$dir/prompts.jsonl"
expect "bench decode" 0 "ms_per_step" "$minisgl" bench decode --model "$model" --batch 1,2 --prompt-len 4 \
    --steps 4 --repeat 1 -o json
expect "bench prefill" 0 "best_tok_per_s" "$minisgl" bench prefill --model "$model" --batch 2 --prompt-len 8 -o csv
experts="$(dirname "$0")/../vectors/models/qwen3_moe" # two of eight for each token
expect "bench decode, experts" 0 '"experts_hit":2[.]0}' "$minisgl" bench decode --model "$experts" --dummy-weight \
    --batch 1 --prompt-len 4 --steps 4 --repeat 1 -o json
expect "bench prefill, experts" 0 '"experts_hit":2[.]0}' "$minisgl" bench prefill --model "$experts" --dummy-weight \
    --batch 1 --prompt-len 1 --repeat 1 -o json
expect "bench step, experts" 0 '"phase":"mixed",.*"experts_hit":[2-8][.]' "$minisgl" bench step --model "$experts" \
    --dummy-weight --prompt-len 16 --batch 2 --chunk 8 --steps 4 --repeat 1 -o json
for bench in decode prefill; do # 64 tokens go to all eight, or to the first two
    expect "bench $bench, collapsed routing" 0 '"experts_hit":2[.]0}' "$minisgl" bench $bench --model "$experts" \
        --dummy-weight --routing collapsed --batch 8 --prompt-len 8 --steps 4 --repeat 1 -o json
    expect "bench $bench, even routing" 0 '"experts_hit":[3-8][.]' "$minisgl" bench $bench --model "$experts" \
        --dummy-weight --routing even --batch 8 --prompt-len 8 --steps 4 --repeat 1 -o json
done
expect "bench step, collapsed routing" 0 '"phase":"mixed",.*"experts_hit":2[.]0}' "$minisgl" bench step \
    --model "$experts" --dummy-weight --routing collapsed --prompt-len 16 --batch 2 --chunk 8 --steps 4 --repeat 1 -o json
expect "routing of a checkpoint" 1 "it needs --dummy-weight" "$minisgl" bench prefill --model "$experts" --routing collapsed
expect "routing without experts" 1 "the model has no experts" "$minisgl" bench prefill --model "$model" --dummy-weight \
    --routing collapsed
expect "routing that is none" 2 "allowed: even|collapsed" "$minisgl" bench prefill --model "$experts" --dummy-weight \
    --routing odd
expect "routing of another process" 2 "bench serve does not read --routing; bench step, decode, prefill, offline do" \
    "$minisgl" bench --routing collapsed serve --model "$experts"
expect "routing beside another's option" 2 "bench attn does not read --routing" "$minisgl" bench --routing even \
    --backends fa
"$minisgl" bench attn --backends delta -o json >"$dir/rows" 2>&1
expect "bench attn, linear attention, answers" 0 '"backend":"delta","phase":"decode","shape":"16","page_size":0,' \
    cat "$dir/rows"
expect "bench attn, linear attention, prompts" 0 '"delta","phase":"prefill","shape":"1x512",.*"layer_ms":[0-9.]*[1-9]' \
    cat "$dir/rows"
expect "bench attn, linear attention alone" 0 "^7$" grep -c '"backend":"delta"' "$dir/rows"
expect "bench attn, no backend" 1 "none of these; .minisgl info. lists them, and delta is linear" "$minisgl" bench attn \
    --backends dlta
"$minisgl" bench serve --model "$model" --num-pages 4096 --concurrency 1,3 --prompt-len 8 --max-tokens 4 \
    --temperature 1 --seed 7 -o json >"$dir/rows" 2>/dev/null
expect "bench serve, a server of its own" 0 '"clients":1,"requests":4,"failed":0,.*"output_tokens":16,' cat "$dir/rows"
expect "bench serve, one row each" 0 '"clients":3,"requests":12,"failed":0,.*"output_tokens":48,' cat "$dir/rows"
"$minisgl" bench serve --model "$model" --num-pages 4096 --concurrency 3 --prompt-len 8 --max-tokens 4 \
    --requests 5 --open-ended -o csv >"$dir/rows" 2>&1
expect "bench serve, open-ended" 0 "^3,5,0,[0-9]*[.]" cat "$dir/rows"
expect "bench serve, no server" 1 "cannot connect to 127.0.0.1 port 1" "$minisgl" bench serve \
    --url http://127.0.0.1:1
expect "bench serve, it does not start" 1 "the server did not start" "$minisgl" bench serve --model "$dir/none"
expect "bench serve, no list" 2 "as in 1,8,16" "$minisgl" bench serve --model "$model" --concurrency 8,
expect "bench startup" 0 "median_s" "$minisgl" bench startup --model "$model" --num-pages 2048 --repeat 1
expect "bench startup, options of the server" 1 "did not get ready" "$minisgl" bench startup --model "$model" \
    --num-pages 1 --repeat 1
expect "bench of nothing" 2 "allowed: step" "$minisgl" bench nothing
expect "one answer" 0 "85" "$minisgl" run --model "$model" --temperature 0 --prompt "What is 27 + 58?"
expect "no chat" 0 "^an empty answer: the model ended it with its first token (finish_reason \"stop\"); the prompt was no chat's" \
    "$minisgl" run --model "$model" --raw --temperature 0 --prompt "What is 27 + 58?"
expect "no chat, streamed" 0 "^an empty answer: the model ended it" \
    "$minisgl" run --model "$model" --raw --stream --temperature 0 --prompt "What is 27 + 58?"
expect "raw and chat" 2 "\-\-raw and --chat; allowed: either" "$minisgl" run --model "$model" --raw --chat --prompt x
expect "raw and system" 2 "\-\-raw and --system; allowed: either" "$minisgl" run --model "$model" --raw --system x --prompt x
cp -r "$model" "$dir/plain_model"
sed -i 's/"chat_template"/"no_template"/' "$dir/plain_model/tokenizer_config.json"
rm -f "$dir/plain_model"/chat_template*
expect "no template" 0 "^the model has no chat template: prompts are taken as they are" "$minisgl" run --model "$dir/plain_model" \
    --prompt x --max-tokens 1
# The same ids whatever computes the attention.
answer() { # FILE OPTIONS...
    to=$1
    shift
    "$minisgl" run --model "$model" --temperature 0 --prompt "What is 27 + 58?" --prompt "Hello" \
        --output "$dir/$to" "$@" 2>"$dir/log" || cat "$dir/log"
}
answer fa.jsonl --attn fa
expect "an answer with its ids" 0 '85.*"token_ids":\[[0-9]' cat "$dir/fa.jsonl"
answer mixed.jsonl --attn fi,torch_native --page-size 16
same "backends agree" "$dir/fa.jsonl" "$dir/mixed.jsonl"
answer half.jsonl --decode-attention-backend trtllm
same "override of one half" "$dir/fa.jsonl" "$dir/half.jsonl"
expect "stop string" 0 '"finish_reason":"stop"' "$minisgl" run --model "$model" --temperature 0 \
    --stop "5" --prompt "What is 27 + 58?"
# The model's own repetition penalty counts where the request has none.
cp -r "$model" "$dir/penalized"
sed -i 's/"do_sample": true/"do_sample": true, "repetition_penalty": 5.0/' "$dir/penalized/generation_config.json"
ask() {
    to=$1
    shift
    "$minisgl" run --raw --temperature 0 --max-tokens 24 --prompt "The cat sat on the" "$@" >"$dir/$to" 2>/dev/null
}
ask plain --model "$model"
ask flag --model "$model" --repetition-penalty 5
ask own --model "$dir/penalized"
ask off --model "$dir/penalized" --repetition-penalty 1
same "repetition_penalty of generation_config.json" "$dir/flag" "$dir/own"
same "a flag over the model's repetition_penalty" "$dir/plain" "$dir/off"
cmp -s "$dir/plain" "$dir/flag" && failed=$((failed + 1)) && echo "FAILED: a penalty of 5 changes nothing"
expect "a penalty out of range" 2 "presence-penalty" "$minisgl" run --model "$model" --presence-penalty 3 --prompt x
expect "streamed" 0 "tok/s" "$minisgl" run --model "$model" --stream --temperature 0 --prompt "Hello"

# What cannot be written is no success, whoever prints it.
for args in "help" "--version" "--help" "info" "run --help" "run --model $model --prompt hi --max-tokens 2" \
    "run --model $model --stream --prompt hi --max-tokens 2" \
    "bench decode --model $model --batch 1 --prompt-len 4 --steps 4 --repeat 1"; do
    # shellcheck disable=SC2086
    expect "$args on a full disk" 1 "minisgl: standard output: " \
        sh -c "\"$minisgl\" $args 2>&1 >/dev/full"
done
expect "tokenize on a full disk" 1 "standard output: No space" \
    sh -c "echo hi | \"$minisgl\" tokenize --model \"$model\" 2>&1 >/dev/full"
expect "detokenize on a full disk" 1 "standard output: No space" \
    sh -c "echo '[1]' | \"$minisgl\" tokenize --decode --model \"$model\" 2>&1 >/dev/full"
expect "template on a full disk" 1 "standard output: No space" \
    sh -c "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}' | \"$minisgl\" template --model \"$model\" 2>&1 >/dev/full"
expect "output on a full disk" 1 "/dev/full: No space" "$minisgl" run --model "$model" --prompt hi --max-tokens 2 \
    --output /dev/full

# The port that Kubernetes means by this variable is another server's.
expect "service link" 1 "warning: MINISGL_PORT=tcp://10.0.0.1:1919 is the address of a service" \
    env MINISGL_PORT=tcp://10.0.0.1:1919 "$minisgl" serve --model "$dir/none"
expect "port that is none" 2 "MINISGL_PORT is \"80a\"" env MINISGL_PORT=80a "$minisgl" serve --model "$dir/none"

# A log of objects, from the engine's start to the server's end.
"$minisgl" serve --model "$model" --num-pages 4096 --port 0 --access-log --log-format json >"$dir/ready" 2>"$dir/log" &
server=$!
for _ in $(seq 100); do
    grep -q "is ready" "$dir/ready" && break
    sleep 0.1
done
kill $server
wait $server
expect "log as JSON" 0 '"level":"info","message":"engine is ready:' cat "$dir/log"
expect "nothing but objects" 1 "^0$" grep -vc '^{"time":"[-0-9T:.]*Z","level":"[a-z]*","message":".*"}$' "$dir/log"
expect "format of the log" 2 "allowed: text|json" "$minisgl" serve --model "$model" --log-format xml

# Text there and back, byte for byte.
printf 'Grüße, 世界! 12 + 34\n\n  <|im_end|> \t end' >"$dir/text"
"$minisgl" tokenize --model "$model" <"$dir/text" >"$dir/ids"
"$minisgl" tokenize --model "$model" --decode <"$dir/ids" >"$dir/back"
same "tokenize and back" "$dir/text" "$dir/back"
echo '{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true}' |
    "$minisgl" template --model "$model" >"$dir/rendered"
expect "template" 0 "im_start|>assistant" cat "$dir/rendered"

# Another chat template, of a file or as it is.
printf '{{ eos_token }}[{{ messages[0].content }}]' >"$dir/own.jinja"
echo '{"messages": [{"role": "user", "content": "Hi"}]}' >"$dir/talk"
for own in "$dir/own.jinja" "$(cat "$dir/own.jinja")"; do
    expect "template --chat-template" 0 '^<|im_end|>\[Hi]$' \
        sh -c "\"$minisgl\" template --model \"$model\" --chat-template '$own' <\"$dir/talk\""
done
for command in serve "chat --prompt a" "run --prompt a"; do
    # shellcheck disable=SC2086
    expect "$command --chat-template" 1 'chat_template is "own.jinja"; allowed: a file that exists, or the text' \
        "$minisgl" $command --model "$model" --chat-template own.jinja
done
expect "a template with an error" 1 "minisgl: chat template line 1: " "$minisgl" serve --model "$model" --chat-template '{% if %}'
# A system message that the model's own template would not make of a question.
"$minisgl" run --model "$model" --raw --temperature 0 --max-tokens 12 --prompt '<|im_start|>user
What is 2 + 3?<|im_end|>
<|im_start|>assistant
' >"$dir/plain"
"$minisgl" run --model "$model" --temperature 0 --max-tokens 12 --prompt "What is 2" --chat-template '<|im_start|>user
{{ messages[0].content }} + 3?<|im_end|>
<|im_start|>assistant
{{ "" }}' >"$dir/templated"
same "run --chat-template" "$dir/plain" "$dir/templated"

# One file with everything, or a folder with only that, is the same model as the folder that it was made from.
gguf=$(dirname "$0")/../vectors/gguf
mkdir "$dir/one"
cp "$gguf/qwen3-f16.gguf" "$dir/one/m.gguf"
part=qwen3-f16-00002-of-00002.gguf # any of a model's parts names it
for path in "$gguf/qwen3" "$gguf/qwen3-f16.gguf" "$dir/one" "$gguf/split/$part"; do
    "$minisgl" run --model "$path" --dtype float32 --temperature 0 --ignore-eos --max-tokens 12 --prompt "Hello" \
        --output "$dir/$(basename "$path").jsonl" >/dev/null 2>"$dir/log" || cat "$dir/log"
    "$minisgl" tokenize --model "$path" <"$dir/text" >"$dir/$(basename "$path").ids"
done
expect "an answer with 12 ids" 0 '"token_ids":\[[0-9, ]*\]' cat "$dir/qwen3.jsonl"
for name in qwen3-f16.gguf one $part; do
    same "answers of $name" "$dir/qwen3.jsonl" "$dir/$name.jsonl"
    same "ids of $name" "$dir/qwen3.ids" "$dir/$name.ids"
done
expect "info of a file" 0 "Qwen3ForCausalLM, 1 layers, hidden 32, 4 heads (2 KV) of 16,$" "$minisgl" info --model "$gguf/qwen3-f16.gguf"
expect "info of a file, the rest" 0 "vocabulary 260, context 128, float16$" "$minisgl" info --model "$gguf/qwen3-f16.gguf"
q8="$gguf/llama-q8_0.gguf"
expect "info of a file's types" 0 "^weights  22.0 KiB: Q8_0 97 %, F32 3 %$" "$minisgl" info "$q8"
expect "info of types with their scales" 0 "^weights  210.0 KiB: FP8 69 %, BF16 31 %$" \
    "$minisgl" info "$(dirname "$0")/../vectors/models/qwen3_fp8"
expect "info of types as JSON" 0 '^{"type":"F32","tensors":5,"bytes":640}$' "$minisgl" info "$q8" -o json
expect "info of types as a table" 0 "^| Q8_0 | 15 | 21896 |$" "$minisgl" info "$q8" -o md
expect "info of types, not in CSV" 1 "^0$" sh -c "'$minisgl' info '$q8' -o csv | grep -c '^Q8_0'"
mkdir "$dir/shape"
cp "$model/config.json" "$dir/shape"
expect "info without weights" 0 "^weights  not read: .*shape: has no model.safetensors" "$minisgl" info "$dir/shape"
expect "forms, of a GGUF file" 0 "^| IQ1_S | GGUF | 1.5625 | blocks | values | ggml |$" "$minisgl" help --forms
expect "forms, with a scale for so many" 0 "^| NVFP4 | safetensors | 4.5 | codes | codes | ModelOpt |$" "$minisgl" help --forms
expect "forms, with what scales the file has" 0 "^| HQQ | safetensors | 1, 2, 3, 4 or 8 and scales | codes | codes | hqq" "$minisgl" help --forms
expect "forms, of a range" 0 "^| MLX | safetensors | 2 to 8 and scales | codes | codes | " "$minisgl" help --forms
expect "forms, all" 0 "^49$" sh -c "'$minisgl' help --forms | wc -l"
expect "info of linear attention" 0 "states   2 layers of linear attention, 0.02 MiB a request" \
    "$minisgl" info --model "$(dirname "$0")/../vectors/models/qwen3_next"
cp "$gguf/llama-q8_0.gguf" "$dir/one"
expect "two files" 1 "found 2 .gguf files, allowed one" "$minisgl" run --model "$dir/one" --prompt x
head -c 20000 "$gguf/llama-q8_0.gguf" >"$dir/half.gguf"
expect "half a file" 1 "half.gguf: tensor .*: bytes: found" "$minisgl" run --model "$dir/half.gguf" --prompt x

# A batch file: bad lines get an error of their own, order is kept, blank lines count.
cat >"$dir/in.jsonl" <<'LINES'
{"prompt": "The sun", "max_tokens": 3, "temperature": 0, "custom_id": "first"}
{"prompt": 5}

not json
{"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0, "logprobs": 2}
{"prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0, "ignore_eos": true}
{"prompt": [99999999], "max_tokens": 2}
{"prompt": "x", "frequency_penalty": 9}
{"prompt": "x", "temprature": 1, "custom_id": "typo"}
{"prompt": "x", "n": 2}
{"prompt": "x", "n": 1, "stream": false, "best_of": 1, "response_format": {"type": "text"}, "max_tokens": 1}
{"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0}}
{"custom_id": "t", "method": "POST", "url": "/v1/completions", "body": {"prompt": "The sun", "temperature": 0}}
{"custom_id": "e", "method": "POST", "url": "/v1/completions", "body": {"prompt": "The sun", "temperature": -1}}
{"custom_id": "u", "method": "POST", "url": "/v1/embeddings", "body": {}}
{"prompt": "x", "documents": []}
{"prompt": "x", "user": "me", "metadata": {}, "max_tokens": 1}
{"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}, "bdoy": {}}
{"custom_id": "w", "body": {"prompt": "x"}, "aééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééé": 1}
{"prompt": "x", "aééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééé": 1}
{"messages": [{"role": "user", "content": "x"}], "thinking_token_budget": 5}
LINES
"$minisgl" run --model "$model/" --input "$dir/in.jsonl" --output "$dir/out.jsonl" >/dev/null 2>&1
[ $? -eq 1 ] || { failed=$((failed + 1)) && echo "FAILED: a file with bad lines must exit 1"; }
sed -e 's/^{"error":.*/E/' -e 's/^{"text":.*/A/' -e 's/.*"status_code":200.*/O/' -e 's/.*"status_code":400.*/F/' \
    "$dir/out.jsonl" | tr -d '\n' >"$dir/kinds"
printf 'AEEAAEEEEAOOFFEAFFEE' >"$dir/want"
same "answers and errors in order" "$dir/want" "$dir/kinds"
printf '{"prompt":"What is 27 + 58?","temperature":0,"best_of":1}\n{"prompt":["What is 27 + 58?"],"temperature":0}\n' >"$dir/texts.jsonl"
"$minisgl" run --model "$model" --input "$dir/texts.jsonl" >"$dir/chats" 2>/dev/null
expect "a text of a line is a user message" 0 "^2$" grep -c "27 + 58 = 85" "$dir/chats"
"$minisgl" run --model "$model" --raw --input "$dir/texts.jsonl" >"$dir/raw" 2>"$dir/log"
expect "or is continued" 0 "^2$" grep -c '"text":"","token_ids":\[6137\],"finish_reason":"stop"' "$dir/raw"
expect "which is said once" 0 "^1$" grep -c "an empty answer" "$dir/log"
expect "line number in the error" 0 '"line 4: not a JSON object.*"line":4' cat "$dir/out.jsonl"
expect "custom_id of a line" 0 '"text":.*"line":1,"custom_id":"first"' cat "$dir/out.jsonl"
expect "refused as over HTTP" 0 "line 8: 'frequency_penalty'" cat "$dir/out.jsonl"
expect "typing error" 0 "line 9: 'temprature' is not a field.*did you mean 'temperature'.*.line.:9,.custom_id.:.typo." \
    cat "$dir/out.jsonl"
expect "n is refused" 0 "line 10: 'n' is 2; allowed: 1" cat "$dir/out.jsonl"
expect "batch form, chat" 0 '"object":"chat.completion".*"model":"demo".*"content":"2 + 3 = 5\.".*"completion_tokens":9.*"custom_id":"c"' \
    cat "$dir/out.jsonl"
expect "batch form, completion" 0 '"object":"text_completion".*"finish_reason":"length".*"completion_tokens":16.*"custom_id":"t"' \
    cat "$dir/out.jsonl"
expect "batch form, refused" 0 '"message":"line 14: .temperature. is -1.*invalid_request_error.*"custom_id":"e"' \
    cat "$dir/out.jsonl"
expect "batch form, other endpoints" 0 'line 15: ."url." must be' cat "$dir/out.jsonl"
expect "a field of another server" 0 "line 16: 'documents' is not a field.*docs/batch.md" cat "$dir/out.jsonl"
expect "batch form, beside the body" 0 'line 18: unknown field .*bdoy.*allowed: custom_id, method, url, body' \
    cat "$dir/out.jsonl"
expect "logprobs" 0 '"logprob":-' cat "$dir/out.jsonl"
expect "batch file on a full disk" 1 "/dev/full: No space" "$minisgl" run --model "$model" --input "$dir/in.jsonl" \
    --output /dev/full
expect "no such input" 1 "\-\-input $dir/none: No such file" "$minisgl" run --model "$model" --input "$dir/none"
expect "no such output folder" 1 "No such file" "$minisgl" run --model "$model" --prompt x --output "$dir/none/x"
expect "output over the input" 1 "is the input" "$minisgl" run --model "$model" --input "$dir/in.jsonl" \
    --output "$dir/in.jsonl"
expect "which is still there" 0 "The sun" cat "$dir/in.jsonl"

# A model of the hub's cache has the name that it was asked by, here as over HTTP.
mkdir -p "$dir/hub/models--org--small/refs" "$dir/hub/models--org--small/snapshots"
printf 'c0ffee\n' >"$dir/hub/models--org--small/refs/main"
ln -s "$(realpath "$model")" "$dir/hub/models--org--small/snapshots/c0ffee"
echo '{"model": "org/small", "prompt": "x", "max_tokens": 1}' >"$dir/hub.jsonl"
expect "a model of the hub's cache" 0 '"text":' env HF_HUB_CACHE="$dir/hub" "$minisgl" run --model org/small \
    --input "$dir/hub.jsonl"

expect "a folder of the hub's cache" 0 '"model":"small"' sh -c "echo '{\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\",\"max_tokens\":1}}' |
    '$minisgl' run '$dir/hub/models--org--small/' --input -"
long=$(printf '%096d' 7)
mkdir -p "$dir/hub/models--$long--$long/snapshots"
ln -s "$(realpath "$model")" "$dir/hub/models--$long--$long/snapshots/c0ffee"
expect "as long a name as there may be" 0 "\"model\":\"$long\"" sh -c "echo '{\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\",\"max_tokens\":1}}' |
    '$minisgl' run '$dir/hub/models--$long--$long' --input -"
rm "$dir/hub/models--org--small/refs/main"
expect "its only snapshot" 0 "Qwen3ForCausalLM" "$minisgl" info "$dir/hub/models--org--small"
ln -s "$(realpath "$model")" "$dir/hub/models--org--small/snapshots/other"
expect "of two" 2 "found 2 snapshots and no refs/main" "$minisgl" info "$dir/hub/models--org--small"

# What is no model, or not all of one, is called what it is; before memory is planned, and once.
pointer='version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123456\n'
cp -r "$model" "$dir/clone"
for file in tokenizer.json model-00001-of-00002.safetensors; do
    # shellcheck disable=SC2059 # a format of its own
    printf "$pointer" >"$dir/clone/$file"
    expect "Git LFS, $file" 1 "/$file: is a Git LFS pointer, not the file itself; .git lfs pull. in its folder" \
        "$minisgl" run "$dir/clone" --prompt x
    expect "Git LFS, $file, without a plan" 1 "^0$" grep -c "memory plan" "$dir/out"
    cp "$model/tokenizer.json" "$dir/clone"
done
"$minisgl" serve "$dir/clone" --port 0 >"$dir/said" 2>&1
expect "once" 0 "^1$" grep -c "is a Git LFS pointer" "$dir/said"
rm "$dir"/clone/*.safetensors* && echo x >"$dir/clone/pytorch_model.bin"
expect "weights of PyTorch" 1 "clone: has no model.safetensors, but pytorch_model.bin, which is not read" "$minisgl" run "$dir/clone" --prompt x
rm "$dir/clone/config.json"
expect "a tokenizer alone" 1 "clone: is a tokenizer alone; allowed: a folder with config.json" "$minisgl" run "$dir/clone" --prompt x
echo '{}' >"$dir/clone/adapter_config.json"
expect "an adapter" 1 "clone: is a LoRA adapter; merge it" "$minisgl" info "$dir/clone"
long=$dir/$(printf 'y%.0s' $(seq 140))
mkdir "$long"
expect "a long path keeps both ends" 1 "minisgl: --model /.*yyy[.][.][.]yyy.*: has no config.json" "$minisgl" run "$long" --prompt x

# A batch file's bar counts answers, not lines read. (script gives it a terminal.)
if command -v script >/dev/null; then
    script -qc "\"$minisgl\" run --model \"$model\" --input \"$dir/in.jsonl\" --output /dev/null" /dev/null \
        >"$dir/bar" 2>&1 </dev/null
    expect "bar at the first step" 0 "requests \[[#.]*\.\] *[0-9]*%" cat "$dir/bar"
fi

# A shell without a terminal, with a reset.
printf 'What is 2 + 3?\n/reset\n/nonsense\nWhat is 3 + 4?\n/exit\n' |
    "$minisgl" chat --model "$model" --temperature 0 >"$dir/chat" 2>/dev/null
expect "chat answers" 0 "= 7\|is 7\|7\." cat "$dir/chat"
expect "chat resets" 0 "forgotten" cat "$dir/chat"

# Ctrl-C ends a long run with 130. (A shell starts background jobs with SIGINT ignored; the program
# installs its own handler.)
"$minisgl" run --model "$model" --prompt "Once" --ignore-eos --max-tokens 100000 --max-seq-len-override 200000 \
    >/dev/null 2>&1 &
pid=$!
sleep 2
kill -INT $pid
wait $pid
code=$?
if [ $code -eq 130 ]; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "FAILED: interrupted run: exit $code"
fi

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
