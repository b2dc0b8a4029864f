"""Our dataclasses mean what the standard library's mean: each class of a few kinds is made by both, and does the same."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import pkgutil
import subprocess
import sys
from dataclasses import KW_ONLY, FrozenInstanceError, field
from importlib import import_module

import pytest

import airflow_delta
from airflow_delta.light_dataclasses import dataclass


def classes(dataclass):
    @dataclass(frozen=True, slots=True)
    class Point:
        """Two numbers, and what is not compared."""

        x: int
        y: int = 2
        note: str = field(default="", compare=False, repr=False)

    @dataclass(frozen=True)
    class Partly:
        """One whose hash is of a part of what is compared."""

        x: int
        values: list[int] = field(default_factory=list, hash=False)

    @dataclass
    class Open:
        """A value that changes."""

        name: str
        items: list[int] = field(default_factory=list)
        seen: dict[str, int] = field(default_factory=dict, init=False)
        count: int = field(default=0, init=False)

        def __post_init__(self):
            self.count = len(self.items)

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Base:
        """A class that others go on from."""

        contract: int = 1
        key: str

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Derived(Base):
        """Another default, and one field more."""

        contract: int = 2
        more: tuple[int, ...] = ()

    @dataclass(frozen=True)
    class OwnMethods:
        """What the class defines stays."""

        x: int

        def __eq__(self, other):
            return isinstance(other, OwnMethods)

        def __repr__(self):
            return "own"

    @dataclass(eq=False)
    class ByIdentity:
        """Never the same as another."""

        x: int
        _: KW_ONLY
        y: int = 0

    return {cls.__name__: cls for cls in (Point, Partly, Open, Base, Derived, OwnMethods, ByIdentity)}


OURS, THEIRS = classes(dataclass), classes(dataclasses.dataclass)
CALLS = [
    *(
        ("Point", args, given)
        for args in ((), (1,), (1, 2), (1, 2, "n"), (1, 2, "n", 4))
        for given in ({}, {"x": 1}, {"note": "n"})
    ),
    ("Point", (1,), {"z": 3}),
    ("Open", ("a",), {}),
    ("Open", ("a", [1, 2]), {}),
    ("Open", ("a",), {"seen": {}}),
    ("Base", (), {"key": "k"}),
    ("Base", ("k",), {}),
    ("Base", (), {}),
    ("Derived", (), {"key": "k", "more": (1,)}),
    ("OwnMethods", (1,), {}),
    ("ByIdentity", (1,), {"y": 2}),
    ("ByIdentity", (1, 2), {}),
]


def done(call):
    """Return what a call returns, or the class of its error."""
    try:
        return call()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(("name", "args", "given"), CALLS, ids=str)
def test_calls_make_the_same(name, args, given):
    ours, theirs = (done(lambda cls=cls: cls(*args, **given)) for cls in (OURS[name], THEIRS[name]))
    if isinstance(theirs, type):
        assert ours is theirs
        return
    names = [each.name for each in dataclasses.fields(ours)]
    assert names == [each.name for each in dataclasses.fields(theirs)]
    assert [getattr(ours, each) for each in names] == [getattr(theirs, each) for each in names]
    assert repr(ours) == repr(theirs)
    assert (ours == copy.copy(ours)) is (theirs == copy.copy(theirs))
    assert done(lambda: dataclasses.asdict(ours)) == done(lambda: dataclasses.asdict(theirs))
    assert (done(lambda: hash(ours)) is TypeError) is (done(lambda: hash(theirs)) is TypeError)


@pytest.mark.parametrize("name", OURS)
def test_signatures_are_the_same(name):
    assert str(inspect.signature(OURS[name])) == str(inspect.signature(THEIRS[name])).replace(" -> None", "").replace(
        "<factory>", "<class 'list'>"
    )


@pytest.mark.parametrize("made", [OURS, THEIRS], ids=["ours", "theirs"])
def test_values(made):
    point = made["Point"](1)
    assert point == made["Point"](1, note="another") != made["Point"](2)
    assert hash(point) == hash(made["Point"](1, 2, "another"))
    assert len({point, made["Point"](1), made["Point"](3)}) == 2
    assert point != made["Base"](key="k")
    assert hash(made["Partly"](1, [1])) == hash(made["Partly"](1, []))
    assert made["Partly"](1, [1]) != made["Partly"](1, [])
    assert dataclasses.replace(point, y=5) == made["Point"](1, 5)
    assert made["Base"](key="k") != made["Derived"](key="k", contract=1)
    one, other = made["Open"]("a"), made["Open"]("a")
    assert one.items is not other.items
    assert one == other
    one.items.append(1)
    assert one != other
    with pytest.raises(TypeError):
        hash(one)
    assert made["ByIdentity"](1) != made["ByIdentity"](1)
    match point:
        case made_point if isinstance(made_point, made["Point"]):
            assert made_point.__match_args__ == ("x", "y", "note")


@pytest.mark.parametrize("made", [OURS, THEIRS], ids=["ours", "theirs"])
@pytest.mark.parametrize("name", ["x", "unknown"])
def test_frozen_values_stay(made, name):
    point = made["Point"](1)
    with pytest.raises((FrozenInstanceError, TypeError)):  # a class with slots has no place for unknown names
        setattr(point, name, 3)
    with pytest.raises((FrozenInstanceError, TypeError)):
        delattr(point, name)
    assert point.x == 1


@dataclass(frozen=True, slots=True)
class Kept:
    """Found by its name, as pickles need it."""

    x: int
    y: list[int] = field(default_factory=list)


def test_frozen_values_with_slots_can_be_copied():
    kept = Kept(1, [2])
    assert pickle.loads(pickle.dumps(kept)) == copy.copy(kept) == copy.deepcopy(kept) == kept
    assert copy.deepcopy(kept).y is not kept.y


def test_a_value_that_holds_itself_can_be_shown():
    value = OURS["Open"]("a")
    value.items.append(value)
    assert "..." in repr(value)


def test_only_what_is_made_often_is_a_dataclass_of_the_standard_library():
    found = []
    for module in pkgutil.walk_packages(airflow_delta.__path__, "airflow_delta."):
        if module.name.startswith(("airflow_delta.log.", "airflow_delta.transaction.", "airflow_delta.contract.")):
            own = [each for each in vars(import_module(module.name)).values() if getattr(each, "__module__", "") == module.name]
            found += [each for each in own if isinstance(each, type) and dataclasses.is_dataclass(each)]
    assert len(found) > 100
    assert [each.__name__ for each in found if "__signature__" not in vars(each)] == ["FileStatus"]


def test_making_a_class_compiles_nothing():
    code = """
import builtins
from airflow_delta.light_dataclasses import dataclass
compiled = []
real = builtins.exec
builtins.exec = lambda *given: (compiled.append(given[0]), real(*given))[1]
@dataclass(frozen=True, slots=True)
class Point:
    'Two numbers.'
    x: int
    y: int = 0
assert Point(1) == Point(1, 0)
print(len(compiled))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0\n"
