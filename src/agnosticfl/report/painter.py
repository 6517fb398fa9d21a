# SPDX-License-Identifier: Apache-2.0
"""A process that saves the plots it is given, one after another, until there are no more.

`python -m agnosticfl.report.painter` reads pairs of a plot and a folder from its standard input and
writes what it saved to its standard output, all as pickles; see `painters.py`.
"""

import contextlib
import pickle
import sys
from pathlib import Path

from agnosticfl.report.drawing import save
from agnosticfl.report.panels import Plot


def main() -> None:
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # whatever is printed is no answer
    with contextlib.suppress(EOFError):
        while True:
            asked: tuple[Plot, Path] = pickle.load(sys.stdin.buffer)
            pickle.dump(save(*asked), answers)
            answers.flush()


if __name__ == "__main__":
    main()
