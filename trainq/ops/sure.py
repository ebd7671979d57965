"""Writing what is answered for: an error of COMMIT is no answer, so what became of it is looked up in a new session."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from trainq.base.errors import TrainqError
from trainq.store.session import Unsure

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainq.store.session import Session, Transaction

Answer = TypeVar("Answer")


def surely(
    session: Session, write: Callable[[Transaction], Answer], is_there: Callable[[Transaction, Answer], bool]
) -> Answer:
    """What `write` answers, in one transaction, once it is there.

    `is_there` looks for what that answer says, after a COMMIT that failed. Raises Unsure when it is not there, or when
    nobody can look; and what `write` raises.
    """
    try:
        with session.writing() as tx:
            answer = write(tx)
    except Unsure as unsure:
        session.abandon()
        try:
            with session.reading() as tx:
                is_done = is_there(tx, answer)
        except TrainqError as error:
            raise unsure from error
        if not is_done:
            raise
    return answer
