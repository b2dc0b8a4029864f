"""Whose transaction it is: its application id, and the version that it commits of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from airflow_delta.contract.payloads import OWN_APPS
from airflow_delta.exceptions import DeltaIllegalArgumentException

_MAX_LONG = 2**63 - 1


class Identity(NamedTuple):
    """The identity of a transaction.

    :param txn_version: in Delta's monotonic scheme; ``None``: its commits are counted.
    :param rerun_policy: what to do if it is already in the log.
    """

    app_id: str
    txn_version: int | None
    rerun_policy: str

    @property
    def monotonic(self) -> bool:
        """Whether it is one version of an application, and not a key of its own."""
        return self.txn_version is not None

    def covers(self, last: int | None) -> bool:
        """Tell whether the transaction is committed if this is the last version that stands."""
        return last is not None and last >= (self.txn_version or 0)

    def next_version(self, table: str, last: int | None) -> int:
        """Return the version to commit.

        :param last: the last version in the log; ``None`` if there is none.
        :raises DeltaIllegalArgumentException: if an application would go back.
        """
        if self.txn_version is None:
            return 0 if last is None else last + 1
        if last is not None and last > self.txn_version and self.rerun_policy in ("append", "replace"):
            raise DeltaIllegalArgumentException(
                f"app_id {self.app_id!r} has committed txnVersion {last} to table {table}, so {self.txn_version} cannot be "
                f"committed again (rerun_policy={self.rerun_policy!r}): versions of one app_id only grow. Use transaction_key, "
                "which gives each Dag run an identity of its own.",
                table=table,
            )
        return self.txn_version


def given_identity(table: str, key: str | None, app_id: str | None, txn_version: int | None, rerun_policy: str) -> Identity:
    """Return the identity that parameters give; they are those of :func:`~airflow_delta.table.start.begin.begin`.

    :raises DeltaIllegalArgumentException: if they give none, or two, or one is not valid.
    """
    if key is not None:
        if app_id is not None or txn_version is not None:
            raise DeltaIllegalArgumentException("Give transaction_key, or app_id with txn_version, but not both.", table=table)
        _check_text("transaction_key", key, table)
        return Identity(key, None, rerun_policy)
    if app_id is None and txn_version is None:
        raise DeltaIllegalArgumentException(
            "The transaction has no identity. Give transaction_key, or app_id with txn_version.", table=table
        )
    if app_id is None or txn_version is None:
        given, missing = ("app_id", "txn_version") if txn_version is None else ("txn_version", "app_id")
        raise DeltaIllegalArgumentException(
            f"{given} was given without {missing}: an idempotent write needs both (Delta's txnAppId and txnVersion).", table=table
        )
    _check_text("app_id", app_id, table)
    if isinstance(txn_version, bool) or not isinstance(txn_version, int) or not 0 <= txn_version <= _MAX_LONG:
        raise DeltaIllegalArgumentException(
            f"txn_version must be a whole number from 0 to {_MAX_LONG}, got {txn_version!r}.", table=table
        )
    return Identity(app_id, txn_version, rerun_policy)


def check_choice(name: str, value: str, allowed: Sequence[str], table: str) -> None:
    """Refuse a word that is not among those allowed.

    :raises DeltaIllegalArgumentException: if it is not.
    """
    if value not in allowed:
        raise DeltaIllegalArgumentException(f"{name} must be one of {', '.join(allowed)}, got {value!r}.", table=table)


def _check_text(name: str, value: object, table: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise DeltaIllegalArgumentException(f"{name} must be a non-empty string, got {value!r}.", table=table)
    if value.startswith(OWN_APPS):
        raise DeltaIllegalArgumentException(
            f"{name} must not begin with {' or '.join(map(repr, OWN_APPS))}, as what says how far sources were read: {value!r}.",
            table=table,
        )
