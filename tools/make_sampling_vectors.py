#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/sampling: logits under bias and penalties, and answers chosen from them.

    python3 tools/make_sampling_vectors.py models/demo tests/vectors/sampling

Bias and repetition penalty are transformers' processors, in the order in which its generate() puts
them: SequenceBiasLogitsProcessor, then RepetitionPenaltyLogitsProcessor over prompt and answer.
Frequency and presence penalty are the formula of OpenAI's API reference, which transformers lacks:

    mu[j] -> mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence

with c[j] the times that token j is in the answer so far. Needs torch, transformers >= 5, tokenizers.
README.md in the output folder describes the files.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

OFF = dict(logit_bias=[], repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0)

LOGITS = [
    dict(repetition_penalty=1.3),
    dict(repetition_penalty=0.7),
    dict(repetition_penalty=5.0),
    dict(frequency_penalty=0.7),
    dict(frequency_penalty=-1.1),
    dict(presence_penalty=1.3),
    dict(frequency_penalty=2.0, presence_penalty=0.1),
    dict(bias=9),
    dict(bias=9, repetition_penalty=1.1),
    dict(bias=60, repetition_penalty=1.05, frequency_penalty=0.3, presence_penalty=-0.6),
    dict(repetition_penalty=1.7, presence_penalty=0.9),
    dict(repetition_penalty=1.2, frequency_penalty=-0.4),
    dict(bias=3, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.5, answer=0),
]

SETTINGS = [
    dict(repetition_penalty=1.3),
    dict(frequency_penalty=2.0),
    dict(logit_bias=[[262, 4.5], [13, -100.0], [11, 2.25]]),
    dict(
        logit_bias=[[275, -3.5], [291, 2.0]],
        repetition_penalty=1.1,
        frequency_penalty=0.6,
        presence_penalty=-0.4,
    ),
]

PROMPTS = [
    "How do you spell elephant?",
    "How many minutes are in 3 hours?",
    "Which attention backends are there?",
    "What is minisgl?",
    "Write a poem about the moon.",
    "Add 67 and 85 step by step.",
]


def adjusted(scores, prompt, answer, p):
    """scores [1, vocab] in f32 -> the scores that a token is chosen from."""
    ids = torch.tensor([prompt + answer])
    if p["logit_bias"]:
        bias = {(token,): value for token, value in p["logit_bias"]}
        scores = SequenceBiasLogitsProcessor(bias)(ids, scores)
    if p["repetition_penalty"] != 1:
        scores = RepetitionPenaltyLogitsProcessor(p["repetition_penalty"])(ids, scores)
    count = torch.bincount(torch.tensor(answer, dtype=torch.long), minlength=scores.shape[1])
    scores = scores - p["frequency_penalty"] * count.float()
    return scores - p["presence_penalty"] * (count > 0).float()


def bits(scores):
    return (scores[0].contiguous().view(torch.int32).long() & 0xFFFFFFFF).tolist()


def logit_cases():
    g = torch.Generator().manual_seed(11)
    for i, setting in enumerate(LOGITS):
        setting = dict(setting)
        vocab = [97, 128, 203][i % 3]
        num_bias, num_answer = setting.pop("bias", 0), setting.pop("answer", 60)
        p = dict(OFF, **setting)
        scores = torch.randn(1, vocab, generator=g) * 6
        scores[0, 5], scores[0, 6], scores[0, 7] = 0.0, -0.0, -float("inf")
        prompt = torch.randint(0, vocab, (40,), generator=g).tolist() + [5, 7, 7]
        # Half of the answer is from few tokens, so that counts differ.
        few = torch.randint(0, 8, (num_answer // 2,), generator=g).tolist()
        answer = few + torch.randint(0, vocab, (num_answer - len(few),), generator=g).tolist()
        tokens = torch.randperm(vocab, generator=g)[:num_bias].tolist()
        values = (torch.rand(num_bias, generator=g) * 200 - 100).half().float().tolist()
        p["logit_bias"] = [[t, v] for t, v in zip(tokens, values)]
        want = adjusted(scores, prompt, answer, p)
        yield dict(p, prompt=prompt, answer=answer, logits=bits(scores), adjusted=bits(want))


@torch.no_grad()
def greedy(model, ids, end, p, limit=48):
    out, margin = [], 1e9
    past, x = None, torch.tensor([ids])
    while len(out) < limit and (not out or out[-1] not in end):
        r = model(x, past_key_values=past, use_cache=True)
        past = r.past_key_values
        top = adjusted(r.logits[:, -1].float(), ids, out, p)[0].topk(2)
        out.append(int(top.indices[0]))
        margin = min(margin, float(top.values[0] - top.values[1]))
        x = torch.tensor([[out[-1]]])
    return out, margin


def answers(folder):
    tok = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    end = model.generation_config.eos_token_id
    for prompt in PROMPTS:
        messages = [dict(role="user", content=prompt)]
        text = tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tok.backend_tokenizer.encode(text, add_special_tokens=False).ids
        plain, _ = greedy(model, ids, end, OFF)
        for setting in SETTINGS:
            p = dict(OFF, **setting)
            got, margin = greedy(model, ids, end, p)
            said = tok.backend_tokenizer.decode(got, skip_special_tokens=True)
            print(f"{margin:7.4f} {got != plain} {setting} {prompt} -> {said!r}")
            if margin < 0.01 or got == plain:
                continue  # another program's rounding may choose otherwise; or it shows nothing
            yield dict(p, prompt_ids=ids, output_ids=got, min_margin=round(margin, 4))


def write(path, cases):
    path.write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


def main():
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    write(out / "logits.json", logit_cases())
    write(out / "answers.json", answers(folder))


if __name__ == "__main__":
    main()
