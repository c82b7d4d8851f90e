#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/hostile-inputs.md has every row once, and the tests that it names are there and run."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = [*map(str, range(1, 45)), *("H%d" % i for i in range(1, 6)), *("M%d" % i for i in range(1, 7)),
        *("L%d" % i for i in range(1, 11)), *("N%d" % i for i in range(1, 15))]
PATTERNS = {  # of a test of this name in a file of this kind
    ".c": r"cmocka_unit_test\w*\(\s*{0}\b|^int {0}\(",
    ".py": r"^ *def {0}\(",
    ".sh": r'^ *expect "{0}"',
}


class HostileInputs(unittest.TestCase):
    def setUp(self):
        page = (ROOT / "docs" / "hostile-inputs.md").read_text()
        self.rows = [[c.strip() for c in line.strip("|").split("|")] for line in page.splitlines()
                     if re.match(r"\| [0-9HMLN]+\d* \|", line)]

    def test_every_row(self):
        self.assertEqual([r[0] for r in self.rows], ROWS)
        for r in self.rows:
            self.assertEqual(len(r), 4, r)
            self.assertTrue(all(r), r)

    def test_tests_exist(self):
        built = {p: p.read_text() for p in ROOT.glob("tests/**/CMakeLists.txt")}
        for r in self.rows:
            named = re.findall(r"`(tests/[^`:]+):([^`]+)`", r[-1])
            self.assertEqual(r[-1].count("`"), 2 * len(named), r)
            self.assertTrue(named, r)
            for path, name in named:
                file = ROOT / path
                self.assertTrue(file.is_file(), "row %s: there is no %s" % (r[0], path))
                text = file.read_text()
                there = re.search(PATTERNS[file.suffix].format(re.escape(name)), text, re.M)
                self.assertTrue(there, "row %s: %s has no %s" % (r[0], path, name))
                if file.suffix == ".py" and file.parent.name == "e2e":  # nothing finds these by their names
                    self.assertGreater(len(re.findall(r"\b%s\b" % name, text)), 1, "%s is not run" % name)
                short = re.sub(r"^(test|fuzz)_", "", file.stem)
                self.assertIn(short, built[file.parent / "CMakeLists.txt"], "%s is not built or run" % path)

    def test_keys_are_compared_whole(self):
        """The loop of src/front/keys.c has no way out before its end; a test of times would be one of the machine."""
        text = (ROOT / "src" / "front" / "keys.c").read_text()
        body = re.search(r"^static unsigned differs\(.*?^}", text, re.M | re.S)[0]
        self.assertEqual(len(re.findall(r"\bfor\b", body)), 1)
        self.assertNotRegex(body, r"\b(if|while|break|goto|memcmp|strn?cmp)\b|&&|\|\|")
        self.assertEqual(body.count("return"), 1)
        self.assertIn("volatile", body)
        find = re.search(r"^int msgl__keys_find\(.*?^}", text, re.M | re.S)[0]
        self.assertNotRegex(find[find.index("for ("):], r"\b(if|break|goto|memcmp|strn?cmp)\b|&&|\|\|")
        self.assertEqual(find.count("return"), 2)
        self.assertEqual(text.count("differs("), 2)


if __name__ == "__main__":
    unittest.main()
