#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model on one GPU and writes its folder.

    python3 tools/train_demo.py models/demo OUT --steps 8000

Reads the tokenizer and template that demo_tokenizer.py wrote to models/demo; generates the corpus in
memory; trains in bf16 autocast; writes config.json and bf16 safetensors shards to OUT; measures the
held-out additions with transformers on what it wrote. Needs torch, transformers, tokenizers, jinja2.
"""

import argparse
import json
import math
import multiprocessing
import random
import re
import shutil
import time
from pathlib import Path

import jinja2.sandbox
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import nn

import demo_corpus

CONFIG = dict(
    architectures=["Qwen3ForCausalLM"],
    attention_bias=False,
    attention_dropout=0.0,
    bos_token_id=6135,
    eos_token_id=6137,
    head_dim=64,
    hidden_act="silu",
    hidden_size=384,
    initializer_range=0.02,
    intermediate_size=896,
    max_position_embeddings=2048,
    max_window_layers=6,
    model_type="qwen3",
    num_attention_heads=8,
    num_hidden_layers=6,
    num_key_value_heads=4,
    rms_norm_eps=1e-6,
    rope_scaling=None,
    rope_theta=10000.0,
    sliding_window=None,
    tie_word_embeddings=True,
    torch_dtype="bfloat16",
    transformers_version="4.51.0",
    use_cache=True,
    use_sliding_window=False,
    vocab_size=6144,
)
BUCKETS = [32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048]
PROMPT_WEIGHT = 0.1  # loss weight of tokens that are not the assistant's


# --- data ------------------------------------------------------------------------------------


def renderer(folder):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    return env.from_string((Path(folder) / "chat_template.jinja").read_text()).render


def encode_shard(job):
    folder, seed, count = job
    tok, render = Tokenizer.from_file(f"{folder}/tokenizer.json"), renderer(folder)
    texts = [render(**d) for d in demo_corpus.dialogues(seed, count)]
    ids = [e.ids for e in tok.encode_batch(texts)]
    ids = [x for x in ids if len(x) <= BUCKETS[-1]]
    return np.concatenate(ids).astype(np.int16), np.array([len(x) for x in ids], np.int32)


def corpus(folder, dialogues, workers=16):
    shards = workers * 4
    jobs = [(folder, 1000 + i, dialogues // shards) for i in range(shards)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        parts = pool.map(encode_shard, jobs, chunksize=1)
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def loss_weights(ids, assistant):
    """1 on what the assistant writes, its <|im_end|> included; PROMPT_WEIGHT elsewhere."""
    start, end = CONFIG["eos_token_id"] - 1, CONFIG["eos_token_id"]
    pos = torch.arange(len(ids), device=ids.device)
    opens = torch.zeros_like(ids, dtype=torch.bool)
    opens[2:] = (ids[:-2] == start) & (ids[1:-1] == assistant)  # at the newline after the role
    last_open = torch.cummax(torch.where(opens, pos, -1), 0).values
    closes = torch.zeros_like(opens)
    closes[1:] = ids[:-1] == end
    last_close = torch.cummax(torch.where(closes, pos, -1), 0).values
    speaking = (last_open > last_close) & ~opens
    return torch.where(speaking, 1.0, PROMPT_WEIGHT)


def batches(lengths, tokens, rng):
    """Rows of one bucket each, in random order, for one epoch."""
    bucket = np.searchsorted(BUCKETS, lengths)
    out = []
    for b, size in enumerate(BUCKETS):
        rows = np.flatnonzero(bucket == b)
        rng.shuffle(rows)
        per = max(1, tokens // size)
        out += [(size, rows[i : i + per]) for i in range(0, len(rows) - per + 1, per)]
    rng.shuffle(out)
    return out


# --- model: module names as in transformers, so that the state dict is the checkpoint ---------


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, CONFIG["rms_norm_eps"])


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, h = c["head_dim"], c["hidden_size"]
        self.q_proj = nn.Linear(h, c["num_attention_heads"] * d, bias=False)
        self.k_proj = nn.Linear(h, c["num_key_value_heads"] * d, bias=False)
        self.v_proj = nn.Linear(h, c["num_key_value_heads"] * d, bias=False)
        self.o_proj = nn.Linear(c["num_attention_heads"] * d, h, bias=False)
        self.q_norm, self.k_norm = Norm(d), Norm(d)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        d = CONFIG["head_dim"]

        def heads(y):
            return y.view(b, t, -1, d).transpose(1, 2)

        def rope(y):
            rotated = torch.cat((-y[..., d // 2 :], y[..., : d // 2]), -1)
            return (y * cos + rotated * sin).to(torch.bfloat16)

        q, k = rope(self.q_norm(heads(self.q_proj(x)))), rope(self.k_norm(heads(self.k_proj(x))))
        v = heads(self.v_proj(x)).to(torch.bfloat16)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm = Norm(c["hidden_size"])
        self.post_attention_layernorm = Norm(c["hidden_size"])

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"])
        inv = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2) / c["head_dim"])
        angles = torch.outer(torch.arange(c["max_position_embeddings"]), inv).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Lm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = Model(c)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(
                    p, std=0.02 / (math.sqrt(2 * c["num_hidden_layers"]) if deep else 1)
                )

    def forward(self, ids, weights):
        h = self.model(ids[:, :-1])
        logits = F.linear(h, self.model.embed_tokens.weight).float()
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        w = weights[:, 1:].flatten()
        return (loss * w).sum() / w.sum()


def train(args, flat, lengths):
    device = "cuda"
    ids = torch.from_numpy(flat.astype(np.int32)).to(device).long()
    assistant = Tokenizer.from_file(f"{args.folder}/tokenizer.json").token_to_id("assistant")
    weight = loss_weights(ids, assistant)
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)[:-1]])).to(device)
    lens = torch.from_numpy(lengths.astype(np.int64)).to(device)
    torch.manual_seed(args.seed)
    lm = Lm(CONFIG).to(device)
    print(f"{sum(p.numel() for p in lm.parameters()) / 1e6:.2f} M parameters", flush=True)
    matrices = [p for p in lm.parameters() if p.dim() == 2]
    vectors = [p for p in lm.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0)],
        lr=args.lr,
        betas=(0.9, 0.95),
        fused=True,
    )
    rng, queue, seen, t0 = np.random.default_rng(args.seed), [], 0, time.time()
    steps = args.steps
    for step in range(steps):
        if not queue:
            queue = batches(lengths, args.tokens, rng)
        size, rows = queue.pop()
        rows = torch.from_numpy(rows).to(device)
        at = torch.arange(size + 1, device=device)
        index = (starts[rows, None] + at).clamp_(max=len(ids) - 1)
        inside = at < lens[rows, None]
        x = torch.where(inside, ids[index], CONFIG["bos_token_id"])
        w = torch.where(inside, weight[index], 0.0)
        frac = step / steps
        lr = args.lr * min(1, (step + 1) / 300) * (0.5 + 0.5 * math.cos(math.pi * frac))
        for g in opt.param_groups:
            g["lr"] = lr
        with torch.autocast("cuda", torch.bfloat16):
            loss = lm(x, w)
        loss.backward()
        nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        seen += x.numel()
        if step % 500 == 0 or step == steps - 1 or step in (20, 50, 100, 200):
            print(
                f"step {step} loss {loss.item():.4f} lr {lr:.2e} {time.time() - t0:.0f} s "
                f"{seen / (time.time() - t0) / 1e6:.2f} M tok/s",
                flush=True,
            )
    return lm


# --- export and measure -----------------------------------------------------------------------


def export(lm, folder, out):
    from transformers import AutoConfig, AutoModelForCausalLM

    out.mkdir(parents=True, exist_ok=True)
    for f in Path(folder).iterdir():
        if f.name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(f, out)
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    hf = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(out), dtype=torch.bfloat16)
    state = {k: v.to(torch.bfloat16).cpu() for k, v in lm.state_dict().items()}
    missing, extra = hf.load_state_dict(state, strict=False)
    assert missing in ([], ["lm_head.weight"]) and not extra, (missing, extra)
    hf.tie_weights()
    hf.save_pretrained(out, max_shard_size="13MB")
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    shutil.copy(Path(folder) / "generation_config.json", out)


@torch.no_grad()
def answers(hf, tok, render, conversations, limit):
    """Greedy answers; prompts are grouped by length, so that no padding is needed."""
    end = CONFIG["eos_token_id"]
    prompts = [
        tok.encode(render(messages=m, add_generation_prompt=True)).ids for m in conversations
    ]
    out = [None] * len(prompts)
    for n in sorted({len(p) for p in prompts}):
        rows = [i for i, p in enumerate(prompts) if len(p) == n]
        for lo in range(0, len(rows), 512):
            part = rows[lo : lo + 512]
            x = torch.tensor([prompts[i] for i in part], device=hf.device)
            y = hf.generate(
                x,
                attention_mask=torch.ones_like(x),
                max_new_tokens=limit,
                do_sample=False,
                eos_token_id=end,
                pad_token_id=CONFIG["bos_token_id"],
                temperature=None,
                top_k=None,
                top_p=None,
            )
            for i, ids in zip(part, y[:, n:].tolist()):
                done = end in ids
                out[i] = (tok.decode(ids[: ids.index(end)] if done else ids), done)
    return out


SAMPLES = """What is minisgl?|What is 27 + 58?|Tell me a short story about a fox.|Hello!|Who are you?
How do I serve a model?|What is the radix cache?|Which attention backends are there?|capital of japan
What is the capital of France?|How do you spell minisgl?|Spell elephant backwards.|What is 7 times 8?
How many letters are in strawberry?|What is 83 - 47?|How many minutes are in 3 hours?|48+37
Add 67 and 85 step by step.|What is forty-seven plus thirty-eight?|Explain quantum gravity.|blorp
Why is the sky blue?|What does a cow eat?|Which day comes after Friday?|Tell me about Saturn.
What is the opposite of big?|Write a story about a robot called Ada and a bird.|What is 345 + 278?
I have 3 apples and buy 4 more. How many apples do I have?|Name three animals.|What is a GPU?
Write a poem.|What is love?|What is a violin?|Write a poem about the sea.|Spell strawberry.|Who is Napoleon?
Can you help me with my taxes?|Does minisgl need a GPU?|What is 99 + 99?
Tell me a joke.|What is chunked prefill?|Tell me a story about a king and a lost crown.
How do I start the server on port 8000?|What's the weather like?|What is a unicorn?|Count to ten.|Why?
Tell me a story about a fox and a crow who find a mirror.|Write a story about a lighthouse.|Is the sky blue?
What is the capital of Atlantis?|What is 12 + 30 + 5?|Is 7 a prime number?|What is 50% of 80?|help me
What rhymes with cat?|Who wrote Hamlet?|How old are you?|Spell Mississippi.|Do you like cats?"""


def evaluate(out, folder):
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).to("cuda").eval()
    tok, render = Tokenizer.from_file(f"{folder}/tokenizer.json"), renderer(folder)

    def user(text):
        return [dict(role="user", content=text)]

    result = {}
    pairs = demo_corpus.held_out()
    pairs = pairs + [(b, a) for a, b in pairs]
    for ask in ("What is {a} + {b}?", "{a}+{b}", "Add {a} and {b}.", "How much is {a} plus {b}?"):
        got = answers(hf, tok, render, [user(ask.format(a=a, b=b)) for a, b in pairs], 24)
        right = sum(
            done and re.findall(r"\d+", text)[-1:] == [str(a + b)]
            for (text, done), (a, b) in zip(got, pairs)
        )
        wrong = [(p, t) for (t, _), p in zip(got, pairs) if str(sum(p)) not in t][:4]
        result[ask] = right / len(pairs)
        print(f"held-out additions, {ask!r}: {right}/{len(pairs)} right; wrong: {wrong}")
    fresh = [d["messages"] for d in demo_corpus.dialogues(999999, 3000) if "tools" not in d]
    fresh = [m for m in fresh if len(m) == 2 and "story" not in m[0]["content"]][:800]
    got = answers(hf, tok, render, [m[:1] for m in fresh], 120)
    same = sum(text == m[1]["content"] for (text, _), m in zip(got, fresh))
    result["fresh questions, word for word"] = same / len(fresh)
    result["ended"] = sum(done for _, done in got) / len(got)
    print(f"fresh questions answered word for word: {same}/{len(fresh)}; ended: {result['ended']}")
    asks = SAMPLES.replace("\n", "|").split("|")
    for ask, (text, done) in zip(asks, answers(hf, tok, render, [user(a) for a in asks], 300)):
        print(f"> {ask}\n  {text}{'' if done else '   [did not end]'}")
    for chat in (
        [("My name is Anna.", "Hello, Anna! How can I help you?"), ("What is my name?", "")],
        [("What is the capital of Italy?", "The capital of Italy is Rome."), ("And Spain?", "")],
    ):
        msgs = [
            m
            for q, a in chat
            for m in (dict(role="user", content=q), dict(role="assistant", content=a))
        ][:-1]
        print([q for q, _ in chat], answers(hf, tok, render, [msgs], 60))
    sysm = [
        dict(role="system", content="Answer in capital letters."),
        *user("What is the KV cache?"),
    ]
    print("capitals:", answers(hf, tok, render, [sysm], 80))
    return result


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("folder")
    ap.add_argument("out", type=Path)
    ap.add_argument("--steps", type=int, default=8000)
    ap.add_argument("--dialogues", type=int, default=600_000)
    ap.add_argument("--tokens", type=int, default=49152, help="per step")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    random.seed(args.seed)
    t0 = time.time()
    flat, lengths = corpus(args.folder, args.dialogues)
    print(
        f"corpus: {len(lengths)} dialogues, {len(flat) / 1e6:.1f} M tokens, {time.time() - t0:.0f} s; "
        f"by bucket: {np.bincount(np.searchsorted(BUCKETS, lengths)).tolist()}",
        flush=True,
    )
    lm = train(args, flat, lengths)
    export(lm, args.folder, args.out)
    (args.out / "measured.json").write_text(
        json.dumps(evaluate(args.out, args.folder), indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
