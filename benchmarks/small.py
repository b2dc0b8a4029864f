"""The small process: CPU of whole processes in which nearly everything is imports, each beside its peer in the same run.

python benchmarks/small.py [PART ...] [--repeats N] [--json FILE]        (three minutes; parts: tables, files, tasks)

CPU is user + system of the process from its birth to its end, the least of all repeats, since a busy machine only adds to it.
What Airflow forks is forked here, from a parent with what Airflow's own has imported, and with what our plugin preloads there.
"""

from __future__ import annotations

import argparse
import compileall
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "provider" / "airflow_delta"

# -- whole processes on a table ----------------------------------------------------------------------------------------------------

OURS = "from airflow_delta.log import DeltaLog; snapshot = DeltaLog.for_table({table!r}).snapshot; "
THEIRS = "from deltalake import DeltaTable; table = DeltaTable({table!r}); "
VERSION = (OURS + "snapshot.version, snapshot.metadata", THEIRS + "table.version(), table.metadata()")
PARTITION = (
    OURS + "print(snapshot.files(\"date = '2024-01-05'\", columns=['path', 'size']).num_rows)",
    THEIRS + "print(len(table.file_uris([('date', '=', '2024-01-05')])))",
)
FLOORS = {
    "python": "pass",
    "import msgspec": "import msgspec",
    "import pyarrow": "import pyarrow",
    "import pyarrow.parquet": "import pyarrow.parquet",
    "import pyarrow.parquet, numpy hidden": "import sys; sys.modules['numpy'] = None; import pyarrow.parquet",
    "import deltalake": "import deltalake",
}


def cpu_of_a_process(code: str) -> tuple[float, str]:
    """Return the milliseconds that a fresh interpreter needs for some code, and what it prints."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed: {code}")
    return (usage.ru_utime + usage.ru_stime) * 1000, printed


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(PACKAGE.parent), "PYTHONWARNINGS": "ignore"}


def in_turns(codes: list[str], repeats: int) -> list[float]:
    """Return the least CPU of each code, all of them taking turns."""
    best = [float("inf")] * len(codes)
    for _ in range(repeats):
        for position, code in enumerate(codes):
            best[position] = min(best[position], cpu_of_a_process(code)[0])
    return best


def tables(work: Path, repeats: int, figures: dict[str, Any]) -> None:
    import tables as built

    print("\n### Whole processes (CPU ms)\n\n| work | ours | delta-rs | ratio |\n|---|---|---|---|")
    cases: dict[str, tuple[str, str]] = {}
    for files in (100, 1_000, 100_000):
        table = work / f"table-{files}"
        built.build_table(table, files)
        # As the tables that we write: the newest version has a checkpoint and a checksum.
        cpu_of_a_process(f"from airflow_delta.log import DeltaLog; DeltaLog.for_table({str(table)!r}).checkpoint()")
        for name, pair in (("one partition", PARTITION), ("version and metadata", VERSION)):
            cases[f"{files:,} files, checkpoint: {name}"] = (pair[0].format(table=str(table)), pair[1].format(table=str(table)))
    table = work / "json"
    built.build_json_table(table, 20, 5)
    for name, pair in (("one partition", PARTITION), ("version and metadata", VERSION)):
        cases[f"100 files, 20 commits, no checkpoint: {name}"] = (
            pair[0].format(table=str(table)),
            pair[1].format(table=str(table)),
        )
    for name, pair in cases.items():
        printed = [cpu_of_a_process(code)[1] for code in pair]
        if printed[0] != printed[1]:
            raise SystemExit(f"{name}: {printed}")
    best = in_turns([code for pair in cases.values() for code in pair] + list(FLOORS.values()), repeats)
    for position, name in enumerate(cases):
        ours, theirs = best[2 * position : 2 * position + 2]
        print(f"| {name} | {ours:.0f} | {theirs:.0f} | {theirs / ours:.2f} |")
        figures[name] = {"ours": ours, "delta-rs": theirs}
    for name, value in zip(FLOORS, best[2 * len(cases) :], strict=True):
        print(f"| floor: {name} | {value:.0f} | | |")
        figures[f"floor: {name}"] = value


# -- forks of Airflow's processes ----------------------------------------------------------------------------------------------------


def forked(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU of a fork of this process that does some work, in milliseconds, and what the work returned."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            answer = json.dumps(work())
        except BaseException as error:
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = json.loads(pipe.read())
    _, _, usage = os.wait4(child, 0)
    if isinstance(answer, dict) and "error" in answer:
        raise SystemExit(answer["error"])
    return (usage.ru_utime + usage.ru_stime) * 1000, answer


def own_modules(before: set[str]) -> int:
    return len([name for name in set(sys.modules) - before if name.startswith("airflow_delta")])


def parsed(path: str) -> int:
    """Parse a Dag file as a task does, and return how many of our modules that imports."""
    from airflow.dag_processing.dagbag import DagBag

    before = set(sys.modules)
    bag = DagBag(dag_folder=path)
    if bag.import_errors:
        raise RuntimeError(next(iter(bag.import_errors.values())))
    return own_modules(before)


def processed(path: str) -> int:
    """Parse and serialise a Dag file as the Dag processor's fork does, and return how many of our modules that imports."""
    import structlog
    from airflow.dag_processing.processor import DagFileParseRequest, _parse_file

    before = set(sys.modules)
    request = DagFileParseRequest(file=path, bundle_path=Path(path).parent, bundle_name="benchmark", callback_requests=[])
    result = _parse_file(request, structlog.get_logger())
    if result is None or result.import_errors:
        raise RuntimeError(str(result))
    return own_modules(before)


TRANSACTIONS = """
from datetime import datetime
from airflow.sdk import dag, task
from airflow_delta import delta_transaction

@dag(schedule=None, start_date=datetime(2026, 1, 1))
def ours():
    for number in range({count}):
        with delta_transaction(f"table_{{number}}", table=f"file:///lake/table_{{number}}"):
            @task.delta_stage(mode="append")
            def rows(spark):
                return spark.range(10)
            rows()
ours()
"""
PLAIN = """
from datetime import datetime
from airflow.sdk import dag, task, task_group

@dag(schedule=None, start_date=datetime(2026, 1, 1))
def plain():
    for number in range({count}):
        @task_group(group_id=f"table_{{number}}")
        def group():
            @task
            def start():
                return 1
            @task
            def rows(value):
                return value
            @task
            def commit(value):
                return value
            @task
            def abort(value):
                return value
            begun = start()
            abort(commit(rows(begun)))
        group()
plain()
"""


def preload(names: str) -> None:
    """Import what our plugin imports in the parent, if this version has that."""
    try:
        from airflow_delta.plugins import preload
    except ImportError:
        return
    getattr(preload, names)()


def as_the_dag_processor(files: list[str], repeats: int, *, preloads: bool) -> list[tuple[float, int]]:
    import airflow.dag_processing.processor as processor
    import airflow.plugins_manager
    import structlog

    airflow.plugins_manager.ensure_plugins_loaded()
    if preloads:
        preload("for_dag_files")
    for path in files:
        processor._pre_import_airflow_modules(path, structlog.get_logger())
    gc.freeze()  # as the Dag processor does before it forks
    found = [(float("inf"), 0)] * len(files)
    for _ in range(repeats):
        for position, path in enumerate(files):
            found[position] = min(found[position], forked(lambda path=path: processed(path)))
    return found


def as_a_worker(table: str, repeats: int, *, preloads: bool, parse: str, plain: str) -> dict[str, tuple[float, list[int]]]:
    """Return CPU of an empty task, a start and a commit, each the fork of a worker that parses the Dag file first; modules loaded."""
    import airflow.plugins_manager
    import airflow.sdk.execution_time.supervisor
    import airflow.sdk.execution_time.task_runner

    import imports

    airflow.plugins_manager.ensure_plugins_loaded()
    if preloads:
        preload("for_tasks")
        gc.freeze()  # as a LocalExecutor does; other executors do not, and the imports of a task make Python search all of Airflow

    def counted(path: str, work: Callable[[], Any]) -> dict[str, Any]:
        number = parsed(path)
        before = set(sys.modules)
        value = work()
        return {"modules": [number, own_modules(before)], "value": value}

    best: dict[str, tuple[float, list[int]]] = {}

    def take(name: str, taken: tuple[float, Any]) -> Any:
        cpu, answer = taken
        best[name] = min(best.get(name, (float("inf"), [])), (cpu, answer["modules"]))
        return answer["value"]

    for _ in range(repeats):
        take("empty", forked(lambda: counted(plain, lambda: None)))
        begun = take("start", forked(lambda: counted(parse, lambda: imports.timed_start(table))))
        staged = forked(lambda begun=begun: imports.staged_write(begun["handle"], 1))[1]
        take(
            "commit",
            forked(lambda begun=begun, staged=staged: counted(parse, lambda: imports.timed_commit(begun["handle"], staged))),
        )
    return best


def ask(work: Path, service: str, *arguments: Any, **named: Any) -> Any:
    """Run one of the services above in a fresh process."""
    command = [sys.executable, __file__, "--service", service, json.dumps(arguments), json.dumps(named)]
    env = environment() | {
        "AIRFLOW_HOME": str(work / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(f"{service}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def files(work: Path, repeats: int, figures: dict[str, Any]) -> None:
    print(
        "\n### A Dag file in the Dag processor's fork (CPU ms)\n\n| transactions | preloaded | ours | plain tasks | ratio | own modules |\n|---|---|---|---|---|---|"
    )
    paths = []
    for count in (1, 10, 100):
        for name, text in (("ours", TRANSACTIONS), ("plain", PLAIN)):
            path = work / f"{name}_{count}.py"
            path.write_text(text.format(count=count))
            paths.append(str(path))
    for preloads in (False, True):
        found = ask(work, "as_the_dag_processor", paths, repeats, preloads=preloads)
        for position, count in enumerate((1, 10, 100)):
            (ours, modules), (theirs, _) = found[2 * position : 2 * position + 2]
            print(f"| {count} | {preloads} | {ours:.0f} | {theirs:.0f} | {theirs / ours:.2f} | {modules} |")
            figures[f"{count} transactions, preloaded: {preloads}"] = {"ours": ours, "plain": theirs}


def tasks(work: Path, repeats: int, figures: dict[str, Any]) -> None:
    import imports

    print(
        "\n### Start and commit above an empty task (CPU ms, with the Dag file)\n\n| preloaded | empty | start | commit | own modules: file, start; file, commit |\n|---|---|---|---|---|"
    )
    parse, plain, table = work / "ours_1.py", work / "plain_1.py", str(work / "tasks")
    parse.write_text(TRANSACTIONS.format(count=1))
    plain.write_text(PLAIN.format(count=1))
    imports.ask(work, "build_table", table, 3)
    for preloads in (False, True):
        found = ask(work, "as_a_worker", table, repeats, preloads=preloads, parse=str(parse), plain=str(plain))
        empty, start, commit = (found[name][0] for name in ("empty", "start", "commit"))
        modules = "; ".join(f"{found[name][1][0]}, {found[name][1][1]}" for name in ("start", "commit"))
        print(f"| {preloads} | {empty:.0f} | + {start - empty:.0f} | + {commit - empty:.0f} | {modules} |")
        figures[f"tasks, preloaded: {preloads}"] = {"empty": empty, "start": start, "commit": commit}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", default=[], help="tables, files, tasks; all if none is named")
    options.add_argument("--repeats", type=int, default=10)
    options.add_argument("--json", type=Path, help="write the figures to this file")
    options.add_argument("--service", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.service:
        print(json.dumps(globals()[given.service[0]](*json.loads(given.service[1]), **json.loads(given.service[2]))))
        return
    # As an installer leaves them: what an environment that writes no bytecode compiles at each import is not what is measured.
    compileall.compile_dir(PACKAGE, quiet=2)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="airflow-delta-small-") as directory:
        for part in (tables, files, tasks):
            if not given.parts or part.__name__ in given.parts:
                part(Path(directory), given.repeats, figures)
    print(f"\nLoad of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
