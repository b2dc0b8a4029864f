"""Statistics of data files: collecting them from Parquet footers, and skipping files by them."""
