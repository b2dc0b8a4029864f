"""The curves along which OPTIMIZE orders rows, for every engine that does: Z-order and Hilbert."""

from __future__ import annotations

MAX_RANGE_BITS = 10
"""Bits of a range's number: Delta splits a column into 1000 ranges (``optimize.zorder.mdcNumRangeIds``)."""

MAX_HILBERT_COLUMNS = 4
"""As many as Delta clusters a table by; the states of the curve are four times as many with each further column."""

SAMPLES_PER_RANGE = 40

TEXT_PREFIX = 128
"""Characters of a text, or bytes of a binary value, that decide where it comes."""


def range_bits(columns: int) -> int:
    """Return how many bits the number of a range has, so that those of all columns fit into a long."""
    return min(MAX_RANGE_BITS, 63 // columns)


def takes_hilbert(columns: int, *, hilbert: bool) -> bool:
    """Return whether rows are ordered along the Hilbert curve, and not along the Z-curve.

    :param hilbert: whether it is wanted: for clustered tables.
    """
    return hilbert and 1 < columns <= MAX_HILBERT_COLUMNS


def hilbert_states(columns: int) -> list[list[tuple[int, int]]]:
    """Return the orientations of the Hilbert curve in a cube that is cut in half along each column.

    For each orientation and each corner (the bit of the first column highest): the place of the corner on the way through the
    cube, and the orientation inside of it. Gray codes, reflected and rotated (C. Hamilton, "Compact Hilbert Indices", 2006).
    """
    corners = 1 << columns

    def turned(value: int, by: int) -> int:
        by %= columns
        return (value << by | value >> columns - by) & corners - 1

    known = {(0, 0): 0}
    states: list[list[tuple[int, int]]] = []
    order = [(0, 0)]
    for entry, direction in order:
        cells = []
        for corner in range(corners):
            gray, place = turned(corner ^ entry, columns - direction - 1), 0
            while gray:
                place, gray = place ^ gray, gray >> 1
            first = max(0, (place - 1) // 2 * 2)
            even = place + place % 2
            trailing_ones = max(0, (even & -even).bit_length() - 1)
            inside = (entry ^ turned(first ^ first >> 1, direction + 1), (direction + trailing_ones + 1) % columns)
            if inside not in known:
                known[inside] = len(order)
                order.append(inside)
            cells.append((place, known[inside]))
        states.append(cells)
    return states
