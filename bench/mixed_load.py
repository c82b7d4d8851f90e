#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A long mixed load with aborts, bad requests and kills, and what it leaves behind.

    mixed_load.py MINISGL MODEL [--minutes 30] [--share 0.6] [--seed 1] [--json FILE] [--no-slope] [--no-memory]

MODEL is models/demo. 16 clients ask one server questions of all kinds, most of them with known answers; one in ten is cut
off by its client (connecting, in the header, in the body, queued, in its prefill, in its stream, before its last byte),
one in twenty is a bad one. A second server has its engine, its front and its launcher killed under load, and is ended by
SIGTERM. Checked: every answer that is complete is the right one, what was sent is what was answered, refused and cut, no
client waits without end, servers come back, all pages and descriptors are free at the end, large bodies' memory is given
back within a minute, and after a third of the time memory no longer grows (by 1 MiB/h at most, within twice the error of the
slope; --no-slope leaves that out, --no-memory, for sanitizers, also the large bodies). Exit code 1 if not. --share is of one
core, for both servers and the clients together. Linux only (/proc).
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from mixed_requests import (ANTHROPIC, BAD, BAD_RAW, CHAT, LIMIT_S, RESPONSES, TEXT, Connection, Lost, Wrong, ask,
                            check, encode, fresh, fresh_prompt, take_references)

CLIENTS, KILL_CLIENTS, SAMPLE_S, SLOPE_MIB_H = 16, 4, 5, 1.0
BURST, BURST_AT_ONCE, BURST_S, BURST_ROOM_KIB = 24, 6, 60, 16 << 10
TICK = os.sysconf("SC_CLK_TCK")
WATCHED = ("/metrics", "/health", "/v1/models", "/get_server_info", "/radix_tree", "/get_load", "/", "/flush_cache")
PHASES = ("connect", "header", "body", "queued", "prefill", "stream", "last")
WAYS = ("rst", "close", "half")
FAILURES = (Lost, Wrong, OSError, ValueError, KeyError, IndexError)
KILLS = ("engine", "front", "launcher", "drain")


def until(what, condition, limit=LIMIT_S):
    end = time.monotonic() + limit
    while not condition():
        check(time.monotonic() < end, "not in %d s: %s" % (limit, what))
        time.sleep(0.05)


# ---- processes ----


class Server:
    def __init__(self, args, *more):
        self.folder = tempfile.mkdtemp(dir=args.work)
        self.log = open(os.path.join(self.folder, "log"), "w+")
        self.process = subprocess.Popen([args.program, "serve", args.model, "--port", "0", "--device", "cpu", "--threads", "1",
                                         "--num-pages", "6000", "--max-running-requests", "4", "--max-prefill-length", "256",
                                         *more], stdout=subprocess.PIPE, stderr=self.log, text=True)
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if not found:
            self.process.wait(LIMIT_S)
            self.log.seek(0)
            raise Wrong("the server does not start: " + self.log.read()[-500:])
        self.port, self.lock, self.roles = int(found.group(1)), threading.Lock(), {}
        # The engine is started first, the front second.
        self.roles = dict(zip(("engine", "front"), self.children()), launcher=self.process.pid)

    def children(self):
        pid = self.process.pid
        return list(map(int, pathlib.Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()))

    def processes(self):
        """By name. One that was started again is the one that is new."""
        with self.lock:
            now = self.children()
            new = [p for p in now if p not in self.roles.values()]
            for name in ("engine", "front"):
                if self.roles[name] not in now and new:
                    self.roles[name] = new.pop(0)
            return dict(self.roles)

    def stats(self):
        status, info = ask(self.port, "/get_server_info")
        return info.get("stats") if status == 200 else None

    def idle(self):
        s = self.stats()
        return bool(s) and s["used_pages"] == s["running"] == s["waiting"] == 0

    def metrics(self):
        found = collections.Counter()
        for line in ask(self.port, "/metrics")[1].splitlines():
            if line and line[0] != "#":
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def end(self):
        """It ends with 0 after SIGTERM, and no sanitizer has a word to say."""
        self.process.terminate()
        code = self.process.wait(LIMIT_S)
        self.log.seek(0)
        text = self.log.read()
        check(code == 0, "exit code %s after SIGTERM: %s" % (code, text[-500:]))
        found = re.search(r"(?:Sanitizer|runtime error).*", text)
        check(not found, found and text[max(0, found.start() - 200):found.start() + 3000])

    def remove(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def look(pid):
    """A process' memory in KiB, its descriptors and threads, and its processor time in seconds."""
    base, out = pathlib.Path("/proc/%d" % pid), {}
    for name, value in re.findall(r"^(Rss|Private_Dirty):\s+(\d+) kB", (base / "smaps_rollup").read_text(), re.M):
        out[name.lower()] = int(value)
    stat = (base / "stat").read_text().rsplit(")", 1)[1].split()
    out.update(fds=len(os.listdir(base / "fd")), threads=int(stat[17]), cpu_s=(int(stat[11]) + int(stat[12])) / TICK)
    return out


def slope(samples, name):
    """(MiB/h, its standard error) of samples (seconds, values)."""
    n = len(samples)
    if n < 3:
        return 0.0, 0.0
    t, v = [s[0] / 3600 for s in samples], [s[1][name] / 1024 for s in samples]
    mt, mv = sum(t) / n, sum(v) / n
    tt = sum((x - mt) ** 2 for x in t)
    b = sum((x - mt) * (y - mv) for x, y in zip(t, v)) / tt
    left = sum((y - mv - b * (x - mt)) ** 2 for x, y in zip(t, v))
    return b, (left / (n - 2) / tt) ** 0.5


# ---- the load ----


class Load:
    """What all clients share."""

    def __init__(self, args, server, questions, talks):
        self.args, self.server, self.questions, self.talks = args, server, questions, talks
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.counts, self.wrong, self.cuts = collections.Counter(), [], collections.Counter()
        self.pause = 0.2

    def count(self, *names):
        with self.lock:
            self.counts.update(names)

    def fail(self, where, e):
        with self.lock:
            self.wrong.append("%s: %s: %s" % (where, type(e).__name__, e))
        print("WRONG:", self.wrong[-1][:1500], flush=True)

    def rest(self, rng):
        self.stop.wait(min(rng.expovariate(1 / self.pause), 20))


def cut_one(load, rng, phase, how):
    """A request that its client ends before it has its answer."""
    load.count("sent", "cut")
    load.cuts.update([phase + " " + how])
    others, c = [], Connection(load.server.port)
    q = rng.choice(load.questions)
    data, stream = q.encode(q.streams and rng.random() < 0.5), False
    if phase == "header":
        c.send(data[:rng.randrange(1, data.index(b"\r\n\r\n"))])
    elif phase == "body":
        c.send(data[:rng.randrange(data.index(b"\r\n\r\n") + 4, len(data))])
    elif phase == "queued":
        # More choices than are computed at once, so that the next request waits.
        others.append(Connection(load.server.port))
        load.count("sent", "cut")
        others[0].send(encode(TEXT, {"prompt": [1, 2, 3], "n": 8, "max_tokens": 40, "ignore_eos": True, "stream": True}))
        time.sleep(0.02)
        c.send(encode(CHAT, {"messages": [{"role": "user", "content": "hello"}], "n": 3, "max_tokens": 20}))
        time.sleep(rng.random() * 0.02)
    elif phase == "prefill":
        c.send(encode(TEXT, {"prompt": fresh_prompt(rng, 1900), "max_tokens": 30, "stream": rng.random() < 0.5}))
        time.sleep(rng.random() * 0.2)
    elif phase in ("stream", "last"):
        q = rng.choice([q for q in load.questions if q.streams])
        stream = phase == "stream" or rng.random() < 0.5
        c.send(q.encode(stream, **({"n": 2, "max_tokens": 200} if phase == "stream" and q.path == CHAT else {})))
        status, headers = c.head()
        check(status == 200, "%s: status %d" % (q.path, status))
        if phase == "stream":
            for n, _ in enumerate(c.pieces(headers)):
                if n >= 2:
                    break
        elif stream:
            c.until({CHAT: b"[DONE", TEXT: b"[DONE", ANTHROPIC: b"message_stop", RESPONSES: b"response.completed"}[q.path])
        else:
            c.exactly(int(headers["content-length"]) - 1)
    c.cut(how)
    for o in others:
        o.cut(rng.choice(WAYS))


def bad_one(load, bad):
    load.count("sent")
    if len(bad) == 2:
        data, want = bad
        c = Connection(load.server.port)
        c.send(data)
        status, _, _ = c.answer()
        c.close()
        what = data[:60]
    else:
        path, body, want = bad
        status, what = ask(load.server.port, path, body)
        what = (path, str(body)[:200], what)
    check(status == want, "status %d, not %d, of %s" % (status, want, what))
    load.count("refused")


def abort_one(load, rng):
    """A stream that is ended by /abort_request."""
    load.count("sent", "sent")
    name, c = "job-%d" % rng.getrandbits(48), Connection(load.server.port)
    c.send(encode(TEXT, {"prompt": fresh_prompt(rng, 8), "max_tokens": 1500, "ignore_eos": True, "stream": True, "rid": name}))
    status, headers = c.head()
    check(status == 200, "status %d of a stream to be aborted" % status)
    pieces = c.pieces(headers)
    text = next(pieces)
    status, answer = ask(load.server.port, "/abort_request", {"rid": name})
    check((status, answer) == (200, {"aborted": 1}), "%s of /abort_request" % (answer,))
    text += b"".join(pieces)
    check(b'"finish_reason":"abort"' in text and text.endswith(b"data: [DONE]\n\n"), "an aborted stream: %r" % text[-300:])
    c.close()
    load.count("answered", "answered", "aborted")


def watch_one(load, rng):
    path = rng.choice(WATCHED)
    load.count("sent")
    status, answer = ask(load.server.port, path, method="POST" if path == "/flush_cache" else None)
    check(status == 200 and answer, "status %d of %s" % (status, path))
    load.count("answered")


def talk_one(load, rng, c):
    for q in rng.choice(load.talks):
        load.count("sent")
        q.ask(c, rng.random() < 0.5)
        load.count("answered", "checked")


def ask_one(load, rng, c):
    known = rng.random() < 0.6
    q = rng.choice(load.questions) if known else fresh(rng)
    load.count("sent")
    stream = q.streams and rng.random() < 0.5
    first = q.ask(c, stream)
    load.count("answered", "checked" if known else "fresh")
    if not known and q.path == TEXT and "regex" not in q.body and rng.random() < 0.3:
        load.count("sent")
        check(q.ask(c, not stream) == first, "a second answer is another: %.200s" % q.body)
        load.count("answered", "checked")


def every_one(load):
    """Each way to be cut and each bad request, once."""
    rng = random.Random(load.args.seed)
    todo = [(cut_one, (load, rng, phase, how)) for phase in PHASES for how in WAYS]
    todo += [(bad_one, (load, bad)) for bad in BAD + BAD_RAW]
    for do, args in todo:
        try:
            do(*args)
        except FAILURES as e:
            load.fail("%s %s" % (do.__name__, args[1:]), e)


def client(load, number):
    rng, c = random.Random(load.args.seed * 1000 + number), None
    while not load.stop.is_set():
        draw = rng.random()
        try:
            if draw < 0.10:
                cut_one(load, rng, rng.choice(PHASES), rng.choice(WAYS))
            elif draw < 0.15:
                bad_one(load, rng.choice(BAD if rng.random() < 0.7 else BAD_RAW))
            elif draw < 0.17:
                abort_one(load, rng)
            elif draw < 0.22:
                watch_one(load, rng)
            else:
                if c is None or rng.random() < 0.3:
                    if c is not None:
                        c.close()
                    c = Connection(load.server.port)
                (talk_one if draw < 0.32 else ask_one)(load, rng, c)
        except FAILURES as e:
            load.fail("client %d, %.2f" % (number, draw), e)
            c = None
        load.rest(rng)
    if c is not None:
        c.close()


def batches(load, every):
    """A batch once in a while, whose answers are those of the same questions."""
    port, number = load.server.port, 0
    while not load.stop.wait(every):
        number += 1
        chat = [q for q in load.questions if q.path == CHAT][number % 3::3]
        lines = "\n".join(json.dumps({"custom_id": str(i), "method": "POST", "url": q.path, "body": q.body})
                          for i, q in enumerate(chat))
        form = ('--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B\r\nContent-Disposition: form-data; '
                'name="file"; filename="in.jsonl"\r\n\r\n%s\r\n--B--\r\n' % lines).encode()
        try:
            load.count("batches")
            status, file = ask(port, "/v1/files", form, more="Content-Type: multipart/form-data; boundary=B\r\n")
            check(status == 200, "status %d of a file: %s" % (status, file))
            status, batch = ask(port, "/v1/batches", {"input_file_id": file["id"], "endpoint": CHAT,
                                                      "completion_window": "24h"})
            check(status == 200, "status %d of a batch: %s" % (status, batch))

            def done():
                batch.update(ask(port, "/v1/batches/" + batch["id"])[1])
                return batch["status"] == "completed"

            until("a batch is done", done)
            check(batch["request_counts"] == {"total": len(chat), "completed": len(chat), "failed": 0}, "%s" % batch)
            text = ask(port, "/v1/files/%s/content" % batch["output_file_id"])[1]
            for line in text.splitlines():
                answer = json.loads(line)
                chat[int(answer["custom_id"])].verify(200, json.dumps(answer["response"]["body"]).encode(), False)
            check(len(text.splitlines()) == len(chat), "a batch's answers")
            for name in (file["id"], batch["output_file_id"]):
                check(ask(port, "/v1/files/" + name, method="DELETE")[0] == 200, "a file is deleted")
        except FAILURES as e:
            load.fail("batch %d" % number, e)


# ---- kills ----


class Kills:
    """A second server, which is killed; what its clients get is the right answer, or an error."""

    def __init__(self, args, load, every):
        self.args, self.load, self.every = args, load, every
        self.server, self.counts, self.stop = None, collections.Counter(), load.stop
        self.start()

    def start(self):
        self.server = Server(self.args, "--shutdown-timeout", "20")

    def client(self, number):
        rng = random.Random(self.args.seed * 2000 + number)
        while not self.stop.is_set():
            if rng.random() < 0.3:
                q = fresh(rng)
            else:
                q = rng.choice(self.load.questions)
            stream, result, c = q.streams and rng.random() < 0.5, "lost", None
            self.load.count("kill_sent")
            try:
                c = Connection(self.server.port)
                data = q.encode(stream)
                part = rng.randrange(1, len(data)) if rng.random() < 0.2 else len(data)
                c.send(data[:part])
                if part < len(data):  # killed in a header or a body
                    time.sleep(rng.random() * 2)
                    c.send(data[part:])
                if rng.random() < 0.1:
                    time.sleep(rng.random() * 0.2)
                    c.cut(rng.choice(("rst", "close")))
                    self.load.count("kill_cut")
                    continue
                status, headers, data = c.answer()
                if status in (500, 503) or stream and b'"error":{' in data:
                    check(status == 200 or json.loads(data).get("error"), "an error without its object")
                    result = "error"
                else:
                    q.verify(status, data, stream)
                    result = "answered"
            except TimeoutError as e:
                self.load.fail("a client of the killed server waits for %s" % q.path, e)
            except (Lost, OSError):
                time.sleep(0.1)
            except (Wrong, ValueError, KeyError, IndexError) as e:
                self.load.fail("a client of the killed server", e)
            finally:
                if c is not None:
                    c.close()
            self.load.count("kill_" + result)
            self.stop.wait(min(rng.expovariate(1 / max(0.15, self.load.pause / 4)), 3))

    def back(self, what):
        """The server answers again, whole."""
        q = self.load.questions[0]

        def right():
            try:
                c = Connection(self.server.port)
                try:
                    c.send(q.encode(False))
                    status, _, data = c.answer()
                    return status == 200 and (q.verify(status, data, False) or True)
                finally:
                    c.close()
            except (Lost, ConnectionError):
                return False

        until("the server is back after %s" % what, right)

    def one(self, what):
        old = self.server.processes()
        if what == "drain":
            self.server.end()
        else:
            os.kill(old[what], signal.SIGKILL)
        if what in ("launcher", "drain"):
            until("all processes of it are gone after " + what, lambda: not any(alive(p) for p in list(old.values())[1:]))
            gone = self.server
            self.start()
            gone.remove()
        self.back(what)
        now = self.server.processes()
        if what in ("engine", "front"):
            kept = {"engine": "front", "front": "engine"}[what]
            check(now[kept] == old[kept] and now[what] != old[what], "only the %s is another" % what)
        self.counts.update([what])

    def run(self):
        rng, order = random.Random(self.args.seed), 0
        while not self.stop.wait(self.every * (0.7 + 0.6 * rng.random())):
            try:
                self.one(KILLS[order % len(KILLS)])
            except (*FAILURES, subprocess.TimeoutExpired) as e:
                self.load.fail("kill of " + KILLS[order % len(KILLS)], e)
            order += 1

    def finish(self):
        """After its clients are gone: nothing is left of what was killed."""
        until("the killed server is idle, all pages free", self.server.idle)
        self.server.end()


def alive(pid):
    try:
        return pathlib.Path("/proc/%d/stat" % pid).read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# ---- the whole ----


def touch_pool(port, seed):
    """Every page is used once: memory that is only a matter of time is not growth."""
    rng = random.Random(seed)
    for _ in range(8):
        status, _ = ask(port, TEXT, {"prompt": fresh_prompt(rng, 1800), "max_tokens": 2})
        check(status == 200, "status %d while the pool is filled" % status)


def burst(server, pid):
    """(KiB before, at the peak, at the end, seconds) of the front, around large bodies."""
    body = b'{"prompt":"x","max_tokens":1,"metadata":[' + b",".join([b"{}"] * 300000) + b"]}"
    before, bad, peak = look(pid)["rss"], [], [0]

    def work():
        for _ in range(BURST // BURST_AT_ONCE):
            status = 429
            while status == 429:  # the others' bodies are there
                status, _ = ask(server.port, TEXT, body)
                peak[0] = max(peak[0], look(pid)["rss"])
            if status != 200:
                bad.append(status)

    threads = [threading.Thread(target=work) for _ in range(BURST_AT_ONCE)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(not bad, "large bodies are answered %s" % bad[:1])
    start = time.monotonic()
    until("the front gives memory back", lambda: look(pid)["rss"] < before + BURST_ROOM_KIB, BURST_S)
    return {"before_kib": before, "peak_kib": peak[0], "after_kib": look(pid)["rss"],
            "seconds": round(time.monotonic() - start, 1)}


def at_rest(server, first):
    until("idle, all pages free or cached", server.idle)
    until("no connection and no request is left", lambda: connections(server) <= 1)
    s = server.stats()
    check(s["free_pages"] + s["cached_pages"] == s["total_pages"], "pages are lost: %s" % s)
    until("descriptors are those of the start", lambda: all(
        look(p)["fds"] <= first[n]["fds"] for n, p in server.processes().items()), 90)
    return s


def connections(server):
    m = server.metrics()
    return m["minisgl_connections"] + m["minisgl_requests_open"] - 1  # the scrape itself is a request


def sampler(load, kills, pids, samples):
    """Looks every 5 s, and holds all to their share of a core."""
    start = time.monotonic()
    last, last_cpu = start, None
    while not load.stop.wait(SAMPLE_S):
        try:
            seen = {n: look(p) for n, p in pids.items()}
        except OSError as e:
            load.fail("a process of the server is gone", e)
            return
        own = time.process_time()
        try:
            other = sum(look(p)["cpu_s"] for p in kills.server.processes().values())
        except OSError:
            other = None  # it is being killed
        now, cpu = time.monotonic(), own + sum(s["cpu_s"] for s in seen.values())
        samples.append((now - start, seen))
        if last_cpu is not None:
            spent = cpu - last_cpu[0]
            if other is not None and last_cpu[1] is not None and other >= last_cpu[1]:
                spent += other - last_cpu[1]
            share = spent / (now - last)
            load.pause = min(5.0, max(0.02, load.pause * min(2, max(0.5, share / load.args.share))))
        last, last_cpu = now, (cpu, other)


def check_counts(load, server, before):
    """What was sent is what was answered, refused and cut, and the server agrees."""
    c = load.counts
    check(c["sent"] == c["answered"] + c["refused"] + c["cut"], "counts: %s" % dict(c))
    check(c["kill_sent"] == c["kill_answered"] + c["kill_error"] + c["kill_lost"] + c["kill_cut"], "counts: %s" % dict(c))
    after = server.metrics()

    def more(name, label=""):
        return sum(v - before[k] for k, v in after.items() if k.startswith(name) and label in k)

    # 505 is what another version of HTTP gets.
    failed = more("minisgl_http_requests_total", 'code="5') - more("minisgl_http_requests_total", 'code="505')
    check(failed == 0, "the server that was not killed has %d answers of 500 and above" % failed)
    refused = more("minisgl_http_requests_total", 'code="4') + more("minisgl_http_requests_total", 'code="505')
    check(refused >= c["refused"], "the server has refused %d, not %d" % (refused, c["refused"]))
    return {"evictions": more("minisgl_evictions_total"), "retracted": more("minisgl_engine_requests_retracted_total")}


def machine():
    name = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return "%d vCPU (%s), shared with the clients and others" % (os.cpu_count(), name.group(1) if name else "?")


def commit():
    out = subprocess.run(["git", "-C", os.path.dirname(os.path.abspath(__file__)), "rev-parse", "--short=12", "HEAD"],
                         capture_output=True, text=True)
    return out.stdout.strip() or None


def memory_figures(samples, warm_s):
    """Of each process: figures after warm-up, and slopes with their errors."""
    warm, out = [s for s in samples if s[0] >= warm_s], {}
    for name in samples[0][1]:
        mine = [(t, s[name]) for t, s in warm]
        one = {"rss_mib": round(mine[-1][1]["rss"] / 1024, 1), "fds": mine[-1][1]["fds"], "threads": mine[-1][1]["threads"]}
        for field in ("rss", "private_dirty"):
            one["%s_mib_per_h" % field] = [round(x, 2) for x in slope(mine, field)]
        one["rss_mib_at_0_and_a_third"] = [round(samples[0][1][name]["rss"] / 1024, 1), round(mine[0][1]["rss"] / 1024, 1)]
        out[name] = one
    return out


def run(args):
    server = Server(args, "--batch-dir", tempfile.mkdtemp(dir=args.work))
    kills = None
    try:
        questions, talks = take_references(server.port)
        touch_pool(server.port, args.seed)
        pids = server.processes()
        until("idle", lambda: server.idle() and connections(server) <= 1)
        first = {n: look(p) for n, p in pids.items()}
        load, samples, before = Load(args, server, questions, talks), [], server.metrics()
        seconds = args.minutes * 60
        kills = Kills(args, load, min(45, max(4, seconds / 6)))
        work = [(client, (load, i)) for i in range(CLIENTS)] + [(kills.client, (i,)) for i in range(KILL_CLIENTS)]
        work += [(every_one, (load,)), (kills.run, ()), (batches, (load, min(60, seconds / 4))),
                 (sampler, (load, kills, pids, samples))]
        threads = [threading.Thread(target=do, args=what, daemon=True) for do, what in work]
        for t in threads:
            t.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and len(load.wrong) < 20:
            time.sleep(min(30, max(0.1, end - time.monotonic())))
            if samples:
                sizes = "  ".join("%s %.1f MiB" % (n, s["rss"] / 1024) for n, s in samples[-1][1].items())
                print("%5.0f s  %s  pause %.2f s  %s" % (samples[-1][0], sizes, load.pause, dict(load.counts)), flush=True)
        load.stop.set()
        for t in threads:
            t.join(3 * LIMIT_S)
            check(not t.is_alive(), "a client hangs")
        out = {"what": "mixed load", "machine": machine(), "commit": commit(), "minutes": args.minutes, **load.counts,
               "cuts": dict(sorted(load.cuts.items())), "kills": dict(kills.counts),
               "memory": memory_figures(samples, seconds / 3)}
        if args.samples:
            pathlib.Path(args.samples).write_text(json.dumps(samples))
        report(out)
        check(not load.wrong, "%d failures, the first: %s" % (len(load.wrong), load.wrong[:1]))
        out.update(check_counts(load, server, before))
        check(server.processes() == pids, "the server that was not killed has other processes")
        kills.finish()
        pages = at_rest(server, first)
        out["pages"] = {k: pages[k] for k in ("total_pages", "cached_pages", "free_pages", "used_pages")}
        if not args.no_memory:
            out["burst"] = burst(server, pids["front"])
            at_rest(server, first)
        server.end()
        return out
    finally:
        for s in (server, kills and kills.server):
            if s:
                s.remove()


def report(out):
    print("%(sent)d sent: %(answered)d answered, %(refused)d refused, %(cut)d cut; kills %(kills)s" % out)
    print("%-9s %9s %20s %20s %5s %7s" % ("process", "RSS MiB", "RSS MiB/h", "private MiB/h", "fds", "threads"))
    for name, m in out["memory"].items():
        slopes = (*m["rss_mib_per_h"], *m["private_dirty_mib_per_h"])
        print("%-9s %9.1f %12.2f +- %4.2f %12.2f +- %4.2f %5d %7d" % (name, m["rss_mib"], *slopes, m["fds"], m["threads"]),
              flush=True)


def report_end(out):
    print("pages: %s" % out["pages"])
    if "burst" in out:
        print("large bodies: %(before_kib)d KiB before, %(peak_kib)d at most, %(after_kib)d after %(seconds)s s" % out["burst"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("model")
    p.add_argument("--minutes", type=float, default=30, help="of load (30)")
    p.add_argument("--share", type=float, default=0.6, help="of a core that is used (0.6)")
    p.add_argument("--seed", type=int, default=1, help="of what the clients draw (1)")
    p.add_argument("--json", help="a line with all figures is appended to it")
    p.add_argument("--samples", help="the samples of memory are written to it, as JSON")
    p.add_argument("--no-slope", action="store_true", help="memory may grow")
    p.add_argument("--no-memory", action="store_true", help="it may, and need not be given back")
    args = p.parse_args()
    if args.minutes < 0.3:
        p.error("--minutes: %g; at least 0.3, as memory is looked at every %d s" % (args.minutes, SAMPLE_S))
    args.work = tempfile.mkdtemp()
    try:
        out = run(args)
    except (Wrong, Lost, OSError) as e:
        sys.exit("FAILED: %s" % e)
    finally:
        shutil.rmtree(args.work, ignore_errors=True)
    report_end(out)
    if args.json:
        with open(args.json, "a") as f:
            f.write(json.dumps(out) + "\n")
    grows = [n for n, m in out["memory"].items() if m["rss_mib_per_h"][0] - 2 * m["rss_mib_per_h"][1] > SLOPE_MIB_H]
    if grows and not (args.no_slope or args.no_memory):
        sys.exit("FAILED: memory grows: %s" % ", ".join(grows))


main()
