-- The statements whose exact shape is the correctness. One reason each; read by statements.py.
-- Every write for a running attempt ends in the fence: id, attempt, worker and running, else zero rows.

-- name: count_in
-- The jobs of a submit call join the counts.
INSERT INTO count SELECT queue, counted_as, count(*) FROM job WHERE id BETWEEN :first AND :last GROUP BY 1, 2
ON CONFLICT(queue, counted_as) DO UPDATE SET n = n + excluded.n

-- name: promote
-- Due jobs become eligible, if nothing but the time has held them; bounded, so that a flood of them does not hold the gate.
UPDATE job SET state = 'pending', reason = NULL, due_at = NULL, eligible_at = :now, changed_at = :now, changed_by = NULL,
  message = NULL
WHERE id IN (SELECT id FROM job INDEXED BY job_due
  WHERE state = 'held' AND on_hold = 0 AND waits_for = 0 AND due_at <= :now ORDER BY due_at LIMIT 500)

-- name: too_late
-- What has not started by its deadline ends, whatever has held it; bounded as well, and who could not do all claims nothing.
UPDATE job SET state = 'canceled', reason = 'deadline', ended_at = :now, changed_at = :now, changed_by = NULL,
  message = 'it had not started by its deadline', due_at = NULL, on_hold = 0, cause = NULL, exit_code = NULL, signal = NULL,
  error = NULL
WHERE id IN (SELECT id FROM job INDEXED BY job_deadline
  WHERE attempt = 0 AND state IN ('held','pending') AND deadline_at <= :now ORDER BY deadline_at LIMIT 500)
RETURNING id

-- name: next_due
-- When a held job comes due, or a deadline passes, or at once when somebody has to be told of an end; by a number, not by
-- what else a member of a group may have written there.
SELECT min(at) FROM (
  SELECT min(due_at) AS at FROM job INDEXED BY job_due WHERE state = 'held' AND on_hold = 0 AND waits_for = 0 AND due_at < 1e99
  UNION ALL
  SELECT min(deadline_at) FROM job INDEXED BY job_deadline
    WHERE attempt = 0 AND state IN ('held','pending') AND deadline_at < 1e99
  UNION ALL
  SELECT 0 WHERE EXISTS(SELECT 1 FROM to_tell))

-- name: hold
-- A person holds what waits; whatever else holds it stays in its columns.
UPDATE job SET state = 'held', reason = 'user', on_hold = 1, changed_at = :now, changed_by = :by, message = :message
WHERE id = :id AND state IN ('held', 'pending') AND on_hold = 0
RETURNING id

-- name: hold_on
-- What held a job has gone, and something else holds it still: no move, no row of history.
UPDATE job SET reason = :reason WHERE id = :id AND state = 'held'

-- name: let_go
-- Nothing holds it any more.
UPDATE job SET state = 'pending', reason = NULL, on_hold = 0, due_at = NULL, eligible_at = :now, changed_at = :now,
  changed_by = :by, message = NULL
WHERE id = :id AND state = 'held'

-- name: skip
-- A job it came after has not ended as asked; the words say which.
UPDATE job SET state = 'skipped', reason = 'dep_failed', ended_at = :now, changed_at = :now, changed_by = NULL,
  message = :why, error = :why, due_at = NULL, on_hold = 0, cause = NULL, exit_code = NULL, signal = NULL
WHERE id = :id AND state = 'held'
RETURNING id

-- name: reopen
-- What was skipped waits again, under its id.
UPDATE job SET state = 'held', reason = 'dependency', ended_at = NULL, changed_at = :now, changed_by = :by, message = NULL,
  error = NULL, due_at = CASE WHEN begin_at > :now THEN begin_at END,
  deadline_at = CASE WHEN deadline_at > :now THEN deadline_at END
WHERE id = :id AND state = 'skipped'
RETURNING id

-- name: state_of
-- Of a job, or of an array: what of it is active first, as domain/array.py has it; unknown once its history goes.
SELECT coalesce((SELECT state FROM job WHERE id = :id), (SELECT state FROM past WHERE id = :id),
  (SELECT 'done' FROM model WHERE job_id = :id),
  (SELECT CASE WHEN open AND EXISTS(SELECT 1 FROM job INDEXED BY job_open WHERE state = 'running' AND array_id = a.id) THEN 'running'
    WHEN open THEN 'pending' WHEN held THEN 'held' WHEN done + errored + canceled + skipped < count THEN NULL
    WHEN errored THEN 'errored' WHEN canceled THEN 'canceled' WHEN skipped THEN 'skipped' ELSE 'done' END
  FROM job_array a WHERE a.id = :id))

-- name: heads
-- The next job of each of these lanes (NULL: none): steps down the partial index, however deep the queue, and no row is read,
-- since those lie apart. What is reckoned with has the type of it, whatever another member of a group has written.
SELECT l.value,
  CAST((SELECT priority FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = l.value ORDER BY priority DESC, id LIMIT 1) AS INTEGER),
  (SELECT id FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = l.value ORDER BY priority DESC, id LIMIT 1)
FROM json_each(:lanes) l

-- name: first_head
-- The first of the same: the highest priority, then the oldest. One step a lane, as one number says both: a priority is at
-- most a thousand million, and a job's number below 2^33.
SELECT lane,
  CAST((SELECT priority FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = lane ORDER BY priority DESC, id LIMIT 1) AS INTEGER),
  (SELECT id FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = lane ORDER BY priority DESC, id LIMIT 1)
FROM (SELECT l.value AS lane, min((SELECT id - CAST(priority AS INTEGER) * 8589934592 FROM job INDEXED BY job_open
    WHERE state = 'pending' AND lane_id = l.value ORDER BY priority DESC, id LIMIT 1))
  FROM json_each(:lanes) l)

-- name: overdue
-- Of the same jobs those that could have started before a time, and have not.
SELECT lane_id, id FROM job WHERE id IN (
  SELECT (SELECT id FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = l.value ORDER BY priority DESC, id LIMIT 1)
  FROM json_each(:lanes) l) AND eligible_at < :before
ORDER BY eligible_at, id

-- name: running
-- What runs, as the limits count it: by the GPUs that were given, in whatever queue. The running are few, and stand first
-- in their index.
SELECT CAST(user_id AS INTEGER), lane_id, CAST(device AS TEXT), 1,
  CASE WHEN gpus IS NULL THEN 0 ELSE length(CAST(gpus AS TEXT)) - length(replace(CAST(gpus AS TEXT), ',', '')) + 1 END, worker_id, CAST(array_id AS INTEGER)
FROM job INDEXED BY job_open WHERE state = 'running'

-- name: running_where
-- The same by worker, with what each has been given.
SELECT id, worker_id, lane_id, gpus, host, fraction, started_at, claimed_at, CAST(time_s AS REAL) AS time_s
FROM job INDEXED BY job_open WHERE state = 'running'

-- name: workers
-- The rows with the types that trainq writes, and times before the year 10000.
SELECT * FROM worker WHERE started_at BETWEEN 0 AND 253402300799 AND heartbeat_at BETWEEN 0 AND 253402300799
  AND typeof(pid) || typeof(pid_start) || typeof(user_id) || typeof(slots) = 'integerintegerintegerinteger'
  AND typeof(name) || typeof(host) || typeof(host_identity) || typeof(version) || typeof(state) = 'texttexttexttexttext'
  AND typeof(quarantine) IN ('text', 'null') AND typeof(kept_for) IN ('integer', 'null')
  AND CASE WHEN typeof(queues) <> 'text' OR NOT json_valid(queues) THEN 0 ELSE json_type(queues) = 'array'
    AND NOT EXISTS(SELECT 1 FROM json_each(queues) WHERE type <> 'text') END
ORDER BY id DESC

-- name: next_waiting
-- The first of all that wait, lane by lane: no lane is read further than the list is long, and of an array only the first
-- task is, whose others are stepped over (`:folded`).
WITH RECURSIVE walk(lane_id, id, priority, array_id, place) AS (
  SELECT l.id, j.id, j.priority, j.array_id, 1 FROM lane l JOIN job j ON j.id = (
    SELECT id FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = l.id ORDER BY priority DESC, id LIMIT 1)
  UNION ALL
  SELECT w.lane_id, j.id, j.priority, j.array_id, w.place + 1 FROM walk w JOIN job j ON j.id = coalesce(
    (SELECT id FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = w.lane_id AND priority = w.priority
      AND id > max(w.id, coalesce((SELECT id + count FROM job_array WHERE :folded AND id = w.array_id), w.id)) ORDER BY id LIMIT 1),
    (SELECT id FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = w.lane_id AND priority < w.priority
      ORDER BY priority DESC, id LIMIT 1))
  WHERE w.place < :limit)
SELECT id, array_id FROM walk ORDER BY CAST(priority AS INTEGER) DESC, id LIMIT :limit

-- name: next_held
-- The first of those that are held, in the order of their numbers, arrays stepped over in the same way.
WITH RECURSIVE walk(id, array_id, place) AS (
  SELECT j.id, j.array_id, 1 FROM job j WHERE j.id = (SELECT min(id) FROM job INDEXED BY job_held WHERE state = 'held')
  UNION ALL
  SELECT j.id, j.array_id, w.place + 1 FROM walk w JOIN job j ON j.id = (
    SELECT id FROM job INDEXED BY job_held WHERE state = 'held'
      AND id > max(w.id, coalesce((SELECT id + count FROM job_array WHERE :folded AND id = w.array_id), w.id)) ORDER BY id LIMIT 1)
  WHERE w.place < :limit)
SELECT id, array_id FROM walk

-- name: next_pending_task
-- Of an array, of its own priority: one step down the index for each lane its tasks may be in.
SELECT id, lane_id, reason FROM job WHERE id IN (
  SELECT (SELECT id FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = l.id AND priority = :priority
    AND id BETWEEN :id + 1 AND :id + :count ORDER BY id LIMIT 1)
  FROM lane l WHERE l.queue = :queue AND l.user_id = :user_id AND l.array_id IN (0, :id))
ORDER BY id LIMIT 1

-- name: next_held_task
SELECT id, lane_id, reason FROM job INDEXED BY job_held WHERE state = 'held' AND id BETWEEN :id + 1 AND :id + :count ORDER BY id LIMIT 1

-- name: newest
-- Jobs and arrays, newest first: one step down the primary key for each, however many tasks an array has.
WITH RECURSIVE walk(id, array_id, place) AS (
  SELECT j.id, j.array_id, 1 FROM job j WHERE j.id = (SELECT max(id) FROM job)
  UNION ALL
  SELECT j.id, j.array_id, w.place + 1 FROM walk w JOIN job j ON j.id = (
    SELECT max(id) FROM job WHERE id < min(w.id, coalesce(w.array_id, w.id)))
  WHERE w.place < :limit)
SELECT id, array_id FROM walk

-- name: count_into_array
-- The tasks of a submit call join the counts of their array; all of them wait.
INSERT INTO job_array(id, submission_id, count, most, name, type, queue, priority, tags, user, user_id, at, n, open, held)
SELECT :array_id, submission_id, count(*), :most, name, type, queue, priority, tags, user, user_id, submitted_at, count(*),
  total(counted_as = 'open'), total(counted_as = 'held')
FROM job WHERE id BETWEEN :first AND :last
GROUP BY submission_id, name, type, queue, priority, tags, user, user_id, submitted_at

-- name: running_tasks
-- How many tasks of each array run: the running are few, and stand first in their index.
SELECT array_id, count(*) FROM job INDEXED BY job_open WHERE state = 'running' AND array_id IS NOT NULL GROUP BY array_id

-- name: position
-- How many of a queue come no later than one of them: two ranges of the index in each lane.
SELECT total((SELECT count(*) FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = l.id AND priority > :priority)
  + (SELECT count(*) FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = l.id AND priority = :priority AND id <= :id))
FROM lane l WHERE queue = :queue

-- name: claim
-- The claim itself takes the job that was picked, or the head of the one lane there is; whatever the last attempt left in the
-- row is wiped, and the attempt's number only grows. What comes back has the type that is reckoned with.
UPDATE job SET state = 'running', reason = NULL, side = NULL, stage = 'fetching', attempt = attempt + 1,
  worker_id = :worker_id, worker = :worker, host = :host, gpus = :gpus, device = :device, beat = 0, heartbeat_at = :now,
  claimed_at = :now, changed_at = :now, changed_by = NULL, message = NULL, pid = NULL, started_at = NULL, storing_at = NULL,
  ended_at = NULL, cause = NULL, exit_code = NULL, signal = NULL, error = NULL, fraction = NULL, step = NULL, total = NULL, note = NULL, metrics = NULL,
  resumed_from = NULL, save_failed = NULL, freeze_at = NULL, freeze_by = NULL
WHERE state = 'pending' AND id = coalesce(:job_id,
  (SELECT id FROM job INDEXED BY job_open WHERE state = 'pending' AND lane_id = :lane_id ORDER BY priority DESC, id LIMIT 1))
RETURNING id, attempt, submission_id, CAST(queue AS TEXT) AS queue, CAST(type AS TEXT) AS type, CAST(name AS TEXT) AS name,
  CAST(model_key AS TEXT) AS model_key, fingerprint, user, user_id, max_attempts, CAST(time_s AS REAL) AS time_s,
  CAST(grace_s AS REAL) AS grace_s

-- name: beat
-- The lease is renewed by a counter that moves; no clock is compared. Progress rides along; ages, not times, come in.
UPDATE job SET beat = beat + 1, heartbeat_at = :now, fraction = coalesce(:fraction, fraction),
  step = coalesce(:step, step), total = coalesce(:total, total), note = coalesce(:note, note),
  stage = coalesce(:stage, stage), pid = coalesce(:pid, pid), started_at = coalesce(started_at, :now - :started_ago_s),
  storing_at = coalesce(storing_at, :now - :storing_ago_s), save_failed = coalesce(:save_failed, save_failed),
  resumed_from = coalesce(:resumed_from, resumed_from), metrics = coalesce(:metrics, metrics)
WHERE id = :id AND attempt = :attempt AND worker_id = :worker_id AND state = 'running'
RETURNING cancel_at IS NOT NULL, CAST(cancel_grace_s AS REAL),
  CASE WHEN freeze_at IS NOT NULL THEN coalesce(CAST(freeze_by AS TEXT), '') END

-- name: held_by
-- What the row says of a claim, before its end is decided: no row, and the claim is lost.
SELECT cancel_at, cancel_by, message, CAST(user_used AS INTEGER) AS user_used, CAST(retries AS INTEGER) AS retries,
  CAST(system_used AS INTEGER) AS system_used, CAST(max_attempts AS INTEGER) AS max_attempts,
  CAST(idle_requeues AS INTEGER) AS idle_requeues, queue FROM job
WHERE id = :id AND attempt = :attempt AND worker_id = :worker_id AND state = 'running'

-- name: done
-- The end that most attempts come to, in one statement: fenced, and not if somebody wants it canceled. What `claim` has
-- wiped is not wiped again, but that it was to stand still: it may have ended all the same.
UPDATE job SET state = 'done', reason = NULL, stage = NULL, changed_at = :now, ended_at = :now, exit_code = :exit_code, fraction = 1.0,
  idle_requeues = 0, pid = coalesce(:pid, pid), started_at = coalesce(started_at, :now - :started_ago_s),
  storing_at = coalesce(storing_at, :now - :storing_ago_s), step = coalesce(:step, step), total = coalesce(:total, total),
  note = coalesce(:note, note), metrics = coalesce(:metrics, metrics), save_failed = coalesce(:save_failed, save_failed),
  resumed_from = coalesce(:resumed_from, resumed_from), model_version = coalesce(:model_version, model_version)
WHERE id = :id AND attempt = :attempt AND worker_id = :worker_id AND state = 'running' AND cancel_at IS NULL

-- name: finish
-- Every other end of an attempt, fenced like all that is written for one.
UPDATE job SET state = :state, reason = :reason, side = :side, stage = NULL, changed_at = :now, changed_by = :by,
  ended_at = CASE WHEN :state IN ('pending', 'held') THEN NULL ELSE :now END,
  eligible_at = CASE WHEN :state = 'pending' THEN :now ELSE eligible_at END,
  due_at = :due_at, user_used = user_used + :user_cost, system_used = system_used + :system_cost,
  cause = :cause, exit_code = :exit_code, signal = :signal, error = :error, message = :message,
  pid = coalesce(:pid, pid), started_at = coalesce(started_at, :now - :started_ago_s),
  storing_at = coalesce(storing_at, :now - :storing_ago_s), metrics = coalesce(:metrics, metrics), note = coalesce(:note, note),
  step = coalesce(:step, step), total = coalesce(:total, total), save_failed = coalesce(:save_failed, save_failed),
  resumed_from = coalesce(:resumed_from, resumed_from), idle_requeues = :idle_requeues,
  fraction = CASE WHEN :state IN ('pending', 'held') THEN NULL ELSE coalesce(:fraction, fraction) END
WHERE id = :id AND attempt = :attempt AND worker_id = :worker_id AND state = 'running'

-- name: cancel_waiting
-- A waiting job is canceled at once; how an attempt before ended is history.
UPDATE job SET state = 'canceled', reason = 'user', cancel_at = :now, cancel_by = :by, ended_at = :now,
  changed_at = :now, changed_by = :by, message = :message, due_at = NULL, on_hold = 0, cause = NULL, exit_code = NULL,
  signal = NULL, error = NULL
WHERE id = :id AND state IN ('held', 'pending')
RETURNING id

-- name: cancel_running
-- A running one is asked: its worker sees the flag, and no later result wins over it.
UPDATE job SET cancel_at = coalesce(cancel_at, :now), cancel_by = coalesce(cancel_by, :by),
  cancel_grace_s = CASE WHEN cancel_at IS NULL THEN :grace_s ELSE min(coalesce(cancel_grace_s, :grace_s), coalesce(:grace_s, cancel_grace_s)) END,
  reason = 'canceling', message = coalesce(:message, message)
WHERE id = :id AND state = 'running'
RETURNING id

-- name: freeze
-- A running job is to stand still: its worker sees the flag. Not one that is asked to end, since a cancel wins.
UPDATE job SET freeze_at = :now, freeze_by = :by, reason = 'frozen'
WHERE id = :id AND state = 'running' AND cancel_at IS NULL AND freeze_at IS NULL

-- name: thaw
-- It may go on; one that is asked to end does so already.
UPDATE job SET freeze_at = NULL, freeze_by = NULL, reason = NULL
WHERE id = :id AND state = 'running' AND cancel_at IS NULL AND freeze_at IS NOT NULL

-- name: retry
-- The same id runs again, both costs back to 0; what it was is in attempt and history. A deadline that has passed is none.
UPDATE job SET state = :state, reason = :reason, side = NULL, due_at = :due_at,
  deadline_at = CASE WHEN deadline_at > :now THEN deadline_at END,
  eligible_at = CASE WHEN :state = 'pending' THEN :now END, ended_at = NULL, changed_at = :now,
  changed_by = :by, message = NULL, user_used = 0, system_used = 0, idle_requeues = 0, cancel_at = NULL, cancel_by = NULL,
  cancel_grace_s = NULL, cause = NULL, exit_code = NULL, signal = NULL, error = NULL, fraction = NULL, step = NULL,
  total = NULL, note = NULL, metrics = NULL
WHERE id = :id AND state IN ('errored', 'canceled')
RETURNING id

-- name: expire
-- A lost attempt, only if the claim and the beat are still those that were seen unchanged.
UPDATE job SET state = :state, reason = :reason, side = :side, stage = NULL, changed_at = :now, changed_by = :by,
  ended_at = CASE WHEN :state = 'pending' THEN NULL ELSE :now END,
  eligible_at = CASE WHEN :state = 'pending' THEN :now ELSE eligible_at END,
  system_used = system_used + :system_cost, idle_requeues = 0, cause = 'zombie', message = :message, error = :error,
  fraction = NULL, step = NULL, total = NULL, note = NULL
WHERE id = :id AND attempt = :attempt AND beat = :beat AND state = 'running'
RETURNING id

-- name: see
-- A look at a running job: the same beat keeps the first look, unless too long passed since the last one.
INSERT INTO sighting(job_id, observer, attempt, beat, first_s, last_s)
VALUES(:id, :observer, :attempt, :beat, :boot_s, :boot_s)
ON CONFLICT(job_id, observer) DO UPDATE SET
  first_s = CASE WHEN attempt = excluded.attempt AND beat = excluded.beat AND excluded.last_s - last_s <= :gap_s
    AND excluded.last_s >= last_s THEN first_s ELSE excluded.first_s END,
  attempt = excluded.attempt, beat = excluded.beat, last_s = excluded.last_s
RETURNING CAST(first_s AS REAL)

-- name: next_version
-- The number after the key's highest and after what lies on the disk; taken in the transaction that names it.
INSERT INTO model_key(key, last_version) VALUES(:key, :on_disk + 1)
ON CONFLICT(key) DO UPDATE SET last_version = max(last_version, :on_disk) + 1
RETURNING last_version

-- name: retire
-- Ended rows past their age move to the past, oldest first and a bounded number at a time.
INSERT OR REPLACE INTO past(id, uid, submission_id, state, reason, side, queue, priority, type, name, key, fingerprint,
  model_key, model_version, tags, user, user_id, attempt, submitted_at, started_at, ended_at, exit_code, signal, error,
  first_reason, array_id, array_index)
SELECT j.id, s.uid || '.' || (j.id - s.first_id), j.submission_id, j.state, j.reason, j.side, j.queue, j.priority, j.type,
  j.name, j.key, j.fingerprint, j.model_key, j.model_version, j.tags, j.user, j.user_id, j.attempt, j.submitted_at,
  j.started_at, j.ended_at, j.exit_code, j.signal, j.error, j.first_reason, j.array_id, j.array_index
FROM job j JOIN submission s ON s.id = j.submission_id
WHERE j.id = :id AND j.state IN ('done', 'errored', 'canceled', 'skipped')

-- name: failed_quickly
-- One more quick failure in a row; at the breaker's number the queue is paused, once.
INSERT INTO queue(name, quick_failures) VALUES(:queue, 1)
ON CONFLICT(name) DO UPDATE SET quick_failures = quick_failures + 1
RETURNING quick_failures, paused_at

-- name: suspects
-- How many attempts went on from a checkpoint, failed by their own fault, and saved nothing newer.
SELECT resumed_from, count(*) FROM event h
WHERE job_id = :id AND resumed_from IS NOT NULL AND claimed_at IS NOT NULL AND cause IN (/*user*/)
  AND NOT EXISTS(SELECT 1 FROM checkpoint c WHERE c.job_id = h.job_id AND c.attempt = h.attempt)
GROUP BY resumed_from
