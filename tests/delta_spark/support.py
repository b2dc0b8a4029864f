"""The state of one table as Delta Spark sees it, as we see it and as delta-rs sees it, in one form that can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import DataFrame

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.snapshot import Snapshot
from airflow_delta.spark.read import read_scan_plan
from airflow_delta.table.stage.scan import plan_scan
from airflow_delta.table.stage.view import view_of
from airflow_delta.table.state.read_snapshot import table_fields

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORY = (
    "version",
    "timestamp",
    "operation",
    "operationParameters",
    "operationMetrics",
    "readVersion",
    "isolationLevel",
    "isBlindAppend",
    "userMetadata",
    "engineInfo",
)
"""What is compared of every commit. Timestamps in milliseconds."""


@dataclass(frozen=True)
class State:
    """A table at a version.

    :param files: path -> id of the deletion vector, or ``None``.
    :param transactions: app id -> version.
    :param domains: domain -> configuration.
    :param rows: one text a row, sorted.
    :param history: version -> the fields of :data:`HISTORY`.
    """

    version: int
    timestamp: int
    schema: dict[str, Any]
    protocol: dict[str, Any]
    metadata: dict[str, Any]
    transactions: dict[str, int]
    domains: dict[str, str]
    files: dict[str, str | None]
    size_in_bytes: int
    rows: list[str] = field(default_factory=list)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)


def sql_name(path: Path | str) -> str:
    """Return the table at a path as SQL names it."""
    return f"delta.`{path}`"


def rows_of(df: DataFrame) -> list[str]:
    """Return all rows of a DataFrame, one text each, sorted."""
    return sorted(row_text(row.asDict(recursive=True)) for row in df.collect())


def row_text(row: Mapping[str, Any]) -> str:
    """Return one row as :attr:`State.rows` has it."""
    return ", ".join(f"{name}={_plain(value)!r}" for name, value in row.items())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in sorted(value.items(), key=repr)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if type(value).__name__ == "VariantVal" else value


# -- Delta Spark --------------------------------------------------------------------------------------------------------------


def jvm(delta: SparkSession) -> Any:
    """Return the JVM's packages."""
    return delta.sparkContext._jvm


def delta_log(delta: SparkSession, path: Path | str) -> Any:
    """Return Delta Spark's own ``DeltaLog``, fresh from storage: what Delta has cached of any table is dropped."""
    log = jvm(delta).org.apache.spark.sql.delta.DeltaLog
    log.clearCache()
    return log.forTable(delta._jsparkSession, str(path))


def as_list(delta: SparkSession, seq: Any) -> list[Any]:
    """Return a Scala collection as a list."""
    return list(jvm(delta).scala.jdk.javaapi.CollectionConverters.asJava(seq))


def delta_snapshot(delta: SparkSession, path: Path | str, version: int | None = None) -> Any:
    """Return Delta Spark's snapshot of a table."""
    log = delta_log(delta, path)
    snapshot = log.unsafeVolatileSnapshot()
    if version is None or version == snapshot.version():
        return snapshot
    none = jvm(delta).scala.Option.empty()
    return log.getSnapshotAt(version, none, none, False)


def delta_history(delta: SparkSession, path: Path | str, limit: int | None = None) -> dict[int, dict[str, Any]]:
    """Return the commits as ``DESCRIBE HISTORY`` shows them."""
    text = f"DESCRIBE HISTORY {sql_name(path)}" + (f" LIMIT {limit}" if limit is not None else "")
    df = delta.sql(text)
    found = {}
    for row in df.selectExpr("*", "unix_millis(timestamp) AS millis").collect():
        record = row.asDict(recursive=True)
        record["timestamp"] = record["millis"]
        found[record["version"]] = {name: record[name] for name in HISTORY}
    return found


def delta_detail(delta: SparkSession, path: Path | str) -> dict[str, Any]:
    """Return ``DESCRIBE DETAIL`` of a table."""
    return delta.sql(f"DESCRIBE DETAIL {sql_name(path)}").collect()[0].asDict(recursive=True)


def delta_rows(delta: SparkSession, path: Path | str, version: int | None = None) -> list[str]:
    """Return the rows as Delta Spark reads them."""
    at = f" VERSION AS OF {version}" if version is not None else ""
    return rows_of(delta.sql(f"SELECT * FROM {sql_name(path)}{at}"))


def delta_state(delta: SparkSession, path: Path | str, *, history: int | None = None) -> State:
    """Return the latest version as Delta Spark reads it from storage.

    :param history: how many commits of the history, newest first; ``None``: all of them.
    """
    snapshot = delta_snapshot(delta, path)
    metadata, protocol = json.loads(snapshot.metadata().json()), json.loads(snapshot.protocol().json())
    adds = DataFrame(snapshot.allFiles().toDF(), delta).select("path", "deletionVector").collect()
    files = [row.asDict(recursive=True) for row in adds]
    domains = [json.loads(d.json())["domainMetadata"] for d in as_list(delta, snapshot.domainMetadata())]
    return State(
        version=snapshot.version(),
        timestamp=snapshot.timestamp(),
        schema=json.loads(metadata["metaData"]["schemaString"]),
        protocol=plain_protocol(protocol["protocol"]),
        metadata=plain_metadata(metadata["metaData"]),
        transactions={t.appId(): t.version() for t in as_list(delta, snapshot.setTransactions())},
        domains={d["domain"]: d["configuration"] for d in domains if not d["removed"]},
        files={f["path"]: vector_id(f.get("deletionVector")) for f in files},
        size_in_bytes=snapshot.sizeInBytes(),
        rows=delta_rows(delta, path),
        history=delta_history(delta, path, history),
    )


def plain_protocol(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return a protocol without the order of its features."""
    return {
        "minReaderVersion": protocol["minReaderVersion"],
        "minWriterVersion": protocol["minWriterVersion"],
        "readerFeatures": sorted(protocol.get("readerFeatures") or []),
        "writerFeatures": sorted(protocol.get("writerFeatures") or []),
    }


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without the schema, absent values left out."""
    return {key: value for key, value in metadata.items() if key != "schemaString" and value is not None}


def vector_id(descriptor: Mapping[str, Any] | None) -> str | None:
    """Return the id of a deletion vector (protocol, "Derived Fields")."""
    if descriptor is None:
        return None
    base = f"{descriptor['storageType']}{descriptor['pathOrInlineDv']}"
    return base if descriptor.get("offset") is None else f"{base}@{descriptor['offset']}"


# -- ours ---------------------------------------------------------------------------------------------------------------------


def open_log(path: Path | str) -> DeltaLog:
    """Return a log of ours that has read nothing yet."""
    return DeltaLog.for_table(str(path), {"durable": "false"})


def reading_handle(log: DeltaLog, snapshot: Snapshot) -> TransactionHandle:
    """Return what a scan is planned with, also for a table that we only read."""
    return TransactionHandle(
        transaction_id="00000000-0000-0000-0000-000000000000",
        table=log.uri,
        read_version=snapshot.version,
        staging_path=f"{log.uri}/staged",
        app_id="reader",
        txn_version=0,
        **table_fields(snapshot),
    )


def our_rows(delta: SparkSession, log: DeltaLog, snapshot: Snapshot | None = None, predicate: str | None = None) -> list[str]:
    """Return the rows that our scan plan gives Spark, which here reads plain Parquet."""
    handle = reading_handle(log, snapshot if snapshot is not None else log.update())
    return rows_of(read_scan_plan(delta, plan_scan(view_of(log, handle), predicate)))


def our_history(log: DeltaLog, limit: int | None = None) -> dict[int, dict[str, Any]]:
    """Return the commits as our history has them, in the form of ``DESCRIBE HISTORY``."""
    found = {}
    for record in log.history(limit):
        info = {**record.commit_info, "version": record.version, "timestamp": record.timestamp}
        for name in ("operationParameters", "operationMetrics"):
            if info.get(name) is not None:
                info[name] = {key: _parameter(value) for key, value in info[name].items()}
        found[record.version] = {name: info.get(name) for name in HISTORY}
    return found


def _parameter(value: Any) -> str | None:
    """Return a parameter as a map of texts shows it."""
    return value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def our_protocol(snapshot: Snapshot) -> dict[str, Any]:
    """Return the protocol; its features are sets, which Delta Spark writes in any order."""
    return plain_protocol(msgspec.to_builtins(snapshot.protocol))


def our_state(log: DeltaLog, delta: SparkSession, *, history: int | None = None) -> State:
    """Return the latest version as we read it; the rows through our scan plan."""
    snapshot = log.update()
    files = snapshot.add_files()
    metadata: Metadata = snapshot.metadata
    return State(
        version=snapshot.version,
        timestamp=snapshot.timestamp,
        schema=json.loads(metadata.schema_string),
        protocol=our_protocol(snapshot),
        metadata=plain_metadata(msgspec.to_builtins(metadata)),
        transactions=dict(snapshot.transactions),
        domains={name: domain.configuration for name, domain in snapshot.domain_metadata.items()},
        files={f.path: None if f.deletion_vector is None else f.deletion_vector.unique_id for f in files},
        size_in_bytes=snapshot.size_in_bytes,
        rows=our_rows(delta, log, snapshot),
        history=our_history(log, history),
    )


# -- comparison ---------------------------------------------------------------------------------------------------------------


def differences(ours: Any, theirs: Any, at: str = "") -> list[str]:
    """Return where two values differ, one line each."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return [
            line
            for key in {**ours, **theirs}
            for line in differences(ours.get(key, "(absent)"), theirs.get(key, "(absent)"), f"{at}.{key}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list):
        only_ours, only_theirs = _minus(ours, theirs), _minus(theirs, ours)
        return [f"{at}: only ours {only_ours}, only Delta's {only_theirs}"] if only_ours or only_theirs else []
    return [] if ours == theirs else [f"{at}: ours {ours!r}, Delta's {theirs!r}"]


def _minus(left: Iterable[Any], right: Iterable[Any]) -> list[Any]:
    rest = list(left)
    for item in right:
        if item in rest:
            rest.remove(item)
    return rest


def assert_equal_states(ours: State, theirs: State, *, label: str = "") -> None:
    """Fail with every difference between two states."""
    lines = [line for f in fields(State) for line in differences(getattr(ours, f.name), getattr(theirs, f.name), f.name)]
    assert not lines, "\n".join([f"{label} version {ours.version}: we and Delta Spark do not see the same table", *lines])


def assert_same_state(
    log: DeltaLog | None, delta: SparkSession, path: Path | str, *, history: int | None = None, label: str = ""
) -> State:
    """Check that Delta Spark, a log of ours that goes on, and a log of ours that starts anew see the same table; return it.

    :param log: goes on from what it has read; ``None``: only a new one is compared.
    :param history: how many commits of the history; ``None``: all of them.
    """
    theirs = delta_state(delta, path, history=history)
    fresh = open_log(path)
    assert_equal_states(our_state(fresh, delta, history=history), theirs, label=f"{label} (read anew)")
    if log is not None:
        known, snapshot = log.update(), fresh.snapshot
        assert known.version == snapshot.version
        assert our_protocol(known) == our_protocol(snapshot)
        assert known.metadata == snapshot.metadata
        assert dict(known.transactions) == dict(snapshot.transactions)
        assert dict(known.domain_metadata) == dict(snapshot.domain_metadata)
        assert sorted(f.path for f in known.add_files()) == sorted(theirs.files)
    return theirs


def changes(delta: SparkSession, path: Path) -> list[str]:
    """Return the changes of the newest version."""
    version = next(iter(delta_history(delta, path, 1)))
    df = delta.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version).load(str(path))
    return rows_of(df.drop("_commit_version", "_commit_timestamp"))
