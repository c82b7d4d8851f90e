#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program with a device that the core has never heard of: an answer of the model that ships, and
# what `info` says of it.
# usage: test_stub_device.sh MINISGL MODEL FOLDER-OF-THE-PLUG-IN
set -u
minisgl=$1 model=$2
export MINISGL_PLUGIN_DIR="$3"
fail() {
    echo "FAIL: $*" >&2
    exit 1
}
out=$("$minisgl" run "$model" --device stub --dtype float32 --weight-dtype rounded --temperature 0 \
    --prompt 'What is 27 + 58?' 2>&1) || fail "run: $out"
case $out in *'27 + 58 = 85.'*) ;; *) fail "run says: $out" ;; esac
case $out in *'weights '*' rounded'*) ;; *) fail "weights are not in the stub's form: $out" ;; esac
out=$("$minisgl" info --device stub --verbose 2>&1) || fail "info: $out"
case $out in *'stub:1 stub of a device, no processors, 2.1 of 2.1 GB free, no driver'*) ;; *) fail "info says: $out" ;; esac
case $out in *'minisgl-stub.so: for tests'*'plain, GPU: the definition of attention'*) ;; *) fail "info says: $out" ;; esac
out=$("$minisgl" info --device nobodys 2>&1) || fail "info: $out"
case $out in *'minisgl-nobodys.so is not in '*) ;; *) fail "info says: $out" ;; esac
echo ok
