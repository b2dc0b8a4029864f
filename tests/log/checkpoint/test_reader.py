"""Reading checkpoints by delta-rs and by us, with and without footer statistics, and damaged ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log import DeltaLog, DomainMetadata
from airflow_delta.log.checkpoint import part as checkpoint_part
from airflow_delta.log.checkpoint import part_files as checkpoint_files
from airflow_delta.log.checkpoint.part import CheckpointPart, RowGroup
from airflow_delta.log.checkpoint.reader import CheckpointReader
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.factory import store_for
from support.actions import add, metadata, txn
from support.tables import create_table, log_path, write_commit


def reader_of(table: Path) -> CheckpointReader:
    parts = sorted((table / "_delta_log").glob("*.checkpoint*.parquet"))
    statuses = [FileStatus(f"_delta_log/{part.name}", part.stat().st_size, 0) for part in parts]
    return CheckpointReader(store_for(str(table)), statuses, version=0, table=str(table))


def rewrite(table: Path, **options) -> None:
    """Rewrite the checkpoint with other Parquet settings."""
    for part in (table / "_delta_log").glob("*.checkpoint*.parquet"):
        pq.write_table(pq.read_table(part), part, **options)


@pytest.fixture
def delta_rs_table(table: Path) -> Path:
    data = pa.table({"id": pa.array(range(20), pa.int64()), "part": pa.array([str(n) for n in range(20)])})
    txns = CommitProperties(app_transactions=[Transaction("a", 3), Transaction("b", 5)])
    write_deltalake(str(table), data, partition_by=["part"], configuration={"delta.appendOnly": "false"}, commit_properties=txns)
    DeltaTable(str(table)).delete("id < 4")
    DeltaTable(str(table)).create_checkpoint()
    return table


@pytest.fixture
def our_table(table: Path) -> Path:
    domains = [DomainMetadata(domain="d", configuration='{"k":1}', removed=False)]
    create_table(
        table, *(add(f"{n}", part=str(n)) for n in range(16)), txn("a", 3, 1), txn("b", 5), *domains, partition_columns=["part"]
    )
    log = DeltaLog.for_table(str(table))
    write_checkpoint(log.snapshot)
    return table


SETTINGS = {
    "as written": None,
    "no statistics": {"write_statistics": False},
    "one row a group": {"row_group_size": 1},
    "one row a group, no statistics": {"row_group_size": 1, "write_statistics": False},
    "uncompressed": {"compression": "none"},
    "zstd, dictionaries, old pages": {"compression": "zstd", "use_dictionary": True, "data_page_version": "2.0"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("writer", ["delta_rs_table", "our_table"])
def test_every_kind_of_action(request: pytest.FixtureRequest, writer: str, settings: dict | None) -> None:
    table = request.getfixturevalue(writer)
    if settings is not None:
        rewrite(table, **settings)
    reader = reader_of(table)
    protocol, found = reader.protocol_and_metadata()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert found.partition_columns == ["part"]
    if writer == "our_table":
        assert found == metadata(partition_columns=["part"])
        assert reader.domain_metadata() == {"d": DomainMetadata(domain="d", configuration='{"k":1}', removed=False)}
        assert reader.set_transactions() == {"a": txn("a", 3, 1), "b": txn("b", 5)}
    else:
        assert found.configuration == {"delta.appendOnly": "false"}
        assert reader.domain_metadata() == {}
    assert reader.transactions() == {"a": 3, "b": 5}
    assert [reader.transactions(prefix) for prefix in ("a", "b", "aa", "c")] == [{"": 3}, {"": 5}, {}, {}]
    assert [reader.transaction_version(app) for app in ("a", "b", "c")] == [3, 5, None]
    adds = [row for batch in reader.batches("add", ["path", "size"]) for row in batch.to_pylist()]
    assert len(adds) == 16
    assert all(set(row) == {"path", "size"} for row in adds)
    removes = [row for batch in reader.batches("remove", ["path"]) for row in batch.to_pylist()]
    assert len(removes) == (4 if writer == "delta_rs_table" else 0)


def test_small_actions_do_not_read_the_row_groups_of_files(our_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "ROW_GROUP_ROWS", 4)
    write_checkpoint(DeltaLog.for_table(str(our_table)).snapshot)
    reader = reader_of(our_table)
    groups = reader.parts[0].row_groups
    assert len(groups) > 4
    assert len(reader.row_groups("add")) == 4
    assert len(reader.row_groups("txn")) < len(groups)
    assert not set(reader.row_groups("add")) & set(reader.row_groups("protocol"))


def test_transactions_do_not_read_the_row_groups_of_others(our_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "ROW_GROUP_ROWS", 4)
    write_commit(our_table, 1, *(txn(f"{letter}/{n:02}", n) for letter in "xyz" for n in range(40)))
    write_checkpoint(DeltaLog.for_table(str(our_table)).snapshot)
    log_path(our_table, f"{0:020d}.checkpoint.parquet").unlink(missing_ok=True)
    read: list[int] = []
    batches = checkpoint_part.CheckpointPart.batches

    def counted(part: CheckpointPart, groups: Sequence[RowGroup], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        read.append(len(groups))
        return batches(part, groups, columns)

    monkeypatch.setattr(checkpoint_part.CheckpointPart, "batches", counted)
    reader = reader_of(our_table)
    assert reader.transaction_version("y/07") == 7
    assert reader.transaction_version("zz") is None
    assert reader.transactions("y/") == {f"{n:02}": n for n in range(40)}
    named = [*(("x", n) for n in range(10, 20)), *(("z", n) for n in range(30, 40))]
    assert reader.transactions_of(("x/1", "z/3")) == [txn(f"{letter}/{n}", n) for letter, n in named]
    assert read[0] == 1
    assert read[1] == 0
    assert read[2] <= 12
    assert read[3] <= 8


def test_bounds_that_are_no_text_skip_nothing(our_table: Path) -> None:
    part = next((our_table / "_delta_log").glob("*.checkpoint.parquet"))
    rows = pa.array([b"a", b"b", b"\xff\xfe"], pa.binary()).view(pa.string())
    txns = pa.StructArray.from_arrays([rows, pa.array([3, 5, 7], pa.int64())], names=["appId", "version"])
    pq.write_table(pa.table({"txn": txns}), part)
    assert [reader_of(our_table).transaction_version(app) for app in ("a", "b", "c")] == [3, 5, None]
    assert reader_of(our_table).transactions("b") == {"": 5}


def test_many_parts(our_table: Path) -> None:
    log = DeltaLog.for_table(str(our_table))
    write_checkpoint(log.snapshot, part_size=3)
    log_path(our_table, f"{0:020d}.checkpoint.parquet").unlink()
    reader = reader_of(our_table)
    assert len(reader.parts) == 7
    assert sum(batch.num_rows for batch in reader.batches("add", ["path"])) == 16
    assert reader.transaction_version("b") == 5
    assert reader.protocol_and_metadata()[1] == metadata(partition_columns=["part"])
    assert reader.num_rows == 21


def test_columns_that_are_not_there_are_left_out(delta_rs_table: Path) -> None:
    reader = reader_of(delta_rs_table)
    (batch,) = reader.batches("add", ["path", "stats_parsed.numRecords", "nonsense"])
    assert batch.schema.names == ["path"]
    assert not reader.has_column(("stats_parsed",))
    assert reader.has_column(("deletionVector", "storageType"))
    assert not reader.may_have_values(("add", "deletionVector", "storageType"))


DAMAGE = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "only the magic": lambda data: data[:4],
    "footer overwritten": lambda data: (
        data[: (at := len(data) - 8 - int.from_bytes(data[-8:-4], "little"))] + b"\xff" * 64 + data[at + 64 :]
    ),
    "pages overwritten": lambda data: data[:4] + b"\xff" * (len(data) // 2) + data[4 + len(data) // 2 :],
    "not Parquet": lambda data: b"nonsense" * 100,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize(
    "read",
    [
        lambda reader: reader.protocol_and_metadata(),
        lambda reader: reader.transaction_version("a"),
        lambda reader: list(reader.batches("add", ["path", "partitionValues", "stats"])),
    ],
    ids=["metadata", "txn", "files"],
)
def test_damaged_files_are_named(our_table: Path, damage, read) -> None:
    file = log_path(our_table, f"{0:020d}.checkpoint.parquet")
    data = file.read_bytes()
    file.write_bytes(damage(data))
    reader = reader_of(our_table)
    if damage is DAMAGE["pages overwritten"]:
        with pytest.raises(DeltaLogCorruptedException, match=file.name):
            list(reader.batches("add", ["path", "partitionValues", "stats"]))
        return
    with pytest.raises(DeltaLogCorruptedException, match=f"{file.name}.*{our_table}") as error:
        read(reader)
    assert error.value.version == 0


def test_a_missing_part_is_named(our_table: Path) -> None:
    reader = reader_of(our_table)
    log_path(our_table, f"{0:020d}.checkpoint.parquet").unlink()
    with pytest.raises(DeltaLogCorruptedException, match="is missing"):
        reader.protocol_and_metadata()


def test_a_damaged_checkpoint_is_not_needed_while_commits_are_there(our_table: Path) -> None:
    write_commit(our_table, 1, add("more", part="m"))
    log_path(our_table, f"{0:020d}.checkpoint.parquet").write_bytes(b"")
    assert DeltaLog.for_table(str(our_table)).snapshot.files().num_rows == 17


def test_rows_cross_batches(our_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_part, "BATCH_ROWS", 3)
    rewrite(our_table, row_group_size=5)
    assert DeltaLog.for_table(str(our_table)).snapshot.files("part > '5'", columns=["path"])["path"].to_pylist() == list("6789")


def test_storage_errors_are_not_corruption(our_table: Path) -> None:
    class Broken:
        local_root = None

        def open_input(self, path: str, size=None, ranges=None):
            raise ConnectionError("reset")

    reader = CheckpointReader(Broken(), [FileStatus("x", 10, 0)], version=0, table="t")
    with pytest.raises(ConnectionError):
        reader.protocol_and_metadata()


def test_pages_with_fewer_rows_than_the_footer_says(tmp_path: Path) -> None:
    """Arrow believes their headers: files would be missing without a word."""
    content = pa.table({"add": pa.array([{"path": f"f{number}"} for number in range(3_000)])})
    file = tmp_path / "part.parquet"
    pq.write_table(content, file, compression="none", use_dictionary=False, write_statistics=False)
    data = file.read_bytes()
    many, fewer = b"\xf0\x2e", b"\xee\x2e"  # 3,000 and 2,999, as Thrift writes them
    assert 0 < data.index(many) < 32, "in the header of the page"
    part = checkpoint_part.CheckpointPart(store_for(str(tmp_path)), FileStatus(file.name, len(data), 0), table="t", version=7)
    assert sum(batch.num_rows for batch in part.batches(part.row_groups, ["add.path"])) == 3_000
    file.write_bytes(data.replace(many, fewer, 1))
    part = checkpoint_part.CheckpointPart(store_for(str(tmp_path)), FileStatus(file.name, len(data), 0), table="t", version=7)
    with pytest.raises(
        DeltaLogCorruptedException, match=r"part\.parquet of version 7 .* has 2,999 rows where its footer says 3,000"
    ):
        list(part.batches(part.row_groups, ["add.path"]))
