#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks of several hosts that are started one by one (--nnodes), as a user starts them.

    nodes.py MINISGL MODEL

The same text as from one process, whichever host is started first, and of whole experts; one message for what is
wrong; ranks of a server that are killed or stopped while an answer streams, whole hosts too: the request ends with an
error in time and the set comes back; SIGTERM ends it everywhere, and nothing is left. Then two hosts, which are network
namespaces here, and the wire between them is cut and mended; where they cannot be made (they take root), that part says
so and is left out.
"""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from rank_jobs import (ENV, LIMIT_S, NET, HOSTS, WIRES, another_model, check, check_nothing_left, clean, inside, ip, make_hosts,
                       messages, parent, processes, run, shared_files, stream, until, watching)

MINISGL, MODEL = sys.argv[1:3]
PROMPT = ["--prompt", "What is 27 + 58?", "--chat", "--temperature", "0", "--max-tokens", "40"]
OPTIONS = ["--model", MODEL, "--device", "cpu", "--num-pages", "6000", "--threads", "1"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def spread(ranks, nodes, node, address):
    return ["--tp-size", str(ranks), "--nnodes", str(nodes), "--node-rank", str(node), "--dist-init-addr", address]


class Node:
    """One host's process, whose lines are kept."""

    def __init__(self, node, command):
        self.node, self.lines, self.port = node, [], None
        self.starter = subprocess.Popen(command, env=dict(ENV, TEST_NODE=str(node)), text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.starter.stdout:
            self.lines.append(line)
            found = re.search(r"http://[^/]*:(\d+)/v1", line)
            if found:
                self.port = int(found.group(1))

    def text(self):
        return "".join(self.lines)

    def ranks(self):
        """Processes of its ranks, in their order: on host 0 the engine, then those that it has forked."""
        mine = [p for p, env in processes().items() if env.get("TEST_NODE") == str(self.node) and watching(p)]
        return sorted(mine, key=lambda p: (parent(p) in mine, p))

    def end(self):
        code = self.starter.wait(30)
        self.reader.join(10)
        return code, self.text()


# ---- run ----


def check_text():
    code, alone, _ = run([MINISGL, "run", *OPTIONS, *PROMPT])
    check(code == 0 and "85" in json.loads(alone)["text"], "one process answers")
    for ranks, nodes, late in ((2, 2, 0), (4, 2, 1), (4, 4, 0)):
        before = shared_files()
        at = "127.0.0.1:%d" % free_port()
        others = []

        def start_others():
            for n in range(1, nodes):
                others.append(Node(n, [MINISGL, "run", *OPTIONS, *PROMPT, *spread(ranks, nodes, n, at)]))

        if late:
            timer = threading.Timer(1, start_others)
            timer.start()
        else:
            start_others()
            time.sleep(0.3)
        code, text, errors = run([MINISGL, "run", *OPTIONS, *PROMPT, *spread(ranks, nodes, 0, at)])
        name = "%d ranks on %d hosts" % (ranks, nodes)
        check(code == 0 and text == alone and not messages(errors), name + " give the same text")
        ends = [o.end() for o in others]
        check(all(c == 0 and not messages(t) for c, t in ends), name + ": the other hosts end with the first")
        check_nothing_left(before, name)


def check_experts():
    """Whole experts on four ranks, whose rows are exchanged where there is all_to_all, and added up over TCP."""
    model = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vectors", "models", "gpt_oss")
    ask = ["run", "--model", model, "--device", "cpu", "--num-pages", "2000", "--threads", "1", "--dtype", "float32",
           "--temperature", "0", "--max-tokens", "8", "--prompt", "hello", "--prompt", "one two three four"]
    code, forked, _ = run([MINISGL, *ask, "--tp-size", "4", "--ep-size", "4"])
    check(code == 0 and forked.count("\n") == 2, "whole experts on four forked ranks")
    at = "127.0.0.1:%d" % free_port()
    other = Node(1, [MINISGL, *ask, *spread(4, 2, 1, at), "--ep-size", "4"])
    code, text, _ = run([MINISGL, *ask, *spread(4, 2, 0, at), "--ep-size", "4"])
    check(code == 0 and text == forked and other.end()[0] == 0, "whole experts on four ranks of two hosts: the same text")


def check_arguments():
    cases = [
        (["--nnodes", "2", "--tp-size", "2"], "minisgl: --nnodes is 2 without --dist-init-addr"),
        (spread(2, 2, 2, "127.0.0.1:1"), "minisgl: --node-rank is 2; allowed: less than --nnodes, 2"),
        (spread(3, 2, 0, "127.0.0.1:1"), "minisgl: --tp-size is 3; allowed: a multiple of --nnodes, 2"),
        (spread(2, 2, 0, "127.0.0.1:0"), 'minisgl: --dist-init-addr is "127.0.0.1:0"; allowed with --nnodes: a port'),
        (spread(2, 2, 1, "here"), 'minisgl: address "here"; allowed: HOST:PORT, [HOST]:PORT'),
        (spread(2, 2, 0, "192.0.2.1:5000"), "minisgl: cannot listen at 192.0.2.1:5000"),
    ]
    for options, want in cases:
        code, _, errors = run([MINISGL, "run", *OPTIONS, *PROMPT, *options])
        said = messages(errors)
        if len(said) != 1 or not said[0].startswith(want):
            print(errors)
        check(code != 0 and len(said) == 1 and said[0].startswith(want), want)


def refused(name, node_0, node_1, want_0, want_1):
    """Both hosts end, each with one message that begins so."""
    before = shared_files()
    at = "127.0.0.1:%d" % free_port()
    other = Node(1, [MINISGL, "run", *OPTIONS, *PROMPT, *spread(2, 2, 1, at), *node_1])
    code, _, errors = run([MINISGL, "run", *OPTIONS, *PROMPT, *spread(2, 2, 0, at), *node_0])
    said = messages(errors)
    if len(said) != 1 or not re.match(want_0, said[0]):
        print(errors)
    check(code != 0 and len(said) == 1 and re.match(want_0, said[0]), want_0)
    code, text = other.end()
    said = messages(text)
    if len(said) != 1 or not re.match(want_1, said[0]):
        print(text)
    check(code != 0 and len(said) == 1 and re.match(want_1, said[0]), want_1)
    check_nothing_left(before, name)


def check_refused():
    kept = another_model(MODEL)
    try:
        refused("another model", [], ["--model", kept],
                "minisgl: rank 1: %s: found another model than rank 0: config.json differs" % re.escape(kept),
                "minisgl: host 1 of 2: the ranks cannot start; rank 0 says why")
        refused("another number of ranks", [], ["--tp-size", "4"],
                "minisgl: rank [23] was refused: it is one of 4 ranks, rank 0 one of 2",
                "minisgl: rank [23] was refused at .*: it is one of 4 ranks, rank 0 one of 2")
    finally:
        shutil.rmtree(kept)


# ---- serve ----


class Set:
    """A server of ranks on two hosts."""

    def __init__(self, ranks):
        self.before, self.ranks = shared_files(), ranks
        self.at = "127.0.0.1:%d" % free_port()
        self.nodes = [None, None]
        self.start(0)
        self.start(1)
        check(until(lambda: self.nodes[0].port, 60), "a server of %d ranks on two hosts is ready" % ranks)

    def start(self, n):
        self.nodes[n] = Node(n, [MINISGL, "serve", *OPTIONS, "--port", "0", "--shutdown-timeout", "60",
                              *spread(self.ranks, 2, n, self.at)])

    def answers(self):
        c = http.client.HTTPConnection("127.0.0.1", self.nodes[0].port, timeout=20)
        try:
            c.request("POST", "/v1/completions", json.dumps({"model": "demo", "prompt": "Hi", "max_tokens": 4}),
                      {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status == 200 and len(r.read()) > 0
        except OSError:
            return False
        finally:
            c.close()

    def fail(self, name, harm, want):
        """What happens to a stream, and that the set comes back."""
        s = stream(self.nodes[0].port, 1900)
        begin = time.monotonic()
        harm()
        rest = s.read().decode()
        seconds = time.monotonic() - begin
        if want not in rest:
            print(rest[-1000:], self.nodes[0].text(), self.nodes[1].text())
        check(want in rest and rest.rstrip().endswith("[DONE]"), name + ": the request ends with an error")
        check(seconds < LIMIT_S, "%s: after %.2f s" % (name, seconds))

    def comes_back(self, name):
        back = until(self.answers, 30)
        if not back:
            print(self.nodes[0].text(), self.nodes[1].text())
        check(back, name + ": the set comes back")

    def end(self):
        s = stream(self.nodes[0].port, 200)
        self.nodes[0].starter.send_signal(signal.SIGTERM)
        rest = s.read().decode()
        whole = '"finish_reason":"length"' in rest and "error" not in rest
        if not whole:
            print(rest[-1000:], self.nodes[0].text(), self.nodes[1].text())
        check(whole, "SIGTERM of host 0: the request ends as it would")
        ends = [n.end() for n in self.nodes]
        if any(code != 0 for code, _ in ends):
            print(ends)
        check(all(code == 0 for code, _ in ends), "SIGTERM of host 0: both hosts end")
        check_nothing_left(self.before, "a server on two hosts")


def check_failures():
    lost = "The engine stopped while it worked on this request"
    kill, stop = signal.SIGKILL, signal.SIGSTOP
    # A few with each server, which gives up when it fails too often.
    for cases in (((1, 0, kill), (1, 1, stop)), ((0, 1, kill), (0, 1, stop)), ((0, 0, kill), (0, 0, stop))):
        job = Set(4)
        for node, index, sign in cases:
            rank = 2 * node + index
            name = "%s of rank %d" % (sign.name, rank)
            want = "rank %d of 4 failed" % rank if rank > 0 else lost
            job.fail(name, lambda: os.kill(job.nodes[node].ranks()[index], sign), want)
            job.comes_back(name)
        job.end()
    job = Set(2)
    job.fail("SIGKILL of host 1", job.nodes[1].starter.kill, "rank 1 of 2 failed")
    job.nodes[1].end()
    job.start(1)
    job.comes_back("SIGKILL of host 1, and started again")
    job.end()


# ---- two hosts ----


def check_hosts():
    why = make_hosts()
    if why is not None:
        print("two hosts: left out, no network namespaces here: %s" % why)
        return
    _, alone, _ = run([MINISGL, "run", *OPTIONS, *PROMPT])
    at = NET + "1:5000"
    other = Node(1, inside(1, " ".join("'%s'" % a for a in [MINISGL, "run", *OPTIONS, *PROMPT, *spread(2, 2, 1, at)])))
    code, text, _ = run(inside(0, " ".join("'%s'" % a for a in [MINISGL, "run", *OPTIONS, *PROMPT, *spread(2, 2, 0, at)])))
    check(code == 0 and text == alone and other.end()[0] == 0, "two hosts give the same text")
    # One that is gone without a word: the wire is cut, and comes back.
    before = shared_files()
    serve = [[MINISGL, "serve", *OPTIONS, "--port", "0", *spread(2, 2, n, at)] for n in (0, 1)]
    nodes = [Node(n, inside(n, " ".join("'%s'" % a for a in serve[n]))) for n in (0, 1)]
    check(until(lambda: nodes[0].port, 30), "two hosts serve")
    ask = ["ip", "netns", "exec", HOSTS[0], "curl", "-sN", "http://127.0.0.1:%d/v1/completions" % nodes[0].port,
           "-H", "Content-Type: application/json", "-d"]
    long = json.dumps({"model": "demo", "prompt": "Tell me a story", "max_tokens": 1900, "ignore_eos": True, "stream": True})
    p = subprocess.Popen([*ask, long], stdout=subprocess.PIPE, text=True)
    for _ in range(20):
        p.stdout.readline()
    begin = time.monotonic()
    ip("-n", HOSTS[0], "link", "set", WIRES[0], "down")
    rest = p.stdout.read()
    p.wait()
    check("rank 1 of 2 failed" in rest and time.monotonic() - begin < LIMIT_S,
          "without the wire the request ends with an error, after %.2f s" % (time.monotonic() - begin))
    ip("-n", HOSTS[0], "link", "set", WIRES[0], "up")
    short = json.dumps({"model": "demo", "prompt": "Hi", "max_tokens": 4})
    back = until(lambda: '"choices"' in subprocess.run([*ask, short], capture_output=True, text=True).stdout, 60)
    if not back:
        print(nodes[0].text(), nodes[1].text())
    check(back, "with the wire the set comes back")
    for pid in [p for p, env in processes().items() if env.get("TEST_NODE") == "0" and parent(p) not in processes()]:
        os.kill(pid, signal.SIGTERM)
    check([n.end()[0] for n in nodes] == [0, 0], "two hosts end")
    check_nothing_left(before, "two hosts")


try:
    check_text()
    check_experts()
    check_arguments()
    check_refused()
    check_failures()
    check_hosts()
finally:
    clean()
