"""Files that a transaction loads, read as a function of an author would."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import csv

from airflow_delta.table.positions.files.unloaded import SourceFiles

_EMPTY_IS_NULL = csv.ConvertOptions(strings_can_be_null=True)


def csv_rows(found: SourceFiles) -> pa.Table:
    """Return the rows of CSV files."""
    tables = []
    for file in (file for file in found.files if file.size):
        with found.open(file) as opened:
            tables.append(csv.read_csv(opened, convert_options=_EMPTY_IS_NULL))
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
