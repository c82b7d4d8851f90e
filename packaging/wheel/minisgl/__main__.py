# SPDX-License-Identifier: Apache-2.0
"""`python -m minisgl ...` and the command `minisgl`: the program, with the same arguments, as the same process."""
import os
import sys

from minisgl import PROGRAM


def main():
    try:
        os.execv(PROGRAM, ["minisgl", *sys.argv[1:]])
    except OSError as e:
        sys.exit("minisgl: %s: %s" % (PROGRAM, e.strerror))


if __name__ == "__main__":
    main()
