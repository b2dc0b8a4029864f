"""Sphinx's settings. ``make docs`` builds into ``build/docs``; warnings are errors, and no page fetches anything."""

from __future__ import annotations

import os
import posixpath
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = "https://github.com/airflow-provider-delta/airflow-provider-delta/blob/main"

# The reference imports the Airflow-facing modules, and with them Airflow, which writes its configuration where this says.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-delta-docs-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
sys.path[:0] = [str(DOCS.parent / "provider"), str(DOCS / "_ext")]

project = PROJECT["name"]
version = release = PROJECT["version"]
copyright = "the authors, Apache License 2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "reference"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_ext"]
suppress_warnings = ["config.cache"]

myst_heading_anchors = 4

autodoc_mock_imports = ["pyspark", "py4j"]
autodoc_default_options = {"members": True, "member-order": "bysource", "show-inheritance": True}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "source_repository": REPOSITORY.removesuffix("/blob/main"),
    "source_branch": "main",
    "source_directory": "docs/",
}


# Pages that are read in a checkout, too, where a list of contents for Sphinx would be noise.
CONTENTS = {"operations/README": "\n\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"}


def link_to_repository(app: Sphinx, docname: str, source: list[str]) -> None:  # noqa: ARG001 - Sphinx's signature
    """Let links that lead out of this folder, right in a checkout, lead to the repository's pages; add lists of contents."""
    folder = posixpath.join("docs", posixpath.dirname(docname))

    def outside(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        return match[0] if path.startswith("docs/") else f"]({REPOSITORY}/{path}{match[2] or ''})"

    source[0] = re.sub(r"\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)", outside, source[0]) + CONTENTS.get(docname, "")


def setup(app: Sphinx) -> None:
    """Register what stands in this file."""
    app.connect("source-read", link_to_repository)
