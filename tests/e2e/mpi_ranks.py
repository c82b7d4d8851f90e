#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks over MPI, as a user starts them.

    mpi_ranks.py MINISGL MODEL MPIRUN

The same text as from one process; one message for what is wrong; ranks of a server that are killed or stopped
while an answer streams: the request ends with an error in time, and nothing is left of the job: no process, no
file in /dev/shm or the folder of temporary files, no port. Then two hosts, which are network namespaces here;
where they cannot be made (they take root), that part says so and is left out.
"""
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from rank_jobs import (ENV, HOSTS, LIMIT_S, MARK, NET, TEMP, WIRES, another_model, check, check_nothing_left, clean, inside, ip, make_hosts,
                       messages, parent, processes, run, shared_files, stream, until, watching)

MINISGL, MODEL, MPIRUN = sys.argv[1:4]
PROMPT = ["--prompt", "What is 27 + 58?", "--chat", "--temperature", "0", "--max-tokens", "40"]
OPTIONS = ["--model", MODEL, "--device", "cpu", "--num-pages", "6000", "--threads", "1"]


def mpirun(ranks, *args, before=()):
    return [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *before, "-np", str(ranks), MINISGL, *args]


def pretend(*variables):
    """As if something had started several processes."""
    return ["env", *variables, MINISGL, "run", *OPTIONS, *PROMPT]


# ---- run ----


def check_text():
    code, alone, _ = run([MINISGL, "run", *OPTIONS, *PROMPT])
    check(code == 0 and "85" in json.loads(alone)["text"], "one process answers")
    for ranks in (2, 4):
        before = shared_files()
        code, text, errors = run(mpirun(ranks, "run", *OPTIONS, *PROMPT))
        check(code == 0 and text == alone and not messages(errors), "%d ranks give the same text" % ranks)
        check_nothing_left(before, "a job of %d that ended" % ranks)
    code, rows, _ = run(mpirun(2, "bench", "step", *OPTIONS, "--batch", "2", "--steps", "2", "-o", "json"))
    check(code == 0 and json.loads(rows.splitlines()[0])["batch"] == 2, "bench")


def check_refused():
    other = another_model(MODEL)
    two_models = mpirun(1, "run", *OPTIONS, *PROMPT) + [":", "-np", "1", MINISGL, "run", *OPTIONS, *PROMPT, "--model", other]
    cases = [
        (mpirun(2, "run", *OPTIONS, *PROMPT, "--tp-size", "3"),
         "minisgl: --tp-size 3: mpirun has started 2 processes; allowed: 2"),
        (mpirun(3, "run", *OPTIONS, *PROMPT),
         "minisgl: --tp-size 3: num_attention_heads is 8; allowed: a divisor of it"),
        (mpirun(2, "run", *OPTIONS, *PROMPT, "--no-such-option"), "minisgl: unknown option --no-such-option"),
        (mpirun(2, "run", *OPTIONS, *PROMPT, "--dist-init-addr", "here"),
         'minisgl: address "here"; allowed: HOST:PORT, [HOST]:PORT'),
        (two_models, "minisgl: rank 1: %s: found another model than rank 0: config.json differs" % other),
        (pretend("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=x"),
         'minisgl: OMPI_COMM_WORLD_SIZE is "x"; allowed: a number'),
        (pretend("PMI_RANK=2", "PMI_SIZE=2"), "minisgl: PMI_RANK is 2, and PMI_SIZE 2; allowed: less than that"),
        (pretend("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2"), "minisgl: --tp-size 2: Open MPI"),
    ]
    for command, want in cases:
        code, _, errors = run(command)
        said = messages(errors)
        if len(said) != 1 or not said[0].startswith(want):
            print(errors)
        check(code != 0 and len(said) == 1 and said[0].startswith(want), want)
    shutil.rmtree(other)


# ---- serve ----


class Job:
    def __init__(self, ranks, *more):
        self.before = shared_files()
        self.lines, self.port = [], None
        self.starter = subprocess.Popen(mpirun(ranks, "serve", *OPTIONS, "--port", "0", *more), env=ENV, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        check(until(lambda: self.port, 60), "a server of %d ranks is ready" % ranks)

    def read(self):
        for line in self.starter.stdout:
            self.lines.append(line)
            found = re.search(r"http://[^/]*:(\d+)/v1", line)
            if found:
                self.port = int(found.group(1))

    def process(self, rank):
        """Of rank 0 the engine, which is a child of what mpirun started."""
        for pid, env in processes().items():
            if env["OMPI_COMM_WORLD_RANK"] == str(rank) and watching(pid):
                return pid
        raise AssertionError("no process of rank %d" % rank)

    def supervisor(self):
        return parent(self.process(0))

    def stream(self, tokens):
        return stream(self.port, tokens)

    def end(self):
        code = self.starter.wait(30)
        self.reader.join(10)
        return code, "".join(self.lines)


def fail(ranks, rank, sign):
    job = Job(ranks)
    victim = job.process(rank)
    stream = job.stream(1900)
    begin = time.monotonic()
    os.kill(victim, sign)
    rest = stream.read().decode()
    seconds = time.monotonic() - begin
    name = "%s of rank %d of %d" % (sign.name, rank, ranks)
    want = "rank %d of %d failed" % (rank, ranks) if rank > 0 else "The engine stopped while it worked on this request"
    check(want in rest and rest.rstrip().endswith("[DONE]"), name + ": the request ends with an error")
    check(seconds < LIMIT_S, "%s: after %.2f s" % (name, seconds))
    code, text = job.end()
    said = [m for m in messages(text) if "rank %d of %d failed" % (rank, ranks) in m]
    if code == 0 or len(said) > 1 or (rank > 0 and len(said) != 1):
        print(code, text)
    check(code != 0 and len(said) <= 1 and (rank == 0 or len(said) == 1), name + ": one message")
    check_nothing_left(job.before, name)
    c = http.client.HTTPConnection("127.0.0.1", job.port, timeout=5)
    try:
        c.connect()
        check(False, name + ": the port is closed")
    except ConnectionRefusedError:
        pass


def check_failures():
    for rank in (1, 0):
        for sign in (signal.SIGKILL, signal.SIGSTOP):
            fail(2, rank, sign)
    fail(4, 2, signal.SIGSTOP)


def check_drain():
    job = Job(2, "--shutdown-timeout", "60") # ranks that share processors with others are slow
    stream = job.stream(200)
    os.kill(job.supervisor(), signal.SIGTERM)
    rest = stream.read().decode()
    whole = '"finish_reason":"length"' in rest and "error" not in rest
    if not whole:
        print(rest[-1000:])
    check(whole, "SIGTERM of rank 0: the request ends as it would")
    code, text = job.end()
    check(code == 0 and not messages(text), "SIGTERM of rank 0: the job ends")
    check_nothing_left(job.before, "SIGTERM of rank 0")


# ---- two hosts ----

def over_hosts(*args):
    agent = os.path.join(TEMP, "agent")  # what mpirun starts instead of ssh: HOST COMMAND...
    with open(agent, "w") as f:
        f.write('#!/bin/sh\n[ "$1" = %s2 ] || exit 1\nshift\n'
                'exec ip netns exec %s unshare --uts sh -c "hostname host2; $*"\n' % (NET, HOSTS[1]))
    os.chmod(agent, 0o755)
    before = ["--mca", "plm_rsh_agent", agent, "--mca", "btl_tcp_if_include", NET + "0/24", "-x", MARK.split("=")[0],
              "--host", "%s1:1,%s2:1" % (NET, NET)]
    return inside(0, " ".join("'%s'" % a for a in mpirun(2, *args, before=before)))


def check_hosts():
    why = make_hosts()
    if why is not None:
        print("two hosts: left out, no network namespaces here: %s" % why)
        return
    _, alone, _ = run([MINISGL, "run", *OPTIONS, *PROMPT])
    code, _, errors = run(over_hosts("run", *OPTIONS, *PROMPT))
    check(code != 0 and "minisgl: the other hosts cannot reach this one by its name host1; --dist-init-addr" in errors,
          "two hosts without names")
    here = ["--dist-init-addr", NET + "1:0"]
    code, text, errors = run(over_hosts("run", *OPTIONS, *PROMPT, *here))
    check(code == 0 and text == alone, "two hosts give the same text")
    # One that is gone without a word: the wire is cut.
    lines = os.path.join(TEMP, "lines.jsonl")
    with open(lines, "w") as f:
        f.write('{"prompt": "Tell me a story", "max_tokens": 1900, "ignore_eos": true}\n' * 20)
    job = subprocess.Popen(over_hosts("run", *OPTIONS, *here, "--input", lines), env=ENV, text=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    ready = until(lambda: len([p for p in processes() if watching(p)]) == 2, 30)
    check(ready, "two hosts work")
    time.sleep(1)
    begin = time.monotonic()
    ip("-n", HOSTS[0], "link", "set", WIRES[0], "down")
    gone = until(lambda: not processes(), 10)
    check(gone, "without the wire both ranks end, after %.2f s" % (time.monotonic() - begin))
    # What is left is mpirun and its helper, which wait for each other.
    for host in HOSTS:
        for pid in ip("netns", "pids", host).stdout.split():
            os.kill(int(pid), signal.SIGKILL)
    _, errors = job.communicate(timeout=30)
    check("rank 1 of 2 failed" in errors, "rank 0 names the one that it has lost")


try:
    check_text()
    check_refused()
    check_failures()
    check_drain()
    check_hosts()
finally:
    clean()
