"""The phases of a commit, for those who need to stand between them."""

from __future__ import annotations


class TransactionObserver:
    """Is told of each phase of a transaction, in its thread, before the phase goes on.

    Raising from a method stops the transaction there. Tests use it to order races; it costs a method call a phase.
    """

    def starting(self, read_version: int) -> None:
        """Note that the transaction reads ``read_version``."""

    def preparing(self) -> None:
        """Note that ``commit`` was called and nothing has been checked."""

    def before_put(self, version: int, attempt: int) -> None:
        """Note that the log entry is about to be put as ``version``; attempts count from 1."""

    def after_put(self, version: int, landed: bool) -> None:
        """Note whether the put as ``version`` won."""

    def committed(self, version: int) -> None:
        """Note that the transaction is ``version``; post-commit hooks have not run."""

    def aborted(self, error: BaseException) -> None:
        """Note that the commit failed."""
