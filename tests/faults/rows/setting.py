"""What a row history is: its table, its transactions, and what it is to be about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from faults.rows.model import Step
from faults.rows.values import Row


@dataclass(frozen=True)
class Setting:
    """What the table of a history is like.

    :param stats: statistics of new files: ``footer`` (as this provider), ``spark`` (as Delta Spark), ``few`` (of some columns),
        ``none``, ``mixed``.
    :param prunes: files leave out columns that are null in all of their rows.
    :param interval: versions between checkpoints; ``None`` for none.
    :param shared: all transactions use one ``DeltaLog``, as threads of a process do.
    :param fine: rows in a row group.
    :param odd: paths have characters that the log escapes.
    :param short_decimals: decimals are stored as integers, as Spark stores them.
    :param has_ids: with ``tracked``: the property is on, so that readers may rely on row ids.
    """

    level: str = "Serializable"
    partitioned: bool = False
    vectors: bool = True
    tracked: bool = False
    mapped: bool = False
    stats: str = "footer"
    prunes: bool = False
    interval: int | None = None
    shared: bool = False
    fine: int = 1000
    odd: bool = False
    short_decimals: bool = False
    has_ids: bool = True

    @property
    def rust(self) -> bool:
        """Whether delta-rs can write the table."""
        return not (self.tracked or self.mapped or self.interval or self.odd)


@dataclass(frozen=True)
class History:
    """A table and the transactions on it, in the order in which they commit.

    :param first: rows of each of the first files.
    """

    name: str
    setting: Setting
    first: tuple[tuple[Row, ...], ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Aim:
    """What a history is to be about: rounds, of few kinds of transactions.

    :param winners: kinds that win; none: any.
    :param late: kinds that come after them; none: any.
    :param focus: column of most conditions and keys.
    :param setting: what the table must be like.
    :param optimizes: most transactions have an OPTIMIZE as a stage, if they can.
    """

    winners: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    focus: str | None = None
    setting: Mapping[str, Any] = field(default_factory=dict)
    optimizes: bool = False
