"""How much memory operations in the worker may take."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.table.arrow.rewrite.memory import MemoryBound, available_memory
from airflow_delta.table.operations.optimize.reorg import plan_reorg
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.stage.scan import MAX_INLINE_WORDS
from support.actions import column
from support.feature_tables import create
from support.table import WorkerTable

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
GIB = 1 << 30


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("", {}, MACHINE),
        ("0::/\n", {"memory.max": "1073741824\n"}, GIB),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "2147483648", "a/b/memory.max": "max"}, 2 * GIB),
        ("0::/on/the/machine\n", {"memory.max": "1073741824\n"}, GIB),
        ("0::/a\n", {"memory.max": str(1 << 60)}, MACHINE),
        ("4:cpu,cpuacct:/\n3:memory:/pod\n0::/\n", {"memory/pod/memory.limit_in_bytes": "1073741824"}, GIB),
        ("3:memory:/pod\n", {"memory/memory.limit_in_bytes": str((1 << 63) - 4096)}, MACHINE),
        ("4:cpu:/pod\n", {"memory/pod/memory.limit_in_bytes": "1"}, MACHINE),
        ("nonsense\n::\n", {"memory.max": "what"}, MACHINE),
    ],
)
def test_the_limit_of_a_container_counts(tmp_path: Path, groups: str, limits: dict[str, str], expected: int) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in limits.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert available_memory(tmp_path) == expected


def test_the_memory_of_this_process() -> None:
    assert 0 < available_memory() <= MACHINE


def test_deletion_vectors_that_memory_does_not_take(tmp_path: Path) -> None:
    table = WorkerTable(tmp_path / "table")
    create(table, column("id", "long"), **{"delta.enableDeletionVectors": "true"})
    rows = 64 * (MAX_INLINE_WORDS + 10)
    table.write(pa.table({"id": range(rows)}))
    table.run(plan_delete, predicate=f"id IN ({', '.join(str(i) for i in range(0, rows, 64))})")
    before = list((table.path / "staged").rglob("*.parquet"))
    table.max_memory = 1000
    with pytest.raises(DeltaUnsupportedOperationException, match=r"vectors \([0-9,]+ words.*1,000 bytes \(max_memory\)"):
        table.run(plan_reorg)
    left = set((table.path / "staged").rglob("*.parquet")) - {*before}
    assert not [path for path in left if "scan" not in str(path)], "only what the plan itself has written"
    table.max_memory = None
    table.run(plan_reorg)
    assert len(table.rows()) == rows - rows // 64


def test_what_is_refused_says_what_to_do(tmp_path: Path) -> None:
    table = WorkerTable(tmp_path / "table")
    create(table, column("id", "long"))
    table.write(pa.table({"id": [1]}))
    request = plan_delete(table.view(table.begin()), predicate="id = 1").request
    MemoryBound(request, 10 << 30).check(10 << 30, "This")
    with pytest.raises(DeltaUnsupportedOperationException, match=r"This takes 10 GiB .* 2,048 MiB \(max_memory\)"):
        MemoryBound(request, 2 << 30).check(10 << 30, "This")
    with pytest.raises(DeltaUnsupportedOperationException, match=r"a quarter of the memory that this process may have"):
        MemoryBound(request).check(available_memory(), "This", known=False)
