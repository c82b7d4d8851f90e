# SPDX-License-Identifier: Apache-2.0
"""Weights that change while the server runs, and memory that it gives back: answers before and behind are those, bit for
bit, of servers that were started with these weights.

    weights.py MINISGL MODEL
"""
import base64
import json
import os
import pathlib
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time

from serving import Server, check, until

PROMPT = "Count: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, "


def tensors_of(folder):
    """{name: (dtype, shape, bytes)} of all files of a folder."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        data = 8 + struct.unpack("<Q", raw[:8])[0]
        for name, t in json.loads(raw[8:data]).items():
            if name != "__metadata__":
                begin, end = t["data_offsets"]
                tensors[name] = (t["dtype"], t["shape"], raw[data + begin:data + end])
    return tensors


def file_of(tensors):
    """A safetensors file of {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    for name, (dtype, shape, value) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(value)]}
        data += value
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def flipped(tensor):
    """The same with all signs changed."""
    dtype, shape, value = tensor
    size = {"F32": 4, "F16": 2, "BF16": 2}[dtype]
    changed = bytearray(value)
    changed[size - 1::size] = bytes(b ^ 0x80 for b in changed[size - 1::size])
    return dtype, shape, bytes(changed)


def make_other(model, folder):
    """A model of the same shape in two of whose layers attention adds what the first one's takes away. Its changed
    tensors."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors = tensors_of(model)
    changed = {name: flipped(t) for name, t in tensors.items() if "o_proj" in name and (".2." in name or ".4." in name)}
    (folder / "model.safetensors").write_bytes(file_of({**tensors, **changed}))
    return changed


def ask(server, n=8, tokens=24, prompt=PROMPT, **more):
    params = {"max_new_tokens": tokens, "temperature": 1.0, "sampling_seed": 7, "n": n, "ignore_eos": True}
    return server.call("/generate", {"text": prompt, "sampling_params": params, "return_logprob": True,
                                     "logprob_start_len": 0, "top_logprobs_num": 3, **more})


def essence(answer):
    """What of an answer depends on the weights alone."""
    status, text = answer
    check(status == 200, "an answer: %.200s" % text)
    answers = json.loads(text)
    for a in answers:
        for name in ("id", "e2e_latency", "weight_version", "cached_tokens"):
            del a["meta_info"][name]
    return answers


def of_fresh(program, model, *options):
    with Server(program, model, *options) as server:
        return essence(ask(server))


def post(server, path, body=b"", **headers):
    status, text = server.call(path, body, headers)
    return status, json.loads(text)


def update(server, folder, **more):
    return post(server, "/update_weights_from_disk", {"model_path": str(folder), **more})


def check_trainers(server):
    """Requests as verl and slime send them."""
    params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 6, "stop": None, "stop_token_ids": [3],
              "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False}
    status, text = server.call("/generate", {"rid": "r1", "input_ids": [20, 21, 22], "sampling_params": params,
                                             "return_logprob": True, "image_data": None, "lora_path": None})
    check(status == 200, "a rollout: %.100s" % text)
    answer = json.loads(text)
    pairs = [(t[0], t[1]) for t in answer["meta_info"]["output_token_logprobs"]]
    check([i for _, i in pairs] == answer["output_ids"] and all(p <= 0 for p, _ in pairs), "with a log-probability each")
    check(answer["meta_info"]["id"] == "r1" and answer["meta_info"]["finish_reason"]["type"] in ("stop", "length"),
          "its name, and why it ended")


def check_shape(answers):
    a = answers[0]
    meta = a["meta_info"]
    check(len(answers) == 8 and len(a["output_ids"]) == meta["completion_tokens"] == 24, "ids of all tokens")
    check([t[1] for t in meta["output_token_logprobs"]] == a["output_ids"], "a log-probability for each of them")
    check(meta["input_token_logprobs"][0][0] is None and len(meta["input_token_logprobs"]) == meta["prompt_tokens"],
          "and for the prompt's, but the first")
    check(all(len(t) == 3 for t in meta["output_top_logprobs"]), "with the three likeliest")


def test_updates(server, first, other, changed, a, b, folder):
    check(essence(ask(server)) == a, "the first weights")
    check(json.loads(server.call("/get_weight_version")[1]) == {"weight_version": "default"}, "have no name")
    status, said = update(server, other, weight_version="b")
    check(status == 200 and said["success"] and said["num_paused_requests"] == 0, "an update: %s" % said)
    answer = ask(server)
    cached = [x["meta_info"]["cached_tokens"] for x in json.loads(answer[1])]
    check(essence(answer) == b, "answers are those of a server that was started with the new weights")
    check(cached[0] == 0, "nothing cached was computed by the old ones")
    check(json.loads(ask(server)[1])[0]["meta_info"]["weight_version"] == "b", "and have their name")
    check(json.loads(server.call("/get_model_info")[1])["weight_version"] == "b", "as the model's description")
    test_failures(server, other, folder)
    check(essence(ask(server)) == b, "after updates that failed the weights are what they were")
    check(json.loads(server.call("/weight_version")[1])["weight_version"] == "b", "and their name")
    back = tensors_of(first)
    half = sorted(changed)[: len(changed) // 2]
    named = [{"name": n, "dtype": "bfloat16" if back[n][0] == "BF16" else "float32" if back[n][0] == "F32" else "float16",
              "shape": back[n][1], "data": base64.b64encode(back[n][2]).decode()} for n in half]
    status, said = post(server, "/update_weights_from_tensor", {"named_tensors": named, "weight_version": "half"})
    check(status == 200 and said["success"], "tensors by themselves: %s" % said)
    mixed = essence(ask(server))
    check(mixed not in (a, b), "change the answers")
    rest = file_of({n: back[n] for n in changed if n not in half})
    status, said = post(server, "/update_weights_from_tensor?weight_version=a%2F1", rest,
                        **{"Content-Type": "application/octet-stream"})
    check(status == 200 and said["success"], "a file of tensors: %s" % said)
    check(essence(ask(server)) == a, "the first weights are back")
    check(update(server, first, weight_version="a")[0] == 200, "from disk, too")
    check(essence(ask(server)) == a, "with the same answers")


def test_failures(server, other, folder):
    """folder: a place for models that are wrong."""
    def refused(what, status, said):
        check(status == 400 and not said["success"] and what in said["message"], "refused: %s" % said["message"])

    bad = folder / "bad"
    shutil.copytree(other, bad)
    whole = (other / "model.safetensors").read_bytes()
    (bad / "model.safetensors").write_bytes(whole[:-1000])
    refused("tensor", *update(server, bad))
    tensors = tensors_of(other)
    name = next(n for n in tensors if "o_proj" in n)
    (bad / "model.safetensors").write_bytes(file_of({n: t for n, t in tensors.items() if n != name}))
    refused("missing", *update(server, bad))
    dtype, shape, value = tensors[name]
    (bad / "model.safetensors").write_bytes(file_of({**tensors, name: (dtype, [shape[0] // 2, shape[1] * 2], value)}))
    refused("shape", *update(server, bad))
    config = json.loads((other / "config.json").read_text())
    for field, found in (("hidden_size", config["hidden_size"] * 2), ("rms_norm_eps", 1e-3)):
        (bad / "config.json").write_text(json.dumps({**config, field: found}))
        refused(field, *update(server, bad))
    status, said = update(server, folder / "nowhere")
    check(status == 400 and not said["success"], "refused: %s" % said["message"])
    status, said = post(server, "/update_weights_from_tensor", {"serialized_named_tensors": ["gASV"]})
    check(status == 400 and "pickle" in said["error"]["message"], "refused: %s" % said["error"]["message"])
    status, said = post(server, "/update_weights_from_tensor", file_of({"nothing": tensors[name]}),
                        **{"Content-Type": "application/octet-stream"})
    refused("nothing", status, said)
    status, said = post(server, "/update_weights_from_tensor",
                        {"named_tensors": [{"name": name, "dtype": "float32", "shape": [3], "data": "AAAA"}]})
    check(status == 400 and "need 12" in said["error"]["message"], "refused: %s" % said["error"]["message"])
    group = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2, "group_name": "g"}
    refused("NCCL", *post(server, "/init_weights_update_group", group))
    refused("group", *post(server, "/destroy_weights_update_group", {"group_name": "g"}))
    named = {"names": ["a", "b"], "dtypes": ["bfloat16", "torch.float32"], "shapes": [[2], [3, 4]], "group_name": "g"}
    refused("group", *post(server, "/update_weights_from_distributed", named))
    for path, body, what in (("/init_weights_update_group", {}, "master_address"),
                             ("/init_weights_update_group", {**group, "master_port": 0}, "master_port"),
                             ("/init_weights_update_group", {**group, "backend": "gloo"}, "backend"),
                             ("/update_weights_from_distributed", {**named, "names": ["a"]}, "dtypes"),
                             ("/update_weights_from_distributed", {**named, "dtypes": ["int8", "bfloat16"]}, "dtypes[0]"),
                             ("/update_weights_from_distributed", {**named, "shapes": [[2], [-1]]}, "shapes[1]"),
                             ("/update_weights_from_distributed", {**named, "load_format": "flattened_bucket"}, "load_format")):
        status, said = post(server, path, body)
        check(status == 400 and what in said["error"]["message"], "%s: %s" % (path, said["error"]["message"]))


class Stream(threading.Thread):
    """A stream of one long answer: its last event so far, and how many came."""

    def __init__(self, server, tokens=1000):
        super().__init__(daemon=True)
        self.last, self.events, self.body = None, 0, {
            "text": PROMPT, "stream": True, "return_logprob": True,
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}}
        self.connection = server.connect()
        self.start()
        until("the answer begins", lambda: self.events > 3)

    def run(self):
        self.connection.request("POST", "/generate", json.dumps(self.body), {"Content-Type": "application/json"})
        for line in self.connection.getresponse():
            if line.startswith(b"data: {"):
                self.last = json.loads(line[6:])
                self.events += 1

    def quiet(self):
        before = self.events
        time.sleep(0.3)
        return self.events == before

    def stands(self):
        until("what was sent is read", self.quiet)
        return self.quiet() and self.last["meta_info"]["finish_reason"] is None

    def end(self):
        self.join(60)
        return self.last["meta_info"]["finish_reason"]["type"], self.last["output_ids"]


def test_in_flight(server, first, other, a, b):
    check(update(server, first)[0] == 200, "the first weights")
    whole = Stream(server).end()
    check(whole[0] == "length" and len(whole[1]) == 1000, "a long answer of the first weights")
    for mode in ("in_place", "retract"):
        stream = Stream(server)
        status, said = post(server, "/pause_generation", {"mode": mode})
        check(status == 200 and said["status"] == "ok", "paused %s" % mode)
        check(stream.stands(), "no token comes")
        late = []
        asking = threading.Thread(target=lambda: late.append(ask(server)))
        asking.start()
        status, said = update(server, other)
        check(status == 200 and said["num_paused_requests"] == 1, "an update meanwhile: %s" % said)
        check(stream.stands() and not late, "nothing goes on, and what is new waits")
        check(post(server, "/continue_generation", {})[1]["status"] == "ok", "it goes on")
        reason, ids = stream.end()
        check(reason == "length" and len(ids) == 1000 and ids != whole[1], "with other weights than it began with")
        asking.join(60)
        check(essence(late[0]) == b, "what waited has those of the update alone")
        check(essence(ask(server)) == b, "and nothing of the old ones is shared")
        check(update(server, first)[0] == 200, "the first weights")
    stream = Stream(server)
    check(post(server, "/pause_generation")[0] == 200, "paused by the default")
    check(stream.end()[0] == "abort", "which ends what runs")
    check(post(server, "/continue_generation")[0] == 200, "and goes on")
    stream = Stream(server)
    status, said = update(server, other, abort_all_requests=True)
    check(status == 200 and stream.end()[0] == "abort", "an update that ends what runs")
    check(update(server, first)[0] == 200 and essence(ask(server)) == a, "the first weights")
    stream = Stream(server)
    status, said = update(server, other)
    check(status == 200 and said["num_paused_requests"] == 0, "an update that waits")
    check(stream.end() == whole, "for what runs to end by the weights that it began with")
    check(essence(ask(server)) == b, "and then is there")


def resident(server):
    """Bytes that the engine's process has in memory."""
    status = pathlib.Path("/proc/%d/status" % server.children()[0]).read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")))


def test_sleep(server, first, other, changed, a, b):
    check(update(server, first)[0] == 200 and essence(ask(server)) == a, "the first weights")
    before = resident(server)
    check(post(server, "/sleep?level=1")[1]["success"], "it sleeps")
    check(json.loads(server.call("/is_sleeping")[1]) == {"is_sleeping": True}, "and says so")
    given = before - resident(server)
    weights = sum(path.stat().st_size for path in first.glob("*.safetensors"))
    check(given > weights // 2, "%d bytes were given back, of which %d had weights" % (given, weights))
    status, said = post(server, "/generate", {"text": "x", "sampling_params": {}})
    check(status == 503 and said["error"]["code"] == "weights_not_there", "503: %s" % said["error"]["message"])
    check(server.call("/health")[0] == 200 and server.call("/ready")[0] == 503, "it lives, and is not ready")
    status, said = update(server, other)
    check(status == 400 and "given back" in said["message"], "no update then: %s" % said["message"])
    check(post(server, "/wake_up?tags=weights")[1]["success"], "the weights wake up")
    check(post(server, "/generate", {"text": "x", "sampling_params": {}})[0] == 503, "the cache sleeps still")
    check(post(server, "/wake_up")[1]["success"] and essence(ask(server)) == a, "all is as before")
    check(json.loads(server.call("/is_sleeping")[1]) == {"is_sleeping": False}, "and says so")
    check(post(server, "/sleep?level=2")[1]["success"] and post(server, "/wake_up")[1]["success"], "a deep sleep")
    status, said = post(server, "/generate", {"text": "x", "sampling_params": {}})
    check(status == 503 and "discarded" in said["error"]["message"], "503: %s" % said["error"]["message"])
    raw = {"Content-Type": "application/octet-stream"}
    of_b = tensors_of(other)
    names = sorted(of_b)
    for part in (names[::2], names[1::2]):
        check(post(server, "/generate", {"text": "x", "sampling_params": {}})[0] == 503, "503 until all tensors came")
        status, said = post(server, "/update_weights_from_tensor", file_of({n: of_b[n] for n in part}), **raw)
        check(status == 200 and said["success"], "tensors: %s" % said)
    check(essence(ask(server)) == b, "answers are those of the other model")
    check(post(server, "/release_memory_occupation", {})[1]["success"], "weights that no file has")
    check(post(server, "/resume_memory_occupation", {"tags": ["kv_cache"]})[1]["success"], "the cache again")
    check(post(server, "/resume_memory_occupation", {"tags": ["weights"]})[1]["success"], "and the weights")
    check(essence(ask(server)) == b, "are there all the same")
    status, said = post(server, "/release_memory_occupation", {"tags": ["graphs"]})
    check(status == 400 and "tags" in said["error"]["message"], "refused: %s" % said["error"]["message"])
    check(post(server, "/sleep?level=3")[0] == 400, "there is no third level")


def test_rights(program, model):
    with Server(program, model, "--api-key", "one", "--admin-api-key", "boss") as server:
        for path in ("/pause_generation", "/update_weights_from_disk", "/sleep", "/update_weight_version"):
            status, said = post(server, path, {}, Authorization="Bearer one")
            check(status == 403 and said["error"]["code"] == "admin_key_needed", "%s is for admins" % path)
        status, said = post(server, "/update_weight_version", {"new_version": "v"}, Authorization="Bearer boss")
        check(status == 200 and said["new_version"] == "v", "who have a key: %s" % said)


def test_new_processes(program, model, other, b):
    """What the next front, and the next engine, know of the weights."""
    with Server(program, str(model)) as server:
        engine, front = server.children()
        check(update(server, other, weight_version="b")[0] == 200, "an update")
        check(post(server, "/pause_generation", {"mode": "in_place"})[0] == 200, "and a pause")
        os.kill(front, signal.SIGKILL)
        until("another front", lambda: server.children()[1:] not in ([], [front]))
        until("it serves", lambda: answers(server))
        check(json.loads(server.call("/get_weight_version")[1])["weight_version"] == "b", "it knows which weights there are")
        late = []
        asking = threading.Thread(target=lambda: late.append(ask(server)))
        asking.start()
        time.sleep(0.3)
        check(not late, "and that steps are paused")
        check(post(server, "/continue_generation", {})[0] == 200, "they go on")
        asking.join(60)
        check(essence(late[0]) == b, "with the weights of the update")
        os.kill(engine, signal.SIGKILL)
        # The front answers /health for the engine that is gone until it hears of that, so the version is asked first.
        until("another engine", lambda: json.loads(
            server.call("/get_weight_version")[1])["weight_version"] == "default" and answers(server))
        check(essence(ask(server)) != b, "has the weights that the server was started with, and says so")


def answers(server):
    try:
        return server.call("/health")[0] == 200
    except OSError:
        return False


def test_replicas(program, model, other, b):
    with Server(program, str(model), "--dp-size", "2") as server:
        check(update(server, other)[0] == 200, "both replicas update")
        check(all(essence(ask(server, prompt=PROMPT)) == b for _ in range(4)), "and answer alike")
        check(post(server, "/sleep")[1]["success"] and post(server, "/wake_up")[1]["success"], "both sleep and wake up")
        check(essence(ask(server)) == b, "and answer as before")
        status, said = update(server, other / "none")
        check(status == 400 and said["message"].startswith("engine "), "which one failed: %s" % said["message"])


def main():
    program, first = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        other = folder / "other"
        changed = make_other(first, other)
        a, b = of_fresh(program, str(first)), of_fresh(program, str(other))
        check_shape(a)
        check(a != b, "the two models answer differently")
        with Server(program, str(first)) as server:
            check_trainers(server)
            test_updates(server, first, other, changed, a, b, folder)
            test_in_flight(server, first, other, a, b)
            test_sleep(server, first, other, changed, a, b)
        two = ("--tp-size", "2")
        b2 = of_fresh(program, str(other), *two)
        with Server(program, str(first), *two) as server:
            check(update(server, other)[0] == 200 and essence(ask(server)) == b2, "two ranks update")
            shutil.rmtree(folder / "bad", ignore_errors=True)
            test_failures(server, other, folder)
            check(essence(ask(server)) == b2, "or both do not")
            check(post(server, "/sleep")[1]["success"] and post(server, "/wake_up")[1]["success"], "they sleep")
            check(essence(ask(server)) == b2, "and wake up")
        test_replicas(program, first, other, b)
        test_new_processes(program, first, other, b)
        test_rights(program, str(first))


if __name__ == "__main__":
    main()
