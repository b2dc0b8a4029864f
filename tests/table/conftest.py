from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from table.flow import Table


@pytest.fixture
def table(tmp_path: Path, spark: Any) -> Table:
    return Table(tmp_path / "table", spark)
