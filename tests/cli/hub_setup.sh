# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests of models by name, with MINISGL MODEL [PYTHON]: starts hub_server.py and says what it does.
set -u
minisgl=$1
model=$2
python=${3:-python3}
command -v "$python" >/dev/null || {
    echo "no python3: skipped"
    exit 77
}
dir=$(mktemp -d)
mkdir "$dir/state"
mkfifo "$dir/alive"
"$python" "$(dirname "$0")/hub_server.py" "$model" "$dir/state" <"$dir/alive" >"$dir/ports" 2>"$dir/server" &
exec 3>"$dir/alive" # the server ends when this is closed
trap 'exec 3>&-; wait; rm -rf "$dir"' EXIT
for _ in $(seq 100); do
    [ -s "$dir/ports" ] && break
    sleep 0.1
done
read -r port store <"$dir/ports"
unset VLLM_USE_MODELSCOPE SGLANG_USE_MODELSCOPE MODELSCOPE_DOMAIN MODELSCOPE_API_TOKEN MINISGL_MODEL_SOURCE
unset HF_HUB_CACHE HF_TOKEN HF_HUB_OFFLINE MINISGL_MODEL MINISGL_REVISION
for proxy in http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY; do unset $proxy; done
export HF_ENDPOINT="http://127.0.0.1:$port/" HF_HOME="$dir/home" NO_PROXY="*"
export MODELSCOPE_ENDPOINT="http://127.0.0.1:$port" MODELSCOPE_CACHE="$dir/scope"
commit=0123456789abcdef0123456789abcdef01234567
# shellcheck source=tests/cli/expect.sh
. "$(dirname "$0")/expect.sh"

fresh() { # MODE...: no cache, no log, and the server does this
    rm -rf "$HF_HOME" "$MODELSCOPE_CACHE" "$dir/state/log"
    echo "$*" >"$dir/state/mode"
}
whole() { # every file is the model's, nothing is half done
    for file in "$snapshot"/*; do
        cmp -s "$file" "$model/$(basename "$file")" || return 1
    done
    [ "$(find "$snapshot/" -name '*.safetensors' | wc -l)" -eq 2 ] &&
        [ -z "$(find "$root" -name '*.incomplete' -o -name '*.tmp')" ] && echo whole
}
grown() { # waits until a large file is half here
    for _ in $(seq 200); do
        [ -n "$(find "$root" -name '*.incomplete' -size +1000k 2>/dev/null)" ] && return
        sleep 0.05
    done
}
log() { # REGULAR_EXPRESSION: how many requests were like this
    grep -c -- "$1" "$dir/state/log"
}
