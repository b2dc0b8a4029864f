"""Dataclasses that are made in a tenth of the time.

For each class the standard library writes the text of its methods and compiles it, in every process that imports the class: up to
a millisecond for each, and a third of what an import of this package took. Here it only finds the fields, so that ``fields``,
``replace`` and ``asdict`` know these classes, and the methods are functions that know their class's fields.

Differences: values are compared as tuples, also since Python 3.13, where a NaN would not equal itself; and the standard library
does not know that a class is frozen, so all classes of a hierarchy are made here, or none. ``order``, ``unsafe_hash``,
``weakref_slot`` and ``InitVar`` do not exist.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from inspect import Parameter, Signature
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # type checkers need to know of no difference
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, kw_only=False, slots=False):  # noqa: A002 - its name there
        """Make a dataclass; the parameters mean what they mean for :func:`dataclasses.dataclass`."""

        def made(cls):
            own = {name for name, value in cls.__dict__.items() if name != "__hash__" or value is not None}
            cls = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)(cls)
            methods = {"__init__": _init(cls), "__signature__": _Signature()}
            if repr:
                methods["__repr__"] = _repr
            if eq:
                values = _values(cls)
                methods["__eq__"] = _eq(values)
                methods["__hash__"] = _hash(_values(cls, of_hash=True)) if frozen else None
            if frozen:
                methods["__setattr__"], methods["__delattr__"] = _refused(cls)
                if slots:  # copies and pickles would set the attributes, which is refused
                    methods.update(__getstate__=_getstate, __setstate__=_setstate)
            for name, method in methods.items():
                if name not in own:
                    setattr(cls, name, method)
            return cls

        return made if cls is None else made(cls)


_set = object.__setattr__


def _init(cls: Any) -> Callable[..., None]:
    given = [each for each in fields(cls) if each.init]
    names = frozenset(each.name for each in given)
    positional = tuple(each.name for each in given if not each.kw_only)
    defaults = {each.name: each.default for each in fields(cls) if each.default is not MISSING}
    factories = {each.name: each.default_factory for each in fields(cls) if each.default_factory is not MISSING}
    needed = names - defaults.keys() - factories.keys()
    goes_on = hasattr(cls, "__post_init__")

    def init(self: Any, /, *args: Any, **values: Any) -> None:
        if args:
            if len(args) > len(positional) or not values.keys().isdisjoint(positional[: len(args)]):
                raise TypeError(f"{cls.__name__}() takes {positional} by position, and each once: {len(args)}, and {[*values]}")
            values.update(zip(positional, args))  # noqa: B905 - fewer may be given by position
        if not values.keys() >= needed:
            raise TypeError(f"{cls.__name__}() lacks {', '.join(sorted(needed - values.keys()))}")
        if not values.keys() <= names:
            raise TypeError(f"{cls.__name__}() has no {', '.join(sorted(values.keys() - names))}")
        for name, value in {**defaults, **values}.items():
            _set(self, name, value)
        for name, factory in factories.items():
            if name not in values:
                _set(self, name, factory())
        if goes_on:
            self.__post_init__()

    return init


class _Signature:
    """The signature of a class, for ``help`` and ``inspect``, made when somebody asks."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        parameters = []
        for each in sorted((each for each in fields(owner) if each.init), key=lambda each: bool(each.kw_only)):
            default = each.default if each.default_factory is MISSING else each.default_factory
            kind = Parameter.KEYWORD_ONLY if each.kw_only else Parameter.POSITIONAL_OR_KEYWORD
            default = Parameter.empty if default is MISSING else default
            parameters.append(Parameter(each.name, kind, default=default, annotation=each.type))
        return Signature(parameters)


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _values(cls: Any, *, of_hash: bool = False) -> Callable[[Any], Any]:
    """Return the function that gives what of an object is compared, or what its hash is made of."""
    names = [each.name for each in fields(cls) if (each.hash if of_hash and each.hash is not None else each.compare)]
    return attrgetter(*names) if names else lambda _: ()


def _eq(values: Callable[[Any], Any]) -> Callable[[Any, object], bool]:
    def eq(self: Any, other: object) -> bool:
        return (values(self),) == (values(other),) if type(other) is type(self) else NotImplemented

    return eq


def _hash(values: Callable[[Any], Any]) -> Callable[[Any], int]:
    return lambda self: hash(values(self))


def _refused(cls: Any) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return ``__setattr__`` and ``__delattr__`` of a frozen class."""
    names = frozenset(each.name for each in fields(cls))

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        _set(self, name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    return set_attribute, delete_attribute


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        _set(self, each.name, value)
