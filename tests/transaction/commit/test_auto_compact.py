"""When a commit asks for compaction, and for which partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_delta.log.actions.actions import AddFile
from airflow_delta.transaction import CommitPolicy, Operation
from airflow_delta.transaction.commit.auto_compact import wants_auto_compaction
from airflow_delta.transaction.policy import AutoCompactionRequest
from support.actions import add, remove
from support.table import Table

ON = {"delta.autoOptimize.autoCompact": "true"}
WRITE = Operation.write()


def policy(**options: Any) -> CommitPolicy:
    return CommitPolicy(**{"auto_compact_min_files": 3, "auto_compact_max_file_size": 100, **options})


def file(path: str, size: int = 10, **partition: Any) -> AddFile:
    return add(path, **partition, size=size)


def commit(table: Table, *actions: Any, operation: Operation = WRITE, **options: Any) -> AutoCompactionRequest | None:
    transaction = table.log().start_transaction(policy=policy(**options))
    transaction.commit(list(actions), operation)
    assert transaction.outcome is not None
    return transaction.outcome.auto_compaction


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    table.create(("part",), configuration=ON)
    return table


@pytest.mark.parametrize(
    ("configuration", "asked", "wanted"),
    [
        ({}, None, False),
        (ON, None, True),
        (ON, False, False),
        ({}, True, True),
        ({"delta.autoOptimize": "true"}, None, True),
        ({"delta.autoOptimize": "false", **ON}, None, True),
        ({"delta.autoOptimize.autoCompact": "false"}, None, False),
    ],
)
def test_what_switches_it_on(configuration: dict[str, str], asked: bool | None, wanted: bool) -> None:
    assert wants_auto_compaction(configuration, CommitPolicy(auto_compact=asked)) is wanted


def test_enough_small_files_in_a_partition_that_was_written(table: Table) -> None:
    assert commit(table, file("a", part=1), file("b", part=1), file("o", part=2), file("p", part=2)) is None
    handed: list[AutoCompactionRequest] = []
    request = commit(table, file("c", 50, part=1), on_auto_compact=handed.append)
    assert request == AutoCompactionRequest(
        table=str(table.path),
        version=2,
        partitions=({"part": "1"},),
        num_small_files=3,
        small_file_bytes=70,
        min_file_size=50,
        max_file_size=100,
    )
    assert handed == [request]


def test_large_files_do_not_count(table: Table) -> None:
    assert commit(table, file("a", part=1), file("b", part=1), file("c", 51, part=1)) is None


def test_partitions_that_were_not_written_do_not_count(table: Table) -> None:
    assert commit(table, *(file(f"a{n}", part=1) for n in range(5)), auto_compact=False) is None
    assert commit(table, file("b", part=2)) is None


def test_any_commit_that_adds_files_asks(table: Table) -> None:
    """As Delta does unless ``autoCompact.nonBlindAppend.enabled`` says otherwise, and whatever its documentation says."""
    commit(table, file("a", part=1), file("b", part=1), file("c", part=1), auto_compact=False)
    request = commit(table, remove("a", part=1), file("a2", part=1), operation=Operation.update("x"))
    assert request is not None
    assert request.num_small_files == 3


def test_what_does_not_ask(table: Table) -> None:
    files = [file(f"f{n}", part=1) for n in range(4)]
    assert commit(table, *files, operation=Operation.optimize()) is None
    assert commit(table, remove("f0", part=1), operation=Operation.delete()) is None, "a commit that adds nothing"
    moved = [msgspec.structs.replace(one, data_change=False) for one in files]
    assert commit(table, *moved, operation=Operation.compute_stats()) is None, "a commit that writes nothing"
    transaction = table.log().start_transaction(policy=policy())
    transaction.commit_large([file("g", part=1)], Operation.restore(0))
    assert transaction.outcome is not None
    assert transaction.outcome.auto_compaction is None


def test_a_table_without_partitions(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration=ON)
    request = commit(table, *(file(f"f{n}") for n in range(3)))
    assert request is not None
    assert request.partitions == ({},)


def test_the_default_bounds_are_those_of_delta(table: Table) -> None:
    def commit_files(prefix: str, count: int) -> AutoCompactionRequest | None:
        transaction = table.log().start_transaction()
        transaction.commit([file(f"{prefix}{n}", 64 << 20, part=1) for n in range(count)], WRITE)
        assert transaction.outcome is not None
        return transaction.outcome.auto_compaction

    assert commit_files("a", 49) is None
    request = commit_files("b", 1)
    assert request is not None
    assert (request.num_small_files, request.max_file_size) == (50, 128 << 20)


def test_a_failing_receiver_undoes_nothing(table: Table) -> None:
    def refuse(request: AutoCompactionRequest) -> None:
        raise ValueError("no")

    request = commit(table, *(file(f"f{n}", part=1) for n in range(3)), on_auto_compact=refuse)
    assert request is not None
    assert table.versions() == [0, 1]
