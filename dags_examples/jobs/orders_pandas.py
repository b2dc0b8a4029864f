"""The orders of a shop as Parquet files, by pandas: ``orders_pandas.py SOURCE DESTINATION``. Its last line is their number."""

import sys
from decimal import Decimal

import pandas as pd
import pyarrow as pa

# Without it, the scale of decimals would be that of the day's amounts.
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("amount", pa.decimal128(10, 2)),
        ("ordered_at", pa.timestamp("us", "UTC")),  # pandas' nanoseconds are refused
        ("day", pa.date32()),
    ]
)

if __name__ == "__main__":
    source, destination = sys.argv[1:]
    orders = pd.read_csv(source, converters={"amount": Decimal})
    orders["ordered_at"] = pd.to_datetime(orders["ordered_at"], format="ISO8601", utc=True)
    orders["day"] = orders["ordered_at"].dt.date
    orders.to_parquet(destination, schema=SCHEMA, partition_cols=["day"], index=False)
    print(len(orders))
