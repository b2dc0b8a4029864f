"""Names of tables in a catalog: ``catalog.schema.table``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from airflow_delta.exceptions import DeltaIllegalArgumentException

_PART = r"`(?:[^`]|``)+`|[^`.\s/:]+"
_NAME = re.compile(rf"({_PART})\.({_PART})\.({_PART})")


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
