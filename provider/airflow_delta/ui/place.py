"""Where the pages read a table, and with which credentials."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import field

from airflow_delta.light_dataclasses import dataclass

_SALT = os.urandom(16)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is, and how it is reached.

    :param uri: location as the engine opens it.
    :param options: options of the object store.
    :param connection: what reads are counted by: a connection, or the host of a table without one.
    :param within: local directory that must contain the table, with links resolved; ``None`` for no limit.
    """

    uri: str
    options: Mapping[str, str] = field(repr=False)
    connection: str
    within: str | None = None

    @property
    def id(self) -> str:
        """Return a key that is unique for the place and the credentials."""
        told = json.dumps([self.uri, sorted(self.options.items()), self.connection, self.within])
        return hashlib.blake2b(told.encode(), key=_SALT, digest_size=16).hexdigest()
