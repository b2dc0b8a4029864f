"""The clauses of a MERGE, and its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from airflow_delta.contract.arguments import SourceArguments
from airflow_delta.contract.near_words import near_words
from airflow_delta.contract.payloads import Json, Payload
from airflow_delta.contract.scd2 import HistoryArguments
from airflow_delta.exceptions import DeltaAnalysisException, StagingException
from airflow_delta.light_dataclasses import dataclass

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
    :param history: what is merged are versions that Spark makes of the source rows; ``None``: the source rows themselves.
    """

    condition: str
    target_alias: str
    source_alias: str
    clauses: tuple[MergeClause, ...]
    keys: tuple[ComparedColumns, ...] = ()
    history: HistoryArguments | None = None


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
            near = near_words(str(unknown[0]), _FIELDS)
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
