"""New rows of other tables, as a source of a stage: each row once, in the commit that records how far they were read."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import engine
from airflow_delta.contract.kinds import TRUTH, WHOLE_NUMBER, taken
from airflow_delta.contract.request import SourceScan
from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaUnsupportedOperationException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.tasks.base import TABLE_VIEW
from airflow_delta.tasks.dag_file import Each, argument_of, start_tasks

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.changes.new_rows import NewRows
    from airflow_delta.table.stage.stage_view import StageView
    from airflow_delta.tasks.stage.work import StageWork

_VIEW = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*")


class NewRowsParameters(TypedDict, total=False):
    """Options of ``table.new_rows(name, ...)``, and of the tables in ``new_rows`` of a SQL stage.

    :ivar consumer: who reads. Each consumer has its own position in each source. Default: the Dag id and the id of the
        transaction's group (or of its start task, or of the task that is its own transaction). Name one if these may be renamed.
    :ivar starting_version: where a consumer without a position begins. Default: with all rows of the source. A version: with the
        rows that it and later commits added. ``latest``: with those of commits after the first run.
    :ivar ending_version: do not read on from here.
    :ivar ignore_deletes: pass over commits that only removed rows, instead of failing.
    :ivar skip_change_commits: pass over each commit that removed or changed rows, with the rows that it added.
    :ivar assume_new: a consumer without a position has read nothing, even if the table may have forgotten it. For one run.
    :ivar skip_if_none: skip the task if there are no new rows, rather than commit none; not the first run from ``latest`` on,
        whose commit records where that is.
    """

    consumer: str | None
    starting_version: int | str | None
    ending_version: int | None
    ignore_deletes: bool
    skip_change_commits: bool
    assume_new: bool
    skip_if_none: bool


_FLAGS = ("ignore_deletes", "skip_change_commits", "assume_new", "skip_if_none")
_VERSIONS = ("starting_version", "ending_version")


class SourceTables:
    """The tables whose new rows a stage reads.

    :param views: options by name of those that SQL reads.
    """

    def __init__(self, work: StageWork, views: Mapping[str, NewRowsParameters]) -> None:
        self._work = work
        self._views = views

    def find(self, stage: StageView, name: str, options: NewRowsParameters) -> NewRows:
        """Return the new rows of a table, and record that they are read.

        :raises AirflowSkipException: if there are none, and the task is then to be skipped.
        """
        check_publishes_alone(self._work, f"reads new rows of {name!r}")
        given = _checked(options, f"new_rows({name!r}) of the task {self._task.task_id!r}")
        skips = given.pop("skip_if_none", False)
        given["consumer"] = given.get("consumer") or self._default_consumer()
        found = engine.find_new_rows(stage, self._log(name), engine.NewRowsOptions(**given))
        position = found.position
        self._task.lineage.note_read(position.table, position.version)
        self._task.log.info(
            "Transaction %s: reads the new rows of %s as %r: %s, %s files.",
            stage.handle.transaction_id,
            position.table,
            position.consumer,
            f"all of version {position.version}"
            if position.first is None
            else f"versions {position.first} to {position.version}"
            if position.first <= position.version
            else f"nothing after version {position.before if position.before >= 0 else position.version}",
            len(found.files),
        )
        # What is latest at the first run must be recorded, or each run would begin again.
        begins = position.before < 0 and given.get("starting_version") == "latest"
        if skips and not found.files and not begins:
            raise AirflowSkipException(f"{position.table} has no new rows for {position.consumer!r}.")
        return found

    def views(self) -> dict[str, str]:
        """Return the names of the tables by the names of their views.

        :raises DeltaIllegalArgumentException: if one is not a name that SQL takes without quotes, or two are the same.
        """
        found: dict[str, str] = {}
        for name in self._views:
            log = self._log(name)
            view = view_name(log)
            if not is_view_name(view) or view in found:
                why = f"two of them would be called {view!r}" if view in found else f"{view!r} is not the name of a view"
                raise log.error(
                    DeltaIllegalArgumentException,
                    f"The new rows of {name!r} cannot be read in SQL by {self._task.task_id!r}: {why}. Read them in a function: "
                    "@task.delta_stage with table.new_rows(...).",
                )
            found[view] = name
        return found

    def logs(self) -> dict[str, DeltaLog]:
        """Return the logs of the tables by the names of their views."""
        return {view: self._log(name) for view, name in self.views().items()}

    def scans(self, stage: StageView) -> list[SourceScan]:
        """Plan to read the new rows of all tables, for a job elsewhere."""
        return [self._scan(stage, name) for name in self._views]

    def view_scans(self, stage: StageView, text: str, *, taken: Container[str]) -> list[SourceScan]:
        """Plan to read the new rows of all tables as views of SQL.

        :param text: the SQL, in lower case.
        :param taken: names of other views.
        :raises DeltaIllegalArgumentException: if it does not name one, whose rows would count as read.
        """
        found = self.views()
        for view, name in found.items():
            if view in taken or view not in text:
                why = "read_versions have a table of this name" if view in taken else "the SQL does not name it"
                raise DeltaIllegalArgumentException(f"new_rows make the new rows of {name!r} the view {view!r}, but {why}.")
        return [self._scan(stage, name, view) for view, name in found.items()]

    def _scan(self, stage: StageView, name: str, view: str | None = None) -> SourceScan:
        rows = self.find(stage, name, self._views[name])
        scan = engine.scan_new_rows(rows, spark_table_uri=engine.uri_beside(stage, rows.log))
        return SourceScan(name=name, position=rows.position, scan=scan, view=view)

    @property
    def names(self) -> list[str]:
        """The names of the tables that the task's ``new_rows`` have."""
        return list(self._views)

    @property
    def _task(self) -> Any:
        return self._work.task

    def _log(self, name: str) -> DeltaLog:
        work = self._work
        return DeltaHook(work.delta_conn_id or work.handle.delta_conn_id or DeltaHook.default_conn_name).get_log(name)

    def _default_consumer(self) -> str:
        """Return the consumer of a Dag that names none.

        :raises DeltaIllegalArgumentException: if several transactions of a run would be the same one.
        """
        context = self._work.context
        ti: Any = context["ti"]
        starts = [self._task] if self._task.is_own_transaction else start_tasks(self._task, context)
        if starts is None or len(starts) != 1:
            raise self._unnamed("the Dag file does not show which start task its transaction has")
        (start,) = starts
        if getattr(start, "is_mapped", False) or start.get_closest_mapped_task_group() is not None:
            raise self._unnamed("its transaction is mapped, so that several of a run would share a position")
        if self._task.is_own_transaction and (ti.map_index is not None and ti.map_index >= 0):
            raise self._unnamed("it is mapped, so that several instances would share a position")
        return f"{ti.dag_id}/{start.task_id.removesuffix('.start')}"

    def _unnamed(self, why: str) -> DeltaIllegalArgumentException:
        return DeltaIllegalArgumentException(
            f"The task {self._task.task_id!r} reads new rows, and {why}. Give new_rows a consumer: a name that stays the same "
            "from "
            "run to run, and that no other transaction on the table has."
        )


def check_publishes_alone(work: StageWork, what: str) -> None:
    """Refuse what counts as read from then on, in a transaction that might be taken back.

    :param what: what the task does.
    :raises DeltaUnsupportedOperationException: if the transaction is part of a publication.
    """
    task: Any = work.task
    group: Any = task.task_group
    while group is not None and not getattr(group, "holds_publication", False):
        group = group.parent_group
    if group is not None:
        raise work.handle.error(
            DeltaUnsupportedOperationException,
            f"The task {task.task_id!r} {what}, and its transaction is part of the publication {group.group_id!r}, which could "
            f"not take it back. Nothing was staged. Do it in a transaction of table {work.handle.table} alone.",
        )


def declared_sources(work: StageWork) -> SourceTables:
    """Return the tables whose new rows a stage may read, with those of its parameter ``new_rows``.

    :raises DeltaIllegalArgumentException: if the parameter names a table that neither the Dag file names nor lies below the
        connection's base path.
    """
    task: Any = work.task
    declared = declared_argument(work, "new_rows")
    given = given_sources(task, getattr(task, "new_rows", None), declared)
    for name in given:
        if not may_name(name, names_of(declared)):
            raise DeltaIllegalArgumentException(
                f"new_rows of the task {task.task_id!r} name the table {name!r}, which neither the Dag file does nor is a name "
                "below the base path of the stage's connection. Write the names into the Dag file. Nothing was staged."
            )
    return SourceTables(work, given)


def declared_argument(work: StageWork, name: str) -> Any:
    """Return what the Dag file says of a parameter, not rendered; ``None`` if it may say nothing."""
    dag: Any = work.context.get("dag")
    definition = None if dag is None else dag.task_dict.get(work.task.task_id)
    given = None if definition is None else argument_of(definition, name, None)
    return None if isinstance(given, Each) and given.key is not None else given


def may_name(name: str, declared: Any) -> bool:
    """Return whether a parameter that may come as XCom may name a table.

    :param declared: what the Dag file says.
    """
    if isinstance(declared, Mapping) and name in declared:
        return True
    return not ("://" in name or name.startswith("/") or {"..", "."} & set(re.split(r"[/\\]", name)))


def view_name(log: DeltaLog) -> str:
    """Return what a table is called in SQL: the last part of its location."""
    return log.uri.rstrip("/").rpartition("/")[2].lower()


def is_view_name(name: str) -> bool:
    """Return whether SQL takes a name without quotes, and it is not that of the transaction's own table."""
    return _VIEW.fullmatch(name) is not None and name != TABLE_VIEW


def names_of(value: Any) -> dict[str, Any]:
    """Return the tables of ``new_rows`` with their options, however they are given; no tables if it is not a literal."""
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, Mapping):
        return {str(name): options for name, options in value.items()}
    return {name: {} for name in map(str, value)} if isinstance(value, Sequence) else {}


def given_sources(task: Any, value: Any, declared: Any) -> dict[str, NewRowsParameters]:
    """Return the tables of ``new_rows`` with their options, checked.

    :param declared: what the Dag file says.
    :raises DeltaIllegalArgumentException: if it names no table, or an option does not exist.
    """
    found = names_of(value)
    if not found:
        if value is None and declared is None:
            return {}
        raise DeltaIllegalArgumentException(
            f"new_rows of the task {task.task_id!r} are {value!r}: expected a table, several, or a mapping of tables to options."
        )
    for name, options in found.items():
        if not name.strip() or name == "None":
            raise DeltaIllegalArgumentException(f"new_rows of the task {task.task_id!r} name the table {name!r}.")
        _checked(options, f"new_rows[{name!r}] of the task {task.task_id!r}")
    return found


def _checked(options: Any, whose: str) -> dict[str, Any]:
    """Return options, with the texts of templates as what they say."""
    if not isinstance(options, Mapping) or (unknown := sorted(set(options) - set(NewRowsParameters.__annotations__))):
        what = f"unknown: {', '.join(unknown)}" if isinstance(options, Mapping) else f"not a mapping: {options!r}"
        known = ", ".join(NewRowsParameters.__annotations__)
        raise DeltaIllegalArgumentException(f"The options of {whose} are {what}. They may be {known}.")
    found = dict(options)
    for name in ("consumer", *_VERSIONS):
        if isinstance(found.get(name), str) and found[name].strip() in ("", "None"):
            raise DeltaIllegalArgumentException(
                f"{name} of {whose} is {found[name]!r}: its template has no value in this run. Give it one, or leave it out."
            )
    for name in _VERSIONS:
        if name in found and found[name] != "latest":
            found[name] = taken(f"{name} of {whose}", found[name], WHOLE_NUMBER)
    for name in _FLAGS:
        if name not in found:
            continue
        given = str(found[name]).strip().lower() not in ("none", "")
        found[name] = given and taken(f"{name} of {whose}", found[name], TRUTH)
    return found
