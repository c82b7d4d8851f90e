#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What whoever runs `minisgl serve` relies on, with the model that ships.

    operators.py MINISGL MODEL

The front is killed while answers stream and a batch runs: the port stays bound, the engines stay up with their caches
and forget what was asked, the next request is answered and the batch is finished. SIGTERM while answers stream: probes
are told until the last one has ended, others are refused. A Unix socket: who may connect, through a front that is killed
as well, and that nothing is left.
"""
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import serving
from serving import LIMIT_S, check, until

program, model = sys.argv[1:3]
LONG = {"prompt": [1, 2, 3], "ignore_eos": True, "stream": True}
servers = []


def below(pid):
    return list(map(int, pathlib.Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()))


class Server(serving.Server):
    def __init__(self, *more):
        super().__init__(program, model, "--threads", "1", *more)
        servers.append(self)

    def get(self, path):
        status, text = self.call(path)
        check(status == 200, "%s is answered" % path)
        return json.loads(text)

    def stats(self):
        """Of each engine, in the order of replicas; an empty one of an engine that does not serve."""
        info = json.loads(self.call("/get_server_info")[1])
        each = [r.get("stats") or {} for r in info["replicas"]] if "replicas" in info else [info.get("stats") or {}]
        return each

    def idle(self):
        return all(s and s["used_pages"] == s["running"] == s["waiting"] == 0 for s in self.stats())

    def processes(self):
        """Engines with their ranks, and the front, which is the last of the children to be started."""
        *engines, front = self.children()
        return [p for e in engines for p in [e, *below(e)]], front

    def stream(self, tokens=2000):
        """A stream whose first tokens have come."""
        c = self.connect()
        c.request("POST", "/v1/completions", json.dumps(dict(LONG, max_tokens=tokens)))
        r = c.getresponse()
        check(r.status == 200 and r.readline().startswith(b"data: "), "an answer streams")
        return r

    def end(self):
        """Exit code after SIGTERM; nothing is left of it."""
        all_of_it = [*self.children(), *[p for c in self.children() for p in below(c)]]
        self.process.terminate()
        code = self.process.wait(LIMIT_S)
        left = [p for p in all_of_it if os.path.exists("/proc/%d" % p)]
        check(not left, "no process is left")
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", self.port))
        return code


# ---- the front is killed ----


def cut(stream):
    """The end of a stream whose server is gone, which is not the end of an answer."""
    text = b""
    try:
        while True:
            line = stream.readline()
            if not line:
                break
            text += line
    except (OSError, http.client.HTTPException):
        pass
    return b"[DONE]" not in text


def check_front_killed(name, more, replicas):
    s = Server(*more)
    ask = {"prompt": "What is 2 + 3?", "max_tokens": 20, "temperature": 0}
    text = json.loads(s.call("/v1/completions", ask)[1])["choices"][0]["text"]
    old, front = s.processes()
    for round in range(2):
        streams = [s.stream() for _ in range(2 * replicas)]
        os.kill(front, signal.SIGKILL)
        # No client is refused while there is no front.
        status, answer = s.call("/v1/completions", ask)
        check(status == 200 and json.loads(answer)["choices"][0]["text"] == text,
              "%s: the next request is answered" % name)
        check(all(map(cut, streams)), "%s: streams have ended" % name)
        until("%s: no request is left in the engines" % name, s.idle)
        engines, again = s.processes()
        check(engines == old and again != front, "%s: the engines are the same, the front is another" % name)
        front = again
        aborted = sum(e["requests_aborted"] for e in s.stats())
        check(aborted == len(streams) * (round + 1), "%s: what the old front asked was aborted" % name)
    repeat = {"prompt": [*range(1, 101)], "max_tokens": 1}
    for _ in range(replicas + 1):  # one engine at least has it twice
        usage = json.loads(s.call("/v1/completions", repeat)[1])["usage"]
    check(usage["prompt_tokens_details"]["cached_tokens"] >= 90, "%s: prompts are cached as before" % name)
    check(s.end() == 0, "%s: it ends with status 0" % name)


def check_batch():
    folder = tempfile.mkdtemp()
    s = Server("--batch-dir", folder)
    lines = [json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                         "body": {"prompt": [i + 1, 2, 3], "max_tokens": 300, "ignore_eos": True}}) for i in range(12)]
    form = ('--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B\r\nContent-Disposition: form-data; '
            'name="file"; filename="in.jsonl"\r\n\r\n%s\r\n--B--\r\n' % "\n".join(lines)).encode()
    status, text = s.call("/v1/files", form, {"Content-Type": "multipart/form-data; boundary=B"})
    check(status == 200, "a batch's file is taken")
    status, text = s.call("/v1/batches", {"input_file_id": json.loads(text)["id"], "endpoint": "/v1/completions",
                                          "completion_window": "24h"})
    check(status == 200, "a batch is begun")
    path = "/v1/batches/" + json.loads(text)["id"]
    until("the batch runs", lambda: s.stats()[0]["running"] > 0)
    os.kill(s.processes()[1], signal.SIGKILL)

    def done():
        batch = json.loads(s.call(path)[1])
        return batch["status"] == "completed" and batch["request_counts"] == {"total": 12, "completed": 12, "failed": 0}

    until("the batch is finished by the next front", done)
    check(s.end() == 0, "a batch goes on with the next front")
    shutil.rmtree(folder)


# ---- SIGTERM ----


def check_drain(name, more, replicas):
    s = Server("--shutdown-timeout", str(LIMIT_S), *more)
    streams = [s.stream(200) for _ in range(2 * replicas)]
    check(s.call("/ready")[0] == 200, "%s: ready before" % name)
    engines = s.processes()[0]
    for e in engines:
        os.kill(e, signal.SIGSTOP)  # the answers do not end before they have been looked at
    s.process.terminate()
    until("%s: /ready turns" % name, lambda: s.call("/ready") == (503, '{"status":"stopping"}'
                                                                  if replicas == 1 else
                                                                  '{"status":"stopping","replicas":2,"serving":2}'))
    for path in ("/v1/models", "/metrics", "/v1/completions"):
        c = s.connect()
        c.request("GET" if path != "/v1/completions" else "POST", path, None if path != "/v1/completions" else "{}")
        r = c.getresponse()
        refused = json.loads(r.read())["error"]
        check((r.status, refused["code"], r.headers["Connection"]) == (503, "server_stopping", "close"),
              "%s: %s is refused meanwhile" % (name, path))
        c.close()
    check(s.call("/health")[0] == 503, "%s: /health is answered meanwhile" % name)
    for e in engines:
        os.kill(e, signal.SIGCONT)
    texts = [r.read() for r in streams]
    check(all(b'"finish_reason":"length"' in t and t.endswith(b"data: [DONE]\n\n") for t in texts),
          "%s: all streams are whole" % name)
    check(s.process.wait(LIMIT_S) == 0, "%s: it ends with status 0" % name)


def check_drain_limit():
    s = Server("--shutdown-timeout", "1")
    stream = s.stream()
    os.kill(s.processes()[0][0], signal.SIGSTOP)  # so that it cannot end in time
    s.process.terminate()
    text = stream.read()
    check(b'"code":"server_stopping"' in text and text.endswith(b"data: [DONE]\n\n"),
          "a stream that is left after --shutdown-timeout ends with an error")
    check(s.process.wait(LIMIT_S) == 0, "and the server with status 0")


# ---- a Unix socket ----


class Local(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("site.example", timeout=LIMIT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(self.path)


class LocalServer(Server):
    def __init__(self, path, *more):
        self.path = path
        super().__init__("--uds", path, *more)

    def connect(self):
        return Local(self.path)


def check_unix_socket():
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "minisgl.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)  # whose file stays
    s = LocalServer(path, "--access-log")
    check(s.line.startswith("minisgl is ready: unix:%s serves " % path), "it says where it listens")
    check(os.stat(path).st_mode & 0o777 == 0o600, "none but its user may connect")
    check(s.call("/health") == (200, '{"status":"ok"}'), "it answers, whatever the Host, without a key")
    second = subprocess.run([program, "serve", model, "--uds", path], text=True, capture_output=True)
    check(second.returncode == 1 and second.stderr.strip().endswith("minisgl.sock: a server listens there"),
          "a second server is refused: " + second.stderr.strip())
    stream = s.stream()
    os.kill(s.processes()[1], signal.SIGKILL)
    check(s.call("/v1/models")[0] == 200 and cut(stream), "it is there while the front is killed")
    s.process.terminate()
    check(s.process.wait(LIMIT_S) == 0 and os.listdir(folder) == [], "nothing is left of it")
    os.rmdir(folder)


# ---- below a path ----


def check_root_path():
    s = Server("--root-path", "/llm/")
    check(all(s.call(p)[0] == 200 for p in ("/llm/health", "/health", "/llm", "/llm/", "/")), "below a path, and without it")
    check(s.call("/llmx/health")[0] == 404, "another path is another one")
    check(s.end() == 0, "below a path it ends with status 0")
    bad = subprocess.run([program, "serve", model, "--root-path", "llm"], text=True, capture_output=True)
    check(bad.returncode == 2 and '--root-path is "llm"' in bad.stderr, "a root path that is none")


def main():
    try:
        check_front_killed("one engine", [], 1)
        check_front_killed("two replicas", ["--dp-size", "2", "--load-balance-method", "round_robin"], 2)
        check_front_killed("two ranks", ["--tp-size", "2"], 1)
        check_batch()
        check_drain("one engine", [], 1)
        check_drain("two replicas", ["--dp-size", "2"], 2)
        check_drain_limit()
        check_unix_socket()
        check_root_path()
    finally:
        for s in servers:
            s.process.kill()
    print("all passed")


main()
