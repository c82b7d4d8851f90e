#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hub_server.py FOLDER STATE: a stand-in for Hugging Face and ModelScope, on loopback, which serves the model in FOLDER.

Prints the port of the hub and that of the host that large files are redirected to. What was asked goes to
STATE/log, a line each: HOST PATH RANGE token|-. The file STATE/mode says, in words, how it misbehaves:
  cut=N      a large file's connection ends after N bytes more     slow       large files come slowly
  busy=N     the next N requests are answered 503                  limit=N    the same, with 429 and Retry-After
  wrong      large files have a wrong byte                         norange    Range is ignored
  need=TOKEN 401 without that token                                forbid     403, gated
  name=PATH  the list has this file name, too                      nolist     the list is no JSON
  folder=DIR serves this one                                       nosum      the list has no checksums
  hide=TOKEN 404 without that token as a cookie                    code       ModelScope's list is an error in a 200
"""
import hashlib
import http.server
import json
import os
import sys
import threading
import time
import urllib.parse

FOLDER, STATE = sys.argv[1], sys.argv[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf", "tokenizer.json")
lock = threading.Lock()


def mode():
    try:
        with open(os.path.join(STATE, "mode")) as f:
            words = f.read().split()
    except OSError:
        words = []
    return dict(w.split("=", 1) if "=" in w else (w, "") for w in words)


def count_down(word):
    """Whether `word`=N is above 0; it is one less from now on."""
    with lock:
        m = mode()
        n = int(m.get(word, 0))
        if n == 0:
            return False
        m[word] = str(n - 1)
        with open(os.path.join(STATE, "mode"), "w") as f:
            f.write(" ".join(k + "=" + v if v else k for k, v in m.items()))
        return True


def folder():
    return mode().get("folder", FOLDER)


def names():
    """The model's files, with those in folders."""
    found = []
    for at, _, files in os.walk(folder()):
        found += [os.path.relpath(os.path.join(at, f), folder()) for f in files]
    return sorted(found)


def content(name):
    with open(os.path.join(folder(), name), "rb") as f:
        return f.read()


def entry(name, m):
    data = content(name)
    e = {"rfilename": name, "size": len(data)}
    if "nosum" in m:
        return e
    e["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    if name.endswith(LARGE):
        e["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return e


def listing(m):
    files = [entry(n, m) for n in names()]
    files += [{**files[0], "rfilename": n} for n in ("pytorch_model.bin", "original/consolidated.pth", "README.md")
              if n not in names()]
    if "name" in m:
        files.append({**files[0], "rfilename": m["name"]})
    return {"id": "org/small", "sha": COMMIT, "siblings": files}


def scope_listing(m, revision):
    """ModelScope's, with its folders; what it says of each file beyond this, its client does not read."""
    files = []
    for name in names():
        data = content(name)
        files.append({"Name": os.path.basename(name), "Path": name, "Type": "blob", "Size": len(data),
                      "IsLFS": name.endswith(LARGE), "Mode": "33188", "Revision": COMMIT, "CommittedDate": 1700000000})
        if "nosum" not in m:
            files[-1]["Sha256"] = hashlib.sha256(data).hexdigest()
    folders = {os.path.dirname(f["Path"]) for f in files} - {""}
    files += [{"Name": os.path.basename(d), "Path": d, "Type": "tree", "Size": 0, "Sha256": ""} for d in sorted(folders)]
    if "name" in m:
        files.append({**files[0], "Path": m["name"]})
    return {"Files": files, "IsVisual": 0, "LatestCommitter": {"Id": COMMIT, "Message": revision}}


def scope_revisions():
    rows = [{"Revision": r, "CreatedAt": 1700000000} for r in ("master", "v1/x")]
    return {"RevisionMap": {"Branches": rows[:1], "Tags": rows[1:]}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refused(self, m, path):
        if count_down("busy"):
            self.answer(503)
        elif count_down("limit"):
            self.answer(429, headers=[("Retry-After", "1")])
        elif "need" in m and self.headers.get("Authorization") != "Bearer " + m["need"]:
            self.answer(401, b"no", [("X-Error-Code", "RepoNotFound")])
        elif "hide" in m and f"m_session_id={m['hide']}" not in self.headers.get("Cookie", ""):
            self.scope_error(404, "model not found")
        elif "forbid" in m and "/api/" not in path:
            self.answer(403, b"no", [("X-Error-Code", "GatedRepo")])
        else:
            return False
        return True

    def file(self, name, m):
        """A large one, as its store sends it: with ranges, and whatever the mode says."""
        data = content(name)
        if "wrong" in m:
            data = data[:100] + bytes([data[100] ^ 1]) + data[101:]
        start, status, headers = 0, 200, []
        want = self.headers.get("Range", "")
        if want.startswith("bytes=") and "norange" not in m:
            start, status = int(want[6:].split("-")[0]), 206
            headers = [("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")]
        if start >= len(data):
            return self.answer(416)
        body = data[start:]
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        cut = int(m.get("cut", len(body)))
        for at in range(0, min(cut, len(body)), 1 << 16):
            self.wfile.write(body[at : min(at + (1 << 16), cut)])
            if "slow" in m:
                time.sleep(0.01)
        if cut < len(body):
            self.close_connection = True
        return None

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        path, m = urllib.parse.unquote(url.path), mode()
        token = "token" if "Authorization" in self.headers or "Cookie" in self.headers else "-"
        with lock, open(os.path.join(STATE, "log"), "a") as f:
            f.write(f"{self.server.role} {self.path} {self.headers.get('Range', '-')} {token}\n")
        if self.server.role == "store":
            return self.file(path[1:], m)
        if self.refused(m, path):
            return None
        if path.startswith("/api/v1/models/"):
            return self.scope(path, dict(urllib.parse.parse_qsl(url.query)), m)
        if path in (f"/api/models/org/small/revision/{r}" for r in ("main", "v1/x", COMMIT)):
            if "nolist" in m:
                return self.answer(200, b"<html>")
            return self.answer(200, json.dumps(listing(m)).encode())
        resolve = f"/org/small/resolve/{COMMIT}/"
        if path.startswith(resolve):
            return self.resolved(path[len(resolve) :])
        if path == f"/org/small/resolve/main/{path.rsplit('/', 1)[-1]}":
            return self.resolved(path.rsplit("/", 1)[-1])
        return self.answer(404, b"none", [("X-Error-Code", "RepoNotFound")])

    do_HEAD = do_GET

    def scope_data(self, data):
        body = {"Code": 200, "Data": data, "Message": "success", "RequestId": "x", "Success": True}
        return self.answer(200, json.dumps(body).encode(), [("Content-Type", "application/json")])

    def scope_error(self, status, why, code=10010205001):
        body = {"Code": code, "Message": why, "RequestId": "x", "Success": False}
        return self.answer(status, json.dumps(body).encode(), [("Content-Type", "application/json")])

    def scope(self, path, query, m):
        rest, revision = path[len("/api/v1/models/") :], query.get("Revision", "master")
        if rest == "org/small":
            return self.scope_data({"Name": "small", "Path": "org", "Visibility": 5})
        if rest == "org/small/revisions":
            return self.scope_data(scope_revisions())
        if rest not in ("org/small/repo/files", "org/small/repo") or revision not in ("master", "v1/x"):
            return self.scope_error(400 if rest.startswith("org/small/") else 404, "not found")
        if rest.endswith("/files"):
            if "code" in m:
                return self.scope_error(200, "the model is being\nchecked")
            return self.scope_data(scope_listing(m, revision))
        name = query["FilePath"]
        if name not in names():
            return self.scope_error(404, "no such file")
        if name.endswith(LARGE):
            to = f"http://localhost:{STORE.server_address[1]}/{urllib.parse.quote(name)}?signature=x"
            return self.answer(302, b"moved", [("Location", to)])
        return self.answer(200, content(name))

    def resolved(self, name):
        if name not in names():
            return self.answer(404, b"none", [("X-Error-Code", "EntryNotFound")])
        e = entry(name, {})
        about = [("X-Repo-Commit", COMMIT), ("ETag", f'"{e["blobId"]}"')]
        if "lfs" in e:
            about += [("X-Linked-Etag", f'"{e["lfs"]["sha256"]}"'), ("X-Linked-Size", str(e["size"]))]
            to = f"http://localhost:{STORE.server_address[1]}/{urllib.parse.quote(name)}?signature=x"
            return self.answer(302, b"moved", about + [("Location", to)])
        return self.answer(200, content(name), about)


def server(role):
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    s.daemon_threads, s.role = True, role
    threading.Thread(target=s.serve_forever, daemon=True).start()
    return s


STORE, HUB = server("store"), server("hub")
print(HUB.server_address[1], STORE.server_address[1], flush=True)
sys.stdin.read()  # until whoever started it is gone
