"""What the tasks share that stage rows to write: how their rows go into the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.identity import column_names
from airflow_delta.operators.transactional import DeltaTransactionalOperator


class DeltaStageBaseOperator(DeltaTransactionalOperator):
    """Base of the tasks that stage rows for a transaction. Readers of the table see nothing until the commit.

    :param mode: ``append``, ``overwrite`` or ``dynamic`` (overwrite the partitions that the rows are in). (templated)
    :param replace_where: Spark SQL predicate of an ``overwrite``: only rows that satisfy it are replaced, and every new row has
        to satisfy it. (templated)
    :param merge_schema: add columns that the table does not have.
    :param overwrite_schema: let an ``overwrite`` replace the table's schema and partitioning.
    :param partition_by: partition columns; default: the transaction's. (templated)
    :param optimize_write: shuffle the rows before they are written, into files near the target size; default: as the table's
        property ``delta.autoOptimize.optimizeWrite`` says.
    :param data_change: false: the rows are those that the table has, which only get other files (Delta's ``dataChange``).
    :param replace_on: condition between rows ``t`` of the table and rows ``s`` to write: an ``overwrite`` replaces the rows of
        the table that match any of these. (templated)
    :param replace_using: columns: the same, for rows that are equal in all of them. (templated)
    :param create: make the table of the rows: ``create`` (CREATE TABLE AS SELECT), ``create_or_replace`` or ``replace``.
        (templated)
    :param cluster_by: with ``create``: columns to cluster the table by. (templated)
    :param properties: with ``create``: table properties. (templated)
    :param description: with ``create``: comment of the table. (templated)

    The other parameters are those of :class:`~airflow_delta.operators.transactional.DeltaTransactionalOperator`.
    """

    template_fields: Sequence[str] = (
        *DeltaTransactionalOperator.template_fields,
        "mode",
        "replace_where",
        "partition_by",
        "replace_on",
        "replace_using",
        "create",
        "cluster_by",
        "properties",
        "description",
    )

    def __init__(
        self,
        *,
        mode: str = "append",
        replace_where: str | None = None,
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        partition_by: str | Sequence[str] = (),
        optimize_write: bool | None = None,
        data_change: bool = True,
        replace_on: str | None = None,
        replace_using: str | Sequence[str] = (),
        create: str | None = None,
        cluster_by: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mode = mode
        self.replace_where = replace_where
        self.merge_schema = merge_schema
        self.overwrite_schema = overwrite_schema
        self.partition_by = partition_by
        self.optimize_write = optimize_write
        self.data_change = data_change
        self.replace_on = replace_on
        self.replace_using = replace_using
        self.create = create
        self.cluster_by = cluster_by
        self.properties = properties
        self.description = description

    def _write_options(self) -> dict[str, Any]:
        self._check_replacement()
        options = {
            "mode": self.mode,
            "replace_where": self.replace_where,
            "merge_schema": self.merge_schema,
            "overwrite_schema": self.overwrite_schema,
            "partition_by": column_names(self.partition_by),
        }
        more: dict[str, Any] = {
            "replace_on": self.replace_on,
            "replace_using": column_names(self.replace_using),
            "create": self.create,
            "cluster_by": column_names(self.cluster_by),
            "properties": self.properties,
            "description": self.description,
        }
        options |= {name: value for name, value in more.items() if value}
        if self.optimize_write is not None:
            options["optimize_write"] = self.optimize_write
        if not self.data_change:
            options["data_change"] = False
        return options

    def _check_replacement(self) -> None:
        """Refuse what says nothing, as a template of no value does: the overwrite would replace all of the table.

        :raises DeltaIllegalArgumentException: ``replace_on`` or ``replace_using`` was given, and is empty.
        """
        using = self.replace_using
        given = {
            "replace_on": self.replace_on is None or bool(self.replace_on.strip()),
            "replace_using": using is None or using == () or any(name.strip() for name in column_names(using)),
        }
        if empty := [name for name, fits in given.items() if not fits]:
            raise DeltaIllegalArgumentException(
                f"{empty[0]} of the stage {self.task_id!r} is empty: its overwrite would replace the whole table. Check the "
                "template, or leave it out."
            )

    def _mode(self) -> str:
        return self.mode
