"""A training queue without a server.

Nothing is imported here: training code does `from trainq import job`, and every short command starts here.
"""

from trainq.version import __version__

__all__ = ["__version__"]
