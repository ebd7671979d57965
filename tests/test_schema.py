"""The tables: the moves the database accepts, what its triggers keep, and which index each hot statement uses."""

from __future__ import annotations

import itertools
import os
import re

import pytest
from store_builders import counts_are_real, finished, is_sound, looked_at, new_job, place, put, spawn

from trainq.domain.states import ENDED, MOVES, STATES
from trainq.store.create import create, schema_text
from trainq.store.driver import sqlite3
from trainq.store.session import APPLICATION_ID, SCHEMA
from trainq.store.statements import NAMED, Statement, numbered


@pytest.fixture
def session(tmp_path):
    opened = place(tmp_path).session()
    yield opened
    opened.close()


def force(tx, job_id, state):
    """Bring a job into a state by moves that are allowed, as the shortest way goes."""
    ways = {"pending": []}
    todo = ["pending"]
    for old in todo:
        for new in MOVES[old]:
            if new not in ways:
                ways[new] = [*ways[old], new]
                todo.append(new)
    for step in ways[state]:
        tx.rows("UPDATE job SET state = ? WHERE id = ?", (step, job_id))


@pytest.mark.parametrize(("old", "new"), list(itertools.product(STATES, STATES)))
def test_the_database_accepts_exactly_the_moves_of_the_table(session, old, new):
    """Q37: of the 49 pairs an UPDATE goes through for those of MOVES (and for staying), all else is refused."""
    [number] = put(session)
    with session.writing() as tx:
        force(tx, number, old)
    with session.reading() as tx:
        before = tx.value("SELECT count(*) FROM history WHERE job_id = ?", (number,))

    def move():
        with session.writing() as tx:
            tx.rows("UPDATE job SET state = ? WHERE id = ?", (new, number))

    if old == new or new in MOVES[old]:
        move()
    else:
        with pytest.raises(Exception, match="not in the table of moves"):
            move()
    with session.reading() as tx:
        allowed = new in MOVES[old]
        assert tx.value("SELECT state FROM job WHERE id = ?", (number,)) == (new if allowed else old)
        # a move appends one row of history, anything else none
        assert tx.value("SELECT count(*) FROM history WHERE job_id = ?", (number,)) == before + allowed
        counts_are_real(tx)


def test_the_trigger_holds_the_table_of_moves_word_for_word(session):
    """Q37: the trigger's text and MOVES are the same 16 moves."""
    with session.reading() as tx:
        text = tx.value("SELECT sql FROM sqlite_master WHERE name = 'job_move'")
    moves = re.search(r"instr\('\|([^']*)\|'", text).group(1).split("|")
    assert sorted(moves) == sorted(f"{old}>{new}" for old in STATES for new in MOVES[old])
    assert "/*moves*/" not in schema_text()


def test_a_state_that_is_none_is_refused(session):
    """Q37: no eighth state, neither by INSERT nor by UPDATE."""
    [number] = put(session)
    with pytest.raises(Exception, match=r"CHECK constraint failed|table of moves"), session.writing() as tx:
        tx.rows("UPDATE job SET state = 'lost' WHERE id = ?", (number,))
    with pytest.raises(Exception, match="CHECK constraint failed"), session.writing() as tx:
        tx.rows(
            "INSERT INTO job(submission_id, lane_id, state, queue, priority, name, user, user_id, submitted_at, changed_at,"
            " max_attempts, retries) VALUES(1, 1, 'lost', 'q', 0, 'n', 'u', 1, 0, 0, 1, 0)"
        )


@pytest.mark.parametrize("state", ENDED)
def test_ended_states_are_final_but_for_retry(state):
    """Q37: the only ways out of an ended state are those of retry."""
    assert set(MOVES[state]) <= {"pending", "held"}
    assert state != "done" or MOVES[state] == ()


def test_counters_follow_a_job_to_another_queue(session):
    """A change of the queue moves the job's count along, in every state."""
    [number, _] = put(session, new_job(), new_job())
    with session.writing() as tx:
        tx.rows("UPDATE job SET queue = 'gpu' WHERE id = ?", (number,))
        counts_are_real(tx)
        tx.rows("UPDATE job SET queue = 'cpu', state = 'running' WHERE id = ?", (number,))
        counts_are_real(tx)
        tx.rows("DELETE FROM job WHERE id = ?", (number,))
        counts_are_real(tx)
        assert tx.value("SELECT total(n) FROM count") == 1


# plans -------------------------------------------------------------------------------------------------------------


def plan(tx, sql, values):
    return [row["detail"] for row in tx.rows("EXPLAIN QUERY PLAN " + sql, values)]


HOT = {
    "promote": ("job_due", {"now": 0}),
    "too_late": ("job_deadline", {"now": 0}),
    "next_due": ("job_due", {}),
    "heads": ("job_open", {"lanes": "[1,2]"}),
    "running": ("job_open", {}),
    "claim": (
        "job_open",
        {
            "lane_id": 1,
            "job_id": None,
            "worker_id": 1,
            "worker": "w",
            "host": "h",
            "gpus": None,
            "device": None,
            "now": 0,
        },
    ),
    "position": ("job_open", {"queue": "default", "priority": 0, "id": 1}),
}


@pytest.mark.parametrize("name", HOT)
def test_hot_statements_walk_their_partial_index(session, name):
    """No hot statement reads all of `job`, nor sorts what an index has sorted."""
    index, values = HOT[name]
    text, names = NAMED[name]
    with session.reading() as tx:
        steps = plan(tx, text, [values[each] for each in names])
    assert any(f"INDEX {index}" in step for step in steps), steps
    assert not any(re.fullmatch(r"SCAN job", step) or "TEMP B-TREE" in step for step in steps), steps


@pytest.mark.parametrize("name", ["claim", "done", "finish"])
def test_a_move_makes_no_table_of_words(session, name):
    """SQLite makes one for each list of more than two words, each time, in what a move is tested for, too: a quarter of its cost."""
    text, names = NAMED[name]
    with session.reading() as tx:
        steps = tx.rows(f"EXPLAIN {text}", [None] * len(names))
    assert "Program" in {step["opcode"] for step in steps}  # those of the triggers are among them
    assert not [
        tuple(step) for step in steps if step["opcode"] == "OpenEphemeral" and str(step["p4"]).startswith("k(1,")
    ]


@pytest.mark.parametrize("name", ["heads", "first_head"])
def test_heads_are_found_in_the_index_alone(session, name):
    """The rows of thirty lanes' heads lie apart, and none of them is read."""
    with session.reading() as tx:
        steps = plan(tx, NAMED[name].text, ["[1,2]"])
    looks = [step for step in steps if re.match("(SEARCH|SCAN) job", step)]
    assert looks, steps
    assert all("USING COVERING INDEX job_open (state=? AND lane_id=?)" in look for look in looks), steps


@pytest.mark.parametrize(
    "name",
    [
        "beat",
        "held_by",
        "done",
        "finish",
        "expire",
        "retry",
        "cancel_waiting",
        "cancel_running",
        "hold",
        "hold_on",
        "let_go",
        "skip",
        "reopen",
        "freeze",
        "thaw",
    ],
)
def test_writes_for_one_job_find_it_by_its_id(session, name):
    """A verb on one job is one step down the table, however many jobs there are."""
    text, names = NAMED[name]
    with session.reading() as tx:
        steps = plan(tx, text, [1] * len(names))
    assert steps == ["SEARCH job USING INTEGER PRIMARY KEY (rowid=?)"]


def test_delayed_jobs_are_in_no_index_that_a_claim_reads(session):
    """E07: the index of the claim does not know of what is held, and that of due times not of what a person or another job
    holds: many of them are not walked over."""
    with session.reading() as tx:
        where = dict(tx.rows("SELECT name, substr(sql, instr(sql, 'WHERE')) FROM sqlite_master WHERE type = 'index'"))
    assert where["job_open"] == "WHERE state = 'running' OR state = 'pending'"
    assert where["job_due"] == "WHERE state = 'held' AND on_hold = 0 AND waits_for = 0 AND due_at IS NOT NULL"


def test_dependants_are_found_by_an_index(session):
    """E06: to tell of an end walks over those that wait for it still, and no others."""
    with session.reading() as tx:
        steps = plan(tx, "SELECT job_id, mode FROM dep WHERE on_id = ? AND ended IS NULL LIMIT ?", (1, 1))
    assert steps == ["SEARCH dep USING INDEX dep_on (on_id=? AND ended=?)"]


def test_suspects_read_one_job_only(session):
    """What a claim asks of earlier attempts is asked of that job's events and checkpoints alone."""
    text, names = NAMED["suspects"]
    with session.reading() as tx:
        steps = plan(tx, text, [1] * len(names))
    assert not any(step.startswith("SCAN") for step in steps), steps


def test_values_are_bound_by_place(session):
    """Each name of a statement is one number, however often it is used, and nothing is left to be bound by name."""
    assert numbered("SELECT :b, :a, :b, ':' || :c_d") == Statement("SELECT ?1, ?2, ?1, ':' || ?3", ("b", "a", "c_d"))
    for name, (text, names) in NAMED.items():
        used = {int(number) for number in re.findall(r"\?(\d+)", text)}
        assert used == set(range(1, len(names) + 1)), name
        assert not re.search(r"(?<![:\w]):[a-z]", text), name
        with session.reading() as tx:
            tx.rows("EXPLAIN " + text, [1] * len(names))


def test_looks_and_the_janitor_use_their_indexes(session):
    """`lost.look` reads the running only, `old_jobs` the oldest ended only; neither sorts."""
    from trainq.store import lost, pruning

    class Explaining:
        def __init__(self, tx):
            self.tx, self.now, self.steps = tx, tx.now, []

        def rows(self, sql, values=()):
            self.steps += plan(self.tx, sql, values)
            return []

    with session.reading() as tx:
        looking, pruned = Explaining(tx), Explaining(tx)
        lost.look(looking, "here", 0.0, 10.0)
        pruning.old_jobs(pruned, 0.0)
    assert looking.steps == ["SEARCH job USING INDEX job_open (state=?)", "USE TEMP B-TREE FOR ORDER BY"]
    assert pruned.steps == [
        "SEARCH job USING INDEX job_ended (ended_at<?)",
        "SEARCH a USING INDEX job_array_ended (ended_at<?)",
        "SEARCH j USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    ]


# making ------------------------------------------------------------------------------------------------------------


def test_twenty_processes_make_one_schema(tmp_path):
    """Q63: 20 processes that create at once: none fails, one made it, one schema, no temporary file left."""
    code = """
from trainq.store.create import create
say("ready"); sys.stdin.readline()
made = create(place.database)
with session.writing() as tx:
    jobs.submit(tx, submission(), [new_job()])
say(made)
"""
    processes = [spawn(code, tmp_path, stdin=-1) for _ in range(20)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    made = [finished(process).strip() for process in processes]
    assert sorted(made) == ["False"] * 19 + ["True"]
    assert {name.split("-")[0] for name in os.listdir(tmp_path)} == {"queue.sqlite", "queue.lock"}
    with looked_at(f"{tmp_path}/queue.sqlite") as connection:
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        assert connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA
        assert connection.execute("SELECT count(*) FROM job").fetchone()[0] == 20
        assert connection.execute("SELECT count(*) FROM meta WHERE k = 'uuid'").fetchone()[0] == 1
    assert is_sound(f"{tmp_path}/queue.sqlite")


def test_a_new_database_is_whole_private_and_in_wal(tmp_path):
    """The file that is linked into place holds everything: 0600, WAL, no log beside it."""
    database = place(tmp_path).database
    assert os.listdir(tmp_path) == ["queue.sqlite"]
    assert os.stat(database).st_mode & 0o777 == 0o600
    with looked_at(database) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA auto_vacuum").fetchone()[0] == 2
    assert create(database) is False


def test_a_maker_killed_before_the_link_leaves_no_queue(tmp_path):
    """A death before the link leaves a temporary name only; the next one makes the queue."""
    killed = spawn("from trainq.store.create import create\ncreate(place.database)", tmp_path, crash="init.before_link")
    killed.communicate()
    assert killed.returncode == -9
    assert not os.path.exists(f"{tmp_path}/queue.sqlite")
    assert create(f"{tmp_path}/queue.sqlite") is True


def test_driver_errors_carry_the_code(tmp_path):
    """translate() rests on `sqlite_errorcode` (Python 3.11)."""
    with looked_at(place(tmp_path).database) as connection, pytest.raises(sqlite3.Error) as caught:
        connection.execute("SELECT * FROM nothing")
    assert isinstance(caught.value.sqlite_errorcode, int)
