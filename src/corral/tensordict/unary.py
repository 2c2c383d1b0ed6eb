"""Functions of every element of every leaf, and the same in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from corral.arrays.functions import PREDICATES, unary, unary_
from corral.tensordict.base import Base
from corral.tensordict.leaves import rewrite

__all__ = ["Unary"]

T = TypeVar("T", bound=Base)


def _function(name: str, what: str) -> Callable[[T], T]:
    def function(self: T) -> T:
        result = self._map(lambda leaf: unary(name, leaf))
        # As in tensordict, where arithmetic of no leaves at all is a copy, which never is locked.
        if self._locked and (name in PREDICATES or any(True for _ in self._leaves())):
            result._lock(True)
        return result

    function.__doc__ = f"Return {what} of all leaves' elements, as ``torch.{name}`` does."
    named: Callable[[T], T] = _named(function, name)
    return named


def _in_place(name: str, what: str) -> Callable[[T], T]:
    def function(self: T) -> T:
        return rewrite(self, lambda leaf, label: unary_(name, leaf, label))

    function.__doc__ = f"Set all leaves' elements to {what}, in place, as torch's ``{name}_`` does."
    named: Callable[[T], T] = _named(function, f"{name}_")
    return named


def _named(function: Any, name: str) -> Any:
    function.__name__ = name
    function.__qualname__ = f"Unary.{name}"
    return function


class Unary(Base):
    """Functions of one argument, by torch's names. Locks of the TensorDict are those of the result.

    A function with an underscore behind its name writes its values into the leaves' own memory; it raises
    `RuntimeError` where they do not fit the dtype, as the square roots of integers.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict
    >>> td = TensorDict(a=np.array([1.0, 4.0]), batch_size=[2])
    >>> td.sqrt()["a"], td.isnan().any()
    (array([1., 2.]), False)
    >>> td.neg_()["a"] is td["a"], td["a"]
    (True, array([-1., -4.]))
    """

    __slots__ = ()

    abs, abs_ = _function("abs", "the absolute values"), _in_place("abs", "their absolute values")
    acos, acos_ = _function("acos", "the arccosines"), _in_place("acos", "their arccosines")
    asin, asin_ = _function("asin", "the arcsines"), _in_place("asin", "their arcsines")
    atan, atan_ = _function("atan", "the arctangents"), _in_place("atan", "their arctangents")
    ceil, ceil_ = _function("ceil", "the next integers above"), _in_place("ceil", "the next integers above")
    cos, cos_ = _function("cos", "the cosines"), _in_place("cos", "their cosines")
    cosh, cosh_ = _function("cosh", "the hyperbolic cosines"), _in_place("cosh", "their hyperbolic cosines")
    erf, erf_ = _function("erf", "the error function"), _in_place("erf", "their error function")
    erfc, erfc_ = _function("erfc", "1 minus the error function"), _in_place("erfc", "1 minus their error function")
    exp, exp_ = _function("exp", "the exponentials"), _in_place("exp", "their exponentials")
    expm1, expm1_ = _function("expm1", "the exponentials minus 1"), _in_place("expm1", "their exponentials minus 1")
    floor, floor_ = _function("floor", "the next integers below"), _in_place("floor", "the next integers below")
    frac, frac_ = _function("frac", "the parts behind the point"), _in_place("frac", "their parts behind the point")
    lgamma, lgamma_ = (
        _function("lgamma", "the logarithms of the gamma function's magnitudes"),
        _in_place("lgamma", "the logarithms of their gamma function's magnitudes"),
    )
    log, log_ = _function("log", "the natural logarithms"), _in_place("log", "their natural logarithms")
    log10, log10_ = _function("log10", "the decimal logarithms"), _in_place("log10", "their decimal logarithms")
    log1p, log1p_ = _function("log1p", "the logarithms of 1 plus"), _in_place("log1p", "the logarithms of 1 plus them")
    log2, log2_ = _function("log2", "the binary logarithms"), _in_place("log2", "their binary logarithms")
    neg, neg_ = _function("neg", "the negatives"), _in_place("neg", "their negatives")
    reciprocal, reciprocal_ = (
        _function("reciprocal", "the reciprocals"),
        _in_place("reciprocal", "their reciprocals"),
    )
    round, round_ = _function("round", "the nearest integers"), _in_place("round", "the nearest integers")
    sigmoid, sigmoid_ = _function("sigmoid", "the logistic function"), _in_place("sigmoid", "their logistic function")
    sign, sign_ = _function("sign", "the signs"), _in_place("sign", "their signs")
    sin, sin_ = _function("sin", "the sines"), _in_place("sin", "their sines")
    sinh, sinh_ = _function("sinh", "the hyperbolic sines"), _in_place("sinh", "their hyperbolic sines")
    sqrt, sqrt_ = _function("sqrt", "the square roots"), _in_place("sqrt", "their square roots")
    tan, tan_ = _function("tan", "the tangents"), _in_place("tan", "their tangents")
    tanh, tanh_ = _function("tanh", "the hyperbolic tangents"), _in_place("tanh", "their hyperbolic tangents")
    trunc, trunc_ = _function("trunc", "the parts before the point"), _in_place("trunc", "their parts before the point")

    isfinite = _function("isfinite", "the finiteness")
    isnan = _function("isnan", "whether they are not a number,")
    isneginf = _function("isneginf", "whether they are minus infinity,")
    isposinf = _function("isposinf", "whether they are infinity,")
    isreal = _function("isreal", "whether they have no imaginary part,")
