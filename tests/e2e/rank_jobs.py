# SPDX-License-Identifier: Apache-2.0
"""What tests of ranks share: processes of a test's job and what they leave, a streamed answer, and two hosts, which are
network namespaces here."""
import http.client
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import uuid

MARK = "MINISGL_TEST_JOB=" + uuid.uuid4().hex
TEMP = tempfile.mkdtemp(prefix="minisgl-ranks-")
ENV = dict(os.environ, TMPDIR=TEMP, **dict([MARK.split("=")]))
LIMIT_S = 3  # of the 2 s that a failure may go unseen, and for a machine that does other things


def check(condition, what):
    if not condition:
        raise AssertionError(what)
    print("ok:", what, flush=True)


def until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def processes():
    """Those of this test's jobs, and what their environment says: {pid: {name: value}}."""
    found = {}
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            lines = (p / "environ").read_bytes().decode(errors="replace").split("\0")
            if MARK in lines and "minisgl" in os.readlink(p / "exe"):
                found[int(p.name)] = dict(line.split("=", 1) for line in lines if "=" in line)
        except OSError:
            pass
    return found


def shared_files():
    return {f for f in os.listdir("/dev/shm") if f.startswith(("vader", "minisgl", "ompi", "osc"))}


def check_nothing_left(before, what):
    gone = until(lambda: not processes() and not os.listdir(TEMP) and shared_files() <= before, 10)
    if not gone:
        print(processes().keys(), os.listdir(TEMP), shared_files() - before)
    check(gone, what + ": nothing is left")


def messages(text):
    return [line for line in text.splitlines() if line.startswith("minisgl: ")]


def watching(pid):
    """Whether it is a rank, which has a watch."""
    try:
        return "msgl-watch\n" in [t.read_text() for t in pathlib.Path("/proc/%d/task" % pid).glob("*/comm")]
    except OSError:
        return False


def parent(pid):
    return int(pathlib.Path("/proc/%d/stat" % pid).read_text().split()[3])


def run(command):
    p = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=120)
    return p.returncode, p.stdout, p.stderr


def another_model(model):
    """A folder with a model that differs from this one, not where tests look for what jobs leave."""
    other = tempfile.mkdtemp(prefix="minisgl-other-")
    for name in os.listdir(model):
        if name != "config.json":
            os.symlink(os.path.join(os.path.abspath(model), name), os.path.join(other, name))
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    config["rms_norm_eps"] *= 2
    with open(os.path.join(other, "config.json"), "w") as f:
        json.dump(config, f)
    return other


def stream(port, tokens, host="127.0.0.1"):
    """A response of which some tokens have come."""
    c = http.client.HTTPConnection(host, port, timeout=30)
    c.request("POST", "/v1/completions", json.dumps({
        "model": "demo", "prompt": "Tell me a story", "max_tokens": tokens, "stream": True, "ignore_eos": True}),
        {"Content-Type": "application/json"})
    r = c.getresponse()
    for _ in range(20):
        r.readline()
    return r


# ---- two hosts ----

NET = "10.213.77."
HOSTS = ["minisgl-%d-%d" % (os.getpid(), i) for i in (1, 2)]
WIRES = ["mw%d-%d" % (os.getpid() % 100000, i) for i in (1, 2)]


def ip(*args):
    return subprocess.run(["ip", *args], capture_output=True, text=True)


def make_hosts():
    """Two network namespaces with a wire between them; why not, if not."""
    steps = [["netns", "add", HOSTS[0]], ["netns", "add", HOSTS[1]],
             ["link", "add", WIRES[0], "netns", HOSTS[0], "type", "veth", "peer", "name", WIRES[1], "netns", HOSTS[1]]]
    for i in (0, 1):
        steps += [["-n", HOSTS[i], "addr", "add", NET + "%d/24" % (i + 1), "dev", WIRES[i]],
                  ["-n", HOSTS[i], "link", "set", WIRES[i], "up"], ["-n", HOSTS[i], "link", "set", "lo", "up"]]
    for step in steps:
        try:
            done = ip(*step)
        except OSError as e:
            return "ip: %s" % e
        if done.returncode != 0:
            return done.stderr.strip()
    for i in (0, 1):  # with names of their own, by which MPI tells hosts apart
        done = subprocess.run(inside(i, "hostname"), capture_output=True, text=True)
        if done.stdout.strip() != "host%d" % (i + 1):
            return done.stderr.strip() or "no names of hosts"
    return None


def inside(host, command):
    return ["ip", "netns", "exec", HOSTS[host], "unshare", "--uts", "sh", "-c",
            "hostname host%d && exec %s" % (host + 1, command)]


def end_hosts():
    for namespace in HOSTS:
        try:
            ip("netns", "del", namespace)
        except OSError:
            pass


def clean():
    """Whatever a test that failed has left."""
    for left in processes():
        os.kill(left, signal.SIGKILL)
    end_hosts()
    subprocess.run(["rm", "-rf", TEMP])
