#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the processes of `minisgl serve` have given up.

    confined.py MINISGL MODEL

Launcher, front, engines and ranks: no new privileges and a filter of system calls, unless --seccomp off; also after an engine has
been killed and started again, and with what needs more calls: ranks, batches, TLS. As root also --user. That requests
are answered with all that is what the other tests show: it is the default.
"""
import json
import os
import pathlib
import pwd
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import serving
from serving import check

program, model = sys.argv[1:]
folder = tempfile.TemporaryDirectory()
OWN = {}  # of this process, which the server inherits


def status(pid):
    lines = pathlib.Path("/proc/%s/status" % pid).read_text().splitlines()
    return dict((part.strip() for part in line.split(":", 1)) for line in lines)


def below(pid):
    """The processes below one, and itself."""
    found = [pid]
    for task in pathlib.Path("/proc/%d/task" % pid).iterdir():
        for child in (task / "children").read_text().split():
            found += below(int(child))
    return found


class Server(serving.Server):
    def __init__(self, *options):
        super().__init__(program, model, "--threads", "1", *options)

    def ask(self):
        status, text = self.call("/v1/completions", {"prompt": "2 + 3 =", "max_tokens": 4, "temperature": 0})
        if status != 200:
            raise OSError("status %d: %s" % (status, text))
        return json.loads(text)["choices"][0]["text"]

    def processes(self):
        return below(self.process.pid)


def confined(pid):
    s = status(pid)
    return (s["NoNewPrivs"] == "1" and s["Seccomp"] == "2" and
            int(s["Seccomp_filters"]) > int(OWN["Seccomp_filters"]))


def normal():
    server = Server()
    answer = server.ask()
    before = server.processes()
    check(len(before) == 3 and all(confined(p) for p in before), "launcher, front and engine are confined")
    engine = before[1]
    names = [p.read_text().strip() for p in pathlib.Path("/proc/%d/task" % engine).glob("*/comm")]
    check("msgl-engine" in names, "threads have their names")
    os.kill(engine, signal.SIGKILL)
    end = time.monotonic() + 60
    while True:
        try:
            if server.ask() == answer:
                break
        except OSError:
            pass
        if time.monotonic() > end:
            raise AssertionError("no engine")
        time.sleep(0.1)
    after = server.processes()
    check(engine not in after and len(after) == 3 and all(confined(p) for p in after), "so is a new engine")
    server.end()


def more():
    cert, key = folder.name + "/cert", folder.name + "/key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL)
    server = Server("--tp-size", "2", "--dp-size", "2", "--batch-dir", folder.name + "/batches")
    server.ask()
    check(len(server.processes()) == 6 and all(confined(p) for p in server.processes()), "two engines of two ranks")
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}
    form = ("--B\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
            "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f.jsonl\"\r\n\r\n%s\n\r\n--B--\r\n"
            % json.dumps(line)).encode()

    def call(path, body, kind):
        with urllib.request.urlopen(urllib.request.Request(server.url + path, body, {"Content-Type": kind}),
                                    timeout=60) as r:
            return json.load(r)

    file = call("/v1/files", form, "multipart/form-data; boundary=B")
    batch = call("/v1/batches", json.dumps({"input_file_id": file["id"], "endpoint": "/v1/completions",
                                            "completion_window": "24h"}).encode(), "application/json")
    end = time.monotonic() + 60
    while batch["status"] != "completed":
        if time.monotonic() > end or batch["status"] in ("failed", "expired", "cancelled"):
            raise AssertionError("the batch: %s" % batch)
        time.sleep(0.05)
        with urllib.request.urlopen(server.url + "/v1/batches/" + batch["id"], timeout=60) as r:
            batch = json.load(r)
    check(batch["request_counts"]["completed"] == 1, "a batch ends")
    server.end()


def off():
    server = Server("--seccomp", "off")
    server.ask()
    for p in server.processes():
        s = status(p)
        check(s["NoNewPrivs"] == "1" and s["Seccomp_filters"] == OWN["Seccomp_filters"], "--seccomp off: no filter")
    server.end()


def refuses(what, *options):
    r = subprocess.run([program, "serve", "--model", model, "--port", "0", "--device", "cpu", *options],
                       capture_output=True, text=True, timeout=60)
    check(r.returncode == 1 and what in r.stderr and r.stdout == "", what)


def user():
    if os.geteuid() != 0:
        refuses("only a server that root starts can become another user", "--user", pwd.getpwuid(os.geteuid()).pw_name)
        return
    refuses("there is no user no-such-user", "--user", "no-such-user")
    refuses("there is no group no-such-group", "--user", "nobody:no-such-group")
    nobody = pwd.getpwnam("nobody")
    if subprocess.run(["test", "-r", model + "/config.json"], user=nobody.pw_uid, group=nobody.pw_gid,
                      extra_groups=[]).returncode != 0:
        print("not checked: nobody cannot read the model")
        return
    server = Server("--user", "nobody:daemon")
    server.ask()
    for p in server.processes():
        s = status(p)
        check(s["Uid"].split() == [str(nobody.pw_uid)] * 4 and s["Gid"].split() == ["1"] * 4 and
              s["Groups"].split() == ["1"] and confined(p), "--user nobody:daemon")
    server.end()


OWN = status(os.getpid())
for test in (normal, more, off, user):
    test()
