#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts a folder of tests/vectors with the converter of llama.cpp itself, as the truth that this project's
reading of GGUF files is compared with.

    python3 tools/convert_by_llama_cpp.py LLAMA_CPP_DIR MODEL_DIR FILE.gguf f32|f16|bf16|q8_0 [OPTION...]

LLAMA_CPP_DIR has convert_hf_to_gguf.py (PyPI's source archive of llama-cpp-python has it in vendor/llama.cpp); the
options are the converter's. Its tables of known tokenizers do not have those of the vectors, which is changed here: every
tokenizer is written as byte-level BPE with GPT-2's pattern. And the configs of MiMo-V2-Flash and Nemotron-H are read as
their files have them: transformers, which knows both since 5.24, calls the one's parameters of rotation otherwise than
the converter expects, and gives the other experts.
StableLM's norms of heads are written, which the converter of llama-cpp-python 0.3.36 loses (it returns them from a
generator).
"""

import json
import runpy
import sys
from pathlib import Path


def main():
    if len(sys.argv) < 5:
        raise SystemExit(__doc__)
    root, folder, out, kind, *options = sys.argv[1:]
    sys.path[:0] = [root, str(Path(root) / "gguf-py")]
    from conversion import get_model_class
    from conversion.base import ModelBase, TextModel

    config = json.loads((Path(folder) / "config.json").read_text())
    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    if config["model_type"] in ("mimo_v2_flash", "nemotron_h"):
        ModelBase.load_hparams = staticmethod(lambda *_, **__: json.loads((Path(folder) / "config.json").read_text()))
    found = get_model_class(config["architectures"][0])
    if config["model_type"] == "stablelm":
        modify = found.modify_tensors

        def modify_tensors(self, *args):
            yield from (yield from modify(self, *args)) or ()

        found.modify_tensors = modify_tensors
    found = getattr(found, "Ministral3Model", found)  # Mistral 3's has the one that writes inside
    found.set_vocab = TextModel._set_vocab_gpt2
    sys.argv = ["convert_hf_to_gguf.py", folder, "--outfile", out, "--outtype", kind, *options]
    runpy.run_path(str(Path(root) / "convert_hf_to_gguf.py"), run_name="__main__")


if __name__ == "__main__":
    main()
