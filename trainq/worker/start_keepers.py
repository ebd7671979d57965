"""The program that is executed to start the keepers: `python -I -S start_keepers.py FD ...`.

It does no more than find the package it lies in, which `-I -S` has taken from the path, so that the rest comes
from compiled files.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.append(__file__.rsplit("/", 3)[0])

    from trainq.worker.keeper import main

    main([int(word) for word in sys.argv[1:]])
