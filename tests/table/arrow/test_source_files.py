"""Parquet files loaded by the worker, and files that a function of the author reads."""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import DeltaError, DeltaFileNotFoundException, SchemaMismatchException
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.factory import store_for
from airflow_delta.table.arrow import source_files
from airflow_delta.table.arrow.source_files import read_arrow_files
from airflow_delta.table.positions.files.pattern import SourcePattern
from airflow_delta.table.positions.files.unloaded import CopyIntoOptions, SourceFiles, find_source_files
from airflow_delta.tasks.stage.files_to_load import new_files
from support.readers import READERS
from support.table import Table

READS = [
    lambda file: pd.read_csv(file).to_dict("records"),
    lambda file: pl.read_csv(file).to_dicts(),
    lambda file: pyarrow.csv.read_csv(file).to_pylist(),
]
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])


def field(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


class Loads:
    """A directory of files, and a table that loads them."""

    def __init__(self, path: Path) -> None:
        self.source = path / "raw"
        self.source.mkdir()
        self.target = Table(path / "facts")

    def put(self, files: dict[str, Any]) -> None:
        for name, content in files.items():
            if isinstance(content, pa.Table):
                pq.write_table(content, self.source / name)
            else:
                (self.source / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    def find(self, *fields: dict[str, Any], **begin: Any) -> tuple[Any, SourceFiles, Any]:
        handle = self.target.begin(schema=json.dumps(struct(*fields)), **begin)
        view = self.target.view(handle, task_id="stage")
        pattern = SourcePattern.parse(f"{self.source}/*")
        return handle, find_source_files(view, store_for(pattern.base), pattern, CopyIntoOptions()), view.schema

    def __call__(
        self, files: dict[str, Any], *fields: dict[str, Any], merge_schema: bool = False, **begin: Any
    ) -> list[dict[str, Any]]:
        """Load files and return the rows of the table."""
        self.put(files)
        handle, found, schema = self.find(*fields, **begin)
        rows = read_arrow_files(found, schema)
        staged = self.target.stage(handle, rows.read_all(), merge_schema=merge_schema)
        self.target.publish(handle, dataclasses.replace(staged, loads=(found.load,)))
        return sorted(READERS["delta-rs"](self.target.uri, None).to_pylist(), key=repr)


@pytest.fixture
def load(tmp_path: Path) -> Loads:
    return Loads(tmp_path)


class TestParquet:
    PLAIN = pa.table({"a": ["x"]})

    @pytest.mark.parametrize(
        "kind", [pa.dictionary(pa.int8(), pa.string()), pa.large_string(), pa.dictionary(pa.int32(), pa.large_string())], ids=str
    )
    @pytest.mark.parametrize("first", [False, True])
    def test_categories_beside_plain_texts(self, load, kind, first):
        other = pa.table({"a": pa.array(["y", None]).cast(kind)})
        files = {"a.parquet": other, "b.parquet": self.PLAIN} if first else {"a.parquet": self.PLAIN, "b.parquet": other}
        assert load(files, field("a", "string")) == [{"a": "x"}, {"a": "y"}, {"a": None}]

    def test_categories_inside_structs(self, load):
        inner = pa.array(["y"]).dictionary_encode()
        files = {
            "a.parquet": pa.table({"a": [{"x": "x"}]}),
            "b.parquet": pa.table({"a": pa.StructArray.from_arrays([inner], ["x"])}),
        }
        assert load(files, field("a", struct(field("x", "string")))) == [{"a": {"x": "x"}}, {"a": {"x": "y"}}]

    @pytest.mark.parametrize(
        "content", [pa.table({"a": NOT_UTF8}), b"PAR1xxxx", b"x" * 100], ids=["not UTF-8", "cut", "no Parquet"]
    )
    def test_what_is_not_read(self, load, content):
        with pytest.raises(SchemaMismatchException):
            load({"a.parquet": content}, field("a", "string"))


def damaged_parquet(where: str) -> bytes:
    """Return a file in which some bytes are others, in its pages or in its footer."""
    body = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"a": [f"text {number}" for number in range(5_000)]}), body, compression="snappy", use_dictionary=False
    )
    data = bytearray(body.getvalue().to_pybytes())
    length = int.from_bytes(data[-8:-4], "little")
    at = 40 if where == "pages" else len(data) - 8 - length
    data[at : at + 60] = b"\xff" * 60
    return bytes(data)


@pytest.mark.parametrize("where", ["pages", "footer"])
def test_a_damaged_parquet_file_is_named_and_not_read_again(load, where):
    """Arrow's error may be an OSError, like those of a store that fails."""
    with pytest.raises(SchemaMismatchException, match=r"The file b\.parquet of .*/raw/\* cannot be read as Parquet: ") as raised:
        load({"a.parquet": pa.table({"a": ["x"]}), "b.parquet": damaged_parquet(where)}, field("a", "string"))
    assert type(raised.value.__cause__) in (OSError, pa.ArrowInvalid)


@pytest.mark.parametrize("small", [True, False])
def test_a_store_that_fails_is_no_damaged_file(load, monkeypatch, small):
    monkeypatch.setattr(source_files, "_SMALL_BYTES", 1 << 20 if small else 0)
    load.put({"a.parquet": pa.table({"a": ["x"]})})
    _, found, schema = load.find(field("a", "string"))

    def failing(*_: Any) -> Any:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(type(found.store), "read_range" if small else "open_input", failing)
    with pytest.raises(OSError, match="the disk is gone") as raised:
        read_arrow_files(found, schema)
    assert not isinstance(raised.value, DeltaError)


@pytest.mark.parametrize("parsed", [True, False])
def test_many_files_in_order_and_the_first_that_cannot_be_read(load, monkeypatch, parsed):
    """More than threads, and than are taken together; whether or not footers stay parsed."""
    monkeypatch.setattr(source_files, "_FOOTER_BYTES", 1 << 20 if parsed else 0)
    files = {f"{number:03d}.parquet": pa.table({"a": [f"{number}"]}) for number in range(300)}
    assert load(files, field("a", "string")) == sorted(({"a": f"{number}"} for number in range(300)), key=repr)
    load.put({f"{number}.parquet": b"no Parquet" for number in range(400, 700)})
    _, found, schema = load.find(field("a", "string"))
    with pytest.raises(SchemaMismatchException, match=r"The file 400\.parquet"):
        read_arrow_files(found, schema)


@pytest.mark.parametrize("read", READS, ids=["pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("remote", [False, True], ids=["local", "as on an object store"])
def test_a_file_as_a_function_of_the_author_opens_it(load, monkeypatch, read, remote):
    load.put({"a.csv": "id,name\n1,x\n"})
    _, found, _ = load.find(field("id", "long"), field("name", "string"))
    if remote:
        monkeypatch.setattr(type(found.store), "open_input", LogStore.open_input)
    (file,) = new_files(found)
    assert (file.path, file.size) == (str(load.source / "a.csv"), 12)
    assert file.modification_time.timestamp() == pytest.approx((load.source / "a.csv").stat().st_mtime, abs=0.01)
    with file.open() as opened:
        assert read(opened) == [{"id": 1, "name": "x"}]
    with io.TextIOWrapper(file.open()) as text:
        assert list(csv.reader(text)) == [["id", "name"], ["1", "x"]]


def test_small_files_are_read_once_and_others_when_their_rows_are(load, monkeypatch):
    files = {f"{n}.parquet": pa.table({"a": [str(n)]}) for n in range(5)}
    load.put(files)
    _, found, schema = load.find(field("a", "string"))
    monkeypatch.setattr(source_files, "_KEPT_BYTES", sum(file.size for file in found.files[:3]))
    rows = read_arrow_files(found, schema)
    for name in files:
        (load.source / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"3\.parquet"):
        rows.read_all()
    with pytest.raises(DeltaFileNotFoundException, match=r"5 of 5 files"):
        found.check()
