"""The clauses of a MERGE as columns: which clause applies to a row, and the resulting rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf

from airflow_delta.contract.merge import DELETE, INSERT, UPDATE, MergeArguments, MergeClause
from airflow_delta.contract.merge_columns import (
    NO_FIELDS,
    Assigned,
    absent_fields,
    assigned_values,
    check_types,
    evolved_schema,
    known_path,
    put,
    refused_merge,
    star_columns,
)
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.schema import Type, fields_by_name
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.spark.align import converted, spark_name, spark_type, spark_value
from airflow_delta.spark.computed_columns import default_values, with_identities
from airflow_delta.spark.merge_source import MergeSource
from airflow_delta.spark.merge_structs import merge_struct, set_fields, stored
from airflow_delta.spark.rewrite import RewriteAttempt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


CLAUSE = "__airflow_delta_clause"
"""Name of the column with the number of the clause that applies to a row; null if none does."""


class MergeClauses:
    """The clauses of a request, bound to its table and its source.

    :ivar table: the table's schema; ``work.target`` is the schema afterwards, with new columns of the source.
    """

    def __init__(self, work: RewriteAttempt, source: MergeSource, arguments: MergeArguments) -> None:
        self._work = work
        self._source = source
        self._alias = arguments.target_alias
        self.all = arguments.clauses
        self.table = work.target
        self._known = fields_by_name(work.stored)
        work.target = evolved_schema(work.request, self.all, work.target, source.schema)
        self._values: dict[int, Assigned] = {}

    def of(self, *kinds: str, action: str | None = None) -> list[int]:
        """Return the numbers of the clauses of some kinds, in order."""
        return [i for i, c in enumerate(self.all) if c.kind in kinds and (action is None or c.action == action)]

    def conditions(self, *kinds: str) -> list[str]:
        """Return the conditions of the clauses of some kinds."""
        return [text for i in self.of(*kinds) if (text := self.all[i].condition) is not None]

    def values_of(self, numbers: Iterable[int]) -> list[str] | None:
        """Return the expressions that clauses set, ``None`` if one takes all columns of the source."""
        texts: list[str] = []
        for i in numbers:
            given = self.all[i].set
            if given is None:
                return None
            texts += given.values()
        return texts

    def deciding(self, *kinds: str) -> Column:
        """Return the number of the first clause of some kinds whose condition is true for the row."""
        chain: Column | None = None
        for i in self.of(*kinds):
            text = self.all[i].condition
            true = sf.lit(True) if text is None else spark_value(text).cast("boolean")  # NULL has no type
            chain = sf.when(true, sf.lit(i)) if chain is None else chain.when(true, sf.lit(i))
        return sf.lit(None).cast("int") if chain is None else chain

    def check(self, rows: DataFrame, numbers: Iterable[int]) -> None:
        """Check the clauses against rows, and learn the types of what they set."""
        for i in numbers:
            clause = self.all[i]
            if clause.condition is not None:
                self.resolved_condition(rows, clause.condition, str(clause))
            if clause.action != DELETE:
                values = self._star(clause) if clause.set is None else self._assigned(rows, clause)
                check_types(self._work.request, clause, values, self._work.target)
                cast = {path[0] for path, given, field in assigned_values(values, self._work.target) if given != field["type"]}
                fields = [field for field in self._work.target["fields"] if field["name"] in cast]
                if fields:  # for casts that Spark refuses
                    self._types(rows, [self._stored(values, field, clause) for field in fields], str(clause))
                self._values[i] = values

    def resolved_condition(self, rows: DataFrame, text: str, where: str) -> None:
        """Check that an expression is a condition over rows."""
        kind = self._types(rows, [spark_value(text)], where)[0]
        if kind not in ("boolean", "void"):
            raise self._refused(f"the condition of {where} is of type {kind}, not boolean")

    def updated(self, rows: DataFrame) -> DataFrame:
        """Return rows of the table with the values that their clause sets; other values stay.

        :param rows: rows of table and source, with :data:`CLAUSE`.
        """
        columns = []
        updates = [i for i in self._values if self.all[i].action == UPDATE]
        for field in self._work.stored["fields"]:
            column = self._old(field)
            if field["name"] == self._work.version_column:
                column = sf.when(sf.col(CLAUSE).isin(updates), sf.lit(None)).otherwise(column)
            for i, values in self._values.items():
                if self.all[i].action == UPDATE and field["name"].lower() in values:
                    column = sf.when(sf.col(CLAUSE) == i, self._stored(values, field, self.all[i])).otherwise(column)
            columns.append(column.alias(field["name"]))
        return self._generated(rows.select(*columns, CLAUSE), UPDATE)

    def inserted(self, rows: DataFrame) -> DataFrame:
        """Return the inserted rows.

        :param rows: rows of the source, with :data:`CLAUSE`.
        """
        inserts = {i: values for i, values in self._values.items() if self.all[i].action == INSERT}
        rules = self._work.request.rules
        defaults = default_values(self._work.target, rules)
        counted = [rule for rule in rules.identities if any(rule.column.lower() not in v for v in inserts.values())]
        given = {rule.column.lower(): f"__airflow_delta_given_{number}" for number, rule in enumerate(counted)}
        columns = []
        for field in self._work.target["fields"]:
            folded = field["name"].lower()
            column = defaults.get(folded)
            column = sf.lit(None).cast(spark_type(field["type"])) if column is None else column
            for i, values in inserts.items():
                if folded in values:
                    column = sf.when(sf.col(CLAUSE) == i, self._stored(values, field, self.all[i])).otherwise(column)
            columns.append(column.alias(given.get(folded, field["name"])))
        made = with_identities(rows.select(*columns, CLAUSE), counted, self._work.checks)
        columns = []
        for field in self._work.target["fields"]:
            folded, column = field["name"].lower(), sf.col(spark_name(field["name"]))
            if folded in given:
                explicit = [i for i, values in inserts.items() if folded in values]
                column = sf.when(sf.col(CLAUSE).isin(explicit), sf.col(given[folded])).otherwise(column) if explicit else column
            columns.append(column.alias(field["name"]))
        return self._generated(made.select(*columns, CLAUSE) if counted else made, INSERT)

    @property
    def counts_identities(self) -> tuple[str, ...]:
        """Identity columns that the table assigns in inserted rows."""
        inserts = [values for i, values in self._values.items() if self.all[i].action == INSERT]
        rules = self._work.request.rules.identities
        return tuple(rule.column for rule in rules if any(rule.column.lower() not in values for values in inserts))

    # -- columns --------------------------------------------------------------------------------------------------------------

    def _star(self, clause: MergeClause) -> Assigned:
        taken = star_columns(self._work.request, clause, self._work.target, self._source.schema)
        alias = spark_name(self._source.alias)
        return {name: (sf.col(f"{alias}.{spark_name(found['name'])}"), found["type"]) for name, found in taken.items()}

    def _assigned(self, rows: DataFrame, clause: MergeClause) -> Assigned:
        given = clause.set or {}
        columns = [spark_value(text) for text in given.values()]
        types = self._types(rows, columns, str(clause))
        values: Assigned = {}
        for name, column, given_type in zip(given, columns, types, strict=True):
            path = known_path(self._work.request, clause, name, self._work.target, self._source.schema)
            put(values, path, (column, given_type))
        return values

    def _stored(self, values: Assigned, field: Json, clause: MergeClause) -> Column:
        value, checks = values[field["name"].lower()], self._work.checks
        known = self._known.get(field["name"].lower())
        old = sf.lit(None) if known is None else self._table_column(known)
        if isinstance(value, dict):
            return set_fields(value, field["type"], old, NO_FIELDS if known is None else known["type"], field["name"], checks)
        column, given = value
        if clause.action == UPDATE and clause.set is None and known is not None and absent_fields(given, known["type"]):
            return merge_struct(column, given, field["type"], old, known["type"], field["name"], checks)
        return stored(value, field, field["name"], checks)

    def _old(self, field: Json) -> Column:
        """Return a column's value in the table; null for a new column."""
        known = self._known.get(field["name"].lower())
        if known is None:
            return sf.lit(None).cast(spark_type(field["type"]))
        return converted(self._table_column(known), known["type"], field["type"], field["name"], self._work.checks)

    def _table_column(self, field: Json) -> Column:
        return sf.col(f"{spark_name(self._alias)}.{spark_name(field['name'])}")

    def _generated(self, rows: DataFrame, action: str) -> DataFrame:
        """Return rows with generated columns computed unless the row's clause sets them."""
        expressions = {name.lower(): text for name, text in self._work.request.rules.generated.items()}
        columns = []
        for field in (self._work.stored if action == UPDATE else self._work.target)["fields"]:
            column = sf.col(spark_name(field["name"]))
            text = expressions.get(field["name"].lower())
            made_by = [i for i, v in self._values.items() if self.all[i].action == action and field["name"].lower() not in v]
            if text is not None and made_by:
                value = spark_value(text).cast(spark_type(field["type"]))
                column = sf.when(sf.col(CLAUSE).isin(made_by), value).otherwise(column)
            columns.append(column.alias(field["name"]))
        return rows.select(*columns)

    def _types(self, rows: DataFrame, columns: Sequence[Column], where: str) -> list[Type]:
        try:
            schema = rows.select(*(column.alias(str(i)) for i, column in enumerate(columns))).schema
        except AnalysisException as error:
            raise self._refused(f"{where} does not resolve: {str(error).splitlines()[0]}") from error
        return [field["type"] for field in schema.jsonValue()["fields"]]

    def _refused(self, what: str) -> DeltaAnalysisException:
        return refused_merge(self._work.request, what)
