"""What the tasks of a publication share: its tables, each checked against its own start task, and what Airflow learns about them.

XCom is not believed: a handle must be what its start task would have returned, and a report must come from a stage of that start
task. Which tables a publication has says the Dag file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from airflow_delta.assets.delta import delta_asset, delta_asset_uri
from airflow_delta.assets.events import event_extra
from airflow_delta.contract.payloads import AbortResult
from airflow_delta.exceptions import (
    CommitStateUnknownException,
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaUnsupportedOperationException,
    HandleMismatchException,
    MaxCommitRetriesExceededException,
    PublicationPendingException,
    PublicationSplitException,
    PublicationUndoneException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.tasks.dag_file import start_tasks
from airflow_delta.tasks.partition_events import add_partition_events, event_keys, with_keys
from airflow_delta.tasks.restart.restart import Restart
from airflow_delta.tasks.trust.handle import open_transaction
from airflow_delta.tasks.trust.received import flatten_reports
from airflow_delta.tasks.trust.reports import expected_stages, stage_tasks, valid_reports

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.publication import PublicationResult

MAX_TABLES = 32
"""Tables of a publication."""

STATE_KEY = "delta_publication"
"""Key in the state store of a commit task, and of its XCom: the publication and what has become of it."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a publication, as a running task knows it.

    :param start: its start task in the Dag file.
    :param outputs: outputs of its stages in the Dag file.
    :param writes: valid reports of its stages.
    :param expected: the state of each stage that must have reported; ``None`` if that is not known.
    """

    start: Any
    log: DeltaLog
    handle: TransactionHandle
    outputs: Sequence[Any] = ()
    writes: tuple[StagedWrite, ...] = ()
    expected: Mapping[tuple[str, int], str | None] | None = None

    @property
    def name(self) -> tuple[str | None, str | None]:
        """The table as the Dag names it, and its connection."""
        return self.handle.given_table, self.handle.delta_conn_id


def open_tables(task: Any, context: Context) -> list[PublishedTable]:
    """Return the tables of a publication whose start tasks have returned a handle, in the order of the Dag file.

    :param task: has ``transactions``, rendered.
    :raises HandleMismatchException: if a handle is not that of its start task.
    :raises DeltaIllegalArgumentException: if ``transactions`` in the Dag file are not outputs of start tasks, one for each table.
    """
    starts = _starts(task, context)
    outputs = getattr(context["dag"].task_dict[task.task_id], "staged", None) or [()] * len(starts)
    found = []
    for start, given, reports in zip(starts, task.transactions, outputs, strict=True):
        if given is None:
            continue
        one = SimpleNamespace(transaction=given, task_id=task.task_id, delta_conn_id=None, changes_table=task.changes_table)
        log, handle = open_transaction(one, context, start=start)
        if log.managed_as is not None:
            raise log.error(
                DeltaUnsupportedOperationException,
                f"Table {log.managed_as} ({log.uri}) is catalog-managed and cannot be one of several that are published "
                "together. Give it a transaction of its own.",
            )
        found.append(PublishedTable(start, log, handle, reports))
    twice = {table.handle.table for table in found}
    if len(twice) < len(found):
        raise DeltaIllegalArgumentException(
            f"The publication of {task.task_id!r} has one of its tables twice ({', '.join(sorted(twice))}). Put the stages for a "
            "table into one transaction."
        )
    return found


def _starts(task: Any, context: Context) -> list[Any]:
    """Return the start task in the Dag file of each table."""
    definition: Any = context["dag"].task_dict[task.task_id]
    starts = start_tasks(task, context) or []
    if len(starts) != len(task.transactions) or len(starts) != len(definition.transactions):
        raise DeltaIllegalArgumentException(
            f"transactions of {task.task_id!r} must be the outputs of start tasks, one for each table: which tables a "
            "publication has is not left to XCom. Use delta_publication."
        )
    return starts


def with_reports(task: Any, context: Context, tables: Iterable[PublishedTable]) -> list[PublishedTable]:
    """Return the tables with what their stages have reported.

    :param task: has ``staged``, rendered: the reports of each table.
    :raises HandleMismatchException: if a report does not come from a stage of its table.
    """
    found = []
    for table, given in zip(tables, task.staged, strict=True):
        if table.handle.committed is not None:
            found.append(table)
            continue
        writes = valid_reports(context, table.handle, flatten_reports(given))
        own = set(stage_tasks(table.outputs))
        if strange := sorted({write.task_id for write in writes} - own):
            raise table.handle.error(
                HandleMismatchException,
                f"The task {task.task_id!r} got reports of {', '.join(strange)} for table {table.handle.table}, but in the Dag "
                f"file only {', '.join(sorted(own))} write to it. Nothing was committed. An XCom was altered.",
            )
        expected = expected_stages(task, context, writes, allow_skipped=False, outputs=table.outputs)
        found.append(PublishedTable(table.start, table.log, table.handle, table.outputs, tuple(writes), expected))
    return found


class PublicationRestart(Restart):
    """Restarts a publication: all its start tasks, and everything after them."""

    abort: Callable[[], Any]
    """Gives the publication up at all its tables; set before it may be needed."""

    def _give_up(self, log: DeltaLog, handle: TransactionHandle) -> AbortResult:
        given_up = self.abort()
        published = given_up.outcome in ("published", "split")  # split: final until a person acts
        return AbortResult(
            transaction_id=handle.transaction_id,
            table=log.uri,
            outcome="committed" if published else "marked",
            reason=given_up.reason,
        )


def note_outcome(task: Any, context: Context, note: Mapping[str, Any]) -> None:
    """Leave what has become of a publication in the task's state store and as XCom; never fails."""
    try:
        context["ti"].xcom_push(key=STATE_KEY, value=dict(note))
        store: Any = context.get("task_state_store")
        if store is not None:
            store.set(STATE_KEY, dict(note))
    except Exception:  # the log of the tables holds it
        task.log.warning("Could not note the outcome of the publication", exc_info=True)


def failed_outcome(error: DeltaError) -> str:
    """Return what has become of a publication whose commit ends with an error."""
    if isinstance(error, PublicationUndoneException):
        return "undone"
    if isinstance(error, PublicationSplitException):
        return "split"
    if isinstance(error, PublicationPendingException | CommitStateUnknownException | MaxCommitRetriesExceededException):
        return "pending"
    return "refused"


def emit_tables(task: Any, context: Context, tables: Sequence[PublishedTable], result: PublicationResult) -> None:
    """Fill in the asset events of a publication: each table's with its own commit, and the versions of all."""
    versions = {uri: commit.version for uri, commit in _commits(result)}
    shared = {"publication": result.publication, "publication_versions": versions}
    extras = {uri: {**event_extra(commit), **shared} for uri, commit in _commits(result)}
    by_asset: dict[str, dict[str, Any]] = {}
    keys_of: dict[str, tuple[str, ...] | None] = {}
    for table in tables:
        commit = result.tables.get(table.handle.table)
        if commit is None:  # published, and dropped since
            continue
        keys = event_keys(task, table.log, commit)
        extra = extras[table.handle.table] = with_keys(extras[table.handle.table], keys)
        keys_of[delta_asset_uri(table.handle.table)] = keys_of[_asset_of(table).uri] = keys
        by_asset[delta_asset_uri(table.handle.table)] = extra
        if isinstance(table.handle.given_table, str) and table.handle.given_table.strip():
            by_asset[_asset_of(table).uri] = extra
    for outlet in task.outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra.update(by_asset.get(outlet.uri, shared))
            add_partition_events(context, outlet, keys_of.get(outlet.uri))
        elif isinstance(outlet, AssetAlias):
            for table in tables:
                if table.handle.table in extras:
                    context["outlet_events"][outlet].add(_asset_of(table), extra=extras[table.handle.table])


def outlets_of(task: Any, table: PublishedTable) -> list[Asset]:
    """Return the outlets that are the asset of a table, by its location or by the Dag's name for it."""
    uris = (delta_asset_uri(table.handle.table), _asset_of(table).uri)
    return [outlet for outlet in task.outlets if isinstance(outlet, Asset) and outlet.uri in uris]


def _asset_of(table: PublishedTable) -> Asset:
    """Return a table's asset by the Dag's name for it, so that it equals a static outlet of that name."""
    name, conn_id = table.name
    return delta_asset(name, conn_id) if isinstance(name, str) and name.strip() else delta_asset(table.handle.table)


def _commits(result: PublicationResult) -> list[tuple[str, CommitResult]]:
    return [(uri, commit) for uri, commit in result.tables.items() if commit is not None]
