"""A small worker: `worker.py DIRECTORY`. Starts a family on each of two keepers, then does what stdin says."""

import json
import os
import select
import sys

from trainq.worker.keepers import KeeperLost, Plan, Started, end_strays, open_keepers


def main(place):
    keepers = open_keepers(2)
    null = os.open(os.devnull, os.O_RDWR)
    animals = os.path.join(os.path.dirname(os.path.abspath(__file__)), "animals.py")
    argv = tuple(os.fsencode(word) for word in (sys.executable, "-I", "-S", animals, "family", place))
    mains = []
    for keeper in keepers:
        keeper.start(Plan(argv, {b"PATH": b"/usr/bin:/bin"}, b"/", 0o22), null, null, null)
        mains.append(next_event(keeper))
    assert all(isinstance(event, Started) for event in mains)
    print(json.dumps([keeper.pid for keeper in keepers]), flush=True)
    sys.stdin.readline()  # the test kills the first keeper, or this process
    try:
        next_event(keepers[0])
    except KeeperLost as lost:
        left = end_strays([keepers[1].pid])
        print(json.dumps([str(lost), left]), flush=True)
    sys.stdin.readline()
    keepers[1].close()


def next_event(keeper):
    select.select([keeper], [], [], 30)
    return keeper.events()[0]


if __name__ == "__main__":
    main(sys.argv[1])
