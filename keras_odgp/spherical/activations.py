"""Activation functions as zonal functions: which levels they have, and with what coefficients.

Which levels vanish follows from symmetry and is stated, never read off a computed coefficient: softplus is t/2 plus
an even function, so its odd levels from 3 on are exactly zero, whatever a quadrature says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from keras_odgp.spherical.funk_hecke import (
    quadrature_coefficients,
    relu_power_coefficients,
    softplus_coefficient,
    vanishes_for_relu_power,
)
from keras_odgp.spherical.gegenbauer import check_num_levels, num_harmonics

Parity = Literal["none", "even", "odd", "linear_plus_even"]
PARITIES: tuple[str, ...] = ("none", "even", "odd", "linear_plus_even")

# Quadrature of a function of size one returns noise below this share of the largest coefficient (times sqrt(J)).
QUADRATURE_NOISE = 1e-13
# Steeper softplus is so close to ReLU that its coefficients stay far above that noise, and its poles are many.
STEEPEST_SUM_OVER_POLES = 16.0


@dataclass(frozen=True)
class Activation:
    """A zonal function sigma(t), t in [-1, 1], known by name.

    Args:
        name: Name under which the activation is registered.
        function: Vectorised NumPy function, smooth on [-slope, slope] except perhaps at 0.
        parity: `"even"`, `"odd"`, `"linear_plus_even"` (as ReLU, softplus, GELU and swish are), or `"none"`.
        relu_power: n for max(t, 0)^n, whose coefficients have a closed form; None otherwise.
        is_softplus: Whether the coefficients are those of softplus, a sum over its poles at high levels.

    Example:

    >>> relu = keras_odgp.spherical.get_activation("relu")
    >>> relu.coefficients(4, dimension=3).shape
    (4,)
    """

    name: str
    function: Callable[[np.ndarray], np.ndarray]
    parity: Parity = "none"
    relu_power: int | None = None
    is_softplus: bool = False

    def __reduce__(self) -> tuple[Callable[[str], Activation], tuple[str]]:
        return get_activation, (self.name,)  # copies and pickles by name: functions do not travel

    def has_level(self, level: int) -> bool:
        """Whether symmetry leaves the coefficient of a level nonzero."""
        if self.relu_power is not None:
            return not vanishes_for_relu_power(self.relu_power, level)
        return {
            "none": True,
            "even": level % 2 == 0,
            "odd": level % 2 == 1,
            "linear_plus_even": level % 2 == 0 or level == 1,
        }[self.parity]

    def active_levels(self, num_levels: int) -> tuple[int, ...]:
        """Levels below `num_levels` that symmetry leaves nonzero."""
        return tuple(level for level in range(check_num_levels(num_levels)) if self.has_level(level))

    def coefficients(self, num_levels: int, dimension: int, slope: float = 1.0) -> np.ndarray:
        """Fourier coefficients of sigma(slope t) / slope, shape `[num_levels]`, float64; computed once and kept."""
        return _coefficients(self, check_num_levels(num_levels), dimension, float(slope))


@cache
def _coefficients(activation: Activation, num_levels: int, dimension: int, slope: float) -> np.ndarray:
    if activation.relu_power is not None:
        return relu_power_coefficients(activation.relu_power, num_levels, dimension) * slope ** (
            activation.relu_power - 1
        )
    has_poles = activation.is_softplus and slope <= STEEPEST_SUM_OVER_POLES
    by_quadrature = min(num_levels, 6) if has_poles else num_levels
    values = np.zeros(num_levels)
    values[:by_quadrature] = quadrature_coefficients(
        lambda t: np.asarray(activation.function(slope * t), dtype=np.float64) / slope, by_quadrature, dimension
    )
    sizes = np.abs(values) * np.sqrt([float(num_harmonics(dimension, level)) for level in range(num_levels)])
    values[sizes < QUADRATURE_NOISE * sizes.max()] = 0.0
    values[[not activation.has_level(level) for level in range(num_levels)]] = 0.0
    for level in range(by_quadrature, num_levels):
        if activation.has_level(level):
            values[level] = softplus_coefficient(slope, level, dimension)
    values.setflags(write=False)  # kept for later calls
    return values


_erf = np.vectorize(math.erf, otypes=[np.float64])
_REGISTRY: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("step", lambda t: np.heaviside(t, 0.5), relu_power=0),
        Activation("relu", lambda t: np.maximum(t, 0.0), relu_power=1),
        Activation("relu_squared", lambda t: np.maximum(t, 0.0) ** 2, relu_power=2),
        Activation("softplus", lambda t: np.logaddexp(0.0, t), "linear_plus_even", is_softplus=True),
        Activation("gelu", lambda t: 0.5 * t * (1.0 + _erf(t / math.sqrt(2.0))), "linear_plus_even"),
        Activation("swish", lambda t: t * 0.5 * (1.0 + np.tanh(0.5 * t)), "linear_plus_even"),
        Activation("tanh", np.tanh, "odd"),
        Activation("erf", _erf, "odd"),
    )
}


def get_activation(identifier: str | Activation) -> Activation:
    """The activation registered under a name (an `Activation` is returned as it is).

    Example:

    >>> get_activation("softplus").active_levels(6)
    (0, 1, 2, 4)
    """
    if isinstance(identifier, Activation):
        return identifier
    if not isinstance(identifier, str) or identifier not in _REGISTRY:
        known = str(identifier).lower()
        hint = f" Did you mean {known!r}?" if known in _REGISTRY else ""
        raise ValueError(
            f"Unknown activation {identifier!r}.{hint} Expected one of {sorted(_REGISTRY)}, or register yours with "
            "`keras_odgp.spherical.register_activation(name, function, parity)`, where `function` maps a NumPy array "
            "of cosines."
        )
    return _REGISTRY[identifier]


def register_activation(name: str, function: Callable[[np.ndarray], np.ndarray], parity: Parity = "none") -> Activation:
    """Makes a zonal function available as an activation under a name.

    Args:
        name: New name. Registering a name twice is an error, because saved models refer to it.
        function: NumPy function of arrays t of any shape, smooth except perhaps at t = 0.
        parity: Symmetry of the function, which decides which levels are exactly zero. It is checked.

    Returns:
        The registered `Activation`.

    Example:

    >>> register_activation("cosine", np.cos, parity="even").active_levels(5)
    (0, 2, 4)
    """
    if name in _REGISTRY:
        raise ValueError(f"An activation named {name!r} is registered already. Choose another name.")
    if parity not in PARITIES:
        raise ValueError(f"Unknown parity {parity!r}. Expected one of {list(PARITIES)}.")
    _check_parity(name, function, parity)
    _REGISTRY[name] = Activation(name, function, parity)
    return _REGISTRY[name]


def _check_parity(name: str, function: Callable[[np.ndarray], np.ndarray], parity: str) -> None:
    t = np.linspace(0.05, 1.0, 20)
    right, left = np.asarray(function(t), dtype=np.float64), np.asarray(function(-t), dtype=np.float64)
    if right.shape != t.shape or not (np.isfinite(right).all() and np.isfinite(left).all()):
        raise ValueError(
            f"Activation {name!r} must map an array of cosines to a finite array of the same shape. "
            f"Got shape {right.shape} for an input of shape {t.shape}."
        )
    excess = {
        "none": 0 * t,
        "even": right - left,
        "odd": right + left,
        "linear_plus_even": (right - left) - t * (right[-1] - left[-1]),
    }[parity]
    if np.abs(excess).max() > 1e-10 * np.abs(np.concatenate([right, left])).max():
        raise ValueError(
            f"Activation {name!r} was declared {parity!r}, but its values at t and -t contradict that by "
            f"{np.abs(excess).max():.2g}. Declare its true parity, or 'none'."
        )
