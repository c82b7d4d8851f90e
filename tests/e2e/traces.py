#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`minisgl serve --otlp-traces-endpoint`, with a collector that can do everything wrong.

    traces.py MINISGL MODEL

Spans are checked against what OTLP's JSON may be, and, where the package opentelemetry-proto is installed, by parsing them
with it. A collector that is not there, hangs, breaks off, answers garbage, refuses or asks for patience costs spans, which
are counted, and never an answer.
"""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

import serving
from serving import check

try:
    from google.protobuf import json_format
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
except ImportError:
    json_format = None

program, model = sys.argv[1:3]
LIMIT_S = 30
SECRET = "sesame-4711"  # of prompts
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
folder = tempfile.TemporaryDirectory()
servers = []


def until(what, condition):
    serving.until(what, condition, LIMIT_S)
    check(True, what)


class Collector:
    """Answers as `mode` says: a status with headers, or what is no answer."""

    def __init__(self, tls=None):
        self.mode, self.posts, self.refused, self.headers = "200", [], 0, {}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.tls = tls
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        try:
            if self.tls is not None:
                c = self.tls.wrap_socket(c, server_side=True)
            f = c.makefile("rb")
            while self.one(c, f):
                pass
        except OSError:
            pass
        finally:
            c.close()

    def one(self, c, f):
        line = f.readline().decode()
        if line == "":
            return False
        headers = {}
        while (h := f.readline().decode().strip()) != "":
            name, value = h.split(":", 1)
            headers[name.lower()] = value.strip()
        body = f.read(int(headers.get("content-length", "0")))
        mode = self.mode
        self.headers = headers
        if mode == "hang":
            time.sleep(20)
            return False
        if mode == "close":
            return False
        if mode == "garbage":
            c.sendall(os.urandom(4000))
            return False
        status, _, more = mode.partition(" ")
        post = (time.monotonic(), line.split()[1], headers, json.loads(body))
        if status == "200":
            self.posts.append(post)
        else:
            self.refused += 1
        answer = b"{}"
        if more.startswith("{"):
            answer, more = more.encode(), ""
        c.sendall(("HTTP/1.1 %s x\r\n%sContent-Length: %d\r\nContent-Type: application/json\r\n\r\n"
                   % (status, more and more + "\r\n", len(answer))).encode() + answer)
        return True

    def spans(self):
        return [s for p in list(self.posts) for s in spans_of(p[3])]

    def server_spans(self):
        return [s for s in self.spans() if s["kind"] == 2]


HEX = {"traceId": 32, "spanId": 16, "parentSpanId": 16}


def spans_of(body):
    """What is in a request, which may only be what OTLP allows."""
    if json_format is not None:
        json_format.ParseDict(body, trace_service_pb2.ExportTraceServiceRequest())  # no unknown field, no wrong type
    assert set(body) == {"resourceSpans"}, body
    found = []
    for r in body["resourceSpans"]:
        assert set(r) == {"resource", "scopeSpans"}
        check_attributes(r["resource"]["attributes"])
        for scope in r["scopeSpans"]:
            assert set(scope) == {"scope", "spans"} and set(scope["scope"]) == {"name", "version"}
            found += scope["spans"]
    for s in found:
        assert set(s) <= {"traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano",
                          "attributes", "status", "flags"}, s
        for key, n in HEX.items():
            if key in s or key != "parentSpanId":
                assert re.fullmatch("[0-9a-f]{%d}" % n, s[key]) and int(s[key], 16) != 0, s
        for key in ("startTimeUnixNano", "endTimeUnixNano"):
            assert isinstance(s[key], str) and s[key].isdigit()
        assert int(s["startTimeUnixNano"]) <= int(s["endTimeUnixNano"]) <= (time.time() + 1) * 1e9, s
        assert int(s["startTimeUnixNano"]) > (time.time() - 600) * 1e9, s
        assert s["kind"] in (1, 2) and s["flags"] & 0xff == 1
        check_attributes(s.get("attributes", []))
    return found


def check_attributes(attributes):
    keys = [a["key"] for a in attributes]
    assert len(keys) == len(set(keys)), keys
    for a in attributes:
        assert set(a) == {"key", "value"} and len(a["value"]) == 1, a
        value_of(a["value"])


def value_of(v):
    (kind, x), = v.items()
    if kind == "intValue":
        assert isinstance(x, str), v
        return int(x)
    if kind == "arrayValue":
        return [value_of(y) for y in x["values"]]
    assert isinstance(x, {"stringValue": str, "boolValue": bool, "doubleValue": (float, int)}[kind]), v
    return x


def attributes(s):
    return {a["key"]: value_of(a["value"]) for a in s.get("attributes", [])}


class Server(serving.Server):
    def __init__(self, *options, **env):
        env = {"OTEL_BSP_SCHEDULE_DELAY": "50", **env}
        clean = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_") and k.lower() != "http_proxy"}
        self.log = tempfile.TemporaryFile("w+")
        super().__init__(program, model, "--threads", "1", *options, stderr=self.log, env={**clean, **env})
        servers.append(self)

    def logged(self):
        self.log.seek(0)
        return self.log.read()

    def ask(self, **more):
        return self.call("/v1/completions", {"prompt": SECRET, "max_tokens": 3, "temperature": 0, "ignore_eos": True,
                                             **more})

    def metric(self, name):
        return float(re.search(r"^%s (\S+)$" % name, self.call("/metrics")[1], re.M)[1])

    def dropped(self):
        return self.metric("minisgl_spans_dropped_total")

    def exported(self):
        return self.metric("minisgl_spans_exported_total")

    def exporter(self):
        """The one that was started first."""
        return min(self.children())


def what_spans_say():
    col = Collector()
    s = Server("--otlp-traces-endpoint", "http://localhost:%d" % col.port, OTEL_SERVICE_NAME="chat service",
               OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=te%20st,service.name=not me",
               OTEL_EXPORTER_OTLP_HEADERS="x-tenant=one,authorization=Bearer%20abc")
    answer = s.call("/v1/chat/completions",
                    {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4, "temperature": 0.7, "top_p": 0.5,
                     "ignore_eos": True, "n": 2}, {"traceparent": PARENT, "X-Request-Id": "mine-1"})
    check(answer[0] == 200, "a chat is answered")
    until("its span comes", lambda: len(col.server_spans()) == 1)
    _, path, headers, body = col.posts[0]
    check(path == "/v1/traces" and headers["content-type"] == "application/json", "posted to /v1/traces as JSON")
    check(headers["x-tenant"] == "one" and headers["authorization"] == "Bearer abc", "with the headers asked for")
    resource = attributes({"attributes": body["resourceSpans"][0]["resource"]["attributes"]})
    check(resource["service.name"] == "chat service" and resource["deployment.environment.name"] == "te st"
          and "service.version" in resource, "of the service that the variables name")
    all_spans = col.spans()
    top = col.server_spans()[0]
    a = attributes(top)
    check(top["traceId"] == PARENT[3:35] and top["parentSpanId"] == PARENT[36:52], "in the trace of traceparent")
    check(top["flags"] == 0x301, "its parent is remote, and it is sampled")
    check([x["name"] for x in all_spans] == ["POST /v1/chat/completions", "queue", "prefill", "decode"],
          "it has a span for each phase")
    for x in all_spans[1:]:
        assert x["parentSpanId"] == top["spanId"] and x["traceId"] == top["traceId"] and x["kind"] == 1
    times = [(int(x["startTimeUnixNano"]), int(x["endTimeUnixNano"])) for x in all_spans]
    check(times[0] == (times[1][0], times[3][1]) and times[1][1] == times[2][0] and times[2][1] == times[3][0],
          "phases follow each other from its begin to its end")
    check(len({x["spanId"] for x in all_spans}) == 4, "spans have ids of their own")
    usage = json.loads(answer[1])["usage"]
    want = {"http.request.method": "POST", "url.path": "/v1/chat/completions", "http.route": "/v1/chat/completions",
            "url.scheme": "http", "http.response.status_code": 200, "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "minisgl", "gen_ai.request.id": "mine-1", "gen_ai.request.max_tokens": 4,
            "gen_ai.request.temperature": 0.7, "gen_ai.request.top_p": 0.5, "gen_ai.request.n": 2,
            "gen_ai.request.choice.count": 2, "gen_ai.request.stream": False,
            "gen_ai.response.id": json.loads(answer[1])["id"],
            "gen_ai.request.model": json.loads(answer[1])["model"],
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": usage["completion_tokens"],
            "gen_ai.response.finish_reasons": ["length", "length"]}
    for key, value in want.items():
        if a.get(key) != value:
            raise AssertionError("%s is %r, not %r" % (key, a.get(key), value))
    check(usage["completion_tokens"] == 8 and "status" not in top, "attributes are those of the request and its answer")
    check(0 < a["gen_ai.latency.time_in_queue"] < a["gen_ai.latency.time_to_first_token"]
          < a["gen_ai.latency.e2e"] < 30, "latencies are there")

    def next_span(what, request):
        n = len(col.server_spans())
        request()
        until(what, lambda: len(col.server_spans()) == n + 1)
        x = col.server_spans()[n]
        return x, attributes(x)

    x, a = next_span("a stream has one", lambda: s.ask(stream=True))
    check(a["gen_ai.request.stream"] and a["gen_ai.usage.output_tokens"] == 3 and "parentSpanId" not in x
          and a["gen_ai.operation.name"] == "text_completion", "it is the root of its own trace")
    x, a = next_span("a bad request has one", lambda: s.ask(temperature=-1))
    check(a["http.response.status_code"] == 400 and a["error.type"] == "invalid_value" and "status" not in x,
          "with the error's code; what a client did wrong is no error of the server's")
    x, a = next_span("/tokenize has one", lambda: s.call("/tokenize", {"prompt": SECRET}))
    check(a["http.response.status_code"] == 200 and "gen_ai.operation.name" not in a, "which generates nothing")

    def leave():
        c = socket.create_connection(("127.0.0.1", s.port))
        data = json.dumps({"prompt": SECRET, "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        c.recv(100)
        c.close()

    x, a = next_span("a client that leaves has one", leave)
    check(a["minisgl.client_gone"] is True and a["gen_ai.response.finish_reasons"] == ["abort"], "that says so")
    bad = ["00-" + "0" * 32 + PARENT[35:], PARENT.upper(), PARENT + "-x", PARENT[:-1], "ff" + PARENT[2:], "", "x" * 70]
    for text in bad:
        x, a = next_span("malformed: %r" % text, lambda: s.call("/v1/completions", {"prompt": "x", "max_tokens": 1},
                                                                {"traceparent": text}))
        assert "parentSpanId" not in x and x["traceId"] != PARENT[3:35], x
    check(True, "malformed traceparent headers begin new traces")
    s.call("/v1/completions", {"prompt": "x", "max_tokens": 1}, {"traceparent": PARENT[:-2] + "00"})
    x, a = next_span("what is not sampled has none",
                     lambda: s.call("/v1/completions", {"prompt": "x", "max_tokens": 1}, {"traceparent": "01" + PARENT[2:] + "-z"}))
    check(x["parentSpanId"] == PARENT[36:52], "later versions of traceparent are read")
    s.call("/health")
    check(SECRET not in json.dumps([p[3] for p in col.posts]), "what was asked is not in them")
    check(s.exported() == len(col.spans()) and s.dropped() == 0, "/metrics counts them")
    check("Seccomp:\t2" in pathlib.Path("/proc/%d/status" % s.exporter()).read_text(), "the exporter is confined")
    os.kill(s.exporter(), signal.SIGKILL)
    until("an exporter that dies is started again", lambda: "exporter ended (killed by signal 9)" in s.logged())
    until("and exports", lambda: (s.ask(), s.exported())[1] > 0 and len(col.server_spans()) > 20)
    s.end()


def what_collectors_do():
    col = Collector()
    s = Server("--otlp-traces-endpoint", "http://127.0.0.1:%d/base" % col.port, OTEL_EXPORTER_OTLP_TIMEOUT="300")
    for mode, first in (("200", True), ("500", False), ("400", False), ("302 Location: http://127.0.0.1:1/", False)):
        col.mode = mode
        was, posts, refused = s.dropped(), len(col.posts), col.refused
        check(s.ask()[0] == 200, "answered; the collector's status: " + mode)
        if first:
            until("taken", lambda: len(col.posts) == posts + 1)
            check(col.posts[-1][1] == "/base", "a path is left as it is")
        else:
            until("dropped", lambda: s.dropped() == was + 4)
            check(col.refused == refused + 1, "and not tried again")
    check("answers with status 500" in s.logged(), "the log says so")
    for mode in ("hang", "close", "garbage", "503", "429 Retry-After: 2"):
        col.mode = mode
        was, posts, refused = s.dropped(), len(col.posts), col.refused
        begin = time.monotonic()
        check(s.ask()[0] == 200 and time.monotonic() - begin < 5, "answered at once; the collector: " + mode)
        time.sleep(0.7)
        col.mode = "200"
        until("taken when it can be", lambda: len(col.posts) == posts + 1)
        check(s.dropped() == was, "nothing is lost")
        if "Retry" in mode:
            check(col.posts[-1][0] - begin >= 2, "not before Retry-After")
    check(len({x["spanId"] for x in col.spans()}) == len(col.spans()), "no span comes twice")
    check("takes spans again" in s.logged(), "the log says so, too")
    col.mode = '200 {"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}'
    was = s.dropped()
    s.ask()
    until("spans that a collector refuses are counted", lambda: s.dropped() == was + 3)
    col.listener.close()
    col.mode = "close"
    begin = time.monotonic()
    check(all(s.ask()[0] == 200 for _ in range(20)), "answered without a collector")
    s.end()
    check(time.monotonic() - begin < 20, "which keeps nothing from ending")


def full_queue():
    """Nobody takes spans: memory stays bounded, and what is lost is counted."""
    s = Server("--otlp-traces-endpoint", "http://127.0.0.1:1/v1/traces")
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=LIMIT_S)
    for _ in range(2600):
        c.request("POST", "/tokenize", '{"prompt":"x"}')
        r = c.getresponse()
        r.read()
        if r.status != 200:
            raise AssertionError("status %d" % r.status)
    until("what does not fit is dropped and counted", lambda: s.dropped() >= 2600 - 2048)
    s.end()


def ends():
    col = Collector()
    s = Server("--otlp-traces-endpoint", "http://127.0.0.1:%d" % col.port, OTEL_BSP_SCHEDULE_DELAY="60000")
    s.ask()
    s.end()
    check(len(col.server_spans()) == 1, "what is left is sent when the server stops")
    s = Server(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:%d/" % col.port)
    s.ask()
    until("OTEL_EXPORTER_OTLP_ENDPOINT is enough", lambda: len(col.server_spans()) == 2)
    check(col.posts[-1][1] == "/v1/traces", "with the path that it gets")
    s.end()
    s = Server(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:%d/" % col.port, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    check("traces: spans" not in s.logged(), "nothing is posted")
    check("traces are off: OTEL_EXPORTER_OTLP_PROTOCOL" in s.logged()
          and "minisgl_spans" not in s.call("/metrics")[1], "one of gRPC is none")
    s.end()
    s = Server("--otlp-traces-endpoint", "http://me:hidden@127.0.0.1:%d/x?key=hidden" % col.port)
    s.ask()
    until("a URL may have a user", lambda: col.posts[-1][1] == "/x?key=hidden")
    check(col.posts[-1][2]["authorization"].startswith("Basic "), "who is sent")
    check("spans of requests go to http://127.0.0.1:%d/x\n" % col.port in s.logged(), "but not logged")
    s.end()
    for name, options, env in (("--otlp-traces-endpoint", ["--otlp-traces-endpoint", "localhost:4317"], {}),
                               ("OTEL_EXPORTER_OTLP_ENDPOINT", [], {"OTEL_EXPORTER_OTLP_ENDPOINT": "x"}),
                               ("OTEL_EXPORTER_OTLP_HEADERS", ["--otlp-traces-endpoint", "http://h"],
                                {"OTEL_EXPORTER_OTLP_HEADERS": "a=%0ab"})):
        r = subprocess.run([program, "serve", model, "--port", "0", *options], capture_output=True, text=True,
                           timeout=60, env={**os.environ, **env})
        check(r.returncode == 1 and name + ": allowed" in r.stderr and r.stdout == "", name + " is checked")


def https():
    cert, key = (str(pathlib.Path(folder.name) / name) for name in ("cert.pem", "key.pem"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert], check=True,
                   stderr=subprocess.DEVNULL)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    col = Collector(tls)
    url = "https://localhost:%d/v1/traces" % col.port
    s = Server("--otlp-traces-endpoint", url, OTEL_EXPORTER_OTLP_CERTIFICATE=cert)
    s.ask()
    until("https works", lambda: len(col.server_spans()) == 1)
    s.end()
    s = Server("--otlp-traces-endpoint", url)
    check(s.ask()[0] == 200, "answered")
    until("a certificate that nobody trusts is said", lambda: "certificate" in s.logged())
    s.end()
    check(len(col.server_spans()) == 1, "and gets nothing")


try:
    check(True, "with opentelemetry-proto" if json_format else "without opentelemetry-proto")
    what_spans_say()
    what_collectors_do()
    full_queue()
    ends()
    https()
finally:
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
