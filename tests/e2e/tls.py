#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`minisgl serve --ssl-certfile --ssl-keyfile`, with clients that check its certificate.

    tls.py MINISGL MODEL

What an operator got wrong is said before anything starts. Python's ssl and http.client, and the official openai client
where it is installed, get answers and streams; 200 streams at a time that are cut in the middle leave nothing behind.
"""
import http.client
import json
import os
import pathlib
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

from serving import Server, check

STREAMS = 200
program, model = sys.argv[1:]
folder = tempfile.TemporaryDirectory()
cert, key = (str(pathlib.Path(folder.name) / name) for name in ("cert.pem", "key.pem"))

subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
               check=True, stderr=subprocess.DEVNULL)


def refuses(what, *options):
    r = subprocess.run([program, "serve", model, "--port", "0", *options], capture_output=True, text=True, timeout=60)
    check(r.returncode == 1 and what in r.stderr and r.stdout == "", what)


refuses("--ssl-keyfile needs --ssl-certfile FILE", "--ssl-keyfile", key)
refuses("key.pem: no certificate in PEM format", "--ssl-certfile", key, "--ssl-keyfile", key)
os.chmod(cert, 0o600)
refuses("cert.pem: no private key in PEM format", "--ssl-certfile", cert)
os.chmod(key, 0o644)
refuses("key.pem has a private key that every user of this machine may use (mode 644)",
        "--ssl-certfile", cert, "--ssl-keyfile", key)
os.chmod(key, 0o600)

server = Server(program, model, "--ssl-certfile", cert, "--ssl-keyfile", key)
port = server.port
check(server.url.startswith("https:"), "its address says https")
trust = ssl.create_default_context(cafile=cert)


def call(method, path, body=None):
    c = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=60)
    c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, json.loads(data)


def idle():
    status, info = call("GET", "/get_server_info")
    stats = info["stats"]
    return (status == 200 and info["requests_open"] == 0 and
            not stats["running"] and not stats["waiting"] and not stats["used_pages"])


def stream():
    """A connection that has the beginning of an answer."""
    s = trust.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=120), server_hostname="localhost")
    body = json.dumps({"prompt": "Tell me of", "max_tokens": 500, "ignore_eos": True, "stream": True}).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return s


def leave(s, how):
    if how == 0:  # with close_notify
        s.settimeout(0)
        try:
            s.unwrap()
        except OSError:
            pass
    elif how == 1:  # a reset
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how == 2:
        s.shutdown(socket.SHUT_RDWR)
    s.close()


try:
    with trust.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as s:
        check(s.version() == "TLSv1.3", "TLS 1.3")
    answer = call("POST", "/v1/completions", {"prompt": "2 + 3 =", "max_tokens": 8, "temperature": 0})[1]
    check(answer["choices"][0]["text"] != "", "an answer")
    try:
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        plain.request("GET", "/health")
        plain.getresponse()
        check(False, "HTTP without TLS must be refused")
    except (http.client.HTTPException, ConnectionError):
        check(True, "HTTP without TLS is refused")
    # More of them than run at a time, some without a first token; cut in four ways.
    streams = [stream() for _ in range(STREAMS)]
    for s in streams[:8]:
        seen = b""
        while b"data: " not in seen:
            seen += s.recv(4096)
    for i, s in enumerate(streams):
        leave(s, i % 4)
    end = time.monotonic() + 60
    while not idle():
        if time.monotonic() > end:
            raise AssertionError("not idle: %s" % call("GET", "/get_server_info")[1])
        time.sleep(0.1)
    check(True, "%d streams that were cut leave nothing behind" % STREAMS)
    again = call("POST", "/v1/completions", {"prompt": "2 + 3 =", "max_tokens": 8, "temperature": 0})[1]
    check(again["choices"][0]["text"] == answer["choices"][0]["text"], "the same answer afterwards")
    try:
        import httpx
        import openai
        client = openai.OpenAI(base_url="https://localhost:%d/v1" % port, api_key="none", max_retries=0,
                               http_client=httpx.Client(verify=trust, timeout=60))
        pieces = [c.choices[0].text for c in client.completions.create(
            model="demo", prompt="2 + 3 =", max_tokens=8, temperature=0, stream=True) if c.choices]
        check("".join(pieces) == answer["choices"][0]["text"], "the openai client's stream")
    except ImportError:
        print("the openai package is not installed")
    server.end()
finally:
    server.process.kill()
