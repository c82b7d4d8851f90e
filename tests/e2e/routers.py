#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two `minisgl serve` behind a router that exists, unmodified.

    routers.py MINISGL MODEL sglang-router|nginx

One server is killed under load: no request is lost whose answer had not begun. Then another one is drained: the
router is told, the server gets SIGTERM, and nothing at all is lost. Exits 77 (skipped) when the router is not there.
sglang-router is the package of PyPI, nginx the distribution's with the configuration that docs/replicas.md has.
"""
import http.client
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from serving import Server, check

CLIENTS = 8
DOCS = pathlib.Path(__file__).parents[2] / "docs" / "replicas.md"
program, model, kind = sys.argv[1:]
children, folders = [], []


def call(url, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=20) as r:
        return r.read()


def until(what, seconds, condition):
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except (OSError, http.client.HTTPException, ValueError):
            pass
        if time.monotonic() > end:
            raise AssertionError("not in %d s: %s" % (seconds, what))
        time.sleep(0.1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Worker(Server):
    """A server, and its counters."""

    def __init__(self):
        super().__init__(program, model, "--threads", "1")
        children.append(self.process)

    def stats(self):
        return json.loads(call(self.url + "/get_server_info"))["stats"]


class SglangRouter:
    """Finds out by itself that a server is gone; is told of servers over HTTP."""

    def __init__(self, workers):
        self.port = free_port()
        self.url = "http://127.0.0.1:%d" % self.port
        children.append(subprocess.Popen(
            [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(self.port),
             "--prometheus-port", str(free_port()), "--policy", "cache_aware", "--log-level", "error",
             "--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1",
             "--cb-failure-threshold", "2", "--worker-urls"] + [w.url for w in workers]))
        self.await_workers(len(workers))

    def workers(self):
        return json.loads(call(self.url + "/workers"))["workers"]

    def await_workers(self, n):
        until("%d healthy workers" % n, 30, lambda: sum(w["is_healthy"] for w in self.workers()) == n)

    def check_fields(self):
        """What the router has found out about the servers, and asks them when it is asked."""
        for w in self.workers():
            check(w["model_id"] == json.loads(call(w["url"] + "/get_model_info"))["served_model_name"], "model_id")
            check(w["metadata"]["model_path"] == pathlib.Path(model).name, "metadata.model_path")
        loads = json.loads(call(self.url + "/get_loads"))["workers"]
        check(len(loads) == 2 and all(w["load"] == 0 for w in loads), "get_loads: %s" % loads)
        check(json.loads(call(self.url + "/get_model_info"))["is_generation"] is True, "get_model_info")
        flushed = json.loads(call(self.url + "/flush_cache", {}))
        check(flushed["workers_flushed"] == 2, "flush_cache")

    def replace(self, old, new):
        """old is drained, new takes its place."""
        call(self.url + "/workers", {"url": new.url})
        until("the new worker", 30, lambda: any(w["url"] == new.url and w["is_healthy"] for w in self.workers()))
        gone = next(w for w in self.workers() if w["url"] == old.url)
        call(self.url + "/workers/" + gone["id"], method="DELETE")
        until("removal", 30, lambda: all(w["url"] != old.url for w in self.workers()))


class Nginx:
    """The configuration of docs/replicas.md with other addresses; reloaded to change them."""

    def __init__(self, workers):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="minisgl-nginx-"))
        self.dir.chmod(0o755)  # started as root, it serves as another user
        folders.append(self.dir)
        self.port = free_port()
        self.url = "http://127.0.0.1:%d" % self.port
        self.write(workers)
        self.process = subprocess.Popen([NGINX, "-p", str(self.dir), "-c", "nginx.conf", "-g", "daemon off;"])
        children.append(self.process)
        until("nginx", 30, lambda: call(self.url + "/health"))

    def write(self, workers):
        text = re.search(r"```nginx\n(.*?)```", DOCS.read_text(), re.S)[1]
        text, n = re.subn(r"(\n +server 127.0.0.1:\d+( [^;]*)?;)+", "".join(
            "\n        server 127.0.0.1:%d;" % w.port for w in workers), text)
        text, m = re.subn(r"listen \d+;", "listen 127.0.0.1:%d;" % self.port, text)
        if n != 1 or m != 1:
            sys.exit("the configuration in %s is not as expected" % DOCS)
        temp = "".join("    %s_temp_path %s/%s;\n" % (t, self.dir, t)
                       for t in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (self.dir / "nginx.conf").write_text(
            "pid %s/pid;\nerror_log %s/log;\nevents {}\nhttp {\n    access_log off;\n%s%s}\n"
            % (self.dir, self.dir, temp, text))

    def check_fields(self):
        check(json.loads(call(self.url + "/health")) == {"status": "ok"}, "health")

    def replace(self, old, new):
        self.write([new])
        before = self.workers()
        self.process.send_signal(signal.SIGHUP)
        # Idle servers: the reload is done when requests reach the new one ...
        until("reload", 30, lambda: self.ask() and new.stats()["requests_done"] > 0)
        # ... and nginx's workers from before take no more, who would send them to the old one.
        until("old workers", 30, lambda: all(self.takes_no_more(pid) for pid in before))

    def workers(self):
        """nginx's worker processes."""
        children = "/proc/%d/task/%d/children" % (self.process.pid, self.process.pid)
        return pathlib.Path(children).read_text().split()

    @staticmethod
    def takes_no_more(pid):
        """Whether a worker has ended, or has closed its listening sockets and ends with its requests."""
        try:
            return b"shutting down" in pathlib.Path("/proc/%s/cmdline" % pid).read_bytes()
        except OSError:
            return True

    def ask(self):
        return call(self.url + "/v1/completions", {"prompt": "x", "max_tokens": 1})


class Load:
    """Clients that ask one thing after another, half of them as streams."""

    def __init__(self, port):
        self.port = port
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.whole, self.cut, self.lost = 0, 0, []
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]
        for t in self.threads:
            t.start()

    def one(self, k, stream):
        """Whether the answer began, and what went wrong with it or None."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = {"model": MODEL, "max_tokens": 40, "temperature": 0, "ignore_eos": True, "stream": stream,
                "messages": [{"role": "user", "content": "Question %d: what is %d + %d?" % (k, k, k + 7)}]}
        begun, text = False, b""
        try:
            c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            if r.status != 200:
                return False, "%d %s" % (r.status, r.read()[:200])
            for piece in iter(lambda: r.read1(4096), b""):
                begun = begun or (stream and b"data:" in piece)
                text += piece
        except (OSError, http.client.HTTPException) as e:
            return begun, repr(e)
        finally:
            c.close()
        complete = b"data: [DONE]" in text and b'"error"' not in text if stream else b'"finish_reason":"length"' in text
        return begun, None if complete else "incomplete: %r" % text[-200:]

    def client(self, i):
        k = 1000 * i
        while not self.stop.is_set():
            k += 1
            begun, wrong = self.one(k, i % 2 == 0)
            with self.lock:
                if wrong is None:
                    self.whole += 1
                elif begun:
                    self.cut += 1
                else:
                    self.lost.append(wrong)

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join()


def affinity(url, workers):
    """The second turn of a conversation finds the first one's tokens cached."""
    first = "Tell me about the sea, the mountains, the rivers and the woods of the country that you like best."
    talk = [{"role": "user", "content": first}]
    for turn in range(3):
        answer = json.loads(call(url + "/v1/chat/completions",
                                 {"model": MODEL, "messages": talk, "max_tokens": 8, "temperature": 0}))
        usage = answer["usage"]
        if turn > 0:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            check(cached >= before, "turn %d: %d of %d tokens cached" % (turn, cached, usage["prompt_tokens"]))
        before = usage["prompt_tokens"]
        talk += [answer["choices"][0]["message"], {"role": "user", "content": "And what else?"}]
    check(sum(w.stats()["requests_done"] > 0 for w in workers) == 1, "one server had all turns")


def main():
    workers = [Worker(), Worker()]
    router = (SglangRouter if kind == "sglang-router" else Nginx)(workers)
    router.check_fields()
    if kind == "sglang-router":
        affinity(router.url, workers)
    load = Load(router.port)
    until("load on both", 60, lambda: all(w.stats()["running"] > 0 for w in workers))
    workers[0].process.kill()
    killed_at = time.monotonic()
    while time.monotonic() - killed_at < 5:
        time.sleep(0.1)
    load.end()
    check(not load.lost, "a server killed: %d whole, %d streams cut, lost before they began: %s"
          % (load.whole, load.cut, load.lost[:3]))
    check(load.whole > CLIENTS, "the other one went on")
    new = Worker()
    load = Load(router.port)
    router.replace(workers[1], new)
    workers[1].process.terminate()
    check(workers[1].process.wait(30) == 0, "the drained server ended by itself")
    before = load.whole
    until("answers of the new one", 60, lambda: load.whole > before + CLIENTS)
    load.end()
    check(not load.lost and load.cut == 0, "a server drained: %d whole, %d cut, lost: %s"
          % (load.whole, load.cut, load.lost[:3]))


if kind == "sglang-router":
    try:
        import sglang_router  # noqa: F401
    except ImportError:
        print("skipped: the sglang-router package is not installed")
        sys.exit(77)
elif kind == "nginx":
    NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if NGINX is None:
        print("skipped: nginx is not installed")
        sys.exit(77)
else:
    sys.exit(__doc__)
MODEL = pathlib.Path(model).name
try:
    main()
finally:
    for child in children:
        child.terminate()
    for child in children:
        child.wait(30)
    for folder in folders:
        shutil.rmtree(folder)
