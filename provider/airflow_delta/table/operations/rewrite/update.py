"""UPDATE: rows get new values (Delta's ``UpdateCommand``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_delta.contract.operations import Assignment, UpdateArguments
from airflow_delta.contract.payloads import Json, StagedWrite
from airflow_delta.contract.schema import Type, fields, find_field
from airflow_delta.contract.table_rules import TableRules
from airflow_delta.exceptions import DeltaAnalysisException, IdentityInsertException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log import heavy
from airflow_delta.log.expressions.functions import NOT_DETERMINISTIC, OF_THE_SESSION
from airflow_delta.log.expressions.plain import is_plain
from airflow_delta.log.expressions.refused import oversized, refused_function
from airflow_delta.log.expressions.text import SqlSyntaxError, tree_of
from airflow_delta.log.schema.suggestions import known_names
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.files.rules import table_rules
from airflow_delta.table.operations.rewrite.target import RewriteTarget, rewrite_target
from airflow_delta.table.stage.stage_view import SparkWork, StageView

_NAME = lazy_pattern(r"`((?:[^`]|``)+)`|([^`.]+)")


def plan_update(
    stage: StageView,
    *,
    set: Mapping[str, str],  # noqa: A002 - Delta's name
    predicate: str | None = None,
    options: Mapping[str, str] | None = None,
) -> SparkWork | StagedWrite:
    """Plan an UPDATE.

    :param set: Spark SQL expressions over the old row by the column, or field of one (``a.b``), that gets the value; ``DEFAULT``
        is the column's default.
    :param predicate: Spark SQL condition of the rows that change; default: all.
    :param options: options of Spark's Parquet writer.
    """
    target = rewrite_target(stage, "UPDATE")
    condition = target.parse(predicate)
    assignments = resolve_assignments(target.table, table_rules(target.table), set)
    parameters = {"predicate": [] if condition is None else [condition.text]}
    files = target.files(condition)
    if not files:
        return _nothing(target, condition, parameters)
    # All rows of the files change: nothing to mark or look for.
    whole = condition is None or condition.selects_partitions(file.partition_values for file in files)
    return target.work(
        files,
        condition,
        condition=None if whole else condition,
        arguments=UpdateArguments(
            set=tuple(assignments), repeatable=all(is_repeatable(assignment.expression) for assignment in assignments)
        ),
        parameters=parameters,
        deletion_vectors=target.deletion_vectors and not whole,
        options=options,
    )


def _nothing(target: RewriteTarget, condition: Any, parameters: Mapping[str, Any]) -> StagedWrite:
    names = ("numAddedFiles", "numRemovedFiles", "numUpdatedRows", "numCopiedRows", "numAddedChangeFiles", "numAddedBytes")
    vectors = ("numDeletionVectorsAdded", "numDeletionVectorsRemoved", "numDeletionVectorsUpdated")
    return target.staged([], condition, parameters=parameters, metrics=dict.fromkeys((*names, "numRemovedBytes", *vectors), 0))


def resolve_assignments(table: TableDefinition, rules: TableRules, values: Mapping[str, str]) -> list[Assignment]:
    """Return the assignments for Spark, with columns as the schema spells them.

    :raises DeltaAnalysisException: if a column is unknown, or set twice, or an expression does not parse.
    :raises IdentityInsertException: if an identity column would get a value.
    """
    schema = table.struct
    if not values:
        raise _refused(table, "sets no column")
    defaults = {name.lower(): text for name, text in rules.defaults.items()}
    identities = {identity.column.lower() for identity in rules.identities}
    found: list[Assignment] = []
    for name, expression in values.items():
        path = _resolve(table, schema, name)
        if path[0].lower() in identities:
            raise table.error(
                IdentityInsertException,
                f"{path[0]} of table {table.table} is an identity column: its values never change "
                "(DELTA_IDENTITY_COLUMNS_UPDATE_NOT_SUPPORTED). Leave it out.",
            )
        if expression.strip().upper() == "DEFAULT":
            expression = defaults.get(path[0].lower(), "NULL") if len(path) == 1 else "NULL"
        _check_expression(table, name, expression)
        for other in found:
            shorter = min(len(other.path), len(path))
            if other.path[:shorter] == path[:shorter]:
                raise _refused(table, f"sets {'.'.join(other.path)} and {'.'.join(path)}, which overlap")
        found.append(Assignment(path=path, expression=expression))
    return found


def _resolve(table: TableDefinition, schema: Json, name: str) -> tuple[str, ...]:
    """Return the names that lead to a column or a field of it.

    As in SQL, ``a.b`` is the field of a struct if there is one, and otherwise the column of that name.
    """
    parts = [quoted.replace("``", "`") or plain for quoted, plain in _NAME.findall(name)]
    path: list[str] = []
    kind: Type = schema
    problem = None if parts else f"sets a column without a name ({name!r})"
    for part in parts:
        if isinstance(kind, str) or kind["type"] != "struct":
            problem = f"sets {name}, but {'.'.join(path)} is not a struct; set all of it"
            break
        field = find_field(kind, part)
        if field is None:
            known = known_names(part, [f["name"] for f in fields(kind)], f"fields of {'.'.join(path)}" if path else "columns")
            problem = f"sets {name}, and there is no {part}. {known}"
            break
        path.append(field["name"])
        kind = field["type"]
    if problem is None:
        return tuple(path)
    whole = find_field(schema, name)
    if whole is None:
        raise _refused(table, problem)
    return (whole["name"],)


def _check_expression(table: TableDefinition, name: str, expression: str) -> None:
    if (problem := oversized(expression)) is not None:
        raise _refused(table, f"sets {name} to {expression[:100]!r}..., which {problem}")
    try:
        tree = None if is_plain(expression) else tree_of(expression)
    except SqlSyntaxError as error:
        raise _refused(table, f"sets {name} to {expression!r}, which is not valid Spark SQL ({error})") from error
    if tree is not None and heavy.has_subquery(tree):
        raise _refused(table, f"sets {name} to {expression!r}: a subquery cannot be used there; use MERGE")
    if (problem := refused_function(expression, assigned=True)) is not None:
        raise _refused(table, f"sets {name} to {expression!r}, which {problem}")


def is_repeatable(expression: str) -> bool:
    """Return whether an expression certainly has the same value for a row whenever it is evaluated."""
    words = {word.lower() for word in re.findall(r"\w+", expression)}
    if words & (NOT_DETERMINISTIC | OF_THE_SESSION):
        return False
    return is_plain(expression) or not heavy.calls_unknown(tree_of(expression))


def _refused(table: TableDefinition, what: str) -> DeltaAnalysisException:
    return table.error(DeltaAnalysisException, f"UPDATE of table {table.table} version {table.version} {what}.")
