"""Every public method of tensordict's TensorDict is here, with its parameters, or is left out for a reason."""

from __future__ import annotations

import enum
import inspect
from typing import Any

import pytest
import tensordict
import torch

import corral
from tools.methods import ADDED, DIFFERENT, LEFT_OUT, PAGE, page, tasks

VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
NAMES = sorted(
    name for name in {*dir(tensordict.TensorDict), *dir(tensordict.TensorDictBase)} if not name.startswith("_")
)


def parameters(kind: Any, name: str) -> dict[str, inspect.Parameter] | None:
    """Return the named parameters of a method, or nothing of a property."""
    if isinstance(inspect.getattr_static(kind, name), property):
        return None
    found = inspect.signature(getattr(kind, name)).parameters
    return {key: p for key, p in found.items() if key != "self" and not key.startswith("_")}


def default(parameter: inspect.Parameter) -> Any:
    """Return a default so that those of both libraries can be compared: a sentinel stands for none."""
    value = parameter.default
    if value is inspect.Parameter.empty:
        return "required"
    if type(value) is object or isinstance(value, enum.Enum) or value is None or value is torch.strided:
        return None
    return value


def test_the_table_misses_none() -> None:
    listed = {name for names in tasks().values() for name in names}
    assert {*NAMES} <= listed | LEFT_OUT.keys()
    assert not listed & LEFT_OUT.keys()
    assert LEFT_OUT.keys() <= {*NAMES}, "what is left out is tensordict's"
    assert PAGE.read_text() == page(), "run python tools/methods.py --write"


@pytest.mark.parametrize("name", NAMES)
def test_same_parameters(name: str) -> None:
    assert hasattr(corral.TensorDict, name) == (name not in LEFT_OUT)
    if name in LEFT_OUT:
        return
    theirs, mine = parameters(tensordict.TensorDict, name), parameters(corral.TensorDict, name)
    assert (theirs is None) == (mine is None), "a property in one library, a method in the other"
    if theirs is None or mine is None:
        return
    hidden = any(p.kind in VARIABLE for p in theirs.values())
    problems = []
    for key, p in theirs.items():
        if p.kind in VARIABLE:
            continue
        if key not in mine:
            problems.append(f"{key} is missing")
        elif default(p) != default(mine[key]) or isinstance(default(p), bool) != isinstance(default(mine[key]), bool):
            problems.append(f"{key} is {default(mine[key])!r} by default, not {default(p)!r}")
        elif (p.kind is p.KEYWORD_ONLY) < (mine[key].kind is p.KEYWORD_ONLY):
            problems.append(f"{key} is for keywords only")
    order = [key for key, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if [key for key in mine if key in order] != order:
        problems.append(f"the order is not {order}")
    for key, p in mine.items():
        if key not in theirs and p.kind not in VARIABLE and not hidden:
            if key not in ADDED:
                problems.append(f"{key} is not tensordict's")
            elif p.default is inspect.Parameter.empty:
                problems.append(f"{key} has no default")
    if name in DIFFERENT:
        assert problems, f"{name} is listed as different, and is not"
    else:
        assert not problems, problems
