# SPDX-License-Identifier: Apache-2.0
"""What the scripts beside share: a server under test, questions to it, and checks that say what holds."""
import http.client
import importlib.util
import json
import pathlib
import re
import signal
import subprocess
import sys
import time

LIMIT_S = 60  # until a server counts as hanging, however busy the machine


def check(condition, what):
    if not condition:
        raise AssertionError(what)
    print("ok:", what, flush=True)


def until(what, condition, limit=LIMIT_S):
    """Seconds until it is so."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() > start + limit:
            raise AssertionError("not in %d s: %s" % (limit, what))
        time.sleep(0.02)
    return time.monotonic() - start


class Server:
    """`minisgl serve` on a free port of loopback, from when it has said where. In `with`, it ends there."""

    def __init__(self, program, model, *options, **popen):
        """popen: further arguments of subprocess.Popen, as env and stderr."""
        for usual in (("--num-pages", "6000"), ("--device", "cpu")):
            if usual[0] not in options:
                options += usual
        self.process = subprocess.Popen([program, "serve", "--model", model, "--port", "0", *map(str, options)],
                                        stdout=subprocess.PIPE, text=True, **popen)
        self.line = self.process.stdout.readline()
        found = re.search(r"(https?://127\.0\.0\.1:(\d+)\S*)/v1", self.line)
        if not found and "--uds" not in options:
            self.process.kill()
            raise AssertionError("no address in %r" % self.line)
        self.url, self.port = (found[1], int(found[2])) if found else (None, None)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.end()
        self.process.kill()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)

    def call(self, path, body=None, headers={}):
        """Status and text of the answer to a GET or, with a body (bytes, or what becomes JSON), a POST."""
        c = self.connect()
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body)
            c.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json", **headers})
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def children(self):
        """In the order in which they were started: engines, then the front; before them an exporter of traces."""
        pid = self.process.pid
        return [int(p) for p in pathlib.Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        check(self.process.wait(LIMIT_S) == 0, "the server ends with 0")


def available(name):
    try:
        found = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        found = False
    if not found:
        print("left out: %s is not installed" % name)
    return found


def with_server(clients, *options):
    """Runs the functions of those pairs (function of the address, module) whose module is installed on a server of the
    program and model that the command line names; exits 77 (skipped) if there are none."""
    clients = [run for run, name in clients if available(name)]
    if not clients:
        sys.exit(77)
    with Server(*sys.argv[1:3], *options) as server:
        for run in clients:
            run(server.url + "/v1")
