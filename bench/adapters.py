#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of a batch whose requests have LoRA adapters, beside the same batch without, turn by turn in one server.

    bench/adapters.py MINISGL MODEL [--adapters 4] [--rank 16] [--modules all|qkvo] [--batch 8] [--tokens 64]
                      [--prompt 32] [--rounds 7] [-- OPTIONS OF minisgl serve]

MODEL is a folder of the Qwen3 family with a config.json and a tokenizer; its weights are random (--dummy-weight),
and so are the adapters, which are written here and loaded over HTTP. A round is the time of `tokens` tokens less that
of one, so that prompts do not count. The ratio is the median of the rounds', each of two batches beside each other.
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import qwen3_files  # noqa: E402
import serving  # noqa: E402

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


def linears(config):
    """{name: (columns out, columns in)} of the blocks' linear layers, without the name's ending."""
    return {name.removesuffix(".weight"): shape for name, shape in qwen3_files.tensors(config).items()
            if ".layers." in name and len(shape) == 2}


def write_adapter(folder, config, rank, wanted, seed):
    """As PEFT saves it."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": sorted(wanted), "bias": "none"}))
    shapes = {}
    for name, (n, k) in linears(config).items():
        if name.rpartition(".")[2] in wanted:
            at = "base_model.model." + name
            shapes[at + ".lora_A.weight"], shapes[at + ".lora_B.weight"] = (rank, k), (n, rank)
    qwen3_files.write(folder / "adapter_model.safetensors", shapes, qwen3_files.noise(seed, -8, 1 << 16))


def call(server, path, body):
    """The answer's text."""
    status, text = server.call(path, body)
    if status != 200:
        raise SystemExit("bench/adapters.py: " + text)
    return text


def load(server, name, folder):
    """Seconds."""
    start = time.perf_counter()
    call(server, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
    return time.perf_counter() - start


def generate(server, a, tokens, names, seed):
    """Seconds that the batch takes, a connection a request; prompts that no cache has."""
    rng = random.Random(seed)

    def one(i, prompt):
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}}
        text = call(server, "/generate", {**body, "lora_path": names[i % len(names)]} if names else body)
        if json.loads(text)["meta_info"]["completion_tokens"] != tokens:
            raise SystemExit("bench/adapters.py: " + text)

    prompts = [[rng.randrange(100, 5000) for _ in range(a.prompt)] for _ in range(a.batch)]
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(a.batch) as pool:
        list(pool.map(one, range(a.batch), prompts))
    return time.perf_counter() - start


def main():
    p = argparse.ArgumentParser()
    p.add_argument("minisgl")
    p.add_argument("model", type=pathlib.Path)
    for name, usual in (("adapters", 4), ("rank", 16), ("batch", 8), ("tokens", 64), ("prompt", 32), ("rounds", 7)):
        p.add_argument("--" + name, type=int, default=usual)
    p.add_argument("--modules", choices=("all", "qkvo"), default="all")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    a, options = p.parse_args(sys.argv[1:at]), sys.argv[at + 1:]
    config = json.loads((a.model / "config.json").read_text())
    wanted = {name.rpartition(".")[2] for name in linears(config)}
    wanted = wanted & ATTENTION if a.modules == "qkvo" else wanted
    with tempfile.TemporaryDirectory() as temporary:
        names = ["a%d" % i for i in range(a.adapters)]
        for i, name in enumerate(names):
            write_adapter(pathlib.Path(temporary) / name, config, a.rank, wanted, i)
        with serving.Server(a.minisgl, str(a.model), "--dummy-weight", "--enable-lora", "--max-lora-rank", a.rank,
                            "--max-loras-per-batch", max(a.adapters, 1), *options) as server:
            first = [load(server, name, pathlib.Path(temporary) / name) for name in names]
            again = []  # into memory that the system has given before
            for name in names:
                call(server, "/v1/unload_lora_adapter", {"lora_name": name})
                again.append(load(server, name, pathlib.Path(temporary) / name))
            seconds, seed = {"without": [], "with": []}, 0
            for turn in range(a.rounds + 1):  # the first one warms both up
                for side, times in seconds.items():
                    seed += 2
                    chosen = names if side == "with" else []
                    short = generate(server, a, 1, chosen, seed)
                    times.append(generate(server, a, a.tokens, chosen, seed + 1) - short)
    rate = {side: (a.tokens - 1) * a.batch / statistics.median(times[1:]) for side, times in seconds.items()}
    ratios = [plain / own for plain, own in zip(seconds["without"][1:], seconds["with"][1:])]
    print(json.dumps({"model": a.model.name, "batch": a.batch, "adapters": a.adapters, "rank": a.rank,
                      "modules": a.modules, "tokens_per_s_without": round(rate["without"], 1),
                      "tokens_per_s_with": round(rate["with"], 1), "ratio": round(statistics.median(ratios), 3),
                      "ratios": [round(r, 3) for r in sorted(ratios)],
                      "load_ms": round(1e3 * statistics.median(first), 1) if first else None,
                      "load_again_ms": round(1e3 * statistics.median(again), 1) if again else None}))


main()
