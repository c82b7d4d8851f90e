#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What hostile requests cost the front process: the table of docs/decisions/010.

    front_memory.py MINISGL MODEL

Starts a server for each attack and prints the front's resident size at its peak and 2 s after the
attackers have left, or how long another client waited. Linux only (/proc).
"""
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

MIB = 1 << 20


class Server:
    def __init__(self):
        self.process = subprocess.Popen([sys.argv[1], "serve", "--model", sys.argv[2], "--port", "0", "--device",
                                         "cpu"], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port = int(line[line.find("http://"):].split()[0].rstrip("/").removesuffix("/v1").rsplit(":", 1)[1])
        # The engine is started first, the front second.
        self.front = max(int(p) for p in os.listdir("/proc") if p.isdigit() and self.is_child(p))

    def is_child(self, pid):
        try:
            with open("/proc/%s/stat" % pid) as f:
                return int(f.read().rsplit(")", 1)[1].split()[1]) == self.process.pid
        except OSError:
            return False

    def memory(self, field):
        with open("/proc/%d/status" % self.front) as f:
            return next(int(s.split()[1]) for s in f if s.startswith(field)) >> 10

    def post(self, path, body, answer=True):
        """A connection that has sent the body, or the answer's status."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        c.request("POST", path, body, {"Content-Type": "application/json"})
        if not answer:
            return c
        r = c.getresponse()
        r.read()
        c.close()
        return r.status

    def one_token(self):
        start = time.monotonic()
        status = self.post("/v1/completions", b'{"prompt":"x","max_tokens":1}')
        return "%.2f s (%d)" % (time.monotonic() - start, status)


def running(server, bodies):
    """Streams, each opened when the one before has its first token."""
    streams = []
    for body in bodies:
        streams.append(server.post("/v1/completions", body, answer=False))
        streams[-1].getresponse()
    for c in streams:
        c.close()


def unread_trees(server):
    body = b'{"prompt":"x","stream":true,"max_tokens":1900,"ignore_eos":true,"metadata":[' + b",".join([b"{}"] * 660000) + b"]}"
    running(server, [body] * 10)


def large_bodies(server):
    body = b'{"prompt":"x","stream":true,"max_tokens":1900,"ignore_eos":true,"metadata":"' + b"a" * (31 * MIB) + b'"}'
    running(server, [body] * 13)


def tool_calls(server):
    arguments = json.dumps({"a": [{}] * 300000}, separators=(",", ":"))
    calls = [{"function": {"name": "f", "arguments": arguments}}] * 13
    body = json.dumps({"messages": [{"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "x"}],
                       "max_tokens": 1})
    return server.post("/v1/chat/completions", body)


def stopped_bodies(server):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (32 * MIB)
    socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]

    def send(s):
        try:
            s.sendall(head + b"a" * (31 * MIB))
        except OSError:
            pass  # refused

    threads = [threading.Thread(target=send, args=(s,)) for s in socks]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    waited = server.one_token()
    for s in socks:
        s.close()
    return waited


def many_choices(server):
    body = json.dumps({"prompt": ["x %d" % i for i in range(8)], "n": 128, "max_tokens": 200, "ignore_eos": True})
    c = server.post("/v1/completions", body, answer=False)
    time.sleep(2)
    waited = max(server.one_token() for _ in range(5))
    c.close()
    return waited


def shared_logprobs(server):
    body = json.dumps({"prompt": list(range(300, 2200)), "n": 128, "max_tokens": 16, "echo": True, "logprobs": 20})
    start = time.monotonic()
    status = server.post("/v1/completions", body)
    return "%.1f s (%d)" % (time.monotonic() - start, status)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for attack in (unread_trees, large_bodies, tool_calls, stopped_bodies, many_choices, shared_logprobs):
        server = Server()
        said = attack(server)
        peak = server.memory("VmHWM")
        time.sleep(2)
        print("%-16s peak %5d MB, then %4d MB  %s" % (attack.__name__, peak, server.memory("VmRSS"), said or ""),
              flush=True)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)


main()
