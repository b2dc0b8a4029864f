"""The page of each store, as a newcomer follows it: the quick start's Dag, with another connection."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stores.airflow_home import ROOT
from stores.tables import rows_on_store
from support.documents import section, shell

DOCS = ROOT / "docs"
CONNECTION = re.compile(r"(?<=export AIRFLOW_CONN_LAKE=').*(?=')")
PAGES = ["s3", "azure", "gcs"]


@pytest.mark.parametrize("page", PAGES)
def test_the_quick_start_on_another_store(page: str, stores: Any, tmp_path: Path) -> None:
    """Word for word, but for what says where the store is. The environment is this one, which is installed already."""
    store = stores[page]
    root = store.root(store.container())
    quick_start = DOCS / "quick-start.md"
    script = shell(
        [
            *section(quick_start, "Set up Airflow"),
            *section(quick_start, "The first Dag"),
            *section(DOCS / "how-to" / f"{page}.md", "The quick start's Dag there"),
        ]
    )
    ours = store.connection(root)
    written = json.loads(CONNECTION.search(script)[0])  # type: ignore[index]
    assert written["extra"].pop("spark_packages") == "auto"
    spark = {f"spark.hadoop.{name}": value for name, value in store.emulator.items()}
    if "spark.jars" in store.spark:  # the connector that "auto" names cannot reach an emulator
        spark |= store.spark
    else:
        ours["extra"] = {**ours["extra"], "spark_packages": "auto"}
    script = CONNECTION.sub(lambda _: json.dumps({**written, **ours}), script)
    strange = ("AIRFLOW", "PYTHON", "VIRTUAL_ENV", "SPARK", "PYSPARK", "AWS", "AZURE", "GOOGLE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(strange)} | {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "TERM": "dumb",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]", "extra": spark}),
    }
    process = subprocess.Popen(
        ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
        env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(script, timeout=900)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output[-6000:]
    rows = rows_on_store(f"{root}/orders", store.options)
    assert [row[0] for row in rows] == list(range(1000))
    assert re.search(r"^0 +.* WRITE .*$", output, re.M), output[-3000:]  # of the history
