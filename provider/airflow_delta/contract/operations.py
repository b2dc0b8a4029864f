"""Arguments of operations that ask Spark for more than rows and a predicate: a class for each operation, all independent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from airflow_delta.contract.arguments import Arguments, RewriteArguments, RowIds
from airflow_delta.contract.merge import ComparedColumns
from airflow_delta.contract.payloads import Json, Payload
from airflow_delta.light_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment(Payload):
    """A column or field, and its new value.

    :param path: names from the column to the field, as in the schema.
    :param expression: Spark SQL over the old row.
    """

    path: tuple[str, ...]
    expression: str


def assignment_tree(values: Sequence[Assignment]) -> Json:
    """Return the expressions as a tree by column and field names."""
    tree: Json = {}
    for value in values:
        *parents, last = value.path
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value.expression
    return tree


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
class QueryArguments(Payload):
    """A query whose rows are written.

    :param preparation: statements that prepare the session, in order.
    :param parameters: values of named parameters, as of :func:`airflow_delta.contract.sql_parameters.parameters_as_json`.
    """

    preparation: tuple[str, ...] = ()
    query: str
    parameters: dict = field(default_factory=dict)  # type: ignore[type-arg]


@dataclass(frozen=True, kw_only=True, slots=True)
class FileArguments(Payload):
    """Files whose rows are written.

    :param paths: URIs as Spark opens them.
    :param options: of Spark's reader of the format.
    :param columns: names of the columns of CSV without a header.
    """

    paths: tuple[str, ...]
    format: str
    options: dict = field(default_factory=dict)  # type: ignore[type-arg]
    columns: tuple[str, ...] = ()


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
    :param query: whose rows are written; without it, and without ``files``, those of a program.
    :param files: whose rows are written.
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
    query: QueryArguments | None = None
    files: FileArguments | None = None
