#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mistralai 3.7.0 (Python): models.list() knows no model whose entry has not Mistral's own "type" and "capabilities".
# Expected: the list that OpenAI's clients read (id, object, created, owned_by) is read, with the members it lacks unset.
# Seen: without "type" the whole call fails with a ResponseValidationError; with any other type than "base" or "fine-tuned",
# and with "base" but without "capabilities", the entry is an UnknownModelListData that has no id, only a raw dict. So
# a server with Anthropic's "type": "model" in its list passes the check, and every m.id fails on the client. The chat calls
# of the same client take such a server's answers.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q mistralai==3.7.0
cat >"$dir/show.py" <<'END'
import http.server
import json
import sys
import threading
from importlib.metadata import version

from mistralai.client import Mistral

entry = {}


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(dict(object="list", data=[entry])).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = Mistral(api_key="none", server_url=f"http://127.0.0.1:{server.server_port}")
print("mistralai", version("mistralai"))
seen = []
for more in ({}, dict(type="model"), dict(type="base"), dict(type="base", capabilities={})):
    entry.clear()
    entry.update(dict(id="m", object="model", created=1, owned_by="me"), **more)
    try:
        model = client.models.list().data[0]
        seen.append((type(model).__name__, getattr(model, "id", None)))
    except Exception as e:
        seen.append((type(e).__name__, None))
    print(json.dumps(entry), "->", *seen[-1])
unknown = ("UnknownModelListData", None)
sys.exit(0 if seen == [("ResponseValidationError", None), unknown, unknown, ("BaseModelCard", "m")] else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
