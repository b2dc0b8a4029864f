"""What a commit asks of features: all of them, whatever the process has imported, or it does not commit."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from airflow_delta.table.commit import rules
from airflow_delta.table.commit.rules import CommitRule
from support.table import Table


@pytest.mark.parametrize("name", rules.MODULES)
def test_each_module_has_the_rules(name: str) -> None:
    for rule, asked in inspect.getmembers(CommitRule, inspect.isfunction):
        if not rule.startswith("_"):
            parameters = [*inspect.signature(asked).parameters][1:]
            assert [*inspect.signature(getattr(import_module(name), rule)).parameters] == parameters, rule


def test_a_process_that_only_commits_has_them() -> None:
    code = "import sys, airflow_delta.table.commit.publish\nfrom airflow_delta.table.commit.rules import commit_rules\n"
    code += "print([rule.__name__ for rule in commit_rules()])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr([*rules.MODULES])


def test_nothing_is_committed_if_they_cannot_be_asked(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = table.begin()
    staged = table.stage_rows(handle, [1, 2], "out")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, rules.MODULES[0], None)
        with pytest.raises(ImportError):
            table.publish(handle, staged)
    assert table.log().update().version == -1
    assert table.publish(handle, staged).version == 0
