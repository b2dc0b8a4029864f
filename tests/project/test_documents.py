"""What documents show can be run: blocks of code by their kind, links with fragments, and the newcomer's path as written."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import java
import pytest
import yaml

from support.documents import Block, blocks_of
from support.environments import clean_environment
from support.places import files, some

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DECISIONS = [ROOT / "docs" / "decisions.md", ROOT / "tests" / "DECISIONS.md"]
DOCUMENTS = sorted(
    {
        README,
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "benchmarks" / "README.md",
        *DECISIONS,
        *files(ROOT / "docs", "**/*.md"),
    }
)
SHOWN = {
    "",
    "bash",
    "console",
    "json",
    "python",
    "sql",
    "sql+jinja",
    "text",
    "yaml",
}  # what is in none of the languages is output, or a sketch


BLOCKS = [block for path in DOCUMENTS for block in blocks_of(path)]


def blocks(*kinds: str, path: Path | None = None) -> list[Block]:
    return [block for block in BLOCKS if block.kind in kinds and (path is None or block.path == path)]


def is_dag(block: Block) -> bool:
    return block.kind == "python" and re.search(r"^@dag\b", block.text, re.MULTILINE) is not None


# -- what costs nothing -------------------------------------------------------------------------------------------------------


def test_the_kinds_of_blocks_are_known():
    """A block of another kind would be checked by nothing. Sphinx's own are in braces."""
    assert [f"{block}: {block.kind!r}" for block in BLOCKS if block.kind not in SHOWN and not block.kind.startswith("{")] == []
    assert len(blocks("python")) > 40


@pytest.mark.parametrize("block", some(blocks("python"), "blocks"), ids=str)
def test_python_is_python(block):
    compile(block.text, str(block), "exec", dont_inherit=True)


@pytest.mark.parametrize("block", some(blocks("json", "yaml"), "blocks"), ids=str)
def test_data_are_data(block):
    (json.loads if block.kind == "json" else yaml.safe_load)(block.text)


@pytest.mark.parametrize("block", some(blocks("bash"), "blocks"), ids=str)
def test_shell_is_shell(block):
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def names_imported(block: Block) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "airflow_delta":
            for alias in node.names:
                yield node.module, alias.name


@pytest.mark.parametrize("block", [block for block in blocks("python") if "airflow_delta" in block.text], ids=str)
def test_names_of_this_package_exist(block):
    for module, name in names_imported(block):
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


CONNECTIONS = [
    block
    for name in ("connections", "s3", "azure", "gcs")
    for block in some(blocks("json", path=ROOT / "docs" / "how-to" / f"{name}.md"), name)
]


@pytest.mark.parametrize("block", CONNECTIONS, ids=str)
def test_connections_are_ours(block, monkeypatch):
    """Every connection of the pages is taken by the hook, the store and, without a word, by Hadoop's settings."""
    from airflow_delta.hooks.delta import DeltaHook
    from airflow_delta.hooks.hadoop import hadoop_settings
    from airflow_delta.table.stage.spark_uri import spark_uri

    connection = json.loads(block.text)
    assert set(connection) <= {"conn_type", "host", "login", "password", "extra"}
    plain = {
        "AWS_DEFAULT": {"conn_type": "aws", "login": "a", "password": "b"},
        "WASB_DEFAULT": {"conn_type": "wasb", "login": "account", "password": "a2V5"},
        "GOOGLE_CLOUD_DEFAULT": {"conn_type": "google_cloud_platform", "extra": {"key_path": "/run/key.json"}},
    }
    for name, fields in {"LAKE": connection, **plain}.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(fields))
    monkeypatch.setenv("AIRFLOW__DELTA__CREDENTIAL_FILES", "/run/secrets/*.json")  # as the page says
    hook = DeltaHook("lake")
    uri = hook.table_uri("orders")
    options = hook.spark_options(uri)
    settings = hadoop_settings(spark_uri(uri, options), options)
    has_credentials = bool(connection.get("login")) or "SECRET" in block.text or "_conn_id" in block.text
    assert not has_credentials or settings


def test_extras_that_are_installed_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shown = {
        extra.strip()
        for path in DOCUMENTS
        for group in re.findall(r"airflow-provider-delta\[([^\]]+)\]", path.read_text(encoding="utf-8"))
        for extra in group.split(",")
    }
    assert "spark" in shown
    assert shown <= set(extras)


def slug(heading: str) -> str:
    """Return the fragment of a heading, as GitHub and the site make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@functools.cache
def fragments(path: Path) -> frozenset[str]:
    text = re.sub(r"^\s*```.*?^\s*```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return frozenset(slug(heading) for heading in re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    text = re.sub(r"^\s*```.*?^\s*```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]+`", "", text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, fragment = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        if not found.exists() or (fragment and found.suffix == ".md" and fragment not in fragments(found)):
            lost.append(target)
    assert lost == []


def decisions() -> dict[str, list[tuple[str, int, str]]]:
    """Return the entries of each page of decisions: room, number and text, in the order of the page."""
    entries: dict[str, list[tuple[str, int, str]]] = {}
    for path in DECISIONS:
        found = entries[path.name] = []
        for room in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            title, *rest = re.split(r"^### ", room, flags=re.MULTILINE)
            found += [(title.splitlines()[0], int(entry.partition(".")[0]), entry.partition("\n")[2]) for entry in rest]
    return entries


def test_decisions_have_one_number_each_and_stand_in_order():
    numbers = [number for page in decisions().values() for _, number, _ in page]
    assert len(numbers) > 200
    assert len(set(numbers)) == len(numbers)
    for page in decisions().values():
        rooms = {room: [number for name, number, _ in page if name == room] for room, _, _ in page}
        assert {room: sorted(found) for room, found in rooms.items()} == rooms


def test_each_decision_names_the_module_of_its_rule():
    """That the links lead somewhere is tested above; the text of each is the path that it leads to."""
    for page, entries in decisions().items():
        for _, number, text in entries:
            links = re.findall(r"\[`([^`]+)`\]\(\.\./([^)]+)\)", text)
            assert links, f"{page}: {number}"
            assert all(path.removeprefix("provider/") == shown for shown, path in links), f"{page}: {number}"


def test_the_map_leads_somewhere():
    """The paths that CONTRIBUTING names as places of rules and of what is new; ``<name>`` stands for any."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = text.partition("## Where things are")[2].partition("## Which test goes where")[0]
    paths = {path for path in re.findall(r"`([^`\s]+)`", part) if "/" in path or path.endswith((".py", ".yaml"))}
    assert len(paths) > 30
    roots = (ROOT, ROOT / "provider" / "airflow_delta")
    patterns = {path: re.sub("<[a-z]+>", "*", path).rstrip("/") for path in paths}
    assert [path for path, pattern in sorted(patterns.items()) if not any(any(root.glob(pattern)) for root in roots)] == []


def test_a_page_that_is_generated_says_how_to_read_it_as_a_file():
    """On a page of the repository its blocks are empty; the command prints what they would hold."""
    for path in files(ROOT / "docs" / "reference", "*.md"):
        text = path.read_text()
        if "```{modules}" in text or "```{exports}" in text:
            named = re.findall(r"^`python -m pydoc ([a-z_.]+)`\.$", text, re.MULTILINE)
            assert "`make docs` fills" in text, path
            assert len(named) == 1, path
            assert importlib.util.find_spec(named[0]) is not None, path


def test_every_page_is_in_the_contents():
    """The site refuses a page that no list of contents names; this tells it before the site is built."""
    named = {"index"}
    for page in files(ROOT / "docs", "**/*.md"):
        for block in blocks_of(page):
            if block.kind == "{toctree}":
                entries = [line for line in block.text.splitlines() if line and not line.startswith(":")]
                folder = page.parent.relative_to(ROOT / "docs")
                named |= {(folder / entry).as_posix() for entry in entries}
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in files(ROOT / "docs", "**/*.md")}
    assert {page for page in pages if not page.startswith("operations/")} <= named
    assert named <= pages


# -- Dags ---------------------------------------------------------------------------------------------------------------------


def with_java(home: Path, **more: str) -> dict[str, str]:
    """Return a clean environment with a Java for Spark."""
    found = {"JAVA_HOME": str(home_of_java)} if (home_of_java := java.java_home()) else {}
    return clean_environment(home, **found, **more)


@pytest.mark.airflow
def test_dags_can_be_imported(tmp_path):
    """Airflow finds in every Dag that a document shows what its author would: a Dag, and no error."""
    shown = [block for block in BLOCKS if is_dag(block)]
    assert len(shown) > 10
    names = {}
    (tmp_path / "dags").mkdir()
    for number, block in enumerate(shown):
        file = tmp_path / "dags" / f"dag_{number}.py"
        file.write_text(block.text)
        names[file.name] = str(block)
    question = """
import json, sys
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag
answer = {}
for path in sorted(Path(sys.argv[1]).glob("*.py")):  # one after the other: Dags of different documents may have one name
    bag = DagBag(dag_folder=str(path))
    answer[path.name] = [sorted(bag.dags), list(bag.import_errors.values())]
print("answer " + json.dumps(answer))
"""
    env = with_java(
        tmp_path, AIRFLOW_HOME=str(tmp_path / "airflow"), AIRFLOW__CORE__LOAD_EXAMPLES="False", PYTHONPATH=str(ROOT / "provider")
    )
    command = [sys.executable, "-W", "ignore", "-c", question, str(tmp_path / "dags")]
    output = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert output.returncode == 0, output.stderr[-3000:]
    (answer,) = [line for line in output.stdout.splitlines() if line.startswith("answer ")]
    for file, (dags, errors) in json.loads(answer.removeprefix("answer ")).items():
        assert errors == [], f"{names[file]}: {errors}"
        assert dags, f"{names[file]}: no Dag"


class Airflow:
    """An Airflow of its own whose Dags run one after the other: ``airflow dags test``, as the quick start has it."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        (folder / "dags").mkdir()
        self.env = with_java(
            folder,
            AIRFLOW_HOME=str(folder / "airflow"),
            AIRFLOW__CORE__DAGS_FOLDER=str(folder / "dags"),
            AIRFLOW__CORE__LOAD_EXAMPLES="False",
            PYTHONPATH=str(ROOT / "provider"),
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **variables,
        )
        self.run("db", "migrate")

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        return done.stdout


def localised(text: str, folder: Path) -> str:
    """Return a block with folders of this machine in the place of its buckets."""
    return text.replace("s3://lake/", f"{folder}/lake/").replace("s3a://raw/", f"{folder}/raw/")


@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.spark
def test_the_dags_of_the_readme_and_of_the_operations_run(tmp_path):
    """Word for word, but for the buckets: a month that is published once, and two operations that become one version."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable, write_deltalake

    (flights,) = [block for block in blocks("python", path=README) if is_dag(block)]
    operations = blocks("python", path=ROOT / "docs" / "operations" / "README.md")
    (orders,) = [block for block in operations if "DeltaMergeOperator" in block.text]
    for month in ("2012-12", "2013-01", "2013-02"):
        (tmp_path / "raw" / "flights" / month).mkdir(parents=True)
        pq.write_table(pa.table({"flight": [1, 2, 3]}), tmp_path / "raw" / "flights" / month / "part-0.parquet")
    (tmp_path / "raw" / "orders" / "2026-01-01").mkdir(parents=True)
    changes = pa.table({"id": [2, 4], "amount": [20, 40], "cancelled": [False, False]})
    pq.write_table(changes, tmp_path / "raw" / "orders" / "2026-01-01" / "part-0.parquet")
    before = pa.table({"id": [1, 2, 3], "amount": [1, 2, 3], "cancelled": [False, False, True]})
    write_deltalake(tmp_path / "lake" / "orders", before)

    airflow = Airflow(tmp_path, AIRFLOW_CONN_LAKE='{"conn_type": "delta"}')
    (tmp_path / "dags" / "flights.py").write_text(localised(flights.text, tmp_path))
    head = "from airflow.sdk import DAG\nfrom airflow_delta import delta_transaction\n\nwith DAG('orders', schedule=None):\n"
    (tmp_path / "dags" / "orders.py").write_text(head + textwrap.indent(localised(orders.text, tmp_path), "    "))

    airflow.run("dags", "test", "flights", "2013-02-01")
    table = DeltaTable(tmp_path / "lake" / "flights")
    assert (table.version(), table.to_pyarrow_table().num_rows) == (0, 3)
    airflow.run("dags", "test", "flights", "2013-02-01")  # the month is replaced by itself
    table = DeltaTable(tmp_path / "lake" / "flights")
    assert table.to_pyarrow_table().num_rows == 3

    airflow.run("dags", "test", "orders", "2026-01-01")
    table = DeltaTable(tmp_path / "lake" / "orders")
    assert table.version() == 1
    rows = table.to_pyarrow_table().sort_by("id").to_pylist()
    assert [(row["id"], row["amount"]) for row in rows] == [(1, 1), (2, 20), (4, 40)]
