"""Warnings about the other formats of a table (UniForm): its commits by this provider do not reach their readers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_delta.log.features.universal_format import format_violation

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot

logger = logging.getLogger(__name__)


def warn_of_other_formats(table: str, snapshot: Snapshot) -> None:
    formats = snapshot.properties.universal_formats & {"hudi", "iceberg"}
    if (violation := format_violation(snapshot.metadata)) is not None:
        logger.warning("Table %s accepts only a commit that corrects this: %s", table, violation)
    elif formats:
        logger.warning(
            "Table %s has delta.universalFormat.enabledFormats=%s, but commits of this provider update the Delta log only: "
            "readers of %s see them after Delta Spark's next commit.",
            table,
            ",".join(sorted(formats)),
            " and ".join(sorted(formats)),
        )
