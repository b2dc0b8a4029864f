"""JSON files between a worker and a job, with a checksum of their own: a damaged one is still JSON too often to be believed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from airflow_delta.contract.payloads import Payload
from airflow_delta.exceptions import StagingException

_HEAD = '{"sha256": "'

_AFTER = len(_HEAD) + 64

_END = '", '


def sealed(value: Payload) -> str:
    """Return the JSON of a payload, with the checksum of what follows it as the first field."""
    rest = json.dumps(value.to_dict(), ensure_ascii=False)[1:]
    return f"{_HEAD}{_digest(rest)}{_END}{rest}"


def unsealed(text: str, what: str) -> Any:
    """Return what a sealed text holds; one without a checksum is taken as it is.

    :param what: the file, for the error.
    :raises StagingException: if it is not as it was written.
    :raises ValueError: if it is not JSON.
    """
    text = text.rstrip("\n")
    if text.startswith(_HEAD) and text[len(_HEAD) : _AFTER] != _digest(text[_AFTER + len(_END) :]):
        raise StagingException(
            f"{what} is damaged: its checksum does not match. Clear the start task with everything downstream."
        )
    return json.loads(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
