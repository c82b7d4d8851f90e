#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A kernel that fails poisons its CUDA context for good: the engine ends, and is started again. On a GPU only.

    poison.py MINISGL MODEL DEVICE

minisgl-test-poison.so (poison.c), beside MINISGL, launches a kernel with a wrong address, or one that traps, in the
engine's context: while answers stream, while others wait for their turn, and while nothing runs. Whoever had begun is
told at once, /health says so meanwhile, the log names the error, the next engine gives the answers of the first, and
the dead one has left no memory of the GPU's behind.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from serving import LIMIT_S, Server, check, until  # noqa: E402

program, model, device = sys.argv[1:4]
QUESTION = {"messages": [{"role": "user", "content": "What is 27 + 58?"}], "temperature": 0, "max_tokens": 24}
LONG = {"prompt": [1, 2, 3], "ignore_eos": True, "max_tokens": 2000}
folder = tempfile.TemporaryDirectory()
order = pathlib.Path(folder.name) / "poison"
log = pathlib.Path(folder.name) / "log"


def answer():
    status, text = server.call("/v1/chat/completions", QUESTION)
    check(status == 200, "a question is answered")
    return json.loads(text)["choices"][0]["message"]["content"]


def engine():
    """None while there is none."""
    return next((pid for pid in server.children() if pid != front), None)


def gpu_memory():
    """MiB in use on the GPU."""
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"], text=True,
                         capture_output=True, check=True).stdout
    return int(out.split()[0])


class Stream(threading.Thread):
    """Reads one to its end."""
    def __init__(self):
        super().__init__()
        self.lines, self.done = [], None
        self.start()

    def run(self):
        self.status, text = server.call("/v1/completions", dict(LONG, stream=True, n=16))
        self.lines = [line for line in text.split("\n") if line]
        self.done = time.monotonic()

    def ended_by_an_error(self):
        if self.status == 200:  # it had begun
            return self.lines[-1] == "data: [DONE]" and "error" in json.loads(self.lines[-2][len("data: "):])
        return self.status in (500, 503) and "error" in json.loads(self.lines[0])


def poison(kernel):
    pid = engine()
    temporary = order.with_suffix(".new")
    temporary.write_text("%d %s" % (pid, kernel))
    temporary.rename(order)
    until("the kernel was launched", lambda: not order.exists())
    return pid, time.monotonic()


def back(pid):
    """Until the engine that follows serves."""
    took = until("another engine serves", lambda: engine() not in (None, pid) and server.call("/ready")[0] == 200)
    check(not os.path.exists("/proc/%d" % pid), "the poisoned engine is gone")
    return took


preload = str(pathlib.Path(program).resolve().parent / "minisgl-test-poison.so")
server = Server(program, model, "--device", device, "--num-pages", "20000", "--max-running-requests", "8",
                stderr=log.open("w"), env=dict(os.environ, LD_PRELOAD=preload, MSGL_TEST_POISON=str(order)))
try:
    until("the server is ready", lambda: server.call("/ready")[0] == 200)
    front = server.children()[-1]  # it is the last to be started
    want, used = answer(), gpu_memory()
    for kernel, error in (("address", "illegal memory access"), ("trap", "unspecified launch failure")):
        streams = [Stream() for _ in range(8)]
        waiting = []
        threads = [threading.Thread(target=lambda: waiting.append(server.call("/v1/completions", LONG))) for _ in range(4)]
        for t in threads:
            t.start()
        until("all have come", lambda: '"requests_open":12,' in server.call("/get_server_info")[1])
        until("answers stream", lambda: json.loads(server.call("/get_server_info")[1])["stats"]["running"] == 8)
        pid, at = poison(kernel)
        for s in streams:
            s.join(LIMIT_S)
            check(s.done is not None and s.ended_by_an_error(), "%s: a stream ends with an error" % kernel)
        check(any(s.status == 200 for s in streams), "%s: one had begun" % kernel)
        print("   %s: streams ended after %.0f ms" % (kernel, 1e3 * (max(s.done for s in streams) - at)))
        for t in threads:
            t.join(LIMIT_S)
        check(all(status >= 500 and "error" in json.loads(text) for status, text in waiting) and len(waiting) == 4,
              "%s: so do those that waited: %s" % (kernel, sorted({s for s, _ in waiting})))
        print("   %s: the next engine serves %.1f s later" % (kernel, back(pid)))
        check(error in log.read_text(), "the log names the error: %s" % error)
        check(answer() == want, "%s: the next engine gives the same answer" % kernel)

    pid, _ = poison("address")  # while nothing runs
    status, text = server.call("/v1/chat/completions", QUESTION)
    check(status in (200, 500, 503) and (status == 200 or "error" in json.loads(text)),
          "a request behind a kernel that failed while nothing ran is answered: %d" % status)
    back(pid)
    check(answer() == want, "then the answer is the same")
    check(abs(gpu_memory() - used) < 64, "the GPU's memory is what it was: %d MiB, %d at first" % (gpu_memory(), used))
    server.end()
except AssertionError:
    print(log.read_text()[-4000:])
    raise
finally:
    server.process.kill()
