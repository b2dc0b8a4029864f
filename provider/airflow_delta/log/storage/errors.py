"""Errors of log stores, as their callers tell them apart: unclear, unavailable, cut short, refused."""

from __future__ import annotations


class AmbiguousPutError(OSError):
    """The store did not say whether a put was written (timeout, lost connection, server error).

    Only reading the file can tell. A definite refusal is a :class:`FileExistsError` or another :class:`OSError`.
    """


class StoreUnavailableError(OSError):
    """A request failed and may succeed later: the store is overloaded or cannot be reached, and the client gave up repeating it.

    It says nothing about the file.
    """


class IncompleteReadError(StoreUnavailableError):
    """A file came with another number of bytes than the store says that it has, however often it was read."""


class StoreRefusedError(OSError):
    """The store refused a request for good: nothing was written, and the same request would be refused again."""


class StoreAccessError(StoreRefusedError, PermissionError):
    """The store refused a request for its credentials, or there are none."""
