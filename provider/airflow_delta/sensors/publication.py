"""Wait until several Delta tables show a publication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import PokeReturnValue, conf

from airflow_delta.contract.kinds import LOCATIONS
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.sensors.watching import NextSensor
from airflow_delta.tasks.declared import parameter
from airflow_delta.triggers.next_publication import next_publication, watched_tables
from airflow_delta.triggers.publication import DeltaPublicationTrigger
from airflow_delta.triggers.watching import refuse_previews

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.observe.watch import Watermark
    from airflow_delta.tasks.declared import Taken


class DeltaPublicationSensor(NextSensor):
    """Wait for a publication that all of some tables took part in, and that all of them show.

    Returns ``publication`` (its id), ``versions`` (by table, as given: versions that belong together and show the publication,
    for ``DeltaHook.get_df(version=)`` or Spark's ``versionAsOf``) and ``table_uris``. A publication that was refused, taken back
    or split is passed over. Reads only logs.

    :param tables: URIs, absolute paths, or names below the connection's base path. The tables need not exist yet. (templated)
    :param delta_conn_id: connection of type ``delta``. (templated)
    :param after_version: wait for a publication after this version of the first table; -1 includes all. Default: the version when
        the sensor first looks, which is kept in the task state store. (templated)
    :param deferrable: wait in the triggerer; default: ``[operators] default_deferrable``.

    The other parameters are those of Airflow's ``BaseSensorOperator``.
    """

    ui_color = "#e6f1f2"
    state_key = "delta_publication"

    tables: Taken[Sequence[str], tuple[str, ...]] = parameter(templated=True, kind=LOCATIONS)
    delta_conn_id: str = parameter(default=DeltaHook.default_conn_name, templated=True)
    deferrable: bool = parameter(default=conf.getboolean("operators", "default_deferrable", fallback=False))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._logs: dict[str, DeltaLog] = {}
        self._seen: Watermark | None = None

    def watched(self) -> Sequence[str]:
        """Return the tables."""
        return watched_tables(self.tables)

    def execute(self, context: Context) -> Any:
        """Wait, and return the publication.

        :raises DeltaIllegalArgumentException: if ``tables`` names none, one twice, or the preview of a transaction.
        :raises VersionNotFoundException: if commits were cleaned up before they were looked at.
        """
        refuse_previews(self.watched())
        if not self.deferrable:
            return self._finish(super().execute(context))
        if found := self.look_once(context):
            return self._finish(found.xcom_value)
        return self._defer(context)

    def _defer(self, context: Context) -> NoReturn:
        # After a failed first look nothing is known; the trigger then finds the current version itself.
        seen = self._seen if self._seen is not None else self.known(context)
        self.defer(
            trigger=DeltaPublicationTrigger(
                watched_tables(self.tables),
                delta_conn_id=self.delta_conn_id,
                after_version=None if seen is None else seen.version,
                table_id=None if seen is None else seen.table_id,
                poll_interval=self.seconds_between_looks,
                single_event=True,
            ),
            method_name="execute_complete",
            timeout=self.longest_wait,
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:  # noqa: ARG002 - as Airflow calls it
        """Return the publication that the trigger found, or raise its error."""
        self.check_event(event)
        return self._finish(event["publication"])

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        if not self._logs:
            hook = DeltaHook(self.delta_conn_id)
            self._logs = {name: hook.get_log(name) for name in watched_tables(self.tables)}
        before = self._seen if self._seen is not None else self.begin(context, next(iter(self._logs.values())))
        found, self._seen = next_publication(self._logs, before)
        if found is None:
            if self._seen != before:
                self.remember(context, self._seen)
            self.log.info("Waiting for a publication of %s.", ", ".join(self._logs))
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def waits_for(self) -> dict[str, Any]:
        """Return what a stored version belongs to."""
        return {
            "tables": watched_tables(self.tables),
            "delta_conn_id": self.delta_conn_id,
            "after_version": self.after_version,
        }

    def _finish(self, found: Any) -> Any:
        if found is not None:
            versions = ", ".join(f"version {version} of {name}" for name, version in found["versions"].items())
            self.log.info("Publication %s is on all tables: %s.", found["publication"], versions)
        return found
