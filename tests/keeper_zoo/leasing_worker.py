"""A worker with one job and a lease: `leasing_worker.py DIRECTORY`. Does what stdin says and prints what it hears."""

import os
import select
import sys

from trainq.base.clock import boot_s
from trainq.worker.keepers import Plan, open_keepers


def main(place):
    (keeper,) = open_keepers(1)
    null = os.open(os.devnull, os.O_RDWR)
    animals = os.path.join(os.path.dirname(os.path.abspath(__file__)), "animals.py")
    argv = tuple(os.fsencode(word) for word in (sys.executable, "-I", "-S", animals, "tickers", place))
    keeper.start(Plan(argv, {b"PATH": b"/usr/bin:/bin"}, b"/", 0o22), null, null, null)
    while True:
        ready, _, _ = select.select([keeper, sys.stdin], [], [])
        if keeper in ready:
            for event in keeper.events():
                print(keeper.pid, type(event).__name__, flush=True)
        if sys.stdin in ready:
            verb, *rest = os.read(0, 4096).decode().split()
            if verb == "lease":
                keeper.lease(boot_s() + float(rest[0]), 30.0)
                print(keeper.pid, "leased", flush=True)
            else:
                getattr(keeper, verb)()


if __name__ == "__main__":
    main(sys.argv[1])
