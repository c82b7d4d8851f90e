#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long one client waits while another has costly work done: the table of docs/decisions/044.

    fairness.py MINISGL MODEL

Each case starts a server, has 32 connections (or those that it names) of one client ask for the costliest forms that are
known without a pause, and one connection of another client, in another process, ask for chats of two tokens meanwhile. Printed: the other
client's median and 99th percentile, and how far the front's resident size rose above that of the idle server.
Clients are addresses of the loopback net, or API keys. Linux only (/proc). One case takes some 10 s.
"""
import asyncio
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time

SECONDS = 10


def twice(levels):
    """A schema whose parts are each the one before, twice."""
    both = {"d%d" % i: {"allOf": [{"$ref": "#/$defs/d%d" % (i - 1)}] * 2} for i in range(1, levels)}
    return {"$defs": {"d0": {"type": "object", "properties": {"z": {"type": "string"}}}, **both},
            "$ref": "#/$defs/d%d" % (levels - 1)}


def chat(**more):
    return {"model": "demo", "messages": [{"role": "user", "content": "2 + 3"}], "max_tokens": 2, **more}


def schema(s):
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": s}})


def tool(s):
    return chat(tools=[{"type": "function", "function": {"name": "f", "strict": True, "parameters": s}}])


PAIRS = {"allOf": [{"anyOf": [{"type": "object", "properties": {"a%d" % i: {"type": "string"}}} for i in range(20)]},
                   {"anyOf": [{"type": "object", "properties": {"b%d" % i: {"type": "string"}}} for i in range(20)]}]}
FORMS = {
    "a schema of 14 levels": schema(twice(14)),
    "a schema of 30 levels": schema(twice(30)),
    "a strict tool of 30 levels": tool(twice(30)),
    "400 pairs of alternatives": schema(PAIRS),
    "20,000 members": schema({"type": "object", "properties": {"m%d" % i: {"type": "integer"} for i in range(20000)}}),
    "a regex of counts": chat(regex="((a{1,90}b){1,90}c){1,60}"),
    "a Lark grammar of 30 levels": chat(structured_outputs={"grammar": "start: %json " + json.dumps(twice(30))}),
}
PLAIN = json.dumps(chat()).encode()
TEXT = json.dumps({"prompt": "The quick brown fox jumps over the lazy dog. " * 1250}).encode()  # 55 KB


class Server:
    def __init__(self, *options):
        self.process = subprocess.Popen([*sys.argv[1:2], "serve", "--model", sys.argv[2], "--port", "0", "--device", "cpu",
                                         *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        self.port = int(line[line.find("http://"):].split()[0].rstrip("/").removesuffix("/v1").rsplit(":", 1)[1])
        # The engine is started first, the front second.
        self.front = max(int(p) for p in os.listdir("/proc") if p.isdigit() and self.is_child(p))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def is_child(self, pid):
        try:
            with open("/proc/%s/stat" % pid) as f:
                return int(f.read().rsplit(")", 1)[1].split()[1]) == self.process.pid
        except OSError:
            return False

    def mib(self, field):
        with open("/proc/%d/status" % self.front) as f:
            return next(int(s.split()[1]) for s in f if s.startswith(field)) / 1024

    async def ask(self, path, body, source, key=None):
        """The status of the answer; 0: none."""
        writer = None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
            head = "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n" % path
            head += "Authorization: Bearer %s\r\n" % key if key else ""
            writer.write(("%sContent-Length: %d\r\n\r\n" % (head, len(body))).encode() + body)
            answer = await reader.read()
            return int(answer[9:12] or 0)
        except OSError:
            return 0
        finally:
            if writer is not None:
                writer.close()


async def wait_of(server, source, key=None):
    start = time.monotonic()
    status = await server.ask("/v1/chat/completions", PLAIN, source, key)
    if status != 200:
        raise SystemExit("the other client's chat: status %d" % status)
    return time.monotonic() - start


async def forms_cost(server):
    """The forms by how long one alone takes, the longest first."""
    cost = []
    for name, form in FORMS.items():
        start = time.monotonic()
        status = await server.ask("/v1/chat/completions", json.dumps(form).encode(), "127.0.0.2")
        cost.append((time.monotonic() - start, name, status))
    for took, name, status in sorted(cost, reverse=True):
        print("  %-30s %6d bytes %8.1f ms, status %d" % (name, len(json.dumps(FORMS[name])), 1000 * took, status))
    return [name for _, name, _ in sorted(cost, reverse=True)]


async def attack(server, connections, path, bodies, source, key, stop):
    """How many answers had which status, when `stop` is set."""
    statuses = {}

    async def one(i):
        while not stop.is_set():
            status = await server.ask(path, bodies[i % len(bodies)], source, key)
            statuses[status] = statuses.get(status, 0) + 1
            if status == 0:
                await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(one(i)) for i in range(connections)]
    while not stop.is_set():
        await asyncio.sleep(0.05)
    for t in tasks:
        t.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return statuses


def attacker(stop, result, *args):
    """A process of its own: its connections must not keep the clock of the other client waiting."""
    result.send(asyncio.run(attack(*args, stop)))


async def case(server, name, connections, path, bodies, sources=("127.0.0.2", "127.0.0.9"), keys=(None, None)):
    idle = [await wait_of(server, sources[1], keys[1]) for _ in range(20)]
    before = server.mib("VmRSS")
    stop, (result, sender) = multiprocessing.Event(), multiprocessing.Pipe(False)
    other = multiprocessing.Process(target=attacker, args=(stop, sender, server, connections, path, bodies, sources[0], keys[0]))
    other.start()
    await asyncio.sleep(1)
    waits, start = [], time.monotonic()
    while time.monotonic() - start < SECONDS:
        waits.append(await wait_of(server, sources[1], keys[1]))
        await asyncio.sleep(0.02)
    rise = server.mib("VmHWM") - before
    stop.set()
    statuses = result.recv()
    other.join()
    waits.sort()
    print("%-44s %4d chats: median %.3f s, 99 %% %.3f s (idle %.3f s); front +%.0f MiB; others' answers %s"
          % (name, len(waits), waits[len(waits) // 2], waits[(len(waits) - 1) * 99 // 100], sorted(idle)[10], rise,
             dict(sorted(statuses.items()))), flush=True)


async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with Server() as server:
        costliest = [json.dumps(FORMS[n]).encode() for n in (await forms_cost(server))[:3]]
    chats = "/v1/chat/completions"
    with Server() as server:
        await case(server, "32 connections with forms, by address", 32, chats, costliest)
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("AAAAAAAAAAAAAAAAAAAAAAAA\nBBBBBBBBBBBBBBBBBBBBBBBB\n")
        keys.flush()
        with Server("--api-key-file", keys.name) as server:
            await case(server, "the same, by API key", 32, chats, costliest, ("127.0.0.1",) * 2,
                       ("AAAAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBBBB"))
    with Server("--num-tokenizer", "4") as server:
        await case(server, "the same, by address, 4 tokenizer threads", 32, chats, costliest)
    with Server() as server:
        await case(server, "3,000 connections, 55 KB to tokenize", 3000, "/tokenize", [TEXT])


if __name__ == "__main__":
    asyncio.run(main())
