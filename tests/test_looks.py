"""What must hold so that looks at the lost can prove anything, and what a look that failed proves: nothing."""

from __future__ import annotations

import errno
import os

import pytest

from trainq.base.errors import BadSettings
from trainq.base.settings import load
from trainq.ops import strays


@pytest.mark.parametrize(("heartbeat", "fits"), [("5s", True), ("6s", True), ("7s", False)])
def test_a_heartbeat_is_at_most_a_third_of_zombie_after(heartbeat, fits):
    """Q22: with looks further apart than half of zombie-after nobody would ever be found lost: such times are refused."""
    times = {"HEARTBEAT": heartbeat, "HOLDER_LIMIT": "12s", "ZOMBIE_AFTER": "18s"}
    environ = {f"TRAINQ_TIMES_{name}": text for name, text in times.items()}
    if fits:
        assert load(None, environ=environ).times.zombie_after == 18.0
    else:
        with pytest.raises(BadSettings, match="three heartbeats"):
            load(None, environ=environ)


def test_who_cannot_look_has_not_seen_that_nothing_is_left(monkeypatch):
    """Q22: when /proc cannot be looked at (no descriptors left), the job is not given back as if its strays were gone."""

    def no_descriptors(pid):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", no_descriptors)
    assert strays.end({"0123-nobody.0": 1}, 0.1) == {"0123-nobody.0"}
