"""torch's functions that tensordict takes TensorDicts in are here, too, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict._torch_func import LAZY_TD_HANDLED_FUNCTIONS, TD_HANDLED_FUNCTIONS
from torch.nn import functional

import corral
from corral.tensordict import torch_interop
from tests.tensordict.test_small_methods import SIDES, Side, form, outcome


@pytest.mark.parametrize("function", sorted({*TD_HANDLED_FUNCTIONS, *LAZY_TD_HANDLED_FUNCTIONS}, key=str))
def test_none_is_missing(function: Any) -> None:
    table = torch_interop._TABLES.get(function.__module__ or "", torch_interop._HANDLERS)
    assert function.__name__ in table


def other(td: Any) -> Any:
    return td.apply(lambda x: x * 3 - 1)


CASES = {
    f"{function.__name__} {reduction}": lambda s, f=function, r=reduction: f(s.td(), other(s.td()), reduction=r)
    for function in (functional.l1_loss, functional.mse_loss, functional.smooth_l1_loss)
    for reduction in ("none", "mean", "sum", "most")
}


@pytest.mark.parametrize("name", CASES)
def test_losses(name: str) -> None:
    (theirs, their_error), *ours = (outcome(CASES[name], side) for side in SIDES)
    for mine, error in ours:
        assert (error is None) == (their_error is None), f"{error!r} and {their_error!r}"
        assert repr(mine) == repr(theirs)


def test_beta_is_not_ignored() -> None:
    for side in SIDES[1:]:
        td = side.td()
        found = functional.smooth_l1_loss(td, other(td), beta=3.0)
        x = torch.as_tensor(td["a"])
        assert float(found["a"]) == float(functional.smooth_l1_loss(x, x * 3 - 1, beta=3.0))


def gradients(side: Side, weighted: bool, **kwargs: Any) -> Any:
    inputs = side.td().requires_grad_()
    outputs = inputs.apply(lambda x: x * x)
    weights = other(side.td()) if weighted else None
    if not weighted:
        outputs = outputs.apply(lambda x: x.sum(), batch_size=[])
    return torch.autograd.grad(outputs, inputs, weights, **kwargs)


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients(weighted: bool) -> None:
    assert form(gradients(SIDES[1], weighted)) == form(gradients(SIDES[0], weighted))


def test_gradients_of_one_alone() -> None:
    td = corral.TensorDict(a=torch.ones(2, requires_grad=True))
    with pytest.raises(ValueError, match="one TensorDict as inputs"):
        torch.autograd.grad(td, (td, td))
    with pytest.raises(TypeError):
        functional.cosine_similarity(td, td)
    assert np.isclose(functional.l1_loss(td, td)["a"].item(), 0)
