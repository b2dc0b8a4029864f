"""Tables whose Spark work is done by jobs, which a session of another process runs one after the other."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.table.stage.write.job_runs import read_report
from airflow_delta.tasks.job.plan import put_job
from support.job_spark import QUICK, job_environment, job_python
from support.table import Table

PROGRAMS = Path(__file__).parent / "job_programs"

CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "OFF",
}


class JobSession:
    """A session in a process of its own, whose Python has PySpark and nothing of ours.

    :ivar versions: of Spark, Python and Java there.
    """

    def __init__(self, directory: Path) -> None:
        conf = directory / "conf"
        conf.mkdir(parents=True)
        lines = [f"{name} {value}\n" for name, value in {**CONFIGURATION, "spark.local.dir": str(directory / "local")}.items()]
        (conf / "spark-defaults.conf").write_text("".join(lines))
        with (directory / "stderr").open("w") as errors:
            self._process = subprocess.Popen(
                [job_python(), PROGRAMS / "session.py"],
                env={**job_environment(directory), "SPARK_CONF_DIR": str(conf)},
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._runs = 0
        self.versions = self._said("job: Spark ").removeprefix("job: ")

    def run(self, program: str | Path, *arguments: str) -> str:
        """Run a program as ``__main__``, and return what it printed.

        :raises RuntimeError: if it failed, with its output.
        """
        assert self._process.stdin is not None
        self._runs += 1  # the answer to an earlier one, whose test was ended, is passed over
        self._process.stdin.write(json.dumps([str(self._runs), str(program), *arguments]) + "\n")
        self._process.stdin.flush()
        return self._said(f"job {self._runs}: done")

    def _said(self, end: str) -> str:
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if line.startswith(f"job {self._runs}: failed"):
                break
            if line.startswith(end):
                return "".join(lines).strip()
        raise RuntimeError("".join(lines) or "the session ended")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


class JobTable(Table):
    """A table whose Spark work is done by jobs: requests, programs and reports lie beside the table's files.

    :param jobs: runs them.
    """

    def __init__(self, path: Path, jobs: JobSession) -> None:
        super().__init__(path)
        self.jobs = jobs

    def write_rows(self, request: StageRequest, rows: Any) -> StageReport:
        """Have a program of an author's write the rows of SQL text."""
        return self._report_of(request, "--sql", rows, "--write")

    def run_work(self, request: StageRequest, source: Any) -> StageReport:
        """Have the package's own program do it, or with rows of SQL text as a source one of an author's."""
        return self._report_of(request, *(("--sql", source) if source is not None else ()))

    def _report_of(self, request: StageRequest, *more: str) -> StageReport:
        put = put_job(self.log(), request)
        try:
            self.jobs.run(PROGRAMS / "rows.py" if more else put["application"], *put["arguments"], *more)
        except RuntimeError:
            read_report(self.log(), request)  # raises what the job itself reports
            raise
        return read_report(self.log(), request)
