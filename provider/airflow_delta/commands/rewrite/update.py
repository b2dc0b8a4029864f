"""UPDATE: rows get new values (Delta's ``UpdateCommand``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.rewrite.rewrite_target import RewriteTarget, rewrite_target
from airflow_delta.exceptions import DeltaAnalysisException, IdentityInsertException
from airflow_delta.log.expressions.text import tree_of
from airflow_delta.staging.contract import Json, StagedWrite, TransactionHandle
from airflow_delta.staging.report import StageRequest
from airflow_delta.staging.rules import TableRules
from airflow_delta.staging.schema import Type, fields, find_field, parse_struct

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog

_NAME = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")


def plan_update(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    set: Mapping[str, str],  # noqa: A002 - Delta's name
    predicate: str | None = None,
    options: Mapping[str, str] | None = None,
    spark_table_uri: str | None = None,
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
) -> StageRequest | StagedWrite:
    """Plan an UPDATE.

    :param attempt: unique name of this execution (:func:`airflow_delta.staging.paths.new_attempt`).
    :param set: Spark SQL expressions over the old row by the column, or field of one (``a.b``), that gets the value; ``DEFAULT``
        is the column's default.
    :param predicate: Spark SQL condition of the rows that change; default: all.
    :param options: options of Spark's Parquet writer.
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's.
    :param after: staged writes of earlier stages of the transaction, on top of which the rows are updated.
    :raises DeltaAnalysisException: a column is unknown, or set twice, or an expression does not parse.
    :raises IdentityInsertException: an identity column would change.
    :raises PredicateException: the predicate does not parse or names an unknown column.
    :raises AppendOnlyException: the table only takes appends.
    :raises DeltaTableNotFoundException: there is no table.
    """
    target = rewrite_target(log, handle, "UPDATE", task_id=task_id, map_index=map_index, attempt=attempt, after=after)
    condition = target.parse(predicate)
    from airflow_delta.commands.files.rules import table_rules

    assignments = resolve_assignments(target.handle, table_rules(target.handle), set)
    parameters = {"predicate": [] if condition is None else [condition.text]}
    files = target.files(condition)
    if not files:
        return _nothing(target, condition, parameters)
    # All rows of the files change: there is nothing to mark, and nothing to look for.
    whole = condition is None or condition.selects_partitions(file.partition_values for file in files)
    return target.request(
        files,
        condition,
        condition=None if whole else condition,
        arguments={"set": assignments, "repeatable": all(is_repeatable(a["expression"]) for a in assignments)},
        parameters=parameters,
        deletion_vectors=target.deletion_vectors and not whole,
        options=options,
        spark_table_uri=spark_table_uri,
    )


def _nothing(target: RewriteTarget, condition: Any, parameters: Mapping[str, Any]) -> StagedWrite:
    names = ("numAddedFiles", "numRemovedFiles", "numUpdatedRows", "numCopiedRows", "numAddedChangeFiles", "numAddedBytes")
    vectors = ("numDeletionVectorsAdded", "numDeletionVectorsRemoved", "numDeletionVectorsUpdated")
    return target.staged([], condition, parameters=parameters, metrics=dict.fromkeys((*names, "numRemovedBytes", *vectors), 0))


def resolve_assignments(handle: TransactionHandle, rules: TableRules, values: Mapping[str, str]) -> list[Json]:
    """Return assignments as Spark gets them: ``path``, the names as the schema spells them, and ``expression``.

    :raises DeltaAnalysisException: a column is unknown, or set twice, or an expression does not parse.
    :raises IdentityInsertException: an identity column would get a value.
    """
    schema = parse_struct(handle.schema_string or "")
    if not values:
        raise _refused(handle, "sets no column")
    defaults = {name.lower(): text for name, text in rules.defaults.items()}
    identities = {identity.column.lower() for identity in rules.identities}
    found: list[Json] = []
    for name, expression in values.items():
        path = _resolve(handle, schema, name)
        if path[0].lower() in identities:
            raise IdentityInsertException(
                f"{path[0]} of table {handle.table} is an identity column: its values never change "
                "(DELTA_IDENTITY_COLUMNS_UPDATE_NOT_SUPPORTED). Leave it out.",
                table=handle.table,
                version=handle.read_version,
            )
        if expression.strip().upper() == "DEFAULT":
            expression = defaults.get(path[0].lower(), "NULL") if len(path) == 1 else "NULL"
        _check_expression(handle, name, expression)
        for other in found:
            shorter = min(len(other["path"]), len(path))
            if other["path"][:shorter] == path[:shorter]:
                raise _refused(handle, f"sets {'.'.join(other['path'])} and {'.'.join(path)}, which overlap")
        found.append({"path": path, "expression": expression})
    return found


def _resolve(handle: TransactionHandle, schema: Json, name: str) -> list[str]:
    """Return the names that lead to a column or a field of it.

    As in SQL ``a.b`` is the field of a struct, and only where there is none the column whose name holds the dot.
    """
    parts = [quoted.replace("``", "`") or plain for quoted, plain in _NAME.findall(name)]
    path: list[str] = []
    kind: Type = schema
    problem = None if parts else f"sets a column without a name ({name!r})"
    for part in parts:
        if isinstance(kind, str) or kind["type"] != "struct":
            problem = f"sets {name}, but {'.'.join(path)} is no struct; set all of it"
            break
        field = find_field(kind, part)
        if field is None:
            names = ", ".join(f["name"] for f in fields(kind))
            where = f"the fields of {'.'.join(path)}" if path else "the columns"
            problem = f"sets {name}, and there is no {part}; {where} are {names}"
            break
        path.append(field["name"])
        kind = field["type"]
    if problem is None:
        return path
    whole = find_field(schema, name)
    if whole is None:
        raise _refused(handle, problem)
    return [whole["name"]]


def _check_expression(handle: TransactionHandle, name: str, expression: str) -> None:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    from airflow_delta.log.expressions.functions import oversized, refused_function

    if (problem := oversized(expression)) is not None:
        raise _refused(handle, f"sets {name} to {expression[:100]!r}..., which {problem}")
    try:
        tree = tree_of(expression)
    except SqlglotError as error:
        reason = str(error).splitlines()[0].replace("\x1b[4m", "").replace("\x1b[0m", "")
        raise _refused(handle, f"sets {name} to {expression!r}, which does not parse as Spark SQL ({reason})") from error
    if tree.find(exp.Select, exp.Subquery, exp.Exists) is not None:
        raise _refused(handle, f"sets {name} to {expression!r}: a subquery cannot be used there; use MERGE")
    if (problem := refused_function(expression, assigned=True)) is not None:
        raise _refused(handle, f"sets {name} to {expression!r}, which {problem}")


def is_repeatable(expression: str) -> bool:
    """Return whether an expression certainly has the same value for a row whenever it is evaluated."""
    from sqlglot import exp

    from airflow_delta.log.expressions.functions import NOT_DETERMINISTIC, OF_THE_SESSION

    words = {word.lower() for word in re.findall(r"\w+", expression)}
    if words & (NOT_DETERMINISTIC | OF_THE_SESSION):
        return False
    return tree_of(expression).find(exp.Anonymous) is None  # a function that nobody here knows


def _refused(handle: TransactionHandle, what: str) -> DeltaAnalysisException:
    return DeltaAnalysisException(
        f"UPDATE of table {handle.table} version {handle.read_version} {what}.", table=handle.table, version=handle.read_version
    )
