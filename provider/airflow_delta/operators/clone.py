"""CLONE as a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.kinds import LOCATION, PROPERTIES, TRUTH, Kinds
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.tasks.maintenance_base import DeltaMaintenanceBase
from airflow_delta.tasks.values import moment, whole_number

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.commit.commit_part import CommitPart


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

    kinds: ClassVar[Kinds] = {"source": LOCATION, "replace": TRUTH, "deep": TRUTH, "properties": PROPERTIES}
    template_fields: Sequence[str] = (
        *DeltaMaintenanceBase.template_fields,
        "source",
        "version",
        "timestamp",
        "properties",
        "source_conn_id",
        "source_uri",
    )
    template_fields_renderers = {"properties": "json"}

    def __init__(
        self,
        *,
        source: str,
        version: int | str | None = None,
        timestamp: str | datetime | None = None,
        properties: Mapping[str, str] | None = None,
        replace: bool = False,
        source_conn_id: str | None = None,
        source_uri: str | None = None,
        deep: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.version = version
        self.timestamp = timestamp
        self.properties = properties
        self.replace = replace
        self.source_conn_id = source_conn_id
        self.source_uri = source_uri
        self.deep = deep

    def run(self, log: DeltaLog, committer: CommitPart, context: Context) -> dict[str, Any]:
        """Clone, commit and return the result.

        :raises DeltaIllegalStateException: if the table exists, or with ``replace`` is not empty.
        """
        result = engine.clone_table(
            log,
            DeltaHook(self.source_conn_id or self.delta_conn_id).get_log(self.source),
            version=whole_number("version", self.version),
            timestamp=moment(self.timestamp),
            properties=self.properties,
            replace=self.replace,
            source_uri=self.source_uri,
            deep=self.deep,
            **self.commit_options(committer, context),
        )
        return committer.finish(context, result)
