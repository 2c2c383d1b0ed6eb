"""What fields of tensorclasses become, by the options of their classes, is what it is in tensordict."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import InitVar, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pytest
import torch

import corral
from corral import NonTensorData, TensorClass, TensorDict, from_dataclass, is_tensorclass, tensorclass
from tests.tensordict.comparing import assert_same, outcome, tensordict

T = TypeVar("T")


def make(library: Any, hints: dict[str, Any], decorate: bool = False, **options: Any) -> Any:
    """Return a class of the same fields in corral or in tensordict."""
    body: dict[str, Any] = {"__annotations__": {}, "__module__": __name__}
    for name, hint in hints.items():
        body["__annotations__"][name] = hint[0] if isinstance(hint, tuple) else hint
        if isinstance(hint, tuple):
            body[name] = hint[1]
    if decorate:
        return library.tensorclass(**options)(type("Made", (), body))
    return type(library.TensorClass)("Made", (library.TensorClass,), body, **options)


def field_of(library: Any, hint: Any, value: Any, batch: Any = (), **options: Any) -> Any:
    cls = make(library, {"x": hint}, **options)
    found = cls(x=value, batch_size=batch).x
    return torch.as_tensor(found) if isinstance(found, np.ndarray) else found


VALUES: dict[str, Any] = {
    "int": 3,
    "float": 2.5,
    "bool": True,
    "str": "three",
    "None": None,
    "tensor": torch.arange(2),
    "scalar": torch.ones(()),
    "list": [1, 2],
    "dict": {"a": 1},
    "object": frozenset({1}),
    "NumPy": np.arange(2),
}
HINTS: dict[str, Any] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "Any": Any,
    "tensor": torch.Tensor,
    "optional": int | None,
    "tensor or None": torch.Tensor | None,
}


@pytest.mark.parametrize("option", ["", "autocast", "nocast", "tensor_only"])
@pytest.mark.parametrize("hint", HINTS)
@pytest.mark.parametrize("value", VALUES)
def test_same(option: str, hint: str, value: str) -> None:
    if option == "nocast" and value == "NumPy":
        pytest.skip("NumPy's arrays are arrays here, which nothing is cast to")
    if option == "tensor_only" and value in ("str", "dict", "object"):
        pytest.skip("tensordict takes what is no array, here it is an error")
    options = {option: True} if option else {}
    for batch in ((), (2,)):
        mine, error = outcome(lambda lib: field_of(lib, HINTS[hint], VALUES[value], batch, **options), corral)  # noqa: B023
        theirs, their_error = outcome(
            lambda lib: field_of(lib, HINTS[hint], VALUES[value], batch, **options),  # noqa: B023
            tensordict,
        )
        assert (error is None) == (their_error is None), f"corral: {error!r}; tensordict: {their_error!r}"
        if error is None:
            assert type(mine) is type(theirs) or isinstance(mine, list)
            assert_same(mine, theirs, dtypes=value != "float")  # Python's floats become NumPy's, which are float64


def test_tensor_only_takes_arrays() -> None:
    class Arrays(TensorClass, tensor_only=True):
        a: np.ndarray
        b: torch.Tensor | None = None
        c: TensorDict | None = None

    made = Arrays(a=[1, 2], c={"d": np.zeros(2)})
    assert isinstance(made.a, np.ndarray)
    assert type(made.c) is TensorDict
    with pytest.raises(TypeError, match="takes arrays only"):
        Arrays(a="one")
    with pytest.raises(TypeError, match=r"tensor_only requires .* not <class 'str'>"):

        class Strings(TensorClass, tensor_only=True):
            a: str


def test_autocast_to_arrays_of_a_library() -> None:
    class Both(TensorClass, autocast=True):
        n: np.ndarray
        t: torch.Tensor
        inner: corral.TensorDict | None = None

    both = Both(n=torch.arange(3), t=np.arange(3))
    assert isinstance(both.n, np.ndarray)
    assert isinstance(both.t, torch.Tensor)
    both.t = [4, 5]
    assert both.t.tolist() == [4, 5]
    with pytest.raises(TypeError, match="Failed to cast the value t"):
        both.t = "four"


class Inner(TensorClass):
    q: Any


class Cast(TensorClass["autocast"]):  # type: ignore[misc]
    inner: Inner
    td: TensorDict
    maybe: Inner | None = None


def test_autocast_of_dicts() -> None:
    cast = Cast(inner={"q": np.zeros(2)}, td={"a": {"b": 1}}, maybe=TensorDict(q=np.ones(2)))
    assert type(cast.inner) is Inner
    assert type(cast.maybe) is TensorDict  # what may be several things is none that values are cast to
    cast.inner = TensorDict(q=np.ones(2))
    assert type(cast.inner) is Inner
    cast.inner = TensorDict(other=np.ones(2))
    assert type(cast.inner) is TensorDict


@pytest.mark.parametrize("flags", [("autocast", "nocast"), ("autocast", "tensor_only"), ("nocast", "tensor_only")])
def test_options_that_exclude_each_other(flags: tuple[str, str]) -> None:
    for library in (corral, tensordict):
        with pytest.raises(TypeError, match="exclusive"):
            make(library, {"x": Any}, **dict.fromkeys(flags, True))


def test_options_that_there_are_not() -> None:
    with pytest.raises(TypeError, match="takes options"):
        TensorClass["speed"]


@pytest.mark.parametrize("library", [corral, tensordict])
def test_frozen(library: Any) -> None:
    cls = make(library, {"x": torch.Tensor}, frozen=True)
    made = cls(x=torch.zeros(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.x = torch.ones(2)
    assert made.is_locked
    made.set_("x", torch.ones(2))
    assert made.x.tolist() == [1, 1]
    with pytest.raises(TypeError):

        class Thawed(make(library, {"x": torch.Tensor}), frozen=True):  # type: ignore[misc]
            y: torch.Tensor


@pytest.mark.parametrize("library", [corral, tensordict])
@pytest.mark.parametrize("name", ["sum", "batch_size", "device", "apply", "keys"])
def test_names_of_methods(library: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        make(library, {name: Any})
    if name == "keys":
        return
    with pytest.raises(AttributeError, match="from_tensordict"):
        make(library, {"from_tensordict": Any})
    made = make(library, {name: Any, "x": torch.Tensor}, shadow=True)(**{name: torch.ones(3), "x": torch.zeros(3)})
    assert getattr(made, name).tolist() == [1, 1, 1]
    assert made.clone().x.tolist() == [0, 0, 0]


@pytest.mark.parametrize("library", [corral, tensordict])
def test_names_that_are_allowed(library: Any) -> None:
    made = make(library, {"data": torch.Tensor})(data=torch.ones(2), batch_size=[2])
    assert made.data.tolist() == [1, 1]
    assert made[0].data == 1


def methods(library: Any) -> Any:
    class Base(library.TensorClass):  # type: ignore[misc, name-defined]
        x: torch.Tensor
        count: ClassVar[int] = 7

        def size_of_x(self) -> int:
            return int(self.x.numel())

        @property
        def twice(self) -> Any:
            return self.x * 2

        @classmethod
        def zeros(cls, n: int) -> Any:
            return cls(x=torch.zeros(n), batch_size=[n])

        @staticmethod
        def three() -> int:
            return 3

    class Derived(Base):
        y: torch.Tensor | None = None
        z: torch.Tensor = field(default_factory=lambda: torch.full((2,), 9.0))

        def size_of_x(self) -> int:
            return super().size_of_x() + 100

        @functools.cached_property
        def slow(self) -> int:
            return len(self)

    return Base, Derived


METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "method": lambda base, derived: (base.zeros(2).size_of_x(), derived.zeros(2).size_of_x()),
    "property": lambda base, derived: derived.zeros(2).twice,
    "static method": lambda base, derived: derived.three(),
    "class variable": lambda base, derived: (derived.count, derived.zeros(2).count),
    "cached property": lambda base, derived: derived.zeros(2).slow,
    "default factory": lambda base, derived: derived(x=torch.zeros(2)).z,
    "default factory anew": lambda base, derived: derived(x=torch.zeros(2)).z is derived(x=torch.zeros(2)).z,
    "isinstance": lambda base, derived: (isinstance(derived.zeros(2), base), issubclass(derived, base)),
    "fields": lambda base, derived: [f.name for f in derived.fields()] == [f.name for f in dataclasses.fields(derived)],
    "is_dataclass": lambda base, derived: dataclasses.is_dataclass(derived),
    "rows": lambda base, derived: [type(row).__name__ for row in derived.zeros(2)],
    "write-only property": lambda base, derived: setattr(base.zeros(2), "twice", 3),
    "name": lambda base, derived: (derived.__name__, type(derived.zeros(2)[:1]).__name__),
    "stack of both": lambda base, derived: torch.stack([base.zeros(2), base.zeros(2)]).size_of_x(),
}


@pytest.mark.parametrize("function", METHODS.values(), ids=METHODS.keys())
def test_methods(function: Callable[[Any, Any], Any]) -> None:
    mine, error = outcome(lambda lib: function(*methods(lib)), corral)
    theirs, their_error = outcome(lambda lib: function(*methods(lib)), tensordict)
    assert (error is None) == (their_error is None), f"corral: {error!r}; tensordict: {their_error!r}"
    if error is None:
        assert_same(mine, theirs)


def test_super_and_class_of_a_decorated_class() -> None:
    @tensorclass
    class Point:
        x: Any
        y: Any = 2.0

        def numel(self) -> int:
            return super().numel() + 100  # type: ignore[misc]

        def own_class(self) -> Any:
            return __class__  # type: ignore[name-defined]

    point = Point(x=np.zeros(3))
    assert point.numel() == 101
    assert point.own_class() is Point is type(point)
    assert Point.__module__ == __name__


@pytest.mark.parametrize("library", [corral, tensordict])
def test_post_init(library: Any) -> None:
    class Scaled(library.TensorClass, skip_post_init_on_rebuild=True):  # type: ignore[misc, name-defined, call-arg]
        x: torch.Tensor
        by: InitVar[int] = 2

        def __post_init__(self, by: int) -> None:
            self.x = self.x * by

    assert Scaled(x=torch.ones(2), by=5).x.tolist() == [5, 5]
    scaled = Scaled(torch.ones(2), batch_size=[2])
    assert scaled.x.tolist() == [2, 2]
    assert scaled.clone()[0].x == 2
    assert Scaled.from_tensordict(library.TensorDict(x=torch.ones(2))).x.tolist() == [2, 2]


@pytest.mark.parametrize("library", [corral, tensordict])
def test_a_constructor_of_its_own(library: Any) -> None:
    class Grid(library.TensorClass):  # type: ignore[misc, name-defined]
        x: torch.Tensor
        y: torch.Tensor | None = None
        z: torch.Tensor = field(default_factory=lambda: torch.zeros(1))

        def __init__(self, n: int, batch_size: Any = None) -> None:
            self.x = torch.arange(n)

    class Forgetful(library.TensorClass):  # type: ignore[misc, name-defined]
        x: torch.Tensor

        def __init__(self) -> None:
            pass

    grid = Grid(3, batch_size=())
    assert (grid.x.tolist(), grid.y, grid.z.tolist()) == ([0, 1, 2], None, [0])
    assert type(grid.clone()) is Grid
    with pytest.raises(TypeError, match="did not set the required field 'x'"):
        Forgetful()


def test_a_constructor_that_calls_that_of_its_parent() -> None:
    class Base(TensorClass):
        x: Any

    class Derived(Base):
        y: Any = None

        def __init__(self, n: int) -> None:
            super().__init__(x=np.arange(n), batch_size=[n], names=["time"], lock=True)
            self.y = np.zeros(n)

    made = Derived(3)
    assert (made.batch_size, made.names, made.is_locked) == ((3,), ["time"], True)


def test_fields_that_the_constructor_does_not_take() -> None:
    class Counted(TensorClass):
        x: Any
        count: int = field(default=3, init=False)
        name: Any = field(default_factory=lambda: "made", init=False)

    counted = Counted(x=np.zeros(2), batch_size=[2])
    assert (counted.count, counted[0].count, counted.name) == (3, 3, "made")
    with pytest.raises(TypeError, match="unexpected keyword"):
        Counted(x=1, count=4)


def test_generic_classes() -> None:
    class Pair(TensorClass, Generic[T]):
        first: Any
        second: Any = None

    assert type(Pair[int](first=np.zeros(2))) is Pair


def test_signature() -> None:
    class Step(TensorClass):
        obs: Any
        reward: Any = 0.0

    assert list(inspect.signature(Step).parameters)[:3] == ["obs", "reward", "batch_size"]


@dataclasses.dataclass
class Plain:
    a: int
    b: Any
    c: str = "c"


def test_from_dataclass() -> None:
    values = Plain(1, torch.zeros(2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = tensordict.from_dataclass(values)
        their_class = tensordict.from_dataclass(Plain, autocast=True)
    mine = from_dataclass(values)
    assert is_tensorclass(mine)
    assert (type(mine).__name__, mine.c) == (type(theirs).__name__, theirs.c)
    assert_same([mine.a, mine.b], [theirs.a, theirs.b])
    cls = from_dataclass(Plain, autocast=True)
    assert (cls.__name__, cls(a=2.5, b=1).a) == (their_class.__name__, their_class(a=2.5, b=1).a)
    assert from_dataclass(cls) is cls
    assert from_dataclass(Plain(1, np.zeros((2, 3))), dest_cls=cls, batch_size=None).a == 1
    with pytest.raises(TypeError):
        from_dataclass(3)
    decorated = tensorclass(Plain)
    assert decorated(a=1, b=2).c == "c"


def test_hidden_fields_and_objects() -> None:
    class Secret(TensorClass):
        a: Any
        b: Any = field(default=None, repr=False)

    secret = Secret(a=np.zeros(2), b="hidden", batch_size=[2])
    assert "hidden" not in repr(secret)
    assert "b" not in repr(secret).partition("fields")[2]
    assert isinstance(dict(secret.items())["b"], NonTensorData)
    assert secret.b == secret.get("b") == secret["b"] == "hidden"


def test_the_base_has_no_fields() -> None:
    for wrong in (lambda: TensorClass(), lambda: TensorClass.from_tensordict(TensorDict())):
        with pytest.raises(TypeError, match="has no fields"):
            wrong()
