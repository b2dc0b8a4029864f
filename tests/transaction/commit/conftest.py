from __future__ import annotations

import pytest

from support.table import Table


@pytest.fixture
def table(table: Table) -> Table:
    """A table without files, of one version."""
    table.create()
    return table
