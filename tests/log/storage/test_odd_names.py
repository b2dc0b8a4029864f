"""Objects whose names the store's client cannot handle: it fails every page of a listing that has one."""

from __future__ import annotations

import dataclasses
import io
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.factory import store_for
from airflow_delta.table.arrow.source_files import read_arrow_files
from airflow_delta.table.operations.convert import convert_to_delta
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.table.positions.files.pattern import SourcePattern, matching
from airflow_delta.table.positions.files.unloaded import CopyIntoOptions, find_source_files
from airflow_delta.table.state.open_transactions import list_transactions
from support.actions import column, schema
from support.table import Table

pytestmark = pytest.mark.s3

GOOD = ["1.csv", "a/0", "a/0.csv", "a/x.csv", "a/c/y.csv", "b/-.csv", "b/z.csv", "z.csv"]


class Place:
    """A directory on S3 into which anybody may put anything."""

    def __init__(self, client, uri: str, options: dict[str, str]) -> None:
        self._client, self.uri, self._options = client, uri, options
        self._bucket, _, self._prefix = uri.removeprefix("s3://").partition("/")

    def put(self, *names: str, data: bytes = b"1\n") -> None:
        for name in names:
            self._client.put_object(Bucket=self._bucket, Key=f"{self._prefix}/{name}", Body=b"" if name.endswith("/") else data)

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=f"{self._prefix}/{name}")

    @property
    def store(self) -> LogStore:
        return store_for(self.uri, self._options)


@pytest.fixture
def place(s3_client, s3_table, s3_options) -> Place:
    return Place(s3_client, s3_table, s3_options)


@pytest.mark.parametrize("odd", ["a//b.csv", "a//", "a/./b.csv", "a/c//b.csv", "a/c/../b.csv", "b//q.csv"])
def test_one_odd_name_is_named_and_the_others_load(place, odd, caplog):
    place.put(*GOOD)
    pattern = SourcePattern.parse(f"{place.uri}/", recursive=True)
    assert {status.path for status in matching(place.store, pattern)[1]} == set(GOOD)
    place.put(odd)
    with caplog.at_level(logging.WARNING):
        found = {status.path for status in matching(place.store, pattern)[1]}
    assert f"lake/table/{odd}" in caplog.text
    hidden = {"b/-.csv"} if odd.startswith("b/") else set()
    assert found == set(GOOD) - hidden
    if hidden:
        assert (
            f"Of the directory {place.uri}/b, what begins with another sign than a digit, a letter or '_' is passed"
            in caplog.text
        )


def test_a_directory_of_which_nothing_can_be_seen_is_passed_over(place, caplog):
    place.put(*GOOD, "a//b.csv", "a/x/../b.csv", "a/x//c.csv", "a/~/./d.csv")
    with caplog.at_level(logging.WARNING):
        assert {status.path for status in place.store.list_readable("")} == {name for name in GOOD if not name.startswith("a/")}
    assert f"Of the directory {place.uri}/a, all of it is passed over" in caplog.text


def test_a_log_of_which_nothing_can_be_seen_is_refused(place):
    """Files of a table would be taken for files to load."""
    place.put("t/rows.csv", "t/_delta_log/00000000000000000000.json", "t/_delta_log//x", "t/_delta_log/x/./y")
    with pytest.raises(DeltaIllegalStateException, match="has a name that the store's client cannot handle"):
        list(place.store.list_readable(""))


def test_other_errors_of_a_listing_are_raised(place, s3_options):
    place.put("1.csv")
    store = store_for(place.uri, {**s3_options, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "max_retries": "0"})
    with pytest.raises(OSError, match="failed"):
        list(store.list_readable(""))


def test_copy_into_loads_each_file_once_beside_an_odd_name(place, tmp_path):
    table = Table(tmp_path / "facts")

    def run() -> None:
        handle = table.begin(schema=schema(column("id", "long")))
        pattern = SourcePattern.parse(f"{place.uri}/", recursive=True)
        view = table.view(handle, task_id="load")
        found = find_source_files(view, place.store, pattern, CopyIntoOptions())
        if found.load is not None:
            found.check()
            staged = table.stage(handle, pa.table(read_arrow_files(found, view.schema).read_all()), task_id="load")
            found.check()
            table.publish(handle, dataclasses.replace(staged, loads=(found.load,)))

    def rows(value: int) -> bytes:
        pq.write_table(pa.table({"id": [value]}), file := io.BytesIO())
        return file.getvalue()

    place.put("raw/1.parquet", data=rows(1))
    place.put("raw/a/2.parquet", data=rows(2))
    place.put("raw/a//b.parquet", data=rows(3))
    run()
    run()
    assert table.rows() == [(1,), (2,)]
    place.delete("raw/a//b.parquet")
    place.put("raw/a/b.parquet", data=rows(3))
    run()
    assert table.rows() == [(1,), (2,), (3,)]


def test_what_must_see_everything_refuses_and_names_the_object(place, s3_options):
    """Files that do not show would be missing from the table, or deleted with what hides them."""
    pq.write_table(pa.table({"id": [1]}), file := io.BytesIO())
    place.put("x.parquet", data=file.getvalue())
    place.put("staged//odd")
    log = DeltaLog.for_table(place.uri, s3_options)
    named = r"Listing s3://\S+ failed: an object there has a name .*staged//.* Rename the object, or move it elsewhere"
    with pytest.raises(DeltaIllegalStateException, match=named):
        convert_to_delta(log, transaction_key="convert", attempt="1-0")
    place.delete("staged//odd")
    convert_to_delta(log, transaction_key="convert", attempt="1-0")
    place.put("staged//odd")
    for look in (lambda: vacuum(log), lambda: list_transactions(log)):
        with pytest.raises(DeltaIllegalStateException, match=named):
            look()
