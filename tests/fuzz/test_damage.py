"""Random damage to the bytes of a log: a typed error or the same rows, never other rows.

The JSON lines of the format carry no checksum of their own. A changed byte that leaves a line valid (a digit of a size) can only
show against the version's checksum file, so the state is read as a cautious reader does: with ``validate_checksum``.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_delta.exceptions import DeltaError
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import DomainMetadata, SetTransaction
from airflow_delta.transaction import Operation
from support import tables

EXAMPLES = 150
KINDS = ("commits", "classic", "multi-part", "v2")


@functools.cache
def made(kind: str) -> tuple[Path, dict[str, Any]]:
    """Return a table with a log of the kind and what it holds. Made once; its checksums and checkpoints are ours."""
    folder = tempfile.mkdtemp(prefix="damage")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    table = Path(folder) / "table"
    configuration = {"delta.checkpointInterval": "100", "delta.feature.domainMetadata": "supported"}
    if kind == "v2":
        configuration["delta.checkpointPolicy"] = "v2"
    log = DeltaLog.for_table(str(table))
    for version in range(9):
        txn = log.start_transaction()
        actions: list[Any] = [
            tables.add(f"{version}-{i}.parquet", part="x", size=100 + version, stats=f'{{"numRecords":{version}}}')
            for i in range(3)
        ]
        if version == 0:
            txn.update_metadata_for_new_table(tables.metadata(partition_columns=["part"], configuration=configuration))
        else:
            actions += [
                tables.remove(f"{version - 1}-1.parquet", part="x", size=99 + version),
                SetTransaction(app_id="app", version=version),
            ]
        if version == 3:
            actions.append(DomainMetadata(domain="d", configuration="{}", removed=False))
        txn.commit(actions, Operation.write("Append", ["part"]))
        if version == 5 and kind != "commits":
            write_checkpoint(log, kind)
    return table, state(table)


def write_checkpoint(log: DeltaLog, kind: str) -> None:
    if kind == "multi-part":
        from airflow_delta.log.checkpoint_write.writer import write_checkpoint as write

        write(log.snapshot, part_size=6)
    else:
        log.checkpoint()


def state(table: Path) -> dict[str, Any]:
    """Return all that a reader may rely on."""
    snapshot = DeltaLog.for_table(str(table)).snapshot
    snapshot.validate_checksum()
    return {
        "version": snapshot.version,
        "schema": snapshot.metadata.schema_string,
        "configuration": snapshot.metadata.configuration,
        "protocol": snapshot.protocol,
        "transactions": dict(snapshot.transactions),
        "domains": {name: domain.configuration for name, domain in snapshot.domain_metadata.items()},
        "files": sorted((add.path, sorted(add.partition_values.items()), add.size) for add in snapshot.add_files()),
    }


@st.composite
def damages(draw: st.DrawFn, size: int) -> tuple[str, int, bytes]:
    what = draw(st.sampled_from(("flip", "overwrite", "truncate", "drop", "insert", "zero")))
    at = draw(st.integers(0, max(size - 1, 0)))
    return what, at, draw(st.binary(min_size=1, max_size=16))


def damage(data: bytes, what: str, at: int, noise: bytes) -> bytes:
    match what:
        case "flip":
            return data[:at] + bytes([data[at] ^ (noise[0] or 1)]) + data[at + 1 :]
        case "overwrite":
            return data[:at] + noise + data[at + len(noise) :]
        case "truncate":
            return data[:at]
        case "drop":
            return data[:at] + data[at + len(noise) :]
        case "insert":
            return data[:at] + noise + data[at:]
        case _:
            return data[:at] + b"\0" * min(64, len(data) - at) + data[at + 64 :]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_damaged_bytes_never_give_other_rows(kind: str, data: st.DataObject) -> None:
    original, expected = made(kind)
    files = sorted(str(path.relative_to(original)) for path in (original / "_delta_log").rglob("*") if path.is_file())
    name = data.draw(st.sampled_from(files))
    content = (original / name).read_bytes()
    what, at, noise = data.draw(damages(len(content)))
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory) / "table"
        shutil.copytree(original, table)
        (table / name).write_bytes(damage(content, what, at, noise))
        try:
            found = state(table)
        except DeltaError:
            return
    assert found == expected, f"{what} at {at} of {name}"


@pytest.mark.parametrize("kind", KINDS)
def test_lost_files_never_give_other_rows(kind: str) -> None:
    """Every single file of the log gone."""
    original, expected = made(kind)
    for path in sorted((original / "_delta_log").rglob("*")):
        if not path.is_file():
            continue
        with tempfile.TemporaryDirectory() as directory:
            table = Path(directory) / "table"
            shutil.copytree(original, table)
            (table / path.relative_to(original)).unlink()
            try:
                found = state(table)
            except DeltaError:
                continue
            earlier = path.name in (f"{8:020d}.json",)  # the last commit gone is the version before, which nothing can tell
            assert earlier or found == expected, path.name
