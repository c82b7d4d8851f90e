#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a request's hostile chat template takes to be refused (docs/templates.md).

    template_bombs.py MINISGL MODEL

The templates are those of tests/server/test_request_template.c (test_bombs), asked one by one of a server with
--trust-request-chat-template; the best and the median of nine times each, in ms.
"""
import json
import pathlib
import re
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from serving import Server, check  # noqa: E402

ROUNDS = 9
test = (ROOT / "tests" / "server" / "test_request_template.c").read_text()
cases = re.findall(r'\{"(\{[^"]*\})",\s*"', test[test.index("test_bombs"):test.index("against jinja2")])
check(len(cases) > 8, "%d templates" % len(cases))

with Server(*sys.argv[1:3], "--trust-request-chat-template") as server:
    slowest = 0
    for source in cases:
        took = []
        for _ in range(ROUNDS):
            start = time.monotonic()
            status, text = server.call("/apply-template", {"messages": [{"role": "user", "content": "Hi"}],
                                                           "chat_template": source})
            took.append(1e3 * (time.monotonic() - start))
            if status != 400 or json.loads(text)["error"]["param"] != "chat_template":
                raise AssertionError("%s: %d %s" % (source, status, text))
        slowest = max(slowest, statistics.median(took))
        print("%7.1f %7.1f  %s" % (min(took), statistics.median(took), source))
    print("slowest median: %.1f ms" % slowest)
