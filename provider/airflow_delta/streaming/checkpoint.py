"""The age of a micro-batch, from the checkpoint of its query."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


logger = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"


def planned_at(df: DataFrame, batch_id: int) -> int | None:
    """Return when the running batch was first planned, in milliseconds since the epoch.

    Spark writes ``offsets/<batch>`` to the checkpoint before it runs a batch, and keeps it when it runs the batch again. If the
    checkpoint is unknown (Spark Connect), the first batch counts as new, and later ones may be of any age.
    """
    spark: Any = df.sparkSession
    context = getattr(spark, "_sc", None)
    if context is not None:
        try:
            jvm = context._jvm
            query_id = jvm.java.util.UUID.fromString(context.getLocalProperty(QUERY_ID))
            query = spark._jsparkSession.sharedState().activeStreamingQueries().get(query_id)
            path = jvm.org.apache.hadoop.fs.Path(f"{query.resolvedCheckpointRoot()}/offsets/{batch_id}")
            file_system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
            return int(file_system.getFileStatus(path).getModificationTime())
        except Exception:
            logger.debug("The checkpoint does not say when batch %s was planned", batch_id, exc_info=True)
    return 0 if batch_id > 0 else None
