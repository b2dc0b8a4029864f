"""Which files and rooms a run of one transaction goes through: start, plan and collect of a write, commit, and a reader.

A step enters a file if a function of it runs; it is handed the subject if that function is given what the step is about: the
log, the stage, the handle. The subject stays in a file until a function of another file is given it, or it comes back: how often
who follows it has to turn to another file. A room is the folder of a file. ``python tests/project/way.py`` prints all three of a
transaction that overwrites a partition; ``--list`` names the files.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("id", "day")],
    }
)
HOMES = {
    "DeltaLog": "airflow_delta.log",
    "StageReport": "airflow_delta.contract.request",
    "begin": "airflow_delta.table.start.begin",
    "collect_stage": "airflow_delta.table.stage.write.collect",
    "open_stage": "airflow_delta.table.stage.stage_view",
    "plan_stage": "airflow_delta.table.stage.write.plan",
    "publish": "airflow_delta.table.commit.publish",
    "read_table": "airflow_delta.table.read.read_table",
}


class Way:
    """The files that each step enters, and those that are handed what it is about."""

    def __init__(self, package: Path) -> None:
        self.package = str(package)
        self.entered: dict[str, set[str]] = {}
        self.handed: dict[str, set[str]] = {}
        self.stays: dict[str, list[str]] = {}

    @contextmanager
    def step(self, name: str, about: Any) -> Iterator[None]:
        """Follow what a step is about; values of its type that take its place count as well."""
        entered, handed = self.entered.setdefault(name, set()), self.handed.setdefault(name, set())
        kind, stays, holders = type(about), self.stays.setdefault(name, []), threading.local()

        def stay(file: str) -> None:
            if not stays or stays[-1] != file:
                stays.append(file)

        def followed(frame: Any, event: str, _: Any) -> None:
            code = frame.f_code
            if event not in ("call", "return") or not code.co_filename.startswith(self.package) or code.co_name == "<module>":
                return
            stack: list[str | None] = vars(holders).setdefault("stack", [])
            if event == "return":
                if stack and stack.pop() is not None and (holder := next(filter(None, reversed(stack)), None)) is not None:
                    stay(holder)
                return
            file = code.co_filename[len(self.package) + 1 :]
            entered.add(file)
            given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            values = frame.f_locals
            is_given = any(isinstance(values.get(name), kind) for name in given)
            stack.append(file if is_given else None)
            if is_given:
                handed.add(file)
                stay(file)

        threading.setprofile(followed)
        sys.setprofile(followed)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


def write_as_spark_would(table: Path, request: Any, report: Callable[..., Any]) -> Any:
    """Leave the file of a stage, and return its report."""
    folder = table / request.directory / "run" / "day=1"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array([7], pa.int64())}), folder / "part-0.parquet")
    return report(
        transaction_id=request.transaction_id,
        stage=request.stage,
        attempt=request.attempt,
        directories=("run",),
        written={"run": {"numFiles": 1, "numRows": 1, "numBytes": (folder / "part-0.parquet").stat().st_size}},
        schema_string=SCHEMA,
        partition_columns=("day",),
    )


def walk(homes: dict[str, str] = HOMES) -> Way:
    """Run a transaction that overwrites a partition and one that reads, and return the way of the second one."""
    names = {name: getattr(importlib.import_module(home), name) for name, home in homes.items()}
    package = Path(importlib.import_module("airflow_delta").__file__ or "").parent
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table"
        for turn in ("first", "second"):  # the first one loads modules, and creates the table
            way = Way(package)
            log = names["DeltaLog"].for_table(str(table))
            with way.step("start", log):
                handle = names["begin"](log, transaction_key=turn, schema=SCHEMA, partition_by=["day"])
            stage = names["open_stage"](names["DeltaLog"].for_table(str(table)), handle, task_id="stage", attempt="1-" + "a" * 8)
            with way.step("plan", stage):
                request = names["plan_stage"](stage, mode="overwrite", replace_where="day = 1")
            report = write_as_spark_would(table, request, names["StageReport"])
            with way.step("collect", stage):
                staged = names["collect_stage"](stage, request, report)
            log = names["DeltaLog"].for_table(str(table))
            with way.step("commit", handle):
                names["publish"](log, handle, [staged], attempt="1-" + "b" * 8)
            log = names["DeltaLog"].for_table(str(table))
            with way.step("read", log):
                names["read_table"](log).to_table()
    return way


def main(arguments: list[str]) -> int:
    """Print the figures."""
    way = walk()
    for title, steps in (("entered", way.entered), ("handed the subject", way.handed)):
        print(title)
        for name, files in {**steps, "all": set().union(*steps.values())}.items():
            rooms = {file.rpartition("/")[0] for file in files}
            print(f"  {name:8} {len(files):3} files {len(rooms):3} rooms")
            if "--list" in arguments:
                print("".join(f"    {file}\n" for file in sorted(files)), end="")
    print("stays of the subject")
    for name, stays in way.stays.items():
        print(f"  {name:8} {len(stays):3}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
