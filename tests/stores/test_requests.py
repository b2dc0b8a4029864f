"""How many requests large tables cost: they grow with the work, not with the table. Counted before versitygw."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.checkpoint import byte_ranges
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.data_files.footers import read_footers
from airflow_delta.log.storage import object as object_store
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.vacuum.listing import even_cuts
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_files
from airflow_delta.table.start.begin import begin
from stores.proxy import FaultProxy
from stores.servers import Versitygw
from support.actions import add, metadata, protocol
from support.tables import write_commit

STATS = '{"numRecords":3,"minValues":{"id":%d},"maxValues":{"id":%d},"nullCount":{"id":0}}'
TRANSACTION = "00000000-0000-4000-8000-000000000000"


@dataclass
class Place:
    """An empty place for a table on S3, which is a local directory too."""

    path: Path
    uri: str
    options: dict[str, str]
    proxy: FaultProxy

    @property
    def local(self) -> DeltaLog:
        return DeltaLog.for_table(str(self.path))

    @property
    def log(self) -> DeltaLog:
        return DeltaLog.for_table(self.uri, self.options)

    def requests(self, pattern: str = "") -> Counter[str]:
        """Return the requests since the last call by method, listings apart."""
        found = Counter(
            "LIST" if "list-type" in asked["target"] else asked["method"]
            for asked in self.proxy.requests
            if pattern in asked["target"]
        )
        self.proxy.set()
        return found


@pytest.fixture
def place(versitygw: Versitygw, proxy: FaultProxy) -> Place:
    bucket = versitygw.container()
    path = versitygw.directory / "objects" / bucket / "table"
    (path / "_delta_log").mkdir(parents=True)
    return Place(path, f"s3://{bucket}/table", {**versitygw.options, "aws_endpoint_url": proxy.url}, proxy)


def create(place: Place, files: int, *, v2: bool = False) -> None:
    """Make a table with a checkpoint of its only version."""
    features = ["v2Checkpoint"] if v2 else None
    configuration = {"delta.checkpointPolicy": "v2"} if v2 else {}
    write_commit(
        place.path,
        0,
        protocol(3, 7, reader_features=features, writer_features=features) if v2 else protocol(),
        metadata(configuration=configuration, partition_columns=["part"]),
        *(add(f"part=p{n % 10}/{n:06d}", part=f"p{n % 10}", stats=STATS % (n * 7 % files, n * 7 % files)) for n in range(files)),
    )
    write_checkpoint(place.local.snapshot, part_size=files // 8 if v2 else None)


@pytest.mark.parametrize("partitions", [3, 30])
def test_publishing_finished_files_lists_them_once_however_many_directories_they_are_in(place: Place, partitions: int) -> None:
    create(place, 100)
    handle = begin(place.log, transaction_key="run", transaction_id=TRANSACTION)
    job = place.path / "staged" / TRANSACTION / "job"
    for number in range(partitions):
        (job / f"part=p{number}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), job / f"part=p{number}" / "a.parquet")
    staged = collect_files(open_stage(place.log, handle, task_id="job", attempt="1-a"), path="job")
    place.requests()
    result = publish(place.log, handle, [staged], attempt="1-b")
    assert result.num_files == partitions
    listed = place.requests("staged")
    assert listed["LIST"] <= 6


def test_a_missing_file_of_many_directories_is_still_missed(place: Place) -> None:
    from airflow_delta.exceptions import StagedFileException

    create(place, 100)
    handle = begin(place.log, transaction_key="run", transaction_id=TRANSACTION)
    job = place.path / "staged" / TRANSACTION / "job"
    for number in range(9):
        (job / f"part=p{number}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), job / f"part=p{number}" / "a.parquet")
    staged = collect_files(open_stage(place.log, handle, task_id="job", attempt="1-a"), path="job")
    (job / "part=p7" / "a.parquet").unlink()
    with pytest.raises(StagedFileException, match=r"part=p7/a\.parquet .* is gone"):
        publish(place.log, handle, [staged], attempt="1-b")


def test_a_footer_costs_one_request_and_the_front_of_a_file_of_another_job_one_more(place: Place) -> None:
    create(place, 100)
    handle = begin(place.log, transaction_key="run", transaction_id=TRANSACTION)
    job = place.path / "staged" / TRANSACTION / "job" / "part=p1"
    job.mkdir(parents=True)
    large = pa.table({"id": [int.from_bytes(os.urandom(7), "little") for _ in range(20_000)]})
    for number in range(5):
        pq.write_table(large, job / f"{number}.parquet")
    assert (job / "0.parquet").stat().st_size > 100_000
    place.requests()
    staged = collect_files(open_stage(place.log, handle, task_id="job", attempt="1-a"), path="job")
    assert staged.num_files == 5
    assert place.requests("staged") == {"LIST": 1, "GET": 10}
    statuses = list(place.log.store.list_recursive("staged"))
    place.requests()
    assert len(read_footers(place.log.store, statuses)) == 5
    assert place.requests("staged") == {"GET": 5}


def test_of_many_files_no_more_is_read_than_footers_need(place: Place) -> None:
    job = place.path / "many"
    job.mkdir()
    pq.write_table(pa.table({"id": [int.from_bytes(os.urandom(7), "little") for _ in range(20_000)]}), job / "0.parquet")
    for number in range(1, 20):
        os.link(job / "0.parquet", job / f"{number}.parquet")
    statuses = sorted(place.log.store.list_recursive("many"), key=lambda status: status.path)
    place.requests()
    assert [footer.num_rows for footer in read_footers(place.log.store, statuses, 4)] == [20_000] * 20
    asked = place.proxy.requests
    assert len(asked) == 21
    assert sum(request["bytes"] for request in asked) < 2 * 65_536 + 20 * 4_096


@pytest.mark.parametrize("v2", [False, True])
def test_a_checkpoint_is_opened_with_the_size_of_the_listing(place: Place, v2: bool) -> None:
    create(place, 400, v2=v2)
    place.requests()
    assert place.log.snapshot.files("part = 'p3'", columns=["path"]).num_rows == 40
    assert place.requests("checkpoint")["HEAD"] == 0


def test_columns_of_many_row_groups_are_read_together(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_delta.log.checkpoint import part_files as checkpoint_files

    monkeypatch.setattr(checkpoint_files, "ROW_GROUP_ROWS", 50)
    create(place, 5_000)
    place.requests()
    assert place.log.snapshot.files("id = 77", columns=["path"]).num_rows == 1
    assert place.requests(".checkpoint.")["GET"] < 10
    monkeypatch.setattr(byte_ranges, "WINDOW", 10_000)  # and in several windows the same comes out
    assert place.log.snapshot.files(columns=["path"]).sort_by("path") == place.local.snapshot.files(columns=["path"]).sort_by(
        "path"
    )


def test_a_checkpoint_that_was_replaced_since_the_listing_is_read(place: Place) -> None:
    create(place, 400)
    snapshot = place.log.snapshot
    segment = snapshot.segment
    [path] = place.path.glob("_delta_log/*.checkpoint.parquet")
    for compression in ("none", "gzip"):  # larger, then smaller than listed
        pq.write_table(pq.read_table(path), path, compression=compression)
        assert path.stat().st_size != segment.checkpoint.parts[0].size
        assert snapshot.files(columns=["path"]).num_rows == 400
        assert snapshot.segment is segment


def test_the_log_is_listed_past_its_sidecars(place: Place) -> None:
    create(place, 400, v2=True)
    for number in range(3_500):
        (place.path / "_delta_log" / "_sidecars" / f"old-{number:05d}.parquet").write_bytes(b"x")
    place.requests()
    assert place.log.snapshot.version == 0
    assert place.requests()["LIST"] <= 2
    with_rest = place.log.store.list_from("_delta_log", "")
    assert [s.name for s in with_rest] == sorted(p.name for p in (place.path / "_delta_log").iterdir() if p.is_file())


def test_sidecars_are_put_without_asking_for_each(place: Place) -> None:
    create(place, 400, v2=True)
    write_commit(place.path, 1, add("part=p1/new", part="p1"))
    place.requests()
    place.log.checkpoint()
    asked = place.requests()
    assert asked["PUT"] >= 3
    assert asked["HEAD"] <= 2
    [manifest] = place.path.glob(f"_delta_log/{1:020d}.checkpoint.*.json")
    sidecars = [json.loads(line)["sidecar"] for line in manifest.read_text().splitlines() if "sidecar" in line[:15]]
    for sidecar in sidecars:
        status = (place.path / "_delta_log" / "_sidecars" / sidecar["path"]).stat()
        assert sidecar["sizeInBytes"] == status.st_size
        assert abs(sidecar["modificationTime"] - status.st_mtime * 1000) < 2_000


def test_a_large_file_is_put_in_parts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(13 << 20)
    store = place.log.store
    with store.scratch_file() as file:
        file.write(content)
        file.seek(0)
        monkeypatch.setattr(object_store, "_SINGLE_PUT", 1 << 20)
        monkeypatch.setattr(object_store, "_PART", 5 << 20)
        store.put_file("large", file)
    assert place.requests() == {"POST": 2, "PUT": 3}
    assert (place.path / "large").read_bytes() == content


def test_pieces_of_a_listing_are_the_listing(place: Place) -> None:
    names = ["a/1", "a/2", "a b/3", "b/4", "c%20d/6", "e[1]/7", "f~g/8", "i{j}#k/9", "ä/5", "z"]
    for name in names:
        path = place.path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    store = place.log.store
    whole = list(store.list_recursive("data"))
    assert {status.path for status in whole} == {f"data/{name}" for name in names}
    single = [[f"data/{name}"] for name in names]
    for cuts in (*single, ["data/a/1", "data/a/2", "data/b"], ["data/!", "data/zz"], ["data/z", "data/z"]):
        assert list(store.list_recursive("data", cuts=cuts)) == whole


def test_vacuum_lists_a_large_table_in_pieces(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_delta.table.operations.vacuum import listing

    create(place, 400)
    for number in range(400):
        path = place.path / f"part=p{number % 10}" / f"{number:06d}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    (place.path / "part=p7" / "orphan").write_bytes(b"x")
    for path in place.path.rglob("*"):
        os.utime(path, (1_500_000_000, 1_500_000_000))
    assert even_cuts(place.log.snapshot) == []
    monkeypatch.setattr(listing, "_PIECE", 100)
    cuts = even_cuts(place.log.snapshot)
    assert len(cuts) == 3
    place.requests()
    assert vacuum(place.log, dry_run=True).paths == ("part=p7/orphan",)
    assert place.requests("list-type")["LIST"] >= 4
