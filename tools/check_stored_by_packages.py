#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what minisgl reads from packed safetensors with what the packages that write them read.

    python3 tools/check_stored_by_packages.py [--env DIR] [--only WORD] [--write] BUILD/tests/models/expand_stored

Each package quantises and packs small random matrices on the CPU, as in a checkpoint; expands them with its own code,
in f32 wherever that code computes in the type of its scales; and the program, which has minisgl's reader in it, has to
expand the same files to the same bits, and so have the codes that minisgl keeps in memory. It fails if one value differs.

The packages come from PyPI into DIR (a temporary folder unless it is given), which takes 9 GB and some minutes; nothing of
them is needed to build, run or test minisgl. Python 3.11, x86-64.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

# Everything that is installed, by pip freeze: the packages' own demands on each other's versions contradict each other.
PACKAGES = Path(__file__).parent / "stored_by_packages.txt"
# Releases that wrote the same form in another way, each in a folder of its own.
EARLIER = {"compressed-tensors 0.12.2": ["compressed-tensors==0.12.2"]}


def make_environment(folder):
    """The interpreter that has the packages."""
    python = folder / "venv" / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder / "venv", with_pip=True)
        pip = [python, "-m", "pip", "install", "-q", "--no-cache-dir", "--no-deps"]
        env = os.environ | {"TMPDIR": str(folder)}
        subprocess.run([*pip, "-r", PACKAGES], check=True, env=env)
        for name, packages in EARLIER.items():
            subprocess.run([*pip, "--target", folder / name.replace(" ", "-"), *packages], check=True, env=env)
        (folder / "ready").touch()
    return python


def table(rows):
    """Lines of the table: a form and who made it, how many cases and values, and what is to be said of all."""
    yield "| form | made and expanded by | matrices | values | minisgl has |"
    yield "|---|---|---|---|---|"
    for key in dict.fromkeys((r["form"], r["package"]) for r in rows):
        of = [r for r in rows if (r["form"], r["package"]) == key]
        read = [r for r in of if not r["refused"]]
        said = dict.fromkeys(r["said"] for r in read if r["good"])
        said |= {f"{n} refused": None for n in [len(of) - len(read)] if n > 0}
        said |= {"DIFFERS": None for r in of if not r["good"]}
        counts = [f"{sum(r[k] for r in read):,}" if read else "" for k in ("matrices", "values")]
        yield f"| {' | '.join([*key, *counts, ', '.join(said)])} |"


def write(lines):
    """Into docs/packed-weights.md."""
    page = Path(__file__).resolve().parent.parent / "docs" / "packed-weights.md"
    before, rest = page.read_text().split("<!-- checked: tools/check_stored_by_packages.py -->\n")
    page.write_text(before + "<!-- checked: tools/check_stored_by_packages.py -->\n" + "\n".join(lines) + "\n" +
                    rest[rest.index("<!-- end of checked -->"):])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--env", type=Path, metavar="DIR")
    parser.add_argument("--only", default="", metavar="WORD", help="only forms and packages that have it in their names")
    parser.add_argument("--write", action="store_true", help="the table into docs/packed-weights.md")
    args = parser.parse_args()
    cases = Path(__file__).parent / "stored_by_packages.py"
    rows, status = [], 0
    with tempfile.TemporaryDirectory() as made:
        folder = (args.env or Path(made)).resolve()
        folder.mkdir(exist_ok=True)
        python = make_environment(folder)
        for part in ("", *EARLIER):
            env = os.environ | {"HF_HUB_OFFLINE": "1"}
            env |= {"PYTHONPATH": str(folder / part.replace(" ", "-"))} if part else {}
            run = subprocess.run([python, cases, args.program.resolve(), args.only, part], env=env, stdout=subprocess.PIPE)
            rows += [json.loads(line) for line in run.stdout.splitlines()]
            status = status or run.returncode
    for r in rows:
        print(f"{r['package']}: {r['form']}{', ' if r['label'] else ''}{r['label']}: {r['said']}")
    lines = list(table(rows))
    print("\n".join(["", *lines]))
    if args.write and status == 0:
        write(lines)
    sys.exit(0 if rows and status == 0 else 1)


if __name__ == "__main__":
    main()
