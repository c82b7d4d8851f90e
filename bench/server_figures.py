#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a server's front costs, with a model so small that it is a good part of all (models/demo).

    server_figures.py MINISGL MODEL [STREAMS]

STREAMS (1,000) clients of one process stream at once. Printed, as JSON: the resident size of front and launcher beyond
their own at rest, what the engine grew by beyond its KV pages (which are touched when they are used first: their size is
given), the front's processor time a streamed token, and how many GET /health a second four connections got meanwhile,
with 32 on their way on each. Linux only (/proc). The clients share the machine's processors with the server.
"""
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time

TOKENS = 64
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def stat(pid):
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rsplit(")", 1)[1].split()


def cpu_s(pid):
    fields = stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICK


def rss_mib(pid):
    return int(stat(pid)[21]) * PAGE / (1 << 20)


def children(pid):
    found = []
    for p in os.listdir("/proc"):
        try:
            if p.isdigit() and int(stat(int(p))[1]) == pid:
                found.append(int(p))
        except OSError:
            pass
    return sorted(found)  # the engine is started first, the front second


def stream_all(port, count, begun):
    """Tokens that came, of so many streams; all of them are open before the first answer is read."""
    body = json.dumps({"prompt": "x", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    poll = selectors.DefaultSelector()
    for _ in range(count):
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(head % len(body) + body)
        s.setblocking(False)
        poll.register(s, selectors.EVENT_READ, [b"", 0])
    begun.set()
    left, tokens = count, 0
    while left > 0:
        for key, _ in poll.select():
            data = key.fileobj.recv(1 << 16)
            key.data[1] += data.count(b'"text":')
            tail = key.data[0] + data
            key.data[0] = tail[-32:]
            if data == b"" or b"data: [DONE]" in tail:
                tokens += key.data[1]
                poll.unregister(key.fileobj)
                key.fileobj.close()
                left -= 1
    return tokens


def probe(port, stop, counts):
    """GET /health over one connection, 32 at a time."""
    s = socket.create_connection(("127.0.0.1", port))
    ask, n = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 32, 0
    while not stop.is_set():
        s.sendall(ask)
        seen = 0
        while seen < 32:
            data = s.recv(1 << 16)
            seen += data.count(b"HTTP/1.1 200")
        n += seen
    counts.append(n)


def main():
    streams = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    server = subprocess.Popen([sys.argv[1], "serve", "--model", sys.argv[2], "--port", "0", "--device", "cpu", "--num-pages",
                               str(streams * (TOKENS + 16)), "--max-running-requests", "256"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = server.stdout.readline()
    port = int(line[line.find("http://"):].split()[0].removesuffix("/v1").rsplit(":", 1)[1])
    engine, front = children(server.pid)[:2]
    stream_all(port, 1, threading.Event())
    rest = {p: rss_mib(p) for p in (server.pid, front, engine)}
    peak = dict(rest)
    done = threading.Event()

    def watch():
        while not done.wait(0.05):
            for p in peak:
                peak[p] = max(peak[p], rss_mib(p))

    watcher = threading.Thread(target=watch)
    watcher.start()
    before, start = cpu_s(front), time.monotonic()
    tokens = stream_all(port, streams, threading.Event())
    out = {"streams": streams, "tokens": tokens, "tok_per_s": round(tokens / (time.monotonic() - start)),
           "front_us_per_token": round((cpu_s(front) - before) / tokens * 1e6, 2)}
    done.set()
    watcher.join()
    out["front_and_launcher_mib"] = round(peak[front] - rest[front] + peak[server.pid] - rest[server.pid], 1)
    out["engine_mib_with_its_kv"] = round(peak[engine] - rest[engine], 1)

    stop, begun, counts = threading.Event(), threading.Event(), []
    load = threading.Thread(target=stream_all, args=(port, 64, begun))
    load.start()
    begun.wait()
    probes = [threading.Thread(target=probe, args=(port, stop, counts)) for _ in range(4)]
    start = time.monotonic()
    for p in probes:
        p.start()
    load.join()
    stop.set()
    for p in probes:
        p.join()
    out["health_per_s"] = round(sum(counts) / (time.monotonic() - start))
    server.send_signal(signal.SIGTERM)
    out["exit_code"] = server.wait(60)
    print(json.dumps(out))


main()
