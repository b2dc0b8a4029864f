"""Errors of the pages, as a status and advice."""

from __future__ import annotations

from collections.abc import Collection

from airflow.sdk import __version__, conf

from airflow_delta.task_notes import masked_by_airflow

_MAX_DETAIL = 1500
_MOMENT = 5
"""Seconds."""


def cannot_be_shown(what: str) -> str:
    """Return a sentence about what pages lack because this Airflow does not have where it is."""
    return f"{what} cannot be shown on this Airflow (Task SDK {__version__})."


class PageProblem(Exception):
    """An error page.

    :param status: HTTP status.
    :param title: what happened, in a few words.
    :param advice: what to do about it.
    :param detail: the error message of the engine or the storage.
    :param retry_after: seconds after which the same request may be answered (``Retry-After``).
    """

    def __init__(self, status: int, title: str, advice: str = "", detail: str = "", *, retry_after: int | None = None) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.advice = advice
        self.detail = masked_by_airflow(detail)
        self.retry_after = retry_after


def unknown_table(table: str) -> PageProblem:
    """Return the answer for a table that is unknown or that this user may not see, which looks the same."""
    return PageProblem(
        404,
        "This table is not known",
        "A table is shown if it is an Airflow asset (an outlet of the task that commits; a delta_transaction has it by default) "
        "or below the base path of a connection of type delta, and you may read that asset or connection.",
        table,
    )


def of_error(error: BaseException, table: str) -> PageProblem:
    """Return the page for an error of the engine or of the storage."""
    if isinstance(error, PageProblem):
        return error
    return of_kinds([kind.__name__ for kind in type(error).__mro__], f"{type(error).__name__}: {error}", table)


def of_kinds(kinds: Collection[str], detail: str, table: str) -> PageProblem:
    """Return the page for an error that happened in another process.

    :param kinds: names of its class and of those above.
    :param detail: the error in its own words.
    """
    detail = masked_by_airflow(detail)[:_MAX_DETAIL]
    if "OutsideBasePath" in kinds:
        return unknown_table(table)
    if "ReadLimitException" in kinds:
        return PageProblem(
            413,
            "Too large to show",
            "The pages limit what they read on the API server. The command line has no such limit: airflow delta.",
            detail,
        )
    if (problem := _of_rows(kinds, detail)) is not None:
        return problem
    if "DeltaTableNotFoundException" in kinds:
        return gone(table, detail)
    if "VersionNotFoundException" in kinds:
        return PageProblem(404, "This commit is not in the log", "It was cleaned up, or does not exist yet.", detail)
    if "DeltaLogCorruptedException" in kinds:
        return PageProblem(502, "The log of this table is damaged", "Restore the file named below from a backup.", detail)
    if "DeltaUnsupportedTableFeatureException" in kinds or "InvalidProtocolVersionException" in kinds:
        return PageProblem(502, "This table needs a newer reader", "Upgrade the provider on the API server.", detail)
    if "FileNotFoundError" in kinds or "NotADirectoryError" in kinds:
        return gone(table, detail)
    if "PermissionError" in kinds:
        return PageProblem(502, "The storage refused access", "Check the credentials of the connection of type delta.", detail)
    if "ReaderDiedError" in kinds:
        return PageProblem(502, "The log of this table cannot be read", "The process reading it has ended. Try again.", detail)
    if "OSError" in kinds or "DeltaIllegalArgumentException" in kinds:
        return PageProblem(
            502,
            "The storage of this table cannot be reached",
            "The API server reads the log itself: it needs network access to the storage and, if that requires credentials, a "
            "connection of type delta whose base path covers the table.",
            detail,
        )
    return PageProblem(502, "The log of this table cannot be read", "See the log of the API server for the full error.", detail)


def _of_rows(kinds: Collection[str], detail: str) -> PageProblem | None:
    """Return the page for an error with the rows of a commit; ``None`` if it is another error."""
    if "RowsGoneError" in kinds:
        advice = "VACUUM deletes files that no version within its retention period needs. The table itself is not affected."
        return PageProblem(410, "The files of this commit are gone", advice, detail)
    if "RowKeysError" in kinds:
        return PageProblem(400, "These columns cannot identify a row", "Name columns of the table.", detail)
    if "StagedFilesGoneError" in kinds:
        advice = "An abort deletes them when a run fails. To stage again, clear the start task with everything downstream."
        return PageProblem(410, "Staged files of this transaction are gone", advice, detail)
    if "NotStagedError" in kinds:
        return PageProblem(409, "The commit would refuse this transaction", "The detail says why.", detail)
    if "RowsNotShownError" in kinds:
        return PageProblem(422, "These rows cannot be shown here", detail=detail)
    return None


def rows_refused(table: str) -> PageProblem:
    """Return the answer to a user who may see a table but not read its rows."""
    return PageProblem(
        403,
        "You may not read rows of this table",
        "Rows require permission to edit the connection that reaches the table, or delta_default if it has none.",
        table,
    )


def not_open() -> PageProblem:
    """Return the answer for a transaction that is not open, or whose Dag this user may not see, which looks the same."""
    return PageProblem(
        404,
        "This transaction is not open",
        "It is committed, was begun again, or belongs to a run that Airflow no longer has or that you may not see. The table's "
        "page shows what became of it.",
    )


def kept_elsewhere() -> str:
    """Return a sentence about what pages lack because an XCom backend keeps what tasks return, and only tasks may ask it."""
    backend = conf.get("core", "xcom_backend", fallback="")
    return (
        "Ids, keys and staged rows of transactions cannot be shown: what their tasks returned is kept by the XCom backend "
        f"{backend}, which only tasks read."
    )


def reports_refused(dag_id: str) -> PageProblem:
    """Return the answer to a user who may see a run, but not what its tasks report."""
    return PageProblem(
        403,
        "You may not see what this transaction has staged",
        f"That requires permission to read the XComs of the Dag {dag_id}.",
    )


def with_command(problem: PageProblem, command: str) -> PageProblem:
    """Return a problem with rows, with the command that has no such limit if that helps."""
    if problem.status not in (413, 422, 504):
        return problem
    if problem.status == 504:
        advice = "The API server reads rows only for a few seconds."
    else:
        advice = "The API server reads few rows." if problem.status == 413 else ""
    return PageProblem(problem.status, problem.title, f"{advice} On the command line: {command}".strip(), problem.detail)


def gone(table: str, detail: str = "") -> PageProblem:
    """Return the page for a table that does not exist."""
    return PageProblem(404, "There is no table here", "It was dropped or moved, or nothing is committed yet.", detail or table)


def timed_out(table: str, seconds: float) -> PageProblem:
    """Return the page for a storage that does not answer."""
    return PageProblem(
        504,
        "The storage did not answer in time",
        f"No answer within {seconds:g} seconds. Try again; a smaller page reads fewer commits.",
        table,
    )


def busy(table: str) -> PageProblem:
    """Return the page for a connection with too many waiting reads."""
    return PageProblem(503, "Too many pages are waiting for this storage", "Try again in a moment.", table, retry_after=_MOMENT)


def overloaded() -> PageProblem:
    """Return the page for a request that too many others are before."""
    return PageProblem(503, "Too many pages are asked for at once", "Try again in a moment.", retry_after=_MOMENT)
