"""What corral adds to tensordict or does differently, and the texts that users see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import corral
from corral import TensorDict


def test_leaves_keep_their_library() -> None:
    td = TensorDict(n=np.arange(3), t=torch.arange(3), li=[1, 2, 3], batch_size=[3])
    for result in (td, td[1:], td.clone(), td + 1, corral.stack([td, td]), td.reshape(3, 1), td == td):
        assert [type(x) for x in result.values()] == [np.ndarray, torch.Tensor, np.ndarray]


def test_every_result_of_numpy_is_an_array() -> None:
    td = TensorDict(a=np.arange(3.0), batch_size=[3])
    for result in (td[0], td[0] + 1, td.sum(), td[0].clone(), -td[0], td[0] == td[0], td.mean(0)):
        assert type(result["a"]) is np.ndarray


def test_libraries_mix() -> None:
    td = TensorDict(a=np.zeros((2, 3), "float32"), b=torch.zeros(2, 3), batch_size=[2])
    other = TensorDict(a=torch.ones(2, 3) * 2, b=np.full((2, 3), 3.0), batch_size=[2])
    a, b = td["a"], td["b"]
    td.update_(other)
    assert td["a"] is a
    assert td["b"] is b
    assert a.tolist() == [[2.0] * 3] * 2
    assert b.tolist() == [[3.0] * 3] * 2
    assert type((td + other)["a"]) is np.ndarray
    stacked = corral.stack([td, other])
    assert type(stacked["b"]) is torch.Tensor
    assert stacked["b"][1].tolist() == [[3.0] * 3] * 2


@pytest.mark.parametrize("value", ["text", None, object(), b"bytes", ["a", "b"], [[1], [1, 2]]])
def test_other_values_are_kept_as_they_are(value: Any) -> None:
    assert TensorDict(obs={"camera": value})["obs", "camera"] == value


def test_repr_shows_keys_shapes_dtypes_and_libraries() -> None:
    td = TensorDict(a=np.zeros((3, 4), "float32"), b={"c": torch.zeros(3, dtype=torch.bfloat16)}, batch_size=[3])
    assert repr(td) == "TensorDict(batch_size=[3], fields={a: numpy.f32[4], b: {c: torch.bf16[]}})"
    assert repr(td.select("a").lock_()) == (
        "TensorDict(batch_size=[3], library=numpy, is_locked=True, fields={a: f32[4]})"
    )


def test_errors_name_the_key_and_both_shapes() -> None:
    with pytest.raises(RuntimeError, match=r"batch_size=Size\(\[3\]\) and value.shape=Size\(\[2\]\).*'x'"):
        TensorDict(x=np.zeros(2), batch_size=[3])
    td = TensorDict(x=np.zeros(3), batch_size=[3])
    with pytest.raises(RuntimeError, match=r"Failed to update 'x'.*Size\(\[3, 1\]\).*Size\(\[3\]\)"):
        td.set_("x", np.zeros((3, 1)))
    with pytest.raises(KeyError, match=r'key \\?"y\\?" not found'):
        td["y"]
    with pytest.raises(KeyError, match="all tensordicts must have the same keys"):
        corral.cat([td, TensorDict(y=np.zeros(3), batch_size=[3])])
    with pytest.raises(RuntimeError, match="'x' has shape Size"):
        corral.stack([td, TensorDict(x=np.zeros((3, 1)), batch_size=[3])])


def test_a_nested_tensordict_is_unlocked_with_its_parent() -> None:
    td = TensorDict(a={"b": np.zeros(2)}).lock_()
    with pytest.raises(RuntimeError, match="Unlock the root"):
        td["a"].unlock_()
    nested = td["a"]
    td.unlock_()
    assert not nested.is_locked


def test_a_write_through_a_lock_keeps_the_memory() -> None:
    x = np.zeros(2)
    td = TensorDict(a={"b": x}).lock_()
    td.update({"a": {"b": [1, 2]}}, inplace=True)
    assert x.tolist() == [1, 2]
    with pytest.raises(RuntimeError, match="locked"):
        td.update({"a": {"new": [1, 2]}}, inplace=True)


def test_conversion_shares_memory() -> None:
    td = TensorDict(a=np.arange(3))
    td.torch()["a"][0] = 9
    assert td["a"].tolist() == [9, 1, 2]
    assert td.torch().numpy()["a"].base is not None
    assert td.to("float32")["a"].dtype == np.float32
    assert td.to(torch.float64)["a"].dtype == np.float64


def test_device() -> None:
    td = TensorDict(a=np.arange(3), b=torch.arange(3), device="cpu")
    assert td.device == torch.device("cpu")
    assert type(td["a"]) is np.ndarray
    meta = td.to("meta")
    assert meta["a"].device.type == meta["b"].device.type == "meta"


def test_tensordicts_of_tensordict_are_taken() -> None:
    tensordict = pytest.importorskip("tensordict")
    td = TensorDict(x=tensordict.TensorDict(a=torch.arange(3), batch_size=[3]), batch_size=[3])
    assert type(td["x"]) is TensorDict
    assert td["x", "a"].tolist() == [0, 1, 2]


def test_an_operand_of_the_batch_shape_meets_the_batch() -> None:
    td = TensorDict(a=np.ones((3, 2)), t=torch.ones(3, 4), batch_size=[3])
    result = td * np.array([1.0, 2.0, 3.0])
    assert result["a"].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert result["t"][2].tolist() == [3] * 4
    assert (torch.arange(3) - td)["a"].tolist() == [[-1, -1], [0, 0], [1, 1]]
