#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
""".ci/run and .ci/nightly in a tree where every command is a stand-in: which steps they take, and what they say at
the end; and which architectures a machine's GPUs need."""
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
        for name in (".ci/run", ".ci/nightly", ".ci/steps.sh", "cmake/cuda.cmake", "tests/e2e/clients.txt"):
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.tree / name)
        for path in (ROOT / "scripts").iterdir():
            self.stand_in("scripts/" + path.name)
        for name in ("cmake", "make", "ninja", "ctest", "python3"):
            self.stand_in("tools/" + name)

    def stand_in(self, name, does=""):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {name} \"$@\" >>{self.tree}/calls\n{does}\n")
        path.chmod(0o755)

    def run_ci(self, *args, name="run", code=0):
        run = subprocess.run([self.tree / ".ci" / name, *args], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             env=dict(os.environ, PATH=f"{self.tree}/tools:{os.environ['PATH']}"))
        self.assertEqual(run.returncode, code, run.stdout)
        return run.stdout

    def calls(self):
        return (self.tree / "calls").read_text()

    def with_compiler_and_clients(self):
        self.stand_in("tools/ninja", "mkdir -p build && touch build/minisgl-cuda.so")
        self.stand_in("build/clients/bin/pip")
        self.stand_in("build/clients-openai2/bin/pip")

    def test_without_a_compiler(self):
        (self.tree / "build").mkdir()
        (self.tree / "build" / "minisgl-cuda.so").write_text("of an earlier run")
        out = self.run_ci()
        self.assertRegex(out.splitlines()[-1], r"^all checks of a commit passed \(.*\), CUDA not built, clients not checked; .*nightly")
        self.assertRegex(out, r"(?m)^-- make check: [0-9]+ s$")
        self.assertIn("-DMSGL_CUDA=AUTO -DMSGL_CUDA_QUICK=ON -DMSGL_CUDA_ARCHS=90a\n", self.calls())

    def test_with_a_compiler(self):
        self.with_compiler_and_clients()
        self.assertRegex(self.run_ci().splitlines()[-1],
                         r"^all checks of a commit passed \(.*\), CUDA built for 90a, clients openai and anthropic checked;")
        self.assertRegex(self.calls(), r"pip install -q anthropic==\S+ openai==\S+\n")

    def test_nightly(self):
        self.assertRegex(self.run_ci(name="nightly").splitlines()[-1],
                         r"^all nightly checks passed \(.*\), CUDA not built, clients not checked, clients of openai 2 not checked, files from PyPI checked$")
        self.assertIn("-DMSGL_CUDA=OFF", self.calls())
        self.with_compiler_and_clients()
        out = self.run_ci("--cuda", name="nightly")
        self.assertRegex(out.splitlines()[-1],
                         r", CUDA built for 80 .*90a .*120, clients checked, clients of openai 2 checked, files from PyPI checked$")
        self.assertRegex(self.calls(), r"-DMSGL_CUDA=ON -DMSGL_CUDA_QUICK=OFF -DMSGL_CUDA_ARCHS=80 .*90a .*120\n")

    def test_cuda_that_cannot_be_built(self):
        self.stand_in("tools/cmake", "exit 1")
        self.assertNotIn("passed", self.run_ci("--cuda", name="nightly", code=1))

    def test_each_step_stops_it(self):
        steps = {
            "run": ["scripts/check-style", "scripts/check-headers", "scripts/check-portable", "scripts/check-symbols",
                    "scripts/check-docs", "scripts/check-install", "tools/make", "tools/ninja", "tools/ctest"],
            "nightly": ["scripts/check-install", "scripts/check-deb", "scripts/check-examples", "scripts/check-wheel",
                        "scripts/fuzz", "tools/ninja", "tools/ctest"]}
        for name, commands in steps.items():
            for command in commands:
                self.stand_in(command, "exit 1")
                self.assertNotIn("passed", self.run_ci(name=name, code=1))
                self.stand_in(command)

    def test_nightly_goes_on(self):
        self.stand_in("tools/ctest", "exit 1")
        self.stand_in("scripts/check-wheel", "exit 77")
        out = self.run_ci(name="nightly", code=1).splitlines()[-1]
        self.assertRegex(out, r"^nightly checks FAILED \(.*\), CUDA not built: all tests, in full: ctest .*; .*thread sanitizer.*: ctest")
        self.assertNotIn("wheel;", out)
        self.assertIn("scripts/fuzz build-fuzz 120", self.calls())

    def test_wrong_words(self):
        self.assertIn("usage", self.run_ci("--cuda", code=2))
        self.assertIn("usage", self.run_ci("--gpu", name="nightly", code=2))
        self.assertIn("usage", self.run_ci("--cuda", "x", name="nightly", code=2))

    @unittest.skipUnless(shutil.which("cmake"), "cmake is not installed")
    def test_architectures_of_gpus(self):
        script = self.tree / "archs.cmake"
        script.write_text(f"include({ROOT}/cmake/gpus.cmake)\nmsgl_gpu_archs(found 80 89 90a 100 120)\n"
                          'message("${found}")\n')
        cmake = shutil.which("cmake")
        for capabilities, expected in (["9.0"], "90a"), (["8.6"], "80"), (["8.9", "9.0", "8.9"], "89;90a"), \
                                      (["7.5"], ""), (["10.3"], "100"), (["9.1"], ""), ([], ""):
            self.stand_in("tools/nvidia-smi", f"printf '%s\\n' {' '.join(capabilities)}")
            run = subprocess.run([cmake, "-P", script], env=dict(os.environ, PATH=f"{self.tree}/tools:{os.environ['PATH']}"),
                                 text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
            self.assertEqual(run.stdout.strip(), expected)
        self.stand_in("tools/nvidia-smi", "exit 9")
        self.assertEqual(subprocess.run([cmake, "-P", script], env=dict(os.environ, PATH=f"{self.tree}/tools:{os.environ['PATH']}"),
                                        text=True, capture_output=True, check=True).stderr.strip(), "")


if __name__ == "__main__":
    unittest.main()
