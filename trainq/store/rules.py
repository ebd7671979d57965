"""What must hold between rows, as queries for what breaks it: a rule's name, and rows of one text each.

A rule finds nothing in a queue that is well, at any moment between two transactions. ops/invariants.py has the whole
list, with what must hold between rows and files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.domain.states import MOVES

if TYPE_CHECKING:
    from trainq.store.session import Transaction

_MOVES = "|" + "|".join(f"{old}>{new}" for old, news in MOVES.items() for new in news) + "|"
_ENDED = "('done', 'errored', 'canceled', 'skipped')"
_NO_JOB = "NOT EXISTS(SELECT 1 FROM job WHERE job.id = t.job_id)"
_NO_PAST = "NOT EXISTS(SELECT 1 FROM past WHERE past.id = t.job_id)"
_COUNTED = ("held", "open", "done", "errored", "canceled", "skipped")
_TASKS = (
    "SELECT id, array_id, array_index, counted_as, 1 AS present FROM job WHERE array_id IS NOT NULL"
    " UNION ALL SELECT id, array_id, array_index, state, 0 FROM past WHERE array_id IS NOT NULL"
)

RULES: dict[str, str] = {
    "job.claim": (
        "SELECT 'job ' || j.id || ' runs without ' || CASE WHEN w.id IS NULL THEN 'a worker' ELSE 'a claim' END"
        " FROM job j LEFT JOIN worker w ON w.id = j.worker_id WHERE j.state = 'running' AND (w.id IS NULL OR j.stage IS NULL"
        " OR j.attempt < 1 OR j.claimed_at IS NULL OR j.heartbeat_at IS NULL)"
    ),
    "job.end": (
        f"SELECT 'job ' || id || ' is ' || state || coalesce(' ' || reason, '') || coalesce(', ended at ' || ended_at, '')"
        f" FROM job WHERE (state IN {_ENDED}) <> (ended_at IS NOT NULL) OR (state = 'done') > (reason IS NULL)"
        " OR (state IN ('errored', 'canceled', 'skipped', 'held')) > (reason IS NOT NULL)"
        " OR (state = 'errored') <> (side IS NOT NULL) OR (state <> 'running' AND stage IS NOT NULL)"
    ),
    "job.cancel": (
        "SELECT 'job ' || id || ' is ' || state || ' though a cancel was asked for' FROM job"
        " WHERE cancel_at IS NOT NULL AND state NOT IN ('running', 'canceled')"
    ),
    "job.freeze": (
        "SELECT 'job ' || id || ' runs with the reason ' || coalesce(reason, 'none') FROM job"
        " WHERE state = 'running' AND cancel_at IS NULL AND (freeze_at IS NOT NULL) <> (reason IS 'frozen')"
    ),
    "job.held": (
        "SELECT 'job ' || id || ' is ' || state || coalesce(' ' || reason, '') || ', on hold: ' || on_hold || ', waits for '"
        " || waits_for || ' jobs' FROM job WHERE CASE state"
        " WHEN 'held' THEN NOT CASE reason WHEN 'user' THEN on_hold = 1 WHEN 'dependency' THEN on_hold = 0 AND waits_for > 0"
        " WHEN 'begin_time' THEN on_hold = 0 AND waits_for = 0 AND due_at = begin_at"
        " WHEN 'backoff' THEN on_hold = 0 AND waits_for = 0 AND due_at IS NOT NULL ELSE 0 END"
        " WHEN 'canceled' THEN on_hold WHEN 'skipped' THEN on_hold ELSE on_hold OR waits_for END"
    ),
    "dep.open": (
        "SELECT 'job ' || j.id || ' waits for ' || j.waits_for || ' jobs, there are ' || count(d.on_id) FROM job j"
        " LEFT JOIN dep d ON d.job_id = j.id AND d.ended IS NULL GROUP BY j.id HAVING j.waits_for <> count(d.on_id)"
    ),
    "dep.told": (
        "SELECT 'job ' || d.job_id || ' waits for job ' || d.on_id || ', which is '"
        " || coalesce(o.state || ' and does not know', iif(a.ended_at, 'an array that has ended', 'gone'))"
        " FROM dep d LEFT JOIN job o ON o.id = d.on_id LEFT JOIN job_array a ON a.id = d.on_id"
        " WHERE d.ended IS NULL AND NOT EXISTS(SELECT 1 FROM to_tell t WHERE t.id = d.on_id)"
        f" AND CASE WHEN o.id THEN o.state IN {_ENDED} OR NOT o.has_dependants"
        " WHEN a.id THEN a.ended_at IS NOT NULL OR NOT a.has_dependants ELSE 1 END"
    ),
    "job.costs": (
        "SELECT 'job ' || id || ' has used ' || system_used || ' of ' || max_attempts || ', ' || user_used || ' of ' || retries"
        " FROM job WHERE system_used > max_attempts OR user_used > retries OR attempt < system_used + user_used"
    ),
    "job.parts": (
        "SELECT 'job ' || j.id || ' has no spec, submit call or environment' FROM job j LEFT JOIN spec p ON p.job_id = j.id"
        " LEFT JOIN submission s ON s.id = j.submission_id AND j.id BETWEEN s.first_id AND s.first_id + s.count - 1"
        " LEFT JOIN environ e ON e.id = s.environ_id WHERE p.doc IS NULL OR e.doc IS NULL"
    ),
    "job.data": (
        "SELECT 'job ' || t.job_id || ' names a training set that is gone' FROM job_data t"
        " WHERE NOT EXISTS(SELECT 1 FROM data WHERE data.id = t.data_id)"
    ),
    "job.once": "SELECT 'job ' || id || ' is present and past' FROM job JOIN past USING(id)",
    "job.parts_without": " UNION ALL ".join(
        f"SELECT '{table}: there is no job ' || job_id FROM {table} t WHERE {_NO_JOB}"
        for table in ("spec", "job_data", "sighting", "checkpoint", "dep")
    )
    + f" UNION ALL SELECT 'event: there was no job ' || job_id FROM event t WHERE {_NO_JOB} AND {_NO_PAST}",
    "history.moves": (
        "SELECT 'job ' || job_id || ': ' || old || ' > ' || state FROM (SELECT job_id, n, state, reason,"
        " lag(state) OVER (PARTITION BY job_id ORDER BY n) AS old FROM history)"
        f" WHERE old <> state AND instr('{_MOVES}', '|' || old || '>' || state || '|') = 0"
    ),
    "history.last": (
        "SELECT 'job ' || id || ' is ' || state || ', its history says ' || last FROM (SELECT id, state,"
        " (SELECT h.state FROM history h WHERE h.job_id = t.id ORDER BY n DESC LIMIT 1) AS last"
        " FROM (SELECT id, state FROM job UNION ALL SELECT id, state FROM past) t) WHERE last <> state"
    ),
    "history.numbers": (
        "SELECT 'job ' || job_id || ' has gaps in its history' FROM event GROUP BY job_id HAVING max(n) <> count(*) + 1"
    ),
    "history.attempts": (
        "SELECT 'job ' || job_id || ': attempt ' || attempt || ' after ' || old FROM (SELECT job_id, attempt, state, reason,"
        " lag(attempt) OVER one AS old, lag(state) OVER one AS before FROM history WINDOW one AS (PARTITION BY job_id ORDER BY n))"
        " WHERE attempt <> old + (state = 'running' AND before <> 'running')"
        " UNION ALL SELECT 'job ' || j.id || ' has ' || j.attempt || ' attempts, its history ' || max(e.attempt)"
        " FROM job j JOIN event e ON e.job_id = j.id GROUP BY j.id HAVING max(e.attempt) <> j.attempt"
    ),
    "counts": (
        "SELECT queue || ' ' || counted_as || ': counted ' || sum(counted) || ', there are ' || sum(there) FROM"
        " (SELECT queue, counted_as, n AS counted, 0 AS there FROM count"
        " UNION ALL SELECT queue, counted_as, 0, count(*) FROM job GROUP BY queue, counted_as)"
        " GROUP BY queue, counted_as HAVING sum(counted) <> sum(there)"
    ),
    "lanes": (
        "SELECT 'lane ' || id || ': counted ' || sum(counted) || ', there are ' || sum(there) FROM"
        " (SELECT id, n AS counted, 0 AS there FROM lane UNION ALL SELECT lane_id, 0, count(*) FROM job GROUP BY lane_id)"
        " GROUP BY id HAVING sum(counted) <> sum(there)"
        " UNION ALL SELECT 'job ' || j.id || ' waits in lane ' || j.lane_id || ', which is not there' FROM job j"
        " LEFT JOIN lane l ON l.id = j.lane_id WHERE l.id IS NULL"
    ),
    "arrays": (
        "SELECT 'array ' || a.id || ': counted ' || a.n || ' of ' || (a.held + a.open + a.done + a.errored + a.canceled"
        " + a.skipped) || ', there are ' || total(t.present) || ' of ' || count(t.id) FROM job_array a"
        f" LEFT JOIN ({_TASKS}) t ON t.array_id = a.id GROUP BY a.id HAVING a.n <> total(t.present) OR count(t.id) > a.count"
        + "".join(f" OR a.{word} <> total(t.counted_as = '{word}')" for word in _COUNTED)
        + " OR (a.ended_at IS NULL) <> (a.held + a.open > 0)"
        f" UNION ALL SELECT 'job ' || t.id || ' is a task of ' || t.array_id || ', which is no array' FROM ({_TASKS}) t"
        " LEFT JOIN job_array a ON a.id = t.array_id WHERE a.id IS NULL"
    ),
    "arrays.index": (
        "SELECT 'job ' || id || ' has index ' || coalesce(array_index, 'none') || ' of array ' || array_id FROM"
        " (SELECT t.*, lag(array_index) OVER (PARTITION BY array_id ORDER BY id) AS before FROM"
        f" ({_TASKS}) t) t WHERE array_index IS NULL OR array_index <= before OR id NOT BETWEEN array_id + 1 AND array_id"
        " + (SELECT count FROM job_array a WHERE a.id = t.array_id)"
    ),
    "model.job": (
        "SELECT m.key || '@' || m.version || ': its job ' || j.id || ' is ' || j.state FROM model m JOIN job j ON j.id = m.job_id"
        " WHERE j.state <> 'done' OR j.model_version IS NOT m.version OR j.model_key IS NOT m.key OR j.attempt <> m.attempt"
    ),
    "model.number": (
        "SELECT 'job ' || j.id || ' made ' || j.model_key || '@' || j.model_version || ', which was never given'"
        " FROM job j LEFT JOIN model_key k ON k.key = j.model_key WHERE j.model_version IS NOT NULL"
        " AND (j.state <> 'done' OR coalesce(k.last_version, 0) < j.model_version)"
        " UNION ALL SELECT m.key || '@' || m.version || ' is above its counter' FROM model m"
        " LEFT JOIN model_key k ON k.key = m.key WHERE coalesce(k.last_version, 0) < m.version"
    ),
    "model.twice": "SELECT 'job ' || job_id || ' has ' || count(*) || ' models' FROM model GROUP BY job_id HAVING count(*) > 1",
    "database": "SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
}


def broken(tx: Transaction, rule: str) -> list[str]:
    """What breaks this rule, a line each."""
    return [row[0] for row in tx.rows(RULES[rule])]


def models(tx: Transaction) -> list[Any]:
    """Every version that has a row: key, version, manifest_sha256, by key and number."""
    return tx.rows("SELECT key, version, manifest_sha256 FROM model ORDER BY key, version")


def filed_data(tx: Transaction) -> list[str]:
    """The digests of the training sets that lie in files."""
    return [row[0] for row in tx.rows("SELECT sha256 FROM data WHERE z IS NULL")]


def newest_checkpoints(tx: Transaction) -> list[Any]:
    """Of each job that has committed any, the newest: job_id, number, digest."""
    return tx.rows("SELECT job_id, max(number) AS number, digest FROM checkpoint GROUP BY job_id")


def has_job(tx: Transaction, job_id: int) -> bool:
    """Whether a job of this id is there, or was and is remembered."""
    sql = "SELECT EXISTS(SELECT 1 FROM job WHERE id = ?1) OR EXISTS(SELECT 1 FROM past WHERE id = ?1)"
    return bool(tx.value(sql, (job_id,)))
