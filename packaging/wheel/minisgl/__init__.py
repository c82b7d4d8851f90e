# SPDX-License-Identifier: Apache-2.0
"""minisgl as a Python package: the program, and `python -m minisgl`, which becomes it.

There is nothing to import: programs talk to minisgl over HTTP, or link its C library.
"""
import os

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "minisgl")
