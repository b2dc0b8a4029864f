"""The directives of the reference: what there is to list is read from the package, so that a new module is not forgotten."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class Modules(SphinxDirective):
    """``modules``: every public module of the packages that the lines of its content name, or the module itself."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the sections, one for each module."""
        found: list[nodes.Node] = []
        for name in filter(None, (line.strip() for line in self.content)):
            module = importlib.import_module(name)
            paths = getattr(module, "__path__", None)
            names = [name] if paths is None else [f"{name}.{entry.name}" for entry in pkgutil.iter_modules(paths)]
            for each in names:
                if not each.rpartition(".")[2].startswith("_"):
                    found += self.section(each, [f".. automodule:: {each}", "   :members:"])
        return found

    def section(self, title: str, lines: list[str]) -> list[nodes.Node]:
        """Return a section with what ``lines`` of reStructuredText say."""
        section = nodes.section(ids=[nodes.make_id(title)], names=[title])
        section += nodes.title(title, "", nodes.literal(title, title))
        section += self.parse(lines)
        return [section]

    def parse(self, lines: list[str]) -> list[nodes.Node]:
        """Return what reStructuredText says, wherever the directive stands: the reference is written in Markdown."""
        inner = nodes.Element()
        content = StringList(["```{eval-rst}", *lines, "```"], source=self.env.docname)
        self.state.nested_parse(content, self.content_offset, inner)
        return inner.children


class Exports(Modules):
    """``exports``: what the ``__all__`` of the packages that its content names holds, each by its own docstring."""

    def run(self) -> list[nodes.Node]:
        """Return the sections, one for each package."""
        found: list[nodes.Node] = []
        for name in filter(None, (line.strip() for line in self.content)):
            package = importlib.import_module(name)
            lines = []
            for export in package.__all__:
                value = getattr(package, export)
                if not callable(value):
                    lines += [f".. py:data:: {name}.{export}", f"   :value: {value!r}", ""]
                    continue
                module = value.__module__ if inspect.isroutine(value) or isinstance(value, type) else name
                lines += [f".. {directive_of(value)}:: {module}.{export}", ""]
            found += self.section(name, lines)
        return found


def directive_of(value: Any) -> str:
    """Return autodoc's directive for a class, an exception or a function."""
    if isinstance(value, type):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("modules", Modules)
    app.add_directive("exports", Exports)
    return {"parallel_read_safe": True}
