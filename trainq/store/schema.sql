-- Schema 2 of a trainq queue on SQLite; schema 1 was never released. The schema of a queue is the sum of its migrations;
-- this is the first.
-- Times are seconds since 1970 of the backend's own clock, for people; nothing expires by them.

CREATE TABLE meta(
  k TEXT PRIMARY KEY,
  v TEXT NOT NULL
) WITHOUT ROWID;

-- One row per submit call. A job's uid is its submission's uid and its place in it, so a call whose answer was lost
-- can look up what became of it, and a hundred thousand jobs of one call share what they have in common.
CREATE TABLE submission(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  uid TEXT NOT NULL UNIQUE,
  first_id INTEGER NOT NULL,
  count INTEGER NOT NULL,
  at REAL NOT NULL,
  user TEXT NOT NULL,
  user_id INTEGER NOT NULL,
  host TEXT NOT NULL,
  umask INTEGER NOT NULL,
  environ_id INTEGER NOT NULL
);
CREATE INDEX submission_user ON submission(user_id, id);
CREATE INDEX submission_environ ON submission(environ_id);

-- The environment of a submit call, kept once however often the same shell submits.
CREATE TABLE environ(
  id INTEGER PRIMARY KEY,
  sha256 TEXT NOT NULL UNIQUE,
  doc TEXT NOT NULL
);

-- Jobs that are the same to the scheduler: of one queue, user and shape of request (its canonical text, domain/shape.py).
-- Only the head of a lane is ever looked at. `array_id` is 0 for all that has no limit of its own on how many run; `n` counts
-- the rows of jobs in it, whatever their state, so that one nobody is in can be deleted.
CREATE TABLE lane(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  queue TEXT NOT NULL,
  user_id INTEGER NOT NULL,
  shape TEXT NOT NULL,
  array_id INTEGER NOT NULL,
  most INTEGER,
  n INTEGER NOT NULL DEFAULT 0,
  UNIQUE(queue, user_id, shape, array_id)
);

-- An array: one job with tasks. Its number is one of the sequence of jobs, and its tasks have those that follow. Of the tasks
-- it knows how many there are in each state, pruned ones too, so that a list need not count them (`open` as in `count`); `n`
-- of them have a row of a job still. `ended_at` is when the last of them ended, and by that an array ages, as one.
CREATE TABLE job_array(
  id INTEGER PRIMARY KEY,
  submission_id INTEGER NOT NULL,
  count INTEGER NOT NULL,
  most INTEGER,
  name TEXT NOT NULL,
  type TEXT,
  queue TEXT NOT NULL,
  priority INTEGER NOT NULL,
  tags TEXT,
  user TEXT NOT NULL,
  user_id INTEGER NOT NULL,
  at REAL NOT NULL,
  ended_at REAL,
  n INTEGER NOT NULL,
  held INTEGER NOT NULL DEFAULT 0,
  open INTEGER NOT NULL DEFAULT 0,
  done INTEGER NOT NULL DEFAULT 0,
  errored INTEGER NOT NULL DEFAULT 0,
  canceled INTEGER NOT NULL DEFAULT 0,
  skipped INTEGER NOT NULL DEFAULT 0,
  has_dependants INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX job_array_ended ON job_array(ended_at, id);

-- The hot row: small, since every claim and beat rewrites its page. What is long lies in spec, data and submission.
-- What holds a job: a person (`on_hold`), jobs it comes after (`waits_for`, so many), a time (`due_at`: of its begin or its
-- backoff); `reason` is the first of them. `first_reason` is what it was held for when it was put in, and never changes.
-- What every move of a job is tested for is a chain of comparisons: for a list of more than two words SQLite makes a table each
-- time, which cost a quarter of a claim's and of an end's statement.
CREATE TABLE job(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  submission_id INTEGER NOT NULL,
  lane_id INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state = 'running' OR state = 'pending' OR state = 'done' OR state = 'held' OR state = 'errored'
    OR state = 'canceled' OR state = 'skipped'),
  reason TEXT,
  side TEXT,
  stage TEXT,
  queue TEXT NOT NULL,
  priority INTEGER NOT NULL,
  type TEXT,
  name TEXT NOT NULL,
  key TEXT,
  fingerprint TEXT,
  model_key TEXT,
  tags TEXT,
  user TEXT NOT NULL,
  user_id INTEGER NOT NULL,
  submitted_at REAL NOT NULL,
  eligible_at REAL,
  changed_at REAL NOT NULL,
  changed_by TEXT,
  attempt INTEGER NOT NULL DEFAULT 0,
  system_used INTEGER NOT NULL DEFAULT 0,
  user_used INTEGER NOT NULL DEFAULT 0,
  max_attempts INTEGER NOT NULL,
  retries INTEGER NOT NULL,
  time_s REAL,
  grace_s REAL,
  due_at REAL,
  cancel_at REAL,
  cancel_by TEXT,
  cancel_grace_s REAL,
  freeze_at REAL,
  freeze_by TEXT,
  worker_id INTEGER,
  worker TEXT,
  host TEXT,
  pid INTEGER,
  gpus TEXT,
  device TEXT,
  beat INTEGER NOT NULL DEFAULT 0,
  heartbeat_at REAL,
  claimed_at REAL,
  started_at REAL,
  storing_at REAL,
  ended_at REAL,
  cause TEXT,
  exit_code INTEGER,
  signal INTEGER,
  error TEXT,
  message TEXT,
  fraction REAL,
  step INTEGER,
  total INTEGER,
  note TEXT,
  metrics TEXT,
  model_version INTEGER,
  resumed_from INTEGER,
  save_failed INTEGER,
  idle_requeues INTEGER NOT NULL DEFAULT 0,
  first_reason TEXT,
  begin_at REAL,
  deadline_at REAL,
  on_hold INTEGER NOT NULL DEFAULT 0,
  waits_for INTEGER NOT NULL DEFAULT 0,
  has_dependants INTEGER NOT NULL DEFAULT 0,
  array_id INTEGER,
  array_index INTEGER,
  counted_as TEXT AS (iif(state IN ('pending','running'), 'open', state))
);
CREATE INDEX job_open ON job(state DESC, lane_id, priority DESC, id) WHERE state = 'running' OR state = 'pending';
CREATE INDEX job_due ON job(due_at) WHERE state = 'held' AND on_hold = 0 AND waits_for = 0 AND due_at IS NOT NULL;
CREATE INDEX job_deadline ON job(deadline_at) WHERE deadline_at IS NOT NULL AND attempt = 0 AND state IN ('held','pending');
CREATE INDEX job_held ON job(id) WHERE state = 'held';
CREATE INDEX job_ended ON job(ended_at, id) WHERE ended_at IS NOT NULL AND array_id IS NULL;
CREATE INDEX job_key ON job(key, id) WHERE key IS NOT NULL;
CREATE INDEX job_fingerprint ON job(fingerprint, id) WHERE fingerprint IS NOT NULL;

-- The jobs (or arrays, as a whole) a job comes after, and which end of each it wants. `ended`: how it has ended; NULL as long as it is waited for,
-- and `waits_for` counts those. What was met stays met, whatever becomes of that job.
CREATE TABLE dep(
  job_id INTEGER NOT NULL,
  on_id INTEGER NOT NULL,
  mode TEXT NOT NULL,
  ended TEXT,
  PRIMARY KEY(job_id, on_id)
) WITHOUT ROWID;
CREATE INDEX dep_on ON dep(on_id, ended);

-- Jobs that have ended and whose dependants have not all been told. A row for each end, not for each dependant: the end of
-- a job that a million wait for costs no more than another. Who works it off is store/dependants.py.
CREATE TABLE to_tell(
  id INTEGER PRIMARY KEY
);

-- What is executed: argv or call, parameters and the rest of the request, one JSON document a job.
CREATE TABLE spec(
  job_id INTEGER PRIMARY KEY,
  doc TEXT NOT NULL
);

-- A training set: zstd in the column, or (content too large for it) in data/<sha256>.zst with z NULL.
CREATE TABLE data(
  id INTEGER PRIMARY KEY,
  sha256 TEXT NOT NULL UNIQUE,
  size INTEGER NOT NULL,
  stored_size INTEGER NOT NULL,
  at REAL NOT NULL,
  z BLOB
);
CREATE TABLE job_data(
  job_id INTEGER NOT NULL,
  name TEXT NOT NULL,
  data_id INTEGER NOT NULL,
  PRIMARY KEY(job_id, name)
) WITHOUT ROWID;
CREATE INDEX job_data_of ON job_data(data_id);

-- One row per change, append only; it outlives the job's row. The row that leaves `running` is the record of that
-- attempt and holds its result. Clustered by job, and jobs move in the order of their ids: a change appends to one page.
-- That a job was put in is not written again: the view below tells it from the job's own row.
CREATE TABLE event(
  job_id INTEGER NOT NULL,
  n INTEGER NOT NULL,
  at REAL NOT NULL,
  state TEXT NOT NULL,
  reason TEXT,
  attempt INTEGER NOT NULL,
  worker TEXT,
  host TEXT,
  by TEXT,
  message TEXT,
  pid INTEGER,
  claimed_at REAL,
  started_at REAL,
  storing_at REAL,
  cause TEXT,
  exit_code INTEGER,
  signal INTEGER,
  error TEXT,
  metrics TEXT,
  resumed_from INTEGER,
  gpus TEXT,
  PRIMARY KEY(job_id, n)
) WITHOUT ROWID;

-- What is left of a job once its row is pruned: enough to answer history, wait and status; no data, no environment.
CREATE TABLE past(
  id INTEGER PRIMARY KEY,
  uid TEXT NOT NULL,
  submission_id INTEGER NOT NULL,
  state TEXT NOT NULL,
  reason TEXT,
  side TEXT,
  queue TEXT NOT NULL,
  priority INTEGER NOT NULL,
  type TEXT,
  name TEXT NOT NULL,
  key TEXT,
  fingerprint TEXT,
  model_key TEXT,
  model_version INTEGER,
  tags TEXT,
  user TEXT NOT NULL,
  user_id INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  submitted_at REAL NOT NULL,
  started_at REAL,
  ended_at REAL NOT NULL,
  exit_code INTEGER,
  signal INTEGER,
  error TEXT,
  first_reason TEXT,
  array_id INTEGER,
  array_index INTEGER
);
CREATE INDEX past_ended ON past(ended_at, id) WHERE array_id IS NULL;
CREATE INDEX past_fingerprint ON past(fingerprint, id) WHERE fingerprint IS NOT NULL;
CREATE INDEX past_key ON past(key, id) WHERE key IS NOT NULL;

CREATE VIEW history AS
  SELECT * FROM event
  UNION ALL
  SELECT j.id, 1, j.submitted_at, iif(j.first_reason IS NULL, 'pending', 'held'), j.first_reason, 0, NULL, NULL, j.user || '@' || s.host, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL
  FROM job j JOIN submission s ON s.id = j.submission_id
  UNION ALL
  SELECT p.id, 1, p.submitted_at, iif(p.first_reason IS NULL, 'pending', 'held'), p.first_reason, 0, NULL, NULL, p.user || '@' || s.host, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL
  FROM past p JOIN submission s ON s.id = p.submission_id;

CREATE TABLE worker(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  host TEXT NOT NULL,
  host_identity TEXT NOT NULL,
  pid INTEGER NOT NULL,
  pid_start INTEGER NOT NULL,
  user_id INTEGER NOT NULL,
  version TEXT NOT NULL,
  slots INTEGER NOT NULL,
  queues TEXT NOT NULL,
  offer TEXT NOT NULL DEFAULT '{}',
  kept_for INTEGER,
  state TEXT NOT NULL,
  quarantine TEXT,
  cleared_by TEXT,
  drain_at REAL,
  drain_by TEXT,
  beat INTEGER NOT NULL DEFAULT 0,
  started_at REAL NOT NULL,
  heartbeat_at REAL NOT NULL,
  ended_at REAL
);

-- When did this observer first and last see this beat of this claim, on its own boot clock.
CREATE TABLE sighting(
  job_id INTEGER NOT NULL,
  observer TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  beat INTEGER NOT NULL,
  first_s REAL NOT NULL,
  last_s REAL NOT NULL,
  PRIMARY KEY(job_id, observer)
) WITHOUT ROWID;

-- Checkpoints that were committed under a claim: only these are gone on from, and only if the digest still matches.
CREATE TABLE checkpoint(
  job_id INTEGER NOT NULL,
  number INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  at REAL NOT NULL,
  step INTEGER,
  epoch INTEGER,
  digest TEXT NOT NULL,
  size INTEGER NOT NULL,
  PRIMARY KEY(job_id, number)
) WITHOUT ROWID;

-- What is known of a queue by name; one without a row is open and has no failures behind it.
CREATE TABLE queue(
  name TEXT PRIMARY KEY,
  paused_at REAL,
  paused_by TEXT,
  reason TEXT,
  message TEXT,
  quick_failures INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE model(
  key TEXT NOT NULL,
  version INTEGER NOT NULL,
  at REAL NOT NULL,
  job_id INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  type TEXT,
  params TEXT NOT NULL,
  metrics TEXT NOT NULL,
  fingerprint TEXT,
  size INTEGER NOT NULL,
  manifest_sha256 TEXT NOT NULL,
  pinned INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY(key, version)
) WITHOUT ROWID;
CREATE INDEX model_fingerprint ON model(fingerprint) WHERE fingerprint IS NOT NULL;
CREATE INDEX model_job ON model(job_id);
CREATE INDEX model_type ON model(type, at);

-- The highest version ever given for a key: a number is never used again, whatever was removed.
CREATE TABLE model_key(
  key TEXT PRIMARY KEY,
  last_version INTEGER NOT NULL
) WITHOUT ROWID;

-- Jobs by queue and state, so that a million rows are counted in no time. What waits and what runs is one number, open,
-- which a claim leaves as it is: the running are few and counted where they stand, in the view. Kept by triggers; submit,
-- which alone puts rows in, adds its own at once: a trigger for each of a hundred thousand rows costs as much as the rows.
CREATE TABLE count(
  queue TEXT NOT NULL,
  counted_as TEXT NOT NULL,
  n INTEGER NOT NULL,
  PRIMARY KEY(queue, counted_as)
) WITHOUT ROWID;

CREATE VIEW counts AS
  SELECT queue, counted_as AS state, n FROM count WHERE counted_as <> 'open'
  UNION ALL
  SELECT queue, 'running', count(*) FROM job INDEXED BY job_open WHERE state = 'running' GROUP BY queue
  UNION ALL
  SELECT queue, 'pending', n - (SELECT count(*) FROM job INDEXED BY job_open WHERE state = 'running' AND queue = c.queue)
  FROM count c WHERE counted_as = 'open';

CREATE TRIGGER job_counts_move AFTER UPDATE OF state, queue ON job
WHEN OLD.counted_as <> NEW.counted_as OR OLD.queue <> NEW.queue BEGIN
  INSERT INTO count VALUES(OLD.queue, OLD.counted_as, -1), (NEW.queue, NEW.counted_as, 1)
  ON CONFLICT(queue, counted_as) DO UPDATE SET n = n + excluded.n;
END;
CREATE TRIGGER job_counts_out AFTER DELETE ON job BEGIN
  UPDATE count SET n = n - 1 WHERE queue = OLD.queue AND counted_as = OLD.counted_as;
  UPDATE lane SET n = n - 1 WHERE id = OLD.lane_id;
  UPDATE job_array SET n = n - 1 WHERE id = OLD.array_id;
END;

-- An array's own counts. When it ends or begins again is written apart, since that is in an index.
CREATE TRIGGER job_array_move AFTER UPDATE OF state ON job
WHEN NEW.array_id IS NOT NULL AND OLD.counted_as <> NEW.counted_as BEGIN
  UPDATE job_array SET held = held - (OLD.counted_as = 'held') + (NEW.counted_as = 'held'),
    open = open - (OLD.counted_as = 'open') + (NEW.counted_as = 'open'),
    done = done + (NEW.counted_as = 'done'),
    errored = errored - (OLD.counted_as = 'errored') + (NEW.counted_as = 'errored'),
    canceled = canceled - (OLD.counted_as = 'canceled') + (NEW.counted_as = 'canceled'),
    skipped = skipped - (OLD.counted_as = 'skipped') + (NEW.counted_as = 'skipped')
  WHERE id = NEW.array_id;
  UPDATE job_array SET ended_at = CASE WHEN held + open = 0 THEN NEW.changed_at END
  WHERE id = NEW.array_id AND (ended_at IS NULL) <> (held + open > 0);
END;
CREATE TRIGGER past_array_gone AFTER DELETE ON past WHEN OLD.array_id IS NOT NULL BEGIN
  UPDATE job_array SET done = done - (OLD.state = 'done'), errored = errored - (OLD.state = 'errored'),
    canceled = canceled - (OLD.state = 'canceled'), skipped = skipped - (OLD.state = 'skipped')
  WHERE id = OLD.array_id;
END;

CREATE TRIGGER job_lane_move AFTER UPDATE OF lane_id ON job WHEN OLD.lane_id <> NEW.lane_id BEGIN
  UPDATE lane SET n = n - 1 WHERE id = OLD.lane_id;
  UPDATE lane SET n = n + 1 WHERE id = NEW.lane_id;
END;

-- The table of moves (domain/states.py). A test walks all 49 pairs through both.
CREATE TRIGGER job_move AFTER UPDATE OF state ON job
WHEN OLD.state <> NEW.state AND instr('/*moves*/', '|' || OLD.state || '>' || NEW.state || '|') = 0 BEGIN
  SELECT RAISE(ABORT, 'trainq: this move is not in the table of moves');
END;

CREATE TRIGGER job_history_move AFTER UPDATE OF state ON job
WHEN OLD.state <> NEW.state AND OLD.state <> 'running' BEGIN
  INSERT INTO event(job_id, n, at, state, reason, attempt, worker, host, by, message)
  VALUES(NEW.id, (SELECT coalesce(max(n), 1) + 1 FROM event WHERE job_id = NEW.id), NEW.changed_at, NEW.state, NEW.reason,
    NEW.attempt, CASE NEW.state WHEN 'running' THEN NEW.worker END, CASE NEW.state WHEN 'running' THEN NEW.host END,
    NEW.changed_by, NEW.message);
END;
CREATE TRIGGER job_history_attempt AFTER UPDATE OF state ON job
WHEN OLD.state = 'running' AND NEW.state <> 'running' BEGIN
  INSERT INTO event(job_id, n, at, state, reason, attempt, worker, host, by, message, pid, claimed_at, started_at,
    storing_at, cause, exit_code, signal, error, metrics, resumed_from, gpus)
  VALUES(NEW.id, (SELECT coalesce(max(n), 1) + 1 FROM event WHERE job_id = NEW.id), NEW.changed_at, NEW.state, NEW.reason,
    NEW.attempt, NEW.worker, NEW.host, NEW.changed_by, NEW.message, NEW.pid, NEW.claimed_at, NEW.started_at,
    NEW.storing_at, NEW.cause, NEW.exit_code, NEW.signal, NEW.error, NEW.metrics,
    NEW.resumed_from, NEW.gpus);
END;
CREATE TRIGGER job_has_ended AFTER UPDATE OF state ON job
WHEN NEW.has_dependants AND NEW.counted_as NOT IN ('held','open') AND OLD.state <> NEW.state BEGIN
  INSERT OR IGNORE INTO to_tell VALUES(NEW.id);
END;
CREATE TRIGGER job_array_has_ended AFTER UPDATE OF ended_at ON job_array
WHEN NEW.has_dependants AND NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL BEGIN
  INSERT OR IGNORE INTO to_tell VALUES(NEW.id);
END;
CREATE TRIGGER job_gone AFTER DELETE ON job BEGIN
  DELETE FROM spec WHERE job_id = OLD.id;
  DELETE FROM job_data WHERE job_id = OLD.id;
  DELETE FROM sighting WHERE job_id = OLD.id;
  DELETE FROM checkpoint WHERE job_id = OLD.id;
  DELETE FROM dep WHERE job_id = OLD.id;
END;
