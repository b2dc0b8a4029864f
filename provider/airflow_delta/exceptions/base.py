"""The base of all errors, the kinds that Delta has of them, and who makes them: what knows a table and its version."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypedDict, TypeVar

from airflow_delta.masking import masked


class About(TypedDict, total=False):
    """What every error may carry: the table's URI, and the version."""

    table: str | None
    version: int | None


Retry = Literal["conflict", "lost race", "unknown", "audit", "refused"]
"""What an error means for a retry of its task (:class:`airflow_delta.retry_policies.DeltaRetryPolicy`)."""


class DeltaError(Exception):
    """Base of all errors raised by this provider.

    :param message: what happened, on which table and version, and what to do next.
    :param table: URI of the table, if known.
    :param version: version of the table that the error is about, if there is one.
    :cvar error_class: Delta's name of the error, or ours in the same style.
    :cvar retry: what it means for a retry of its task; ``None``: nothing that is known.
    :cvar refuses_publication: whether a table will have it however often a commit is tried: a publication of several tables
        cannot be on it.
    :cvar may_be_wrong_answer: whether one wrong answer of a store can explain it as well: before it refuses a publication, which
        is for good, the table is looked at again.
    """

    error_class: ClassVar[str] = "DELTA_ERROR"
    retry: ClassVar[Retry | None] = None
    refuses_publication: ClassVar[bool] = False
    may_be_wrong_answer: ClassVar[bool] = False

    def __init__(self, message: str, *, table: str | None = None, version: int | None = None) -> None:
        message = masked(message)
        super().__init__(message)
        self.message = message
        self.table = None if table is None else masked(table)
        self.version = version

    def __str__(self) -> str:
        return f"[{self.error_class}] {self.message}"


ErrorT = TypeVar("ErrorT", bound=DeltaError)


class Subject:
    """What errors are about: a table, at a version where one is known."""

    __slots__ = ()

    def _about(self) -> tuple[str, int | None]:
        """Return the table's URI and the version."""
        raise NotImplementedError

    def error(self, kind: type[ErrorT], message: str, **more: Any) -> ErrorT:
        """Return an error about this table and version.

        :param more: further arguments of that kind of error; ``version`` if it is about another version.
        """
        table, version = self._about()
        return kind(message, **{"table": table, "version": version, **more})


class TableRead(Subject):
    """A table at the version that a transaction reads."""

    __slots__ = ()

    table: str
    read_version: int

    def _about(self) -> tuple[str, int | None]:
        return self.table, self.read_version


class DeltaIllegalArgumentException(DeltaError, ValueError):
    """An argument is not valid: an option, an identifier or a combination."""

    error_class = "DELTA_ILLEGAL_ARGUMENT"
    retry = "refused"


class DeltaAnalysisException(DeltaError, ValueError):
    """A schema, a predicate or a metadata change does not fit the table."""

    error_class = "DELTA_ANALYSIS"
    retry = "refused"
    refuses_publication = True


class DeltaUnsupportedOperationException(DeltaError):
    """The operation is not possible on a table with these features."""

    error_class = "DELTA_UNSUPPORTED_OPERATION"
    retry = "refused"
    refuses_publication = True


class DeltaIllegalStateException(DeltaError, RuntimeError):
    """The table or the transaction is in a state that does not allow this."""

    error_class = "DELTA_ILLEGAL_STATE"
