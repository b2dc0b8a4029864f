"""The tables of conflicts as data. Reads the ``.toml`` files beside it, which tell their notation; knows no engine."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LEVELS = ("Serializable", "WriteSerializable")
COMMITS = "commits"
LETTERS = {
    "-": COMMITS,
    "A": "ConcurrentAppend",
    "R": "ConcurrentDeleteRead",
    "D": "ConcurrentDeleteDelete",
    "M": "MetadataChanged",
    "P": "ProtocolChanged",
    "T": "ConcurrentTransaction",
    "F": "FeatureDropConflict",
}


@dataclass(frozen=True)
class Step:
    """An action as the notation has it: ``add w part=1 moved``.

    :param name: a path, a domain, an application id.
    :param values: partition values, or fields that are set.
    :param flags: what stands alone behind the name.
    """

    word: str
    name: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Step:
        word, *rest = shlex.split(text)
        name = rest.pop(0) if rest and (word in ("add", "remove") or "=" not in rest[0]) else ""
        values = dict(one.split("=", 1) for one in rest if "=" in one)
        return cls(word, name, values, tuple(one for one in rest if "=" not in one))


@dataclass(frozen=True)
class Side:
    """One of the two transactions.

    :param reads: before the winner commits.
    :param reads_later: after that.
    """

    operation: str
    reads: tuple[str, ...] = ()
    commits: tuple[Step, ...] = ()
    reads_later: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A race: two transactions have read one version, the winner commits, then ours does.

    :param group: the table of the file that it stands in.
    :param files: added by the version that both read.
    :param outcomes: by isolation level of the table: ``commits``, or the error without ``Exception``, and the partition it names.
    :param names_partition: whether the outcome says which partition the error names; a cell of the matrix does not.
    :param delta_spark: what Delta Spark gives at every level, if that is something else.
    :param options: of the conflict checker.
    :param cautious: levels at which it gets the error although there is a serial order (``serial_order.py``).
    """

    group: str
    name: str
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    files: tuple[Step, ...]
    winner: Side
    ours: Side
    outcomes: Mapping[str, str]
    names_partition: bool = True
    delta_spark: str | None = None
    options: Mapping[str, bool] = field(default_factory=dict)
    cautious: tuple[str, ...] = ()

    def error(self, level: str) -> str | None:
        """Return the error that ours gets, ``None`` if it commits."""
        return error_and_partition(self.outcomes[level])[0]


def error_and_partition(outcome: str) -> tuple[str | None, str | None]:
    """Return what an outcome says: the error, ``None`` for a commit, and the partition that it names."""
    error, _, partition = outcome.partition(" ")
    return None if error == COMMITS else error, partition or None


def cases() -> Iterator[Case]:
    """Yield the cases of ``conflicts.toml``."""
    tables = _read("conflicts.toml")
    defaults = tables.pop("defaults")
    for group, found in tables.items():
        for one in found:
            yield _case(group, {**defaults[group], **one})


def cells() -> Iterator[Case]:
    """Yield a case for each loser and winner of ``matrix.toml``: a row after the other."""
    matrix = _read("matrix.toml")
    winners = matrix["winners"]
    columns = [winner["column"] for winner in winners.values()]
    grids = {level: _grid(matrix["outcomes"][level], columns) for level in LEVELS}
    for loser, ours in matrix["losers"].items():
        for winner, theirs in winners.items():
            letters = {level: grids[level][loser][theirs["column"]] for level in LEVELS}
            yield Case(
                "matrix",
                f"{loser} / {winner}",
                winner=_side(theirs),
                ours=_side(ours),
                outcomes={level: LETTERS[letter.upper()] for level, letter in letters.items()},
                names_partition=False,
                cautious=tuple(level for level, letter in letters.items() if letter.islower()),
                **_setting(matrix),
            )


def metadata_changes() -> dict[str, dict[str, Any]]:
    """Return the changes of ``metadata_changes.toml`` by name."""
    return {one.pop("change"): one for one in _read("metadata_changes.toml")["changes"]}


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())


def _setting(given: dict[str, Any]) -> dict[str, Any]:
    files = tuple(map(Step.parse, _parts(given.get("files", ""))))
    return {"partition_by": tuple(given.get("partition_by", ())), "properties": given.get("properties", {}), "files": files}


def _side(given: dict[str, Any]) -> Side:
    return Side(
        given.get("operation", "TRUNCATE"),
        _parts(given.get("reads", "")),
        tuple(map(Step.parse, _parts(given.get("commits", "")))),
        _parts(given.get("reads_later", "")),
    )


def _grid(text: str, columns: list[str]) -> dict[str, dict[str, str]]:
    """Return the letters of each row by name and column; the first line names the columns."""
    rows = [(name.strip(), letters.split()) for name, letters in (line.split("|") for line in text.strip().splitlines())]
    if rows[0][1] != columns:
        raise ValueError(f"The columns are {rows[0][1]}, those of the winners are {columns}.")
    return {name: dict(zip(columns, letters, strict=True)) for name, letters in rows[1:]}


def _case(group: str, given: dict[str, Any]) -> Case:
    operation = given.pop("operation", "TRUNCATE")
    setting = _setting(given)
    outcome = given.pop("outcome", None)
    case = Case(
        group,
        given.pop("case"),
        winner=_side(
            {
                "operation": given.pop("winner_operation", operation),
                "reads": given.pop("winner_reads", ""),
                "commits": given.pop("winner", ""),
            }
        ),
        ours=_side(
            {
                "operation": given.pop("our_operation", operation),
                "reads": given.pop("reads", ""),
                "commits": given.pop("ours", ""),
                "reads_later": given.pop("reads_later", ""),
            }
        ),
        outcomes={level: outcome or given.pop(level) for level in LEVELS},
        delta_spark=given.pop("delta_spark", None),
        options=given.pop("options", {}),
        cautious=tuple(given.pop("cautious", ())),
        **setting,
    )
    if unknown := given.keys() - {"partition_by", "properties", "files"}:
        raise ValueError(f"{group}, {case.name}: unknown keys {sorted(unknown)}")
    return case
