"""The wheel in an environment of its own, made by README's command: what is tested here is what is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from installed.installation import Installation
from support.building import build

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "versions"))  # debian_python.py, where the machine lacks the Python


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.installed)
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel of this tree."""
    return build(tmp_path_factory.mktemp("build"), "--wheel")


@pytest.fixture(scope="session")
def installation(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel, installed."""
    return Installation(tmp_path_factory.mktemp("installed"), wheels)
