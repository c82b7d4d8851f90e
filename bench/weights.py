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
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import qwen3_files  # noqa: E402
import serving  # noqa: E402

SHARD = 4 << 30  # bytes


def write_checkpoint(folder, model, seed):
    """In shards; the bytes that it has."""
    values = 16 * qwen3_files.noise(seed, -7, 1 << 20)
    shutil.copytree(model, folder)
    shards, room, total, index = [], 0, 0, {}
    for name, shape in qwen3_files.tensors(json.loads((model / "config.json").read_text())).items():
        size = qwen3_files.size_of(shape)
        if room < size:
            shards.append({})
            room = SHARD
        shards[-1][name] = shape
        room -= size
        total += size
    for i, shapes in enumerate(shards):
        file = "model-%05d-of-%05d.safetensors" % (i + 1, len(shards))
        qwen3_files.write(folder / file, shapes, values)
        index.update(dict.fromkeys(shapes, file))
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
