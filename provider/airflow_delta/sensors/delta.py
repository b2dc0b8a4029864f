"""Wait for a version of a Delta table: a given one, or the next matching commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import PokeReturnValue, conf

from airflow_delta import engine
from airflow_delta.contract.kinds import LOCATION, WHOLE_NUMBER
from airflow_delta.contract.sql_parameters import SQL_PARAMETERS
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.sensors.watching import NextSensor
from airflow_delta.tasks.declared import parameter
from airflow_delta.triggers.commits import commit_conditions, commit_report, operation_names
from airflow_delta.triggers.delta import DeltaTableVersionTrigger
from airflow_delta.triggers.watching import refuse_previews

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.observe.watch import CommitConditions, Match, Watermark
    from airflow_delta.tasks.declared import Taken

XCOM_KEY = "delta_table_version"
"""Key of the XCom with only the version number."""


class DeltaTableVersionSensor(NextSensor):
    """Wait for a commit to a Delta table by any writer. Reads only the log, neither data nor the list of files.

    With ``version`` it waits until the table has that version. Otherwise it waits for the first commit after ``after_version``
    that has one of the operations, touched one of the partitions, and changed rows.

    Returns the commit as JSON, the same in every mode: the fields of
    :class:`~airflow_delta.table.observe.commit_summary.CommitSummary` (``version``, ``timestamp``, ``operation``, ``partitions``,
    ``num_records``, ``tags``, ...) with ``observed_version`` (the latest one), ``table``, ``table_identity`` (its id) and
    ``dedupe_key``. The XCom ``delta_table_version`` has only the version number, for reads at that version.

    :param table: URI, absolute path, or name below the connection's base path. The table need not exist yet. (templated)
    :param delta_conn_id: connection of type ``delta``. (templated)
    :param version: wait for this version, whatever its operation. (templated)
    :param after_version: wait for a commit after this version; -1 includes all. Default: the table's version when the sensor
        first looks, which is kept in the task state store across reschedules, retries and clears. (templated)
    :param operation: Delta operations to wait for, one or several, such as ``WRITE`` or ``["MERGE", "DELETE"]``, in any case;
        default: all. (templated)
    :param partitions: Spark SQL predicate over partition columns, such as ``day >= '2026-01-01'``: only commits that touched a
        partition that may satisfy it. (templated)
    :param parameters: values of named parameters (``:day``) in ``partitions``, as of a task with SQL. (templated)
    :param data_change_only: ignore commits that changed no rows (OPTIMIZE, ALTER TABLE, CREATE TABLE), even if ``operation``
        names them.
    :param fail_if_missing: fail if there is no table at the first look.
    :param deferrable: wait in the triggerer; default: ``[operators] default_deferrable``. It looks every ``poke_interval``
        seconds, for at most ``timeout`` seconds.

    The other parameters are those of Airflow's ``BaseSensorOperator``.
    """

    ui_color = "#e6f1f2"
    state_key = "delta_table_version"

    table: str = parameter(templated=True, kind=LOCATION)
    delta_conn_id: str = parameter(default=DeltaHook.default_conn_name, templated=True)
    version: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    operation: str | Sequence[str] | None = parameter(default=None, templated=True)
    partitions: str | None = parameter(default=None, templated=True)
    parameters: Mapping[str, Any] | None = parameter(default=None, templated=True, kind=SQL_PARAMETERS)
    data_change_only: bool = parameter(default=True)
    fail_if_missing: bool = parameter(default=False)
    deferrable: bool = parameter(default=conf.getboolean("operators", "default_deferrable", fallback=False))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._table_log: DeltaLog | None = None
        self._seen: Watermark | None = None

    def watched(self) -> Sequence[str]:
        """Return the table."""
        return (self.table,)

    def execute(self, context: Context) -> Any:
        """Wait, and return the commit.

        :raises DeltaIllegalArgumentException: if the arguments contradict each other.
        :raises DeltaTableNotFoundException: if there is no table and ``fail_if_missing`` is set.
        :raises VersionNotFoundException: if commits were cleaned up before they were looked at.
        :raises PredicateException: if ``partitions`` does not parse or names an unknown column.
        """
        self._check_arguments(context)
        if self.deferrable:
            if found := self.look_once(context):
                return self._finish(context, found.xcom_value)
            self._defer(context)
        return self._finish(context, super().execute(context))

    def _defer(self, context: Context) -> NoReturn:
        # After a failed first look nothing is known; the trigger then finds the current version itself.
        seen = self._seen if self._seen is not None or self.version is not None else self.known(context)
        self.defer(
            trigger=DeltaTableVersionTrigger(
                self.table,
                delta_conn_id=self.delta_conn_id,
                after_version=None if seen is None else seen.version,
                table_id=None if seen is None else seen.table_id,
                operation=self.operation,
                partitions=self.partitions,
                data_change_only=self.data_change_only,
                poll_interval=self.seconds_between_looks,
                version=self.version,
                single_event=True,
            ),
            method_name="execute_complete",
            timeout=self.longest_wait,
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the commit that the trigger found, or raise its error."""
        self.check_event(event)
        return self._finish(context, event["commit"])

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        match = self._look(context)
        if match is None:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=commit_report(match))

    def _look(self, context: Context) -> Match | None:
        if self._table_log is None:
            opened = DeltaHook(self.delta_conn_id).get_log(self.table)
            if self.fail_if_missing:
                engine.check_table_exists(opened)
            self._table_log = opened
        log = self._table_log
        if (version := self.version) is not None:
            match = engine.version_reached(log, version)
            awaited = f"version {version}"
        else:
            before = self._seen = self._seen if self._seen is not None else self.begin(context, log)
            match, self._seen = engine.first_match(log, before, self._conditions())
            if self._seen != before and match is None:
                self.remember(context, self._seen)
            awaited = f"a commit after version {self._seen.version}"
        if match is None:
            found = log.snapshot.version
            state = f"has version {found}" if found >= 0 else "is missing"
            self.log.info("Table %s %s; waiting for %s.", log.uri, state, awaited)
        return match

    def waits_for(self) -> dict[str, Any]:
        """Return what a stored version belongs to: it does not apply to another table or other conditions."""
        return {
            "table": self.table,
            "delta_conn_id": self.delta_conn_id,
            "after_version": self.after_version,
            "operation": list(operation_names(self.operation)),
            "partitions": self.partitions,
            "data_change_only": self.data_change_only,
        }

    # -- the arguments --------------------------------------------------------------------------------------------------------

    def _check_arguments(self, context: Context) -> None:
        refuse_previews(self.watched())
        version, after = self.version, self.after_version
        if version is not None and (after is not None or self.operation or self.partitions):
            raise DeltaIllegalArgumentException(
                f"version={version} cannot be combined with after_version, operation or partitions (table {self.table}). Leave "
                "version out to wait for the next commit that matches."
            )
        if (version is not None and version < 0) or (after is not None and after < -1):
            raise DeltaIllegalArgumentException(
                f"version must be at least 0 and after_version at least -1, got {version} and {after} (table {self.table})."
            )
        if version is None and after is None and self.reschedule and not self.deferrable and not context.get("task_state_store"):
            raise DeltaIllegalArgumentException(
                f"There is no task state store to keep the first version of table {self.table} across reschedules. Pass "
                "after_version, or use mode='poke' or deferrable=True."
            )

    def _conditions(self) -> CommitConditions:
        return commit_conditions(self.operation, self.partitions, self.data_change_only)

    def _finish(self, context: Context, commit: Any) -> Any:
        if commit is not None:
            context["ti"].xcom_push(key=XCOM_KEY, value=commit["version"])
            self.log.info(
                "Found version %s of %s: %s, %s rows in %s files added, %s files removed; the latest version is %s.",
                commit["version"],
                commit["table"],
                commit["operation"] or "unknown operation",
                commit["num_records"],
                commit["num_added_files"],
                commit["num_removed_files"],
                commit["observed_version"],
            )
        return commit
