"""The environments are what the other tests say of them."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from services.drivers import Driver, ServiceSpark
from services.install import SPARKS


def test_the_worker_has_no_spark(installed: None) -> None:
    """The provider for Spark brings pyspark-client, which has Spark's names and no ``spark-submit``."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    assert not (Path(found.origin).parent / "bin").exists()


@pytest.mark.parametrize("version", SPARKS)
def test_a_service_has_pyspark_alone(installed: None, version: str, tmp_path: Path) -> None:
    code = "from importlib.metadata import distributions; print(*sorted(found.name for found in distributions()))"
    done = subprocess.run([SPARKS[version] / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["py4j", "pyspark"]
    done = ServiceSpark(version, tmp_path).run(Driver("", parameters=["--version"]))
    assert f"version {version}" in done.stdout
