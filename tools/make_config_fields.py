#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/models/fields.json: the numbers, truth values and nulls among the fields that transformers'
configuration class of each supported architecture has, with their defaults.

    python3 tools/make_config_fields.py > tests/vectors/models/fields.json

Needs transformers >= 5.24 alone. tests/models/test_config.c changes each of them and expects to see that something
becomes of it; docs/decisions/041-unknown-config-fields.md says why. Never needed to build, run or test.
"""

import json
import re
from pathlib import Path

import transformers

# Of what sees too: the class of its text half.
TEXT = {
    "Gemma3ForCausalLM": "Gemma3TextConfig",
    "Gemma3ForConditionalGeneration": "Gemma3TextConfig",
    "Llama4ForCausalLM": "Llama4TextConfig",
    "Llama4ForConditionalGeneration": "Llama4TextConfig",
    "Qwen3_5ForCausalLM": "Qwen3_5TextConfig",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5TextConfig",
    "Qwen3_5MoeForCausalLM": "Qwen3_5MoeTextConfig",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeTextConfig",
}


def names():
    """Of the architectures, as their files register them."""
    found = []
    for path in sorted((Path(__file__).parent.parent / "src/models").glob("*.c")):
        if path.name == "draft_heads.c":  # no models by themselves
            continue
        found += re.findall(r'\.name = "(\w+For\w+)"', path.read_text())
    return sorted(found)


def fields(architecture):
    name = TEXT.get(architecture) or re.sub("For[A-Z].*", "Config", architecture)
    own = getattr(transformers, name)().to_dict()
    common = transformers.PreTrainedConfig().to_dict()
    return {k: v for k, v in sorted(own.items()) if k not in common and isinstance(v, (int, float, bool, type(None)))}


def main():
    rows = [f" {json.dumps(a)}: {json.dumps(fields(a))}" for a in names()]
    print("{\n" + ",\n".join(rows) + "\n}")


if __name__ == "__main__":
    main()
