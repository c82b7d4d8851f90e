#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""/v1/embeddings of `minisgl serve` through the official openai client, unchanged.

    embeddings.py MINISGL MODEL

MODEL, which generates, becomes a folder in the form of Qwen3-Embedding's: modules.json, weights without a
head and without "model." in their names, a tokenizer that ends texts with a token of its own. Exits 77
(skipped) when the package (`pip install openai`) is not there.
"""
import json
import math
import shutil
import struct
import sys
import tempfile
from pathlib import Path

from serving import Server, check

try:
    import openai
except ImportError:
    print("skipped: the openai package is not installed")
    sys.exit(77)

PROGRAM, MODEL = sys.argv[1:]
TEXTS = ["What is 27 + 58?", "The weather in Paris."]


def tensors(folder):
    """Name, header entry and bytes of all tensors."""
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        n = struct.unpack_from("<Q", data)[0]
        for name, entry in json.loads(data[8:8 + n]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                yield name, entry, data[8 + n + begin:8 + n + end]


def write_weights(folder, out):
    header, blob = {}, b""
    for name, entry, data in tensors(folder):
        if name.startswith("model."):
            header[name.removeprefix("model.")] = dict(entry, data_offsets=[len(blob), len(blob) + len(data)])
            blob += data
    text = json.dumps(header).encode()
    out.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def end_texts(tokenizer, special):
    """The post-processor that Qwen3-Embedding's tokenizer.json has."""
    end = next(t["id"] for t in tokenizer["added_tokens"] if t["content"] == special)
    piece = {"SpecialToken": {"id": special, "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, piece],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, piece, {"Sequence": {"id": "B", "type_id": 0}}, piece],
        "special_tokens": {special: {"id": special, "ids": [end], "tokens": [special]}}}
    return end


def write_folder(out):
    model = Path(MODEL)
    for name in ("generation_config.json", "tokenizer_config.json"):
        shutil.copy(model / name, out)
    config = json.loads((model / "config.json").read_text())
    config["tie_word_embeddings"] = False  # as of the largest one, whose head is missing all the same
    (out / "config.json").write_text(json.dumps(config))
    write_weights(model, out / "model.safetensors")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    end = end_texts(tokenizer, tokenizer["added_tokens"][0]["content"])
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    (out / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": path, "type": "sentence_transformers.models." + kind}
        for i, (path, kind) in enumerate(kinds)]))
    (out / "1_Pooling").mkdir()
    (out / "1_Pooling" / "config.json").write_text(json.dumps({
        "word_embedding_dimension": config["hidden_size"], "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True, "include_prompt": True}))
    return config["hidden_size"], end


class Client(Server):
    """A server and, in `with`, openai's client of it."""

    def __init__(self, model, *options):
        super().__init__(PROGRAM, model, "--num-pages", "600", *options)

    def __enter__(self):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=120)


def floats(numbers):
    """The floats that they name."""
    return list(struct.unpack("%df" % len(numbers), struct.pack("%df" % len(numbers), *numbers)))


def close(a, b):
    return len(a) == len(b) and all(abs(x - y) < 1e-5 for x, y in zip(a, b))


def embeddings(client, hidden, end):
    """The vectors of TEXTS, and their ids."""
    r = client.embeddings.create(model="embedder", input=TEXTS)  # the client asks for base64
    vectors = [d.embedding for d in r.data]
    check([d.index for d in r.data] == [0, 1] and {len(v) for v in vectors} == {hidden}, "a vector for each input")
    check(all(abs(math.hypot(*v) - 1) < 1e-5 for v in vectors), "of length 1")
    check(not close(*vectors), "which differ")
    numbers = client.embeddings.create(model="embedder", input=TEXTS[0], encoding_format="float")
    check(floats(numbers.data[0].embedding) == vectors[0], "numbers are what base64 has")
    short = client.embeddings.create(model="embedder", input=TEXTS, dimensions=8).data
    for cut, v in zip(short, vectors):
        length = math.hypot(*v[:8])
        check(close(cut.embedding, [x / length for x in v[:8]]), "dimensions are the first ones, of length 1")
    ids = client.post(str(client.base_url.join("/tokenize")), cast_to=object, body={"prompt": TEXTS})["tokens"]
    check([i[-1] for i in ids] == [end, end], "texts end with the tokenizer's token")
    r = client.embeddings.create(model="embedder", input=ids)
    check([d.embedding for d in r.data] == vectors, "ids are what texts become")
    check(r.usage.prompt_tokens == r.usage.total_tokens == sum(map(len, ids)), "usage")
    check(client.embeddings.create(model="embedder", input=ids[0]).data[0].embedding == vectors[0], "ids of one input")
    return vectors, ids


def refusals(client, hidden):
    for kw in ({"dimensions": hidden + 1}, {"encoding_format": "int8"}, {"input": ""}):
        try:
            client.embeddings.create(**{"model": "embedder", "input": "a", **kw})
            check(False, "%s must be refused" % kw)
        except openai.BadRequestError as e:
            check(e.param == next(iter(kw)), "%s is refused by name" % e.param)
    try:
        client.chat.completions.create(model="embedder", messages=[{"role": "user", "content": "Hello"}])
        check(False, "a chat must be refused")
    except openai.BadRequestError as e:
        check("makes embeddings" in e.message, "a chat is refused: %s" % e.message)


def batch(client, vectors):
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/embeddings",
              "body": {"model": "embedder", "input": text}} for i, text in enumerate(TEXTS)]
    file = client.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    b = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    while b.status not in ("completed", "failed"):
        b = client.batches.retrieve(b.id)
    check(b.status == "completed", "a batch")
    text = client.files.content(b.output_file_id).text
    got = {o["custom_id"]: o["response"]["body"]["data"][0]["embedding"] for o in map(json.loads, text.splitlines())}
    check([floats(got["0"]), floats(got["1"])] == vectors, "its vectors are those that requests get")


with tempfile.TemporaryDirectory() as name:
    embedder = Path(name) / "embedder"
    embedder.mkdir()
    size, last = write_folder(embedder)
    with Client(embedder, "--batch-dir", Path(name) / "batches") as c:
        want, tokens = embeddings(c, size, last)
        refusals(c, size)
        batch(c, want)
with Client(MODEL, "--is-embedding", "--tp-size", 2) as c:
    data = c.embeddings.create(model="demo", input=tokens).data
    cosines = [sum(x * y for x, y in zip(d.embedding, v)) for d, v in zip(data, want)]
    check(min(cosines) > 0.9999, "--is-embedding, on two ranks: %s" % cosines)
with Client(MODEL) as c:
    try:
        c.embeddings.create(model="demo", input="a")
        check(False, "a model that answers must refuse")
    except openai.BadRequestError as e:
        check("--is-embedding" in e.message, "a model that answers refuses: %s" % e.message)
