"""The trainq that a job's interpreter finds when it has none of its own.

The worker appends the directory above this one to the job's PYTHONPATH. That comes before site-packages, so
this module stands in front of an installed trainq: it finds that one, becomes it, and adds the worker's
package only as the place where modules are looked for last. Without an installed one the worker's package is
all there is: `from trainq import job` works in an environment that knows nothing of trainq. Kept to what
Python 3.9 reads.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder


def _is_guest(entry: object) -> bool:
    """Is this entry of sys.path such a directory? There are two in a job of a worker that is a job itself."""
    return isinstance(entry, str) and ("/" + entry.rstrip("/")).endswith("/trainq/guest")


def _up(path: str, levels: int) -> str:
    return path.rsplit("/", levels)[0]


def _become_the_installed() -> None:
    module = sys.modules[__name__]
    package = _up(__file__, 3)
    module.__path__ = [package]
    entries = [entry for entry in sys.path if not _is_guest(entry)]
    for finder in sys.meta_path:
        spec = finder.find_spec("trainq", entries if finder is PathFinder else None)
        if spec is None or (spec.origin and _is_guest(_up(spec.origin, 2))):
            continue
        module.__path__ = [*(spec.submodule_search_locations or ()), package]
        if spec.origin and spec.loader is not None:
            module.__file__ = spec.origin
            spec.loader.exec_module(module)
            module.__spec__ = spec
        return


_become_the_installed()

if "__version__" not in globals():
    from trainq.version import __version__ as __version__
