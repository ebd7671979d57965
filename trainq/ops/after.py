"""What the jobs of a submit come after: from the words as typed to ids, or to places in the same call.

A job can name only what was there before it: a job of the store, or an earlier line's key. So there are no cycles; what
would be one is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq.base.errors import BadValue, NotFound
from trainq.base.words import is_text, quoted
from trainq.domain.held import After
from trainq.store import arrays, dependants, reads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainq.domain.held import Wish
    from trainq.domain.request import Request
    from trainq.ops.change import Change
    from trainq.ops.draft import Draft
    from trainq.store.session import Transaction

Place = tuple[int, bool]
"""A job by its id, or (true) by its place in the call."""
_LARGEST = 2**63 - 1


def require_earlier(requests: Iterable[Request]) -> None:
    """A key of this very call that is waited for is an earlier line's. Raises BadValue."""
    requests = list(requests)
    keys = {request.values.get("key") for request in requests}
    seen: set[str] = set()
    for request in requests:
        own = request.values.get("key")
        for wish in request.values.get("after", ()):
            if wish.key is None or wish.key in seen or wish.key not in keys:
                continue
            why = "is its own" if wish.key == own else "is a later line's"
            raise BadValue(
                f"{_at(request.where)}after: key {quoted(wish.key)} {why}: that would be a cycle",
                hint="wait for an earlier line, or for a job that is there",
            )
        if own is not None:
            seen.add(own)


def resolved(
    tx: Transaction, user_id: int, drafts: Iterable[Draft], changes: Iterable[Change | None], reused: Mapping[str, int]
) -> list[Draft]:
    """The drafts that are put in (those without a change), with ids and places for what they come after.

    `reused`: jobs whose models answered for lines with these keys. Raises NotFound, BadValue.
    """
    here: dict[str, Place] = {key: (number, False) for key, number in reused.items()}
    new: list[Draft] = []
    for item, change in zip(drafts, changes, strict=True):
        if change is None:
            after = _after(tx, user_id, item, here) if item.after else ()
            new.append(item._replace(job=item.job._replace(after=after)) if after else item)
        if item.job.key is not None:
            here[item.job.key] = (len(new) - 1, True) if change is None else (int(change.id or 0), False)
    return new


def _after(tx: Transaction, user_id: int, item: Draft, here: Mapping[str, Place]) -> tuple[After, ...]:
    found: dict[Place, Wish] = {}
    for wish in item.after:
        try:
            place = here.get(wish.key or "") or (_find(tx, user_id, wish), False)
        except (BadValue, NotFound) as error:
            error.message = f"{_at(item.where)}after: {error.message}"
            raise
        other = found.setdefault(place, wish)
        if other.mode != wish.mode:
            words = f"{other.mode}:{other.what} and {wish.mode}:{wish.what}"
            raise BadValue(f"{_at(item.where)}after: {quoted(words)} are the same job", hint="any: takes every end")
    return tuple(After(on, wish.mode, is_place) for (on, is_place), wish in found.items())


def _find(tx: Transaction, user_id: int, wish: Wish) -> int:
    """The one job or array that is meant; of those with a key the newest."""
    if wish.key is not None:
        ids = reads.ids_with(tx, "key", wish.key, past_too=True)[-1:] if is_text(wish.key) else []
    elif wish.what.startswith("last"):
        ids = _of_call(tx, user_id, wish)
    else:
        number, _, index = wish.what.rstrip("]").partition("[")
        ids = [min(int(number[:30]), _LARGEST)]
        if index:
            ids = arrays.tasks(tx, ids[0], [(min(int(index[:30]), _LARGEST),) * 2], past_too=True)
    if not ids or dependants.state_of(tx, ids[0]) is None:
        raise NotFound(
            f"no such job: {wish.what if wish.key is None else quoted(wish.what)}", hint="trainq status --all"
        )
    return ids[0]


def _of_call(tx: Transaction, user_id: int, wish: Wish) -> list[int]:
    """The job of a submit call, or its array. Raises BadValue for one of several jobs."""
    ids = [*(reads.submission(tx, user_id, int((wish.what[5:] or "0")[:18])) or ())]
    array = arrays.between(tx, ids[0] - 1, ids[0] - 1) if ids else []
    if len(ids) > 1 and not array:
        raise BadValue(f"{wish.what} is a submit of {len(ids)} jobs", hint=f"name one: {wish.mode}:{ids[-1]}")
    return array or ids


def _at(where: str) -> str:
    return f"{where}: " if where else "--"
