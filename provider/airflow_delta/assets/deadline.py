"""A reference for Airflow's deadlines: the last commit to a table."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.definitions.deadline import BaseDeadlineReference
from sqlalchemy import select

from airflow_delta.airflow_internals import database
from airflow_delta.assets.delta import delta_asset_uri

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

logger = logging.getLogger(__name__)


class LastCommitDeadline(BaseDeadlineReference):
    """Count the interval of a ``DeadlineAlert`` from the last commit to a table.

    ::

        DeadlineAlert(reference=LastCommitDeadline("s3://lake/raw"), interval=timedelta(hours=26), callback=...)

    Airflow evaluates it when it makes a run, which is then to wait for the next commit, or to commit itself. The scheduler asks
    its database for the latest event of the table's asset, and never the storage: commits of other engines count if a watcher or
    a :class:`~airflow_delta.sensors.partitions.DeltaPartitionSensor` reports them. A run before the first event
    has no deadline.

    :param table: URI, absolute path, or name below the connection's base path, as in the table's asset.
    :param delta_conn_id: connection that a relative name belongs to.
    :raises DeltaIllegalArgumentException: if the table is empty or its location contains credentials.
    """

    required_kwargs: ClassVar[set[str]] = set()

    def __init__(self, table: str, delta_conn_id: str | None = None) -> None:
        self.asset_uri = delta_asset_uri(table, delta_conn_id)

    def serialize_reference(self) -> dict[str, Any]:
        """Return what Airflow stores."""
        return {**super().serialize_reference(), "asset_uri": self.asset_uri}

    @classmethod
    def deserialize_reference(cls, reference_data: dict[str, Any]) -> LastCommitDeadline:
        """Return the reference that Airflow has stored."""
        return cls(reference_data["asset_uri"])

    def _evaluate_with(self, *, session: Session, **_: Any) -> datetime | None:
        try:
            event_table, asset_table = database.AssetEvent, database.AssetModel
        except AttributeError:  # the scheduler makes no run if this raises
            logger.exception("The run has no deadline: the last commit to %s cannot be looked up in this Airflow", self.asset_uri)
            return None
        wanted = select(event_table.timestamp).join(asset_table, asset_table.id == event_table.asset_id)
        latest = wanted.where(asset_table.uri == self.asset_uri).order_by(event_table.timestamp.desc()).limit(1)
        found: datetime | None = session.scalar(latest)
        return found
