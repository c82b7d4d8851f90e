#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_pull.sh MINISGL MODEL [PYTHON]: models by name, from a stand-in of a hub on loopback (hub_server.py).
# shellcheck source=tests/cli/hub_setup.sh
. "$(dirname "$0")/hub_setup.sh"
root="$HF_HOME"
cache="$HF_HOME/hub/models--org--small"
snapshot="$cache/snapshots/$commit" # of hub_setup.sh
: "$snapshot" "$root"

fresh
expect "pull" 0 "^$cache/snapshots/$commit\$" "$minisgl" pull org/small
expect "what came" 0 whole whole
expect "relative links" 0 "^../../blobs/[0-9a-f]\{64\}$" readlink "$cache/snapshots/$commit/tokenizer.json"
expect "git's names of small files" 0 "^../../blobs/[0-9a-f]\{40\}$" readlink "$cache/snapshots/$commit/config.json"
expect "the revision" 0 "^$commit\$" cat "$cache/refs/main"
expect "nothing else" 1 "^0$" log 'README\|\.bin\|original'
rm "$dir/state/log"
expect "run from the cache" 0 "85" "$minisgl" run org/small --temperature 0 --prompt "What is 27 + 58?"
[ -e "$dir/state/log" ] && failed=$((failed + 1)) && echo "FAILED: a cached model was asked for"
expect "pull asks again" 0 "$commit" "$minisgl" pull org/small
expect "and takes nothing twice" 0 "^1$" log .
expect "offline" 0 "$commit" env HF_HUB_OFFLINE=1 HF_ENDPOINT=http://127.0.0.1:1 "$minisgl" pull org/small
expect "the server's name of it" 0 '"model":"small"' sh -c "echo '{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\",\"max_tokens\":1}}' |
    \"$minisgl\" run -m org/small --input -"

# Ways to say it.
fresh
expect "info, downloaded" 0 "Qwen3ForCausalLM\|LlamaForCausalLM\|CausalLM" "$minisgl" info org/small
expect "a tag" 0 "$commit" "$minisgl" pull org/small@v1/x
expect "its reference" 0 "^$commit\$" cat "$cache/refs/v1/x"
expect "the same beside the name" 0 "$commit" "$minisgl" pull org/small --revision v1/x
expect "a commit" 0 "$commit" env HF_HUB_OFFLINE=1 "$minisgl" pull "org/small@$commit"
expect "two revisions" 1 "two revisions" "$minisgl" pull org/small@a --revision b
expect "a folder without a flag" 0 "CausalLM" "$minisgl" info "$model"
expect "-m" 0 "CausalLM" "$minisgl" info -m "$model"
expect "two models" 2 "two models: \"$model\" and --model x; allowed: one" "$minisgl" info "$model" --model x
expect "two words" 2 "unexpected argument \"b\"" "$minisgl" info a b
expect "no name" 1 "no such folder or file, and no ORG/NAME" "$minisgl" run nothing --prompt x
expect "a missing folder" 1 "no such folder or file" "$minisgl" run ./org/small --prompt x
expect "a name that leaves the cache" 1 "ORG/NAME of letters" "$minisgl" pull ../x
expect "nothing to pull" 2 "allowed: ORG/NAME" "$minisgl" pull
expect "local only" 1 "no such folder or file" "$minisgl" run org/small --model-source local --prompt x
expect "a revision of a folder" 1 "is for models of a hub" "$minisgl" info "$model" --revision x

# The token: to the hub alone, and never shown.
fresh need=secret
expect "no token" 1 "answers 401 (RepoNotFound).*set HF_TOKEN" "$minisgl" pull org/small
expect "a wrong one" 1 "401.*the token of HF_TOKEN or HF_HOME may not" env HF_TOKEN=wrong "$minisgl" pull org/small
expect "which is not shown" 1 "^0$" grep -c "wrong" "$dir/out"
expect "the right one" 0 "$commit" env HF_TOKEN=secret "$minisgl" pull org/small
expect "the hub saw it" 0 "[1-9]" log "^hub .* token$"
expect "the other host did not" 1 "^0$" log "^store .* token$"
expect "though it was asked" 0 "[1-9]" log "^store "
fresh need=secret
mkdir -p "$HF_HOME" && echo secret >"$HF_HOME/token"
expect "a token of the file" 0 "$commit" "$minisgl" pull org/small
expect "a token that is none" 1 "HF_TOKEN: the token is not valid" env HF_TOKEN="a
X-Other: b" "$minisgl" pull org/small
fresh forbid
expect "gated" 1 "answers 403 (GatedRepo).*terms have to be accepted" "$minisgl" pull org/small

# What is missing.
fresh
expect "no such model" 1 "org/none (revision main): not found at http://127.0.0.1:$port (404" "$minisgl" pull org/none
expect "no such model, nor folder" 1 "no folder org/none here: org/none (revision main): not found at" "$minisgl" run org/none --prompt x
expect "no such revision" 1 "org/small (revision none): not found" "$minisgl" pull org/small@none
expect "no network" 1 "org/small.*127.0.0.1:1: .*onnect" env HF_ENDPOINT=http://127.0.0.1:1 "$minisgl" pull org/small
expect "offline, not here" 1 "not in the cache $HF_HOME/hub, and HF_HUB_OFFLINE" env HF_HUB_OFFLINE=1 "$minisgl" run org/small --prompt x
expect "no address" 1 "the hub's address is \"ftp://x\"" env HF_ENDPOINT=ftp://x "$minisgl" pull org/small
fresh nolist
expect "no list" 1 "found no JSON" "$minisgl" pull org/small
fresh nosum
expect "no checksums" 1 "no size or no checksum" "$minisgl" pull org/small
for bad in ../../evil.json /etc/evil.json a//evil.json ./evil.json 'evil\.json'; do
    fresh "name=$bad"
    expect "the file name $bad" 1 "is not allowed; nothing was downloaded" "$minisgl" pull org/small
done
expect "nothing was" 1 "^0$" log resolve

# Connections that end, servers that are busy.
fresh cut=3000000
expect "cut again and again" 0 "again in" "$minisgl" pull org/small
expect "and went on" 0 "[3-9]" log "bytes=[0-9]*000000-"
expect "whole all the same" 0 whole whole
fresh cut=9000000 norange
expect "cut, without ranges" 1 "org/small/model-0" "$minisgl" pull org/small
fresh busy=2
expect "busy" 0 "answers 503.*again in 0.5 s" "$minisgl" pull org/small
expect "whole then" 0 whole whole
fresh limit=1
expect "too many requests" 0 "answers 429.*again in 1.0 s" "$minisgl" pull org/small
fresh busy=100
expect "busy for good" 1 "answers 503" "$minisgl" pull org/small
fresh wrong
expect "a wrong byte" 1 "not what the hub says: checksum .*removed" "$minisgl" pull org/small
expect "nothing of it stays" 1 "^0$" sh -c "find $HF_HOME -name '*.incomplete' | grep -c ."
fresh
# A file system that is full looks like this limit of a file's size (in blocks of 512 bytes).
expect "no room" 1 "cannot be written: File too large" sh -c "trap '' XFSZ; ulimit -f 2000; exec \"$minisgl\" pull org/small"
expect "goes on after it" 0 "$commit" "$minisgl" pull org/small
expect "from where it ended" 0 "[1-9]" log "^store .*bytes=[1-9]"

# Ended in the middle: by a signal that nobody can catch, and by Ctrl-C.
for signal in KILL INT; do
    fresh slow
    "$minisgl" pull org/small >"$dir/out" 2>&1 &
    pid=$!
    grown
    kill -$signal $pid
    wait $pid
    got=$?
    want=130
    [ $signal = INT ] || want=137
    expect "ended by $signal with $want" 0 "^$want$" echo $got
    expect "no revision yet" 2 "No such file" ls "$cache/refs/main"
    echo "" >"$dir/state/mode"
    expect "resumed after $signal" 0 "$commit" "$minisgl" pull org/small
    expect "with a range" 0 "[1-9]" log "^store .*bytes=[1-9]"
    expect "whole after $signal" 0 whole whole
done
fresh slow
"$minisgl" pull org/small >"$dir/out" 2>&1 &
pid=$!
grown
kill -KILL $pid
wait $pid
echo norange >"$dir/state/mode"
expect "resumed where ranges are ignored" 0 "$commit" "$minisgl" pull org/small
expect "whole from the start" 0 whole whole

# Two at once share the work.
fresh slow
"$minisgl" pull org/small >"$dir/one" 2>&1 &
one=$!
grown
expect "the second of two" 0 "another process downloads this file" "$minisgl" pull org/small
wait $one
expect "the first of two" 0 "^0$" echo $?
expect "whole for both" 0 whole whole
expect "each file once" 0 "^3$" log "^store "

# A bar with bytes, rate and time on a terminal. (script gives it one.)
if command -v script >/dev/null; then
    fresh slow
    script -qc "\"$minisgl\" pull org/small" /dev/null >"$dir/bar" 2>&1 </dev/null
    expect "bar" 0 "org/small \[[#.]*\] *[0-9]*%  [0-9.]* / [0-9.]* MB  [0-9.]* MB/s  [0-9]*:[0-9]* left" cat "$dir/bar"
fi

# Python's own client finds what is here, and leaves what is found here.
if "$python" -c "import huggingface_hub" 2>/dev/null; then
    fresh
    "$minisgl" pull org/small >/dev/null 2>&1
    expect "Python finds it" 0 "^$cache/snapshots/$commit\$" "$python" -c "
import huggingface_hub as h
print(h.snapshot_download('org/small', local_files_only=True))"
    (cd "$HF_HOME/hub" && find models--* -printf '%P %l\n' | sort >"$dir/mine")
    fresh
    expect "Python downloads" 0 "config.json" "$python" -c "
import os, huggingface_hub as h
for f in sorted(os.listdir('$model')):
    if f != 'README.md': print(h.hf_hub_download('org/small', f))"
    (cd "$HF_HOME/hub" && find models--* -printf '%P %l\n' | sort >"$dir/its")
    expect "the same files and links" 0 same sh -c "cmp $dir/mine $dir/its && echo same"
    expect "which is found" 0 "^$cache/snapshots/$commit\$" env HF_HUB_OFFLINE=1 "$minisgl" pull org/small
else
    echo "no huggingface_hub: not compared with it"
fi
expect "the stand-in had no errors" 1 "^0$" sh -c "grep -v 'BrokenPipe\|ConnectionReset' \"$dir/server\" | grep -c Error"

echo "$passed passed, $failed failed (hub $port, store $store)"
[ $failed -eq 0 ]
