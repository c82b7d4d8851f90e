# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# For .ci/run and .ci/nightly, which read this from the tree's root.
started=$(date +%s)
jobs=$(($(nproc) + 1)) # tests at once: many of them mostly wait
step_name='' step_start=$started
# step NAME: ends the step before it, says how long that took, and begins the next.
step() {
    now=$(date +%s)
    [ -z "$step_name" ] || echo "-- $step_name: $((now - step_start)) s"
    step_name=$1 step_start=$now
    [ -z "$1" ] || echo "== $1 ($(date +%H:%M:%S))"
}
# sanitized KIND TARGET: build-KIND, with what TARGET of it needs.
sanitized() {
    cmake -S . -B "build-$1" -G Ninja -DSAN="$1" -DMSGL_WERROR=ON >/dev/null
    ninja -C "build-$1" "$2"
}
