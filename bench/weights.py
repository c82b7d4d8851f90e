#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long new weights take on their way into a server that runs, and what sleep gives back.

    bench/weights.py MINISGL MODEL [--rounds 5] [--folder DIR] [-- OPTIONS OF minisgl serve]

MODEL is a folder of the Qwen3 family with a config.json and a tokenizer. Two checkpoints of its shape with random
values are written (to DIR; their bytes are in the page cache then), the server starts with the first, and updates go
from one to the other and back. Behind the last one the log-probabilities of 8 sampled answers have to be those of a
server that was started with that checkpoint, bit by bit. Then it sleeps (level 1) and wakes up; with an NVIDIA GPU the
memory that is free again is compared with what the server's plan says weights and cache take.
"""
import argparse
import array
import json
import pathlib
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import serving  # noqa: E402

SHARD = 4 << 30  # bytes


def tensors(c):
    """Names and shapes of the whole checkpoint."""
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    dim = c.get("head_dim", hidden // c["num_attention_heads"])
    q, kv = dim * c["num_attention_heads"], dim * c["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not c.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (c["vocab_size"], hidden)
    for layer in range(c["num_hidden_layers"]):
        at = "model.layers.%d." % layer
        for name, shape in (("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)),
                            ("self_attn.q_norm", (dim,)), ("self_attn.k_norm", (dim,)), ("self_attn.q_proj", (q, hidden)),
                            ("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden)),
                            ("self_attn.o_proj", (hidden, q)), ("mlp.gate_proj", (inner, hidden)),
                            ("mlp.up_proj", (inner, hidden)), ("mlp.down_proj", (hidden, inner))):
            shapes[at + name + ".weight"] = shape
    return shapes


def size_of(shape):
    return 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)


def write_shard(path, shapes, noise):
    header, end = {}, 0
    for name, shape in shapes:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size_of(shape)]}
        end += size_of(shape)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        while end > 0:
            f.write(noise[:end])
            end -= min(end, len(noise))


def write_checkpoint(folder, model, seed):
    """In shards, of values of either sign between 2^-7 and 2^-6, in bfloat16; the bytes that it has."""
    rng = random.Random(seed)
    noise = array.array("H", (0x3C00 | (rng.getrandbits(16) & 0x807F) for _ in range(1 << 20))).tobytes() * 16
    shutil.copytree(model, folder)
    shards, room, total, index = [], 0, 0, {}
    for name, shape in tensors(json.loads((model / "config.json").read_text())).items():
        if room < size_of(shape):
            shards.append([])
            room = SHARD
        shards[-1].append((name, shape))
        room -= size_of(shape)
        total += size_of(shape)
    for i, shapes in enumerate(shards):
        file = "model-%05d-of-%05d.safetensors" % (i + 1, len(shards))
        write_shard(folder / file, shapes, noise)
        index.update({name: file for name, _ in shapes})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return total


def post(server, path, body):
    status, text = server.call(path, body)
    if status != 200:
        raise SystemExit("bench/weights.py: %s: %d %s" % (path, status, text))
    return json.loads(text)


def timed(server, path, body):
    start = time.perf_counter()
    post(server, path, body)
    return time.perf_counter() - start


def rollouts(server):
    """Tokens and log-probabilities of 8 answers, as a trainer asks for them."""
    answers = post(server, "/generate", {"input_ids": list(range(100, 164)), "return_logprob": True, "sampling_params": {
        "n": 8, "max_new_tokens": 32, "temperature": 1, "sampling_seed": 1, "ignore_eos": True}})
    return [a["meta_info"]["output_token_logprobs"] for a in answers]


def gpu_mib():
    """Memory in use on the first GPU; None without one."""
    try:
        return int(subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"],
                                  check=True, capture_output=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return None


def planned_mib(text):
    return sum(float(re.search(r"^ *%s +([\d.]+)" % part, text, re.M)[1]) for part in ("weights", "KV pages"))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("minisgl")
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--folder")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    a, options = p.parse_args(sys.argv[1:at]), [*sys.argv[at + 1:], "--deterministic"]
    with tempfile.TemporaryDirectory(dir=a.folder) as temporary:
        folders = [pathlib.Path(temporary) / name for name in ("one", "other")]
        total = [write_checkpoint(folder, a.model, i) for i, folder in enumerate(folders)][0]
        with serving.Server(a.minisgl, str(folders[1]), *options) as server:
            fresh = rollouts(server)
        log, updates = pathlib.Path(temporary) / "log", []
        with open(log, "w") as f, serving.Server(a.minisgl, str(folders[0]), *options, stderr=f) as server:
            first = rollouts(server)
            for i in range(2 * a.rounds + 1):
                updates.append(timed(server, "/update_weights_from_disk", {"model_path": str(folders[(i + 1) % 2])}))
            equal = rollouts(server) == fresh
            awake = gpu_mib()
            sleep = timed(server, "/sleep?level=1", {})
            asleep = gpu_mib()
            wake = timed(server, "/wake_up", {})
            again = rollouts(server) == fresh
        planned = planned_mib(log.read_text())
    print(json.dumps({
        "model": a.model.name, "weights_gb": round(total / 1e9, 2), "update_s": round(statistics.median(updates[1:]), 2),
        "first_update_s": round(updates[0], 2), "sleep_s": round(sleep, 2), "wake_s": round(wake, 2),
        "freed": None if awake is None else round((awake - asleep) / planned, 3), "changed": first != fresh,
        "equal_to_a_fresh_start": equal, "equal_after_waking": again}))


main()
