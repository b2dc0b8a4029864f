"""Files of a few hundred bytes that are gigabytes once they are decoded."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import DeltaLogCorruptedException, ReadLimitException
from airflow_delta.log import DeltaLog
from airflow_delta.log.data_files import batches, page_sizes
from airflow_delta.log.data_files.data_file import DataFile
from airflow_delta.log.data_files.page_sizes import Chunk, batch_rows, declared, parse_header, problem_of
from airflow_delta.log.data_files.reader import FileReader
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.table.read.read_table import read_table
from support.tables import create_table

# Its own peak: that of resource.getrusage() begins with the size of the process that started it.
READ = """
import re, sys
from pathlib import Path
from airflow_delta.table.read.read_table import read_table
from airflow_delta.exceptions import ReadLimitException
from airflow_delta.log import DeltaLog
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10
before = peak()
try:
    read_table(DeltaLog.for_table(sys.argv[1]), limit=10).to_table()
except ReadLimitException as error:
    print(error.message)
print(peak() - before)
"""


def table_of(path: Path, kind: object, data: pa.Table, **options: object) -> Path:
    """A table with one file, of which the log says that it has one row."""
    file = path / "x.parquet"
    path.mkdir(exist_ok=True)
    pq.write_table(data, file, **options)
    schema = {"type": "struct", "fields": [{"name": "c", "type": kind, "nullable": True, "metadata": {}}]}
    create_table(path, schema_string=json.dumps(schema))
    add = {"path": "x.parquet", "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 1, "dataChange": True}
    line = json.dumps({"add": {**add, "stats": '{"numRecords":1}'}}) + "\n"
    (path / "_delta_log" / f"{1:020}.json").write_text(line)
    return path


class Remote(LocalStore):
    """A store whose files are read as those of an object store."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.inner, self.root, self.local_root = LocalStore(path), "s3://bucket/table", None

    def open_input(self, path: str, size: int | None = None) -> object:
        return self.inner.open_input(path, size)


def rows_of(path: Path, limit: int | None = None) -> int:
    return int(read_table(DeltaLog.for_table(str(path)), limit=limit).to_table().num_rows)


def repeated(text: str, rows: int) -> pa.Table:
    """One value of a dictionary, in every row."""
    return pa.table({"c": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))})


def lists(elements: int) -> pa.Table:
    """One row: a list of zeros."""
    values = pa.array(memoryview(bytes(elements)), pa.int8()) if elements < 0 else pa.Array.from_buffers(
        pa.int8(), elements, [None, pa.py_buffer(bytes(elements))]
    )  # fmt: skip
    return pa.table({"c": pa.ListArray.from_arrays(pa.array([0, elements], pa.int32()), values)})


LIST = {"type": "array", "elementType": "byte", "containsNull": True}


@pytest.fixture(scope="module")
def one_list(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose one page has one value too many: to decode it takes more than a gigabyte."""
    path = tmp_path_factory.mktemp("one") / "list"
    return table_of(path, LIST, lists((1 << 26) + 1), data_page_size=1 << 40, compression="zstd")


def test_few_bytes_do_not_fill_the_memory(tmp_path: Path, one_list: Path) -> None:
    """A process reads them; what it took more than before is measured."""
    tables = {
        "would return more than 10 rows": table_of(tmp_path / "text", "string", repeated("a" * 20_000, 65_536)),
        "values in one page": one_list,
    }
    for said, path in tables.items():
        assert (path / "x.parquet").stat().st_size < 100_000
        done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
        message, taken = done.stdout.splitlines()
        assert said in message, message
        assert str(path) in message
        assert int(taken) < 250, f"{taken} MiB"


def test_a_page_that_decompresses_to_much_more_than_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table_of(tmp_path / "page", "string", pa.table({"c": ["a" * (4 << 20)]}), compression="zstd", use_dictionary=False)
    assert rows_of(path) == 1
    monkeypatch.setattr(page_sizes, "MAX_BYTES", 1 << 20)
    with pytest.raises(ReadLimitException, match=r"x\.parquet of table .* declare 4 MiB in memory for .* stored bytes"):
        rows_of(path)
    plain = table_of(tmp_path / "plain", "string", pa.table({"c": ["a" * (4 << 20)]}), compression="none", use_dictionary=False)
    assert rows_of(plain) == 1


def test_a_footer_that_tells_less_than_the_pages(one_list: Path) -> None:
    """Arrow decodes what a page's header counts."""
    file = one_list / "x.parquet"
    parquet = pq.ParquetFile(file)
    with pa.OSFile(str(file)) as opened:
        found = problem_of(declared(parquet, opened, 0, ["c"], headers=True))
    assert found is not None
    assert "c.list.element declares 67,108,865 values in one page" in found
    by_footer = declared(parquet, None, 0, ["c"], headers=False)
    assert problem_of(by_footer) == found, "the footer tells the same of an honest file"
    assert declared(parquet, None, 0, ["another"], headers=False) == []
    with pytest.raises(ReadLimitException, match="values in one page"):
        rows_of(one_list)


def test_a_page_of_many_values_that_are_stored_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some writers put a row group of lists into one page."""
    data = pa.table({"c": pa.array([[n % 100] * 80 for n in range(1_000)], pa.list_(pa.int8()))})
    path = table_of(tmp_path / "list", LIST, data, data_page_size=1 << 40, use_dictionary=False, compression="none")
    monkeypatch.setattr(page_sizes, "MAX_VALUES", 1 << 10)
    assert rows_of(path) == 1_000


def test_remote_files_with_many_small_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their footer counts the pages of a column together, so their headers are asked before they are refused."""
    monkeypatch.setattr(page_sizes, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(page_sizes, "MAX_VALUES", 1 << 16)
    monkeypatch.setattr(page_sizes, "MAX_FACTOR", 10)
    monkeypatch.setattr("airflow_delta.log.data_files.reader._WHOLE_BYTES", 0)
    for name, kind, values in (("text", "string", ["a" * 1_000] * 20_000), ("list", LIST, [[0] * 80] * 20_000)):
        data = pa.table({"c": pa.array(values, pa.string() if kind == "string" else pa.list_(pa.int8()))})
        options = {"use_dictionary": False, "data_page_size": 1 << 14, "write_batch_size": 100}
        path = table_of(tmp_path / name, kind, data, compression="zstd", **options)
        assert problem_of(declared(pq.ParquetFile(path / "x.parquet"), None, 0, ["c"], headers=False)) is not None
        snapshot = DeltaLog.for_table(str(path)).update()
        [file], fields = list(snapshot.add_files()), snapshot.schema.fields
        reader = FileReader(Remote(str(path)), 1, fields, pa.schema([("c", data.schema[0].type)]), [], by_id=False)
        assert sum(batch.num_rows for batch in reader.read(file, None)) == 20_000


def chunks_of(path: Path, *, headers: bool) -> list[Chunk]:
    with pa.OSFile(str(path / "x.parquet")) as opened:
        return declared(pq.ParquetFile(path / "x.parquet"), opened, 0, ["c"], headers=headers)


def test_batches_are_small_where_one_value_may_stand_in_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table_of(tmp_path / "text", "string", repeated("a" * 20_000, 3_000))
    for module in (page_sizes, batches):
        monkeypatch.setattr(module, "BATCH_BYTES", 16 << 20)
    for headers in (True, False):
        chunks = chunks_of(path, headers=headers)
        assert batch_rows(chunks, 65_536) < 65_536
        assert batch_rows(chunks, 11) == 11
    assert batch_rows([], 65_536) == 65_536
    found = read_table(DeltaLog.for_table(str(path))).to_table().to_batches()
    assert [batch.num_rows for batch in found] == [1_024, 1_024, 952]


@pytest.mark.parametrize("longest", [41, 20_000])
def test_the_longest_value_of_a_dictionary_decides_if_other_pages_do_not_refer_to_it(tmp_path: Path, longest: int) -> None:
    """A writer gives up its dictionary when that is full; its size alone would make all batches small."""
    texts = [f"{n:041}" for n in range(59_999)]
    path = table_of(tmp_path / "text", "string", pa.table({"c": ["a" * longest, *texts]}))
    [chunk] = chunks_of(path, headers=True)
    assert (chunk.refers, chunk.plain > 0, chunk.dictionary > 1 << 20) == (False, True, True)
    assert batch_rows([chunk], 65_536) < 2_000
    asked: list[Chunk] = []
    assert (batch_rows([chunk], 65_536, lambda of: asked.append(of) or longest) == 65_536) == (longest == 41)
    assert asked == [chunk]
    table = read_table(DeltaLog.for_table(str(path))).to_table()
    assert table.column(0).to_pylist() == ["a" * longest, *texts]
    assert batches.longest_value(pq.ParquetFile(path / "x.parquet", read_dictionary=["c"]), 0, chunk) == longest


def test_pages_that_refer_to_a_dictionary(tmp_path: Path) -> None:
    path = table_of(tmp_path / "text", "string", pa.table({"c": [f"{n % 100:040}" for n in range(60_000)]}))
    [chunk] = chunks_of(path, headers=True)
    assert (chunk.refers, chunk.plain, chunk.distinct) == (True, 0, 100)
    assert batches.encoded_columns([chunk], pa.schema([("c", pa.string())]), 60_000) == ["c"]
    assert batches.encoded_columns([chunk], pa.schema([("c", pa.string())]), 11) == [], (
        "each batch would hold the dictionary anew"
    )
    assert batches.encoded_columns([chunk], pa.schema([("c", pa.int64())]), 60_000) == []
    assert chunks_of(path, headers=False)[0].refers, "a guess: each value would take more"


def test_small_batches_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table_of(tmp_path / "text", "string", pa.table({"c": [f"{n:040}" for n in range(60_000)]}))
    monkeypatch.setattr(page_sizes, "BATCH_BYTES", 2 << 20)
    [batch] = read_table(DeltaLog.for_table(str(path))).to_table().to_batches()
    assert batch.column(0).to_pylist() == [f"{n:040}" for n in range(60_000)]
    monkeypatch.setattr("airflow_delta.log.data_files.batches.JOINED_BYTES", 1 << 20)
    found = read_table(DeltaLog.for_table(str(path))).to_table().to_batches()
    assert (len(found) > 1, sum(batch.num_rows for batch in found)) == (True, 60_000)


def test_row_groups_are_decoded_at_once_unless_they_take_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch costs time, above all for the dictionaries that it repeats."""
    texts = [f"{n % 1_000:040}" for n in range(200_000)]
    path = table_of(tmp_path / "text", "string", pa.table({"c": texts}))
    assert [batch.num_rows for batch in read_table(DeltaLog.for_table(str(path))).to_table().to_batches()] == [200_000]
    monkeypatch.setattr("airflow_delta.log.data_files.group_rows.JOINED_BYTES", 4 << 20)
    found = read_table(DeltaLog.for_table(str(path))).to_table()
    assert [batch.num_rows for batch in found.to_batches()] == [66_667, 66_667, 66_666]
    assert found.column(0).to_pylist() == texts


def test_one_long_value_of_a_dictionary_in_every_row(tmp_path: Path) -> None:
    """The mean of the dictionary tells little memory; only the values themselves tell how much it is."""
    indices = pa.array([0] * 200_000, pa.int32())
    values = pa.array(["a" * 1_000, *(str(n) for n in range(10_000))])
    path = table_of(tmp_path / "text", "string", pa.table({"c": pa.DictionaryArray.from_arrays(indices, values)}))
    sizes = [batch.nbytes for batch in read_table(DeltaLog.for_table(str(path)))]
    assert (len(sizes), max(sizes) <= 65_536 * 1_010) == (4, True)


def test_one_long_value_of_a_dictionary_that_not_all_pages_refer_to(tmp_path: Path) -> None:
    texts = [*map(str, range(10_000)), *["a" * 1_000] * 180_000, *(f"{n:020}" for n in range(10_000))]
    options = {"dictionary_pagesize_limit": 150_000, "data_page_size": 1 << 14, "write_batch_size": 1_000}
    path = table_of(tmp_path / "text", "string", pa.table({"c": texts}), **options)
    [chunk] = chunks_of(path, headers=True)
    assert (chunk.refers, chunk.plain > 0, chunk.dictionary > 1_000) == (False, True, True)
    found = list(read_table(DeltaLog.for_table(str(path))))
    assert max(batch.nbytes for batch in found) <= 65_536 * 1_010
    assert [text for batch in found for text in batch.column(0).to_pylist()] == texts


def test_rows_that_take_much_more_than_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table_of(tmp_path / "text", "string", repeated("a" * 20_000, 3_000))
    monkeypatch.setattr("airflow_delta.table.read.read_table.ROWS_BYTES", 8 << 20)
    with pytest.raises(ReadLimitException, match=r"takes more than 8 MiB of memory, from files of [\d,]+ bytes \(x.parquet"):
        rows_of(path, 1_000_000)
    assert rows_of(path) == 3_000, "without a limit"


def test_names_with_dots(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": ["x"], "s": [{"t.u": "y"}]}), tmp_path / "x.parquet")
    parquet = pq.ParquetFile(tmp_path / "x.parquet")
    chunks = [parquet.metadata.row_group(0).column(at).path_in_schema for at in range(2)]
    assert [page_sizes._is_of(path, {"a.b"}) for path in chunks] == [True, False]
    assert [page_sizes._is_of(path, {"s"}) for path in chunks] == [False, True]
    assert [page_sizes._is_of(path, {"a"}) for path in chunks] == [True, False]


@pytest.fixture(scope="module")
def of_every_kind() -> pa.Table:
    """Rows with nulls, lists and long values."""
    long = pa.array([n // 10_000 for n in range(50_000)], pa.int32())
    return pa.table(
        {
            "n": pa.array([None if n % 7 == 0 else n for n in range(50_000)], pa.int64()),
            "s": [f"{n % 100} " + "x" * 50 for n in range(50_000)],
            "l": [[1.5] * (n % 4) for n in range(50_000)],
            "b": pa.DictionaryArray.from_arrays(long, ["long" * 2_000 + str(n) for n in range(5)]),
        }
    )


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_every_page_of_a_file_is_found(tmp_path: Path, of_every_kind: pa.Table, version: str, compression: str) -> None:
    """Their counts add up to that of the footer, with and without dictionaries, nulls, lists and long statistics."""
    file = tmp_path / "x.parquet"
    pq.write_table(
        of_every_kind, file, data_page_version=version, compression=compression, data_page_size=20_000,
        use_dictionary=["s", "b"], row_group_size=20_000, write_page_checksum=True,
    )  # fmt: skip
    footer = pq.ParquetFile(file).metadata
    with pa.OSFile(str(file)) as opened:
        for group in range(footer.num_row_groups):
            for at in range(footer.num_columns):
                chunk = footer.row_group(group).column(at)
                headers = list(page_sizes._headers(opened, chunk))
                pages = headers[1:] if chunk.has_dictionary_page else headers
                assert sum(page.num_values for page in pages) == chunk.num_values
                assert sum(page.length + page.memory for page in headers) == chunk.total_uncompressed_size
                assert len(pages) > 1 or chunk.path_in_schema in ("s", "b")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("length", [0, 1, 100, 127, 128, 400])
def test_headers_of_the_usual_form_say_what_those_of_any_form_do(version: str, length: int) -> None:
    body = io.BytesIO()
    rows = 3_000
    texts = pa.array([None, *["x" * length] * (rows - 1)])
    columns = {
        "t": texts,
        "n": range(rows),
        "b": [True, None] * (rows // 2),
        "d": pa.array(range(rows), pa.int32()).cast(pa.date32()),
    }
    pq.write_table(pa.table(columns), body, data_page_version=version, write_page_checksum=length == 1, data_page_size=1_000)
    file, usual = pa.BufferReader(body.getvalue()), 0
    group = pq.read_metadata(body).row_group(0)
    for at in range(group.num_columns):
        place = group.column(at).dictionary_page_offset or group.column(at).data_page_offset
        end = place + group.column(at).total_compressed_size
        while place < end:
            data = file.read_at(4_096, place)
            expected, found = page_sizes._any(data), page_sizes._usual(data)
            assert found in (None, expected)
            assert parse_header(data) == expected
            usual += found is not None
            place += expected.length + expected.size
    assert (usual > 4) is (version == "1.0"), "the usual form is found where it is"


@pytest.mark.parametrize("data", [b"", b"\x15", b"\x15\x00\x15\x08", b"\x00", b"\x1b\x00\x00", b"\xff" * 40, b"\x1c" * 40])
def test_what_is_no_header(data: bytes) -> None:
    with pytest.raises((IndexError, ValueError)):
        parse_header(data)


def test_a_file_whose_pages_cannot_be_told_is_damaged(tmp_path: Path) -> None:
    path = table_of(tmp_path / "bad", "long", pa.table({"c": pa.array([1], pa.int64())}), compression="none")
    file = path / "x.parquet"
    data = bytearray(file.read_bytes())
    data[4:24] = b"\xff" * 20
    file.write_bytes(data)
    with pytest.raises(DeltaLogCorruptedException, match="header of a page"):
        rows_of(path)


def varint(number: int) -> bytes:
    """A number in Thrift's compact protocol."""
    left, found = (number << 1) if number >= 0 else (-number << 1) - 1, bytearray()
    while left > 127:
        found.append(left & 127 | 128)
        left >>= 7
    return bytes([*found, left])


def change_footer(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the footer of the file, and tell the log its new size."""
    file = path / "x.parquet"
    data = file.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = change(data[start:-8])
    file.write_bytes(data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    commit = path / "_delta_log" / f"{1:020}.json"
    line = json.loads(commit.read_text())
    line["add"]["size"] = file.stat().st_size
    commit.write_text(json.dumps(line) + "\n")


PLAIN = {"compression": "none", "use_dictionary": False, "write_statistics": False}


@pytest.mark.parametrize("number", [-12_345, 12_344])
@pytest.mark.parametrize("kind", ["long", "string"])
def test_headers_that_count_fewer_values_than_there_are_rows(tmp_path: Path, kind: str, number: int) -> None:
    """Arrow believes them, and returns fewer rows; a negative number was divided by."""
    values = pa.array(range(12_345), pa.int64()) if kind == "long" else pa.array([f"x{n}" for n in range(12_345)])
    path = table_of(tmp_path / "bad", kind, pa.table({"c": values}), **PLAIN)
    file = path / "x.parquet"
    data = file.read_bytes()
    at = data.index(varint(12_345))
    assert at < 64, "in the header of the page"
    file.write_bytes(data[:at] + varint(number) + data[at + len(varint(number)) :])
    with pytest.raises(DeltaLogCorruptedException, match=r"number of values|12,344 values for 12,345 rows"):
        rows_of(path)
    opened = DataFile(LocalStore(str(path)), "x.parquet", len(data))
    [group] = opened.groups()
    with pytest.raises(pa.ArrowException if number > 0 else (pa.ArrowException, OSError), match=r"number of values|12,344 rows"):
        opened.read(*group, ["c"])


def test_a_footer_that_counts_more_rows_than_there_are(tmp_path: Path) -> None:
    """As many as it counts were made room for at once; a small batch at a time, fewer came than it counts."""
    path = table_of(tmp_path / "bad", "long", pa.table({"c": pa.array(range(12_345), pa.int64())}), **PLAIN)
    change_footer(path, lambda footer: footer.replace(varint(12_345), varint(1 << 28)))
    assert pq.ParquetFile(path / "x.parquet").metadata.row_group(0).num_rows == 1 << 28
    with pytest.raises(DeltaLogCorruptedException, match="12,345 values for 268,435,456 rows"):
        rows_of(path)


def test_a_remote_footer_that_counts_more_rows_than_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table_of(tmp_path / "bad", "long", pa.table({"c": pa.array(range(12_345), pa.int64())}), **PLAIN)
    change_footer(path, lambda footer: footer.replace(varint(12_345), varint(12_346)))
    monkeypatch.setattr("airflow_delta.log.data_files.reader._WHOLE_BYTES", 0)
    snapshot = DeltaLog.for_table(str(path)).update()
    [file], fields = list(snapshot.add_files()), snapshot.schema.fields
    reader = FileReader(Remote(str(path)), 1, fields, pa.schema([("c", pa.int64())]), [], by_id=False)
    with pytest.raises(DeltaLogCorruptedException, match="row group 0 has 12,345 rows, its footer says 12,346"):
        sum(batch.num_rows for batch in reader.read(file, None))


def test_dictionaries_of_which_the_footer_does_not_tell(tmp_path: Path) -> None:
    """Some writers leave ``dictionary_page_offset`` out: the first page says what it is."""
    texts = [f"{n % 100:01000}" for n in range(150_000)]
    path = table_of(tmp_path / "text", "string", pa.table({"c": texts}), compression="none", write_statistics=False)
    [wanted] = chunks_of(path, headers=True)
    about = pq.ParquetFile(path / "x.parquet").metadata.row_group(0).column(0)
    first, second = varint(about.dictionary_page_offset), varint(about.data_page_offset)

    def change(footer: bytes) -> bytes:
        before, after = footer.split(b"\x26" + second + b"\x26" + first)
        return before + b"\x26" + first + bytes([after[0] + 0x20]) + after[1:]  # fields tell how far they are from the one before

    change_footer(path, change)
    assert not pq.ParquetFile(path / "x.parquet").metadata.row_group(0).column(0).has_dictionary_page
    assert chunks_of(path, headers=True) == [wanted]
    found = list(read_table(DeltaLog.for_table(str(path))))
    assert max(batch.nbytes for batch in found) <= 65_536 * 1_010
    assert [text for batch in found for text in batch.column(0).to_pylist()] == texts


def test_bytes_of_one_length_take_what_they_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pa.table({"c": pa.array([b"x" * 2_000] * 80_000, pa.binary(2_000))})
    path = table_of(tmp_path / "binary", "binary", data, compression="none")
    sizes = [batch.nbytes for batch in read_table(DeltaLog.for_table(str(path)))]
    assert (len(sizes), max(sizes) <= 65_536 * 2_010) == (2, True)
    for module in (page_sizes, batches):
        monkeypatch.setattr(module, "BATCH_BYTES", 16 << 20)
    sizes = [batch.nbytes for batch in read_table(DeltaLog.for_table(str(path)))]
    assert (max(sizes) <= 34 << 20, rows_of(path)) == (True, 80_000)


def test_a_footer_that_counts_no_values(tmp_path: Path) -> None:
    """Arrow returns no batch, nor one to look for the longest value of the dictionary in."""
    texts = [f"{n:010}" * 1_000 for n in range(300)] * 400
    path = table_of(tmp_path / "bad", "string", pa.table({"c": texts}), dictionary_pagesize_limit=1 << 23, write_statistics=False)

    def change(footer: bytes) -> bytes:
        of_file, of_column, *of_group = footer.split(varint(len(texts)))
        return varint(len(texts)).join([of_file + varint(len(texts)) + of_column + varint(0) + of_group[0], *of_group[1:]])

    change_footer(path, change)
    about = pq.ParquetFile(path / "x.parquet").metadata.row_group(0)
    assert (about.num_rows, about.column(0).num_values) == (len(texts), 0)
    with pytest.raises(DeltaLogCorruptedException, match="row group 0 has 0 rows, its footer says 120,000"):
        rows_of(path)
    assert batches.longest_value(pq.ParquetFile(path / "x.parquet"), 0, chunks_of(path, headers=True)[0]) > 10_000
