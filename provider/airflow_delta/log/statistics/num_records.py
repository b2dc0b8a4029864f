"""How many rows the statistics of a file count."""

from __future__ import annotations

import msgspec


class _Rows(msgspec.Struct, rename="camel"):
    num_records: int | None = None


_rows = msgspec.json.Decoder(_Rows)


def num_records(stats: str | None) -> int | None:
    """Return the number of rows in a file's statistics, deleted ones included; ``None`` if they lack it.

    It is a claim of whoever wrote the file: nothing that removes rows rests on it alone.
    """
    try:
        rows = _rows.decode(stats).num_records if stats else None
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return rows if rows is not None and rows >= 0 else None
