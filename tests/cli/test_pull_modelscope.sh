#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_pull_modelscope.sh MINISGL MODEL [PYTHON]: models by name from ModelScope, whose stand-in is hub_server.py.
# shellcheck source=tests/cli/hub_setup.sh
. "$(dirname "$0")/hub_setup.sh"
root="$MODELSCOPE_CACHE"
cache="$root/models/org--small"
snapshot="$cache/snapshots/master"
export HF_ENDPOINT=http://127.0.0.1:1 MINISGL_MODEL_SOURCE=modelscope

fresh
expect "pull" 0 "^$snapshot\$" "$minisgl" pull org/small
expect "what came" 0 whole whole
expect "relative links" 0 "^../../blobs/[0-9a-f]\{64\}$" readlink "$snapshot/config.json"
expect "nothing else" 1 "^0$" log 'README\|\.bin'
expect "nothing of the other hub" 2 "No such file" ls "$HF_HOME"
rm "$dir/state/log"
for variable in VLLM_USE_MODELSCOPE=True SGLANG_USE_MODELSCOPE=1; do
    expect "run from the cache, $variable" 0 "85" env -u MINISGL_MODEL_SOURCE $variable "$minisgl" run org/small --chat \
        --temperature 0 --prompt "What is 27 + 58?"
done
[ -e "$dir/state/log" ] && failed=$((failed + 1)) && echo "FAILED: a cached model was asked for"
expect "the option before the variable" 1 "(revision main) is not in the cache $HF_HOME/hub" env VLLM_USE_MODELSCOPE=True \
    HF_HUB_OFFLINE=1 "$minisgl" pull org/small --model-source huggingface
expect "pull asks again" 0 "^$snapshot" "$minisgl" pull org/small
expect "and takes nothing twice" 0 "^1$" log .
expect "offline" 0 "^$snapshot" env HF_HUB_OFFLINE=1 "$minisgl" pull org/small
expect "a tag" 0 "^$cache/snapshots/v1/x\$" "$minisgl" pull org/small@v1/x
snapshot="$cache/snapshots/v1/x"
expect "of the same files" 0 whole whole
snapshot="$cache/snapshots/master"
expect "a folder" 2 "nothing to ask; allowed: huggingface or modelscope" "$minisgl" pull org/small --model-source local
expect "another source" 2 "huggingface|modelscope|local" "$minisgl" pull org/small --model-source modelscop

# What is missing, or may not be had.
fresh
expect "no such model" 1 "org/none (revision master): not found at http://127.0.0.1:$port (404.*if it is private, set MODELSCOPE_API_TOKEN" \
    "$minisgl" pull org/none
expect "no such revision" 1 "org/small has no revision main; allowed: master, v1/x" "$minisgl" pull org/small@main
expect "a host without a scheme" 1 "address is \"https://a@b\"" env -u MODELSCOPE_ENDPOINT MODELSCOPE_DOMAIN=a@b \
    "$minisgl" pull org/small
expect "no address" 1 "allowed: https://HOST.*as MODELSCOPE_ENDPOINT" env MODELSCOPE_ENDPOINT=ftp://x "$minisgl" pull org/small
expect "offline, not here" 1 "(revision master) is not in the cache $root, and HF_HUB_OFFLINE" env HF_HUB_OFFLINE=1 \
    "$minisgl" run org/small --prompt x
fresh code
expect "an error that looks like an answer" 1 "the hub says: the model is being.checked" "$minisgl" pull org/small
fresh nosum
expect "no checksums" 1 "no size or no checksum" "$minisgl" pull org/small
for bad in ../../evil.json /etc/evil.json a//evil.json 'evil\.json'; do
    fresh "name=$bad"
    expect "the file name $bad" 1 "is not allowed; nothing was downloaded" "$minisgl" pull org/small
done
expect "nothing was" 1 "^0$" log FilePath
fresh need=secret
expect "no token" 1 "answers 401.*set MODELSCOPE_API_TOKEN" env HF_TOKEN=secret "$minisgl" pull org/small
expect "a wrong one" 1 "401.*the token of MODELSCOPE_API_TOKEN may not" env MODELSCOPE_API_TOKEN=wrong "$minisgl" pull org/small
expect "which is not shown" 1 "^0$" grep -c "wrong" "$dir/out"
expect "the right one" 0 "^$snapshot" env MODELSCOPE_API_TOKEN=secret "$minisgl" pull org/small
fresh hide=secret
expect "hidden" 1 "not found.*if it is private" "$minisgl" pull org/small
expect "not from its owner" 0 "^$snapshot" env MODELSCOPE_API_TOKEN=secret "$minisgl" pull org/small
expect "the hub saw the token" 0 "[1-9]" log "^hub .* token$"
expect "the other host did not" 1 "^0$" log "^store .* token$"
expect "though it was asked" 0 "[1-9]" log "^store "

# Connections that end, a wrong byte.
fresh cut=3000000
expect "cut again and again" 0 "again in" "$minisgl" pull org/small
expect "and went on" 0 "[3-9]" log "bytes=[0-9]*000000-"
expect "whole all the same" 0 whole whole
fresh wrong
expect "a wrong byte" 1 "not what the hub says: checksum .*removed" "$minisgl" pull org/small
expect "nothing of it stays" 1 "^0$" sh -c "find $root -name '*.incomplete' | grep -c ."
fresh slow
"$minisgl" pull org/small >"$dir/out" 2>&1 &
pid=$!
grown
kill -KILL $pid
wait $pid
echo "" >"$dir/state/mode"
expect "resumed" 0 "^$snapshot" "$minisgl" pull org/small
expect "with a range" 0 "[1-9]" log "^store .*bytes=[1-9]"
expect "whole" 0 whole whole
if command -v script >/dev/null; then
    fresh slow
    script -qc "\"$minisgl\" pull org/small" /dev/null >"$dir/bar" 2>&1 </dev/null
    expect "bar" 0 "org/small \[[#.]*\] *[0-9]*%  [0-9.]* / [0-9.]* MB  [0-9.]* MB/s  [0-9]*:[0-9]* left" cat "$dir/bar"
fi

# Copies that its client has made, in the layouts of several years.
for old in models/org hub/models/org org hub/org; do
    fresh
    mkdir -p "$root/$old"
    cp -r "$model" "$root/$old/small"
    expect "a copy in $old" 0 "^$root/$old/small\$" env HF_HUB_OFFLINE=1 "$minisgl" pull org/small
    expect "which is of no other revision" 1 "is not in the cache" env HF_HUB_OFFLINE=1 "$minisgl" pull org/small@v1/x
done
expect "asked for, nothing is sent again" 0 "^$snapshot" "$minisgl" pull org/small
expect "but the list" 0 "^1$" log .
expect "nor written" 0 "^2$" stat -L -c %h "$snapshot/config.json"
fresh
mkdir -p "$snapshot"
cp "$model"/* "$snapshot"
echo >>"$snapshot/config.json"
expect "a copy in its layout of today" 0 "^$snapshot\$" env HF_HUB_OFFLINE=1 "$minisgl" pull org/small
expect "and what is new" 0 "^$snapshot\$" "$minisgl" pull org/small
expect "which is one file" 0 "^2$" log .
expect "whole then" 0 whole whole

# The client itself.
if "$python" -c "import modelscope" 2>/dev/null; then
    fresh
    "$minisgl" pull org/small >/dev/null 2>&1
    expect "its client finds ours" 0 "^$snapshot\$" "$python" -c "
import modelscope as m
print(m.snapshot_download('org/small', local_files_only=True))"
    rm "$dir/state/log"
    expect "and asks for the rest" 0 "^$snapshot\$" "$python" -c "
import modelscope as m
print(m.snapshot_download('org/small', ignore_patterns=['README.md']))"
    expect "which is none" 1 "^0$" log "FilePath"
    cp -r "$model" "$dir/newer"
    echo >>"$dir/newer/config.json"
    blob=$(readlink -f "$snapshot/config.json")
    echo "folder=$dir/newer" >"$dir/state/mode"
    expect "it takes what is new" 0 "^$snapshot\$" "$python" -c "
import modelscope as m
print(m.snapshot_download('org/small', ignore_patterns=['README.md']))"
    expect "in the place of our link" 0 plain sh -c "[ -L $snapshot/config.json ] || echo plain"
    expect "not through it" 0 same sh -c "cmp $blob $model/config.json && echo same"
    rm "$dir/state/log"
    expect "which we take over" 0 "^$snapshot\$" "$minisgl" pull org/small
    expect "without a byte" 1 "^0$" log "FilePath"
    fresh need=secret
    expect "it downloads" 0 "^$snapshot\$" env MODELSCOPE_API_TOKEN=secret "$python" -c "
import modelscope as m
print(m.snapshot_download('org/small'))"
    expect "which is found" 0 "^$snapshot\$" env HF_HUB_OFFLINE=1 "$minisgl" pull org/small
    expect "whole by its hand" 0 whole whole
else
    echo "no modelscope: not compared with it"
fi
expect "the stand-in had no errors" 1 "^0$" sh -c "grep -v 'BrokenPipe\|ConnectionReset' \"$dir/server\" | grep -c Error"

echo "$passed passed, $failed failed (hub $port, store $store)"
[ $failed -eq 0 ]
