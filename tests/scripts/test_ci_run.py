#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
""".ci/run in a tree where every command is a stand-in: which steps it takes, and what it says at the end."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class CiRun(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = pathlib.Path(scratch.name)
        for name in (".ci/run", "cmake/cuda.cmake"):
            (self.tree / name).parent.mkdir(parents=True)
            shutil.copy(ROOT / name, self.tree / name)
        for name in ("setup", "check-style", "check-headers", "check-portable", "check-symbols", "check-docs",
                     "check-install", "check-deb", "check-examples", "fuzz"):
            self.stand_in("scripts/" + name)
        for name in ("cmake", "make", "ninja", "ctest", "python3"):
            self.stand_in("tools/" + name)

    def stand_in(self, name, does=""):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {name} \"$@\" >>{self.tree}/calls\n{does}\n")
        path.chmod(0o755)

    def run_ci(self, *args, code=0):
        run = subprocess.run([self.tree / ".ci" / "run", *args], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             env=dict(os.environ, PATH=f"{self.tree}/tools:{os.environ['PATH']}"))
        self.assertEqual(run.returncode, code, run.stdout)
        return run.stdout

    def calls(self):
        return (self.tree / "calls").read_text()

    def test_without_a_compiler(self):
        (self.tree / "build").mkdir()
        (self.tree / "build" / "minisgl-cuda.so").write_text("of an earlier run")
        out = self.run_ci()
        self.assertRegex(out.splitlines()[-1], r"^all checks passed \(.*\), CUDA not built, clients not checked, clients of openai 2 not checked$")
        self.assertIn("-DMSGL_CUDA=AUTO -DMSGL_CUDA_QUICK=ON -DMSGL_CUDA_ARCHS=90a", self.calls())

    def test_with_a_compiler(self):
        self.stand_in("tools/make", "mkdir -p build && touch build/minisgl-cuda.so")
        self.stand_in("build/clients/bin/pip")
        self.stand_in("build/clients-openai2/bin/pip")
        self.assertRegex(self.run_ci().splitlines()[-1],
                         r"^all checks passed \(.*\), CUDA built for 90a, clients checked, clients of openai 2 checked$")
        out = self.run_ci("--cuda")
        self.assertRegex(out.splitlines()[-1], r", CUDA built for 80 .*90a .*120, clients")
        self.assertRegex(self.calls(), r"-DMSGL_CUDA=ON -DMSGL_CUDA_QUICK=OFF -DMSGL_CUDA_ARCHS=80;.*90a;.*120\n")

    def test_cuda_that_cannot_be_built(self):
        self.stand_in("tools/cmake", "exit 1")
        self.assertNotIn("all checks passed", self.run_ci("--cuda", code=1))

    def test_each_step_stops_it(self):
        for name in ("scripts/check-style", "scripts/check-headers", "scripts/check-portable", "scripts/check-symbols",
                     "scripts/check-docs", "tools/make", "tools/ninja", "tools/ctest", "scripts/check-install",
                     "scripts/check-deb", "scripts/check-examples", "scripts/fuzz"):
            self.stand_in(name, "exit 1")
            self.assertNotIn("all checks passed", self.run_ci(code=1))
            self.stand_in(name)

    def test_wrong_words(self):
        self.assertIn("usage", self.run_ci("--gpu", code=2))
        self.assertIn("usage", self.run_ci("--cuda", "x", code=2))


if __name__ == "__main__":
    unittest.main()
