"""CSV, JSON and Parquet files loaded by the worker: as the table has their columns and as Spark reads them, or not at all."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import (
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaUnsupportedOperationException,
    SchemaMismatchException,
)
from airflow_delta.log.storage.factory import store_for
from airflow_delta.table.arrow import json_files
from airflow_delta.table.arrow.source_files import read_arrow_files
from airflow_delta.table.stage.source_files import CopyIntoOptions, SourceFiles, SourcePattern, find_source_files
from support.readers import READERS
from support.table import Table

HEADER = {"header": True}
NTZ = {"delta.feature.timestampNtz": "supported"}
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])


def field(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "containsNull": True, "elementType": element}


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
        self, file_format: str, files: dict[str, Any], *fields: dict[str, Any], merge_schema: bool = False, **options: Any
    ) -> list[dict[str, Any]]:
        """Load files and return the rows of the table."""
        self.put(files)
        handle, found, schema = self.find(*fields, configuration=options.pop("configuration", {}))
        rows = read_arrow_files(found, schema, file_format=file_format, options=options)
        staged = self.target.stage(handle, rows.read_all(), merge_schema=merge_schema)
        self.target.publish(handle, dataclasses.replace(staged, loads=(found.load,)))
        return sorted(READERS["delta-rs"](self.target.uri, None).to_pylist(), key=repr)


@pytest.fixture
def load(tmp_path: Path) -> Loads:
    return Loads(tmp_path)


ROWS_OF_CSV = [
    r"x\ny,C:\dir",
    r'"C:\dir","a\n"',
    r"\N,\ ",
    r"""a"b,a""b""",
    r"\\,\"x",
    r'"NA","\N"',
    '"",',
    ' "a", b',
    r"é,'a\b'",
    '"a|b",c',
]
ROWS_ONLY_OF_SPARK = [r'"a\\b",c', r'"q\"r",c', '"a""b",c', '"a" ,c', '"a"b,c', r'"a|"b",c', '"a||b",c']
OPTIONS_OF_CSV: list[dict[str, str]] = [
    {},
    {"nullValue": r"\N"},
    {"nullValue": "NA"},
    {"escape": '"'},
    {"escape": ""},
    {"escape": "|"},
    {"quote": "'"},
    {"quote": ""},
]


class TestCsv:
    @pytest.mark.spark
    @pytest.mark.parametrize("options", OPTIONS_OF_CSV, ids=str)
    def test_each_row_is_as_on_spark_or_refused(self, load, spark, options):
        from airflow_delta.spark.source_files import read_spark_files

        texts = [*ROWS_OF_CSV, *ROWS_ONLY_OF_SPARK]
        load.put({f"{number:02}.csv": f"a,b\n{text}\n" for number, text in enumerate(texts)})
        table, given = struct(field("a", "string"), field("b", "string")), {**HEADER, **options}
        paths = [str(load.source / f"{number:02}.csv") for number in range(len(texts))]
        frame = read_spark_files(spark, paths, file_format="csv", options=given, table=table)
        on_spark = {
            Path(row["path"]).name: (row["a"], row["b"]) for row in frame.selectExpr("_metadata.file_path as path", "*").collect()
        }
        _, found, schema = load.find(*table["fields"])
        here = {}
        for file in found.files:
            alone = dataclasses.replace(found, files=(file,))
            try:
                (row,) = read_arrow_files(alone, schema, file_format="csv", options=given).read_all().to_pylist()
                here[file.path] = (row["a"], row["b"])
            except DeltaUnsupportedOperationException:
                pass
        assert here == {name: on_spark[name] for name in here}
        if "quote" not in options and options.get("escape", "\\") != "":
            assert {f"{number:02}.csv" for number in range(len(ROWS_OF_CSV))} <= here.keys()
        if not options:
            assert {f"{number:02}.csv" for number in range(len(ROWS_OF_CSV), len(ROWS_OF_CSV) + 5)}.isdisjoint(here)

    def test_a_backslash_is_not_dropped(self, load):
        rows = load("csv", {"a.csv": 'a,b\nx\\ny,"C:\\dir"\n\\N,z\n'}, field("a", "string"), field("b", "string"), **HEADER)
        assert rows == [{"a": "\\N", "b": "z"}, {"a": "x\\ny", "b": "C:\\dir"}]

    def test_a_quoted_value_that_spark_reads_otherwise_is_refused(self, load):
        with pytest.raises(DeltaUnsupportedOperationException, match=r"b\.csv .* escape='\\\\' .*engine=\"spark\".*escape='\"'"):
            load("csv", {"a.csv": 'a\n"x"\n', "b.csv": 'a\n"x ""y"""\n'}, field("a", "string"), **HEADER)

    def test_doubled_quotes(self, load):
        assert load("csv", {"a.csv": 'a\n"x ""y"""\n'}, field("a", "string"), escape='"', **HEADER) == [{"a": 'x "y"'}]

    @pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
    def test_values_with_line_breaks_where_blocks_end(self, load, monkeypatch, name):
        monkeypatch.setattr("airflow_delta.table.arrow.csv_files.BLOCK", 64)
        values = [f"{number}\n\n{'x' * (number % 40)}\\n\r\n" for number in range(300)]
        text = ("a,b\n" + "".join(f'"{value}",{number}\n' for number, value in enumerate(values))).encode()
        content = gzip.compress(text) if name.endswith("gz") else text
        rows = load("csv", {name: content}, field("a", "string"), field("b", "long"), multiLine=True, **HEADER)
        assert sorted((row["b"], row["a"]) for row in rows) == list(enumerate(values))

    @pytest.mark.parametrize("signs", [("(", "["), ("^", "-"), ("]", "\\"), ("|", "|")])
    def test_signs_that_mean_something_elsewhere(self, load, signs):
        quote, escape = signs
        given = {"quote": quote, "escape": escape, "delimiter": ";", **HEADER}
        text = f"a;b\n{quote}x;y{quote};{escape if escape != quote else ''}z\n"
        rows = load("csv", {"a.csv": text}, field("a", "string"), field("b", "string"), **given)
        assert rows == [{"a": "x;y", "b": f"{escape if escape != quote else ''}z"}]
        changed = f"a;b\n{quote}x{quote} ;y\n"
        with pytest.raises(DeltaUnsupportedOperationException, match=r"b\.csv"):
            load("csv", {"b.csv": changed}, field("a", "string"), field("b", "string"), **given)

    def test_a_value_with_line_breaks_needs_the_option(self, load):
        with pytest.raises(DeltaUnsupportedOperationException, match="multiLine=True"):
            load("csv", {"a.csv": 'a\n"x\ny"\n'}, field("a", "string"), **HEADER)

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "ISO-8859-1"])
    def test_encodings(self, load, encoding):
        content = 'a\n"é"\n'.encode(encoding)
        given = {} if encoding.startswith("utf-8") else {"encoding": encoding}
        assert load("csv", {"a.csv": content}, field("a", "string"), **given, **HEADER) == [{"a": "é"}]

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"encoding": "klingon"}, "encoding of CSV must be the name of one.* 'klingon'"),
            ({"delimiter": "§"}, "delimiter of CSV must be one ASCII character"),
            ({"quote": "«"}, "quote of CSV must be one ASCII character"),
            ({"escape": "ab"}, "escape of CSV must be one ASCII character"),
            ({"delimiter": ""}, "delimiter of CSV must be one ASCII character"),
            ({"delimiter": "\n"}, "delimiter of CSV must be neither a line break"),
            ({"delimiter": "'", "quote": "'"}, "nor the quote"),
        ],
    )
    def test_an_option_without_a_meaning_here_is_named(self, load, options, why):
        with pytest.raises((DeltaIllegalArgumentException, DeltaUnsupportedOperationException), match=why):
            load("csv", {"a.csv": "a\nx\n"}, field("a", "string"), **options, **HEADER)

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("long", "0x10"),
            ("byte", "-0X1"),
            ("byte", "128"),
            ("integer", "1.0"),
            ("boolean", "1"),
            ("boolean", "0"),
            ("long", "x"),
        ],
    )
    def test_a_value_that_is_not_of_its_type_fails(self, load, kind, value):
        with pytest.raises(SchemaMismatchException, match=r"a\.csv .* invalid value|Failed to parse"):
            load("csv", {"a.csv": f"a\n{value}\n"}, field("a", kind), **HEADER)

    def test_values_of_their_types(self, load):
        fields = [field("i", "byte"), field("b", "boolean"), field("n", "timestamp_ntz"), field("t", "timestamp")]
        text = "i;b;n;t\n-128;TRUE;2024-01-01 00:00:00;2024-01-01T02:00:00+02:00\n;false;;\n"
        first, second = load("csv", {"a.csv": text}, *fields, delimiter=";", configuration=NTZ, **HEADER)
        assert (first["i"], first["b"], first["n"].isoformat()) == (-128, True, "2024-01-01T00:00:00")
        assert first["t"].isoformat() == "2024-01-01T00:00:00+00:00"
        assert second == {"i": None, "b": False, "n": None, "t": None}


class TestJson:
    def test_a_column_that_no_document_has_gets_its_default(self, load):
        identity = {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False}
        rows = load(
            "json",
            {"a.json": '{"v": 1, "w": null}\n'},
            field("number", "long", **identity),
            field("v", "long"),
            field("w", "string", CURRENT_DEFAULT="'unknown'"),
            field("x", "string", CURRENT_DEFAULT="'unknown'"),
            configuration={"delta.feature.allowColumnDefaults": "supported"},
        )
        assert rows == [{"number": 1, "v": 1, "w": None, "x": "unknown"}]

    def test_names_have_no_case(self, load):
        files = {"a.json": '{"ID": 1, "S": {"X": "2024-01-01"}}\n', "b.json": '{"id": 2}\n'}
        rows = load("json", files, field("id", "integer"), field("s", struct(field("x", "date"), field("y", "long"))))
        assert [(row["id"], row["s"] and (str(row["s"]["x"]), row["s"]["y"])) for row in rows] == [
            (1, ("2024-01-01", None)),
            (2, None),
        ]

    def test_two_fields_of_one_name(self, load):
        with pytest.raises(SchemaMismatchException, match=r"a\.json .* has the column 'id' twice"):
            load("json", {"a.json": '{"ID": 1}\n{"id": 2}\n'}, field("id", "integer"))

    @pytest.mark.parametrize(
        ("kind", "text", "why"),
        [
            ("timestamp", "2024-01-01T00:00:00", "expected a zone offset"),
            ("timestamp_ntz", "2024-01-01T00:00:00+02:00", "expected no zone offset"),
            ("date", "yesterday", "Failed to parse|error parsing"),
        ],
    )
    @pytest.mark.parametrize("deep", [False, True])
    def test_a_time_is_what_its_type_says(self, load, kind, text, why, deep):
        own = array(struct(field("x", kind))) if deep else kind
        value = [{"x": text}] if deep else text
        with pytest.raises(SchemaMismatchException, match=rf"a\.json .*({why})"):
            load("json", {"a.json": json.dumps({"a": value})}, field("a", own), configuration=NTZ)

    def test_times_and_dates(self, load):
        fields = [field("t", "timestamp"), field("l", array(struct(field("n", "timestamp_ntz"), field("d", "date"))))]
        document = {"t": "2024-01-01 02:00:00.000001+02:00", "l": [{"n": "2024-01-01T00:00:00", "d": "2024-02-29"}, None]}
        (row,) = load("json", {"a.json": json.dumps(document)}, *fields, configuration=NTZ)
        assert row["t"].isoformat() == "2024-01-01T00:00:00.000001+00:00"
        assert [each and [str(value) for value in each.values()] for each in row["l"]] == [
            ["2024-01-01 00:00:00", "2024-02-29"],
            None,
        ]

    def test_columns_that_come_late(self, load, monkeypatch):
        monkeypatch.setattr(json_files, "_HEAD", 30)
        text = '{"a": 1, "s": null, "l": []}\n{"a": 2}\n{"P": 0.10, "s": {"T": "2024-01-01T00:00:00Z"}, "l": [{}], "e": {}}\n'
        fields = [
            field("a", "long"),
            field("p", "decimal(38,2)"),
            field("s", struct(field("t", "timestamp"), field("u", "long"))),
            field("l", array(struct(field("t", "date")))),
            field("e", struct(field("b", "binary"), field("t", "date"))),
            field("m", {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}),
        ]
        last = load("json", {"a.json": text}, *fields)[-1]
        assert (str(last["p"]), last["s"]["t"].year, last["l"], last["e"]) == (
            "0.10",
            2024,
            [{"t": None}],
            {"b": None, "t": None},
        )

    def test_a_file_is_parsed_once(self, load, monkeypatch):
        parsed: list[pa.Schema] = []
        read = json_files.pa_json.read_json

        def counted(*args: Any, **options: Any) -> pa.Table:
            parsed.append(options["parse_options"].explicit_schema)
            return read(*args, **options)

        monkeypatch.setattr(json_files.pa_json, "read_json", counted)
        files = {f"{number}.json": f'{{"ID": {number}, "more": "x"}}\n' for number in range(5)}
        assert len(load("json", files, field("id", "long"), field("day", "date"), merge_schema=True)) == 5
        assert [schema.names for schema in parsed] == [["ID"]] * 5

    def test_rows_that_are_not_held_are_parsed_again(self, load, monkeypatch):
        monkeypatch.setattr(json_files, "_KEPT", 0)
        assert load("json", {"a.json": '{"id": 1}\n'}, field("id", "long")) == [{"id": 1}]

    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            (b'{"a": "\xff\xfe"}\n', "string"),
            (b'{"a": [{"x": "\xff\xfe"}]}\n', array(struct(field("x", "string")))),
            (b'{"a": "x", "new": {"\xff": 1}}\n', "string"),
            (b'{"a": "x", "new": ["\xff"]}\n', "string"),
        ],
    )
    def test_what_is_not_utf8_is_refused(self, load, text, kind):
        with pytest.raises(SchemaMismatchException, match=r"(?i)a\.json .* cannot be read as json: .*utf-?8"):
            load("json", {"a.json": text}, field("a", kind), merge_schema=True)

    @pytest.mark.parametrize(
        ("text", "kind", "error"),
        [
            ("{}\n", "long", SchemaMismatchException),
            ("no\n", "long", SchemaMismatchException),
            ("[" * 100_000, "long", SchemaMismatchException),
            ('{"a": "YWI="}\n', "binary", DeltaUnsupportedOperationException),
        ],
        ids=["no fields", "no JSON", "deep", "Base64"],
    )
    def test_what_is_not_read(self, load, text, kind, error):
        with pytest.raises(error):
            load("json", {"a.json": text}, field("a", kind))


class TestParquet:
    PLAIN = pa.table({"a": ["x"]})

    @pytest.mark.parametrize(
        "kind", [pa.dictionary(pa.int8(), pa.string()), pa.large_string(), pa.dictionary(pa.int32(), pa.large_string())], ids=str
    )
    @pytest.mark.parametrize("first", [False, True])
    def test_categories_beside_plain_texts(self, load, kind, first):
        other = pa.table({"a": pa.array(["y", None]).cast(kind)})
        files = {"a.parquet": other, "b.parquet": self.PLAIN} if first else {"a.parquet": self.PLAIN, "b.parquet": other}
        assert load("parquet", files, field("a", "string")) == [{"a": "x"}, {"a": "y"}, {"a": None}]

    def test_categories_inside_structs(self, load):
        inner = pa.array(["y"]).dictionary_encode()
        files = {
            "a.parquet": pa.table({"a": [{"x": "x"}]}),
            "b.parquet": pa.table({"a": pa.StructArray.from_arrays([inner], ["x"])}),
        }
        assert load("parquet", files, field("a", struct(field("x", "string")))) == [{"a": {"x": "x"}}, {"a": {"x": "y"}}]

    @pytest.mark.parametrize(
        "content", [pa.table({"a": NOT_UTF8}), b"PAR1xxxx", b"x" * 100], ids=["not UTF-8", "cut", "no Parquet"]
    )
    def test_what_is_not_read(self, load, content):
        with pytest.raises(SchemaMismatchException):
            load("parquet", {"a.parquet": content}, field("a", "string"))


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
    """Arrow's error is an OSError, like those of a store that fails."""
    with pytest.raises(SchemaMismatchException, match=r"The file b\.parquet of .*/raw/\* cannot be read as parquet: ") as raised:
        load("parquet", {"a.parquet": pa.table({"a": ["x"]}), "b.parquet": damaged_parquet(where)}, field("a", "string"))
    assert type(raised.value.__cause__) is OSError


@pytest.mark.parametrize("content", [b"a\n1\n", gzip.compress(b'{"a": 1}\n' * 10_000)[:-20]], ids=["no gzip", "cut off"])
@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_damaged_compression(load, content, file_format):
    with pytest.raises(SchemaMismatchException, match=r"a\.gz .* its compression is damaged or cut off"):
        load(file_format, {"a.gz": content}, field("a", "string"), **(HEADER if file_format == "csv" else {}))


def test_a_store_that_fails_is_no_damaged_file(load, monkeypatch):
    load.put({"a.csv.gz": gzip.compress(b"a\n1\n")})
    _, found, schema = load.find(field("a", "string"))

    class Failing:
        closed = False

        def read(self, size: int) -> bytes:
            raise OSError(errno.EIO, "the disk is gone")

        def close(self) -> None:
            pass

    monkeypatch.setattr(type(found.store), "open_input", lambda *_: pa.PythonFile(Failing(), mode="r"))
    with pytest.raises(OSError, match="the disk is gone") as raised:
        read_arrow_files(found, schema, file_format="csv", options=HEADER)
    assert not isinstance(raised.value, DeltaError)
