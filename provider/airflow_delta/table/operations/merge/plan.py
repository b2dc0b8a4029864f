"""MERGE: rows of a source change, delete and add rows of the table (Delta's ``MergeIntoCommand``).

A MERGE after Spark: staged actions, and what Delta counts of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.operations import (
    INSERT,
    INSERTED,
    MATCHED,
    NOT_MATCHED,
    NOT_MATCHED_BY_SOURCE,
    SCRATCH,
    UPDATE,
    ComparedColumns,
    MergeArguments,
    MergeClause,
    parse_clauses,
)
from airflow_delta.contract.payloads import Json, StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.schema import TableRules, find_field
from airflow_delta.exceptions import IdentityInsertException
from airflow_delta.log.schema.types import known_names
from airflow_delta.log.statistics.statistics import live_records
from airflow_delta.table.files.rules import table_rules
from airflow_delta.table.operations.merge.condition import MergeCondition, check_expression, refused
from airflow_delta.table.operations.rewrite.collect import Rewritten, collect_rewrite
from airflow_delta.table.operations.rewrite.target import RewriteTarget, rewrite_target
from airflow_delta.table.stage.compared_columns import at_one_instant, of_table
from airflow_delta.table.stage.stage_view import SparkWork, StageView

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.schema.types import StructType


logger = logging.getLogger(__name__)


def collect_merge(stage: StageView, request: StageRequest, report: StageReport) -> StagedWrite:
    """Turn what one attempt of a MERGE has written into staged actions.

    :raises StagingException: if the report is of another attempt, or does not fit what was planned or the table.
    :raises StagedFileException: if a file cannot be read as Parquet.
    :raises InvariantViolationException: if a NOT NULL column holds a null.
    """
    inserted_into = tuple(f"{request.directory}/{name}/" for name in report.directories if name.endswith(INSERTED))
    staged = collect_rewrite(
        stage, request, report, metrics=partial(merge_metrics, inserted_into), compared=_compared(MergeArguments.of(request))
    )
    _clean_up(stage.log, request)
    copied = staged.metrics["numTargetRowsCopied"]
    rows = staged.metrics["numOutputRows"] - copied
    reads = replace(staged.reads, scanned=staged.reads.predicates[:1]) if _inserts(request) else staged.reads
    return replace(staged, num_records=rows, num_copied_records=copied, reads=reads)


def merge_metrics(inserted_into: tuple[str, ...], rewritten: Rewritten, report: StageReport) -> Mapping[str, int]:
    """Return the metrics of a MERGE; those of rows that change are in the report.

    :param inserted_into: directories, relative to the table, that hold only inserted rows.
    """
    inserted = sum(live_records(add) or 0 for add in rewritten.new.adds if add.path.startswith(inserted_into))
    updated = report.metrics.get("numTargetRowsUpdated", 0)
    copied = rewritten.new.rows + rewritten.copied.rows - inserted - updated
    return {
        "numTargetRowsInserted": inserted,
        "numTargetRowsCopied": copied,
        "numOutputRows": inserted + updated + copied,
        "numTargetFilesAdded": len(rewritten.written),
        "numTargetFilesRemoved": len(rewritten.gone),
        "numTargetBytesAdded": sum(add.size for add in rewritten.written),
        "numTargetBytesRemoved": sum(remove.size or 0 for remove in rewritten.gone),
        "numTargetChangeFilesAdded": len(rewritten.changes),
        "numTargetDeletionVectorsAdded": rewritten.marked.added,
        "numTargetDeletionVectorsRemoved": rewritten.marked.removed,
        "numTargetDeletionVectorsUpdated": rewritten.marked.updated,
    }


def _inserts(request: StageRequest) -> bool:
    """Return whether a MERGE adds source rows because no row of the table matches: every row that does has been read."""
    return any(clause.kind == NOT_MATCHED for clause in MergeArguments.of(request).clauses)


def _compared(arguments: MergeArguments) -> tuple[ComparedColumns, ...]:
    """Return the columns in which the rows that a MERGE reads equal a row of its source."""
    whole = any(clause.kind == NOT_MATCHED_BY_SOURCE for clause in arguments.clauses)
    return () if whole else arguments.keys


def _clean_up(log: DeltaLog, request: StageRequest) -> None:
    try:
        log.store.delete_tree(f"{request.directory}/{SCRATCH}")
    except Exception as error:  # noqa: BLE001 - the rows are staged; maintenance deletes leftovers
        logger.warning("Could not delete %s/%s of table %s: %s", request.directory, SCRATCH, log.uri, error)


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
) -> SparkWork:
    """Plan a MERGE.

    :param condition: Spark SQL over a row of the table and one of the source: whether they match.
    :param clauses: in order; made with :mod:`airflow_delta.contract.operations`, or in their JSON form.
    :param source: what a submitted job reads the source rows from: ``sql``, or ``path`` with ``format`` and ``options``.
    :param source_alias: name of the source in conditions and expressions.
    :param target_alias: name of the table in them.
    :param merge_schema: add columns that only the source has to the table, for clauses with ``*``.
    :param options: options of Spark's Parquet writer.
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
    resolved = [_prepared(clause, schema, target_alias, now) for clause in _resolved(target, parsed, target_alias)]
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


def _resolved(target: RewriteTarget, clauses: Sequence[MergeClause], target_alias: str) -> list[MergeClause]:
    """Return the clauses with columns as the schema spells them, and defaults as expressions."""
    schema = target.table.struct
    rules = table_rules(target.table)
    found = []
    for clause in clauses:
        if clause.condition is not None:
            check_expression(clause.condition, table=target.stage.log.uri, repeatable=True)
        values = None if clause.set is None else _values(target, schema, rules, clause, target_alias)
        found.append(MergeClause(kind=clause.kind, action=clause.action, condition=clause.condition, set=values))
    return found


def _prepared(clause: MergeClause, schema: StructType, target_alias: str, now: int) -> MergeClause:
    """Return the clause with expressions that mean the same wherever Spark evaluates them."""

    def prepared(text: str) -> str:
        text = at_one_instant(text, now, schema)
        return of_table(text, schema, target_alias) if clause.kind == NOT_MATCHED_BY_SOURCE else text

    condition = None if clause.condition is None else prepared(clause.condition)
    values = None if clause.set is None else {name: prepared(text) for name, text in clause.set.items()}
    return MergeClause(kind=clause.kind, action=clause.action, condition=condition, set=values)


def _values(target: RewriteTarget, schema: Json, rules: TableRules, clause: MergeClause, target_alias: str) -> dict[str, str]:
    defaults = {name.lower(): text for name, text in rules.defaults.items()}
    values: dict[str, str] = {}
    for name, expression in (clause.set or {}).items():
        field = _column(schema, name, target_alias)
        if field is None:
            known = known_names(name.rpartition(".")[2] or name, [f["name"] for f in schema["fields"]])
            hint = ". Fields of a struct cannot be set alone; set the whole struct" if "." in name else ""
            raise refused(target.stage.log.uri, f"{clause} sets {name!r}, which the table does not have. {known}{hint}")
        if field["name"] in values:
            raise refused(target.stage.log.uri, f"{clause} sets {field['name']} twice")
        _check_identity(target, rules, clause, field["name"])
        text = str(expression)
        if text.strip().upper() == "DEFAULT":
            text = defaults.get(field["name"].lower(), "NULL")
        check_expression(text, table=target.stage.log.uri)
        values[field["name"]] = text
    return values


def _check_identity(target: RewriteTarget, rules: TableRules, clause: MergeClause, column: str) -> None:
    for identity in rules.identities:
        if identity.column.lower() == column.lower() and (clause.action == UPDATE or not identity.explicit):
            word = "its values never change" if clause.action != INSERT else "only the table gives its values"
            raise IdentityInsertException(
                f"MERGE into table {target.stage.log.uri}: {clause} sets the identity column {column}; {word}. Leave it out.",
                table=target.stage.log.uri,
                version=target.table.version,
            )


def _column(schema: Json, name: str, alias: str) -> Json | None:
    """Return the column of a name with or without the alias of the table; ``None`` also for a field of a struct."""
    quoted = "`" + alias.lower().replace("`", "``") + "`."
    prefix = next((p for p in (f"{alias.lower()}.", quoted) if name.lower().startswith(p)), "")
    rest = name[len(prefix) :]
    if len(rest) > 1 and rest[0] == rest[-1] == "`":
        return find_field(schema, rest[1:-1].replace("``", "`"))
    head, _, inner = rest.partition(".")
    struct = find_field(schema, head)
    kind = None if struct is None or isinstance(struct["type"], str) else struct["type"]
    if inner and kind is not None and kind["type"] == "struct" and find_field(kind, inner.split(".")[0].strip("`")) is not None:
        return None  # as in SQL, a column `a.b` beside the struct needs back-quotes
    return find_field(schema, rest) or find_field(schema, name)
