"""What an object may hold, as the annotations of its fields say, and the check that it does.

A file can be rewritten by anybody, with a checksum that is right. What is read is therefore compared with what the
classes say of their fields: types, the shapes of arrays as jaxtyping names them, and which numbers are legal. An
annotation says nothing of numbers where they are to be finite; these say something else:

    variance: Positive[Float[Array, " dx"]]        outputs: Gaps[Float[Array, "t dy"]]

The names of the sizes of a system, `SHARED`, mean the same everywhere in an object; all others belong to the object in
whose class they stand. A size may be a number or a formula, `"2*k+dy"`.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar, Union

import numpy as np

from gpssm.errors import InvalidInput

NDArray = np.ndarray
T = TypeVar("T")

SHARED = frozenset({"dx", "dy", "dc", "d", "k", "m", "lags"})
"""States, outputs, inputs, arguments of f, states whose f is learned, inducing points, inputs that act on f."""

# d is what f is a function of: the state, and the last inputs.
_OF_F = "dx+lags*dc"


class Numbers(NamedTuple):
    """Which numbers an array or a float may hold."""

    expected: str
    legal: Callable[[NDArray], bool]


def _is_covariance(a: NDArray) -> bool:
    """Up to rounding: filters that ran long leave covariances that are a little off."""
    if not np.isfinite(a).all():
        return False
    diagonal = np.diagonal(a, axis1=-2, axis2=-1)
    slack = 1e-6 * np.max(np.abs(a), initial=0.0)
    return bool((diagonal >= -slack).all() and (np.abs(a - np.swapaxes(a, -1, -2)) <= slack).all())


def _is_cholesky(a: NDArray) -> bool:
    lower = np.isfinite(a).all() and not np.triu(a, 1).any()
    return bool(lower and (np.diagonal(a, axis1=-2, axis2=-1) >= 0).all())


FINITE = Numbers("finite numbers", lambda a: bool(np.isfinite(a).all()))
GAPS = Numbers("finite numbers, or NaN where one is missing", lambda a: not np.isinf(a).any())
ANY = Numbers("numbers", lambda a: True)
POSITIVE = Numbers("positive, finite numbers", lambda a: bool((np.isfinite(a) & (a > 0)).all()))
ABOVE_TWO = Numbers("finite numbers above two", lambda a: bool((np.isfinite(a) & (a > 2)).all()))
NON_NEGATIVE = Numbers("finite numbers that are not negative", lambda a: bool((np.isfinite(a) & (a >= 0)).all()))
COVARIANCE = Numbers("a covariance: symmetric and finite, no variance negative", _is_covariance)
CHOLESKY = Numbers("a Cholesky factor: lower triangular and finite, nothing negative on its diagonal", _is_cholesky)

# For annotations. On an object they hold for all that is in it and says nothing else.
Gaps = Annotated[T, GAPS]
Unbounded = Annotated[T, ANY]
Positive = Annotated[T, POSITIVE]
NonNegative = Annotated[T, NON_NEGATIVE]
Covariance = Annotated[T, COVARIANCE]
Cholesky = Annotated[T, CHOLESKY]


class Shape(NamedTuple):
    """Sizes of an array, of lists within lists, or (one size) a whole number: one of the alternatives."""

    alternatives: tuple[str, ...]
    or_empty: bool = False
    """Nothing at all is allowed, too: of size zero in every direction."""


class Stacked(NamedTuple):
    """Every array below has one more axis in front, of this size."""

    size: str


class Renamed(NamedTuple):
    """What the sizes of an object are called outside of it."""

    names: Mapping[str, str]


class Carried(Protocol):
    """Any object of this package: `Annotated[Any, Carried]`, as a protocol with members asks for those."""


def shape(*alternatives: str, or_empty: bool = False) -> Shape:
    """Sizes for an annotation that cannot name them itself."""
    return Shape(alternatives, or_empty)


def renamed(**names: str) -> Renamed:
    """`renamed(n="dx")`: what is called n in there is the number of states."""
    return Renamed(names)


class Parsed(NamedTuple):
    """An object that is not made yet: its class and its fields."""

    kind: type
    fields: dict[str, Any]


def field_names(kind: type) -> list[str]:
    """Names of the fields of a dataclass or a NamedTuple, in order."""
    if hasattr(kind, "_fields"):
        return list(kind._fields)
    return [field.name for field in dataclasses.fields(kind)]


def has_fields(kind: type) -> bool:
    """Whether it is a class that a file can hold."""
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def check(value: Any) -> None:
    """Raise `InvalidInput` if a field of parsed objects, at any depth, is not what its annotation says."""
    walk = _Walk()
    walk.visit(value, Any, _Place())
    walk.finish()


class _Place(NamedTuple):
    """Where in an object the walk is, and what holds there."""

    path: str = ""
    numbers: Numbers | None = None
    axes: tuple[str, ...] = ()
    """Sizes in front of every shape, by the names that the walk knows."""
    names: Mapping[str, str] = {}
    """What the walk calls the sizes that the class of this field names,"""
    inner: Mapping[str, str] = {}
    """and those that the class of the object in this field names."""

    def below(self, step: str) -> "_Place":
        return self._replace(path=f"{self.path}{step}".lstrip("."))

    def size(self, name: str) -> str:
        """A size that is not shared belongs to the object in which it stands."""
        return self.names.get(name) or (name if name in SHARED else f"{self.path.rpartition('.')[0]}:{name}")


class _Walk:
    """One way through an object; sizes are the same wherever they have the same name."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, str]] = {}
        self._formulas: list[tuple[str, dict[str, str], int, str]] = []

    def visit(self, value: Any, hint: Any, place: _Place) -> None:
        if typing.get_origin(hint) is Annotated:
            hint, *marks = typing.get_args(hint)
            self._marked(value, hint, marks, place)
        elif not _fits(value, hint):
            raise _refused(place, _described(value), _named(hint))
        elif len(members := _alternatives(hint)) > 1:
            self.visit(value, next(member for member in members if _fits(value, member)), place)
        elif isinstance(value, NDArray):
            self._array(value, hint, place)
        elif isinstance(value, Parsed):
            self._object(value, place)
        elif isinstance(value, dict):
            inner = (typing.get_args(hint) or (Any, Any))[1]
            for key, item in value.items():
                self.visit(item, inner, place.below(f"[{key!r}]"))
        elif isinstance(value, (tuple, list)):
            for i, (item, inner) in enumerate(_items(value, hint, place)):
                self.visit(item, inner, place.below(f"[{i}]"))
        else:
            self._scalar(value, place)

    def finish(self) -> None:
        """Formulas, now that all sizes in them are known."""
        self._sizes.setdefault("lags", (1, ""))
        if "d" in self._sizes:
            self._formulas.append((_OF_F, {name: name for name in _names_in(_OF_F)}, *self._sizes["d"]))
        for formula, names, size, path in self._formulas:
            known = {own: self._sizes[name][0] for own, name in names.items() if name in self._sizes}
            if names.keys() <= known.keys() and (expected := _value(formula, known)) != size:
                raise InvalidInput(f"{path}: {size} row(s) or column(s); expected {formula} = {expected}.")

    def _marked(self, value: Any, hint: Any, marks: list[Any], place: _Place) -> None:
        for mark in marks:
            if isinstance(mark, Numbers):
                place = place._replace(numbers=mark)
            elif isinstance(mark, Stacked):
                place = place._replace(axes=(*place.axes, place.size(mark.size)))
            elif isinstance(mark, Renamed):
                place = place._replace(inner={own: place.size(name) for own, name in mark.names.items()})
            elif _is_type(mark) and not _fits(value, mark):
                raise _refused(place, _described(value), _named(mark))
        self.visit(value, hint, place)
        for mark in marks:
            if isinstance(mark, Shape) and value is not None:
                self._shape(_sizes_of(value), mark, place if isinstance(value, NDArray) else place._replace(axes=()))

    def _object(self, value: Parsed, place: _Place) -> None:
        hints, needed = _hints(value.kind), _needed(value.kind)
        wrong = value.fields.keys() - set(field_names(value.kind)) or needed - value.fields.keys()
        if wrong:
            expected = ", ".join(field_names(value.kind))
            raise _refused(place, f"a {value.kind.__name__} with {', '.join(value.fields)}", expected)
        for name, item in value.fields.items():
            self.visit(item, hints[name], place.below(f".{name}")._replace(names=place.inner, inner={}))

    def _array(self, value: NDArray, hint: Any, place: _Place) -> None:
        if value.dtype.kind not in "fiub":
            raise _refused(place, f"an array of {value.dtype}", "an array of numbers")
        numbers = place.numbers or FINITE
        sizes = getattr(hint, "dim_str", None)
        if sizes is not None:
            if value.dtype.name not in hint.dtypes:
                raise _refused(place, f"an array of {value.dtype}", _named(hint))
            self._shape(value.shape, shape(sizes), place)
        if numbers in (COVARIANCE, CHOLESKY) and (value.ndim < 2 or value.shape[-1] != value.shape[-2]):
            raise _refused(place, f"shape {value.shape}", numbers.expected)
        if not numbers.legal(value):
            raise _refused(place, "other numbers", numbers.expected)

    def _scalar(self, value: Any, place: _Place) -> None:
        """A number, a text, nothing, or a function."""
        numbers = place.numbers or FINITE
        checked = isinstance(value, float) or (isinstance(value, int) and place.numbers is not None)
        if checked and not numbers.legal(np.asarray(value, float)):
            raise _refused(place, repr(value), numbers.expected)
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise _refused(place, "a number of more than 64 bits", "a smaller one")

    def _shape(self, sizes: tuple[int, ...], expected: Shape, place: _Place) -> None:
        if expected.or_empty and not any(sizes):
            return
        for alternative in expected.alternatives:
            # A variable number of axes ("*t") is that of a batch; in an object there is one of everything.
            names = [name for name in alternative.split() if not name.startswith("*")]
            if "..." in names:
                return
            if len(names) + len(place.axes) == len(sizes):
                for name, size in zip(place.axes, sizes, strict=False):
                    self._bind(name, size, sizes, place)
                for name, size in zip(names, sizes[len(place.axes) :], strict=True):
                    if name.isidentifier():
                        self._bind(place.size(name), size, sizes, place)
                    else:
                        parts = {part: place.size(part) for part in _names_in(name)}
                        self._formulas.append((name, parts, size, place.path))
                return
        wanted = " or ".join(f"({', '.join([*place.axes, *a.split()])})" for a in expected.alternatives)
        raise _refused(place, f"shape {sizes}", wanted)

    def _bind(self, name: str, size: int, sizes: tuple[int, ...], place: _Place) -> None:
        known, where = self._sizes.setdefault(name, (size, place.path))
        if known != size:
            short = name.rpartition(":")[2]
            raise _refused(place, f"shape {sizes}", f"{short} = {known}, as in {where}, in place of {size}")


def _refused(place: _Place, found: str, expected: str) -> InvalidInput:
    return InvalidInput(f"{place.path or 'value'}: {found}; expected {expected}.")


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Annotations, with what a learnable parameter is constrained to."""
    hints = typing.get_type_hints(kind, include_extras=True)
    constraints = {"positive": POSITIVE, "above two": ABOVE_TWO, "cholesky": CHOLESKY}
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        constraint = constraints.get(field.metadata.get("gpssm_constraint", ""))
        if constraint is not None:
            hints[field.name] = Annotated[hints[field.name], constraint]
    return hints


@cache
def _needed(kind: type) -> frozenset[str]:
    """Fields without a default."""
    if hasattr(kind, "_fields"):
        return frozenset(kind._fields) - kind._field_defaults.keys()  # type: ignore[attr-defined]
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return frozenset(f.name for f in fields if f.default is missing and f.default_factory is missing)


def _is_type(mark: Any) -> bool:
    """Whether a mark is one more type that a value must be of."""
    return any(typing.get_origin(kind) is Literal or hasattr(kind, "_is_protocol") for kind in _alternatives(mark))


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of which a value may be."""
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _kind(value: Any) -> type:
    return value.kind if isinstance(value, Parsed) else type(value)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value can be what is annotated, without a look inside."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _fits(value, typing.get_args(hint)[0])
    if len(members := _alternatives(hint)) > 1:
        return any(_fits(value, member) for member in members)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if hint is None or hint is types.NoneType:
        return value is None
    if origin is Literal:
        return any(value is item or (type(value) is type(item) and value == item) for item in typing.get_args(hint))
    if origin in (tuple, list, dict):
        return isinstance(value, origin) and not isinstance(value, Parsed)
    if origin is not None:  # a function
        return callable(value) and not isinstance(value, Parsed)
    if hasattr(hint, "dim_str") or getattr(hint, "__name__", "").endswith(("ndarray", "Array")):
        return isinstance(value, NDArray)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if getattr(hint, "_is_protocol", False):
        wanted = {name for name in vars(hint) if not name.startswith("_")}
        return isinstance(value, Parsed) and wanted <= {*dir(value.kind), *field_names(value.kind)}
    return issubclass(_kind(value), hint)


def _items(value: tuple[Any, ...] | list[Any], hint: Any, place: _Place) -> Iterator[tuple[Any, Any]]:
    inner = typing.get_args(hint) or (Any, ...)
    if isinstance(value, list) or inner[1:] == (...,):
        inner = (inner[0],) * len(value)
    if len(inner) != len(value):
        raise _refused(place, f"{len(value)} entries", str(len(inner)))
    return zip(value, inner, strict=True)


def _sizes_of(value: Any) -> tuple[int, ...]:
    """Shape of an array or of lists of equally long lists; the number itself of a whole number."""
    if isinstance(value, int):
        return (value,)
    if isinstance(value, (tuple, list)):
        inner = {_sizes_of(item) for item in value if isinstance(item, (tuple, list))}
        return (len(value), *(inner.pop() if len(inner) == 1 else ()))
    return np.shape(value)


def _value(formula: str, sizes: dict[str, int]) -> int:
    """The value of a formula in an annotation of this package."""
    return int(eval(compile(formula, "<annotation>", "eval"), {"__builtins__": {}}, sizes))


@cache
def _names_in(formula: str) -> tuple[str, ...]:
    return compile(formula, "<annotation>", "eval").co_names


def _described(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value) if len(repr(value)) < 60 else f"{repr(value)[:60]}..."
    return f"a {_kind(value).__name__}"


def _named(hint: Any) -> str:
    members = typing.get_args(hint)
    if typing.get_origin(hint) in (Union, types.UnionType, Literal):
        return " or ".join(_named(member) for member in members)
    if typing.get_origin(hint) is Annotated:
        return _named(members[0])
    if hasattr(hint, "dim_str"):
        return f"an array ({', '.join(hint.dim_str.split())}) of {hint.__name__.partition('[')[0].lower()} numbers"
    return "None" if hint is types.NoneType else getattr(hint, "__name__", repr(hint))
