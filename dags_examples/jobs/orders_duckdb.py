"""The orders of a shop as Parquet files, by DuckDB: ``orders_duckdb.py SOURCE DESTINATION``. Its last line is their number."""

import os
import sys

import duckdb

# The time zone decides which day it was.
QUERY = """
    SET TimeZone = 'UTC';
    COPY (SELECT *, ordered_at::DATE AS day FROM read_csv(
        '{source}', columns={{id: 'BIGINT', amount: 'DECIMAL(10, 2)', ordered_at: 'TIMESTAMPTZ'}}
    )) TO '{destination}' (FORMAT parquet, PARTITION_BY (day))
"""

if __name__ == "__main__":
    source, destination = sys.argv[1:]
    if "://" not in (folder := destination.removeprefix("file://")):
        os.makedirs(folder)  # DuckDB makes only the last one
    [(written,)] = duckdb.execute(QUERY.format(source=source, destination=destination)).fetchall()
    print(written)
