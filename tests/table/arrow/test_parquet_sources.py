"""Parquet files that Arrow loads: small files of large rows, and columns that files encode in different ways."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import SchemaMismatchException
from airflow_delta.log.schema.types import StructType
from airflow_delta.log.storage.factory import store_for
from airflow_delta.table.arrow.source_files import read_arrow_files
from airflow_delta.table.positions.files.records import LoadedFile
from airflow_delta.table.positions.files.unloaded import SourceFiles


@pytest.fixture
def read(tmp_path):
    def rows(**tables: pa.Table) -> pa.RecordBatchReader:
        files = []
        for name, table in tables.items():
            path = tmp_path / f"{name}.parquet"
            pq.write_table(table, path, compression="zstd")
            files.append(LoadedFile(path=path.name, size=path.stat().st_size, modification_time=0))
        found = SourceFiles(store_for(str(tmp_path)), str(tmp_path), None, tuple(files))
        return read_arrow_files(found, StructType([]))

    return rows


@pytest.mark.parametrize("nested", [False, True])
def test_one_long_value_in_many_rows_is_decoded_in_parts(read, nested):
    text = pa.repeat("x" * 400_000, 600)
    column = pa.StructArray.from_arrays([text], ["t"]) if nested else text
    batches = [(batch.num_rows, batch.nbytes) for batch in read(a=pa.table({"c": column}))]
    assert sum(rows for rows, _ in batches) == 600
    assert max(size for _, size in batches) < 70 << 20  # all at once: 240 MB


def test_pages_that_declare_far_more_than_they_store_are_refused(read):
    """By the rule of a read, with the file's name."""
    column = pa.array(["x" * 60_000_000 + str(number) for number in range(5)])
    with pytest.raises(SchemaMismatchException, match=r"a\.parquet .*its pages declare"):
        read(a=pa.table({"c": column})).read_all()


@pytest.mark.parametrize("first", ["plain", "encoded"])
def test_values_of_maps_and_lists_in_a_dictionary_go_with_plain_ones(read, first):
    plain, encoded = pa.array(["a", "b", "a"]), pa.array(["a", "b", "a"]).dictionary_encode()

    def table(values: pa.Array) -> pa.Table:
        offsets = pa.array([0, 1, 3], pa.int32())
        return pa.table(
            {
                "m": pa.MapArray.from_arrays(offsets, pa.array(["k", "k", "l"]), values),
                "l": pa.ListArray.from_arrays(offsets, values),
                "n": pa.MapArray.from_arrays(offsets, pa.array(["k", "k", "l"]), pa.StructArray.from_arrays([values], ["v"])),
            }
        )

    both = [table(plain), table(encoded)]
    one, other = both if first == "plain" else both[::-1]
    rows = read(a=one, b=other).read_all().to_pylist()
    assert rows == table(plain).to_pylist() * 2


def test_a_dictionary_of_many_short_values_does_not_make_batches_small(read):
    column = pa.array([f"{number % 40_000:0>40}" for number in range(200_000)])
    rows = [batch.num_rows for batch in read(a=pa.table({"c": column}))]
    assert sum(rows) == 200_000
    assert len(rows) < 10
