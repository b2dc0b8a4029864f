"""A note in the footer of files that ``engine="arrow"`` wrote: what Arrow's own statistics do not say about NaN.

The bounds of a column of floats cannot be used upwards unless it is known that it holds no NaN, which is greater than all numbers
(Delta protocol, "Per-file Statistics"). parquet-mr (Spark) writes NaN as a bound, Arrow ignores it silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_KEY = "airflow_delta.nan"


class NanNote(msgspec.Struct):
    """What a file says.

    :param file: its name: tools that copy the metadata of a file into one with other rows give it another name.
    :param nulls: nulls of the columns that hold NaN, by path; these have no statistics, all others hold none.
    """

    file: str
    nulls: dict[str, int]


def nan_note(file: str, nulls: Mapping[str, int]) -> dict[str, str]:
    """Return the metadata for the footer of a file.

    :param nulls: nulls of the columns that hold NaN, by path.
    """
    return {_KEY: msgspec.json.encode(NanNote(file, dict(nulls))).decode()}


def read_nan_note(footer: pq.FileMetaData, path: str | None) -> NanNote | None:
    """Return what a file says, ``None`` if it says nothing, or has the note of another file.

    :param path: of the file; ``None`` if it is unknown.
    """
    text = (footer.metadata or {}).get(_KEY.encode())
    if text is None or path is None:
        return None
    try:
        note = msgspec.json.decode(text, type=NanNote)
    except msgspec.DecodeError:
        return None
    return note if note.file == path.rpartition("/")[2] else None
