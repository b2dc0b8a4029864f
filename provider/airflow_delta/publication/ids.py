"""The id of a publication, the places that it names, and the mark of a table in it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from airflow_delta.contract.location import Location
from airflow_delta.contract.staging_directory import PLAN_ENDED, PLAN_PREFIX, transaction_directory
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.storage.options import canonical_options

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import LogStore

_ID = lazy_pattern(r"(?P<transaction>[A-Za-z0-9_-][A-Za-z0-9_.-]*)\.(?P<digest>[0-9a-f]{16})(?P<tables>(?:\.[0-9a-f]{8}){1,32})")


@dataclass(frozen=True, slots=True)
class PublicationId:
    """The parts of an id.

    :param transaction: the anchor's transaction.
    :param tables: eight hexadecimal digits for each table, the anchor's first.
    """

    transaction: str
    digest: str
    tables: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> PublicationId:
        """Return the parts of an id.

        :raises DeltaIllegalArgumentException: if it is not an id of a publication.
        """
        found = _ID.fullmatch(text)
        if found is None:
            raise DeltaIllegalArgumentException(f"{text!r} is not the id of a publication.")
        return cls(found["transaction"], found["digest"], tuple(found["tables"][1:].split(".")))

    @staticmethod
    def is_one(text: str) -> bool:
        """Tell whether a text has the form of a publication's id."""
        return _ID.fullmatch(text) is not None

    @property
    def plan_path(self) -> str:
        """Path of the plan below the anchor's table."""
        return plan_path(self.transaction, self.digest)


def plan_path(transaction_id: str, digest: str) -> str:
    """Return the path of a plan below the table of one of its transactions."""
    return f"{transaction_directory(transaction_id)}/{PLAN_PREFIX}{digest}.json"


def end_path(transaction_id: str, digest: str) -> str:
    """Return the path of the note that a publication has ended on every table, below one of them."""
    return f"{transaction_directory(transaction_id)}/{PLAN_PREFIX}{digest}{PLAN_ENDED}"


def table_mark(log: DeltaLog) -> str:
    """Return the eight hexadecimal digits of a table: of its place, however it is spelled."""
    return hashlib.sha256(same_place_key(log).encode()).hexdigest()[:8]


def same_place_key(log: DeltaLog) -> str:
    """Return what is equal for two logs if they are of one table."""
    return place_key(log.uri, log.store)


def place_key(uri: str, store: LogStore) -> str:
    """Return what is equal for two locations if they are one place.

    :param store: of a table: its options may name the account or the endpoint of a container.
    """
    options = canonical_options(store.options, uri)
    return Location.parse(uri, options).resolved(options).key
