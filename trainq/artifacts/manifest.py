"""The manifest of a model: what lies in its directory, with digests, and where it comes from.

What must stay true: the manifest is written last, when every file and directory it speaks of is on the disk;
so a directory that has one is complete. It names what is there by paths inside the directory, and a reader
never opens a path because a manifest says so.

A job may put regular files, directories and links that stay inside into its model; pipes, sockets, devices
and links that lead out are refused, since a copy or a rename would not carry them. A link inside that is
written with an absolute path, or by way of the outside, is made relative: the directory is renamed when it is
published. `manifest.json` at the top is ours: a file of that name that trainq did not write is refused.
"""

from __future__ import annotations

import json
import math
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base import crash, files, oserrors, sharing, trees, words
from trainq.base.errors import Damaged, TrainqError, Unwritable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MANIFEST = "manifest.json"
SCHEMA = "trainq-model/1"


class ModelError(TrainqError):
    """What a job left in its model directory cannot be published."""

    exit, word = 2, "bad_model"
    hint = "put regular files, directories and links between them into TRAINQ_MODEL_DIR, nothing else"


class Sealed(NamedTuple):
    """A staged model that is complete and on the disk."""

    dir: str
    manifest: dict[str, Any]
    files: list[dict[str, Any]]
    """`path size sha256` of each; `path_b64` too if the name is not UTF-8."""
    size: int
    """Bytes of all files without the manifest."""
    digest: str
    """sha256 of the manifest's own bytes."""


def seal(staged: str, facts: Mapping[str, Any]) -> Sealed | None:
    """Hash and sync what a job left in `staged`, then write its manifest with `facts`; None if it left
    nothing.

    `facts` is what JSON can hold (NaN and infinities become null). May be called again after an error. Raises
    `ModelError` for what cannot be published (the user's side), the errors of sick storage for the rest; the
    directory stays as it is then, so that nothing computed is lost.
    """
    with oserrors.reporting(staged):
        try:
            kind = os.lstat(staged).st_mode
        except FileNotFoundError:
            return None
        if not stat.S_ISDIR(kind):
            raise ModelError(f"model directory {words.printable(staged)} was replaced by something else")
        # A directory that its owner may not write cannot be renamed into another one.
        if sharing.is_for_group(os.path.dirname(staged)):
            trees.give_to_group(staged)
        else:
            os.chmod(staged, 0o700)
        found, links = _hashed(staged)
        if not found and not links:
            return None
        crash.point("publish.hashed")
        return _written(staged, facts, found, links)


def _hashed(staged: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    real = os.path.realpath(staged)
    found: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []
    directories = []
    for entry in trees.walk(staged):
        if entry.name == MANIFEST:
            _check_is_ours(entry)
        elif entry.kind == "file":
            found.append(_file(entry))
        elif entry.kind == "directory":
            directories.append(entry.path)
        elif entry.kind == "link":
            links.append(_named(entry.name) | {"target": _kept_inside(real, entry)})
        else:
            raise ModelError(f"{words.printable(entry.name)} in the model is a pipe, a socket or a device")
    # From the leaves up, so that no name is on the disk before what it names.
    for directory in reversed(directories):
        files.sync_directory(directory)
    return found, links


def _check_is_ours(entry: trees.Entry) -> None:
    """A manifest of an earlier call, or copied from a published version, is written anew."""
    try:
        read_manifest(os.path.dirname(entry.path))
    except Damaged:
        raise ModelError(
            f"the model has a {MANIFEST} of its own, and this name is trainq's",
            hint="give the file another name or put it into a directory of the model",
        ) from None


def _file(entry: trees.Entry) -> dict[str, Any]:
    try:
        digest, size = _digest(entry.path, durably=True)
    except Unwritable as error:
        raise ModelError(f"{words.printable(entry.name)} in the model cannot be read") from error
    return _named(entry.name) | {"size": size, "sha256": digest}


def _digest(path: str, *, durably: bool) -> tuple[str, int]:
    import hashlib

    digest = hashlib.sha256()
    size = 0
    fd = files.open_regular(path)
    try:
        for block in files.blocks(fd, path):
            digest.update(block)
            size += len(block)
        if durably:
            files.sync(fd, path)
    finally:
        os.close(fd)
    return digest.hexdigest(), size


def _kept_inside(real: str, entry: trees.Entry) -> str:
    """Where a link points to, seen from itself; `ModelError` if outside of the model."""
    target = os.readlink(entry.path)
    reached = os.path.realpath(entry.path)
    if reached != real and not reached.startswith(real + os.sep):
        raise ModelError(
            f"{words.printable(entry.name)} in the model links to {words.printable(target)}, outside of it",
            hint="copy what it points to into TRAINQ_MODEL_DIR",
        )
    lexical = os.path.normpath(os.path.join(os.path.dirname(entry.name), target))
    if os.path.isabs(target) or lexical == ".." or lexical.startswith("../"):
        target = os.path.relpath(reached, os.path.realpath(os.path.dirname(entry.path)))
        anew = os.path.join(os.path.dirname(entry.path), files.temporary_name())
        files.symlink(target, anew)
        files.replace(anew, entry.path)
    return words.printable(target)


def _named(name: str) -> dict[str, Any]:
    raw = os.fsencode(name)
    try:
        return {"path": raw.decode()}
    except UnicodeDecodeError:
        import base64

        return {"path": raw.decode("utf-8", "replace"), "path_b64": base64.b64encode(raw).decode()}


def _path_of(entry: Mapping[str, Any]) -> str:
    if "path_b64" in entry:
        import base64

        return os.fsdecode(base64.b64decode(entry["path_b64"]))
    return str(entry["path"])


def _written(staged: str, facts: Mapping[str, Any], found: list[dict[str, Any]], links: list[dict[str, Any]]) -> Sealed:
    import hashlib

    size = sum(entry["size"] for entry in found)
    manifest = {"schema": SCHEMA} | _plain(dict(facts)) | {"size": size, "files": found, "links": links}
    manifest["schema"] = SCHEMA
    data = json.dumps(manifest, indent=1, allow_nan=False).encode() + b"\n"
    files.write_durably(os.path.join(staged, MANIFEST), data)
    crash.point("publish.sealed")
    return Sealed(staged, manifest, found, size, hashlib.sha256(data).hexdigest())


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): _plain(held) for name, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(held) for held in value]
    return value


def read_manifest(directory: str) -> dict[str, Any]:
    """The manifest of a version; `Damaged` if it is missing or torn."""
    path = os.path.join(directory, MANIFEST)
    try:
        manifest = json.loads(files.read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{words.printable(path)} is not a manifest: {error}") from error
    except OSError as error:
        raise Damaged(f"{words.printable(directory)} has no manifest") from error
    if (
        not isinstance(manifest, dict)
        or manifest.get("schema") != SCHEMA
        or not isinstance(manifest.get("files"), list)
        or not isinstance(manifest.get("links"), list)
    ):
        raise Damaged(f"{words.printable(path)} is not a manifest of trainq")
    return manifest


def verify(directory: str, *, deep: bool = True) -> list[str]:
    """What is wrong with a version, one line each; empty if it is whole. `deep=False` compares sizes only."""
    with oserrors.reporting(directory):
        try:
            manifest = read_manifest(directory)
            wanted = {_path_of(entry): entry for entry in (*manifest["files"], *manifest["links"])}
        except Damaged as error:
            return [error.message]
        except (KeyError, TypeError, ValueError) as error:
            return [f"{MANIFEST} holds an entry that cannot be read: {error}"]
        problems: list[str] = []
        for entry in trees.walk(directory):
            if entry.kind != "directory" and entry.name != MANIFEST:
                problems += _compared(entry, wanted.pop(entry.name, None), deep=deep)
        problems += [f"{words.printable(name)} is missing" for name in wanted]
        return problems


def _compared(entry: trees.Entry, wanted: Mapping[str, Any] | None, *, deep: bool) -> Iterator[str]:
    name = words.printable(entry.name)
    if wanted is None:
        yield f"{name} is not in the manifest"
    elif "target" in wanted:
        if entry.kind != "link" or words.printable(os.readlink(entry.path)) != wanted["target"]:
            yield f"{name} is not the link it was"
    elif entry.kind != "file":
        yield f"{name} is not a regular file any more"
    elif (size := os.lstat(entry.path).st_size) != wanted.get("size"):
        yield f"{name} has {size} bytes, not {wanted.get('size')}"
    elif deep and _digest(entry.path, durably=False)[0] != wanted.get("sha256"):
        yield f"{name} has changed: its digest differs"
