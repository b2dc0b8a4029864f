"""Changes of ALTER TABLE, as plain values with a JSON form.

Standard library only: Dags build them, and a staged write carries them to the commit, which applies them in order
(:mod:`airflow_delta.table.definition.apply_changes`). The JSON form is ``{"change": <name of the class>, ...}``, fields in
camelCase. Columns are dotted paths, names with dots in backticks; ``element``, ``key`` and ``value`` are the parts of arrays and
maps. Types are Spark SQL's (``BIGINT``, ``STRUCT<x: INT>``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from airflow_delta.contract.payloads import Json, Payload
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass

__all__ = [
    "AddColumns",
    "AddConstraint",
    "Change",
    "ChangeColumn",
    "ClusterBy",
    "Column",
    "DropColumns",
    "DropConstraint",
    "DropFeature",
    "RenameColumn",
    "ReplaceColumns",
    "SetProperties",
    "UnsetProperties",
    "UpgradeProtocol",
    "change_from_dict",
    "changes_from",
]


@dataclass(frozen=True, slots=True)
class Column(Payload):
    """A column to add, or a column of REPLACE COLUMNS.

    :param name: dotted path; the last name is the new column's.
    :param data_type: Spark SQL, or Spark's JSON form.
    :param position: ``FIRST`` or ``AFTER <column>``; default: last.
    :param nullable: may be null; an added column must, as in Delta.
    :param metadata: metadata of the column in the schema.
    """

    name: str
    data_type: Any
    comment: str | None = None
    position: str | None = None
    nullable: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change(Payload):
    """One change of a table."""

    def to_dict(self) -> Json:
        """Return plain JSON."""
        return {"change": type(self).__name__, **Payload.to_dict(self)}


@dataclass(frozen=True, slots=True)
class AddColumns(Change):
    """ADD COLUMNS."""

    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class ChangeColumn(Change):
    """ALTER COLUMN: ``None`` keeps what there is.

    :param data_type: a wider type; needs ``delta.enableTypeWidening``.
    :param nullable: ``True`` is DROP NOT NULL; ``False`` is SET NOT NULL, after a check of the table's rows.
    :param position: ``FIRST`` or ``AFTER <column>``.
    :param default: default expression; needs the feature ``allowColumnDefaults``.
    :param drop_default: DROP DEFAULT.
    """

    column: str
    data_type: Any = None
    comment: str | None = None
    nullable: bool | None = None
    position: str | None = None
    default: str | None = None
    drop_default: bool = False


@dataclass(frozen=True, slots=True)
class SyncIdentity(Change):
    """ALTER COLUMN ... SYNC IDENTITY: the next generated value lies beyond every value in the table; a transaction of its own.

    :param value: the furthest value of rows that only Spark could read; filled in by the plan.
    """

    column: str
    value: int | None = None


@dataclass(frozen=True, slots=True)
class RenameColumn(Change):
    """RENAME COLUMN; needs column mapping.

    :param new_name: the last name of the new path.
    """

    column: str
    new_name: str


@dataclass(frozen=True, slots=True)
class DropColumns(Change):
    """DROP COLUMNS; needs column mapping."""

    columns: tuple[str, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ReplaceColumns(Change):
    """REPLACE COLUMNS: all columns in their new order, with new ones among them."""

    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class AddConstraint(Change):
    """ADD CONSTRAINT ... CHECK; every row of the table is checked on Spark.

    :param expression: Spark SQL; rows for which it is false or null break the constraint.
    """

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class DropConstraint(Change):
    """DROP CONSTRAINT."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetProperties(Change):
    """SET TBLPROPERTIES; ``comment`` is the description of the table."""

    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class UnsetProperties(Change):
    """UNSET TBLPROPERTIES.

    :param if_exists: ignore properties that are not set; Delta Spark always does.
    """

    keys: tuple[str, ...]
    if_exists: bool = True


@dataclass(frozen=True, slots=True)
class UpgradeProtocol(Change):
    """Upgrade the protocol to versions, or by features (Delta's ``upgradeTableProtocol``, ``addFeatureSupport``)."""

    reader_version: int | None = None
    writer_version: int | None = None
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DropFeature(Change):
    """DROP FEATURE, for features without traces in the table's log; a transaction of its own."""

    feature: str


@dataclass(frozen=True, slots=True)
class ClusterBy(Change):
    """CLUSTER BY: up to four columns that OPTIMIZE will cluster by; without columns, CLUSTER BY NONE. AUTO is refused."""

    columns: tuple[str, ...] = ()


KINDS: dict[str, type[Change]] = {kind.__name__: kind for kind in Change.__subclasses__()}


def change_from_dict(value: Any) -> Change:
    """Return the change of a JSON form.

    :raises DeltaIllegalArgumentException: if it is not a change.
    """
    if (problem := kind_problem(value)) is not None:
        raise DeltaIllegalArgumentException(problem)
    return KINDS[value["change"]].from_dict(value)


def kind_problem(value: Any) -> str | None:
    """Return what is wrong with the name of a change in its JSON form, and with the names of its fields."""
    kind = KINDS.get(str(value.get("change"))) if isinstance(value, Mapping) else None
    if kind is None:
        return (
            f"Not a change of ALTER TABLE: {str(value)[:200]}. Give one of {', '.join(KINDS)}, or a mapping with 'change' set to "
            "one of these names."
        )
    known = [_camel(field.name) for field in dataclasses.fields(kind)]
    unknown = sorted(set(value) - {"change", *known})
    return f"{kind.__name__} has no field {', '.join(unknown)}; it has {', '.join(known)}." if unknown else None


def changes_from(given: Any) -> tuple[Change, ...]:
    """Return changes given as values or in their JSON form, one or several.

    :raises DeltaIllegalArgumentException: if one of them is not a change, or there is none.
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    # Always through JSON, which checks the fields.
    found = tuple(change_from_dict(change.to_dict() if isinstance(change, Change) else change) for change in several)
    if not found:
        raise DeltaIllegalArgumentException("No changes given. Pass changes=[AddColumns(...), ...]")
    return found


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.title() for part in tail)
