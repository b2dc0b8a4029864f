"""MERGE: rows of a source change, delete and add rows of the table (Delta's ``MergeIntoCommand``).

A MERGE after Spark: staged actions, and what Delta counts of it.

A MERGE that keeps every version of its rows (a slowly changing dimension of type 2).

Of its condition: what it asks of the table alone, and which columns it compares.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.operations import (
    ACTION,
    HISTORY_DELETE,
    HISTORY_INSERT,
    HISTORY_UPDATE,
    INSERTED,
    MATCHED,
    NOT_MATCHED,
    NOT_MATCHED_BY_SOURCE,
    SCRATCH,
    ComparedColumns,
    HistoryColumns,
    MergeArguments,
    MergeClause,
    parse_clauses,
    when_matched_delete,
    when_matched_update,
    when_not_matched_insert,
)
from airflow_delta.contract.payloads import Json, StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.schema import find_field, type_name
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    PredicateException,
)
from airflow_delta.log.expressions.ast import quote_name
from airflow_delta.log.expressions.nodes import column_of, columns_of, compared_texts
from airflow_delta.log.expressions.text import SqlSyntaxError, tokens_of, tree_of
from airflow_delta.log.schema.types import known_names
from airflow_delta.log.statistics.statistics import live_records
from airflow_delta.table.files.rules import table_rules
from airflow_delta.table.operations.merge.clauses import ClauseResolver, check_expression, refused
from airflow_delta.table.operations.rewrite.target import rewrite_target
from airflow_delta.table.operations.rewrite.vectors import Rewritten, collect_rewrite
from airflow_delta.table.stage.compared_columns import Sides, at_one_instant, conjunct_texts, of_table
from airflow_delta.table.stage.stage_view import SparkWork, StageView

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import DataType, StructType


_SAME_AS_TEXT = ("string", "boolean", "date", "timestamp", "timestamp_ntz")
"""Types that text is always cast to in comparisons. Timestamps are left out elsewhere."""

_DIGITS = {"byte": 2, "short": 4, "integer": 9, "long": 18}
"""Number of digits that always fit."""


class MergeCondition:
    """A condition over a row of the table and a row of the source.

    :param text: Spark SQL.
    :raises DeltaAnalysisException: if it is not valid Spark SQL, or not a condition that a MERGE can have.
    """

    def __init__(self, text: str, schema: StructType, target_alias: str, source_alias: str, *, table: str) -> None:
        self._sides = Sides(schema, target_alias.lower(), source_alias.lower())
        try:
            check_expression(text, table=table, repeatable=True)
            self.conjuncts = list(conjunct_texts(text))
        except SqlSyntaxError as error:
            raise refused(table, f"{text!r} is not valid Spark SQL: {error}") from error
        if (name := self._sides.unknown(self.conjuncts)) is not None:
            known = known_names(name, schema.names)
            raise refused(table, f"{text!r} names the column {name!r}, which the table does not have. {known}")

    def of_target(self, parse: Callable[[str], Predicate | None]) -> Predicate | None:
        """Return what the condition asks of the table alone, ``None`` for nothing.

        :param parse: parses a predicate.
        """
        found = []
        for text in self.conjuncts:
            columns = list(self._columns(text))
            if any(side != "target" for side, _ in columns) or self._compares_text(text):
                continue
            alone = _without_alias(text, self._sides.target)
            try:
                predicate = parse(alone)
            except PredicateException:  # the whole table is read, and Spark reports the error
                continue
            # The worker reads timestamps in UTC, the session that evaluates the condition in its own time zone.
            if predicate is None or any(column.data_type.name == "timestamp" for column in predicate.columns):
                continue
            found.append(f"({alone})")
        return parse(" AND ".join(found)) if found else None

    def compared(self) -> list[ComparedColumns]:
        """Return the columns that are equal in rows that match."""
        return self._sides.compared(self.conjuncts)

    def _compares_text(self, text: str) -> bool:
        """Tell whether another type is compared with text, so that the meaning depends on the ANSI mode.

        Outside of it, IN compares both as text, and other comparisons cast the text. Whole numbers of few digits are the same.
        """
        for literal, others, within in compared_texts(tree_of(text)):
            for other in others:
                data_type = self._type_of(other)
                if within and (data_type is None or data_type.name != "string"):
                    return True
                if data_type is None or data_type.name in _SAME_AS_TEXT:
                    continue
                digits = _DIGITS.get(data_type.name, 0)
                if not digits or re.fullmatch(f"-?[0-9]{{1,{digits}}}", literal) is None:
                    return True
        return False

    def _type_of(self, node: Any) -> DataType | None:
        """Return the type of a column of the table, or of a field of a struct; ``None`` for anything else."""
        column = column_of(node)
        if column is None:
            return None
        found: DataType | None = self._sides.schema
        for name in self._sides.of(column)[1]:
            find = getattr(found, "find", None)
            field = None if find is None else find(name)
            found = None if field is None else field.data_type
        return found

    def _columns(self, text: str) -> Iterator[tuple[str, list[str]]]:
        yield from map(self._sides.of, columns_of(tree_of(text)))


def _without_alias(text: str, alias: str) -> str:
    """Return the text with ``alias.column`` as ``column``, otherwise unchanged."""
    tokens = tokens_of(text)
    for position in range(len(tokens) - 2, -1, -1):
        token, dot = tokens[position], tokens[position + 1]
        after_dot = position > 0 and tokens[position - 1].token_type.name == "DOT"
        if token.text.lower() == alias and dot.token_type.name == "DOT" and not after_dot:
            text = text[: token.start] + text[dot.end + 1 :]
    return text


logger = logging.getLogger(__name__)


def collect_merge(stage: StageView, request: StageRequest, report: StageReport) -> StagedWrite:
    """Turn what one attempt of a MERGE has written into staged actions."""
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
    :param merge_schema: add columns and struct fields that only the source has to the table: those that clauses name, and all
        if one has ``*``.
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


def _prepared(clause: MergeClause, schema: StructType, target_alias: str, now: int) -> MergeClause:
    """Return the clause with expressions that mean the same wherever Spark evaluates them."""

    def prepared(text: str) -> str:
        text = at_one_instant(text, now, schema)
        return of_table(text, schema, target_alias) if clause.kind == NOT_MATCHED_BY_SOURCE else text

    condition = None if clause.condition is None else prepared(clause.condition)
    values = None if clause.set is None else {name: prepared(text) for name, text in clause.set.items()}
    return MergeClause(kind=clause.kind, action=clause.action, condition=condition, set=values)


_TIMES = ("date", "timestamp", "timestamp_ntz")


def history_columns(
    stage: StageView,
    *,
    keys: Sequence[str],
    tracked: Sequence[str] = (),
    valid_from: str = "valid_from",
    valid_to: str = "valid_to",
    current: str | None = "is_current",
    confirmed: str | None = None,
) -> HistoryColumns:
    """Return the columns of a table, sorted by what they are for.

    :param tracked: default: all that are neither keys nor about the period, nor computed by the table.
    :raises DeltaTableNotFoundException: if there is no table.
    :raises DeltaIllegalArgumentException: if there are no keys, or a column is named twice.
    :raises DeltaAnalysisException: if the table lacks a column, or one has a type that does not fit.
    """
    table = stage.target
    if not table.is_known:
        raise table.error(
            DeltaTableNotFoundException,
            f"There is no table at {table.table} to keep a history in. Create it first (DeltaCreateTableOperator), with the "
            f"keys, the tracked columns, {valid_from}, {valid_to}" + (f" and {current}." if current else "."),
        )
    if not keys:
        raise DeltaIllegalArgumentException(f"A history needs keys=, the columns that a row is about (table {table.table})")
    schema = table.struct
    period = [valid_from, valid_to, *(name for name in (current, confirmed) if name)]
    named = [_field(schema, name, table.table)["name"] for name in (*keys, *tracked, *period)]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise table.error(
            DeltaIllegalArgumentException,
            f"keys, tracked and the columns of the period name {', '.join(twice)} twice (table {table.table})",
        )
    rules = table_rules(table)
    computed = {*(n.lower() for n in rules.generated), *(identity.column.lower() for identity in rules.identities)}
    rest = [f["name"] for f in schema["fields"] if f["name"] not in named and f["name"].lower() not in computed]
    start, end, *flags = named[len(keys) + len(tracked) :]
    columns = HistoryColumns(
        keys=tuple(named[: len(keys)]),
        tracked=tuple(named[len(keys) : len(keys) + len(tracked)] or rest),
        others=tuple(rest if tracked else ()),
        valid_from=start,
        valid_to=end,
        current=flags[0] if current else None,
        confirmed=flags[-1] if confirmed else None,
        period_type=str(_field(schema, start, table.table)["type"]),
    )
    _check_types(schema, columns, table.table)
    return columns


def plan_history(stage: StageView, columns: HistoryColumns, options: Mapping[str, str] | None = None) -> SparkWork:
    """Plan the MERGE, whose source is what :func:`airflow_delta.spark.history` makes of the source rows.

    What it depends on are the rows with the keys of the source, of whatever period: the history of a key is computed of all its
    versions. So its condition must not compare ``valid_from`` in a form that is taken for a key.

    :param options: options of Spark's Parquet writer.
    """
    same = [f"target.{quote_name(name)} <=> source.{quote_name(name)}" for name in columns.keys]
    start = quote_name(columns.valid_from)
    values = {quote_name(name): f"source.{quote_name(name)}" for name in columns.written}
    unchanged = {quote_name(name) for name in (*columns.keys, columns.valid_from)}
    action = f"source.{ACTION}"
    return plan_merge(
        stage,
        condition=" AND ".join([*same, f"(target.{start} = source.{start}) IS TRUE"]),
        clauses=[
            when_matched_delete(f"{action} = '{HISTORY_DELETE}'"),
            when_matched_update(
                {n: value for n, value in values.items() if n not in unchanged}, f"{action} = '{HISTORY_UPDATE}'"
            ),
            when_not_matched_insert(values, f"{action} = '{HISTORY_INSERT}'"),
        ],
        options=options,
    )


def _field(schema: Json, name: str, table: str) -> Json:
    found = find_field(schema, name)
    if found is None:
        known = ", ".join(field["name"] for field in schema["fields"])
        raise DeltaAnalysisException(f"Table {table} has no column {name!r} to keep a history with; it has {known}.", table=table)
    return found


def _check_types(schema: Json, columns: HistoryColumns, table: str) -> None:
    period = columns.period_type
    types: dict[str, Any] = {name: _field(schema, name, table)["type"] for name in columns.written}
    wanted = {columns.valid_from: period if period in _TIMES else " or ".join(_TIMES), columns.valid_to: period}
    if columns.current is not None:
        wanted[columns.current] = "boolean"
    if columns.confirmed is not None:
        wanted[columns.confirmed] = f"array<{period}>"
    spelled = {name: type_name(kind) for name, kind in types.items()}
    problems = [f"{name} is {spelled[name]}, expected {text}" for name, text in wanted.items() if spelled[name] != text]
    incomparable = [name for name in columns.given if any(word in spelled[name] for word in ("map<", "variant"))]
    problems += [f"{name} is {spelled[name]}, which cannot be compared" for name in incomparable]
    if problems:
        raise DeltaAnalysisException(f"The columns of table {table} cannot keep a history: {'; '.join(problems)}.", table=table)
