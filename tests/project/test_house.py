"""What holds of the package as a house: its faces say what they have, and what may not grow is counted right."""

from __future__ import annotations

import ast
from importlib import import_module

import pytest

from project import house, light, way
from support.places import files

FACES = files(house.PACKAGE, "**/*.pyi")


@pytest.mark.parametrize("types", FACES, ids=lambda path: "/".join(path.parts[-2:]))
def test_a_lazy_face_has_the_names_of_its_stub(types):
    path = types.parent if types.stem == "__init__" else types.with_suffix("")
    module = import_module(".".join(path.relative_to(house.PACKAGE.parent).parts))
    typed = {}
    for node in ast.parse(types.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            typed.update({alias.asname: (node.module, alias.name) for alias in node.names})
    assert sorted(typed) == sorted(module.__all__)
    for name, (home, taken) in typed.items():
        assert getattr(module, name) is getattr(import_module(home), taken), name


def test_what_may_not_grow_is_counted(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "one.py").write_text("def run():\n    import json\n    from package.two import run\n\nclass Twice: ...\n")
    (package / "two.py").write_text("def run():\n    def inner():\n        import json\n\ndef _own(): ...\n")
    (package / "three.py").write_text("class Twice: ...\n\ndef _own(): ...\n" + "x = 1\n" * house.LARGE)
    (package / "four.py").write_text(
        "raise OneError('', table=log.uri)\nraise log.error(OneError, '')\nraise OneError('', table=table)\n"
        "raise OneException('', table=self.handle.table,\n  version=1)\nraise OneError('', table=log.uri, winning_version=1)\n"
    )
    (package / "contract").mkdir()
    (package / "contract" / "tags.py").write_text('DAG_ID_TAG = "airflow.dagId"\n')
    (package / "five.py").write_text(
        '"""Reads airflow.dagId."""\nfrom package import four as others\nfrom package.one import run\ntag = "airflow.dagId"\n'
        "if TYPE_CHECKING:\n    from package.one import run, stop\n"
    )
    (package / "log").mkdir()
    (package / "log" / "cleanup.py").write_text(
        '"""What a publication needs."""\nfrom package.catalog import client as asked\nimport json as source_positions\n'
        "def published(new_rows, *, CATALOG_MANAGED): return log.catalog(copy_into='publish')\n"
    )
    found = house.measured(package)
    named = [f"log/cleanup.py:{line}" for line in ("1: publication", "2: package.catalog", "3: source_positions", "4: new_rows")]
    assert sorted(found["features_in_core"]) == sorted([*named, "log/cleanup.py:4: catalog", "log/cleanup.py:4: copy_into"])
    assert found["names_spelled_again"] == ["five.py:4: airflow.dagId"]
    assert found["foreign_names"] == ["five.py: four as others"]
    assert found["imported_twice"] == ["five.py: run"]
    assert found["double_names"] == ["Twice: one.py, three.py", "run: one.py, two.py"]
    assert found["imports_in_functions_own"] == ["one.py"]
    assert found["imports_in_functions_others"] == ["one.py: json", "two.py: json"]
    assert found["errors_by_hand"] == ["four.py:1", "four.py:4"]
    assert found["modules_over_600_lines"] == ["three.py: 603 lines"]


def test_modules_of_tests_that_others_import_are_found(tmp_path):
    for name, text in {
        "log/test_one.py": "from support.tables import log_path\n",
        "log/test_two.py": "from .test_one import FIRST\nfrom . import test_one\n",
        "support/tables.py": "def rows():\n    from log.test_one import FIRST\n",
        "test_three.py": "import log.test_two\nfrom log import test_one, tables\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(house.imported_tests(tmp_path)) == [
        "log/test_two.py:1: log.test_one",
        "log/test_two.py:2: log.test_one",
        "support/tables.py:2: log.test_one",
        "test_three.py:1: log.test_two",
        "test_three.py:2: log.test_one",
    ]


def test_what_must_stay_light_is_found_with_its_way(tmp_path):
    package = tmp_path / "package"
    for name, text in {
        "operators/write.py": "from package import engine\nif TYPE_CHECKING:\n    import pyarrow\n",
        "operators/read.py": "from package.table import read\n",
        "engine.py": "__getattr__, __all__ = door(__name__)\n",
        "engine.pyi": "from package.table import read as read\n",
        "log/delta_log.py": "try:\n    from package.log.files import rows\nexcept ImportError:\n    pass\n",
        "log/files.py": "import pyarrow.parquet as pq\n",
        "table/__init__.py": "",
        "table/read.py": "def rows():\n    import pyarrow\n",
    }.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert light.faults(package) == [
        "must stay light: package.log.delta_log -> package.log.files -> pyarrow",
        "is imported with every Dag file: package.operators.read -> package.table.read",
    ]


def test_what_must_stay_light_does():
    assert light.faults() == []


def test_the_way_of_a_run_does_not_grow():
    """Files that are entered are no bar: each cut by idea adds one, and what a reader follows is the subject."""
    found = way.walk()
    most = {"start": 27, "plan": 19, "collect": 13, "commit": 39, "read": 25}
    assert {step: len(stays) for step, stays in found.stays.items() if len(stays) > most[step]} == {}
    handed = set().union(*found.handed.values())
    assert len({file.rpartition("/")[0] for file in handed}) <= 9
    assert len(handed) <= 29
