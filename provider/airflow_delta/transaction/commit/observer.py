"""The phases of a commit, for code that must run between them."""

from __future__ import annotations


class TransactionObserver:
    """Called in each phase of a transaction, in its thread.

    Raising from a method stops the transaction there. Tests use it to order races; it costs one method call per phase.
    """

    def starting(self, read_version: int) -> None:
        """Called when the transaction begins to read ``read_version``."""

    def preparing(self) -> None:
        """Called when ``commit`` was called, before any check."""

    def before_put(self, version: int, attempt: int) -> None:
        """Called right before the log entry is put as ``version``; attempts count from 1."""

    def written(self, version: int) -> None:
        """Called as soon as the store has said that it wrote the log entry as ``version``."""

    def after_put(self, version: int, landed: bool) -> None:
        """Called after the put as ``version``, won or lost."""

    def committed(self, version: int) -> None:
        """Called when the transaction is committed as ``version``, before post-commit hooks."""

    def aborted(self, error: BaseException) -> None:
        """Called when the commit failed."""
