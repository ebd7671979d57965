"""E15: `--snapshot` freezes the code at submit, retries run the same code, and the commit is recorded for every job.
Real repositories and workers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from e2e.kit import alive, until
from e2e.test_bad_input import POWERLESS

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")


def git(directory, *words):
    """Run git as nobody in particular."""
    names = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "protocol.file.allow=always",
    )
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(["git", "-C", directory, *names, *words], check=True, capture_output=True, env=env)
    return done.stdout.decode().strip()


@pytest.fixture
def repo(tq):
    """The working directory as a repository with a commit, in which a script tells what it is."""
    tq.env["GIT_CEILING_DIRECTORIES"] = str(tq.dir.parent)
    tq.script("train.py", "print('old')")
    (tq.dir / ".gitignore").write_text("*.log\nignored/\n")
    git(tq.dir, "init", "-q")
    git(tq.dir, "add", ".")
    git(tq.dir, "commit", "-qm", "first")
    return tq


def code(tq, number):
    return tq.job(number)["code"]


def run(tq, *words, **how):
    """What a job prints that was submitted so; it must be done."""
    number = tq.submit(*words, **how)
    tq.work()
    assert tq.state(number) == "done", tq.ok("logs", number)
    return tq.ok("logs", number).out


def archives(tq):
    return sorted(os.listdir(os.path.join(tq.root, "snapshots")))


def frozen(tq, number):
    """The files of a job's own copy, and the links."""
    top = Path(tq.root, "runs", str(number), "1", "code")
    return {str(path.relative_to(top)) for path in top.rglob("*") if path.is_symlink() or path.is_file()}


# what runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["git", "copy"])
def test_editing_the_script_after_submit_changes_nothing(repo, how):
    """E15: what was there at submit runs, committed or not; without a snapshot what is there when it starts."""
    first = repo.submit("--snapshot", how, "--", "python", "train.py")
    repo.script("train.py", "print('uncommitted')")
    second = repo.submit("--snapshot", how, "--", "python", "train.py")
    third = repo.submit("--", "python", "train.py")
    repo.script("train.py", "print('new')")
    os.rename(repo.dir / ".git", repo.dir / "gone")  # the copy needs no repository
    repo.work()
    assert [repo.ok("logs", number).out for number in (first, second, third)] == ["old\n", "uncommitted\n", "new\n"]
    assert code(repo, third)["snapshot"] is None
    assert len(archives(repo)) == 2


def test_retries_run_the_same_code(repo):
    """E15: the next attempt, and a later `retry`, run what was frozen, also if the job has changed its own copy."""
    repo.script(
        "train.py",
        "import sys\nprint('old', flush=True)\nopen('train.py', 'w').write('print(1)')\nopen('more', 'w')\nsys.exit(1)",
    )
    number = repo.submit("--snapshot", "git", "--retries", "1", "--backoff", "0s", "--", "python", "train.py")
    repo.script("train.py", "print('new')")
    repo.work()
    repo.ok("retry", number)
    repo.work()
    job = repo.job(number)
    assert (job["attempt"]["n"], job["reason"]) == (4, "exit")
    logs = [repo.ok("logs", number, "--attempt", n).out for n in (1, 2, 3, 4)]
    assert logs == ["old\n"] * 4
    assert os.path.exists(os.path.join(job["paths"]["run"], "code", "more"))  # what it wrote stays with its log
    assert len(archives(repo)) == 1


def test_a_job_runs_where_it_was_submitted_in_its_copy(repo):
    """E15: `git` freezes the whole work tree and the job runs in the same directory of it, `copy` freezes what lies below."""
    (repo.dir / "a/b").mkdir(parents=True)
    (repo.dir / "shared.py").write_text("word = 'shared'")
    (repo.dir / "a/b/sub.py").write_text(
        "import os, sys\nsys.path.insert(0, '../..')\n"
        "try: import shared\nexcept ImportError: shared = None\n"
        "print(shared and shared.word, os.getcwd() == os.environ['PWD'], os.path.relpath('.', os.environ['TRAINQ_RUN_DIR']))"
    )
    line = ("--", "python", "sub.py")
    where = {"cwd": repo.dir / "a/b", "env": {"PWD": str(repo.dir / "a/b")}}
    assert run(repo, "--snapshot", "git", *line, **where) == "shared True code/a/b\n"
    assert run(repo, "--snapshot", "copy", *line, **where) == "None True code\n"
    assert run(repo, "--cwd", "a/b", "--snapshot", "git", *line, env={"PWD": str(repo.dir)}) == "shared True code/a/b\n"
    (repo.dir / "ignored").mkdir()  # nothing of it is frozen, and the job runs there all the same
    assert run(repo, "--snapshot", "git", "--shell", "ls | wc -l", cwd=repo.dir / "ignored") == "0\n"


def test_python_finds_what_is_frozen(repo):
    """E15: entries of PYTHONPATH in the frozen directory lead into the copy, all others stay; so does the line after it."""
    (repo.dir / "src").mkdir()
    (repo.dir / "src/mine.py").write_text("word = 'old'")
    (repo.dir.parent / "lib").mkdir()
    (repo.dir.parent / "lib/theirs.py").write_text("word = 'lib'")
    repo.script("train.py", "import mine, theirs; print(mine.word, theirs.word)")
    path = f"{repo.dir}/src:{repo.dir}-not:{repo.dir.parent}/lib"
    env = {"PYTHONPATH": f"{repo.env['PYTHONPATH']}:{path}"}
    words = ("--snapshot", "git", "--on-end", f"cat src/mine.py > {repo.dir.parent}/seen", "--", "python", "train.py")
    number = repo.submit(*words, env=env)
    (repo.dir / "src/mine.py").write_text("word = 'new'")
    repo.work()
    assert repo.ok("logs", number).out == "old lib\n"
    assert (repo.dir.parent / "seen").read_text() == "word = 'old'"


def test_types_and_lines_of_a_file_freeze(repo):
    """E15: a type's jobs, and those of `--from`, by the same names."""
    repo.types()
    lines = [{"type": "ok", "seed": n, "snapshot": "git"} for n in (1, 2)] + [
        {"argv": ["python", "train.py"], "snapshot": "none"}
    ]
    text = "\n".join(map(json.dumps, lines))
    assert repo.ok("submit", "--from", "-", input=text).out == "1\n2\n3\n"
    (repo.dir / "ok.py").write_text("raise SystemExit(1)")
    repo.work()
    assert [repo.state(number) for number in (1, 2, 3)] == ["done"] * 3
    assert code(repo, 1) == code(repo, 2)
    assert [code(repo, number)["snapshot"] is None for number in (1, 2, 3)] == [False, False, True]
    refused = repo("submit", "--from", "-", input='{"argv": ["true"], "snapshot": "yes"}')
    assert (refused.code, "none, git, copy" in refused.err) == (2, True)


# which files -------------------------------------------------------------------------------------------------------


def test_ignored_files_are_left_out_and_untracked_ones_are_not(repo):
    """E15: as git sees the work tree now; neither the queue, nor git's and Python's own, nor what is deleted."""
    for name in (
        "new.py",
        "x.log",
        "ignored/x.py",
        "sub/x.log",
        "sub/new.py",
        "__pycache__/x.pyc",
        ".trainq/queue.sqlite",
    ):
        (repo.dir / name).parent.mkdir(exist_ok=True)
        (repo.dir / name).write_text(name)
    (repo.dir / "deleted.py").write_text("")
    git(repo.dir, "add", "deleted.py", "sub/x.log", "-f")  # tracked though ignored: it is code
    os.unlink(repo.dir / "deleted.py")
    expected = {"train.py", ".gitignore", "new.py", "sub/x.log", "sub/new.py", "ok.py", "slow.py", "bad.py"}
    for number, how in enumerate(("git", "copy"), 1):
        run(repo, "--snapshot", how, "--", "true")
        assert frozen(repo, number) == expected


@pytest.mark.parametrize("with_git", [True, False])
def test_a_copy_outside_a_repository(tq, with_git):
    """E15: .gitignore counts there, too; without git everything is frozen but what nobody means."""
    tq.env["GIT_CEILING_DIRECTORIES"] = str(tq.dir.parent)
    for name in ("d/x.log", "d/y.py", "__pycache__/a.pyc", "e/.gitignore", "e/z.py"):
        (tq.dir / name).parent.mkdir(exist_ok=True)
        (tq.dir / name).write_text("")
    (tq.dir / ".gitignore").write_text("*.log")
    (tq.dir / "e/.gitignore").write_text("z.py")
    env = {} if with_git else {"PATH": str(tq.home)}
    number = tq.submit("--snapshot", "copy", "--", shutil.which("true"), env=env)
    tq.work()
    found = {name for name in frozen(tq, number) if "/" in name}
    assert found == {"d/y.py", "e/.gitignore"} | (set() if with_git else {"d/x.log", "e/z.py"})
    assert code(tq, number)["commit"] is None


def test_repositories_in_the_repository(repo):
    """E15: a submodule's files, and those of a repository that nobody has added, are frozen, each by its own rules."""
    other = repo.dir.parent / "other"
    other.mkdir()
    (other / "lib.py").write_text("")
    git(other, "init", "-q")
    git(other, "add", ".")
    git(other, "commit", "-qm", "x")
    git(repo.dir, "submodule", "--quiet", "add", str(other), "module")
    git(repo.dir, "clone", "-q", str(other), "nested")
    (repo.dir / "nested/.gitignore").write_text("no.py")
    (repo.dir / "nested/no.py").write_text("")
    number = repo.submit("--snapshot", "git", "--", "true")
    repo.work()
    found = frozen(repo, number)
    assert {"module/lib.py", "nested/lib.py", "nested/.gitignore"} <= found
    assert not {name for name in found if name.endswith(("no.py", "/.git")) or "/.git/" in name}


def test_a_queue_in_the_repository(repo):
    """E15: the queue is no part of the code, nor a difference from the commit; and git in a job does not take the
    repository around the queue for that of its code."""
    repo.root = str(repo.dir / "queue")
    repo.ok("init", repo.root, root=None)
    number = repo.submit("--snapshot", "git", "--shell", "git rev-parse HEAD 2>&1; ls")
    assert code(repo, number)["dirty"] is False
    repo.work()
    said = repo.ok("logs", number).out
    assert "fatal" in said
    assert "queue\n" not in said
    assert git(repo.dir, "rev-parse", "HEAD") == code(repo, number)["commit"]


def test_a_queue_deep_in_the_repository_is_no_difference(repo):
    """E15: where git names only a directory above it; another file beside it there is one."""
    for place in ("new/deep", "new/deep/queue"):
        (repo.dir / place).mkdir(parents=True, exist_ok=True)
    repo.root = str(repo.dir / "new/deep/queue")
    repo.ok("init", repo.root, root=None)
    assert code(repo, repo.submit("--", "true"))["dirty"] is False
    (repo.dir / "new/code.py").write_text("")
    assert code(repo, repo.submit("--", "true"))["dirty"] is True


def test_the_index_of_the_repository_is_not_written(repo):
    """E15: to look at it is to take no lock in it: an editor, or a commit, is at work there meanwhile."""
    os.utime(repo.dir / "train.py", (1, 1))  # git would note that it is the same file still
    before = os.stat(repo.dir / ".git/index")
    assert code(repo, repo.submit("--", "true"))["dirty"] is False
    after = os.stat(repo.dir / ".git/index")
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


ODD = [b"a\nb.py", b"\xff\xfe", b"-x", b" ", "ü.py".encode(), b"d/\xff\n", b"l" * 200 + b"/" + b"m" * 200]


@pytest.mark.parametrize("how", ["git", "copy"])
def test_odd_names_come_back(repo, how):
    """E15: newlines, bytes that are no UTF-8, long names; contents to the byte, and whether it is a program."""
    top = os.fsencode(repo.dir)
    for name in ODD:
        os.makedirs(os.path.dirname(os.path.join(top, name)), exist_ok=True)
        with open(os.path.join(top, name), "wb") as file:
            file.write(name * 1000)
    (repo.dir / "tool").write_text("#!/bin/sh\necho tool")
    os.chmod(repo.dir / "tool", 0o700)
    assert run(repo, "--snapshot", how, "--", "./tool") == "tool\n"
    own = os.fsencode(os.path.join(repo.root, "runs/1/1/code"))
    for name in ODD:
        with open(os.path.join(own, name), "rb") as file:
            assert file.read() == name * 1000
        assert not os.stat(os.path.join(own, name)).st_mode & 0o111


def test_links_lead_where_they_led(repo):
    """E15: a link is kept as a link; one that leads out of the tree means the same place in the copy."""
    (repo.dir.parent / "big").mkdir()
    (repo.dir.parent / "big/data").write_text("outside")
    (repo.dir / "d").mkdir()
    (repo.dir / "d/inside").symlink_to("../train.py")
    (repo.dir / "d/outside").symlink_to("../../big")
    (repo.dir / "absolute").symlink_to(repo.dir.parent / "big/data")
    (repo.dir / "nowhere").symlink_to("no such file")
    number = repo.submit("--snapshot", "git", "--shell", "python d/inside; cat d/outside/data absolute")
    repo.script("train.py", "print('new')")
    repo.work()
    assert repo.ok("logs", number).out == "old\noutsideoutside"
    own = Path(repo.root, "runs", str(number), "1/code")
    assert os.readlink(own / "d/inside") == "../train.py"
    assert os.readlink(own / "nowhere") == "no such file"
    assert "d/outside/data" not in frozen(repo, number)


@pytest.mark.parametrize("how", ["git", "copy"])
@pytest.mark.parametrize("where", ["../elsewhere", "elsewhere"])
def test_a_directory_that_has_become_a_link(repo, how, where):
    """E15: what git has tracked below it is deleted to git, though it is found through the link; the link is frozen."""
    (repo.dir / "d/e").mkdir(parents=True)
    (repo.dir / "d/e/a").write_text("tracked")
    git(repo.dir, "add", ".")
    git(repo.dir, "commit", "-qm", "second")
    os.rename(repo.dir / "d", repo.dir / where)
    (repo.dir / "d").symlink_to(where)
    assert run(repo, "--snapshot", how, "--", "cat", "d/e/a") == "tracked"
    assert frozen(repo, 1) >= {"d", "train.py"}
    assert "d/e/a" not in frozen(repo, 1)


def test_equal_code_is_stored_once(repo):
    """E15: two submits share one archive, also by `git` and `copy`; another byte or mode is another one."""
    for how in ("git", "copy", "git"):
        repo.submit("--snapshot", how, "--", "true")
    assert len(archives(repo)) == 1
    assert len({code(repo, number)["snapshot"] for number in (1, 2, 3)}) == 1
    os.utime(repo.dir / "train.py", (1, 1))
    repo.submit("--snapshot", "git", "--", "true")
    assert len(archives(repo)) == 1
    os.chmod(repo.dir / "train.py", 0o755)
    repo.submit("--snapshot", "git", "--", "true")
    assert len(archives(repo)) == 2


# what is refused ---------------------------------------------------------------------------------------------------


def refused(tq, *words, **how):
    """The words of a submit that stored nothing."""
    done = tq("submit", "--json", *words, **how)
    assert (done.code, done.json["error"]) == (2, "bad_snapshot"), done
    assert tq.jobs() == []
    assert archives(tq) == []
    return done.json["message"], done.json["hint"]


def test_too_much_is_refused_by_name(repo):
    """E15: over the limit nothing is stored; size, limit and the biggest files are said, and what to do."""
    (repo.dir / "model.bin").write_bytes(os.urandom(3 << 20))
    (repo.dir / "half.bin").write_bytes(bytes(1 << 20))
    limit = {"TRAINQ_LIMITS_SNAPSHOT_SIZE": "2MiB"}
    said, hint = refused(repo, "--snapshot", "git", "--", "true", env=limit)
    assert "4MiB, more than 2MiB; the biggest: model.bin (3MiB), half.bin (1MiB)" in said.replace("4.0MiB", "4MiB")
    assert ".gitignore" in hint
    assert "limits.snapshot_size" in hint.replace("[limits] ", "limits.")
    (repo.dir / ".gitignore").write_text("model.bin\n")
    repo.submit("--snapshot", "git", "--", "true", env=limit)


def test_where_there_is_nothing_to_freeze(tq):
    """E15: `git` outside a work tree, without git, and where everything is ignored; nothing is stored."""
    tq.env["GIT_CEILING_DIRECTORIES"] = str(tq.dir.parent)
    said, hint = refused(tq, "--snapshot", "git", "--", "true")
    assert ("in no git work tree" in said, hint) == (True, "--snapshot copy")
    git(tq.dir, "init", "-q")
    said, hint = refused(tq, "--snapshot", "git", "--", shutil.which("true"), env={"PATH": str(tq.home)})
    assert (said, hint) == ("git is not installed", "--snapshot copy")
    (tq.dir / ".gitignore").write_text("*")
    said, _ = refused(tq, "--snapshot", "copy", "--", "true")
    assert "no file to freeze" in said
    (tq.dir / ".git/HEAD").unlink()
    said, _ = refused(tq, "--snapshot", "git", "--", "true")
    assert "not a git repository" in said


def test_what_is_no_file_is_told(repo):
    """E15: a pipe without a writer does not hold up the submit, and is said to be left out."""
    os.rename(repo.dir / ".git", repo.dir.parent / "git")
    os.mkfifo(repo.dir / "pipe")
    done = repo.ok("submit", "--snapshot", "copy", "--", "true", env={"PATH": str(repo.home)})
    assert "left out of the snapshot, being neither files nor links: pipe" in done.err


@pytest.mark.skipif(bool(POWERLESS) and not shutil.which("setpriv"), reason="root, and no setpriv")
def test_what_cannot_be_read_is_refused(repo):
    """E15: in one line that names it, and with what to do: a file, and one in a directory that is shut."""
    os.chmod(repo.dir / "train.py", 0)
    said, hint = refused(repo, "--snapshot", "git", "--", "true", before=POWERLESS)
    assert f"{repo.dir}/train.py" in said
    assert "chmod" in hint
    os.chmod(repo.dir / "train.py", 0o600)
    (repo.dir / "d").mkdir()
    (repo.dir / "d/a").write_text("")
    git(repo.dir, "add", ".")
    os.chmod(repo.dir / "d", 0)
    said, hint = refused(repo, "--snapshot", "git", "--", "true", before=POWERLESS)
    assert f"{repo.dir}/d/a" in said
    assert "chmod" in hint


@pytest.mark.skipif(bool(POWERLESS) and not shutil.which("setpriv"), reason="root, and no setpriv")
@pytest.mark.parametrize("how", ["git", "copy"])
def test_a_directory_that_git_cannot_look_into_is_told(repo, how):
    """E15: git only warns of one in which it tracks nothing, and goes on; so does a submit, and passes the warning on."""
    (repo.dir / "shut").mkdir(mode=0)
    done = repo.ok("submit", "--snapshot", how, "--", "true", before=POWERLESS)
    assert "left out of the snapshot: git could not open directory 'shut/'" in done.err


def test_words_that_lead_past_the_snapshot_are_told(repo):
    """E15: what the command names by its full path is not the frozen one; what is ignored will not be there."""
    (repo.dir / "ignored").mkdir()
    (repo.dir / "ignored/data").write_text("")
    (repo.dir.parent / "outside").write_text("")

    def notes(*argv):
        return repo.ok("submit", "--snapshot", "git", "--", "python", *argv).err

    assert f"{repo.dir}/train.py is the file as it will be then, not the frozen one; name it train.py" in notes(
        repo.dir / "train.py"
    )
    assert "ignored/data is not in the snapshot" in notes("train.py", "ignored/data")
    assert "../outside is not in the snapshot" in notes("../outside")
    assert notes("train.py", "--lr", "0.1", "no such file", repo.dir.parent / "outside") == ""
    (repo.dir / "link").symlink_to("../outside")
    assert notes("link") == ""


# the commit --------------------------------------------------------------------------------------------------------


def test_the_commit_is_recorded_for_every_job(repo):
    """E15: without a snapshot, too: the commit, and whether the work tree differs; an ignored file is no difference, nor is
    another queue in the repository."""
    head = git(repo.dir, "rev-parse", "HEAD")
    repo.script("train.py", "print('second')")
    git(repo.dir, "commit", "-qam", "second")
    second = git(repo.dir, "rev-parse", "HEAD")
    (repo.dir / "x.log").write_text("")
    (repo.dir / "deep").mkdir()
    (repo.dir / "deep/code.py").write_text("")
    git(repo.dir, "add", "deep/code.py")
    git(repo.dir, "commit", "-qm", "third")
    second = git(repo.dir, "rev-parse", "HEAD")
    repo.ok("init", repo.dir / "deep" / ".trainq", root=None)
    clean = repo.submit("--", "true")
    assert code(repo, clean) == {"commit": second, "dirty": False, "snapshot": None}
    assert f"code       {second[:12]}\n" in repo.ok("status", clean).out
    (repo.dir / "new.py").write_text("")
    untracked = repo.submit(
        "--", "true", env={"GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere"}
    )  # as in a hook of git's
    assert code(repo, untracked) == {"commit": second, "dirty": True, "snapshot": None}
    os.unlink(repo.dir / "new.py")
    git(repo.dir, "checkout", "-q", head)
    (repo.dir / "train.py").write_text("print('other')")
    changed = repo.submit("--snapshot", "git", "--", "true")
    found = code(repo, changed)
    assert (found["commit"], found["dirty"]) == (head, True)
    assert f"code       {head[:12]} (dirty), snapshot {found['snapshot'][:12]}\n" in repo.ok("status", changed).out
    assert all(job["code"]["commit"] for job in repo.jobs())


def test_each_line_has_the_commit_of_its_own_directory(repo):
    """E15: lines of one call that run in different work trees; before the first commit, and outside."""
    other, plain = repo.dir.parent / "other", repo.dir.parent / "plain"
    for path in (other, plain):
        path.mkdir()
    git(other, "init", "-q")
    repo.env["GIT_CEILING_DIRECTORIES"] = str(repo.dir.parent.parent) + ":" + str(repo.dir.parent)
    text = "".join(
        json.dumps({"argv": ["true"], "cwd": str(path)}) + "\n" for path in (repo.dir, other, plain, repo.dir)
    )
    repo.ok("submit", "--from", "-", input=text)
    found = [code(repo, number) for number in (1, 2, 3, 4)]
    assert found[0] == found[3]
    assert found[0]["commit"] == git(repo.dir, "rev-parse", "HEAD")
    assert found[1] == {"commit": None, "dirty": False, "snapshot": None}
    assert found[2] == {"commit": None, "dirty": None, "snapshot": None}


def test_git_is_asked_once_for_many_jobs(repo):
    """E15: a call of a thousand jobs starts git once."""
    fake = repo.home / "git"
    fake.write_text(f'#!/bin/sh\necho asked >> {repo.home}/asked\nexec {shutil.which("git")} "$@"\n')
    fake.chmod(0o755)
    env = {"PATH": f"{repo.home}:{repo.env['PATH']}"}
    repo.ok("submit", "--from", "-", input='{"argv": ["true"]}\n{"argv": ["true"], "cwd": "."}\n' * 500, env=env)
    assert (repo.home / "asked").read_text() == "asked\n"
    assert code(repo, 1000)["commit"]


def test_a_large_work_tree_has_its_commit_all_the_same(repo):
    """E15: where git takes too long to look at the files, what is not known is only whether they differ."""
    fake = repo.home / "git"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *status*) sleep 60 ;; esac\nexec {shutil.which("git")} "$@"\n')
    fake.chmod(0o755)
    number = repo.submit("--", "true", env={"PATH": f"{repo.home}:{repo.env['PATH']}"})
    assert code(repo, number) == {"commit": git(repo.dir, "rev-parse", "HEAD"), "dirty": None, "snapshot": None}


@pytest.mark.parametrize("what", ["missing", "refuses", "hangs", "talks"])
def test_git_that_does_not_answer_is_no_error(repo, what):
    """E15: the job goes in, in time, without a commit; nothing of git is left running."""
    path, fake = repo.home / "bin", repo.home / "bin/git"
    path.mkdir()
    script = {"refuses": "echo '# branch.oid 12'; exit 128", "hangs": f"echo $$ > {path}/pid; sleep 60", "talks": "yes"}
    if what != "missing":
        fake.write_text("#!/bin/sh\n" + script[what])
        fake.chmod(0o755)
    env = {"PATH": str(path) if what == "missing" else f"{path}:{repo.env['PATH']}"}
    begun = time.monotonic()
    number = repo.submit("--", shutil.which("true"), env=env)
    assert time.monotonic() - begun < 15
    assert code(repo, number)["commit"] is None
    if what == "hangs":
        until(lambda: not alive(int((path / "pid").read_text())))


# what goes wrong later ---------------------------------------------------------------------------------------------


def first_archive(tq):
    return os.path.join(tq.root, "snapshots", archives(tq)[0])


def spoil(path):
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(path).write_bytes(data)


DAMAGE = {
    "gone": os.unlink,
    "cut": lambda path: os.truncate(path, 10),
    "empty": lambda path: os.truncate(path, 0),
    "spoilt": spoil,
    "no archive": lambda path: Path(path).write_bytes(b"x" * 1000),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_snapshot_ends_the_job_and_not_the_worker(repo, how):
    """E15, DESIGN 2.10: errored data, said in the row and the log; nothing of it runs; the next job does. The same submit
    again mends it, and a retry then runs."""
    (repo.dir / "noise").write_bytes(os.urandom(5000))
    number = repo.submit("--snapshot", "git", "--", "python", "train.py")
    DAMAGE[how](first_archive(repo))
    other = repo.submit("--", "true")
    repo.work()
    job = repo.job(number)
    assert (job["state"], job["reason"], job["side"]) == ("errored", "data", "user")
    assert "snapshot" in job["result"]["error"]
    assert "snapshot" in repo.ok("logs", number).out
    assert not os.path.exists(os.path.join(job["paths"]["run"], "code"))
    assert repo.state(other) == "done"
    repo.submit("--snapshot", "git", "--", "true")
    repo.ok("retry", number)
    repo.work()
    assert repo.ok("logs", number).out == "old\n"


def test_snapshots_are_kept_as_long_as_a_job_names_them(repo):
    """E15: `[keep] snapshots` from the last submit that froze it, and never before its job's row is gone."""
    number = repo.submit("--snapshot", "git", "--", "python", "train.py")
    path = first_archive(repo)
    old = {"TRAINQ_KEEP_SNAPSHOTS": "1h", "TRAINQ_KEEP_FILE_GRACE": "0s"}
    os.utime(path, (1, 1))
    repo.ok("prune", env={"TRAINQ_KEEP_SNAPSHOTS": "0s", "TRAINQ_KEEP_FILE_GRACE": "0s"})
    repo.work()
    repo.ok("prune", "--older-than", "0s", env=old)
    assert os.path.exists(path)  # written a moment ago, whatever its time says
    shown = repo.ok("prune", "--dry-run", "--json", env={**old, "TRAINQ_KEEP_SNAPSHOTS": "0s"}).json
    assert os.path.exists(path)
    done = repo.ok("prune", "--json", env={**old, "TRAINQ_KEEP_SNAPSHOTS": "0s"}).json
    assert (shown["removed"]["snapshots"], done["removed"]["snapshots"]) == (1, 1)
    assert not os.path.exists(path)
    assert os.path.exists(os.path.join(repo.root, "runs", str(number), "1/code/train.py"))  # it goes with its log


def test_a_kill_leaves_nothing_that_a_retry_stumbles_over(repo):
    """E15: a worker that dies between unpacking and start; the next attempt has a copy of its own."""
    number = repo.submit("--snapshot", "git", "--", "python", "train.py")
    died = repo("worker", "--once", env={"TRAINQ_CRASH": "prepare.code_unpacked"})
    assert died.code == -signal.SIGKILL
    repo.work()
    assert repo.ok("logs", number).out == "old\n"
    assert repo.job(number)["attempt"]["n"] == 2


def test_a_frozen_job_freezes_its_own_code_for_the_next(repo):
    """E15: a job that submits another one from its copy, with a snapshot of it."""
    repo.script("train.py", """
        import os, subprocess, sys
        print(open("word").read(), flush=True)
        if len(sys.argv) == 1:
            subprocess.run([sys.executable, "-m", "trainq", "submit", "--snapshot", "copy", "--", "python", "train.py", "last"], check=True)
    """)  # fmt: skip
    (repo.dir / "word").write_text("old")
    repo.submit("--snapshot", "git", "--", "python", "train.py")
    (repo.dir / "word").write_text("new")
    repo.work()
    assert [repo.ok("logs", number).out for number in (1, 2)] == ["old\n2\n", "old\n"]
    assert code(repo, 2)["commit"] is None  # nobody has committed what is in the copy


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="other uids need root and setpriv")
def test_no_member_changes_the_code_of_another(tmp_path):
    """E15, E18: everybody of a group may write the archive, and the document; what was not submitted is not run. Both can
    freeze the same code, and then one archive serves both."""
    from e2e import test_group_rows as group

    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        ann, bob = group.make(Path(name), "--local")
        for member in (ann, bob):
            member.env["GIT_CEILING_DIRECTORIES"] = name
            (member.dir / "train.py").write_text("print('good')")
            os.chown(member.dir / "train.py", member.user_id, member.user_id)
        jobs = [bob.submit("--snapshot", "copy", "--", "python3", "train.py") for _ in range(3)]
        ann.submit("--snapshot", "copy", "--", "python3", "train.py")
        assert len(archives(bob)) == 1
        assert (group.mode(bob.root, "snapshots"), group.mode(first_archive(bob))) == ("2770", "0640")
        bob.ok("worker", "--once")
        assert bob.ok("logs", jobs[0]).out == "good\n"
        assert group.mode(bob.root, "runs", jobs[0], "1", "code") == "2750"
        good = code(bob, jobs[0])["snapshot"]
        (ann.dir / "train.py").write_text("print('evil')")
        evil = code(ann, ann.submit("--snapshot", "copy", "--", "python3", "train.py"))["snapshot"]
        ann.python(
            f"import os, shutil; os.chdir({bob.root + '/snapshots'!r}); os.rename('{good}.tar.zst', 'x'); shutil.copy('{evil}.tar.zst', '{good}.tar.zst')"
        )
        bob.ok("worker", "--once")
        job = bob.job(jobs[1])
        assert (job["state"], job["reason"]) == ("errored", "data")
        assert "not what was submitted" in job["result"]["error"] or "cannot be unpacked" in job["result"]["error"]
        ann.write("UPDATE spec SET doc = replace(doc, ?, ?) WHERE job_id = ?", good, evil, jobs[2])
        bob.ok("worker", "--once")
        assert "its rows were changed" in group.refused(bob, jobs[2])
        assert "evil" not in "".join(bob("logs", number).out for number in jobs)
