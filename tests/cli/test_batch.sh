#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_batch.sh MINISGL MODEL: batch files in OpenAI's form, and runs that go on where one was killed.
set -u
minisgl=$1
model=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck source=tests/cli/expect.sh
. "$(dirname "$0")/expect.sh"

# run NAME EXIT_CODE WORDS ARGUMENTS...: of `minisgl run`; WORDS are in what it says.
run() {
    name=$1 code=$2 words=$3
    shift 3
    "$minisgl" run --model "$model" --temperature 0 --num-pages 4000 "$@" >"$dir/said" 2>&1 </dev/null
    got=$?
    [ $got -eq "$code" ] && grep -q -- "$words" "$dir/said"
    check "$name: exit $got (expected $code), expected \"$words\" in: $(head -3 "$dir/said")" $?
}
has() { # NAME WORDS FILE
    grep -q -- "$2" "$3"
    check "$1: no \"$2\" in: $(cat "$3")" $?
}
# The same answers: all but when they were made, and what the prefix cache had then.
same() { # NAME FILE FILE
    for file in "$2" "$3"; do
        sed -e 's/"created":[0-9]*/"created":0/' -e 's/"cached_tokens":[0-9]*/"cached_tokens":0/' "$file" >"$file.same"
    done
    cmp -s "$2.same" "$3.same"
    check "$1: $(diff "$2.same" "$3.same" | head -c 600)" $?
}

# --- OpenAI's form: what cannot be answered has an error of its own and stops nothing ---

cat >"$dir/bad.jsonl" <<'LINES'
not json, before anything else
{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "The sun", "max_tokens": 2}}
not json

{"custom_id": "no-body", "method": "POST", "url": "/v1/completions"}
{"custom_id": "get", "method": "GET", "url": "/v1/completions", "body": {"prompt": "x"}}
{"custom_id": 7, "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
{"custom_id": "field", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "top_p": 3}}
{"custom_id": "model", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "model": "other"}}
{"prompt": "The sun", "max_tokens": 2}
[]
{"custom_id": "z", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}}
LINES
run "a file with bad lines" 1 "8 of 11 requests failed" --input "$dir/bad.jsonl" --output "$dir/bad.out"
sed -e 's/^{"error":.*/e/' -e 's/^{"text":.*/t/' -e 's/.*"status_code":200.*"error":null.*/A/' \
    -e 's/.*"status_code":40[04].*"error":{"code":.*/E/' "$dir/bad.out" | tr -d '\n' >"$dir/kinds"
has "each line in its own form" '^eAEEEEEEteA$' "$dir/kinds"
has "what is no JSON" '"message":"line 3: not a JSON object.*"error":{"code":"invalid_request","message":"line 3: .*"custom_id":null' \
    "$dir/bad.out"
has "no body" '"error":{[^}]*line 5: ..body.. must be an object.*"custom_id":"no-body"' "$dir/bad.out"
has "the method" '"error":{[^}]*line 6: ..method.. must be ..POST.*"custom_id":"get"' "$dir/bad.out"
has "the id" 'line 7: ..custom_id.. must be a string' "$dir/bad.out"
has "a field" "line 8: 'top_p' is 3.*\"param\":\"top_p\".*\"custom_id\":\"field\"" "$dir/bad.out"
has "another model" '"status_code":404.*"error":{"code":"model_not_found".*"custom_id":"model"' "$dir/bad.out"
has "a message" '"object":"chat.completion".*"refusal":null.*"custom_id":"z"' "$dir/bad.out"

# --- resuming ---

i=0
while [ $i -lt 60 ]; do
    i=$((i + 1))
    case $((i % 5)) in
    0) echo ;;
    1) echo "{\"custom_id\": \"r$i\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"Number $i is\", \"ignore_eos\": true, \"max_tokens\": 60}}" ;;
    2) echo "{\"custom_id\": \"twice\", \"prompt\": \"The letter $i\", \"ignore_eos\": true, \"max_tokens\": 40}" ;;
    3) echo "{\"prompt\": \"Once $i\", \"ignore_eos\": true, \"max_tokens\": 80}" ;;
    4) echo "broken $i" ;;
    esac
done >"$dir/in.jsonl"
few="--max-running-requests 1"
run "uninterrupted" 1 "12 of 48 requests failed" --input "$dir/in.jsonl" --output "$dir/whole" $few
lines=$(wc -l <"$dir/whole")
check "48 answers" $((lines - 48))

# resumed FILE: goes on, and the union is what the uninterrupted run wrote.
resumed() {
    run "resume of $1" 1 "12 of 48 requests failed" --input "$dir/in.jsonl" --output "$dir/$1" --resume $few
    same "union of $1" "$dir/whole" "$dir/$1"
}
# Killed while it writes, as often as it takes: each time some more is there.
kills=0
: >"$dir/killed"
for at in 1 12 30; do
    "$minisgl" run --model "$model" --temperature 0 --num-pages 4000 --input "$dir/in.jsonl" \
        --output "$dir/killed" --resume $few >/dev/null 2>&1 </dev/null &
    pid=$!
    tries=0
    while [ "$(wc -l <"$dir/killed" 2>/dev/null || echo 0)" -lt $at ] && [ $tries -lt 600 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill -9 $pid 2>/dev/null && kills=$((kills + 1))
    wait $pid 2>/dev/null
    cp "$dir/killed" "$dir/killed$at"
done
check "it was killed three times ($kills)" $((kills - 3))
[ "$(wc -l <"$dir/killed")" -lt 48 ]
check "before it was done" $?
resumed killed
resumed killed1

# A last line that is torn, at any place; a whole file; an empty one; one that is not there.
size=$(wc -c <"$dir/whole")
for cut in 1 200 $((size - 5)); do
    head -c $((size - cut)) "$dir/whole" >"$dir/torn"
    run "torn by $cut" 1 "12 of 48" --input "$dir/in.jsonl" --output "$dir/torn" --resume
    same "union when torn by $cut" "$dir/whole" "$dir/torn"
done
run "what is cut off is said" 1 "48 requests are answered in $dir/torn$" --input "$dir/in.jsonl" --output "$dir/torn" --resume
cp "$dir/whole" "$dir/complete"
resumed complete
: >"$dir/empty"
resumed empty
resumed absent
# Lines that a user takes out are run again, behind the others.
grep -v '"custom_id":"r31"' "$dir/whole" >"$dir/hole"
run "a hole" 1 "1 requests, 0 failed" --input "$dir/in.jsonl" --output "$dir/hole" --resume
sort "$dir/whole" >"$dir/whole.sorted" && sort "$dir/hole" >"$dir/hole.sorted"
same "union with a hole" "$dir/whole.sorted" "$dir/hole.sorted"

# --- what is refused ---

cp "$dir/whole" "$dir/kept"
run "a file with answers" 1 "kept: is not empty; --resume goes on" --input "$dir/in.jsonl" --output "$dir/kept"
sed 's/r31/x31/' "$dir/in.jsonl" >"$dir/other.jsonl"
run "another input" 1 'kept: answers custom_id "r31", which .*other.jsonl does not have' --input "$dir/other.jsonl" \
    --output "$dir/kept" --resume
head -20 "$dir/in.jsonl" >"$dir/short.jsonl"
run "a shorter input" 1 "which .*short.jsonl does not have" --input "$dir/short.jsonl" --output "$dir/kept" --resume
same "which changes nothing" "$dir/whole" "$dir/kept"
printf '{"a": 1}\n' >"$dir/foreign"
run "another file" 1 "foreign: line 1 is no answer of minisgl run" --input "$dir/in.jsonl" --output "$dir/foreign" --resume
(cat "$dir/whole" && printf 'x\n') >"$dir/foreign"
run "with another line" 1 "foreign: line 49 is no answer" --input "$dir/in.jsonl" --output "$dir/foreign" --resume
run "no output" 2 "resume needs --input" --input "$dir/in.jsonl" --resume
run "no input" 2 "resume needs --input" --prompt x --output "$dir/none" --resume
run "no file" 1 "/dev/null: --resume needs a file" --input "$dir/in.jsonl" --output /dev/null --resume
# A file on standard input that somebody has read from goes on behind that, as it does for other tools.
{ printf 'a headline\n'; head -1 "$dir/in.jsonl"; } >"$dir/headed"
{
    read -r _
    "$minisgl" run --model "$model" --temperature 0 --num-pages 4000 --input - >"$dir/headed.out" 2>"$dir/said"
} <"$dir/headed"
check "behind a headline: $(cat "$dir/said")" $?
[ "$(wc -l <"$dir/headed.out")" -eq 1 ]
check "one answer: $(cat "$dir/headed.out")" $?
cat "$dir/in.jsonl" | "$minisgl" run --model "$model" --input - --output "$dir/pipe" --resume >"$dir/said" 2>&1
has "a pipe" "resume reads it twice" "$dir/said"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
