"""What a commit asks of features that keep something in the table's log beside the rows: a fixed list of their modules.

A staged write may say what only its feature understands, such as how far a source was read. A commit that did not ask would
publish the rows without it, and they would be read again. So the modules are named here, and do not register themselves: a
process that only commits has them all, and one that cannot import them does not commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.transaction.reads.app_ids import AppIdConflict

MODULES = ("airflow_delta.table.positions.commit",)

AppIdRule = Callable[[Mapping[str, int]], str | None]
"""Is given the versions that a table has, or another commit sets, and says why they conflict; ``None`` if they do not."""


class ToCommit(NamedTuple):
    """What a commit sets and relies on.

    :param versions: that it sets, by application id.
    :param conflicts: what a conflict over each of them says.
    :param rules: about application ids of others, which cannot be named.
    :param keep: puts what the entry of the commit names, right before it.
    """

    versions: dict[str, int]
    conflicts: dict[str, AppIdConflict]
    rules: tuple[AppIdRule, ...]
    keep: Callable[[], None]


class CommitRule(Protocol):
    """The functions of each of these modules."""

    def to_commit(self, view: TransactionView, *, created: bool) -> ToCommit:
        """Check what the stages say, and return what the commit sets and relies on.

        :param created: another transaction created the table since this one began.
        """

    def leftovers(self, write: StagedWrite) -> list[str]:
        """Return the files of a stage that are not needed after the commit."""


def commit_rules() -> Sequence[CommitRule]:
    """Return the rules of all features."""
    return [cast("CommitRule", import_module(name)) for name in MODULES]
