"""A streaming query that changes from our sink to Delta Spark's and back: one sequence of batches, one form of commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.streaming import DeltaBatchSink
from delta_spark.support import assert_same_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from support.table import Table


def run(delta: SparkSession, source: Path, table: Path, checkpoint: Path, *, mode: str, theirs: bool) -> str:
    df = delta.readStream.schema("id LONG, p STRING").parquet(str(source))
    if mode == "complete":
        df = df.groupBy("p").count()
    sink = DeltaBatchSink(str(table), mode=mode)
    writer = df.writeStream.format("delta").option("path", str(table)) if theirs else df.writeStream.foreachBatch(sink)
    writer = writer.outputMode(mode).trigger(availableNow=True).option("checkpointLocation", str(checkpoint))
    query = writer.start()
    query.awaitTermination()
    return str(query.id)


def test_one_query_through_both_sinks(delta: SparkSession, table: Table, tmp_path: Path):
    (tmp_path / "source").mkdir()
    for mode in ("append", "complete"):
        path, checkpoint, ids = tmp_path / mode, tmp_path / f"{mode}-checkpoint", set()
        for batch, theirs in enumerate((False, True, False, True)):
            rows = pa.table({"id": [batch * 2, batch * 2 + 1], "p": ["a", "b"]})
            pq.write_table(rows, tmp_path / "source" / f"{mode}-{batch}.parquet")
            ids.add(run(delta, tmp_path / "source", path, checkpoint, mode=mode, theirs=theirs))
        [query_id] = ids
        state = assert_same_state(None, delta, path, label=mode)
        assert state.version == 3
        assert state.transactions == {query_id: 3}
        ours, delta_s = state.history[2], state.history[3]
        assert ours["operation"] == delta_s["operation"] == "STREAMING UPDATE"
        assert ours["operationParameters"] == {**delta_s["operationParameters"], "epochId": "2"}
        assert ours["isBlindAppend"] == delta_s["isBlindAppend"] == (mode == "append")
        assert ours["operationMetrics"].keys() == delta_s["operationMetrics"].keys()
        # Files of another writer have other sizes, and after a shuffle there may be more of them.
        for name in ("numOutputRows", "numRemovedFiles") if mode == "append" else ("numOutputRows",):
            assert ours["operationMetrics"][name] == delta_s["operationMetrics"][name]
        assert len(state.rows) == (8 if mode == "append" else 2)
