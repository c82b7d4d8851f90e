#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# llama-cpp-python 0.3.36: its llama.cpp's converter refuses every StableLM with norms of queries and keys.
# Expected: a StableLM with qk_layernorm (as StableLM 2 12B) has one norm for each head in its file; the converter stacks those of
# a layer to blk.N.attn_q_norm.weight and attn_k_norm.weight, for which the runtime has a place, and writes a GGUF file.
# Seen: ValueError, "Unprocessed norms", with the names of all of them, though none is missing. The method that meets the last
# norm of a layer returns what another makes of them; as it has a yield elsewhere, what it returns is dropped and the stacking
# never runs. The same model without qk_layernorm is converted. Such files cannot be had from this converter, so that an
# engine's reading of these two tensors cannot be compared with it.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
TMPDIR="$dir" "$dir/venv/bin/pip" install -q --no-cache-dir torch==2.15.0 transformers==5.24.0 numpy==2.4.6
TMPDIR="$dir" "$dir/venv/bin/pip" download -q --no-cache-dir --no-deps --no-binary llama-cpp-python -d "$dir" llama-cpp-python==0.3.36
tar -xzf "$dir/llama_cpp_python-0.3.36.tar.gz" -C "$dir"
cat >"$dir/show.py" <<'END'
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import StableLmConfig, StableLmForCausalLM

sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
import gguf
from conversion import ModelBase, get_model_class

print("transformers", transformers.__version__, "llama-cpp-python 0.3.36")
got = []
for norms in (False, True):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        StableLmForCausalLM(
            StableLmConfig(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                           num_key_value_heads=2, qk_layernorm=norms)
        ).save_pretrained(folder)
        hparams = ModelBase.load_hparams(folder, False)
        kind = get_model_class(hparams["architectures"][0])
        kind.set_vocab = kind._set_vocab_none  # the folder has no tokenizer
        try:
            with torch.inference_mode():
                kind(folder, gguf.LlamaFileType.ALL_F32, folder / "model.gguf", hparams=hparams).write()
            got.append(f"{len(gguf.GGUFReader(folder / 'model.gguf').tensors)} tensors written")
        except ValueError as error:
            got.append(str(error))
    print(f"qk_layernorm {norms}:", got[-1])
names = [f"model.layers.0.self_attn.{kind}_layernorm.norms.{head}.weight" for kind in "qk" for head in (0, 1)]
sys.exit(0 if got == ["15 tensors written", f"Unprocessed norms: {names}"] else 1)
END
"$dir/venv/bin/python" "$dir/show.py" "$dir/llama_cpp_python-0.3.36/vendor/llama.cpp" 2>/dev/null
