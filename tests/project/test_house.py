"""What holds of the package as a house: its faces say what they have, and what may not grow is counted right."""

from __future__ import annotations

import ast
from importlib import import_module

import pytest

from project import house

FACES = sorted(house.PACKAGE.rglob("*.pyi"))


@pytest.mark.parametrize("types", FACES, ids=lambda path: path.parent.name)
def test_a_lazy_face_and_its_types_have_the_same_names(types):
    """The types of a face are in a file of their own, which nothing else compares with what it loads."""
    module = import_module(".".join(types.parent.relative_to(house.PACKAGE.parent).parts))
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
    found = house.measured(package)
    assert found["double_names"] == ["Twice: one.py, three.py", "run: one.py, two.py"]
    assert found["imports_in_functions_own"] == ["one.py"]
    assert found["imports_in_functions_others"] == ["one.py: json", "two.py: json"]
    assert found["modules_over_600_lines"] == ["three.py: 603 lines"]
