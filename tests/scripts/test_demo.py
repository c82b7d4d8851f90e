#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/demo with a stand-in for ninja: what it builds, what it says, and what the real binary (MINISGL) answers."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Demo(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.build = pathlib.Path(scratch.name)
        (self.build / "minisgl").symlink_to(os.environ["MINISGL"])

    def demo(self, steps, code=0, rc=0):
        ninja = self.build / "ninja"
        dry = f"seq -f '[%g/{steps}] Building' {steps}" if steps else "echo 'ninja: no work to do.'"
        ninja.write_text(f'#!/bin/sh\necho "$@" >>{self.build}/calls\ncase " $* " in *" -n "*) {dry} ;; *) exit {rc} ;; esac\n')
        ninja.chmod(0o755)
        run = subprocess.run([ROOT / "scripts" / "demo", self.build], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             env=dict(os.environ, PATH=f"{self.build}:{os.environ['PATH']}"))
        self.assertEqual(run.returncode, code, run.stdout)
        return run.stdout, (self.build / "calls").read_text().splitlines()

    def test_builds_the_binary_alone(self):
        out, calls = self.demo(steps=200)
        self.assertRegex(out, r"building minisgl: 200 steps, about \d+ s on \d+ cores")
        self.assertEqual(calls[1:], [f"-C {self.build} --quiet minisgl"])

    def test_built_already(self):
        out, calls = self.demo(steps=0)
        self.assertNotIn("building", out)
        self.assertEqual(len(calls), 1)
        self.assertIn("27 + 58 = 85", out)
        self.assertLess(float(re.search(r"KV pages +([\d.]+)", out)[1]), 32) # MiB, beside a model of 24 MB
        self.assertIn("\nNext:\n", out)
        self.assertIn(f"{self.build}/minisgl serve --model models/demo", out)

    def test_a_build_that_fails_ends_it(self):
        out, _ = self.demo(steps=5, rc=1, code=1)
        self.assertNotIn("Next", out)


if __name__ == "__main__":
    unittest.main()
