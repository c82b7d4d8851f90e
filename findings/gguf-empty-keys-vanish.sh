#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gguf 0.19.0: keys with an empty value are not written, and nested lists come back flat.
# Expected: what add_string and add_array were given is in the file, or is refused (a list of mixed types is).
# Seen: a string "" and a list [] leave no key at all, without a word: "no chat template" and "an empty one" cannot be told
# apart, and a reader that demands a key which the model's author set to "" fails. False, 0 and a list of "" are written.
# A list of lists is written as the format allows it, but the reader's contents() has one list of all numbers.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q gguf==0.19.0 numpy==2.3.5
cat >"$dir/show.py" <<'END'
import os
import sys
import tempfile
from importlib.metadata import version

from gguf import GGUFReader, GGUFWriter

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "a.gguf")
    writer = GGUFWriter(path, "llama")
    writer.add_string("tokenizer.chat_template", "")
    writer.add_array("general.tags", [])
    writer.add_array("general.languages", ["", "en"])
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_uint32("general.file_type", 0)
    writer.add_array("test.nested", [[1, 2], [3]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fields = {key: field.contents() for key, field in GGUFReader(path).fields.items() if not key.startswith("GGUF.")}
print("gguf", version("gguf"))
for key, value in fields.items():
    print(key, "=", repr(value))
print("absent:", [key for key in ("tokenizer.chat_template", "general.tags") if key not in fields])
sys.exit(0 if fields == {"general.architecture": "llama", "general.languages": ["", "en"], "tokenizer.ggml.add_bos_token": False,
                         "general.file_type": 0, "test.nested": [1, 2, 3]} else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
