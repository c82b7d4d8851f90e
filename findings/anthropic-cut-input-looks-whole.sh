#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# anthropic 2.14.0 (Python): a tool's input that was cut at max_tokens is handed over as a whole one, with other values.
# Expected: where the input's JSON ends in the middle, messages.stream() says so, or leaves the block without an input.
# Seen: it parses the beginning and gives what it has: of {"path": "/a", "lines": 120, "force": tr the input is the first two
# members, and an amount 1200 that was cut behind 12 is 12, complete in type and form. stop_reason is the only sign. A
# server cannot mend it (it has no event for "cut"), so it has to report max_tokens and never tool_use for such a block;
# a program that looks at the blocks alone runs the tool with a wrong number.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q anthropic==2.14.0
cat >"$dir/show.py" <<'END'
import http.server
import json
import sys
import threading

import anthropic

parts = ['{"path": "/a", "amount": 12']


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        start = dict(id="m", type="message", role="assistant", model="m", content=[], stop_reason=None, stop_sequence=None,
                     usage=dict(input_tokens=1, output_tokens=1))
        events = [dict(type="message_start", message=start),
                  dict(type="content_block_start", index=0, content_block=dict(type="tool_use", id="t", name="pay", input={}))]
        events += [dict(type="content_block_delta", index=0, delta=dict(type="input_json_delta", partial_json=p)) for p in parts]
        events += [dict(type="content_block_stop", index=0),
                   dict(type="message_delta", delta=dict(stop_reason="max_tokens", stop_sequence=None),
                        usage=dict(output_tokens=9)),
                   dict(type="message_stop")]
        self.wfile.write("".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode())

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.server_port}", api_key="none", max_retries=0)


def final(text):
    parts[:] = [text]
    with client.messages.stream(model="m", max_tokens=9, messages=[dict(role="user", content="x")]) as stream:
        message = stream.get_final_message()
    return message.content[0].input, message.stop_reason


print("anthropic", anthropic.__version__)
same = True
for text, expected in (('{"path": "/a", "amount": 12', {"path": "/a", "amount": 12}),
                       ('{"path": "/a", "lines": 120, "force": tr', {"path": "/a", "lines": 120}),
                       ('{"path": "/home/me/ca', {})):
    seen, reason = final(text)
    same = same and seen == expected and reason == "max_tokens"
    print(f"sent and cut: {text:42} input: {seen}, stop_reason {reason}")
sys.exit(0 if same else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
