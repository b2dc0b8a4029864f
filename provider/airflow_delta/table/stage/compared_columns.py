"""A condition over a row of the table and a row of a source: which of its columns are whose, and which it compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from airflow_delta.contract.merge import ComparedColumns
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log import heavy
from airflow_delta.log.expressions.sql_text import quote_name
from airflow_delta.log.expressions.text import split, tree_of

if TYPE_CHECKING:
    from airflow_delta.log.expressions.nodes import ColumnName
    from airflow_delta.log.schema.types import StructType


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides of a condition.

    A column without an alias is the table's if the table has it; if the source has it too, Spark refuses it as ambiguous.

    :param schema: of the table.
    :param target: alias of the table, in lower case.
    :param source: alias of the source, in lower case.
    """

    schema: StructType
    target: str
    source: str

    def of(self, column: ColumnName) -> tuple[str, list[str]]:
        """Return the side of a column, ``target`` or ``source``, and its names without the alias."""
        names = list(column.parts)
        if len(names) > 1 and names[0].lower() in (self.target, self.source):
            return ("target" if names[0].lower() == self.target else "source"), names[1:]
        return ("target" if self.schema.find(names[0]) is not None else "source"), names

    def unknown(self, conjunct_texts: Iterable[str]) -> str | None:
        """Return a column that some conditions say is the table's, and that it does not have; ``None`` if there is none."""
        for text in conjunct_texts:
            for column in heavy.named_columns(tree_of(text)):
                names = column.parts
                aliased = len(names) > 1 and names[0].lower() == self.target and self.schema.find(names[0]) is None
                if aliased and self.schema.find(names[1]) is None:
                    return names[1]
        return None

    def compared(self, conjunct_texts: Iterable[str]) -> list[ComparedColumns]:
        """Return the columns that are equal in rows for which all of some conditions are true."""
        found = []
        for text in conjunct_texts:
            equality = heavy.equality_of(tree_of(text))
            if equality is None:
                continue
            by_side = dict(map(self.of, (equality.left, equality.right)))
            names = by_side.get("target", [])
            field = self.schema.find(names[0]) if len(names) == 1 else None
            if field is None or "source" not in by_side:
                continue
            source = ".".join(quote_name(name) for name in by_side["source"])
            found.append(ComparedColumns(column=field.name, source=source, null_safe=equality.null_safe))
        return found


def conjunct_texts(text: str) -> Iterator[str]:
    """Yield the conditions that a condition joins by ``AND``."""
    pieces = split(text)
    if pieces is None or pieces[0] != "AND":
        yield text
        return
    for part in pieces[1]:
        yield from conjunct_texts(part)
