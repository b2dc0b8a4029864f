"""The report of a stage from the process that wrote its files, and so need not read their footers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from airflow_delta.contract.request import StageReport

if TYPE_CHECKING:
    import pyarrow.parquet as pq


class WrittenHere(StageReport):
    """A report with the footers of its files, which are not part of its JSON form.

    :ivar footers: by path below the attempt's directory, and size.
    """

    __slots__ = ("footers",)
    footers: Mapping[tuple[str, int], pq.FileMetaData]

    @classmethod
    def of(cls, report: StageReport, footers: Mapping[tuple[str, int], pq.FileMetaData]) -> WrittenHere:
        """Return a report with the footers of its files."""
        with_footers = cls(**{field.name: getattr(report, field.name) for field in fields(report)})
        object.__setattr__(with_footers, "footers", footers)
        return with_footers

    def footer_of(self, path: str, size: int) -> pq.FileMetaData | None:
        """Return the footer of a file; ``None`` if it is not known, as in a copy of a report."""
        footers: Mapping[tuple[str, int], pq.FileMetaData] = getattr(self, "footers", {})
        return footers.get((path, size))
