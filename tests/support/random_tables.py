"""Random tables: columns of all types under awkward names, the rules of a table, and files as several writers leave them."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.contract.changes import ChangeColumn
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.partition_values import serialize_partition_value
from airflow_delta.log.statistics.footers_to_stats import stats_from_footer
from airflow_delta.table.arrow.files import stored_schema
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from airflow_delta.transaction import Operation
from support.table import Table

NAN, INFINITE = float("nan"), float("inf")
KEY = "id"
_UTC = dt.UTC
_TIMES = (
    dt.datetime(2024, 3, 31, 2, 30, 0, 1),  # which Berlin does not have
    dt.datetime(2024, 2, 29, 23, 59, 59, 999_999),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(1899, 12, 31, 23, 0),
    dt.datetime(1582, 10, 10, 12),
    dt.datetime(1970, 1, 1),
)
_INNER = pa.struct([("x", pa.int32()), ("Y", pa.string())])


@dataclass(frozen=True)
class Kind:
    """A type of columns.

    :param sql: the type in Spark SQL.
    :param family: of expressions with such values; see :mod:`support.random_expressions`.
    :param values: that columns have, beside null.
    :param literals: in Spark SQL.
    """

    sql: str
    arrow: pa.DataType
    family: str
    values: tuple[Any, ...]
    literals: tuple[str, ...] = ()


def _decimals(precision: int, scale: int, *texts: str) -> Kind:
    values = tuple(map(Decimal, texts))
    return Kind(f"DECIMAL({precision},{scale})", pa.decimal128(precision, scale), "decimal", values, texts)


KINDS = (
    Kind("TINYINT", pa.int8(), "whole", (1, -128, 127, 0), ("1Y", "0")),
    Kind("SMALLINT", pa.int16(), "whole", (7, -32768, 0), ("7S", "-1")),
    Kind("INT", pa.int32(), "whole", (0, 3, -7, 2**31 - 1), ("0", "3", "100")),
    Kind("BIGINT", pa.int64(), "whole", (5, 0, -(2**63), 2**53 + 1), ("5L", "0L")),
    Kind("FLOAT", pa.float32(), "floating", (1.5, -0.0, 0.0, NAN, INFINITE, 0.1), ("1.5F", "0.0F", "float('NaN')")),
    Kind("DOUBLE", pa.float64(), "floating", (0.1, -0.0, 0.0, NAN, -INFINITE, 1e300), ("0.1D", "-0.0D", "double('NaN')")),
    _decimals(5, 2, "1.25", "-999.99", "0.00"),
    _decimals(9, 0, "123456789", "-1", "0"),
    _decimals(18, 6, "0.000001", "-999999999999.999999", "2.500000"),
    _decimals(20, 3, "99999999999999999.999", "-0.001"),
    _decimals(38, 18, "1.000000000000000001", "-99999999999999999999.9"),
    _decimals(38, 0, "9" * 38, "-1", "0"),
    Kind(
        *("STRING", pa.string(), "string"),
        ("a b", "ü/%=", "x:y", "", "A", "a", "é😀", "z" * 40, "Ä" * 33 + "\U0010ffff", "null", " "),
        ("'a b'", "''", "'A'", "'ü/%='", "'zz'"),
    ),
    Kind("BOOLEAN", pa.bool_(), "truth", (True, False), ("true", "false")),
    Kind("BINARY", pa.binary(), "binary", (b"\xff", b"", b"abc", b"\xff\x00"), ("X'FF'", "X''")),
    Kind(
        *("DATE", pa.date32(), "date"),
        (dt.date(2024, 2, 29), dt.date(1970, 1, 1), dt.date(1899, 12, 31), dt.date(1582, 10, 4), dt.date(9999, 12, 31)),
        ("DATE'2024-02-29'", "DATE'1899-12-31'"),
    ),
    Kind(
        *("TIMESTAMP", pa.timestamp("us", "UTC"), "moment", tuple(at.replace(tzinfo=_UTC) for at in _TIMES)),
        ("TIMESTAMP'2024-02-29 23:59:59.999999 UTC'", "TIMESTAMP'1899-12-31 23:00:00 UTC'"),
    ),
    Kind("TIMESTAMP_NTZ", pa.timestamp("us"), "naive", _TIMES, ("TIMESTAMP_NTZ'2024-03-31 02:30:00.000001'",)),
    Kind("STRUCT<x: INT, Y: STRING>", _INNER, "struct", ({"x": 1, "Y": "a"}, {"x": None, "Y": None}, {"x": -5, "Y": ""})),
    Kind(
        "STRUCT<`d.1`: DECIMAL(10,1), s: STRUCT<x: INT, Y: STRING>, l: ARRAY<DATE>>",
        pa.struct([("d.1", pa.decimal128(10, 1)), ("s", _INNER), ("l", pa.list_(pa.date32()))]),
        "struct",
        (
            {"d.1": Decimal("1.5"), "s": {"x": 2, "Y": "ß"}, "l": [dt.date(2024, 1, 1), None]},
            {"d.1": None, "s": None, "l": []},
            {"d.1": Decimal("-0.1"), "s": {"x": None, "Y": None}, "l": None},
        ),
    ),
    Kind("ARRAY<BIGINT>", pa.list_(pa.int64()), "list", ([], [1, None], [-(2**63)])),
    Kind("ARRAY<STRUCT<x: INT, Y: STRING>>", pa.list_(_INNER), "list", ([], [None, {"x": 1, "Y": "a"}], [{"x": None, "Y": ""}])),
    Kind("MAP<STRING, INT>", pa.map_(pa.string(), pa.int32()), "map", ([], [("k", 1), ("", None)])),
    Kind(
        *("MAP<INT, ARRAY<DOUBLE>>", pa.map_(pa.int32(), pa.list_(pa.float64())), "map"),
        ([], [(1, [0.5, NAN]), (2, None)], [(-1, [-0.0])]),
    ),
)
BY_SQL = {kind.sql: kind for kind in KINDS}
WIDER = {
    "TINYINT": ("SMALLINT", "INT", "BIGINT", "DOUBLE", "DECIMAL(18,6)"),
    "SMALLINT": ("INT", "BIGINT"),
    "INT": ("BIGINT", "DOUBLE", "DECIMAL(20,3)"),
    "FLOAT": ("DOUBLE",),
    "DECIMAL(5,2)": ("DECIMAL(18,6)", "DECIMAL(20,3)"),
    "DECIMAL(9,0)": ("DECIMAL(20,3)", "DECIMAL(38,18)"),
    "DATE": ("TIMESTAMP_NTZ",),
}
"""What columns are widened to."""

PARTITIONS = ("whole", "decimal", "string", "truth", "binary", "date", "moment", "naive", "floating")
NAMES = ("p", "Q", "Größe", "select", "a.b", "x-y", "1st", "%41", "__x", "`tick`", "état", "value", "a+b", "target", "CASE")
NAMES_UNDER_MAPPING = ("a b", "c,d", "e=f", "g(h)", "tab\t", "semi;")
MODES = ("none", "name", "id")


_GENERATED: dict[tuple[str, str], Callable[[int], Any]] = {
    (f"{KEY} * 2", "BIGINT"): lambda key: key * 2,
    (f"CAST({KEY} AS STRING)", "STRING"): str,
    (f"{KEY} % 3", "BIGINT"): lambda key: key % 3,
}
"""Expressions of generated columns, with their types, and what they are here."""


def quoted(*names: str) -> str:
    """Return a path as Spark SQL spells it."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


@dataclass
class RandomColumn:
    """A column.

    :param after: its type from some version on.
    :param nulls: share of its rows that have no value.
    """

    name: str
    kind: Kind
    nulls: float = 0.2
    after: Kind | None = None
    not_null: bool = False
    is_partition: bool = False
    first_value: int = 0

    @property
    def latest(self) -> Kind:
        return self.after or self.kind

    def values(self, draw: random.Random, count: int, kind: Kind) -> pa.Array:
        """Return values of a type that the column has, or had; those of the first type are of every later one."""
        values = self.kind.values if self.kind is not kind and draw.random() < 0.3 else kind.values
        if self.is_partition and kind.family == "binary":  # its text is UTF-8
            values = (b"abc", b"")
        if self.is_partition:  # many partitions are many files
            values = values[self.first_value % max(1, len(values) - 1) :][:2]
            if values[0] == values[-1]:  # 0.0 and -0.0 in turns: Spark's writer begins a file of one name twice, and fails
                values = values[:1]
        found = [None if draw.random() < self.nulls else draw.choice(values) for _ in range(count)]
        if values is not kind.values and kind.family == "naive":
            found = [value and dt.datetime(value.year, value.month, value.day) for value in found]
        return pa.array(found, kind.arrow)


@dataclass
class RandomTable:
    """What a table is, drawn by a seed.

    :ivar computed: columns whose values the table computes, by name, with their types.
    :ivar uncompared: columns of which engines choose the values.
    """

    draw: random.Random
    mode: str
    columns: list[RandomColumn] = field(default_factory=list)
    partition_by: tuple[str, ...] = ()
    configuration: dict[str, str] = field(default_factory=dict)
    constraints: dict[str, str] = field(default_factory=dict)
    computed: dict[str, Kind] = field(default_factory=dict)
    uncompared: tuple[str, ...] = ()
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _ids: int = 0
    _ddl: list[str] = field(default_factory=list)
    _generated: str = ""

    @classmethod
    def drawn(cls, seed: int | str) -> RandomTable:
        """Return the table of a seed."""
        draw = random.Random(seed)
        table = cls(draw, draw.choice(MODES))
        table._draw_columns()
        table._draw_rules()
        return table

    def has(self, feature: str) -> bool:
        """Return whether a property of the table is true."""
        return self.configuration.get(f"delta.{feature}") == "true"

    # -- definition -----------------------------------------------------------------------------------------------------------

    def _draw_columns(self) -> None:
        draw = self.draw
        names = [*NAMES, *(NAMES_UNDER_MAPPING * 2 if self.mode != "none" else ())]
        chosen = list(dict.fromkeys(draw.sample(names, 9)))[: draw.randint(3, 7)]
        for name in chosen:
            self.columns.append(RandomColumn(name, draw.choice(KINDS), draw.choice([0.0, 0.2, 0.2, 0.5, 1.0])))
        possible = [column.name for column in self.columns if column.kind.family in PARTITIONS]
        self.partition_by = tuple(draw.sample(possible, min(len(possible), draw.choice([0, 0, 1, 1, 2]))))
        for column in self.columns:
            column.is_partition = column.name in self.partition_by
            column.first_value = draw.randrange(len(column.kind.values) - 1)
        if draw.random() < 0.2:
            self.configuration["delta.enableTypeWidening"] = "true"
            for column in self.columns:
                if column.kind.sql in WIDER and column.name not in self.partition_by:
                    column.after = BY_SQL[draw.choice(WIDER[column.kind.sql])]
                    if column.after.family == "naive":
                        self.configuration["delta.feature.timestampNtz"] = "supported"
        if draw.random() < 0.2:
            self.columns.append(RandomColumn("must", BY_SQL["INT"], 0.0, not_null=True))

    def _draw_rules(self) -> None:
        draw = self.draw
        for feature in ("enableDeletionVectors", "enableRowTracking", "enableChangeDataFeed"):
            self.configuration[f"delta.{feature}"] = draw.choice(["true", "false"])
        if draw.random() < 0.15:
            self.configuration["delta.dataSkippingNumIndexedCols"] = draw.choice(["0", "2"])
        self.configuration["delta.columnMapping.mode"] = self.mode
        ddl = [f"{KEY} BIGINT"]
        ddl += [f"{quoted(one.name)} {one.kind.sql}{' NOT NULL' if one.not_null else ''}" for one in self.columns]
        if draw.random() < 0.2:
            text, kind = draw.choice(list(_GENERATED))
            self._generated = text
            self.computed["made"] = BY_SQL[kind]
            ddl.append(f"made {kind} GENERATED ALWAYS AS ({text})")
            if "%" in text and draw.random() < 0.5:
                self.partition_by = (*self.partition_by, "made")
        if draw.random() < 0.15:
            self.computed["given"] = BY_SQL["STRING"]
            self.configuration["delta.feature.allowColumnDefaults"] = "supported"
            ddl.append("given STRING DEFAULT 'it''s'")
        if draw.random() < 0.1 and not self._generated:
            self.computed["number"] = BY_SQL["BIGINT"]
            self.uncompared = ("number",)
            ddl.append("number BIGINT GENERATED BY DEFAULT AS IDENTITY (START WITH 10 INCREMENT BY 3)")
        if draw.random() < 0.2:
            self.constraints["delta.constraints.few"] = f"{KEY} IS NULL OR {KEY} < 100000"
            column = draw.choice(self.columns)
            if column.latest.literals and column.after is None:  # types of columns in constraints do not change
                name = quoted(column.name)
                self.constraints["delta.constraints.other"] = f"NOT ({name} <=> {column.latest.literals[-1]}) OR {KEY} < 3000"
        self._ddl = ddl

    @property
    def all_columns(self) -> dict[str, Kind]:
        """The types of all columns by name, as they are at last."""
        return {
            KEY: BY_SQL["BIGINT"],
            **{column.name: column.latest for column in self.columns},
            **self.computed,
        }

    def described(self) -> str:
        return f"({', '.join(self._ddl)}) by {self.partition_by}, {self.configuration}, {self.constraints}"

    # -- rows -----------------------------------------------------------------------------------------------------------------

    def rows(self, count: int, *, ids: Sequence[int | None] | None = None, first: bool = False) -> pa.Table:
        """Return new rows.

        :param ids: their keys; default: new ones.
        :param first: in the types that the columns begin with.
        """
        if ids is None:
            ids = range(self._ids, self._ids + count)
            self._ids += count
        found = {KEY: pa.array(ids, pa.int64())}
        for column in self.columns:
            found[column.name] = column.values(self.draw, count, column.kind if first else column.latest)
        return pa.table(found)

    @property
    def last_id(self) -> int:
        return self._ids

    def fill(self, table: Table) -> None:
        """Create the table, and write its files."""
        table.run(plan_create, schema=", ".join(self._ddl), partition_by=self.partition_by, properties=self.configuration)
        if self.constraints:
            txn = table.log().start_transaction()
            changed = msgspec.structs.replace(txn.metadata, configuration={**txn.metadata.configuration, **self.constraints})
            txn.commit([changed], Operation("ADD CONSTRAINT"))
        wider = [column for column in self.columns if column.after is not None]
        count = self.draw.randint(1, 3)
        for _ in range(count):
            self.write(table, first=True)
        if wider:
            table.run(plan_alter, changes=[ChangeColumn(quoted(one.name), data_type=one.latest.sql) for one in wider])
            self.write(table)

    def write(self, table: Table, *, first: bool = False) -> None:
        """Append rows in the way of some writer."""
        draw = self.draw
        count = draw.choice([1, 3, 20, 20, 40])
        if "number" not in self.computed and ("made" in self.computed or draw.random() < 0.5):
            self._write_foreign(table, count, first)
        else:
            table.write(self.rows(count, first=first), options=draw.choice([{}, {"maxRecordsPerFile": "15"}]))

    def _write_foreign(self, table: Table, count: int, first: bool) -> None:
        """Commit a file as another engine leaves it: its own physical types, row groups, and statistics or none."""
        draw, log = self.draw, table.log()
        snapshot = log.update()
        mapped = self.mode != "none"
        rows = self.rows(count, first=first)
        if "made" in self.computed:
            made = [_GENERATED[self._generated, self.computed["made"].sql](key) for key in rows.column(KEY).to_pylist()]
            rows = rows.append_column("made", pa.array(made, self.computed["made"].arrow))
            if "made" in self.partition_by:  # of which a file has one value
                rows = rows.filter(pa.array([value == made[0] for value in made]))
                count = rows.num_rows
        if "given" in self.computed:
            rows = rows.append_column("given", pa.array(draw.choices([None, "it's"], k=count), pa.string()))
        values: dict[str, str | None] = {}
        for name in self.partition_by:
            column = snapshot.schema.find(name)
            assert column is not None
            text = serialize_partition_value(rows.column(name)[0].as_py(), column.data_type)
            values[column.physical_name if mapped else name] = text or None
        target = stored_schema(snapshot.schema, self.partition_by, mapped=mapped)
        kept = [field.name for field in snapshot.schema if field.name not in self.partition_by]
        stored = pa.Table.from_arrays(
            [_foreign(rows.column(name), at.type, draw) for name, at in zip(kept, target, strict=True)], names=target.names
        )
        stored = stored.cast(pa.schema([at.with_type(kind.type) for at, kind in zip(target, stored.schema, strict=True)]))
        absent = [
            at.name
            for at, name in zip(target, kept, strict=True)
            if name != KEY and rows.column(name).null_count == count and draw.random() < 0.5
        ]
        stored = stored.drop_columns(absent)
        path = f"other {next(self._numbers)} é%.parquet"
        footers: list[pq.FileMetaData] = []
        naive = any(pa.types.is_timestamp(at.type) and at.type.tz is None for at in target)  # 96 bits are a point in time
        pq.write_table(
            stored,
            table.path / path,
            row_group_size=draw.choice([5, 1000]),
            use_deprecated_int96_timestamps=draw.random() < 0.2 and not naive,
            store_decimal_as_integer=draw.random() < 0.5,
            use_dictionary=draw.random() < 0.5,
            data_page_version=draw.choice(["1.0", "2.0"]),
            compression=draw.choice(["snappy", "zstd", "gzip"]),
            metadata_collector=footers,
        )
        statistics = draw.choice(["none", "rows", "all"])
        if statistics == "none" and (self.has("enableRowTracking") or self.has("enableDeletionVectors")):
            statistics = "rows"
        stats = {
            "none": None,
            "rows": json.dumps({"numRecords": count}),
            "all": stats_from_footer(
                footers[0], snapshot.schema.without(self.partition_by), TableProperties(snapshot.metadata.configuration)
            ),
        }[statistics]
        size = (table.path / path).stat().st_size
        table.commit(
            AddFile(path=quote(path), partition_values=values, size=size, modification_time=1, data_change=True, stats=stats)
        )


def _foreign(column: pa.ChunkedArray, kind: pa.DataType, draw: random.Random) -> pa.Array:
    """Return a column in another type that stands for the same one in Parquet."""
    values = column.combine_chunks()
    if pa.types.is_string(kind) and draw.random() < 0.3:
        return values.cast(pa.large_string())
    if pa.types.is_string(kind) and draw.random() < 0.3:
        return values.dictionary_encode()
    return values.cast(kind) if not pa.types.is_nested(kind) else values


def leaves_of(columns: Mapping[str, Kind], *qualifiers: str) -> dict[str, list[str]]:
    """Return columns and literals as leaves of expressions.

    :param qualifiers: what names of columns begin with, each in turn.
    """
    leaves: dict[str, list[str]] = {
        "whole": ["0", "1", "-3", "7L"],
        "floating": ["1.5D", "-0.0D", "2.5F"],
        "decimal": ["1.5", "-0.25", "10.00BD"],
        "string": ["'a'", "''", "'a b'"],
        "truth": ["true", "NULL"],
        "date": ["DATE '2024-02-29'"],
        "moment": ["TIMESTAMP '2024-02-29 10:11:12.5 UTC'"],
        "naive": ["TIMESTAMP_NTZ '2024-02-29 10:11:12.5'"],
        "binary": ["X'FF'"],
        "small": ["1", "2", "-1", "5", "0"],
        "struct": ["NULL"],
        "list": ["NULL"],
        "map": ["NULL"],
    }
    for name, kind in columns.items():
        leaves[kind.family] += kind.literals[:1]
        for qualifier in qualifiers or ("",):
            path = [qualifier, name] if qualifier else [name]
            text = quoted(*path)
            leaves[kind.family] += [text] * 3
            if kind.family == "struct":
                inner = [*path] if "d.1" not in kind.sql else [*path, "s"]
                leaves["whole"].append(quoted(*inner, "x"))
                leaves["string"].append(quoted(*inner, "y"))
            if kind.family == "list":
                leaves["whole"].append(f"size({text})")
    return leaves
