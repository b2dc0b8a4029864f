"""What the SQL of a stage's source has read of the table, for the conflict check of the commit."""

from __future__ import annotations

from airflow_delta.contract.payloads import DeclaredReads
from airflow_delta.contract.request import StageRequest


def with_views(request: StageRequest, reads: DeclaredReads, *, whole_table: bool = False) -> DeclaredReads:
    """Return the reads of a stage with those of the views of its own table.

    :param whole_table: all rows of the table were read besides.
    """
    own = [view.scan.predicate for view in request.views if view.own]
    whole = whole_table or None in own
    return reads.with_others(tuple(text for text in own if text is not None), whole_table=whole)
