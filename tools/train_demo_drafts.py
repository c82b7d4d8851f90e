#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model's draft heads, an EAGLE-3 one and an MTP one, on its own answers.

    python3 tools/train_demo_drafts.py answers models/demo WORK --minisgl build/minisgl
    python3 tools/train_demo_drafts.py states models/demo WORK
    python3 tools/train_demo_drafts.py train models/demo WORK eagle3 models/demo-eagle3
    python3 tools/train_demo_drafts.py train models/demo WORK mtp models/demo-mtp --steps 4
    python3 tools/train_demo_drafts.py evaluate models/demo WORK models/demo-eagle3 models/demo-mtp

`answers` asks the model the questions of demo_corpus.py, each with temperature 0 or 1; `states`
runs it over them once more with transformers and keeps its hidden states (WORK: 3 GB); `train`
unrolls a head as a chain of drafts is computed (training-time test,
docs/decisions/059-draft-heads.md) and fits it to the model's probabilities; `evaluate` follows
held-out answers with the files as written. Needs torch (a CPU is enough), transformers, tokenizers,
safetensors, jinja2, numpy.
"""

import argparse
import json
import math
import random
import subprocess
import time
from pathlib import Path

import jinja2.sandbox
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

import demo_corpus
from train_demo import CONFIG

TRAIN_SEED, HELD_OUT_SEED = 20261129, 424242
LONGEST_PROMPT, LONGEST_ANSWER = 320, 256
AUX_LAYERS = [1, 3, 4]  # of six; the states behind them, numbered as SpecForge does
COMMON = 2048  # tokens that MTP's training loss is taken over: the commonest in answers
TOP = {key: value for key, value in CONFIG.items() if "window" not in key}  # what both share with the model
EAGLE3 = TOP | dict(
    architectures=["LlamaForCausalLMEagle3"],
    draft_vocab_size=1408,
    eagle_config=dict(
        eagle_aux_hidden_state_layer_ids=AUX_LAYERS,
        use_aux_hidden_state=True,
    ),
    intermediate_size=256,
    model_type="llama",
    num_attention_heads=4,
    num_hidden_layers=1,
    num_key_value_heads=2,
    tie_word_embeddings=False,
)
MTP = TOP | dict(
    architectures=["Qwen3ForCausalLMMTP"],
    intermediate_size=256,
    model_type="qwen3",
    mtp_num_hidden_layers=1,
    num_attention_heads=8,
    num_hidden_layers=6,
    num_key_value_heads=4,
    tie_word_embeddings=True,
)


# --- the model's own answers -------------------------------------------------------------------


def renderer(folder):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    return env.from_string((Path(folder) / "chat_template.jinja").read_text()).render


def prompts(folder, seed, count):
    """Token ids of dialogues up to one of the assistant's turns, drawn at random."""
    tok, render = Tokenizer.from_file(f"{folder}/tokenizer.json"), renderer(folder)
    rng, out = random.Random(seed), []
    for d in demo_corpus.dialogues(seed, count + count // 4):
        turns = [i for i, m in enumerate(d["messages"]) if m["role"] == "assistant"]
        tools = {"tools": d["tools"]} if "tools" in d else {}
        text = render(
            messages=d["messages"][: rng.choice(turns)], add_generation_prompt=True, **tools
        )
        ids = tok.encode(text).ids
        if len(ids) <= LONGEST_PROMPT and len(out) < count:
            out.append(ids)
    assert len(out) == count
    return out


def ask(args, name, asked, temperatures):
    """Runs minisgl over prompts; writes [prompt, answer, temperature] as lines of JSON."""
    given, got = args.work / f"{name}.in.jsonl", args.work / f"{name}.out.jsonl"
    got.unlink(missing_ok=True)
    with given.open("w") as f:
        for i, (ids, t) in enumerate(zip(asked, temperatures)):
            line = dict(prompt=ids, temperature=t, max_tokens=LONGEST_ANSWER, seed=i)
            f.write(json.dumps(line) + "\n")
    command = [args.minisgl, "run", "--model", args.folder, "--device", "cpu"]
    subprocess.run([*command, "--threads", "2", "--input", given, "--output", got], check=True)
    with (args.work / f"{name}.jsonl").open("w") as f:
        for ids, t, line in zip(asked, temperatures, got.open()):
            f.write(json.dumps([ids, json.loads(line)["token_ids"], t]) + "\n")


def answers(args):
    args.work.mkdir(parents=True, exist_ok=True)
    rng = random.Random(TRAIN_SEED)
    asked = prompts(args.folder, HELD_OUT_SEED, 40)
    ask(args, "held_out", asked + asked, [0] * 40 + [1] * 40)
    seen = {tuple(ids) for ids in asked}
    asked = [p for p in prompts(args.folder, TRAIN_SEED, args.prompts) if tuple(p) not in seen]
    ask(args, "train", asked, [rng.choice([0, 1]) for _ in asked])


# --- hidden states of the model ----------------------------------------------------------------


def load_answers(path):
    """Lists of (prompt length, all token ids, temperature); answers of two tokens and more."""
    lines = [json.loads(line) for line in path.open()]
    return [(len(p), p + a, t) for p, a, t in lines if len(a) > 1]


@torch.no_grad()
def write_states(model, rows, path, fast):
    """float16 [tokens, 4 * hidden]: the three auxiliary states, and that behind the final norm.
    Fast: products of bfloat16, which training does not mind."""
    starts = np.cumsum([0] + [len(ids) for _, ids, _ in rows])
    width = 4 * model.config.hidden_size
    out = np.lib.format.open_memmap(path, "w+", np.float16, (int(starts[-1]), width))
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][1]))
    t0, lo = time.time(), 0
    while lo < len(order):
        longest = len(rows[order[min(lo + 64, len(order)) - 1]][1])
        part = order[lo : lo + max(1, min(64, 6000 // longest))]
        longest = max(len(rows[i][1]) for i in part)
        ids = torch.zeros(len(part), longest, dtype=torch.long)  # padded behind: causal anyway
        for r, i in enumerate(part):
            ids[r, : len(rows[i][1])] = torch.tensor(rows[i][1])
        with torch.autocast("cpu", torch.bfloat16, enabled=fast):
            h = model(ids, output_hidden_states=True).hidden_states
        h = torch.cat([h[n + 1] for n in AUX_LAYERS] + [h[-1]], -1).half().numpy()
        for r, i in enumerate(part):
            out[starts[i] : starts[i + 1]] = h[r, : len(rows[i][1])]
        if lo // 1024 != (lo + len(part)) // 1024:
            print(f"{lo} of {len(order)}, {time.time() - t0:.0f} s", flush=True)
        lo += len(part)
    out.flush()


def states(args):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval().model
    for name in ("held_out", "train"):
        rows = load_answers(args.work / f"{name}.jsonl")
        write_states(model, rows, args.work / f"{name}.npy", fast=name == "train")


class Batch:
    """Answers padded in front to one length T. Pair j is (token j + 1, state j), j < T - 1; the last
    Q pairs begin chains, where `begins` says so."""

    def __init__(self, rows, starts, states_file, part):
        width = states_file.shape[1] // 4
        length = max(len(rows[i][1]) for i in part)
        self.q = max(len(rows[i][1]) - rows[i][0] for i in part)
        self.ids = torch.zeros(len(part), length, dtype=torch.long)
        h = np.zeros((len(part), length, 4 * width), np.float32)
        self.pad = torch.zeros(len(part), dtype=torch.long)
        self.begins = torch.zeros(len(part), self.q, dtype=torch.bool)
        for r, i in enumerate(part):
            prompt, ids, _ = rows[i]
            self.pad[r] = length - len(ids)
            self.ids[r, length - len(ids) :] = torch.tensor(ids)
            h[r, length - len(ids) :] = states_file[starts[i] : starts[i + 1]]
            self.begins[r, self.q - (len(ids) - prompt) :] = True
        h = torch.from_numpy(h)
        self.aux, self.final = h[..., : 3 * width], h[..., 3 * width :]
        self.pairs = length - 1

    def behind(self, x, s):
        """x[:, j + s] for the pairs j that begin chains; zeros behind the end."""
        lo = self.pairs - self.q + s
        part = x[:, lo : lo + self.q]
        return F.pad(part, (0, 0) * (x.dim() - 2) + (0, self.q - part.shape[1]))

    def counts(self, s):
        """Chains whose draft s (from 0) has a token to be compared with."""
        inside = torch.arange(self.q) + self.pairs - self.q + 2 + s <= self.pairs
        return self.begins & inside


def batches(rows, starts, states_file, rng, tokens):
    """Answers of like lengths behind prompts of like lengths together, in random order; `tokens`
    pairs a batch at most."""

    def alike(i):
        prompt, ids, _ = rows[i]
        return int(3 * math.log2(len(ids) - prompt)), len(ids) + 4 * rng.random()

    parts, part = [], []
    for i in sorted(range(len(rows)), key=alike):
        trial = part + [i]
        if len(trial) * max(len(rows[k][1]) for k in trial) > tokens and part:
            parts.append(part)
            trial = [i]
        part = trial
    parts.append(part)
    rng.shuffle(parts)
    return [lambda p=p: Batch(rows, starts, states_file, p) for p in parts]


# --- heads: module names are those of the files ------------------------------------------------


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, TOP["rms_norm_eps"])


def linear(rows_in, rows_out):
    return nn.Linear(rows_in, rows_out, bias=False)


class Attention(nn.Module):
    """Rows of one chain: those of the true states before it, and its own from step 1 on."""

    def __init__(self, c, width, norms):
        super().__init__()
        d, h = c["head_dim"], c["hidden_size"]
        self.q_proj = linear(width, c["num_attention_heads"] * d)
        self.k_proj = linear(width, c["num_key_value_heads"] * d)
        self.v_proj = linear(width, c["num_key_value_heads"] * d)
        self.o_proj = linear(c["num_attention_heads"] * d, h)
        if norms:
            self.q_norm, self.k_norm = Norm(d), Norm(d)
        inv = c["rope_theta"] ** (-torch.arange(0, d, 2) / d)
        angles = torch.outer(torch.arange(c["max_position_embeddings"]), inv).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.d, self.norms = d, norms
        self.groups = c["num_attention_heads"] // c["num_key_value_heads"]

    def heads(self, x, norm, positions):
        x = x.view(*x.shape[:2], -1, self.d)
        if norm:
            x = norm(x)
        if positions is not None:
            cos, sin = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
            half = self.d // 2
            x = x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin
        return x.float().transpose(1, 2)

    def forward(self, u, step, positions, mask, kept):
        """u, positions: of all pairs at step 0, of the chains' own rows later."""
        q_rows = mask.shape[2]
        q_norm, k_norm = (self.q_norm, self.k_norm) if self.norms else (None, None)
        q = self.heads(self.q_proj(u[:, -q_rows:]), q_norm, positions[:, -q_rows:])
        k = self.heads(self.k_proj(u), k_norm, positions).repeat_interleave(self.groups, 1)
        v = self.heads(self.v_proj(u), None, None).repeat_interleave(self.groups, 1)
        kept.append((k, v))
        k0, v0 = kept[0]
        scores = [q @ k0.transpose(2, 3) + mask]
        scores += [(q * k1).sum(-1, keepdim=True) for k1, _ in kept[1:]]
        p = torch.softmax(torch.cat(scores, -1) / math.sqrt(self.d), -1)
        y = p[..., : k0.shape[2]] @ v0
        for n, (_, v1) in enumerate(kept[1:]):
            y = y + p[..., k0.shape[2] + n, None] * v1
        return self.o_proj(y.transpose(1, 2).reshape(*u[:, -q_rows:].shape[:2], -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.up_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.down_proj = linear(c["intermediate_size"], c["hidden_size"])

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c, eagle):
        super().__init__()
        h = c["hidden_size"]
        self.self_attn = Attention(c, 2 * h if eagle else h, norms=not eagle)
        self.mlp = Mlp(c)
        self.input_layernorm, self.post_attention_layernorm = Norm(h), Norm(h)
        if eagle:
            self.hidden_norm = Norm(h)

    def rows(self, u, residual, *attention):
        y = self.self_attn(u, *attention)
        y = residual[:, -y.shape[1] :] + y
        return y + self.mlp(self.post_attention_layernorm(y))


class Eagle3(nn.Module):
    def __init__(self, c):
        super().__init__()
        h = c["hidden_size"]
        self.fc = linear(3 * h, h)
        self.midlayer = Layer(c, eagle=True)
        self.norm = Norm(h)
        self.lm_head = linear(h, c["draft_vocab_size"])

    def first(self, batch):
        return self.fc(batch.aux[:, :-1])

    def step(self, e, x, *attention):
        """(what the next step gets, what the head gets) of embeddings and states."""
        u = torch.cat((self.midlayer.input_layernorm(e), self.midlayer.hidden_norm(x)), -1)
        g = self.midlayer.rows(u, x, *attention)
        return g, self.norm(g)


class MtpLayers(nn.Module):
    def __init__(self, c):
        super().__init__()
        h = c["hidden_size"]
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Norm(h), Norm(h)
        self.fc = linear(2 * h, h)
        self.layers = nn.ModuleList([Layer(c, eagle=False)])
        self.norm = Norm(h)


class Mtp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.mtp = MtpLayers(c)

    def first(self, batch):
        return batch.final[:, :-1]

    def step(self, e, x, *attention):
        m = self.mtp
        x = m.fc(torch.cat((m.pre_fc_norm_embedding(e), m.pre_fc_norm_hidden(x)), -1))
        g = m.norm(m.layers[0].rows(m.layers[0].input_layernorm(x), x, *attention))
        return g, g


def unroll(head, embedding, batch, steps):
    """What the head's matrix is applied to, at each step of the chains that begin at the last Q
    pairs: [batch, Q, hidden] each. Their tokens are the answer's: up to the first wrong draft they
    are the chain's own."""
    column = torch.arange(batch.pairs)
    positions = (column - batch.pad[:, None]).clamp(min=0)
    own = column[-batch.q :]
    sees = (column <= own[:, None]) & (column >= batch.pad[:, None, None])
    mask = torch.where(sees, 0.0, -1e9)[:, None]
    x, kept, out = head.first(batch), [], []
    e = F.embedding(batch.ids[:, 1:], embedding)
    for s in range(steps):
        if s > 0:
            e = F.embedding(batch.behind(batch.ids, s + 1), embedding)
            positions = positions[:, -batch.q :] + 1
        x, y = head.step(e, x, s, positions, mask, kept)
        out.append(y)
    return out


def loss_of(head, embedding, batch, steps, vocab, decay):
    """Cross-entropy with the model's probabilities over `vocab`, where its choice is in it."""
    matrix = head.lm_head.weight if isinstance(head, Eagle3) else embedding[vocab]
    inside = torch.zeros(len(embedding), dtype=torch.bool)
    inside[vocab] = True
    with torch.no_grad():
        teacher = F.linear(batch.behind(batch.final, 0), embedding)
        known = inside[teacher.argmax(-1)]
        teacher = torch.softmax(teacher[..., vocab].float(), -1)
    total, weights = 0.0, 0.0
    for s, y in enumerate(unroll(head, embedding, batch, steps)):
        # The row of draft s is that of token j + 1 + s; `behind` has moved by 0.
        q = batch.q - s - 1
        if q <= 0:
            break
        use = batch.counts(s)[:, :q] & known[:, s + 1 :]
        log_p = torch.log_softmax(F.linear(y[:, :q][use], matrix).float(), -1)
        ce = -(teacher[:, s + 1 :][use] * log_p).sum(-1)
        total = total + decay**s * ce.sum()
        weights += decay**s * len(ce)
    return total / max(weights, 1.0)


# --- training ----------------------------------------------------------------------------------


def model_tensors(folder):
    out = {}
    for path in sorted(Path(folder).glob("model*.safetensors")):
        out |= {k: v.float() for k, v in load_file(path).items()}
    return out


def begin(head, tensors, vocab):
    """Begins with what the model has: MTP with its last layer's attention, EAGLE-3 with its head."""
    for name, p in head.named_parameters():
        if p.dim() == 2:
            deep = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(p, std=0.02 / (math.sqrt(12) if deep else 1))
    with torch.no_grad():
        head_norm = tensors["model.norm.weight"] / 2  # not yet so sure of it
        if isinstance(head, Eagle3):
            head.lm_head.weight.copy_(tensors["model.embed_tokens.weight"][vocab])
            head.norm.weight.copy_(head_norm)
            head.fc.weight[:, -len(head_norm) :] += torch.eye(len(head_norm))
            return
        m, h = head.mtp, len(head_norm)
        m.norm.weight.copy_(head_norm)
        m.fc.weight[:, h:] += torch.eye(h)
        for name, p in m.layers[0].named_parameters():
            if "mlp" not in name:
                p.copy_(tensors[f"model.layers.5.{name}"])


def write_head(head, config, vocab, out):
    tensors = {k: v.detach().to(torch.bfloat16) for k, v in head.state_dict().items()}
    if isinstance(head, Eagle3):
        tensors["d2t"] = vocab - torch.arange(len(vocab))
        tensors["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool)
        tensors["t2d"][vocab] = True
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    (out / "config.json").write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")


def train(args):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    tensors = model_tensors(args.folder)
    embedding = tensors["model.embed_tokens.weight"]
    rows = load_answers(args.work / "train.jsonl")
    starts = np.cumsum([0] + [len(ids) for _, ids, _ in rows])
    states_file = np.load(args.work / "train.npy", mmap_mode="r")
    count = np.zeros(len(embedding), np.int64)
    for prompt, ids, _ in rows:
        np.add.at(count, ids[prompt:], 1)
    config = EAGLE3 if args.head == "eagle3" else MTP
    size = config.get("draft_vocab_size", COMMON)
    vocab = torch.from_numpy(np.sort(np.argsort(-count, kind="stable")[:size]))
    print(f"{count[vocab].sum() / count.sum():.4f} of answers' tokens in {size}", flush=True)
    head = (Eagle3 if args.head == "eagle3" else Mtp)(config)
    begin(head, tensors, vocab)
    matrices = [p for p in head.parameters() if p.dim() == 2]
    norms = [p for p in head.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=0.05), dict(params=norms, weight_decay=0)],
        lr=args.lr,
        betas=(0.9, 0.95),
    )
    rng, t0, step, shown = random.Random(1), time.time(), 0, 0.0
    for epoch in range(10**6):
        for make in batches(rows, starts, states_file, rng, args.tokens):
            spent = (time.time() - t0) / (60 * args.minutes)
            if spent >= 1:
                break
            rate = args.lr * min(1, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * spent))
            for g in opt.param_groups:
                g["lr"] = rate
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(head, embedding, make(), args.steps, vocab, 0.9)
            loss.backward()
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            step, shown = step + 1, shown + float(loss.detach())
            if step % 100 == 0:
                print(
                    f"step {step} epoch {epoch} loss {shown / 100:.4f} rate {rate:.1e} "
                    f"{time.time() - t0:.0f} s",
                    flush=True,
                )
                shown = 0.0
            if step % 500 == 0:
                write_head(head, config, vocab, args.out)
        if spent >= 1:
            break
    write_head(head, config, vocab, args.out)


# --- evaluation --------------------------------------------------------------------------------


def read_head(folder):
    """The head as its files have it, widened to float32, and the target ids of its rows."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    vocab = torch.arange(config["vocab_size"])
    if "d2t" in tensors:
        tensors.pop("t2d")
        vocab = torch.arange(config["draft_vocab_size"]) + tensors.pop("d2t")
    head = (Eagle3 if "fc.weight" in tensors else Mtp)(config)
    head.load_state_dict({k: v.float() for k, v in tensors.items()})
    return head, vocab


@torch.no_grad()
def accepted(head, vocab, embedding, batch, steps):
    """Of every chain how many of its first drafts are the answer's: [batch, Q]."""
    right = torch.ones(batch.begins.shape, dtype=torch.bool)
    count = torch.zeros(batch.begins.shape, dtype=torch.long)
    matrix = head.lm_head.weight if isinstance(head, Eagle3) else embedding
    for s, y in enumerate(unroll(head, embedding, batch, steps)):
        draft = vocab[F.linear(y, matrix).argmax(-1)]
        right &= batch.counts(s) & (draft == batch.behind(batch.ids, s + 2))
        count += right
    return count


def tokens_a_step(answers_of, most):
    """answers_of: per answer how many drafts behind each of its tokens are accepted. The first
    token is the prompt's step's and not counted."""
    tokens = steps = 0
    for run in answers_of:
        at = 0  # the last known token
        while at < len(run) - 1:
            at += min(run[at], most) + 1
            steps += 1
        tokens += len(run) - 1
    return tokens / steps


def evaluate(args):
    torch.set_num_threads(1)
    embedding = model_tensors(args.folder)["model.embed_tokens.weight"]
    rows = load_answers(args.work / "held_out.jsonl")
    starts = np.cumsum([0] + [len(ids) for _, ids, _ in rows])
    states_file = np.load(args.work / "held_out.npy", mmap_mode="r")
    for folder in args.heads:
        head, vocab = read_head(folder)
        runs = {0: [], 1: []}
        for i, (prompt, ids, temperature) in enumerate(rows):
            batch = Batch(rows, starts, states_file, [i])
            run = accepted(head, vocab, embedding, batch, 5)[0].tolist()
            assert len(run) == len(ids) - prompt
            runs[temperature].append(run)
        for temperature, found in runs.items():
            figures = [f"{tokens_a_step(found, n):.2f}" for n in range(1, 6)]
            print(
                f"{folder}: temperature {temperature}, {len(found)} answers of "
                f"{sum(map(len, found))} tokens, tokens a step with chains of 1 to 5: "
                + ", ".join(figures)
            )


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    modes = ap.add_subparsers(required=True)
    for mode in (answers, states, train, evaluate):
        p = modes.add_parser(mode.__name__)
        p.set_defaults(run=mode)
        p.add_argument("folder", help="the demo model")
        p.add_argument("work", type=Path, help="answers and states")
        if mode is answers:
            p.add_argument("--minisgl", default="build/minisgl")
            p.add_argument("--prompts", type=int, default=12000)
        elif mode is train:
            p.add_argument("head", choices=["eagle3", "mtp"])
            p.add_argument("out", type=Path)
            p.add_argument("--minutes", type=float, default=34)
            p.add_argument("--steps", type=int, default=5, help="drafts of a chain")
            p.add_argument("--tokens", type=int, default=2000, help="of a batch")
            p.add_argument("--lr", type=float, default=1.5e-3)
        elif mode is evaluate:
            p.add_argument("heads", type=Path, nargs="+")
    args = ap.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
