"""Publications of the past are looked at one by one neither by readers nor by the next publication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from airflow_delta.log.checkpoint import part_files as checkpoint_files
from airflow_delta.log.checkpoint.part import CheckpointPart, RowGroup
from airflow_delta.publication import get_versions
from airflow_delta.publication.ids import PublicationId, table_mark
from publication.lake import LakeTable, publish_all
from publication.points import killed

PAST = 1_500
"""More than checksums list."""


def remember(tables: list[LakeTable], number: int) -> None:
    """Let the tables know publications that are over, in a checkpoint."""
    marks = ".".join(table_mark(table.log()) for table in tables)
    ids = [f"{n:08x}-0000-0000-0000-000000000000.{n:016x}.{marks}" for n in range(number)]
    for table in tables:
        txns = [{"txn": {"appId": f"airflow.publication/{one}", "version": 1, "lastUpdated": 1}} for one in ids]
        if table is not tables[0]:
            txns += [{"txn": {"appId": f"airflow.intent/{one}", "version": 0, "lastUpdated": 1}} for one in ids]
        table.put_foreign(table.versions()[-1] + 1, {"commitInfo": {"timestamp": 1, "operation": "WRITE"}}, *txns)
        table.log().checkpoint()
        table.publish_ids("later", [900])


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the ids of publications that are taken apart."""
    found: Counter[str] = Counter()
    parse, is_one = PublicationId.parse, PublicationId.is_one

    def parsed(text: str) -> PublicationId:
        found["ids"] += 1
        return parse(text)

    def asked(text: str) -> bool:
        found["ids"] += 1
        return is_one(text)

    monkeypatch.setattr(PublicationId, "parse", parsed)
    monkeypatch.setattr(PublicationId, "is_one", asked)
    return found


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the rows that are read from checkpoints, whose row groups are small."""
    monkeypatch.setattr(checkpoint_files, "ROW_GROUP_ROWS", 100)
    found: Counter[str] = Counter()
    batches = CheckpointPart.batches

    def counted(part: CheckpointPart, groups: Sequence[RowGroup], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in batches(part, groups, columns):
            found["rows"] += batch.num_rows
            yield batch

    monkeypatch.setattr(CheckpointPart, "batches", counted)
    return found


def test_the_next_publication_reads_no_more_for_them(orders: LakeTable, lines: LakeTable, rows_read: Counter[str]) -> None:
    remember([orders, lines], PAST)
    members = [orders.member("next", [7]), lines.member("next", [40])]
    rows_read.clear()
    publish_all(members, anchor=orders.uri)
    assert rows_read["rows"] <= 1_000, "some row groups, each read once"
    rows_read.clear()
    assert get_versions({"orders": orders.log(), "lines": lines.log()}).held_back == {}
    assert rows_read["rows"] <= 2 * (PAST + 200), "the states, not the intents"


def test_they_cost_no_look(orders: LakeTable, lines: LakeTable, looks: Counter[str]) -> None:
    remember([orders, lines], PAST)
    counts = []
    for n in range(2):
        looks.clear()
        assert get_versions({"orders": orders.log(), "lines": lines.log()}).held_back == {}
        assert looks["ids"] == 0
        publish_all([orders.member(f"k{n}", [7]), lines.member(f"k{n}", [40])], anchor=orders.uri)
        counts.append(looks["ids"])
    assert max(counts) < 50
    killed(
        lambda: publish_all([orders.member("open", [8]), lines.member("open", [8])], anchor=orders.uri),
        "published lines",
        "before",
    )
    looks.clear()
    assert len(get_versions({"orders": orders.log(), "lines": lines.log()}).held_back) == 1
    assert looks["ids"] < 20, "the open one alone"
