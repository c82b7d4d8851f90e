#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check-style and check-headers name each breach of a written rule, in every kind of source."""
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
GUARD = "#ifndef {0}\n#define {0}\n{1}\n#endif\n"


@unittest.skipUnless(shutil.which("git"), "git is not installed")
class Style(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = pathlib.Path(scratch.name)
        for name in ("check-style", "check-headers", "templates"):
            shutil.copy(ROOT / "scripts" / name, self.add(f"scripts/{name}", ""))
        for name in ("run", "nightly", "steps.sh"):
            shutil.copy(ROOT / ".ci" / name, self.add(".ci/" + name, ""))
        shutil.copy(ROOT / ".clang-format", self.tree)

    def add(self, name, text):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run_check(self, name, code):
        for command in (["git", "init", "-q"], ["git", "add", "-A"]):
            subprocess.run(command, cwd=self.tree, check=True)
        run = subprocess.run(["scripts/" + name], cwd=self.tree, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        self.assertEqual(run.returncode, code, run.stdout)
        return run.stdout

    def test_clean(self):
        self.add("src/core/internal.h", LICENCE + GUARD.format("MSGL_CORE_INTERNAL_H", "int a;"))
        self.add("src/kernel/b.cu", LICENCE + "#include \"core/internal.h\"\n")
        self.assertIn("style: clean", self.run_check("check-style", 0))
        self.assertIn("headers: clean", self.run_check("check-headers", 0))

    def test_every_language_is_read(self):
        body = "#include \"engine/engine.h\"\nstatic void *f(void) { return malloc(1); } // " + 90 * "x" + "\n"
        names = [f"src/kernel/{name}" for name in ("a.c", "b.h", "c.cu", "d.cuh", "e.inc", "internal.h")]
        for name in names:
            self.add(name, body)
        out = self.run_check("check-style", 1)
        for name in names:
            self.assertIn(f"first line is not the licence: {name}\n", out)
            self.assertIn(f"banned call: {name}:2:", out)
            self.assertRegex(out, f"size: {name}:2: [0-9]+ columns")
            self.assertIn(f"include direction: {name} includes engine", out)
        for name in ("src/kernel/b.h", "src/kernel/d.cuh", "src/kernel/internal.h"):
            self.assertIn(f"header guard: {name}: expected MSGL_KERNEL_", out)

    def test_templates(self):
        template = "src/cuda/fi/prefill.cuh"
        self.assertIn(template + "\n", (ROOT / "scripts" / "templates").read_text())
        self.add(template, LICENCE + "NAME a;\n")
        self.add("src/kernel/ref/ops.inc", LICENCE + "NAME a;\n")
        self.assertIn("style: clean", self.run_check("check-style", 0))
        self.assertIn("headers: clean", self.run_check("check-headers", 0))

    def test_sizes(self):
        self.add("src/core/long.cuh", LICENCE + 1000 * "int a;\n")
        self.add("src/core/deep.inc", LICENCE + "void f(void)\n{\n" + 121 * ";\n" + "}\n")
        out = self.run_check("check-style", 1)
        self.assertIn("src/core/long.cuh: 1001 lines", out)
        self.assertIn("src/core/deep.inc:3: function of 122 lines", out)

    def test_private_headers_compile_alone(self):
        self.add("src/core/internal.h", LICENCE + GUARD.format("MSGL_CORE_INTERNAL_H", "size_t a;"))
        self.assertIn("src/core/internal.h", self.run_check("check-headers", 1))

    def test_the_public_header_is_cpp_too(self):
        if not shutil.which("g++"):
            self.skipTest("no C++ compiler")
        self.add("include/minisgl/minisgl.h", LICENCE + "int f(int class);\n")
        self.assertIn("minisgl.h", self.run_check("check-headers", 1))


if __name__ == "__main__":
    unittest.main()
