"""Checksums of versions, and Delta's own judgement of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def checksum(table: Path, version: int) -> dict[str, Any] | None:
    path = tables.log_path(table, f"{version:020d}.crc")
    return json.loads(path.read_bytes()) if path.exists() else None


def assert_valid_to_delta(spark: SparkSession, table: Path) -> None:
    """Let Delta replay the log and compare the result with our checksum of the latest version."""
    jvm = spark._jvm
    logs = jvm.org.apache.spark.sql.delta.DeltaLog
    logs.clearCache()
    snapshot = logs.forTable(spark._jsparkSession, str(table)).unsafeVolatileSnapshot()
    assert snapshot.checksumOpt().isDefined()
    nothing = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})
    assert snapshot.validateChecksum(nothing)
    listed = (checksum(table, snapshot.version()) or {}).get("allFiles")
    if listed is not None:  # Delta's own comparison tells an absent map from an empty one, and so fails on its own files
        replayed = [json.loads(add.json())["add"] for add in snapshot.allFilesViaStateReconstruction().collect()]
        assert sorted(map(known_fields, listed), key=path_of) == sorted(map(known_fields, replayed), key=path_of)


def known_fields(add: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a file that say something, its path as a URI and its statistics decoded."""
    fields = {key: value for key, value in add.items() if value is not None and not (key == "tags" and value == {})}
    return {**fields, "stats": json.loads(fields["stats"])} if "stats" in fields else fields


def path_of(add: dict[str, Any]) -> str:
    return str(add["path"])
