"""Pairs of feature sets for which the orthogonal part is singular: the base already spans what it could add."""

from __future__ import annotations

import warnings

from gpflow.inducing_variables import InducingVariables
from gpflow.kernels import Kernel

from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ZonalKernel
from keras_odgp.orthogonal.gram import latents, num_features
from keras_odgp.spherical import num_harmonics

OnSphere = (ActivationFeatures, SphericalHarmonics)


def check_orthogonal_features(kernel: Kernel, base: InducingVariables, orthogonal: InducingVariables | None) -> None:
    """Raises if the orthogonal features add nothing to the base, warns if some of them do not.

    Features on the sphere span the harmonics of their levels. What the base leaves of these is all that orthogonal
    features of the same kind can add; points are never exhausted.

    Example:

    >>> kernel = keras_odgp.kernels.Matern52()
    >>> harmonics = keras_odgp.inducing.SphericalHarmonics(3, 4)
    >>> keras_odgp.orthogonal.check_orthogonal_features(kernel, harmonics, harmonics)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ...
    """
    for latent_kernel, base_part, orthogonal_part in latents(kernel, base, orthogonal):
        if (
            isinstance(latent_kernel, ZonalKernel)
            and isinstance(base_part, OnSphere)
            and isinstance(orthogonal_part, OnSphere)
        ):
            _check_pair(latent_kernel, base_part, orthogonal_part)


def _check_pair(
    kernel: ZonalKernel,
    base: ActivationFeatures | SphericalHarmonics,
    orthogonal: ActivationFeatures | SphericalHarmonics,
) -> None:
    dimension = orthogonal.dimension if isinstance(orthogonal, SphericalHarmonics) else orthogonal.weights.shape[1]
    base_levels, levels = _levels(base, kernel), _levels(orthogonal, kernel)

    def count(chosen: set[int]) -> int:
        return sum(num_harmonics(dimension, level) for level in chosen)

    num_base, num_orthogonal = num_features(base), num_features(orthogonal)
    shared = base_levels & levels
    used = min(num_base, count(base_levels)) if shared else 0
    room = min(count(levels), count(base_levels | levels) - used) if shared else count(levels)
    described = (
        f"{num_orthogonal} orthogonal features ({_describe(orthogonal)}, levels {sorted(levels)}) over {num_base} "
        f"base features "
        f"({_describe(base)}, levels {sorted(base_levels)})"
    )
    remedy = (
        "Use inducing points, or levels that the base does not have, as orthogonal features, or fewer base features."
    )
    if room == 0:
        raise ValueError(
            f"The covariance Svv of {described} is zero: the base already spans all {count(levels)} dimensions of "
            f"these levels. {remedy}"
        )
    if num_orthogonal > room:
        warnings.warn(
            f"The covariance Svv of {described} is singular: only {room} of them can add anything to the base. "
            f"{remedy}",
            stacklevel=4,
        )


def _levels(features: ActivationFeatures | SphericalHarmonics, kernel: ZonalKernel) -> set[int]:
    return set(features.levels if isinstance(features, SphericalHarmonics) else features.active_levels(kernel))


def _describe(features: ActivationFeatures | SphericalHarmonics) -> str:
    return "harmonics" if isinstance(features, SphericalHarmonics) else f"{features.activation.name} activations"
