"""What becomes of objects in TensorDicts that are reduced and calculated with: what tensordict makes of them."""

from __future__ import annotations

from typing import Any

import pytest
import tensordict
import torch

from corral import NonTensorStack, TensorDict

CALLS: dict[str, Any] = {
    "sum": lambda td: td.sum(),
    "sum of one dimension": lambda td: td.sum(0),
    "mean": lambda td: td.mean(dim=0),
    "std": lambda td: td.std(0),
    "any": lambda td: td.any(0),
    "all": lambda td: td.all(0),
    "amax": lambda td: td.amax(0),
    "amin": lambda td: td.amin(0),
    "amax of all": lambda td: td.amax(),
    "norm": lambda td: td.norm(),
    "logsumexp": lambda td: td.logsumexp(0),
    "add": lambda td: td + 1,
    "add another": lambda td: td + td,
    "mul": lambda td: td.mul(td),
    "reflected": lambda td: 1 - td,
    "neg": lambda td: -td,
    "invert": lambda td: ~(td < 1),
    "abs": lambda td: td.abs(),
    "compare": lambda td: td < 1,
    "equal": lambda td: td == td,
    "in place": lambda td: td.clone().add_(1),
    "clamp": lambda td: td.clamp(td, td),
    "lerp": lambda td: td.lerp(td, 0.5),
    "isnan": lambda td: td.isnan(),
}


def described(value: Any) -> Any:
    """Return the entries with what objects they hold, of which `items` tells too little."""
    if hasattr(value, "tolist"):
        objects = value.tolist()
        return objects, tuple(value.shape)
    if not hasattr(value, "keys"):
        return value
    return tuple(value.batch_size), {key: described(value.get(key)) for key in sorted(value.keys())}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stack", [False, True], ids=["one object", "an object for each row"])
@pytest.mark.parametrize("name", CALLS)
def test_same_as_tensordict(name: str, stack: bool) -> None:
    found = []
    for kind, several in ((tensordict.TensorDict, tensordict.NonTensorStack), (TensorDict, NonTensorStack)):
        td = kind({"a": torch.arange(3.0), "n": {"k": "inner"}}, [3])
        td["k"] = "text"
        if stack:
            td["s"] = several("x", "y", "z")
        try:
            found.append(described(CALLS[name](td)))
        except RuntimeError:
            found.append("an error")
    assert found[0] == found[1]
