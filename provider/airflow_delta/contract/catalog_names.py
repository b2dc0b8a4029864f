"""Names of tables in a catalog, ``catalog.schema.table``, and what is known of a new one before the catalog has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_delta.contract.delta_names import (
    CHECKPOINT_POLICY,
    CHECKPOINT_STATS_AS_JSON,
    CHECKPOINT_STATS_AS_STRUCT,
    ENABLE_DELETION_VECTORS,
    ENABLE_IN_COMMIT_TIMESTAMPS,
    FEATURE_PREFIX,
)
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass

if TYPE_CHECKING:
    from typing import Self  # not in Python 3.10, which clusters may have

_PART = r"`(?:[^`]|``)+`|[^`.\s/:]+"
_NAME = lazy_pattern(rf"({_PART})\.({_PART})\.({_PART})")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table in a catalog."""

    catalog: str
    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the name that a text spells; a part with other characters is in backticks.

        :raises DeltaIllegalArgumentException: if it is not such a name.
        """
        match = _NAME.fullmatch(text.strip())
        if match is None:
            raise DeltaIllegalArgumentException(
                f"{text!r} is not the name of a table in a catalog. Write catalog.schema.table, with backticks around a part "
                "that has other characters than a plain name."
            )
        return cls(*(_unquoted(part) for part in match.groups()))

    def __str__(self) -> str:
        """Return the name as :meth:`parse` reads it."""
        return ".".join(map(_quoted, (self.catalog, self.schema, self.table)))


def _unquoted(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part


def _quoted(part: str) -> str:
    return part if re.fullmatch(r"[^`.\s/:]+", part) else "`" + part.replace("`", "``") + "`"


TABLE_ID = "io.unitycatalog.tableId"
_UUID = lazy_pattern(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_REQUIREMENTS = {
    CHECKPOINT_POLICY: "v2",
    ENABLE_IN_COMMIT_TIMESTAMPS: "true",
    ENABLE_DELETION_VECTORS: "true",
    CHECKPOINT_STATS_AS_STRUCT: "true",
    CHECKPOINT_STATS_AS_JSON: "true",
    **{
        f"{FEATURE_PREFIX}{name}": "supported"
        for name in ("catalogManaged", "inCommitTimestamp", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors")
    },
}
"""Properties that catalogs are known to require of new tables."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A new table that a catalog has reserved.

    :param table_id: the id that the table will have.
    :param location: where it will be.
    :param required: properties that it must be created with.
    """

    table_id: str
    location: str
    required: Mapping[str, str]

    @classmethod
    def of_new_table(cls, location: str, configuration: Mapping[str, str]) -> Self | None:
        """Return the reservation that a table's properties tell of: its id, and those that catalogs are known to require."""
        table_id = configuration.get(TABLE_ID)
        if table_id is None or _UUID.fullmatch(table_id) is None:
            return None
        known = {key: value for key, value in configuration.items() if _REQUIREMENTS.get(key) == value}
        return cls(table_id, location, {**known, TABLE_ID: table_id})

    def unknown(self, required: Mapping[str, str]) -> dict[str, str]:
        """Return those of a catalog's requirements that this does not have."""
        return {key: value for key, value in required.items() if self.required.get(key) != value}
