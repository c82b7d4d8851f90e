#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# safetensors 0.8.0: safetensors.numpy.save writes other values for an array that is not in row order.
# Expected: an array is saved by its values, as numpy.save does, or refused, as safetensors.torch refuses a tensor that is
# not contiguous.
# Seen: of a transposed array, of a Fortran-ordered one (what LAPACK-backed routines and many .mat readers give) and of a
# slice with a step, the bytes lie in the file as they lie in memory, under the shape of the view: load() gives a matrix of
# the right shape with its elements in other places. There is no error. Whoever converts weights with numpy (a transposed
# projection is the usual case) has to call numpy.ascontiguousarray first.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q safetensors==0.8.0 numpy==2.3.5
cat >"$dir/show.py" <<'END'
import sys
from importlib.metadata import version

import numpy
from safetensors.numpy import load, save

print("safetensors", version("safetensors"), "numpy", numpy.__version__)
x = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
same = []
for name, array in (("x.T", x.T), ("asfortranarray(x)", numpy.asfortranarray(x)), ("x[:, ::2]", x[:, ::2]),
                    ("ascontiguousarray(x.T)", numpy.ascontiguousarray(x.T))):
    back = load(save({"t": array}))["t"]
    same.append(bool((back == array).all()))
    print(f"{name:23} saved {array.tolist()} loaded {back.tolist()}" + ("" if same[-1] else "   <--"))
sys.exit(0 if same == [False, False, False, True] else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
