"""A data file that is open, and what its footer says of how its values were written."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow.parquet as pq

from airflow_delta.light_dataclasses import dataclass

_VERSION = b"org.apache.spark.version"
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A data file.

    :param content: returns the file for reads; of one at a time if each read is a request.
    :param remote: each read is a request.
    """

    content: Callable[[], Any]
    remote: bool
    footer: pq.ParquetFile

    def reader(self, read_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
        """Return a reader for one thread.

        :param read_dictionary: columns that come as references to a dictionary.
        """
        return parquet_file(self.content(), self.remote, metadata=self.footer.metadata, read_dictionary=list(read_dictionary))


def parquet_file(content: Any, remote: bool, **options: Any) -> pq.ParquetFile:
    """Return a reader of a file, of which each read is a request if it is remote."""
    return pq.ParquetFile(content, pre_buffer=remote, coerce_int96_timestamp_unit="us", **options)


def is_legacy(metadata: dict[bytes, bytes]) -> bool:
    """Return whether dates and times of before 1900 may be in the Julian calendar."""
    version = re.match(rb"(\d+)\.(\d+)", metadata.get(_VERSION, b""))
    old = version is not None and (int(version[1]), int(version[2])) < (3, 1)
    return old or any(key in metadata for key in _LEGACY)


def int96_columns(metadata: pq.FileMetaData) -> frozenset[str]:
    """Return the paths of the columns whose timestamps have a type that Parquet no longer has."""
    leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    return frozenset(leaf.path for leaf in leaves if leaf.physical_type == "INT96")
