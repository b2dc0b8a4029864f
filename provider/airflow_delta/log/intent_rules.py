"""What only a feature knows about its intents: the log and the transaction ask it before they delete or refuse something.

A kind names the module that answers, which is imported when it is asked. If that fails, so does who asks: nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from airflow_delta.contract.intents import INTENT_KINDS, TAKES_BACK, IntentKind

if TYPE_CHECKING:
    from airflow_delta.log.segment.commit_files import CommitFiles
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.log.storage.base import FileStatus


class IntentRules(Protocol):
    """The functions of the module that :attr:`~airflow_delta.contract.intents.IntentKind.rules` names."""

    def first_needed(self, snapshot: Snapshot, commits: Mapping[int, FileStatus], *, now: int) -> tuple[int, str] | None:
        """Return the first version that an intent needs although it has ended here, and its id; ``None`` if none does.

        :param commits: the commits that might be deleted, by version, in order.
        :param now: milliseconds since the epoch.
        """

    def check_abort(self, log: CommitFiles, snapshot: Snapshot, transaction_id: str) -> None:
        """Refuse to abort a transaction by its id alone if an intent may need it.

        :raises DeltaIllegalStateException: if one may.
        """

    def taken_back(self, table: str, transaction_id: str, version: int) -> Exception:
        """Return the error of a transaction whose commit was taken back.

        :param version: that of the commit.
        """


def rules_of(kind: IntentKind) -> IntentRules:
    """Return the rules of a kind of intents."""
    return cast("IntentRules", import_module(kind.rules))


def check_not_needed(log: CommitFiles, snapshot: Snapshot, transaction_id: str) -> None:
    """Refuse to abort a transaction by its id alone if an intent of any kind may need it.

    :raises DeltaIllegalStateException: if one may.
    """
    for kind in INTENT_KINDS:
        rules_of(kind).check_abort(log, snapshot, transaction_id)


def taken_back_error(table: str, transaction_id: str, version: int) -> Exception:
    """Return the error of a transaction whose commit was taken back.

    :param version: that of the commit.
    """
    return rules_of(TAKES_BACK).taken_back(table, transaction_id, version)
