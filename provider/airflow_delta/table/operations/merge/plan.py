"""MERGE: rows of a source change, delete and add rows of the table (Delta's ``MergeIntoCommand``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.merge import MATCHED, NOT_MATCHED, NOT_MATCHED_BY_SOURCE, MergeArguments, MergeClause, parse_clauses
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.request import SourceScan, ViewScan
from airflow_delta.contract.scd2 import HistoryArguments
from airflow_delta.table.operations.merge.clauses import ClauseResolver, refused
from airflow_delta.table.operations.merge.collect import collect_merge
from airflow_delta.table.operations.merge.condition import MergeCondition
from airflow_delta.table.operations.rewrite.target import rewrite_target
from airflow_delta.table.stage.repeatable import at_one_instant, of_table
from airflow_delta.table.stage.stage_view import SparkWork, StageView

if TYPE_CHECKING:
    from airflow_delta.log.schema.types import StructType


logger = logging.getLogger(__name__)


OPERATION = "MERGE"


def plan_merge(
    stage: StageView,
    *,
    condition: str,
    clauses: Sequence[Mapping[str, Any] | MergeClause],
    source: Mapping[str, Any] | None = None,
    source_alias: str = "source",
    target_alias: str = "target",
    merge_schema: bool = False,
    options: Mapping[str, str] | None = None,
    history: HistoryArguments | None = None,
    views: Sequence[ViewScan] = (),
    sources: Sequence[SourceScan] = (),
) -> SparkWork:
    """Plan a MERGE.

    :param condition: Spark SQL over a row of the table and one of the source: whether they match.
    :param clauses: in order; made with :mod:`airflow_delta.contract.operations`, or in their JSON form.
    :param source: what a submitted job reads the source rows from: ``sql``, or ``path`` with ``format`` and ``options``.
    :param source_alias: name of the source in conditions and expressions.
    :param target_alias: name of the table in them.
    :param merge_schema: add columns and struct fields that only the source has to the table: those that clauses name, and all
        if one has ``*``.
    :param options: options of Spark's Parquet writer.
    :param history: what Spark makes of the source rows before it merges.
    :param views: what the SQL of the source reads, with ``sources``, new rows of other tables.
    :raises DeltaAnalysisException: if a clause or an expression cannot be used, or a column is unknown or set twice.
    :raises IdentityInsertException: if an identity column would get a value.
    :raises AppendOnlyException: if the table only takes appends, and a clause updates or deletes.
    :raises DeltaTableNotFoundException: if there is no table.
    """
    table = stage.log.uri
    parsed = parse_clauses(clauses, table=table)
    if source_alias.lower() == target_alias.lower():
        raise refused(table, f"table and source have the same alias {target_alias!r}")
    insert_only = all(clause.kind == NOT_MATCHED for clause in parsed)
    target = rewrite_target(stage, OPERATION, removes_rows=not insert_only)
    schema = stage.schema
    now = time.time_ns() // 1000
    resolver = ClauseResolver(target, target_alias, merge_schema=merge_schema)
    resolved = [_prepared(resolver.resolved(clause), schema, target_alias, now) for clause in parsed]
    on = MergeCondition(condition, schema, target_alias, source_alias, table=table)
    whole = any(clause.kind == NOT_MATCHED_BY_SOURCE for clause in parsed)
    planned_for = None if whole else on.of_target(target.parse)
    arguments = MergeArguments(
        condition=at_one_instant(condition, now, schema),
        target_alias=target_alias,
        source_alias=source_alias,
        clauses=tuple(resolved),
        keys=tuple(on.compared()),
        source=None if source is None else dict(source),
        history=history,
    )
    return target.work(
        target.files(planned_for),
        planned_for,
        arguments=arguments,
        parameters=_parameters(condition, parsed),
        deletion_vectors=target.deletion_vectors and not insert_only,
        collect=collect_merge,
        options=options,
        merge_schema=merge_schema,
        views=tuple(views),
        sources=tuple(sources),
    )


def _parameters(condition: str, clauses: Sequence[MergeClause]) -> Json:
    def of(kind: str) -> list[Json]:
        found = []
        for clause in clauses:
            if clause.kind == kind:
                predicate = {} if clause.condition is None else {"predicate": clause.condition}
                found.append({**predicate, "actionType": clause.action})
        return found

    return {
        "predicate": [condition],
        "matchedPredicates": of(MATCHED),
        "notMatchedPredicates": of(NOT_MATCHED),
        "notMatchedBySourcePredicates": of(NOT_MATCHED_BY_SOURCE),
    }


def _prepared(clause: MergeClause, schema: StructType, target_alias: str, now: int) -> MergeClause:
    """Return the clause with expressions that mean the same wherever Spark evaluates them."""

    def prepared(text: str) -> str:
        text = at_one_instant(text, now, schema)
        return of_table(text, schema, target_alias) if clause.kind == NOT_MATCHED_BY_SOURCE else text

    condition = None if clause.condition is None else prepared(clause.condition)
    values = None if clause.set is None else {name: prepared(text) for name, text in clause.set.items()}
    return MergeClause(kind=clause.kind, action=clause.action, condition=condition, set=values)
