"""Run the benchmarks and print each figure beside delta-rs's in the same run, with the ratio. See README.md for how to read them.

python benchmarks/run.py [--quick] [--only NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import checks
import conflict_check
import contention_s3
import partitions
import publications
import rows
import stage
import tables

HERE = Path(__file__).parent
ENGINES = ("delta-rs", "ours")
PARTS = [
    "processes",
    "loads",
    "json",
    "checkpoints",
    "previews",
    "spark",
    "commits",
    "contention",
    "contention_s3",
    "winners",
    "conflict_check",
    "checks",
    "publications",
    "writers",
    "stage",
    "partitions",
    "rows",
    "operations",
    "scale",
]
ROWS: list[dict[str, Any]] = []


def command(engine: str, case: str, table: Path, argument: str | None = None) -> list[str]:
    return [sys.executable, str(HERE / "case.py"), engine, case, str(table), *([argument] if argument else [])]


def parse(output: str) -> dict[str, Any]:
    return json.loads(output.strip().splitlines()[-1])


def run_case(engine: str, case: str, table: Path, argument: str | None = None, limit: float = 900) -> dict[str, Any]:
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(command(engine, case, table, argument), capture_output=True, text=True, timeout=limit)
    wall, after = time.perf_counter() - start, os.times()
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr else "failed"}
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {**parse(done.stdout), "wall": wall, "cpu": cpu}


def restore(table: Path, files: set[Path]) -> None:
    """Remove what a measurement committed, so that the next one finds the same table."""
    for path in (table / "_delta_log").iterdir():
        if path not in files:
            path.unlink() if path.is_file() else shutil.rmtree(path)


def content(table: Path) -> set[Path]:
    return set((table / "_delta_log").iterdir())


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:,.2f}" if value < 0.1 else f"{value * 1000:,.0f}"


def report(
    name: str, theirs: dict[str, Any] | None, ours: dict[str, Any] | None, key: str = "median", *, cpu: bool = False
) -> None:
    a, b = (r.get(key) if r else None for r in (theirs, ours))
    peaks = [f"{r['peak_mb']:,.0f}" if r and r.get("peak_mb") else "-" for r in (theirs, ours)]
    ratio = f"{a / b:,.1f}x" if a and b else "-"
    note = "; ".join(r["error"][:80] for r in (theirs, ours) if r and r.get("error"))
    if cpu and theirs and ours and "cpu" in theirs and "cpu" in ours:
        note = note or f"CPU {milliseconds(theirs['cpu'])} and {milliseconds(ours['cpu'])}"
    print(f"| {name} | {milliseconds(a)} | {milliseconds(b)} | {ratio} | {peaks[0]} | {peaks[1]} | {note} |", flush=True)
    ROWS.append({"name": name, "delta-rs": theirs, "ours": ours, "ratio": a / b if a and b else None})


def head(title: str) -> None:
    print(
        f"\n### {title}\n\n| measure | delta-rs ms | ours ms | ratio | delta-rs MB | ours MB | note |\n|---|---|---|---|---|---|---|",
        flush=True,
    )


def compare(name: str, case: str, table: Path, argument: str | None = None, repeats: int = 3, *, wall: bool = False) -> None:
    """Interleave the engines, so that a slow moment of the machine hits both."""
    found: dict[str, list[dict[str, Any]]] = {e: [] for e in ENGINES}
    before = content(table)
    for _ in range(repeats):
        for engine in ENGINES:
            found[engine].append(run_case(engine, case, table, argument))
            restore(table, before)
    summary = {}
    for engine, runs in found.items():
        good = [r for r in runs if "error" not in r]
        if not good:
            summary[engine] = runs[0]
            continue
        values = [r["wall"] for r in good] if wall else [s for r in good for s in r["seconds"]]
        summary[engine] = {
            "median": statistics.median(values),
            "min": min(values),
            "max": max(values),
            "peak_mb": max(r["peak_mb"] for r in good),
            "value": good[0].get("value"),
            "cpu": min(r["cpu"] for r in good),
        }
    values = {engine: s.get("value") for engine, s in summary.items()}
    if case.removeprefix("whole-") in ("open", "load", "count", "partition", "statistics") and len(set(values.values())) != 1:
        raise SystemExit(f"{name}: the engines disagree: {values}")
    report(name, summary["delta-rs"], summary["ours"], cpu=wall)


def processes(work: Path, sizes: list[int]) -> None:
    """What a user waits for: from the start of a process to its end, imports included."""
    head("Whole processes, imports included (wall)")
    for size in sizes:
        repeats = 9 if size <= 100_000 else 5
        for kind in ("foreign checkpoint", "own checkpoint"):
            table = work / f"{kind.split()[0]}-{size}"
            for case, label in [
                ("open", "version, protocol, metadata"),
                ("partition", "files of one date"),
                ("count", "all files"),
            ]:
                compare(f"{size:,} files, {kind}: {label}", f"whole-{case}", table, repeats=repeats, wall=True)


def loads(work: Path, sizes: list[int]) -> None:
    head("Loading a snapshot and listing files (fresh process, imports not counted)")
    for size in sizes:
        repeats = 5 if size <= 100_000 else 3
        for kind in ("foreign checkpoint", "own checkpoint"):
            table = work / f"{kind.split()[0]}-{size}"
            for case, label in [
                ("open", "version, protocol, metadata"),
                ("start", "start of a transaction (also the version of one application)"),
                ("load", "number and bytes of live files"),
                ("count", "all files, as a table"),
                ("partition", "files of one date"),
                ("statistics", "files by statistics"),
            ]:
                compare(f"{size:,} files, {kind}: {label}", case, table, repeats=repeats)


def build(work: Path, sizes: list[int]) -> None:
    for size in sizes:
        foreign, own = work / f"foreign-{size}", work / f"own-{size}"
        tables.build_table(foreign, size)
        shutil.copytree(foreign, own)
        done = run_case("ours", "checkpoint", own)
        if "error" in done:
            raise SystemExit(f"checkpoint of {size} files: {done['error']}")
        for path in (own / "_delta_log").glob(f"{100:020d}*"):
            path.unlink()
    tables.build_json_table(work / "young", 1000)
    tables.build_json_table(work / "long", 1_000 if len(sizes) < 3 else 10_000)
    tables.build_table(work / "apps", 1000, app_ids=100_000)
    tables.build_table(work / f"v2-{sizes[-1]}", sizes[-1], v2=True)
    # An open that finds a checksum is what a table that we write has; the foreign tables have none.


def commits(work: Path, sizes: list[int]) -> None:
    head("Committing one add (durable: fsync on for ours; delta-rs does not fsync)")
    compare("log of 1,000 commits, no checkpoint: warm", "commit", work / "young", "50")
    compare("log of 1,000 commits, no checkpoint: cold handle", "commit_cold", work / "young", repeats=5)
    for size in sizes:
        repeats = 2 if size >= 1_000_000 else 3
        table = work / f"own-{size}"
        compare(f"{size:,} files: warm", "commit", table, "5" if size >= 1_000_000 else "50", repeats=repeats)
        compare(f"{size:,} files: cold handle", "commit_cold", table, repeats=repeats + 2)
        compare(
            f"{size:,} files: a process that starts, appends and exits (wall)", "append", table, repeats=repeats + 2, wall=True
        )
    compare("100,000 application ids: version of one", "app_id", work / "apps", repeats=5)


def json_log(work: Path) -> None:
    commits = len(content(work / "long")) - 1
    head(f"A log of {commits:,} JSON commits without a checkpoint")
    for case, label in [
        ("start", "start of a transaction"),
        ("load", "number and bytes of live files"),
        ("count", "all files, as a table"),
        ("partition", "files of one date"),
        ("statistics", "files by statistics"),
    ]:
        compare(label, case, work / "long")


def checkpoints(work: Path, sizes: list[int]) -> None:
    head("Opening a table and writing a checkpoint")
    for size in sizes:
        own = work / f"own-{size}"  # has a checkpoint of its latest version, after which there would be nothing to write
        tables.write_commit(own, max(int(p.name[:20]) for p in content(own) if p.name[:20].isdigit()) + 1, [tables.info()])
        compare(f"{size:,} files, from another engine's checkpoint (statistics as JSON)", "checkpoint", work / f"foreign-{size}")
        compare(f"{size:,} files, from our own checkpoint", "checkpoint", work / f"own-{size}")
    table = work / f"v2-{sizes[-1]}"
    ours = [run_and_restore("ours", "checkpoint", table) for _ in range(3)]
    report(f"{sizes[-1]:,} files, as V2 with sidecars (delta-rs writes none)", None, summarised(ours))


def previews(work: Path, sizes: list[int]) -> None:
    head("Writing a preview of one staged file of 1,000 rows (delta-rs has none: opening the table and writing its checkpoint)")
    for size in sizes:
        compare(f"{size:,} files: the table", "preview", work / f"foreign-{size}", "table")
        changes = [run_case("ours", "preview", work / f"foreign-{size}", "changes") for _ in range(3)]
        report(f"{size:,} files: the changes only", None, summarised(changes))


def run_and_restore(engine: str, case: str, table: Path) -> dict[str, Any]:
    before = content(table)
    result = run_case(engine, case, table)
    restore(table, before)
    return result


def delta_spark(work: Path, sizes: list[int]) -> None:
    """Delta Spark measures in one warm JVM, ours in fresh processes."""
    print("\n### Beside Delta Spark (one warm JVM; ours: fresh process, imports not counted)\n")
    print("| measure | Delta Spark ms | ours ms | ratio | Delta Spark MB | ours MB |\n|---|---|---|---|---|---|", flush=True)
    cases = ["start", "load", "count", "partition", "statistics", "checkpoint"]
    for table in [*(work / f"foreign-{size}" for size in sizes), work / "long"]:
        before = content(table)
        asked = cases if table.name != "long" else cases[:-1]
        repeats = "2" if table.name in ("long", "foreign-1000000") else "5"
        script = [sys.executable, str(HERE / "delta_spark.py"), str(table), repeats, *asked]
        done = subprocess.run(script, capture_output=True, text=True, timeout=1800)
        restore(table, before)
        if done.returncode:
            raise SystemExit(f"Delta Spark on {table.name}: {done.stderr[-2000:]}")
        theirs = parse(done.stdout)
        for case in asked:
            ours = summarised([run_and_restore("ours", case, table) for _ in range(3)])
            found = theirs["cases"][case]
            if case not in ("start", "checkpoint") and found["value"] != ours["value"]:
                raise SystemExit(f"{table.name}, {case}: Delta Spark finds {found['value']}, ours {ours['value']}")
            a, b = statistics.median(found["seconds"]), ours["median"]
            print(
                f"| {table.name.replace('-', ' ')}: {case} | {milliseconds(a)} | {milliseconds(b)} | {a / b:,.0f}x "
                f"| {theirs['peak_mb']:,.0f} | {ours['peak_mb']:,.0f} |",
                flush=True,
            )
            ROWS.append({"name": f"Delta Spark, {table.name}: {case}", "delta-spark": a, "ours": ours, "ratio": a / b})


def summarised(runs: list[dict[str, Any]]) -> dict[str, Any]:
    failed = [r["error"] for r in runs if "error" in r]
    if failed:
        raise SystemExit(failed[0])
    seconds = [s for r in runs for s in r["seconds"]]
    return {"median": statistics.median(seconds), "peak_mb": max(r["peak_mb"] for r in runs), "value": runs[0].get("value")}


def contention(work: Path, counts: list[int], *, interval: int | None = None) -> None:
    """Let processes append to one table.

    :param interval: of checkpoints, which the commits write then: each process comes cold to its first one.
    """
    print(f"\n### Processes appending to one table, 50 commits each{f', a checkpoint every {interval}' if interval else ''}\n")
    print(
        "| processes | delta-rs commits/s (failed) | ours commits/s (failed) | ratio | slowest commit: delta-rs ms | ours ms |\n|---|---|---|---|---|---|"
    )
    for count in counts:
        row: dict[str, Any] = {}
        for engine in ENGINES:
            table = work / f"contention-{engine}-{count}-{interval}"
            tables.build_json_table(table, 1, checkpoint_interval=interval)
            at = time.time() + 2 + count * (0.35 if engine == "ours" else 0.25)
            workers = [
                subprocess.Popen(command(engine, "contention", table, f"50:{at}"), stdout=subprocess.PIPE, text=True)
                for _ in range(count)
            ]
            results = [parse(w.communicate(timeout=900)[0]) for w in workers]
            done = sum(len(r["seconds"]) for r in results)
            took = max(r["end"] for r in results) - min(r["begin"] for r in results)
            versions = len(list((table / "_delta_log").glob("*[0-9].json")))
            if versions != done + 2:
                raise SystemExit(f"{engine}, {count} processes: {done} commits succeeded, the log holds {versions - 2}")
            row[engine] = {
                "rate": done / took,
                "failed": sum(r["failed"] for r in results),
                "slowest": max(s for r in results for s in r["seconds"]),
            }
        a, b = row["delta-rs"], row["ours"]
        print(
            f"| {count} | {a['rate']:,.0f} ({a['failed']}) | {b['rate']:,.0f} ({b['failed']}) | {b['rate'] / a['rate']:,.0f}x "
            f"| {milliseconds(a['slowest'])} | {milliseconds(b['slowest'])} |",
            flush=True,
        )
        ROWS.append({"name": f"contention {count}{f', checkpoints every {interval}' if interval else ''}", **row})


def winners(work: Path, size: int, counts: list[int], peer_limit: int) -> None:
    head(f"A commit against k winning commits of 10 adds in other partitions ({size:,} files)")
    for case, label in (("winners", "blind append"), ("winners_reading", "after reading one partition")):
        for k in counts:
            found: dict[str, dict[str, Any] | None] = dict.fromkeys(ENGINES)
            for engine in ENGINES:
                if engine == "delta-rs" and (k > peer_limit or case == "winners_reading"):
                    continue
                table = work / f"own-{size}"
                before = content(table)
                process = subprocess.Popen(
                    command(engine, case, table), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                process.stdout.readline()
                last = max(int(p.name[:20]) for p in (table / "_delta_log").glob("*[0-9].json"))
                for i in range(k):
                    tables.write_commit(
                        table, last + 1 + i, [tables.info(), *(tables.add(30_000_000 + 900 * (10 * i + j)) for j in range(10))]
                    )
                output, errors = process.communicate("go\n", timeout=1500)
                restore(table, before)
                if process.returncode:
                    found[engine] = {"error": errors.strip().splitlines()[-1]}
                else:
                    result = parse(output)
                    found[engine] = {"median": result["seconds"][0], "peak_mb": result["peak_mb"]}
            report(f"{label}, k = {k:,}", found["delta-rs"], found["ours"])


def operations(work: Path, *, quick: bool) -> None:
    """Both engines work in one session of Delta Spark, which wants a JVM of its own."""
    rows, repeats = ("1000000", "1") if quick else ("10000000", "3")
    subprocess.run([sys.executable, str(HERE / "operations.py"), str(work / "operations"), rows, repeats], check=True)


def writers(work: Path, *, quick: bool) -> None:
    """As there."""
    figures = work / "writers.json"
    script = [sys.executable, str(HERE / "writers.py"), "--json", str(figures)]
    subprocess.run([*script, *(["--quick"] if quick else [])], check=True)
    ROWS.extend(json.loads(figures.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="up to 100,000 files and 100 winners")
    parser.add_argument("--only", nargs="*", choices=PARTS)
    parser.add_argument("--json", type=Path, help="write the figures to this file, but for those of stage and operations")
    options = parser.parse_args()
    wanted = options.only or PARTS
    sizes = [1_000, 100_000] if options.quick else [1_000, 100_000, 1_000_000]
    # As an installer leaves them: an environment that writes no bytecode would compile them at each import.
    compileall.compile_dir(HERE.parent / "provider" / "airflow_delta", quiet=2)
    work = Path(tempfile.mkdtemp(prefix="delta-benchmarks-"))
    try:
        if set(wanted) - {
            "contention",
            "contention_s3",
            "conflict_check",
            "checks",
            "publications",
            "writers",
            "stage",
            "partitions",
            "rows",
            "operations",
            "scale",
        }:
            build(work, sizes)
        if "processes" in wanted:
            processes(work, sizes)
        if "loads" in wanted:
            loads(work, sizes)
        if "json" in wanted:
            json_log(work)
        if "checkpoints" in wanted:
            checkpoints(work, sizes)
        if "previews" in wanted:
            previews(work, sizes)
        if "spark" in wanted:
            delta_spark(work, sizes)
        if "commits" in wanted:
            commits(work, sizes)
        if "contention" in wanted:
            contention(work, [2, 4] if options.quick else [2, 4, 8, 16])
            contention(work, [8], interval=10)
        if "contention_s3" in wanted:
            ROWS.extend(contention_s3.main(["--processes", "8"] if options.quick else []))
        if "winners" in wanted:
            winners(work, 100_000, [1, 10, 100] if options.quick else [1, 10, 100, 1000], 10 if options.quick else 100)
        if "conflict_check" in wanted:
            ROWS.extend(conflict_check.main(["--quick"] if options.quick else []))
        if "checks" in wanted:
            ROWS.extend(checks.main(["--quick"] if options.quick else []))
        if "publications" in wanted:
            ROWS.extend(publications.main(["--laps", "3", "--commits", "500"] if options.quick else []))
        if "writers" in wanted:
            writers(work, quick=options.quick)
        if "stage" in wanted:
            stage.main(work)
        if "partitions" in wanted:
            folder = work / "many-partitions"
            folder.mkdir()
            ROWS.extend(partitions.main(folder, (100, 1_000) if options.quick else partitions.PARTITIONS))
        if "rows" in wanted:
            ROWS.extend(rows.main(work, rows.ROWS_READ // 10 if options.quick else rows.ROWS_READ))
        if "operations" in wanted:
            operations(work, quick=options.quick)
        if "scale" in wanted:
            import scale

            ROWS.extend(scale.main(["--sizes", "1000", "100000"] if options.quick else []))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(ROWS, indent=1))


if __name__ == "__main__":
    main()
