"""Which of several new files each row of a bin goes to, where rows are ordered: rows pass, and only a sample is in memory.

As on Spark, a sample cuts the columns into ranges, and the curve into files; of up to
:data:`SAMPLE_ROWS` rows, all are looked at. Rows of a file keep the order of the old files.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.curves import MAX_RANGE_BITS, SAMPLES_PER_RANGE
from airflow_delta.log.arrow.arrays import array, repeated, scalar
from airflow_delta.table.arrow.rewrite.curve import Curve, CurveColumns, SortedValues
from airflow_delta.table.arrow.rewrite.read_plan import ROW

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import ScanFile
    from airflow_delta.table.arrow.rewrite.read_plan import PlanReader, RowsOfFile

SAMPLE_ROWS = SAMPLES_PER_RANGE << MAX_RANGE_BITS
"""Rows up to which all are looked at; of more, at least as many."""

_ROW_BITS = 40
_SAMPLED, _SPREAD = 1, 2
_MIXED = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""How SplitMix64 mixes the bits of a number (G. Steele and others, "Fast splittable pseudorandom number generators", 2014)."""


class OrderedBin:
    """The new files of a bin whose rows are ordered along a curve.

    :param files: of the bin, in the order in which they are read.
    :param num_parts: number of new files.
    :ivar columns: the top-level columns that :meth:`parts` needs.
    """

    def __init__(
        self, reader: PlanReader, columns: CurveColumns, files: Sequence[ScanFile], num_parts: int, *, hilbert: bool
    ) -> None:
        self._keys = columns.keys
        self.columns = columns.names
        self._numbers = {file.path: number for number, file in enumerate(files)}
        self.num_parts = num_parts
        sample = self._sample(reader, files)
        self._curve = None if sample is None else Curve(sample, hilbert=hilbert)
        ordered = [] if self._curve is None else sorted(self._curve.places(sample or ()).to_pylist())
        cuts = [ordered[number * len(ordered) // num_parts] for number in range(1, num_parts)] if ordered else []
        places = list(dict.fromkeys(cuts))
        first = [bisect_left(ordered, place) for place in places]
        self._search, self._places = SortedValues(places, pa.int64()), array(places, pa.int64())
        self._base = array([0, *(bisect_right(cuts, place) for place in places)], pa.int64())
        self._first = array(list(map(float, first)), pa.float64())
        same = [float(bisect_right(ordered, place) - at) for place, at in zip(places, first, strict=True)]
        self._same = array(same, pa.float64())
        self._scale = scalar(num_parts / max(len(ordered), 1))

    def _sample(self, reader: PlanReader, files: Sequence[ScanFile]) -> list[pa.Array] | None:
        """Return the columns of all rows, or of a sample; ``None`` if there are no rows."""
        kept: list[pa.RecordBatch] = []
        share, count = 1.0, 0
        for found in reader.columns(self.columns, files, None):
            columns = [*self._keys(found.rows), self._noise(found, _SAMPLED)]
            rows = pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])
            kept.append(_below(rows, share))
            count += kept[-1].num_rows
            while count > 2 * SAMPLE_ROWS:
                share /= 2
                kept = [_below(batch, share) for batch in kept]
                count = sum(batch.num_rows for batch in kept)
        if not count:
            return None
        (rows,) = pa.Table.from_batches(kept).combine_chunks().to_batches()
        return list(rows.columns[:-1])

    def _noise(self, found: RowsOfFile, salt: int) -> pa.Array:
        """Return numbers from 0 up to 1 that look random, but are always the same for the same row of a file."""
        start = ((self._numbers[found.file.path] << _ROW_BITS) | 1) * 0x9E3779B97F4A7C15 * salt & 0xFFFFFFFFFFFFFFFF
        mixed = pc.multiply(found.rows.column(ROW).cast(pa.uint64()), scalar(0x9E3779B97F4A7C15, pa.uint64()))
        mixed = pc.add(mixed, scalar(start, pa.uint64()))
        for shift, factor in _MIXED:
            mixed = pc.multiply(pc.bit_wise_xor(mixed, pc.shift_right(mixed, _number(shift))), _number(factor))
        return pc.multiply(pc.shift_right(mixed, _number(11)).cast(pa.float64()), scalar(2.0**-53))

    def parts(self, found: RowsOfFile) -> pa.Array:
        """Return the number of the new file of each row.

        Rows whose place is one at which two files meet are spread over these: no file gets all rows of a frequent value.

        :param found: rows with the columns of :attr:`columns`, and :data:`~airflow_delta.table.arrow.rewrite.read_plan.ROW`.
        """
        if self._curve is None or not len(self._places):
            return repeated(0, found.rows.num_rows)
        place = self._curve.places(self._keys(found.rows))
        reached = self._search.reached(place)
        meets = pc.max_element_wise(pc.subtract(reached, scalar(1)), scalar(0))
        rank = pc.add(self._first.take(meets), pc.multiply(self._noise(found, _SPREAD), self._same.take(meets)))
        spread = pc.min_element_wise(pc.floor(pc.multiply(rank, self._scale)).cast(pa.int64()), scalar(self.num_parts - 1))
        return pc.if_else(pc.equal(self._places.take(meets), place), spread, self._base.take(reached))


def _below(rows: pa.RecordBatch, share: float) -> pa.RecordBatch:
    return rows if share == 1.0 else rows.filter(pc.less(rows.column(rows.num_columns - 1), scalar(share)))


def _number(value: int) -> pa.Scalar:
    return scalar(value, pa.uint64())
