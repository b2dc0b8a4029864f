"""CLONE as a task."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.kinds import LOCATION, PROPERTIES, TIME, TRUTH, WHOLE_NUMBER
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.maintenance_base import DeltaMaintenanceBase

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.commit.commit_part import CommitPart
    from airflow_delta.tasks.declared import Taken


class DeltaCloneOperator(DeltaMaintenanceBase):
    """Create a clone of a table: a table that starts as one of its versions.

    A shallow clone references the files of its source in place; a deep one has copies, and a later run copies what is new.

    :param table: location of the clone. (templated)
    :param source: table to clone: URI, absolute path, or name below the source connection's base path. (templated)
    :param version: version of the source; default: the latest. (templated)
    :param timestamp: instead of a version, the last version committed by this time: ISO 8601, UTC without a zone. (templated)
    :param properties: table properties that override those of the source. (templated)
    :param replace: replace an existing empty table (``CREATE OR REPLACE``), or what others have committed to a deep clone.
    :param source_conn_id: connection to the source; default: ``delta_conn_id``. (templated)
    :param source_uri: URI of the source for readers of the clone, if it differs (``s3a://``). (templated)
    :param deep: copy the files.

    The other parameters are those of :class:`~airflow_delta.tasks.maintenance_base.DeltaMaintenanceBase`.
    """

    source: str = parameter(templated=True, kind=LOCATION)
    version: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    timestamp: Taken[str | datetime | None, datetime | None] = parameter(default=None, templated=True, kind=TIME)
    properties: Mapping[str, str] | None = parameter(default=None, templated=True, kind=PROPERTIES, renderer="json")
    replace: bool = parameter(default=False, kind=TRUTH)
    source_conn_id: str | None = parameter(default=None, templated=True)
    source_uri: str | None = parameter(default=None, templated=True)
    deep: bool = parameter(default=False, kind=TRUTH)

    def run(self, log: DeltaLog, committer: CommitPart, context: Context) -> dict[str, Any]:
        """Clone, commit and return the result.

        :raises DeltaIllegalStateException: if the table exists, or with ``replace`` is not empty.
        """
        result = engine.clone_table(
            log,
            DeltaHook(self.source_conn_id or self.delta_conn_id).get_log(self.source),
            version=self.version,
            timestamp=self.timestamp,
            properties=self.properties,
            replace=self.replace,
            source_uri=self.source_uri,
            deep=self.deep,
            **self.commit_options(committer, context),
        )
        return committer.finish(context, result)
