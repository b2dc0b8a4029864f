"""The histograms of a checksum: files by size, and files by number of deleted rows (Delta's FileSizeHistogram and
DeletedRecordCountsHistogram).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

_MIB = 1 << 20


def _file_size_bins() -> tuple[int, ...]:
    """Return where Delta's bins begin: doubling up to 8 MiB and from 4 GiB on, in even steps between, finest around 128 MiB."""
    bins = [0, *(8 * 1024 << power for power in range(10))]
    # (step, end), in MiB: each run of even steps goes up to where the next one begins
    runs = ((4, 40), (8, 120), (4, 144), (16, 576), (64, 1408), (128, 2048), (256, 4096))
    at = 8
    for step, end in runs:
        bins += [size * _MIB for size in range(at, end, step)]
        at = end
    return (*bins, *(4096 * _MIB << power for power in range(7)))


FILE_SIZE_BINS = _file_size_bins()
"""First size of each bin, in bytes."""

DELETED_RECORD_BINS = (0, 1, *(10**power for power in range(1, 8)), (1 << 31) - 1)
"""First number of deleted rows of each bin."""


class FileSizeHistogram(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Number and bytes of the files, by size.

    :param sorted_bin_boundaries: first size of each bin; a bin ends before the next one.
    """

    sorted_bin_boundaries: Sequence[int]
    file_counts: Sequence[int]
    total_bytes: Sequence[int]

    @property
    def is_usable(self) -> bool:
        """Tell whether it has Delta's bins, so that commits can be added to it."""
        return (
            tuple(self.sorted_bin_boundaries) == FILE_SIZE_BINS
            and len(self.file_counts) == len(FILE_SIZE_BINS)
            and len(self.total_bytes) == len(FILE_SIZE_BINS)
        )


class DeletedRecordCountsHistogram(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Number of files, by number of deleted rows."""

    deleted_record_counts: Sequence[int]

    @property
    def is_usable(self) -> bool:
        """Tell whether it has Delta's bins."""
        return len(self.deleted_record_counts) == len(DELETED_RECORD_BINS)


def size_bin(size: int) -> int:
    """Return the bin of a file with that many bytes."""
    return bisect_right(FILE_SIZE_BINS, size) - 1


def deleted_bin(rows: int) -> int:
    """Return the bin of a file with that many deleted rows."""
    return bisect_right(DELETED_RECORD_BINS, rows) - 1
