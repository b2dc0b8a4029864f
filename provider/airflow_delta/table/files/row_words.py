"""Positions of rows in their file as words of 64: a number, and a bit for each row from ``64 * number`` on.

Spark can join rows with them, and make them of rows. As text: pairs of little-endian 64-bit integers, zlib, Base64.
"""

from __future__ import annotations

import base64
import struct
import zlib
from array import array as numbers
from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from airflow_delta.contract.spark_paths import NUMBER, WORD
from airflow_delta.log.arrow.arrays import array, scalar

_BITS = 64
_POSITIONS_AT_ONCE = 1 << 20


def word_chunks(bitmap: BitMap64) -> Iterator[pa.Table]:
    """Yield the positions as words: ``number`` (int64) and ``word`` (int64, bit for bit).

    In chunks: a vector of a few bytes may mark all rows of a large file.
    """
    start = next(iter(bitmap), None)
    while start is not None:
        start -= start % _BITS
        yield _words(bitmap & BitMap64(range(start, start + _POSITIONS_AT_ONCE)))
        start = next(bitmap.iter_equal_or_larger(start + _POSITIONS_AT_ONCE), None)


def _words(bitmap: BitMap64) -> pa.Table:
    data = bitmap.to_array()
    positions = pa.Array.from_buffers(pa.uint64(), len(data), [None, pa.py_buffer(data)])
    bits = pc.shift_left(scalar(1, pa.uint64()), pc.bit_wise_and(positions, scalar(_BITS - 1, pa.uint64())))
    # Positions are sorted, so those of one word follow each other. Each bit is there once, so their sum is their union; sums wrap
    # around, and so does the difference of two.
    words = pc.run_end_encode(pc.shift_right(positions, scalar(6, pa.uint64())).cast(pa.int64()))
    sums = pc.cumulative_sum(bits).take(pc.subtract(words.run_ends, scalar(1, pa.int32())))
    before = pa.concat_arrays([array([0], pa.uint64()), sums[:-1]])
    return pa.table([words.values, pc.subtract(sums, before).view(pa.int64())], names=[NUMBER, WORD])


def rows_of_words(words: pa.Table) -> BitMap64:
    """Return the positions of the rows whose bits are set."""
    first = pc.multiply(words.column(NUMBER).combine_chunks(), scalar(_BITS))
    word = words.column(WORD).combine_chunks().view(pa.uint64())
    rows = BitMap64()
    for bit in range(_BITS):
        is_set = pc.not_equal(pc.bit_wise_and(word, scalar(1 << bit, pa.uint64())), scalar(0, pa.uint64()))
        positions = pc.add(first.filter(is_set), scalar(bit))
        if len(positions):
            rows |= bitmap_of(positions)
    return rows


def bitmap_of(positions: pa.Array) -> BitMap64:
    """Return positions (64 bits each, none null) as a bitmap."""
    start, end = 8 * positions.offset, 8 * (positions.offset + len(positions))
    return BitMap64(numbers("Q", positions.buffers()[1].slice(start, end - start).to_pybytes()))


def words_as_text(chunks: Sequence[pa.Table]) -> str:
    """Return words as text."""
    pairs = chain.from_iterable(
        zip(words.column(NUMBER).to_pylist(), words.column(WORD).to_pylist(), strict=True) for words in chunks
    )
    return base64.b64encode(zlib.compress(b"".join(struct.pack("<qq", *pair) for pair in pairs))).decode()


def rows_of_text(text: str) -> BitMap64:
    """Return the positions of the rows whose bits are set in words as text."""
    pairs = list(struct.iter_unpack("<qq", zlib.decompress(base64.b64decode(text))))
    columns = [array([pair[at] for pair in pairs], pa.int64()) for at in (0, 1)]
    return rows_of_words(pa.table(columns, names=[NUMBER, WORD]))
