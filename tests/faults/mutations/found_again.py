"""Faults that were found by hand once, each put back by replacing its mend with what stood there before.

``python tests/faults/mutations/found_again.py [ROW ...]`` looks for them and prints the shortest sequence,
or example, that shows each.
The rows:

1. files of a committed transaction are deleted;
2. reports of removed and skipped instances count;
3. a missing directory counts as no rows;
4. types that Spark cannot read are published;
6. keys are made of map indexes;
7. a retry is taken for a rerun;
8. an expired key is taken for a new one;
9. files without the suffix are left out, columns that are spelled otherwise are read as nulls;
10. VACUUM looks once, before it deletes;
11. partition columns whose names look hidden lose their rows;
12. ``a.b`` is mixed up with the field of a struct ``a``;
15. files of a version that cannot be read are listed;
17. a table is made in a folder of other files;
18. the same new column conflicts with itself.

And those that these searches have found themselves:

"clock of a run": times of commits that are out of order hide that an expired key was committed;
"clock of a retry": and that an earlier try has committed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from hypothesis import Phase

BASE = "airflow_delta"
Patches = dict[str, Any]


def _abort_by_json_commits() -> Patches:
    from airflow_delta.table import abort
    from airflow_delta.table.state.evidence import LogEvidence
    from airflow_delta.table.state.find_commit import find_commit

    fence_off = abort.fence_off

    def evidence(log: Any, handle: Any, **_: Any) -> LogEvidence:
        log.update()
        since = max(handle.read_version + 1, 0)
        found = find_commit(log, app_id=handle.app_id, transaction_id=handle.transaction_id, since=since)
        return LogEvidence(found is not None, None if found is None else found.version)

    def fenced(*arguments: Any, **options: Any) -> Any:
        markers, own = fence_off(*arguments, **options)
        return replace(markers, committed=False), own

    return {"table.abort.evidence": evidence, "table.abort.fence_off": fenced}


def _every_report() -> Patches:
    from airflow_delta.contract.payloads import StagedWrite

    def valid_reports(_context: Any, _handle: Any, reports: Any) -> list[StagedWrite]:
        return [StagedWrite.from_dict(report) for report in reports if report is not None]

    return {"operators.transaction.valid_reports": valid_reports}


def _nothing_is_nothing() -> Patches:
    return {"table.files.adds.check_written": _nothing, "table.files.adds.check_rows": _nothing}


def _arrow_types() -> Patches:
    from airflow_delta.exceptions import DeltaAnalysisException
    from airflow_delta.log.schema.types import PrimitiveType
    from airflow_delta.table.files import parquet_schema

    leaf = parquet_schema._leaf

    def any_leaf(column: Any) -> Any:
        try:
            return leaf(column)
        except DeltaAnalysisException:  # as Arrow reads it: any time is a timestamp, any float a float
            return PrimitiveType("float" if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else "timestamp")

    return {"table.files.parquet_schema._leaf": any_leaf}


def _map_index() -> Patches:
    from airflow_delta.tasks.keys import default_key

    def default_transaction_key(context: Any) -> str:
        ti = context["ti"]
        return default_key._key(ti, str(ti.map_index))

    module = "tasks.start.own_transaction"
    return {f"{module}.default_transaction_key": default_transaction_key, f"{module}.former_keys": lambda *_: ()}


def _key_only() -> Patches:
    return {"table.start.rerun_policy.commit_of_chain": _nothing}


def _expired_is_new() -> Patches:
    def last_txn_version(_log: Any, snapshot: Any, app_id: str, _possible_since: Any) -> int | None:
        return snapshot.transaction_version(app_id)

    return {"table.start.rerun_policy.last_txn_version": last_txn_version}


def _suffix() -> Patches:
    from airflow_delta.contract.staging_directory import is_hidden

    return {"table.files.finished_files.is_hidden": lambda path: is_hidden(path) or not path.endswith(".parquet")}


def _any_spelling() -> Patches:
    return {f"table.{module}._check_spelling": _nothing for module in ("files.finished_schema", "definition.evolve")}


def _no_last_look() -> Patches:
    return {"table.operations.vacuum.delete.LastLook.__call__": lambda _self, files: list(files)}


def _dots_hide() -> Patches:
    def is_hidden(path: str) -> bool:
        return any((part.startswith("_") and "=" not in part) or part.startswith(".") for part in path.split("/") if part)

    return {f"table.files.{module}.is_hidden": is_hidden for module in ("adds", "finished_files")}


def _joined_names() -> Patches:
    def leaf_paths(footer: Any) -> list[str]:
        return [footer.schema.column(index).path for index in range(footer.num_columns)]

    def folded(path: Any) -> str:
        return (path if isinstance(path, str) else ".".join(path)).lower()

    return {"log.data_files.leaf_columns.leaf_paths": leaf_paths, "log.statistics.footers_to_stats.folded": folded}


def _unasked_protocol() -> Patches:
    return {"log.snapshot.Snapshot.check_readable": _nothing}


def _any_folder() -> Patches:
    return {"table.start.location.check_location": _nothing}


def _no_same_columns() -> Patches:
    return {"transaction.conflicts.metadata._has_added": lambda *_: False}


def _clocks_agree(module: str) -> Callable[[], Patches]:
    return lambda: {f"table.state.{module}.CLOCKS_DIFFER_BY": 0}


def _nothing(*_: Any, **__: Any) -> None:
    return None


ROWS: dict[str, tuple[str, Callable[[], Patches]]] = {
    "1": ("life", _abort_by_json_commits),
    "2": ("life load", _every_report),
    "3": ("life slot", _nothing_is_nothing),
    "4": ("files", _arrow_types),
    "6": ("life each", _map_index),
    "7": ("life ops", _key_only),
    "8": ("life", _expired_is_new),
    "9 suffix": ("files", _suffix),
    "9 spelling": ("files", _any_spelling),
    "10": ("life slot", _no_last_look),
    "11": ("files", _dots_hide),
    "12": ("files", _joined_names),
    "15": ("logs", _unasked_protocol),
    "17": ("life", _any_folder),
    "18": ("life wide", _no_same_columns),
    "clock of a run": ("life", _clocks_agree("transaction_retention")),
    "clock of a retry": ("life ops", _clocks_agree("find_commit")),
}
"""What looks for the fault (on which kind of Dags), and what stood in the place of its mend."""


@contextmanager
def put_back(row: str) -> Iterator[None]:
    """Break the code as it was before a row was mended."""
    with ExitStack() as stack:
        for name, before in ROWS[row][1]().items():
            stack.enter_context(patch(f"{BASE}.{name}", before))
        yield


def find(row: str, *, examples: int, seed: int, shrinks: bool) -> BaseException | None:
    """Look for a row on the code before its mend; return what shows it, ``None`` if nothing did.

    :param examples: the most sequences, or examples, to try.
    :param shrinks: whether to look for the shortest one.
    """
    from faults.life.tries import try_files, try_life, try_logs

    phases = (Phase.generate, Phase.shrink) if shrinks else (Phase.generate,)
    name, _, only = ROWS[row][0].partition(" ")
    look: Any = {"life": partial(try_life, only=only or None), "files": try_files, "logs": try_logs}[name]
    with put_back(row), patch("faults.life.files.REFUSALS_COUNT", False):  # rows that get lost say more
        try:
            look(examples, seed, phases=phases)
        except AssertionError as wrong:
            return wrong
    return None


def told(wrong: BaseException) -> str:
    """Return what went wrong, and the example that shows it."""
    notes = getattr(wrong, "__notes__", [])
    lines = "\n".join(notes).splitlines()
    shown = [line for line in lines if "the_table_holds_what_it_must" not in line]
    return "\n".join([f"{type(wrong).__name__}: {wrong}"[:600], *shown])


if __name__ == "__main__":
    for each in sys.argv[1:] or ROWS:
        found = find(each, examples=3000, seed=1, shrinks=True)
        print(f"== {each}: {'not found' if found is None else told(found)}", flush=True)
