"""Other tables that a stage reads, at versions that belong together (``DeltaHook.get_versions``).

The versions mostly come as XCom, which is not believed: they are numbers of versions that exist and have every publication on all
of the tables or on none, and a table that only the XCom names must lie below the base path of the stage's connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta import publication as publications
from airflow_delta.contract.kinds import WHOLE_NUMBER, taken
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.tasks.base import Part
from airflow_delta.tasks.declared import Parameters, parameter
from airflow_delta.tasks.stage.new_rows import (
    SourceTables,
    declared_argument,
    declared_sources,
    is_view_name,
    may_name,
    view_name,
)

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import ScanPlan
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import StageView
    from airflow_delta.tasks.stage.work import StageWork

_MOST = 1000


@dataclass(frozen=True, slots=True)
class OtherTable:
    """A table that a stage reads at a version."""

    name: str
    log: DeltaLog
    version: int


class OtherTables:
    """The tables that a stage may read beside its own, by the names in ``read_versions``."""

    def __init__(self, task: Any, tables: Mapping[str, OtherTable], sources: SourceTables) -> None:
        self._task = task
        self._tables = tables
        self.sources = sources

    def __iter__(self) -> Iterator[OtherTable]:
        return iter(self._tables.values())

    def read(self, name: str) -> OtherTable:
        """Return a table, and record that it is read.

        :raises DeltaIllegalArgumentException: if ``read_versions`` does not have it.
        """
        found = self._tables.get(name)
        if found is None:
            known = ", ".join(map(repr, self._tables)) or "none"
            raise DeltaIllegalArgumentException(
                f"The task {self._task.task_id!r} reads the table {name!r}, which its read_versions do not have (they have "
                f"{known}). Pass its version, too: all from one call of DeltaHook.get_versions.",
                table=name,
            )
        self._task.lineage.note_read(found.log.uri, found.version)
        return found

    def scan(self, stage: StageView, table: OtherTable) -> ScanPlan:
        """Plan a read of a table for the SQL of a stage, and record that it is read."""
        found = self.read(table.name)
        return engine.plan_version_scan(found.log, found.version, spark_table_uri=engine.uri_beside(stage, found.log))

    def views(self) -> dict[str, OtherTable]:
        """Return the tables by the names that they have in SQL: the last parts of their locations.

        :raises DeltaIllegalArgumentException: if one is not a name that SQL takes without quotes, or two are the same.
        """
        found: dict[str, OtherTable] = {}
        for table in self:
            view = view_name(table.log)
            why = None
            if not is_view_name(view):
                why = f"{view!r} is not the name of a view"
            elif view in found:
                why = f"it would have the same name in SQL as {found[view].name!r}"
            if why is not None:
                raise table.log.error(
                    DeltaIllegalArgumentException,
                    f"The table {table.name!r} in read_versions of {self._task.task_id!r} cannot be read in SQL: {why}. Read it "
                    "in a function: @task.delta_stage with table.other(...).",
                )
            found[view] = table
        return found


class ReadVersionsParameters(Parameters):
    """The part of a stage that reads other Delta tables than its own.

    Either at given versions, or the rows that this table does not have yet (:mod:`airflow_delta.tasks.stage.new_rows`).

    :param read_versions: their versions by name, as :meth:`airflow_delta.hooks.delta.DeltaHook.get_versions` returns them, so
        that what is read from several tables belongs together. Names are below the base path of the stage's connection; others
        must be written out in the Dag file. (templated)
    :param new_rows: for SQL: tables whose new rows are views: a name, several, or a mapping of names to options of
        :class:`~airflow_delta.tasks.stage.new_rows.NewRowsParameters`. The view is called as the last part of the table's
        location, and the SQL must name it. (templated)
    """

    read_versions: Any = parameter(default=None, templated=True)
    new_rows: Any = parameter(default=None, templated=True)


class ReadVersions(Part, ReadVersionsParameters):
    """The part of a stage that reads other Delta tables than its own."""

    def tables(self, work: StageWork) -> OtherTables:
        """Return the tables, checked.

        :raises DeltaIllegalArgumentException: if it is not a mapping of tables to versions, if a version is not known, if the
            versions do not belong together, or if a table is not one that this stage may read.
        :raises VersionNotFoundException: if the log does not hold a version yet, or no longer does.
        """
        declared = declared_argument(work, "read_versions")
        sources = declared_sources(work)
        if sources.names and not self.task.sql_fields:
            raise DeltaIllegalArgumentException(
                f"new_rows of the task {self.task.task_id!r} are views for SQL, and it calls a function: leave the parameter "
                "out, "
                "and read them with table.new_rows(...). Nothing was staged."
            )
        if self.read_versions is None and declared is None:
            return OtherTables(self.task, {}, sources)
        if self.read_versions is None:  # SQL would find a table of Spark's catalog by the same name
            raise self._error("are None, but the Dag file has some: what looks the versions up has returned nothing")
        if not isinstance(self.read_versions, Mapping) or len(self.read_versions) > _MOST:
            raise self._error(f"must be a mapping of tables to versions, got {str(self.read_versions)[:200]!r}")
        hook = DeltaHook(work.delta_conn_id or work.handle.delta_conn_id or DeltaHook.default_conn_name)
        found: dict[str, OtherTable] = {}
        for name, given in self.read_versions.items():
            version = self._version(name, given)
            if not may_name(name, declared):
                raise self._error(
                    f"names the table {name!r}, which neither the Dag file does nor is a name below the base path of the "
                    f"connection {hook.delta_conn_id!r}. Write the names into the Dag file, with templates for the versions"
                )
            log = hook.get_log(name)
            if log.uri == work.handle.table:
                raise self._error(f"names {name!r}, the table of its own transaction, which is read at the transaction's version")
            if any(other.log.uri == log.uri for other in found.values()):
                raise self._error(f"names the table {log.uri} twice")
            engine.snapshot_of(log, version)
            found[name] = OtherTable(name, log, version)
        publications.check_versions({name: (table.log, table.version) for name, table in found.items()})
        return OtherTables(self.task, found, sources)

    def _version(self, name: Any, given: Any) -> int:
        if not isinstance(name, str) or not name.strip():
            raise self._error(f"names the table {name!r}, which is not a string")
        version: int | None = taken(f"The version of {name!r} in read_versions of {self.task.task_id!r}", given, WHOLE_NUMBER)
        if version is None or version < 0:
            raise self._error(f"has the version {given!r} of {name!r}: there was no such table when the versions were looked up")
        return version

    def _error(self, why: str) -> DeltaIllegalArgumentException:
        return DeltaIllegalArgumentException(f"read_versions of the task {self.task.task_id!r} {why}. Nothing was staged.")
