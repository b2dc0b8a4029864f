"""Independent readers as judges: every one of them that can read a table sees the same rows and the same files.

delta-rs replays the log by itself; DuckDB's extension and Polars' plugin stand on delta-kernel-rs, with two engines for Parquet.
Polars itself judges where its readers' habit, values of partitions from paths, gives the right answer.
What one of them cannot read is in :data:`CANNOT_READ`, by feature: there it has to refuse, so that the list stays true, and the
others judge. Nothing is skipped without being listed.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from airflow_delta.contract.delta_names import HIVE_NULL
from airflow_delta.log import DeltaLog, Snapshot
from airflow_delta.log.features.protocol import features

Read = Callable[[str, int | None], pa.Table]

HAS_DUCKDB = int(version_of("duckdb").partition(".")[0]) < 2 or find_spec("duckdb_extension_delta") is not None
"""DuckDB 2 has no extension for Delta tables yet: there the others judge, and tests that ask for it by name are skipped."""

_PLAIN = re.compile(r"[A-Za-z0-9_./=-]+")


def _delta_rs(path: str, version: int | None) -> pa.Table:
    from deltalake import DeltaTable

    return DeltaTable(path, version=version).to_pyarrow_table()


def _duckdb() -> Any:
    """Return a connection of its own: the results of one that threads share get mixed up."""
    connection = _database().cursor()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@cache
def _database() -> Any:
    """One database for the process; the extension comes from PyPI and is not looked for anywhere else."""
    if not HAS_DUCKDB:
        import pytest

        pytest.skip("DuckDB 2 has no extension for Delta tables yet")
    import duckdb
    import duckdb_extension_delta

    options = {"allow_unsigned_extensions": "true", "autoinstall_known_extensions": "false", "threads": "1"}
    connection = duckdb.connect(config=options)
    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    connection.execute(f"LOAD '{extension}'")
    return connection


@contextmanager
def _plainly_named(path: str) -> Iterator[str]:
    """Yield a location that leads to the table: DuckDB garbles the paths of files where the table's own is not plain ASCII."""
    with tempfile.TemporaryDirectory() as directory:
        os.symlink(Path(path).resolve(), f"{directory}/table")
        yield f"{directory}/table"


def _duckdb_rows(path: str, version: int | None) -> pa.Table:
    at = "" if version is None else f", version = {version}"
    with _plainly_named(path) as plain:
        return _duckdb().execute(f"SELECT * FROM delta_scan(?{at})", [plain]).to_arrow_table()


def _polars(path: str, version: int | None) -> pa.Table:
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    import polars_deltalake

    return polars_deltalake.scan_delta(path, version=version).collect().to_arrow()


def _polars_itself(path: str, version: int | None) -> pa.Table:
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    import polars

    return polars.scan_delta(path, version=version).collect().to_arrow()


PATHS = "Polars itself"
"""It takes the values of partitions from the paths of files, not from the log."""

READERS: dict[str, Read] = {
    "delta-rs": _delta_rs,
    "DuckDB": _duckdb_rows,
    "Polars": _polars,
    PATHS: _polars_itself,
}

CANNOT_READ: dict[str, dict[str, str]] = {
    "delta-rs": {
        "columnMapping": "its conversion to Arrow does not know physical names",
        "deletionVectors": "its conversion to Arrow does not leave deleted rows out",
    },
    "DuckDB": {},
    "Polars": {},
    PATHS: {"v2Checkpoint": "it reads no sidecars"},
}
"""Reader -> feature of the protocol -> why; the reader must refuse such a table."""


def rows(table: str | Path, version: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a local table, after all independent readers have agreed on them.

    :param version: default: the latest.
    """
    path = str(table)
    log = DeltaLog.for_table(path)
    snapshot = log.update() if version is None else log.snapshot_at(version)
    present = features(snapshot.protocol)
    seen: dict[str, list[dict[str, Any]]] = {}
    for name, read in READERS.items():
        if (name == PATHS and not _paths_say_all(path, snapshot)) or (name == "DuckDB" and not HAS_DUCKDB):
            continue
        listed = present & CANNOT_READ[name].keys()
        try:
            found = read(path, version).to_pylist()
        except Exception as error:
            if not listed:
                raise AssertionError(f"{name} cannot read version {version} of {path}: {error}") from error
        else:
            assert not listed, f"{name} reads tables with {', '.join(sorted(listed))}: CANNOT_READ says that it does not"
            seen[name] = found
    assert seen, f"no independent reader can read {path}"
    (judge, expected), *others = seen.items()
    for name, found in others:
        assert _comparable(found) == _comparable(expected), f"{name} and {judge} differ on version {version} of {path}"
    return expected


def _paths_say_all(path: str, snapshot: Snapshot) -> bool:
    """Tell whether Polars can find the files, and in their paths the values of their partitions."""
    if snapshot.metadata.configuration.get("delta.columnMapping.mode", "none") != "none" or not _PLAIN.fullmatch(
        os.path.realpath(path)
    ):
        return False
    files = snapshot.files(columns=["path", "partition_values", "deletion_vector"])
    if files["deletion_vector"].null_count < files.num_rows:
        return False
    listed = zip(files["path"].to_pylist(), files["partition_values"].to_pylist(), strict=True)
    return all(
        _PLAIN.fullmatch(path) and all(f"/{name}={value or HIVE_NULL}/" in f"/{path}" for name, value in values)
        for path, values in listed
    )


def files(table: str | Path) -> set[str]:
    """Return the paths of the live files of a local table, relative to it, after delta-rs and DuckDB have agreed on them.

    Nothing of the files is read, so that they need not be there. Polars does not list files.
    """
    from deltalake import DeltaTable

    root = f"{Path(table).resolve()}/"  # which delta-rs encodes, and the rest it does not
    found = sorted(uri.removeprefix(quote(root)).removeprefix(root) for uri in DeltaTable(table).file_uris())
    if HAS_DUCKDB:
        with _plainly_named(str(table)) as plain:
            listed = _duckdb().execute("SELECT data_file FROM delta_list_files(?)", [plain]).fetchall()
        others = sorted(path.removeprefix("file://").removeprefix(f"{plain}/") for (path,) in listed)
        assert others == found, f"DuckDB and delta-rs differ on the files of {table}"
    return set(found)


def _comparable(found: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(_value(row)) for row in found)


def _value(value: Any) -> Any:
    """Return a value as it is compared: instants in UTC, maps as pairs, and fields by name."""
    match value:
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC)
        case Decimal():
            return value.normalize()
        case Mapping():
            return sorted((name, _value(item)) for name, item in value.items())
        case [{"key": _, "value": _}, *_]:  # a map, as Polars has it
            return [(_value(item["key"]), _value(item["value"])) for item in value]
        case list() | tuple():
            return type(value)(_value(item) for item in value)
    return value
