"""``.ci/sections.py`` as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load():
    spec = importlib.util.spec_from_file_location("ci_sections", ROOT / ".ci" / "sections.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sections = load()
