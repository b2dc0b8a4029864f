"""The tables that the SQL of a task reads, planned by the worker: wherever the SQL runs, it finds them as views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.request import SourceScan, ViewScan
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.tasks.base import TABLE_VIEW

if TYPE_CHECKING:
    from airflow_delta.table.stage.stage_view import StageView
    from airflow_delta.tasks.stage.read_versions import OtherTables


@dataclass(frozen=True, slots=True)
class SourceViews:
    """What a request has of the tables that its SQL reads.

    :param views: of the table itself, and of tables at given versions.
    :param sources: new rows of other tables, whose positions the commit records.
    """

    views: tuple[ViewScan, ...] = ()
    sources: tuple[SourceScan, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return the fields of the request."""
        return {"views": self.views, "sources": self.sources}


def plan_views(stage: StageView, others: OtherTables, sql: str, where: str | None = None) -> SourceViews:
    """Plan what a text of SQL reads: ``{{ table }}``, and other tables by the last parts of their locations.

    :param where: predicate of the rows that ``{{ table }}`` has.
    :raises DeltaTableNotFoundException: if it names ``{{ table }}``, and there is neither a table nor a schema.
    :raises DeltaIllegalArgumentException: if it does not name a table of ``new_rows``, whose rows would count as read.
    """
    text = sql.lower()
    views = []
    if TABLE_VIEW in text:
        views.append(ViewScan(name=TABLE_VIEW, scan=engine.plan_view(stage, where), own=True))
    tables = others.views()
    sources = others.sources.view_scans(stage, text, taken=tables)
    views += [ViewScan(name=name, scan=others.scan(stage, table)) for name, table in tables.items() if name in text]
    return SourceViews(tuple(views), tuple(sources))
