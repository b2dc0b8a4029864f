"""The schema in the header of an Avro file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore

_MAGIC = b"Obj\x01"
_HEAD = 64 << 10
"""Bytes that are read at first."""


def avro_schema(store: LogStore, path: str) -> Any:
    """Return the schema that a file was written with, ``None`` if it is not Avro."""
    length = _HEAD
    while True:
        data = store.read_range(path, 0, length)
        try:
            return _schema_in(data)
        except IndexError:
            if len(data) < length:
                return None
            length *= 8
        except ValueError:
            return None


class _Header:
    """Reads the values of an Avro file's header; an :class:`IndexError` means that there is more of it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = len(_MAGIC)

    def number(self) -> int:
        """Read a number: seven bits in each byte, lowest first, the sign in the lowest bit."""
        value = 0
        for shift in range(0, 64, 7):
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("not a number of Avro")

    def content(self) -> bytes:
        """Read bytes: their number, and as many."""
        length = self.number()
        if length < 0:
            raise ValueError("not a length")
        self._at += length
        if self._at > len(self._data):
            raise IndexError
        return self._data[self._at - length : self._at]


def _schema_in(data: bytes) -> Any:
    """Return the schema in the header of an Avro file.

    :raises IndexError: if the header is longer than this.
    :raises ValueError: if it is not an Avro header.
    """
    if not data.startswith(_MAGIC):
        raise ValueError("not Avro")
    header = _Header(data)
    while (count := header.number()) != 0:
        if count < 0:  # the bytes of the block follow
            header.number()
        for _ in range(abs(count)):
            key, value = header.content(), header.content()
            if key == b"avro.schema":
                return json.loads(value)
    raise ValueError("no schema")
