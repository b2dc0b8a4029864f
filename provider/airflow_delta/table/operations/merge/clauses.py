"""The clauses of a MERGE before Spark: which columns and fields they set, as the table spells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_delta.contract.merge import INSERT, NOT_MATCHED_BY_SOURCE, UPDATE, MergeClause
from airflow_delta.contract.schema import find_field, type_name
from airflow_delta.contract.sql_types import column_path_text, parse_column_path
from airflow_delta.exceptions import DeltaAnalysisException, IdentityInsertException
from airflow_delta.log.expressions.nodes import changing_function, needs_other_rows
from airflow_delta.log.expressions.refused import oversized, refused_function
from airflow_delta.log.expressions.text import SqlSyntaxError, tree_of
from airflow_delta.log.schema.suggestions import known_names
from airflow_delta.table.files.rules import table_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_delta.contract.payloads import Json
    from airflow_delta.contract.schema import Type
    from airflow_delta.table.operations.rewrite.target import RewriteTarget


class ClauseResolver:
    """Resolves what clauses set against the table.

    :param target_alias: name of the table in expressions, and before columns to set.
    :param merge_schema: clauses may name columns and fields that only the source has. Spark knows which these are.
    """

    def __init__(self, target: RewriteTarget, target_alias: str, *, merge_schema: bool) -> None:
        self._target = target
        self._table = target.stage.log.uri
        self._schema: Json = target.table.struct
        self._rules = table_rules(target.table)
        self._defaults = {name.lower(): text for name, text in self._rules.defaults.items()}
        self._alias = target_alias.lower()
        self._merge_schema = merge_schema

    def resolved(self, clause: MergeClause) -> MergeClause:
        """Return the clause with paths as the schema spells them, and defaults as expressions."""
        if clause.condition is not None:
            check_expression(clause.condition, table=self._table, repeatable=True)
        values = None if clause.set is None else self._values(clause, clause.set)
        return MergeClause(kind=clause.kind, action=clause.action, condition=clause.condition, set=values)

    def _values(self, clause: MergeClause, given: Mapping[str, object]) -> dict[str, str]:
        values: dict[tuple[str, ...], str] = {}
        for name, expression in given.items():
            path = self._path(clause, name)
            self._check_once(clause, path, values)
            self._check_identity(clause, path[0])
            text = str(expression)
            if text.strip().upper() == "DEFAULT":
                if len(path) > 1:
                    raise self._unresolved(f"{clause} sets {name!r} to DEFAULT, which only columns have; write the value")
                text = self._defaults.get(path[0].lower(), "NULL")
            check_expression(text, table=self._table)
            values[path] = text
        return {column_path_text(path): text for path, text in values.items()}

    def _path(self, clause: MergeClause, name: str) -> tuple[str, ...]:
        """Return the names from a column to what a clause sets.

        As in SQL, ``a.b`` is the field of a struct if there is one. Otherwise it is the column of that name.
        """
        try:
            names = parse_column_path(name)
        except DeltaAnalysisException as error:
            raise refused(self._table, f"{clause} sets {name!r}: {error.message}") from error
        aliased = len(names) > 1 and names[0].lower() == self._alias
        if aliased and (find_field(self._schema, names[1]) is not None or find_field(self._schema, names[0]) is None):
            names = names[1:]
        else:
            aliased = False
        path, kind = self._known(names)
        if len(path) < len(names) and (whole := find_field(self._schema, ".".join(names))) is not None:
            return (whole["name"],)
        if clause.action == INSERT and len(names) > 1 and path:
            raise refused(
                self._table,
                f"{clause} sets {name!r}, a field of {path[0]}; an insert sets whole columns, so build the struct with "
                "named_struct() (DELTA_UNSUPPORTED_NESTED_FIELD_IN_OPERATION)",
            )
        if len(path) == len(names):
            return path
        if isinstance(kind, str) or kind["type"] != "struct":
            nested = not isinstance(kind, str) and kind["type"] in ("array", "map")
            raise refused(
                self._table,
                f"{clause} sets {name!r}, but {column_path_text(path)} is {type_name(kind)}, which has no fields to set; set all "
                f"of it ({'DELTA_UNSUPPORTED_NESTED_FIELD_IN_UPDATE' if nested else 'INVALID_EXTRACT_BASE_FIELD_TYPE'})",
            )
        evolves = self._merge_schema and clause.kind != NOT_MATCHED_BY_SOURCE
        if evolves and not aliased:
            return (*path, *names[len(path) :])
        where = f"fields of {column_path_text(path)}" if path else "columns"
        known = known_names(names[len(path)], [field["name"] for field in kind["fields"]], where)
        if path and not evolves:
            raise refused(self._table, f"{clause} sets {name!r}, and there is no {names[len(path)]} (FIELD_NOT_FOUND). {known}")
        hint = ". Name new columns and fields without the alias of the table" if evolves else ""
        raise self._unresolved(f"{clause} sets {name!r}, which the table does not have. {known}{hint}")

    def _known(self, names: Sequence[str]) -> tuple[tuple[str, ...], Type]:
        """Return the names that the table has, as it spells them, and the type of the last one."""
        path: tuple[str, ...] = ()
        kind: Type = self._schema
        for part in names:
            field = None if isinstance(kind, str) or kind["type"] != "struct" else find_field(kind, part)
            if field is None:
                break
            path, kind = (*path, field["name"]), field["type"]
        return path, kind

    def _check_once(self, clause: MergeClause, path: tuple[str, ...], others: Mapping[tuple[str, ...], str]) -> None:
        folded = [name.lower() for name in path]
        for other in others:
            shorter = min(len(other), len(path))
            if [name.lower() for name in other[:shorter]] == folded[:shorter]:
                both = [column_path_text(other), column_path_text(path)]
                what = f"{both[0]} twice" if len(other) == len(path) else f"both {' and '.join(both)}"
                error = "DELTA_DUPLICATE_COLUMNS_ON_INSERT" if clause.action == INSERT else "DELTA_CONFLICT_SET_COLUMN"
                raise refused(self._table, f"{clause} sets {what} ({error})")

    def _check_identity(self, clause: MergeClause, column: str) -> None:
        for identity in self._rules.identities:
            if identity.column.lower() == column.lower() and (clause.action == UPDATE or not identity.explicit):
                word = "its values never change" if clause.action != INSERT else "only the table gives its values"
                raise self._target.table.error(
                    IdentityInsertException,
                    f"MERGE into table {self._table}: {clause} sets the identity column {column}; {word}. Leave it out.",
                )

    def _unresolved(self, what: str) -> DeltaAnalysisException:
        return refused(self._table, f"{what} (DELTA_MERGE_UNRESOLVED_EXPRESSION)")


def check_expression(text: str, *, table: str, repeatable: bool = False) -> None:
    """Refuse subqueries and aggregates in expressions, and in conditions functions that change with every evaluation.

    :raises DeltaAnalysisException: if the expression has one.
    """
    if (problem := oversized(text)) is not None:
        raise refused(table, f"{text[:100]!r}... {problem}")
    try:
        tree = tree_of(text)
    except SqlSyntaxError as error:
        raise refused(table, f"{text!r} is not valid Spark SQL: {error}") from error
    if needs_other_rows(tree):
        raise refused(table, f"{text!r} holds a subquery or an aggregate; compute it in the source")
    if (problem := refused_function(text, assigned=not repeatable)) is not None:
        raise refused(table, f"{text!r} {problem}; compute it in the source")
    if repeatable and (changing := changing_function(tree)) is not None:
        raise refused(table, f"{text!r} uses {changing}(), which differs with every evaluation; compute it in the source")


def refused(table: str, what: str) -> DeltaAnalysisException:
    """Return the error of a MERGE that cannot be planned."""
    return DeltaAnalysisException(f"MERGE into table {table}: {what}.", table=table)
