#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory that large requests took from the front is the system's again within a minute.

    memory.py MINISGL MODEL
"""
import json
import pathlib
import re
import sys
import threading
import time

from serving import Server, check

REQUESTS, AT_A_TIME, SECONDS = 40, 8, 60
ROOM = 16 << 10  # KiB: what the process may keep
program, model = sys.argv[1:]
BODY = b'{"prompt":"x","max_tokens":1,"metadata":[' + b",".join([b"{}"] * 300000) + b"]}"

server = Server(program, model)
front = server.children()[1]


def memory(field="VmRSS"):
    return int(re.search(field + r":\s+(\d+) kB", pathlib.Path("/proc/%d/status" % front).read_text())[1])


def ask(body):
    while True:
        status, text = server.call("/v1/completions", body)
        if status != 429:  # the others' bodies are there
            return status, json.loads(text)
        time.sleep(0.1)


def work(bad):
    for _ in range(REQUESTS // AT_A_TIME):
        status, answer = ask(BODY)
        if status != 200:
            bad.append(answer)


try:
    ask(b'{"prompt":"x","max_tokens":1}')
    before, bad = memory(), []
    threads = [threading.Thread(target=work, args=(bad,)) for _ in range(AT_A_TIME)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(not bad, "%d requests of 300,000 values are answered %s" % (REQUESTS, bad[:1]))
    peak, end = memory("VmHWM"), time.monotonic() + SECONDS
    check(peak > before + ROOM, "they took memory: %d KiB, then %d" % (before, peak))
    while memory() > before + ROOM:
        if time.monotonic() > end:
            raise AssertionError("the front has %d KiB a minute later" % memory())
        time.sleep(0.2)
    check(True, "and it is given back: %d KiB, %.0f s later" % (memory(), time.monotonic() - end + SECONDS))
    server.end()
finally:
    server.process.kill()
