"""The changes that ALTER TABLE can make, as plain values with a JSON form.

Standard library only: Dags build them, and a staged write carries them to the commit, which makes them in their order
(:mod:`airflow_delta.commands.definition.apply_changes`). The JSON form is ``{"change": <name of the class>, ...}``, fields in
camelCase. Columns are dotted paths: names with dots in back-quotes, ``element``, ``key`` and ``value`` for the parts of lists
and maps. Types are Spark SQL's (``BIGINT``, ``STRUCT<x: INT>``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.staging.contract import Json, Payload

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
    """A column to add, or one of those that REPLACE COLUMNS leaves.

    :param name: dotted path; the last name is new, the rest says where.
    :param data_type: Spark SQL's text, or Spark's JSON form.
    :param position: ``FIRST`` or ``AFTER <column>``; default: last.
    :param nullable: may be null; as in Delta, a column that is added must.
    :param metadata: of the column in the schema; kept by the engine.
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
    """ALTER COLUMN: what is ``None`` stays as it is.

    :param data_type: a wider type; needs ``delta.enableTypeWidening``.
    :param nullable: ``True`` is DROP NOT NULL; ``False`` is SET NOT NULL, after a look at the rows that are there.
    :param position: ``FIRST`` or ``AFTER <column>``.
    :param default: expression for rows without a value; needs the feature ``allowColumnDefaults``.
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
    """REPLACE COLUMNS: the columns in their new order, with new ones among them; none may be missing."""

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

    :param if_exists: properties that are not set are passed over, which is what Delta Spark does in any case.
    """

    keys: tuple[str, ...]
    if_exists: bool = True


@dataclass(frozen=True, slots=True)
class UpgradeProtocol(Change):
    """Upgrade the protocol: to versions, or by features (Delta's ``upgradeTableProtocol``, ``addFeatureSupport``)."""

    reader_version: int | None = None
    writer_version: int | None = None
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DropFeature(Change):
    """DROP FEATURE, of features that nothing in the log of the table keeps; a transaction of its own."""

    feature: str


@dataclass(frozen=True, slots=True)
class ClusterBy(Change):
    """CLUSTER BY: the columns that OPTIMIZE clusters by from now on; none of them is CLUSTER BY NONE."""

    columns: tuple[str, ...] = ()


KINDS: dict[str, type[Change]] = {kind.__name__: kind for kind in Change.__subclasses__()}


def change_from_dict(value: Any) -> Change:
    """Return the change of a JSON form.

    :raises DeltaIllegalArgumentException: it is none.
    :raises StagingException: a field is missing or of another type.
    """
    kind = KINDS.get(str(value.get("change"))) if isinstance(value, Mapping) else None
    if kind is None:
        raise DeltaIllegalArgumentException(
            f"Not a change of a table: {str(value)[:200]}. It is one of {', '.join(KINDS)}, or a mapping with 'change' set to "
            "one of these names."
        )
    unknown = sorted(set(value) - {"change", *(_camel(f.name) for f in dataclasses.fields(kind))})
    if unknown:
        raise DeltaIllegalArgumentException(f"{kind.__name__} has no field {', '.join(unknown)}")
    return kind.from_dict(value)


def changes_from(given: Any) -> tuple[Change, ...]:
    """Return changes that are given as values or in their JSON form, one or several.

    :raises DeltaIllegalArgumentException: one of them is no change, or there is none.
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    # Through JSON in any case: that checks the fields.
    found = tuple(change_from_dict(change.to_dict() if isinstance(change, Change) else change) for change in several)
    if not found:
        raise DeltaIllegalArgumentException("There is no change to make. Pass changes=[AddColumns(...), ...]")
    return found


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.title() for part in tail)
