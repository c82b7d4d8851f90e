#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/demo: what transformers and tokenizers give for the demo model.

    python3 tools/make_demo_vectors.py models/demo tests/vectors/demo

Needs torch, transformers >= 5, tokenizers. README.md in the output folder describes the files.
"""

import json
import random
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import demo_corpus

DIALOGUES_SEED, POSITIONS = 424242, 4096  # training used other seeds

PROMPTS = """What is minisgl?|What is 27 + 58?|Tell me a short story about a fox.
How do I serve a model?|What is the capital of Norway?|How do you spell elephant?
Which attention backends are there?|How many minutes are in 3 hours?|Add 67 and 85 step by step.
Hello!|Write a poem about the moon.|What colour is grass?""".replace("\n", "|").split("|")

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t\n \n",
    "Hello",
    " Hello",
    "Hello, world!",
    "What is 27 + 58?",
    "12345 67.89",
    "isn't it? I'LL we've THEY'RE you'd I'm",
    "don\u2019t",
    "   leading and trailing   ",
    "a  b   c\n\nd\n \ne",
    "x=1;y=2;//comment",
    "--max-running-requests 8",
    "e\u0301 \u00e9 \u212b \u00c5",
    "\ufb01ne \uff21\uff22",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "\u3053\u3093\u306b\u3061\u306f",
    "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\u0627\u0644\u0633\u0644\u0627\u0645",
    "\u0915\u094d\u0937",
    "\U0001f98a fox \U0001f469\u200d\U0001f680",
    "\u0663\u0664 \u00bd \u2167",
    "\u200b\u00a0\u3000|",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|endoftext|><|endoftext|>",
    "<|im_start",
    "<tool_call>\n{}\n</tool_call>",
    "<think>hm</think>",
    "photosynthesis internationalization",
    "A\u0300B\u0301c\u0327",
    "naïve café Ångström",
    "\x00\x01\x7f",
    "The word elephant is spelled e-l-e-p-h-a-n-t.",
    "...!!!???",
    "#### \n\n## a",
    "\u1e9b\u0323",
]

TOOLS = [demo_corpus.tool("get_weather"), demo_corpus.tool("search")]


def user(text):
    return dict(role="user", content=text)


def said(text):
    return dict(role="assistant", content=text)


def call(name, arguments):
    return dict(type="function", function=dict(name=name, arguments=arguments))


TEMPLATES = [
    dict(messages=[user("Hi")], add_generation_prompt=True),
    dict(messages=[user("Hi")]),
    dict(
        messages=[dict(role="system", content="Be brief."), user("Hi")], add_generation_prompt=True
    ),
    dict(messages=[user("a"), said("b"), user("c\n")], add_generation_prompt=True),
    dict(messages=[user(" <|im_end|> \u00e9 \"q\" ")], add_generation_prompt=True),
    dict(messages=[user("What is the weather in Oslo?")], tools=TOOLS, add_generation_prompt=True),
    dict(messages=[dict(role="system", content="You are \u00c9cho."), user("x")], tools=TOOLS[:1]),
    dict(
        messages=[
            user("w"),
            dict(
                role="assistant",
                content="",
                tool_calls=[
                    call("get_weather", dict(city="Oslo")),
                    call("search", '{"query": "a<b"}'),
                ],
            ),
            dict(role="tool", content='{"sky": "sunny"}'),
            dict(role="tool", content="none"),
            said("ok"),
        ],
        tools=TOOLS,
        add_generation_prompt=True,
    ),
    dict(
        messages=[
            user("w"),
            dict(
                role="assistant",
                content=None,
                tool_calls=[
                    dict(name="search", arguments=dict(query="\u00fc", n=[1, 2.5, None, True]))
                ],
            ),
        ]
    ),
]


@torch.no_grad()
def greedy(model, ids, end, limit=160):
    out, logprobs, margin = [], [], 1e9
    past, x = None, torch.tensor([ids])
    while len(out) < limit and (not out or out[-1] not in end):
        r = model(x, past_key_values=past, use_cache=True)
        past, p = r.past_key_values, torch.log_softmax(r.logits[0, -1], -1)
        top = p.topk(2)
        out.append(int(top.indices[0]))
        logprobs.append(round(float(top.values[0]), 5))
        margin = min(margin, float(top.values[0] - top.values[1]))
        x = torch.tensor([[out[-1]]])
    return out, logprobs, round(margin, 4)


def main():
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    tok = AutoTokenizer.from_pretrained(folder)
    backend = tok.backend_tokenizer

    pairs = random.Random(5).sample(demo_corpus.held_out(), 200)
    with open(out / "additions.jsonl", "w") as f:
        for i, pair in enumerate(pairs):
            a, b = pair if i % 2 else pair[::-1]
            ask = ["What is {} + {}?", "What is {} plus {}?", "{}+{}", "Add {} and {}."][i % 4]
            f.write(json.dumps(dict(prompt=ask.format(a, b), a=a, b=b, sum=a + b)) + "\n")

    rows = []
    for d in demo_corpus.dialogues(DIALOGUES_SEED, 400):
        if sum(len(r) - 1 for r in rows) >= POSITIONS:
            break
        ids = tok.apply_chat_template(
            d["messages"], tools=d.get("tools"), tokenize=True, return_dict=False
        )
        rows.append(ids[:1024])
    (out / "dialogues.json").write_text(
        json.dumps(dict(ids=rows), separators=(",", ":")).replace("],", "],\n") + "\n"
    )

    cases = []
    for text in TEXTS:
        ids = backend.encode(text, add_special_tokens=False).ids
        cases.append(
            dict(
                text=text,
                ids=ids,
                decoded=backend.decode(ids, skip_special_tokens=False),
                decoded_skip_special=backend.decode(ids, skip_special_tokens=True),
            )
        )
    (out / "tokenizer.json").write_text(json.dumps(cases, indent=0) + "\n")

    rendered = []
    for case in TEMPLATES:
        case = dict(dict(tools=None, add_generation_prompt=False), **case)
        text = tok.apply_chat_template(
            case["messages"],
            tools=case["tools"],
            tokenize=False,
            add_generation_prompt=case["add_generation_prompt"],
        )
        rendered.append(dict(case, rendered=text))
    (out / "templates.json").write_text(json.dumps(rendered, indent=0) + "\n")

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    end = model.generation_config.eos_token_id
    results = []
    for prompt in PROMPTS:
        messages = [user(prompt)]
        text = tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = backend.encode(text, add_special_tokens=False).ids
        got, logprobs, margin = greedy(model, ids, end)
        results.append(
            dict(
                prompt=prompt,
                prompt_ids=ids,
                output_ids=got,
                logprobs=logprobs,
                min_margin=margin,
                text=backend.decode(got, skip_special_tokens=True),
            )
        )
        print(f"{margin:7.4f} {len(got):4d} {prompt} -> {results[-1]['text']!r}")
    (out / "greedy.json").write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
