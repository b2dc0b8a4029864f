"""delta-rs reads what we commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_delta.transaction import Operation
from support import readers
from support.actions import add, remove, txn
from support.table import Table, metadata


@pytest.mark.parametrize("interval", ["2", "100"])
def test_delta_rs_sees_the_same_table(tmp_path: Path, interval: str) -> None:
    table = Table(tmp_path / "table")
    table.create(("part",), configuration={"delta.checkpointInterval": interval})
    table.commit(add("part=1/a", part=1), add("part=2/b", part=2), operation=Operation.write("append", ["part"]))
    table.commit(txn("app", 7), add("part=1/c", part=1), operation=Operation.write("append", ["part"]), tags={"k": "v"})
    table.commit(remove("part=1/a", part=1), operation=Operation.delete(["(part = 1)"]))
    other = DeltaTable(str(table.path))
    assert other.version() == 3
    assert readers.files(table.path) == {"part=2/b", "part=1/c"}
    assert {Path(uri).name for uri in other.file_uris(file_pruning_predicate="part = 1")} == {"c"}
    assert other.transaction_version("app") == 7
    assert other.metadata().partition_columns == ["part"]
    assert other.metadata().configuration == {"delta.checkpointInterval": interval}
    history = other.history()
    assert [entry["operation"] for entry in history] == ["DELETE", "WRITE", "WRITE", "Manual Update"]
    assert history[0]["isBlindAppend"] is False
    assert history[1]["isBlindAppend"] is True


def test_delta_rs_sees_a_changed_schema(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    log = table.create()
    transaction = log.start_transaction()
    wider = metadata(
        schema_string=(
            '{"type":"struct","fields":[{"name":"value","type":"integer","nullable":true,"metadata":{}},'
            '{"name":"more","type":"string","nullable":true,"metadata":{}}]}'
        )
    )
    transaction.update_metadata(wider)
    transaction.commit([add("a")], Operation.write(can_merge_schema=True))
    assert [field.name for field in DeltaTable(str(table.path)).schema().fields] == ["value", "more"]
