"""Read and give names to batch dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from corral.tensordict.base import Base

__all__ = ["Naming"]


class Naming(Base):
    """Names of dimensions. They follow their dimension through indexing, stacking and changes of shape."""

    __slots__ = ()

    @property
    def names(self) -> list[Any]:
        """The name of each batch dimension, or ``None`` where it has none.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros((4, 3)), batch_size=[4, 3], names=["time", None])
        >>> td.names, td[0].names, td.permute(1, 0).names
        (['time', None], [None], [None, 'time'])
        """
        return self._name_list()

    @names.setter
    def names(self, value: Sequence[Any] | None) -> None:
        self._set_names(value)

    def refine_names(self, *names: Any) -> Self:
        """Name dimensions that have no name, here; ``...`` stands for those that keep what they have.

        Raises
        ------
        RuntimeError
            If a dimension has another name.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.zeros((4, 3)), batch_size=[4, 3]).refine_names(..., "env").names
        [None, 'env']
        """
        mine = self._name_list()
        wanted: list[Any] = list(names)
        kept: set[int] = set()
        if any(name is Ellipsis for name in names):
            gap = next(i for i, name in enumerate(names) if name is Ellipsis)
            count = len(mine) - len(names) + 1
            kept = set(range(gap, gap + count))
            wanted[gap : gap + 1] = mine[gap : gap + count]
        for i, name in enumerate(wanted[: len(mine)]):
            if i not in kept and mine[i] is not None and mine[i] != name:
                raise RuntimeError(f"refine_names: cannot coerce TensorDict names {mine} with {list(names)}.")
        self._set_names(wanted)
        return self

    def rename(self, *names: Any, **rename_map: Any) -> Self:
        """Return a TensorDict with the same leaves and other names of dimensions.

        Parameters
        ----------
        *names
            A name for each dimension; a single ``None`` for no names.
        **rename_map
            Old names and new ones, instead.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.zeros(4), batch_size=[4], names=["time"]).rename(time="step").names
        ['step']
        """
        if not names and not rename_map:
            raise ValueError("Neither a name map nor a name list was passed. Only one is accepted.")
        return self._map_values(lambda leaf: leaf).rename_(*names, **rename_map)

    def rename_(self, *names: Any, **rename_map: Any) -> Self:
        """Do the same as `rename`, to this TensorDict."""
        if rename_map and names:
            raise ValueError("Passed both a name map and a name list. Only one is accepted.")
        if not rename_map and not names and self._batch_size:
            raise ValueError("Neither a name map nor a name list was passed. Only one is accepted.")
        if rename_map:
            unknown = rename_map.keys() - set(self._name_list())
            if unknown:
                raise ValueError(
                    f"Some names to be renamed were not part of the tensordict names: {sorted(unknown)} vs "
                    f"{self._name_list()}."
                )
            self._set_names([rename_map.get(name, name) for name in self._name_list()])
        else:
            self._set_names(None if names == (None,) else names)
        return self
