"""Compare two streams of rows as multisets: rows that are in both cancel out, whatever file they are in.

Memory holds a digest of each row, and the rows of the sample. The rows are read up to three times.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.arrow.values import Row, rows_of

if TYPE_CHECKING:
    import pyarrow as pa


_WIDE = Context(prec=2 * 38)  # all digits that a decimal may have
_AS_IT_IS = frozenset({type(None), bool, int, str, bytes})
Stream = Callable[[], "Iterator[pa.RecordBatch]"]


class TooManyRowsError(Exception):
    """There are more rows to compare than allowed."""


@dataclass(slots=True)
class RowDifference:
    """Rows by what happens to them.

    :ivar exact: whether rows were compared or need not be. If not, ``added`` and ``removed`` are all rows of both sides,
        unchanged ones included: upper bounds.
    :ivar added: number of rows; ``None`` if it is unknown. So is ``removed``.
    :ivar changed: number of rows whose keys are in both; ``None`` without keys, or if it is unknown.
    :ivar changed_rows: each before and after.
    :ivar rows_read: of the side that has more; 0 if rows were not compared.
    """

    exact: bool = True
    added: int | None = 0
    removed: int | None = 0
    changed: int | None = None
    added_rows: list[Row] = field(default_factory=list)
    removed_rows: list[Row] = field(default_factory=list)
    changed_rows: list[tuple[Row, Row]] = field(default_factory=list)
    rows_read: int = 0


def compare(
    before: Stream, after: Stream, columns: Sequence[str], *, keys: Sequence[str], sample: int, limit: int
) -> RowDifference:
    """Return how the rows differ.

    :param columns: of both together; a column that a side lacks is null there.
    :param keys: columns that identify a row.
    :param sample: number of rows of each kind to return.
    :param limit: number of rows that may be read from each side.
    """
    left = Counter(row_digest(row, columns) for row in _rows(before, limit))
    surplus: Counter[bytes] = Counter()
    rows_before, rows_after = left.total(), 0
    for row in _rows(after, limit):
        rows_after += 1
        digest = row_digest(row, columns)
        if not take(left, digest):
            surplus[digest] += 1
    left, surplus = +left, +surplus
    found = RowDifference(changed=0 if keys else None, rows_read=max(rows_before, rows_after))
    new = _by_key(after, surplus, columns, keys, limit) if keys and left and surplus else Counter()
    pairs: dict[bytes, list[Row]] = {}
    matched: Counter[bytes] = Counter()
    removed = 0
    for row in _matching(before, left, columns, limit) if left else ():
        key = row_digest(row, keys) if keys else b""
        if keys and matched[key] < new[key]:
            matched[key] += 1
            found.changed = (found.changed or 0) + 1
            if found.changed <= sample:
                pairs.setdefault(key, []).append(row)
            continue
        removed += 1
        if len(found.removed_rows) < sample:
            found.removed_rows.append(row)
    added = surplus.total() - matched.total()
    found.added, found.removed = added, removed
    if surplus and (pairs or min(sample, added) > 0):
        _sample_new(after, surplus, columns, keys, limit, found, matched, pairs, sample)
    return found


def _sample_new(
    after: Stream,
    surplus: Counter[bytes],
    columns: Sequence[str],
    keys: Sequence[str],
    limit: int,
    found: RowDifference,
    matched: Counter[bytes],
    pairs: dict[bytes, list[Row]],
    sample: int,
) -> None:
    """Read the new rows again for the sample: those with the keys of changed rows are their new state."""
    for row in _matching(after, surplus, columns, limit):
        key = row_digest(row, keys) if keys else b""
        if take(matched, key):
            if old := pairs.get(key):
                found.changed_rows.append((old.pop(0), row))
        elif len(found.added_rows) < sample:
            found.added_rows.append(row)
        elif not any(pairs.values()):
            return


def _by_key(after: Stream, surplus: Counter[bytes], columns: Sequence[str], keys: Sequence[str], limit: int) -> Counter[bytes]:
    return Counter(row_digest(row, keys) for row in _matching(after, surplus, columns, limit))


def _matching(stream: Stream, wanted: Counter[bytes], columns: Sequence[str], limit: int) -> Iterator[Row]:
    """Yield the rows with these digests, each as often as counted."""
    open_ = Counter(wanted)
    left = open_.total()
    for row in _rows(stream, limit):
        if take(open_, row_digest(row, columns)):
            left -= 1
            yield row
            if not left:
                return


def _rows(stream: Stream, limit: int) -> Iterator[Row]:
    seen = 0
    for batch in stream():
        seen += batch.num_rows
        if seen > limit:
            raise TooManyRowsError
        yield from rows_of(batch)


def take(counts: Counter[bytes], digest: bytes) -> bool:
    """Take one row out of some that are counted by digest; return whether there was one."""
    if counts[digest] <= 0:
        return False
    counts[digest] -= 1
    return True


def row_digest(row: Row, columns: Sequence[str]) -> bytes:
    """Return what equal rows have in common, whatever the width of their types.

    :param columns: those that count; one that the row lacks is null.
    """
    values = [row.get(name) for name in columns]
    plain = [value if type(value) in _AS_IT_IS else _plain(value) for value in values]
    return hashlib.blake2b(repr(plain).encode(), digest_size=16).digest()


def _plain(value: Any) -> Any:
    """Return a value in the form that equal values of wider types have, too: 1 is 1.0."""
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else value.normalize(_WIDE)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day).isoformat()
    if isinstance(value, dict):  # a field that the other side lacks is null there
        return sorted((name, _plain(each)) for name, each in value.items() if each is not None)
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _number(value: float) -> Any:
    if math.isnan(value) or math.isinf(value):
        return str(value)
    return int(value) if value.is_integer() else value
