"""Arguments of the operations that ask Spark for more than rows and a predicate, and the clauses of a MERGE.

WRITE, UPDATE, OPTIMIZE and REORG, ADD CONSTRAINT and SET NOT NULL, MERGE, and tables that keep every version of their rows
(slowly changing dimensions of type 2).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from airflow_delta.contract.payloads import Json, Payload
from airflow_delta.contract.request import Arguments, RewriteArguments, RowIds, SourceArguments
from airflow_delta.exceptions import DeltaAnalysisException, StagingException


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment(Payload):
    """A column or field, and its new value.

    :param path: names from the column to the field, as in the schema.
    :param expression: Spark SQL over the old row.
    """

    path: tuple[str, ...]
    expression: str


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateArguments(RewriteArguments):
    """Arguments of an UPDATE.

    :param repeatable: the expressions give the same values each time they are evaluated.
    """

    set: tuple[Assignment, ...]
    repeatable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizeArguments(Arguments):
    """Arguments of OPTIMIZE and REORG.

    :param bins: positions of files in ``StageRequest.rewrite``; the files of a bin are rewritten together.
    :param outputs: number of new files of each bin.
    :param directories: where the files of each bin go, below the directory of the bin; empty: into that itself.
    :param z_order_by: paths of columns.
    :param cluster_by: paths of the clustering columns, if the files of each bin become a cube.
    :param cubes: id of the cube of each bin.
    :param parallel: bins to write at a time.
    :param row_ids: ``None`` if the table does not track rows.
    :param data_change: for each bin, whether its rows are changes staged by earlier stages.
    :param removes: ``remove`` actions of files staged by earlier stages.
    :param parameters: ``operationParameters`` of the commit.
    :param record_rows: report where rows went (``StageReport.first_rows``).
    """

    bins: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]
    directories: tuple[str, ...] = ()
    z_order_by: tuple[tuple[str, ...], ...] = ()
    cluster_by: tuple[tuple[str, ...], ...] = ()
    cubes: tuple[str, ...] = ()
    parallel: int = 1
    row_ids: RowIds | None = None
    data_change: tuple[bool, ...] = ()
    removes: tuple[dict, ...] = ()  # type: ignore[type-arg]
    parameters: dict = field(default_factory=dict)  # type: ignore[type-arg]
    record_rows: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstraintArguments(Arguments):
    """Arguments of a check of rows.

    :param constraints: Spark SQL conditions by name of the constraint.
    :param not_null: paths of columns that must not be null.
    :param furthest: identity columns whose furthest value is looked for, with their steps.
    :param staged: the staged write to return if the rows pass.
    """

    constraints: dict[str, str] = field(default_factory=dict)
    not_null: tuple[tuple[str, ...], ...] = ()
    furthest: dict[str, int] = field(default_factory=dict)
    staged: dict  # type: ignore[type-arg]


ACTION = "__airflow_delta_action"
"""Column of the source of the MERGE: what to do with its row."""

HISTORY_INSERT, HISTORY_UPDATE, HISTORY_DELETE, HISTORY_NOTHING = "insert", "update", "delete", "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryColumns:
    """Names of columns, as the table spells them.

    :param keys: what a row is about.
    :param tracked: whose changes make versions.
    :param others: that come with a version.
    :param valid_from: when a version began.
    :param valid_to: when it ended; null for the last one that did not.
    :param current: whether it has not ended; ``None``: there is no such column.
    :param confirmed: times at which a source row had the version's tracked values again; ``None``: there is no such column.
    :param period_type: type of times, in Spark's JSON form.
    """

    keys: tuple[str, ...]
    tracked: tuple[str, ...]
    others: tuple[str, ...]
    valid_from: str
    valid_to: str
    current: str | None
    confirmed: str | None
    period_type: str

    @property
    def given(self) -> tuple[str, ...]:
        """Return the columns that source rows must have."""
        return (*self.keys, *self.tracked, *self.others)

    @property
    def written(self) -> tuple[str, ...]:
        """Return all columns that the MERGE sets."""
        flags = [name for name in (self.current, self.confirmed) if name is not None]
        return (*self.given, self.valid_from, self.valid_to, *flags)


MATCHED, NOT_MATCHED, NOT_MATCHED_BY_SOURCE = "matched", "notMatched", "notMatchedBySource"
UPDATE, DELETE, INSERT = "update", "delete", "insert"

INSERTED = "-inserted"
"""Suffix of the names of directories with inserted rows."""

SCRATCH = "merge-scratch"
"""Directory of the attempt with intermediate results: the source rows, pairs of matching rows. The collect deletes it; its name
is visible, so that any engine's VACUUM deletes what is left over.
"""

_ACTIONS = {MATCHED: (UPDATE, DELETE), NOT_MATCHED: (INSERT,), NOT_MATCHED_BY_SOURCE: (UPDATE, DELETE)}
_WORDS = {MATCHED: "WHEN MATCHED", NOT_MATCHED: "WHEN NOT MATCHED", NOT_MATCHED_BY_SOURCE: "WHEN NOT MATCHED BY SOURCE"}


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeClause(Payload):
    """One clause.

    :param kind: ``matched``, ``notMatched`` or ``notMatchedBySource``.
    :param action: ``update``, ``delete`` or ``insert``.
    :param condition: Spark SQL; the first clause of its kind whose condition is true applies to a row.
    :param set: Spark SQL expressions by column of the table, in an update also by field of a struct (``a.b``); ``None`` is ``*``:
        each column gets the source's value.
    """

    kind: str
    action: str
    condition: str | None = None
    set: dict | None = None  # type: ignore[type-arg]

    def __str__(self) -> str:
        condition = "" if self.condition is None else f" AND {self.condition}"
        return f"{_WORDS.get(self.kind, self.kind)}{condition} THEN {self.action.upper()}"


_FIELDS = tuple(field.name for field in fields(MergeClause))


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedColumns(Payload):
    """A column of the table that must equal an expression over the source.

    :param source: Spark SQL.
    :param null_safe: nulls are equal too.
    """

    column: str
    source: str
    null_safe: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeArguments(SourceArguments):
    """Arguments of a MERGE.

    :param condition: Spark SQL over a row of the table and a row of the source.
    :param keys: columns compared in the condition.
    """

    condition: str
    target_alias: str
    source_alias: str
    clauses: tuple[MergeClause, ...]
    keys: tuple[ComparedColumns, ...] = ()


def when_matched_update(set: Mapping[str, str] | None = None, condition: str | None = None) -> Json:  # noqa: A002 - Delta's name
    """Return WHEN MATCHED THEN UPDATE.

    :param set: Spark SQL expressions by column of the table, or field of a struct (``a.b``); default: ``UPDATE SET *``.
    :param condition: Spark SQL over a row of the table and one of the source.
    """
    return _clause(MATCHED, UPDATE, condition, set)


def when_matched_delete(condition: str | None = None) -> Json:
    """Return WHEN MATCHED THEN DELETE."""
    return _clause(MATCHED, DELETE, condition, None)


def when_not_matched_insert(values: Mapping[str, str] | None = None, condition: str | None = None) -> Json:
    """Return WHEN NOT MATCHED THEN INSERT.

    :param values: Spark SQL expressions by column of the table; default: ``INSERT *``.
    :param condition: Spark SQL over a row of the source.
    """
    return _clause(NOT_MATCHED, INSERT, condition, values)


def when_not_matched_by_source_update(set: Mapping[str, str], condition: str | None = None) -> Json:  # noqa: A002 - as there
    """Return WHEN NOT MATCHED BY SOURCE THEN UPDATE.

    :param set: Spark SQL expressions over a row of the table.
    :param condition: Spark SQL over a row of the table.
    """
    return _clause(NOT_MATCHED_BY_SOURCE, UPDATE, condition, set)


def when_not_matched_by_source_delete(condition: str | None = None) -> Json:
    """Return WHEN NOT MATCHED BY SOURCE THEN DELETE."""
    return _clause(NOT_MATCHED_BY_SOURCE, DELETE, condition, None)


def parse_clauses(clauses: Sequence[Mapping[str, object] | MergeClause], *, table: str) -> list[MergeClause]:
    """Return clauses from their JSON form, with Delta's checks.

    :raises DeltaAnalysisException: if there is none, one is unknown, or one without a condition is not the last of its kind.
    """
    if (problem := clauses_problem(clauses)) is not None:
        raise DeltaAnalysisException(f"MERGE into table {table} {problem}.", table=table)
    return [_parsed(clause) for clause in clauses]


def clauses_problem(clauses: Sequence[Mapping[str, object] | MergeClause]) -> str | None:
    """Return what is wrong with clauses, without looking at their SQL; ``None`` if nothing is."""
    for clause in clauses:
        if isinstance(clause, Mapping) and (unknown := [name for name in clause if name not in _FIELDS]):
            near = difflib.get_close_matches(str(unknown[0]), _FIELDS, n=1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            return f"has a clause with {unknown[0]!r}{meant}; a clause has {', '.join(_FIELDS)}"
    try:
        found = [_parsed(clause) for clause in clauses]
    except StagingException as error:
        return f"has an invalid clause: {error.message}"
    if not found:
        return "has no clause: give at least one WHEN"
    for clause in found:
        if clause.action not in _ACTIONS.get(clause.kind, ()):
            known = "; ".join(f"{kind}: {', '.join(actions)}" for kind, actions in _ACTIONS.items())
            return f"has the clause {clause.kind!r} with action {clause.action!r}; known are {known}"
        if clause.action == DELETE and clause.set is not None:
            return f"sets columns in {clause}; DELETE takes none"
        if clause.set is not None and not clause.set:
            return f"sets no column in {clause}; leave it out for *"
        if clause.kind == NOT_MATCHED_BY_SOURCE and clause.action == UPDATE and clause.set is None:
            return f"has {clause} without columns to set, and no source row to take them from"
    for kind in _ACTIONS:
        early = [clause for clause in found if clause.kind == kind][:-1]
        if any(clause.condition is None for clause in early):
            return f"has a clause {_WORDS[kind]} without a condition before another one; only the last may have none"
    return None


def _parsed(clause: Mapping[str, object] | MergeClause) -> MergeClause:
    return clause if isinstance(clause, MergeClause) else MergeClause.from_dict(clause)


def _clause(kind: str, action: str, condition: str | None, values: Mapping[str, str] | None) -> Json:
    return MergeClause(kind=kind, action=action, condition=condition, set=None if values is None else dict(values)).to_dict()


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateArguments(Payload):
    """The table to create (CREATE TABLE AS SELECT).

    :param mode: ``create``, ``create_or_replace`` or ``replace``.
    """

    mode: str
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    description: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteArguments(Arguments):
    """Arguments of a ``WRITE``.

    :param replace_on: Spark SQL condition over rows ``t`` of the table and new rows ``s``; matching rows of the table are
        replaced.
    :param keys: columns that the condition compares: of the table, and of the new rows as ``source``.
    :param parameters: ``operationParameters`` of the condition.
    :param optimize_write: bytes of shuffled rows per file of an optimised write.
    :param data_change: false if the table's rows stay the same and only move to other files.
    :param replaced_schema: schema of the replaced table, whose columns keep their ids and physical names.
    :param expected_schema: schema that the rows must have (``schema_policy="strict"``).
    :param row_ids: of files with rows that stay; ``None`` if the table has no row ids that could be kept.
    """

    create: CreateArguments | None = None
    replace_on: str | None = None
    keys: tuple[ComparedColumns, ...] = ()
    parameters: dict | None = None  # type: ignore[type-arg]
    optimize_write: int | None = None
    data_change: bool = True
    replaced_schema: str | None = None
    expected_schema: str | None = None
    row_ids: RowIds | None = None
