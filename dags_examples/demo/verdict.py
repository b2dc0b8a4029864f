"""What the table holds, read back through delta-rs, against the source; and what the log says about how it came there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from place import Place
from source import MONTHS, YEAR, Content, contents, contents_of_source


@dataclass(frozen=True)
class State:
    """The table at one moment: its version, the live files, and all Parquet files below it."""

    version: int
    live: frozenset[str]
    on_disk: frozenset[str]
    months: frozenset[int]

    @property
    def complete(self) -> bool:
        return len(self.months) == len(MONTHS)

    @property
    def unlisted(self) -> frozenset[str]:
        """Return the files that the table's version does not list: no reader sees them."""
        return self.on_disk - self.live


def look(table: Place) -> State:
    """Return the table's state as delta-rs sees it."""
    log = table.log
    if not log.table_exists():
        return State(-1, frozenset(), frozenset(), frozenset())
    delta = table.delta_rs()
    live = frozenset(delta.get_add_actions().column("path").to_pylist())
    files = (status.path for status in log.store.list_recursive(""))
    on_disk = frozenset(path for path in files if path.endswith(".parquet") and not path.startswith("_delta_log/"))
    return State(delta.version(), live, on_disk, frozenset(int(values["month"]) for values in delta.partitions()))


def history(table: Place, tries: dict[str, str]) -> list[tuple[str, ...]]:
    """Return the table's history, oldest first, as our own ``DeltaLog.history()`` tells it.

    :param tries: month to the tries that its tasks took in this run of the demo.
    """
    rows = [("version", "operation", "month", "Dag run", "attempts", "logged by", "files", "rows")]
    for record in reversed(table.log.history()):
        replaced = re.search(r"month = (\d+)", record.operation_parameters.get("predicate") or "")
        month = f"{YEAR}-{int(replaced[1]):02}" if replaced else "-"
        metrics = record.operation_metrics
        rows.append(
            (
                str(record.version),
                record.operation or "",
                month,
                record.tags.get("airflow.runId", "-"),
                tries.get(month, "-"),
                f"try {record.tags['airflow.tryNumber']}" if "airflow.tryNumber" in record.tags else "-",
                str(metrics.get("numFiles", "-")),
                str(metrics.get("numOutputRows", "-")),
            )
        )
    return rows


def logged_by(table: Place, run_id: str) -> str | None:
    """Return the try of the commit task that wrote the log entry of a Dag run."""
    for record in table.log.history():
        if record.tags.get("airflow.runId") == run_id:
            return record.tags["airflow.tryNumber"]
    return None


def versions_by_month(table: Place) -> dict[int, list[int]]:
    """Return which versions added rows of each month, straight from the JSON of the log."""
    versions: dict[int, list[int]] = {}
    store = table.log.store
    for status in store.list_from("_delta_log", ""):
        stem, _, kind = status.name.partition(".")
        if kind != "json" or not stem.isdigit():
            continue
        actions = [json.loads(line) for line in store.read(status.path).splitlines() if line]
        for month in {int(action["add"]["partitionValues"]["month"]) for action in actions if "add" in action}:
            versions.setdefault(month, []).append(int(stem))
    return versions


def compare(table: Place) -> Iterator[tuple[bool, tuple[str, ...]]]:
    """Yield for each month whether it is right, and the figures: rows and checksum of both sides, versions that wrote it."""
    expected = contents_of_source()
    found = contents(table.delta_rs().to_pyarrow_table())
    versions = versions_by_month(table)
    nothing = Content(0, "-")
    for month in MONTHS:
        source, here, wrote = expected[month], found.get(month, nothing), versions.get(month, [])
        good = source == here and len(wrote) == 1
        yield (
            good,
            (
                f"{YEAR}-{month:02}",
                f"{source.rows:,}",
                f"{here.rows:,}",
                source.checksum[:12],
                here.checksum[:12],
                ", ".join(map(str, wrote)) or "none",
                "ok" if good else "WRONG",
            ),
        )
