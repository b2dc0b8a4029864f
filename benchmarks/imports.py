"""What the provider costs Airflow where it costs every few seconds: imports and parsing of Dag files; and what start and commit do.

python benchmarks/imports.py [--repeats N] [--json FILE]        (about two minutes)

Every figure is taken in a process that is as Airflow's: Dag files are parsed in children of a process that has Airflow's modules
loaded already, as the Dag processor forks them; tasks likewise. Beside the examples stand Dags of as many tasks that know nothing
of this provider, with an asset as outlet: of ``@task`` functions, and of ``@task.pyspark`` functions of Airflow's own Spark provider.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "provider" / "airflow_delta"
EXAMPLES = sorted(path for path in (ROOT / "dags_examples").glob("*.py"))
FACING = ("assets", "cli", "decorators", "hooks", "links", "operators", "plugins", "sensors", "tasks", "triggers", "ui")
LARGEST_RATIO, LARGEST_MS, LARGEST_OVERWRITE_MS = 1.15, 150.0, 400.0
HEAVY = ("pyspark", "pyarrow", "numpy", "sqlglot", "obstore", "pandas")


def facing_modules() -> list[str]:
    """Every module that a Dag file, a worker's start, the API server or the CLI imports."""
    found = ["airflow_delta", "airflow_delta.get_provider_info", "airflow_delta.task_groups"]
    for folder in FACING:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            found.append(name.removesuffix(".__init__"))
    return found


# -- in a child of a process that has Airflow loaded ----------------------------------------------------------------------------


def forked(work: Callable[[], Any]) -> Any:
    """Return what ``work`` says in a fork of this process."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.close(read)
            answer = json.dumps(work())
        except BaseException as error:
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def timed_import(name: str) -> dict[str, Any]:
    import importlib

    before = set(sys.modules)
    start = time.perf_counter()
    importlib.import_module(name)
    seconds = time.perf_counter() - start
    loaded = set(sys.modules) - before
    return {"seconds": seconds, "modules": len(loaded), "heavy": sorted(loaded & set(HEAVY))}


def timed_parse(path: str) -> dict[str, Any]:
    from airflow.dag_processing.dagbag import DagBag

    start = time.perf_counter()
    bag = DagBag(dag_folder=path)
    seconds = time.perf_counter() - start
    if bag.import_errors:
        raise RuntimeError(next(iter(bag.import_errors.values())))
    return {"seconds": seconds, "tasks": max(len(dag.tasks) for dag in bag.dags.values())}


def parse_service(requests: list[str], repeats: int) -> list[list[dict[str, Any]]]:
    """Parse files as the Dag processor does, taking turns, so that a slow moment of the machine hits all of them."""
    import airflow.dag_processing.processor as processor
    import structlog

    for path in requests:
        processor._pre_import_airflow_modules(path, structlog.get_logger())
    found: list[list[dict[str, Any]]] = [[] for _ in requests]
    for _ in range(repeats):
        for position, path in enumerate(requests):
            found[position].append(forked(lambda path=path: timed_parse(path)))
    return found


def import_service(requests: list[str], repeats: int) -> list[list[dict[str, Any]]]:
    import airflow.sdk
    import airflow.sdk.execution_time.task_runner  # noqa: F401 - what a worker and the Dag processor have anyway

    return [[forked(lambda name=name: timed_import(name)) for _ in range(repeats)] for name in requests]


# -- what start and commit do themselves ----------------------------------------------------------------------------------------


def context_of(operator: Any) -> dict[str, Any]:
    """The part of a task's context that the operators read; Airflow's own work around it is not what is measured."""
    from types import SimpleNamespace

    states = SimpleNamespace(
        get_task_states=lambda *, dag_id, task_ids, run_ids: {run_ids[0]: dict.fromkeys(task_ids, "success")}
    )
    ti = SimpleNamespace(
        dag_id="dag",
        run_id="run",
        task_id=operator.task_id,
        map_index=-1,
        try_number=1,
        get_task_states=states.get_task_states,
        xcom_push=lambda *_, **__: None,
    )
    return {"ti": ti, "dag": SimpleNamespace(task_dict={}), "task": operator, "outlet_events": {}}


def timed_start(table: str) -> dict[str, Any]:
    from airflow.sdk.bases.operator import ExecutorSafeguard

    from airflow_delta.operators.transaction import DeltaStartTransactionOperator

    ExecutorSafeguard.test_mode = True
    operator = DeltaStartTransactionOperator(task_id="start", table=table, transaction_key=f"benchmark-{time.time_ns()}")
    done = timed(lambda: operator.execute(context_of(operator)))
    return {**done, "handle": done["value"]}


def timed_commit(handle: dict[str, Any], staged: dict[str, Any]) -> dict[str, Any]:
    from airflow.sdk.bases.operator import ExecutorSafeguard

    from airflow_delta.operators.transaction import DeltaCommitOperator

    ExecutorSafeguard.test_mode = True
    operator = DeltaCommitOperator(task_id="commit", transaction=handle, staged=staged)
    return timed(lambda: operator.execute(context_of(operator)))


def staged_write(handle: dict[str, Any], files: int) -> dict[str, Any]:
    """Stage Parquet files as another job would have left them. Loads Arrow, so it runs in a fork of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from airflow.sdk.bases.operator import ExecutorSafeguard

    from airflow_delta.operators.stage import DeltaStageFilesOperator

    ExecutorSafeguard.test_mode = True
    folder = Path(handle["stagingPath"].removeprefix("file://")) / "rows"
    folder.mkdir(parents=True)
    for number in range(files):
        pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), folder / f"part-{number}.parquet")
    operator = DeltaStageFilesOperator(task_id="stage", transaction=handle, path="rows")
    return dict(operator.execute(context_of(operator)))


def task_service(table: str, repeats: int, files: int) -> dict[str, list[dict[str, Any]]]:
    """Run whole transactions, each task in a process of its own, as a worker forks them."""
    import airflow.sdk.execution_time.task_runner  # noqa: F401

    import airflow_delta.operators.transaction  # noqa: F401 - the Dag file has imported it by the time a task runs

    found: dict[str, list[dict[str, Any]]] = {"start": [], "commit": []}
    for _ in range(repeats):
        begun = forked(lambda: timed_start(table))
        staged = begun if "error" in begun else forked(lambda begun=begun: staged_write(begun["handle"], files))
        if "error" in staged:
            raise RuntimeError(staged["error"])
        found["start"].append(begun)
        found["commit"].append(forked(lambda begun=begun, staged=staged: timed_commit(begun["handle"], staged)))
    return found


# -- an overwrite with replace_where, as @task.delta_stage and DeltaStageSparkSubmitOperator plan and collect it ------------------

DAY = "2024-01-05"


def timed(work: Callable[[], Any]) -> dict[str, Any]:
    start, cpu = time.perf_counter(), time.process_time()
    value = work()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu, "value": value, "heavy": sorted(set(sys.modules) & set(HEAVY))}


def opened_stage(handle: dict[str, Any]) -> Any:
    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log import DeltaLog
    from airflow_delta.table.stage.stage_view import open_stage
    from airflow_delta.tasks.trust.definition_mark import definition_mark

    known, log = TransactionHandle.from_dict(handle), DeltaLog.for_table(handle["table"])
    return open_stage(log, known, task_id="stage", attempt=f"attempt-{definition_mark(known)}")


def timed_plan(handle: dict[str, Any]) -> dict[str, Any]:
    def work() -> Any:
        from airflow_delta.table.stage.write.plan import plan_stage

        return plan_stage(opened_stage(handle), mode="overwrite", replace_where=f"day = '{DAY}'").to_dict()

    return timed(work)


def write_rows(request: dict[str, Any], table: str) -> dict[str, Any]:
    """Write what Spark would, and report it as Spark would. Loads Arrow, so it runs in a fork of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_delta.contract.request import StageReport

    folder = Path(table) / request["directory"] / "run" / f"day={DAY}"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), folder / "part-0.parquet")
    report = StageReport(
        transaction_id=request["transactionId"],
        stage=request["stage"],
        attempt=request["attempt"],
        directories=("run",),
        written={"run": {"numFiles": 1, "numRows": 1, "numBytes": (folder / "part-0.parquet").stat().st_size}},
        schema_string=request["schemaString"],
        partition_columns=("day",),
    )
    return dict(report.to_dict())


def timed_collect(handle: dict[str, Any], request: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    def work() -> Any:
        from airflow_delta.contract.request import StageReport, StageRequest
        from airflow_delta.table.stage.write.collect import collect_stage

        return collect_stage(opened_stage(handle), StageRequest.from_dict(request), StageReport.from_dict(report)).to_dict()

    return timed(work)


def overwrite_service(table: str, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Replace one day of a table, each task in a process of its own, as a worker forks them."""
    import airflow.sdk.execution_time.task_runner  # noqa: F401

    import airflow_delta.operators.transaction  # noqa: F401

    found: dict[str, list[dict[str, Any]]] = {"start": [], "plan": [], "collect": [], "commit": []}
    for _ in range(repeats):
        begun = forked(lambda: timed_start(table))
        planned = forked(lambda begun=begun: timed_plan(begun["handle"]))
        report = forked(lambda planned=planned: write_rows(planned["value"], table))
        collected = forked(
            lambda begun=begun, planned=planned, report=report: timed_collect(begun["handle"], planned["value"], report)
        )
        found["start"].append(begun)
        found["plan"].append(planned)
        found["collect"].append(collected)
        found["commit"].append(forked(lambda begun=begun, collected=collected: timed_commit(begun["handle"], collected["value"])))
    return found


def build_partitioned_table(table: str, files: int) -> None:
    """Make a table of many files, 1,000 of each day, with a checkpoint and some commits after it."""
    import datetime
    import uuid

    from airflow_delta.log import AddFile, DeltaLog, Metadata
    from airflow_delta.transaction import Operation

    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in (("id", "long"), ("day", "date"))]
    log = DeltaLog.for_table(table)
    txn = log.start_transaction()
    schema = json.dumps({"type": "struct", "fields": fields})
    txn.update_metadata_for_new_table(Metadata(id=str(uuid.uuid4()), schema_string=schema, partition_columns=["day"]))
    txn.commit([], Operation.create_table(["day"]))
    first = datetime.date(2024, 1, 1)
    adds = []
    for number in range(files):
        day = (first + datetime.timedelta(days=number // 1000)).isoformat()
        stats = json.dumps({"numRecords": 1, "minValues": {"id": number}, "maxValues": {"id": number}, "nullCount": {"id": 0}})
        path = f"day={day}/part-{number:06}.parquet"
        adds.append(AddFile(path=path, partition_values={"day": day}, size=1, modification_time=1, data_change=True, stats=stats))
    log.start_transaction().commit(adds, Operation.write("Append"))
    log.checkpoint()
    for number in range(3):
        add = AddFile(path=f"{number}", partition_values={"day": "2024-01-01"}, size=1, modification_time=1, data_change=True)
        log.start_transaction().commit([add], Operation.write("Append"))


def build_table(table: str, commits: int) -> None:
    """Make a table of one column with a log of some length."""
    import uuid

    from airflow_delta.log import AddFile, DeltaLog, Metadata
    from airflow_delta.transaction import Operation

    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    log = DeltaLog.for_table(table)
    txn = log.start_transaction()
    txn.update_metadata_for_new_table(Metadata(id=str(uuid.uuid4()), schema_string=json.dumps(schema), partition_columns=[]))
    txn.commit([], Operation.create_table([]))
    for number in range(commits):
        add = AddFile(path=f"{number}.parquet", partition_values={}, size=1, modification_time=1, data_change=True)
        log.start_transaction().commit([add], Operation.write("Append"))


# -- the figures ------------------------------------------------------------------------------------------------------------------

PEERS = {
    "@task": "@task",
    "@task.pyspark": "@task.pyspark(conn_id='spark_default')",
}
SUBMIT = "from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator"


def peer(tasks: int, decorator: str, like: str) -> str:
    """Return a Dag of as many tasks, in a task group, that tells of an asset as the examples do, without this provider.

    :param like: the example: what submits applications has a peer that imports Airflow's operator for that.
    """
    lines = ["from datetime import datetime", "from airflow.sdk import Asset, dag, task, task_group", ""]
    if "spark_submit" in like:
        lines += [SUBMIT, ""]
    lines += ["@dag(schedule=None, start_date=datetime(2026, 1, 1), default_args={'outlets': [Asset(uri='s3://lake/peer')]})"]
    lines += ["def peer():", "    @task_group", "    def group():"]
    for number in range(tasks):
        lines += [f"        {decorator}", f"        def task_{number}(value=None):", "            return value", ""]
    chain = "None"
    for number in range(tasks):
        chain = f"task_{number}({chain})"
    return "\n".join([*lines, f"        {chain}", "", "    group()", "", "peer()", ""])


def environment(work: Path) -> dict[str, str]:
    return os.environ | {
        "AIRFLOW_HOME": str(work / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "DELTA_EXAMPLES": str(work / "tables"),
        "PYTHONPATH": str(PACKAGE.parent),
        "PYTHONWARNINGS": "ignore",
    }


def ask(work: Path, service: str, *arguments: Any) -> Any:
    """Run one of the services above in a fresh process."""
    command = [sys.executable, __file__, "--service", service, json.dumps(arguments)]
    done = subprocess.run(command, env=environment(work), capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(f"{service}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def median(runs: list[dict[str, Any]]) -> float:
    if errors := [run["error"] for run in runs if "error" in run]:
        raise SystemExit(errors[0])
    return statistics.median(run["seconds"] for run in runs) * 1000


def whole_process(work: Path, path: Path) -> float:
    """Time a process that imports the file and nothing else, as an author does who runs it."""
    start = time.perf_counter()
    subprocess.run([sys.executable, str(path)], env=environment(work), capture_output=True, check=True, timeout=120)
    return (time.perf_counter() - start) * 1000


def report_imports(work: Path, repeats: int, figures: dict[str, Any]) -> None:
    names = facing_modules()
    reference = ["airflow.providers.standard.operators.python", "airflow.providers.apache.spark.operators.spark_submit"]
    found = ask(work, "import_service", [*reference, *names], repeats)
    print("\n### Imports, with airflow.sdk loaded\n\n| module | ms | modules | heavy |\n|---|---|---|---|")
    for name, runs in sorted(zip([*reference, *names], found, strict=True), key=lambda item: -median(item[1])):
        print(f"| {name} | {median(runs):.1f} | {runs[0]['modules']} | {', '.join(runs[0]['heavy']) or '-'} |")
        figures.setdefault("imports", {})[name] = {"ms": median(runs), "heavy": runs[0]["heavy"]}


def report_parsing(work: Path, repeats: int, figures: dict[str, Any]) -> None:
    sizes = [runs[0]["tasks"] for runs in ask(work, "parse_service", [str(path) for path in EXAMPLES], 1)]
    files: list[Path] = []
    for example, tasks in zip(EXAMPLES, sizes, strict=True):
        files.append(example)
        for number, decorator in enumerate(PEERS.values()):
            path = work / f"peer_{number}_{example.name}"
            path.write_text(peer(tasks, decorator, example.stem))
            files.append(path)
    parsed = [median(runs) for runs in ask(work, "parse_service", [str(path) for path in files], repeats)]
    whole = [[whole_process(work, path) for path in files] for _ in range(3)]
    processes = [statistics.median(column) for column in zip(*whole, strict=True)]
    names = " | ".join(f"{name}: ms | ratio" for name in PEERS)
    for title, values in (("a fork of the Dag processor", parsed), ("a process of its own", processes)):
        print(f"\n### A Dag file in {title}\n\n| example | tasks | ms | {names} |\n|{'---|' * (3 + 2 * len(PEERS))}")
        step = 1 + len(PEERS)
        for position, (example, tasks) in enumerate(zip(EXAMPLES, sizes, strict=True)):
            ours, *theirs = values[position * step : (position + 1) * step]
            cells = " | ".join(f"{value:.1f} | {ours / value:.2f}" for value in theirs)
            print(f"| {example.stem} | {tasks} | {ours:.1f} | {cells} |")
            entry = {"ms": ours, **{name: ours / value for name, value in zip(PEERS, theirs, strict=True)}}
            figures.setdefault(title, {})[example.stem] = entry


def report_tasks(work: Path, repeats: int, figures: dict[str, Any]) -> None:
    print(
        "\n### What start and commit do themselves\n\n| table | files staged | start ms | commit ms | heavy |\n|---|---|---|---|---|"
    )
    for name, commits, files in (("new", None, 1), ("3 commits", 3, 1), ("105 commits", 105, 1), ("105 commits", 105, 200)):
        table = str(work / f"{name.replace(' ', '-')}-{files}")
        if commits is not None:
            ask(work, "build_table", table, commits)
        found = ask(work, "task_service", table, 1 if commits is None else repeats, files)
        heavy = sorted({module for runs in found.values() for run in runs for module in run.get("heavy", ())})
        start, commit = median(found["start"]), median(found["commit"])
        print(f"| {name} | {files} | {start:.1f} | {commit:.1f} | {', '.join(heavy) or '-'} |")
        figures.setdefault("tasks", {})[f"{name}, {files} files"] = {"start": start, "commit": commit}


def report_overwrite(work: Path, repeats: int, figures: dict[str, Any]) -> None:
    steps = ("start", "plan", "collect", "commit")
    print("\n### What each task of an overwrite with `replace_where` does itself, imports included (in brackets: least CPU)\n")
    print(f"| table | {' | '.join(f'{step} ms' for step in steps)} | heavy |\n|{'---|' * (len(steps) + 2)}")
    for files in (1_000, 100_000):
        table = str(work / f"overwrite-{files}")
        ask(work, "build_partitioned_table", table, files)
        found = ask(work, "overwrite_service", table, repeats)
        heavy = sorted({module for runs in found.values() for run in runs for module in run.get("heavy", ())})
        medians = {step: median(found[step]) for step in steps}
        cpu = {step: min(run["cpu"] for run in found[step]) * 1000 for step in steps}
        print(
            f"| {files:,} files | {' | '.join(f'{medians[step]:.0f} ({cpu[step]:.0f})' for step in steps)} | {', '.join(heavy) or '-'} |"
        )
        figures.setdefault("overwrite", {})[f"{files} files"] = {**medians, "heavy": heavy}


def verdict(figures: dict[str, Any]) -> bool:
    """Say which bounds hold."""
    ratios = {name: entry["@task.pyspark"] for name, entry in figures["a process of its own"].items()}
    slowest = max(max(entry.values()) for entry in figures["tasks"].values())
    heavy = sorted(name for name, entry in figures["imports"].items() if entry["heavy"])
    worst = max(ratios, key=lambda name: ratios[name])
    print(f"\nDag files against @task.pyspark, whole process: at most {ratios[worst]:.2f} ({worst}); bound {LARGEST_RATIO}")
    print(f"Start and commit: at most {slowest:.0f} ms; bound {LARGEST_MS:.0f} ms")
    longest = max(value for entry in figures["overwrite"].values() for name, value in entry.items() if name != "heavy")
    loaded = {module for entry in figures["overwrite"].values() for module in entry["heavy"]}
    print(
        f"A task of an overwrite: at most {longest:.0f} ms; bound {LARGEST_OVERWRITE_MS:.0f} ms; loads {', '.join(sorted(loaded))}"
    )
    print(f"Modules that load {', '.join(HEAVY)}: {', '.join(heavy) or 'none'}")
    overwrite = longest < LARGEST_OVERWRITE_MS and not loaded & {"pandas", "sqlglot"}
    return ratios[worst] < LARGEST_RATIO and slowest < LARGEST_MS and not heavy and overwrite


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--json", type=Path, help="write the figures to this file")
    options.add_argument("--service", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.service:
        print(json.dumps(globals()[given.service[0]](*json.loads(given.service[1]))))
        return 0
    # As an installer leaves them: what an environment that writes no bytecode compiles at each import is not what is measured.
    compileall.compile_dir(PACKAGE, quiet=2)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="airflow-delta-imports-") as directory:
        work = Path(directory)
        report_imports(work, 3, figures)
        report_parsing(work, given.repeats, figures)
        report_tasks(work, given.repeats, figures)
        report_overwrite(work, given.repeats, figures)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))
    return 0 if verdict(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
