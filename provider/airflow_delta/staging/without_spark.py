"""What a stage without Spark (``engine="arrow"``) takes of the options of a write; standard library only, as a Dag is parsed."""

from __future__ import annotations

from typing import Any

COMPRESSION = {"none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "lz4_raw": "lz4"}
"""Codecs of Spark's Parquet writer, by their names in Arrow."""

REPLACEMENTS = ("replace_on", "replace_using")
"""Options that compare rows of the table with the new ones: only Spark does."""

COMPARES = "replace_on or replace_using, which compare its rows with the new ones"


def writer_option_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with an option of the Parquet writer; ``None`` if nothing is."""
    folded, text = name.lower(), str(value)
    if (folded == "compression" and text.lower() in COMPRESSION) or (folded == "maxrecordsperfile" and text.isdecimal()):
        return None
    return (
        f"the write option {name}={value!r}. Without Spark there are compression ({', '.join(COMPRESSION)}) and maxRecordsPerFile"
    )
