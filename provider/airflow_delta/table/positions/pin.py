"""A pin: what the first attempt of a stage has found to take, for its later attempts and for the commit.

It is a file of the transaction, put once. Stages report what they took by XCom, which the commit believes only if it is pinned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_delta.contract.staging_directory import SCAN_DIRECTORY, transaction_directory
from airflow_delta.exceptions import StagingException
from airflow_delta.log.storage.puts import creates, read_until_found

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog

T = TypeVar("T")


def pin_path(transaction_id: str, kind: str, name: str) -> str:
    """Return the path of a pin.

    :param kind: of the source.
    :param name: what else tells the pins of a transaction apart; of any length.
    """
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{transaction_directory(transaction_id)}/{SCAN_DIRECTORY}/{kind}-{digest}.json"


class Pin(Generic[T]):
    """The pin of one source in a transaction.

    :param path: :func:`pin_path`.
    :param decode: returns what a file holds, ``None`` if it is damaged.
    """

    def __init__(self, log: DeltaLog, handle: TransactionHandle, path: str, decode: Callable[[bytes], T | None]) -> None:
        self._log = log
        self._handle = handle
        self._path = path
        self._decode = decode

    def exists(self) -> bool:
        """Return whether another attempt has put it."""
        return self._log.store.head(self._path) is not None

    def place(self, data: bytes) -> bool:
        """Put it, unless it is there; return whether it was not."""
        return creates(self._log.store, self._path, data)

    def read(self, what: str, fits: Callable[[T], bool]) -> T:
        """Return what another attempt has pinned.

        :param what: is pinned, in the words of the error.
        :param fits: whether it is what this attempt looks for.
        :raises StagingException: if it cannot be read, or does not fit.
        """
        found = read_until_found(self._found)
        if found is None or not fits(found):
            raise self._handle.error(
                StagingException,
                f"{what} cannot be read back ({self._path} of table {self._log.uri}). Nothing was staged. Clear the start task "
                "with everything downstream.",
            )
        return found

    def confirmed(self, says: str, fits: Callable[[T], bool]) -> T:
        """Return what is pinned, if it is what a stage has reported.

        :param says: what the stage says that it has done.
        :param fits: whether that is pinned.
        :raises StagingException: if it is not.
        """
        found = self._found()
        if found is None or not fits(found):
            raise self._handle.error(
                StagingException,
                f"A stage of transaction {self._handle.transaction_id} on table {self._log.uri} says that it has {says}, which "
                f"is not what the transaction has pinned ({self._path}). Nothing is committed. Clear the start task with "
                "everything downstream.",
            )
        return found

    def _found(self) -> T | None:
        try:
            return self._decode(self._log.store.read(self._path))
        except FileNotFoundError:
            return None
