"""Arrays whose bytes go to a file as they lie, and those that are copied element by element."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from corral.arrays.mapped import bytes_of, write_file
from corral.tensordict import TensorDict

base = torch.arange(24, dtype=torch.float32).reshape(4, 6)

AS_THEY_LIE = {
    "floats": np.arange(6.0).reshape(2, 3),
    "no dimension": np.array(7, "i2"),
    "rows": np.arange(12).reshape(4, 3)[1:3],
    "times": np.array(["2020-01-01", "NaT"], "M8[s]"),
    "read-only": np.frombuffer(b"12345678", "u4"),
    "tensor": base,
    "rows of a tensor": base[1:3],
    "scalar tensor": torch.tensor(3, dtype=torch.int16),
    "bfloat16": base.to(torch.bfloat16),
    "bool": base > 5,
    "complex": torch.complex(base, base + 1),
    "parameter": torch.nn.Parameter(base.clone()),
}

OTHERS = {
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "steps": np.arange(6.0)[::2],
    "big-endian": np.arange(3, dtype=">i4"),
    "transposed tensor": base.t(),
    "conjugate": torch.complex(base, base + 1).conj(),
    "negative": torch.complex(base, base + 1).conj().imag,
    "repeated": base[:1].expand(4, 6),
}


@pytest.mark.parametrize("name", AS_THEY_LIE)
def test_what_lies_as_in_a_file(name, tmp_path):
    array = AS_THEY_LIE[name]
    content = bytes_of(array)
    is_tensor = isinstance(array, torch.Tensor)
    expected = bytes(array.detach().clone().untyped_storage()) if is_tensor else array.tobytes()
    assert bytes(content) == expected
    file = tmp_path / "file"
    file.write_bytes(b"x" * (len(expected) + 3))
    write_file(file, content)
    assert file.read_bytes() == expected + b"xxx"


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not(name):
    assert bytes_of(OTHERS[name]) is None


@pytest.mark.parametrize("name", [*AS_THEY_LIE, *OTHERS])
def test_saved_values(name, tmp_path):
    array = (AS_THEY_LIE | OTHERS)[name]
    saved = TensorDict(a=array, batch_size=[]).memmap(tmp_path / "td")
    for td in (saved, TensorDict.load_memmap(tmp_path / "td")):
        if isinstance(array, torch.Tensor):
            assert torch.equal(td["a"], array)
        else:
            assert td["a"].dtype == array.dtype.newbyteorder("=")
            assert np.array_equal(td["a"], array, equal_nan=array.dtype.kind == "M")


def test_many_bytes_by_several_threads(tmp_path):
    td = TensorDict({f"x{i}": np.full(1 << 20, float(i)) for i in range(10)}, batch_size=[])
    td.memmap(tmp_path / "td")
    loaded = TensorDict.load_memmap(tmp_path / "td")
    assert all((loaded[f"x{i}"] == i).all() for i in range(10))
