"""How publications stand, as tasks, hooks and the command line return it."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from airflow_delta.contract.payloads import CONTRACT, AbortResult, CommitResult, Payload
from airflow_delta.light_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicationResult(Payload):
    """How a publication stands: the XCom of its commit task.

    :param outcome: ``published``, ``refused``, ``undone`` or ``split``.
    :param anchor: URI of the table whose log decided.
    :param tables: the commit of each table by URI, ``None`` where there is none.
    :param states: by URI; -1: nothing of it is in the log.
    :param committed_before: an earlier try, or another worker, had published it.
    :param reason: why it was not published.
    :param standing: of one that is split: why what is published was not taken back.
    :param winner: the commit that came between: table, version, operation, error and message.
    :param dirty_reads: commits between a publication and its inverse that were not blind appends: table, version and operation.
    """

    contract: int = CONTRACT
    publication: str
    outcome: str
    anchor: str
    tables: dict[str, CommitResult | None]
    states: dict[str, int]
    committed_before: bool = False
    reason: str = ""
    standing: str = ""
    winner: dict[str, Any] | None = None
    dirty_reads: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicationAbort(Payload):
    """Result of the abort of a publication.

    :param publication: its id; ``None`` if it had no plan.
    :param outcome: ``published``, ``refused``, ``undone`` or ``split``.
    :param tables: by URI; the outcome of a table whose rows were taken back is ``undone``.
    """

    contract: int = CONTRACT
    publication: str | None
    outcome: str
    tables: dict[str, AbortResult]
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenPublication(Payload):
    """A publication whose intent is open on a table.

    :param tables: URIs, the anchor first.
    :param since: milliseconds since the epoch.
    """

    publication: str
    anchor: str
    tables: tuple[str, ...]
    since: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionVector(Payload):
    """Versions of several tables that belong together.

    :param versions: by the name that was asked for; -1 if the table did not exist.
    :param held_back: names of the tables that are shown before a publication, by its id: it is not on all of them.
    :param split: names of the tables that show a publication although others do not, by its id.
    """

    versions: dict[str, int]
    held_back: dict[str, tuple[str, ...]] = field(default_factory=dict)
    split: dict[str, tuple[str, ...]] = field(default_factory=dict)
