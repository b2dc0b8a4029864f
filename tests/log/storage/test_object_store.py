"""Tables on S3, against a real server (an emulator that honours ``If-None-Match``)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException, NonEmptyLocationException, VersionsNotContiguousException
from airflow_delta.log import DeltaLog, Metadata, Protocol
from airflow_delta.log.actions.actions import encode_actions
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.errors import AmbiguousPutError, StoreRefusedError
from airflow_delta.log.storage.factory import store_for
from airflow_delta.log.storage.object import ObjectStore
from airflow_delta.table.start.location import check_location
from support import tables

pytestmark = pytest.mark.s3


@pytest.fixture
def store(s3_table: str, s3_options: dict[str, str]) -> ObjectStore:
    store = store_for(s3_table, s3_options)
    assert isinstance(store, ObjectStore)
    return store


def test_put_and_read(store: ObjectStore) -> None:
    store.put_if_absent("_delta_log/f", b"first")
    with pytest.raises(FileExistsError):
        store.put_if_absent("_delta_log/f", b"second")
    assert store.read("_delta_log/f") == b"first"
    store.put("_delta_log/f", b"third")
    assert store.read("_delta_log/f") == b"third"
    status = store.head("_delta_log/f")
    assert status is not None
    assert (status.path, status.size) == ("_delta_log/f", 5)
    assert status.modification_time > 1_600_000_000_000


def test_two_writers_race_for_one_version(s3_table: str, s3_options: dict[str, str]) -> None:
    for version in range(5):
        barrier = threading.Barrier(4)
        won: list[int] = []
        lost: list[int] = []

        def put(writer: int, version: int = version, barrier=barrier, won=won, lost=lost) -> None:
            log = DeltaLog.for_table(s3_table, s3_options)
            barrier.wait()
            try:
                log.write_commit(version, b'{"commitInfo":{"txnId":"%d"}}\n' % writer)
                won.append(writer)
            except FileExistsError:
                lost.append(writer)

        threads = [threading.Thread(target=put, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 3)
        assert b'"%d"' % won[0] in store_for(s3_table, s3_options).read(f"_delta_log/{version:020d}.json")


@pytest.mark.parametrize("name", ["with space", "50%", "p=a%3Ab", "über", "a+b", "x:y", "q?", "#1", "[b]{c}*"])
def test_keys_are_taken_literally(store: ObjectStore, s3_client, s3_bucket: str, name: str) -> None:
    store.put(f"data/{name}/f", b"x")
    keys = [entry["Key"] for entry in s3_client.list_objects_v2(Bucket=s3_bucket)["Contents"]]
    assert keys == [f"lake/table/data/{name}/f"]
    assert [status.path for status in store.list_recursive("data")] == [f"data/{name}/f"]
    assert [status.path for status in store.list_from(f"data/{name}", "")] == [f"data/{name}/f"]
    assert store.read(f"data/{name}/f") == b"x"
    assert store.head(f"data/{name}/f") is not None
    assert store.delete_tree("data") == 1
    assert list(store.list_recursive("")) == []


@pytest.mark.parametrize("name", ["with space", "50%", "über"])
def test_a_table_uri_is_taken_literally(name: str, s3_client, s3_bucket: str, s3_options: dict[str, str]) -> None:
    store = store_for(f"s3://{s3_bucket}/{name}/t/", s3_options)
    store.put("f", b"x")
    assert [entry["Key"] for entry in s3_client.list_objects_v2(Bucket=s3_bucket)["Contents"]] == [f"{name}/t/f"]
    assert [status.path for status in store.list_recursive("")] == ["f"]


def test_listing_starts_at_the_name(store: ObjectStore) -> None:
    for version in (0, 8, 9, 10, 11):
        store.put(f"_delta_log/{version:020d}.json", b"1")
    store.put(f"_delta_log/{9:020d}.crc", b"1")
    store.put("_delta_log/_last_checkpoint", b"1")
    store.put("_delta_log/_sidecars/x", b"1")
    names = [status.name for status in store.list_from("_delta_log", f"{9:020d}.json")]
    assert names == [f"{9:020d}.json", f"{10:020d}.json", f"{11:020d}.json", "_last_checkpoint"]
    assert len(store.list_from("_delta_log", f"{9:020d}")) == 5
    assert store.list_from("nothing", "a") == []


def test_many_objects(store: ObjectStore) -> None:
    for number in range(1005):
        store.put(f"d/{number:04d}", b"%d" % number)
    assert len(store.list_from("d", "0003")) == 1002
    assert store.read_many([f"d/{number:04d}" for number in range(40)]) == [b"%d" % number for number in range(40)]
    with pytest.raises(FileNotFoundError):
        store.read_many(["d/0001", "d/none"])
    assert store.delete_tree("d") == 1005
    assert list(store.list_recursive("d")) == []


def test_an_empty_object_with_the_name_of_a_directory_is_no_file(store: ObjectStore) -> None:
    """Hadoop puts such a marker through Azure's Blob API. Another transaction's staging directory must not look like data."""
    store.put("staged/a", b"")
    store.put("staged/a/part", b"x")
    store.put("staged/empty", b"")
    assert store.list_children("staged") == (["empty"], ["a"])


def test_objects_that_stand_for_directories_are_no_files(
    store: ObjectStore, s3_client, s3_bucket: str, s3_table: str, s3_options: dict[str, str]
) -> None:
    """Consoles and Hadoop put empty objects ``out/``; these neither prevent creating a table nor count as files of a job."""
    prefix = f"{s3_table.removeprefix(f's3://{s3_bucket}/')}"
    for name in ("", "_delta_log/", "staged/", "p=1/", "p=2/", "p=2_$folder$"):
        s3_client.put_object(Bucket=s3_bucket, Key=f"{prefix}/{name}", Body=b"")
    assert list(store.list_recursive("")) == []
    assert list(store.list_recursive("p=1")) == store.list_from("_delta_log", "") == []
    assert store.list_children("staged") == ([], [])
    log = DeltaLog.for_table(s3_table, s3_options)
    check_location(log)
    for name in ("p=1/empty", "p=1/data", "p=3"):
        s3_client.put_object(Bucket=s3_bucket, Key=f"{prefix}/{name}", Body=b"" if name.endswith("empty") else b"x")
    assert [status.path for status in store.list_recursive("")] == ["p=1/data", "p=1/empty", "p=3"]
    assert [status.path for status in store.list_recursive("p=1")] == ["p=1/data", "p=1/empty"]
    with pytest.raises(NonEmptyLocationException, match="p=1/data, p=1/empty, p=3"):
        check_location(log)


def test_what_is_missing(store: ObjectStore) -> None:
    assert store.head("f") is None
    with pytest.raises(FileNotFoundError):
        store.read("f")
    with pytest.raises(FileNotFoundError):
        store.open_input("f")
    store.delete(["f"])


def test_ranges_and_parquet(store: ObjectStore) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    content = pa.table({"x": list(range(100_000)), "y": [str(number) * 3 for number in range(100_000)]})
    buffer = io.BytesIO()
    pq.write_table(content, buffer, row_group_size=10_000, compression="none")
    store.put("f.parquet", buffer.getvalue())
    assert store.read_range("f.parquet", 0, 4) == b"PAR1"
    assert store.read_range("f.parquet", len(buffer.getvalue()) - 4, 10) == b"PAR1"
    with store.open_input("f.parquet") as file:
        assert pq.ParquetFile(file).read() == content


def test_an_unknown_option_is_named(s3_table: str, s3_options: dict[str, str]) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="aws_nonsense"):
        store_for(s3_table, {**s3_options, "aws_nonsense": "1"}).read("f")


def test_options_of_other_delta_clients_are_tolerated(s3_table: str, s3_options: dict[str, str]) -> None:
    store = store_for(s3_table, {**s3_options, "AWS_S3_ALLOW_UNSAFE_RENAME": "true", "timeout": "30s"})
    store.put_if_absent("f", b"")
    with pytest.raises(FileExistsError):
        store.put_if_absent("f", b"")


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("gs://bucket/t", {"google_skip_signature": "true"}),
        ("az://container/t", {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}),
        ("abfss://container@account.dfs.core.windows.net/t", {"azure_storage_account_key": "a2V5"}),
        ("s3a://bucket/t", {"aws_region": "eu-west-1"}),
    ],
)
def test_other_clouds_have_a_client(uri: str, options: dict[str, str]) -> None:
    store = store_for(uri, options)
    assert isinstance(store, ObjectStore)
    assert store._make(None) is not None


@pytest.fixture
def broken_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[str]]]:
    """A server that answers a put with a 500, with nothing, or by closing the connection."""
    behaviour: str = request.param
    seen: list[str] = []
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            seen.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if behaviour == "500":
                self.send_response(500)
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif behaviour == "409":
                self.send_response(409)
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif behaviour == "silence":
                done.wait(20)
            self.close_connection = True

        def do_HEAD(self) -> None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", seen
    done.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("broken_server", ["500", "hang up", "silence"], indirect=True)
def test_a_put_without_a_clear_answer_is_ambiguous_and_sent_once(
    broken_server: tuple[str, list[str]], s3_options: dict[str, str]
) -> None:
    endpoint, seen = broken_server
    store = store_for("s3://bucket/t", {**s3_options, "AWS_ENDPOINT_URL": endpoint, "timeout": "1s"})
    with pytest.raises(AmbiguousPutError):
        store.put_if_absent("_delta_log/f", b"x")
    assert len(seen) == 1


@pytest.mark.parametrize("broken_server", ["409"], indirect=True)
def test_a_conflict_with_a_put_that_never_appears_is_tried_again_and_then_refused(
    broken_server: tuple[str, list[str]], s3_options: dict[str, str]
) -> None:
    endpoint, seen = broken_server
    store = store_for("s3://bucket/t", {**s3_options, "AWS_ENDPOINT_URL": endpoint})
    with pytest.raises(OSError, match="conflict") as caught:
        store.put_if_absent("_delta_log/f", b"x")
    assert not isinstance(caught.value, (AmbiguousPutError, FileExistsError))
    assert len(seen) == 6


def test_a_store_that_cannot_be_reached_is_ambiguous(s3_options: dict[str, str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = store_for("s3://bucket/t", {**s3_options, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"})
    with pytest.raises(AmbiguousPutError):
        store.put_if_absent("f", b"x")


def test_a_missing_bucket_is_a_definite_refusal(s3_options: dict[str, str]) -> None:
    with pytest.raises(StoreRefusedError, match="404 NoSuchBucket: The specified bucket does not exist") as caught:
        store_for("s3://no-such-bucket-here/t", s3_options).put_if_absent("f", b"x")
    assert not isinstance(caught.value, (AmbiguousPutError, FileExistsError))


# -- a whole log ----------------------------------------------------------------------------------------------------------------


def test_a_log_on_s3(s3_table: str, s3_options: dict[str, str]) -> None:
    log = DeltaLog.for_table(s3_table, s3_options)
    assert not log.table_exists()
    log.write_commit(0, encode_actions([tables.info(), tables.protocol(), tables.metadata(), tables.add("a")]))
    reader = DeltaLog.for_table(s3_table, s3_options)
    assert reader.snapshot.version == 0
    for version in range(1, 25):
        log.write_commit(version, encode_actions([tables.info(), tables.txn("app", version), tables.add(f"{version}")]))
        assert log.write_checksum(log.update())
    assert reader.update().version == 24
    assert reader.snapshot.transaction_version("app") == 24
    assert reader.snapshot.num_files == 25
    assert isinstance(reader.snapshot.metadata, Metadata)
    assert isinstance(reader.snapshot.protocol, Protocol)
    assert [record.version for record in reader.history(3)] == [24, 23, 22]
    assert [commit.version for commit in reader.read_commits(20)] == [20, 21, 22, 23, 24]
    assert reader.read_commits(25) == []
    assert reader.snapshot_at(7).transactions == {"app": 7}
    assert DeltaLog.for_table(s3_table, s3_options).snapshot.num_files == 25


def test_a_checkpoint_on_s3(s3_table: str, s3_options: dict[str, str]) -> None:
    log = DeltaLog.for_table(s3_table, s3_options)
    log.write_commit(0, encode_actions([tables.info(), tables.protocol(), tables.metadata()]))
    for version in range(1, 12):
        log.write_commit(version, encode_actions([tables.info(), tables.txn("app", version), tables.add(f"{version}")]))
    log.checkpoint(log.snapshot_at(10))
    fresh = DeltaLog.for_table(s3_table, s3_options)
    listed: list[str] = []
    list_from = fresh.store.list_from
    fresh.store.list_from = lambda directory, start, **options: (  # type: ignore[method-assign]
        listed.append(start) or list_from(directory, start, **options)  # type: ignore[func-returns-value]
    )
    assert fresh.snapshot.segment.first_commit == 11
    assert listed == [f"{10:020d}"]
    assert sorted(fresh.snapshot.files()["path"].to_pylist(), key=int) == [str(number) for number in range(1, 12)]
    assert fresh.snapshot.transactions == {"app": 11}


def test_a_gap_on_s3(s3_table: str, s3_options: dict[str, str]) -> None:
    log = DeltaLog.for_table(s3_table, s3_options)
    log.write_commit(0, encode_actions([tables.info(), tables.protocol(), tables.metadata()]))
    assert log.update().version == 0
    log.store.put("_delta_log/00000000000000000002.json", encode_actions([tables.info()]))
    with pytest.raises(VersionsNotContiguousException):
        log.update()
    with pytest.raises(VersionsNotContiguousException):
        log.read_commits(1)
    with pytest.raises(VersionsNotContiguousException):
        _ = DeltaLog.for_table(s3_table, s3_options).snapshot


def test_a_commit_that_a_listing_misses_is_no_gap(
    s3_table: str, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listings are not atomic everywhere: one may miss a commit written meanwhile, and yet show a later one."""
    log = DeltaLog.for_table(s3_table, s3_options)
    log.write_commit(0, encode_actions([tables.info(), tables.protocol(), tables.metadata()]))
    assert log.update().version == 0
    for version in (1, 2):
        DeltaLog.for_table(s3_table, s3_options).write_commit(version, encode_actions([tables.info(), tables.add(f"{version}")]))
    whole = log.store.list_from

    def list_from(directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:
        return [status for status in whole(directory, start_name, stat=stat) if status.name != f"{1:020d}.json"]

    monkeypatch.setattr(log.store, "list_from", list_from)
    assert [commit.version for commit in log.read_commits(1)] == [1, 2]
    assert log.update().version == 2
    assert sorted(log.snapshot.files()["path"].to_pylist()) == ["1", "2"]
