"""An oracle of conflicts that knows no rule of Delta: it looks for an order in which both transactions do what they did.

It computes with the data of a case alone. Rows are symbols, one for each file that brought some; what is ``moved`` takes those of
the files that it replaces along. Of a predicate it knows what SQLite makes of partition values; a column of data may have any
value. A transaction that commits promises

- at Serializable that it comes after the winner: it would read then what it has read;
- at WriteSerializable that there is an order, this or the other way round;
- if it changes no row and nothing else that a reader sees, as much as at WriteSerializable, whatever the level of the table.

Where Delta refuses although there is such an order, the tables say so (``cautious``): it looks at files where this looks at rows,
and asks of every transaction that it comes after the winner.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from conformance.cases import Case, Side, Step

VALUES = (-1_000_000, 0, 1, 2, 3, 4, 2019, 2020, 1_000_000)
"""Values of the data column that predicates of the cases tell apart."""


class ImpossibleError(Exception):
    """A file is to go that is not there."""


@dataclass(frozen=True)
class File:
    values: Mapping[str, str]
    rows: frozenset[str]
    vector: str | None = None


@dataclass(frozen=True)
class State:
    """What the log says at one version.

    :param stored: the rows of every file that was ever added, by path and deletion vector: it is still in the store.
    """

    files: Mapping[str, File] = field(default_factory=dict)
    apps: Mapping[str, str] = field(default_factory=dict)
    domains: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    protocol: frozenset[str] = frozenset()
    stored: Mapping[tuple[str, str | None], frozenset[str]] = field(default_factory=dict)

    def after(self, steps: Iterable[Step]) -> State:
        """Return the state after a commit.

        :raises ImpossibleError: if it removes a file that is not there.
        """
        steps = list(steps)
        state = self
        files = dict(self.files)
        moved: frozenset[str] = frozenset()
        for step in steps:
            if step.word == "remove":
                gone = files.pop(unquote(step.name), None)
                if gone is None or gone.vector != step.values.get("vector"):
                    raise ImpossibleError(step.name)
                moved |= gone.rows if "moved" in step.flags else frozenset()
        for step in steps:
            match step.word:
                case "add":
                    values = {name: value for name, value in step.values.items() if name not in ("vector", "stats")}
                    files[unquote(step.name)] = File(values, self._rows(step, moved), step.values.get("vector"))
                case "txn":
                    state = replace(state, apps={**state.apps, step.name: step.flags[0]})
                case "domain":
                    state = replace(state, domains={**state.domains, step.name: " ".join(step.flags) or "set"})
                case "metadata":
                    state = replace(state, metadata={**state.metadata, **step.values})
                case "protocol":
                    state = replace(state, protocol=_features(step))
        stored = {**self.stored, **{(path, file.vector): file.rows for path, file in files.items()}}
        return replace(state, files=files, stored=stored)

    def _rows(self, step: Step, moved: frozenset[str]) -> frozenset[str]:
        if "moved" in step.flags:
            return self.stored.get((step.name, step.values.get("vector")), moved)
        return frozenset({" ".join([step.name, *filter(None, [step.values.get("vector")])])})

    def rows(self, predicate: str = "true") -> list[str]:
        """Return the rows that a predicate may select."""
        return sorted(row for file in self.files.values() if _may_match(predicate, file.values) for row in file.rows)

    def seen(self, what: str) -> Any:
        """Return what a read of the notation gives."""
        word, _, rest = what.partition(" ")
        if word == "app":
            return self.apps.get(rest)
        if word == "file":
            return getattr(self.files.get(unquote(rest)), "rows", None)
        if what in ("*", "whole table"):
            return self.rows()
        return self.rows(rest.replace("=", " = ") if word == "partition" else what)

    def shown(self) -> tuple[Any, ...]:
        """Return what any reader can see."""
        return self.rows(), dict(self.apps), dict(self.domains), dict(self.metadata), self.protocol


def _may_match(predicate: str, values: Mapping[str, str]) -> bool:
    columns = {"value": VALUES, **{name: (int(value),) for name, value in values.items()}}
    with_values = [f"SELECT * FROM (SELECT {value} AS value)" for value in columns["value"]]
    others = ", ".join(f"{value[0]} AS {name}" for name, value in columns.items() if name != "value")
    rows = f"({' UNION ALL '.join(with_values)})" + (f", (SELECT {others})" if others else "")
    return bool(_SQLITE.execute(f"SELECT EXISTS (SELECT 1 FROM {rows} WHERE {predicate})").fetchone()[0])


_SQLITE = sqlite3.connect(":memory:", check_same_thread=False)


def has_serial_order(case: Case, level: str) -> bool:
    """Return whether both transactions of a case can commit at an isolation level without breaking its promise."""
    start = State(protocol=_features_of(case.properties)).after(case.files)
    winner, ours = case.winner, case.ours
    try:
        won = start.after(winner.commits)
        end = won.after(ours.commits)
    except ImpossibleError:
        return False
    if _only_moves(ours) and end.rows() != won.rows():
        return False
    if _reads(ours, start) == _reads(ours, won) and (start.protocol <= won.protocol or not ours.commits):
        return True
    if level == "Serializable" and end.shown() != won.shown():
        return False
    try:
        first = start.after(ours.commits)
        return _reads(winner, start) == _reads(winner, first) and first.after(winner.commits).shown() == end.shown()
    except ImpossibleError:
        return False


def _reads(side: Side, state: State) -> list[Any]:
    """Return all that a transaction has seen of a state, and had to see for what it commits."""
    words = {step.word for step in side.commits}
    features = [step for step in side.commits if step.word == "protocol"]
    domains = [step.name for step in side.commits if step.word == "domain"]
    drops = any("domainMetadata" not in _features(step) for step in features)
    return [
        *(state.seen(what) for what in (*side.reads, *side.reads_later)),
        dict(state.metadata),
        state.protocol if "protocol" in words else None,
        [state.domains.get(name) for name in domains],
        dict(state.domains) if drops else None,
    ]


def _only_moves(side: Side) -> bool:
    return all("moved" in step.flags for step in side.commits if step.word in ("add", "remove"))


def _features(step: Step) -> frozenset[str]:
    return frozenset(name.rstrip("*") for name in (step.name, *step.flags))


def _features_of(properties: Iterable[str]) -> frozenset[str]:
    """Return what properties bring along, but for the two that every table has."""
    names = re.findall(r"delta\.(?:feature\.|enable)(\w+)", " ".join(properties))
    return frozenset(name[:1].lower() + name[1:] for name in names) - {"invariants", "appendOnly"}
