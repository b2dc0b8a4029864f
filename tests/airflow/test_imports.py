"""A Dag file is parsed every few seconds: importing this provider must not import what only a running task needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.places import files

ROOT = Path(__file__).parents[2]
HEAVY = ("pyspark", "py4j", "pyarrow", "sqlglot", "obstore", "pandas", "numpy")
MODULES = (
    "airflow_delta",
    "airflow_delta.assets.delta",
    "airflow_delta.cli.commands",
    "airflow_delta.cli.definition",
    *(
        f"airflow_delta.decorators.{path.stem}"
        for path in files(ROOT / "provider/airflow_delta/decorators", "*.py")
        if path.stem != "__init__"
    ),
    "airflow_delta.get_provider_info",
    "airflow_delta.hooks.delta",
    "airflow_delta.links.delta",
    "airflow_delta.log",
    "airflow_delta.notifications.delta",
    "airflow_delta.tasks.observability",
    "airflow_delta.tasks.openlineage.lineage",
    "airflow_delta.contract.location",
    *(f"airflow_delta.operators.{path.stem}" for path in files(ROOT / "provider/airflow_delta/operators", "*.py")),
    "airflow_delta.plugins.delta_tables",
    "airflow_delta.retry_policies",
    "airflow_delta.sensors.delta",
    "airflow_delta.contract.payloads",
    "airflow_delta.task_groups",
    "airflow_delta.transaction",
    "airflow_delta.triggers.delta",
)
EXAMPLES = sorted(
    str(path.relative_to(ROOT / "dags_examples"))
    for folder in ("", "operations")
    for path in files(ROOT / "dags_examples" / folder, "*.py")
)


def heavy_modules_after(code: str) -> list[str]:
    code = f"{code}\nimport sys\nprint([m for m in {HEAVY} if m in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "provider"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_modules_import_nothing_heavy():
    assert heavy_modules_after("import importlib\n" + "\n".join(f"importlib.import_module({m!r})" for m in MODULES)) == "[]"


def test_examples_import_nothing_heavy():
    assert EXAMPLES
    paths = [str(ROOT / "dags_examples" / name) for name in EXAMPLES]
    assert heavy_modules_after(f"import runpy\nfor path in {paths}: runpy.run_path(path)") == "[]"


def test_a_dag_file_with_a_wrong_level_is_refused_by_light_code():
    code = """
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.transaction import DeltaCommitOperator
DeltaCommitOperator(task_id="right", transaction={}, staged=[], conflict_detection="statistics")
try:
    DeltaCommitOperator(task_id="wrong", transaction={}, staged=[], conflict_detection="statistic")
except DeltaIllegalArgumentException as error:
    print(error)
"""
    assert heavy_modules_after(code) == "[]"


def test_the_top_level_does_not_import_airflow():
    code = "import airflow_delta, sys\nassert 'airflow' not in sys.modules\nfrom airflow_delta import delta_transaction"
    assert heavy_modules_after(code) == "[]"


def test_unknown_names_of_the_top_level():
    import airflow_delta

    with pytest.raises(AttributeError, match="no_such_name"):
        airflow_delta.no_such_name  # noqa: B018


@pytest.mark.airflow
def test_examples_parse_without_errors(dag_bags):
    examples, tests = dag_bags
    assert examples.import_errors == tests.import_errors == {}
    assert len({dag.fileloc for dag in examples.dags.values()}) == len(EXAMPLES)
    assert all(dag.doc_md for dag in examples.dags.values())


def test_the_example_of_the_readme_is_short():
    lines = (ROOT / "dags_examples" / "delta_quick_start.py").read_text().split('"""')[-1].splitlines()
    assert len([line for line in lines if line.strip()]) < 25
