# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What the tests of commands count and compare with: they set $dir, a folder of their own, and read this.
passed=0
failed=0

# expect NAME EXIT_CODE WORDS COMMAND...: exit code, and WORDS (a basic regular expression) in the output.
expect() {
    name=$1 code=$2 words=$3
    shift 3
    "$@" >"$dir/out" 2>&1 </dev/null
    got=$?
    if [ $got -eq "$code" ] && grep -q -- "$words" "$dir/out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name: exit $got (expected $code), expected \"$words\" in:"
        head -5 "$dir/out"
    fi
}

check() { # NAME EXIT_CODE OF "test" OR "grep"
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAILED: $1"
    fi
}
