"""The orders of a shop as Parquet files, by Polars: ``orders_polars.py SOURCE DESTINATION``. Its last line is their number."""

import sys

import polars as pl

# A time without a zone would be a TIMESTAMP_NTZ.
SCHEMA = {"id": pl.Int64, "amount": pl.Decimal(10, 2), "ordered_at": pl.Datetime("us", "UTC")}

if __name__ == "__main__":
    source, destination = sys.argv[1:]
    orders = pl.read_csv(source, schema=SCHEMA).with_columns(day=pl.col("ordered_at").dt.date())
    orders.lazy().sink_parquet(pl.PartitionBy(destination, key="day", include_key=False), mkdir=True)
    print(len(orders))
