"""What is asked of a worker, what its attempts need to know of it, and what it says at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base import clock

if TYPE_CHECKING:
    from collections import Counter, deque
    from collections.abc import Callable

    from trainq.artifacts.paths import Paths
    from trainq.base.settings import Keep
    from trainq.domain.devices import Device
    from trainq.worker.channel import Channel


class Options(NamedTuple):
    """What the command line asks of a worker."""

    slots: int
    queues: tuple[str, ...]
    name: str | None = None
    max_jobs: int | None = None
    until: str | None = None  # idle, empty
    until_at: float | None = None  # wall clock
    users: tuple[int, ...] | None = None  # whose jobs it runs; None: everybody's, the queue being one user's
    devices: tuple[Device, ...] = ()  # the GPUs it gives out
    on_event: Callable[[str, dict[str, Any]], None] = lambda _kind, _facts: None

    @property
    def is_finite(self) -> bool:
        """Whether the worker ends by itself some time."""
        return self.until is not None or self.until_at is not None or self.max_jobs is not None

    def allow_more(self, claims: int) -> bool:
        """Whether it may claim after so many, by number and by time."""
        if self.max_jobs is not None and claims >= self.max_jobs:
            return False
        return self.until_at is None or clock.now() < self.until_at


class Place(NamedTuple):
    """What an attempt needs to know of the worker it runs on."""

    paths: Paths
    name: str
    channel: Channel
    grace_s: float
    keep: Keep
    hook_limit_s: float
    now: Callable[[], float]  # the backend's clock
    users: tuple[int, ...] | None  # whose jobs it runs, proved to be theirs; None: nothing is to be proved
    slow: Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]


class Report(NamedTuple):
    """What a worker did, at its end."""

    name: str
    jobs: deque[dict[str, Any]]  # the last attempts, each with what became of it
    ends: Counter[tuple[str | None, str | None]]  # how many ended so: state, reason
    lost_claims: int
    killed: int = 0  # given back, and had to be killed
    quarantine: str | None = None  # why it is in quarantine at its end
