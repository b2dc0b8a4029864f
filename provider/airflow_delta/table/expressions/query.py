"""Queries that only select rows and columns of one relation: ``SELECT ... FROM ... [WHERE ...]``, by Spark's grammar."""

from __future__ import annotations

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.table.expressions.parser import RESERVED, ExpressionParser
from airflow_delta.table.expressions.problems import NotDecided
from airflow_delta.table.expressions.syntax import Name, Syntax

_FORMATS = ("parquet", "delta")

# After a relation, they begin what is not read here, rather than name it.
_NO_ALIASES = frozenset(
    "anti cluster cross distribute except for full group having inner intersect join lateral left limit minus natural offset on "  # noqa: SIM905
    "order pivot right semi sort tablesample timestamp union unpivot using version where window".split()
)


@dataclass(frozen=True, slots=True)
class SelectItem:
    """What a query selects.

    :param text: of an expression; ``None``: all columns.
    :param name: of the column; ``None`` with all columns.
    :param column: the expression is only the name of a column, or of a field of one.
    """

    text: str | None
    name: str | None
    column: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RelationQuery:
    """A query of one relation.

    :param format: of the files at ``relation``; ``None`` if that is the name of a view.
    :param relation: name of a view, or a path.
    :param alias: that comes before the names of columns; ``None``: nothing does.
    """

    items: tuple[SelectItem, ...]
    format: str | None
    relation: str
    alias: str | None
    where: str | None


def parse_query(text: str) -> RelationQuery:
    """Return what a query says.

    :raises NotDecided: if it is not of this form; it may still be a query to Spark.
    """
    if "${" in text:
        raise NotDecided("Spark replaces ${ by a variable")
    try:
        return _QueryParser(text).query()
    except RecursionError as error:
        raise NotDecided("it is nested too deeply") from error


class _QueryParser(ExpressionParser):
    def query(self) -> RelationQuery:
        self.expect("SELECT")
        items = [self.item()]
        while self.takes(","):
            items.append(self.item())
        self.expect("FROM")
        form, relation = self.relation()
        alias = self.alias()
        where = None
        if self.takes("WHERE"):
            _, where = self.expression()
        if self.kind != "end":
            self.leave()
        named = alias if form is not None or alias is not None else relation
        qualifiers = {qualifier for qualifier, _ in items if qualifier is not None}
        if qualifiers - {None if named is None else named.lower()}:
            raise NotDecided(f"{qualifiers.pop()}.* is not of its only relation")
        return RelationQuery(tuple(item for _, item in items), form, relation, named, where)

    def item(self) -> tuple[str | None, SelectItem]:
        """Return what is selected, and what comes before ``.*``."""
        if self.takes("*"):
            return None, SelectItem(None, None)
        after = [token.folded for token in self.tokens[self.at + 1 : self.at + 3]]
        if self.kind in ("word", "quoted") and after == [".", "*"]:
            qualifier = self.advance().value.lower()
            self.at += 2
            return qualifier, SelectItem(None, None)
        found, text = self.expression()
        name = self.alias()
        if isinstance(found, Name):
            return None, SelectItem(text, name or found.parts[-1], found.parts)
        if name is None:
            raise NotDecided(f"the column {text[:50]!r} has no name: write AS and one")
        return None, SelectItem(text, name)

    def expression(self) -> tuple[Syntax, str]:
        """Return what an expression says, and its text."""
        start = self.tokens[self.at - 1].end  # where a token of a quoted name starts, its quote is before
        found = self.condition()
        return found, self.text[start : self.tokens[self.at - 1].end].strip()

    def alias(self) -> str | None:
        """Return the name that follows, if one does."""
        given = self.takes("AS")
        is_name = self.kind == "quoted" or (self.kind == "word" and self.token.value.lower() not in RESERVED | _NO_ALIASES)
        if is_name:
            return self.advance().value
        return self.leave() if given else None

    def relation(self) -> tuple[str | None, str]:
        """Return the format of files and their path, or the name of a view."""
        form = self.token.value.lower()
        if self.kind == "word" and form in _FORMATS and self.following().folded == ".":
            self.at += 2
            if self.kind != "quoted":
                self.leave()
            return form, self.advance().value
        if self.kind not in ("word", "quoted") or (self.kind == "word" and self.token.value.lower() in RESERVED):
            self.leave()
        name = self.advance().value
        if self.token.folded in (".", "("):
            self.leave()
        return None, name
