"""The lab is booted once for all of them, with the version of NFS that TRAINQ_TEST_NFS names (4.2 or 3)."""

from __future__ import annotations

import itertools
import os

import pytest

from nfs import lab

VERSION = os.environ.get("TRAINQ_TEST_NFS", "")
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items):
    if not VERSION:
        skip = pytest.mark.skip(reason="TRAINQ_TEST_NFS=4.2 (or 3) boots a machine with an NFS server for these")
        for item in items:
            if "/nfs/" in str(item.path):
                item.add_marker(skip)
    else:
        for item in items:
            if "/nfs/" in str(item.path):
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def machine():
    if os.environ.get("TRAINQ_TEST_NFS_KEEP") != "1" or lab.on("h1", "true").code:
        lab.boot(VERSION)
    return lab


@pytest.fixture
def queue(machine):
    opened = lab.Queue(f"q{next(_numbers)}-{os.getpid()}")
    lab.on("h1", "trainq", "init", opened.root)
    yield opened
    opened.end()
