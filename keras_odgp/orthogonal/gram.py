"""The covariance matrices of one posterior: of the features among themselves, and of the features with inputs.

A posterior whose outputs share kernel and features has matrices without a leading axis. Where outputs have their own,
the matrices of all latent processes are stacked along a leading axis L.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import gpflow
import tensorflow as tf
from gpflow.inducing_variables import InducingPoints, InducingVariables, MultioutputInducingVariables
from gpflow.kernels import Kernel, LinearCoregionalization, MultioutputKernel

from keras_odgp import numerics
from keras_odgp.covariances import DiagonalCovariance, Kvu, shared_levels, stationary
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ZonalKernel

Covariance: TypeAlias = Any  # a tensor or a DiagonalCovariance
Latent = tuple[Kernel, InducingVariables, InducingVariables | None]


class Gram(NamedTuple):
    """Covariances among features, with jitter.

    Attributes:
        Kuu: Of the base features, shape `[M, M]` or `[L, M, M]`.
        Kvv: Of the orthogonal features, shape `[K, K]` or `[L, K, K]`; None if there are none.
        Kvu: Of orthogonal with base features, shape `[K, M]` or `[L, K, M]`; None where it is zero.
    """

    Kuu: Covariance
    Kvv: Covariance | None
    Kvu: tf.Tensor | None


class Cross(NamedTuple):
    """Covariances of features with function values at N inputs, and the prior variances there.

    Attributes:
        Kuf: Shape `[M, N]` or `[L, M, N]`.
        Kvf: Shape `[K, N]` or `[L, K, N]`; None if there are no orthogonal features.
        kff: Shape `[N]` or `[L, N]`.
    """

    Kuf: tf.Tensor
    Kvf: tf.Tensor | None
    kff: tf.Tensor


def latents(kernel: Kernel, base: InducingVariables, orthogonal: InducingVariables | None) -> list[Latent]:
    """Kernel and features of each latent process; a single entry if all outputs share them."""
    kernels = tuple(kernel.latent_kernels) if isinstance(kernel, MultioutputKernel) else (kernel,)
    parts = [kernels, _feature_sets(base), (None,) if orthogonal is None else _feature_sets(orthogonal)]
    count = max(len(part) for part in parts)
    if any(len(part) not in (1, count) for part in parts):
        raise ValueError(
            f"Expected one, or equally many, kernels and sets of inducing variables. Got {len(parts[0])} kernels, "
            f"{len(parts[1])} base sets "
            f"and {len(parts[2])} orthogonal sets."
        )
    return list(zip(*(part * count if len(part) == 1 else part for part in parts)))


def _feature_sets(features: InducingVariables) -> tuple[InducingVariables, ...]:
    return tuple(features.inducing_variables) if isinstance(features, MultioutputInducingVariables) else (features,)


def num_features(features: InducingVariables) -> int:
    """Number of features of a set (of each set, where outputs have their own), known without evaluating anything."""
    sizes = {int(part.shape[0]) for part in _feature_sets(features)}  # type: ignore[index, arg-type]
    if len(sizes) != 1:
        raise ValueError(f"Expected equally many inducing variables for every output. Got {sorted(sizes)}.")
    return sizes.pop()


def mixing(kernel: Kernel) -> tf.Tensor | None:
    """The matrix `[P, L]` that mixes latent processes into outputs, or None where outputs are the latent processes."""
    return tf.convert_to_tensor(kernel.W) if isinstance(kernel, LinearCoregionalization) else None


def gram(kernel: Kernel, base: InducingVariables, orthogonal: InducingVariables | None) -> Gram:
    """Covariances among the features of both sets."""
    parts = [_latent_gram(*latent) for latent in latents(kernel, base, orthogonal)]
    if len(parts) == 1:
        return parts[0]
    shape = next((tf.shape(part.Kvu) for part in parts if part.Kvu is not None), None)
    return Gram(
        _stack([part.Kuu for part in parts]),
        None if parts[0].Kvv is None else _stack([part.Kvv for part in parts]),
        None if shape is None else tf.stack([_or_zeros(part, shape) for part in parts]),
    )


def _or_zeros(part: Gram, shape: tf.Tensor) -> tf.Tensor:
    """Kvu of one latent process, zeros where its two sets are uncorrelated."""
    return part.Kvu if part.Kvu is not None else tf.zeros(shape, part.Kuu.dtype)


def _latent_gram(kernel: Kernel, base: InducingVariables, orthogonal: InducingVariables | None) -> Gram:
    def between(first: InducingVariables, second: InducingVariables) -> Covariance:
        return _Kuu(first, kernel) if first is second else Kvu(first, second, kernel)

    return assemble(between, base, orthogonal, correlated=not are_disjoint(kernel, base, orthogonal))


def assemble(between: Callable[[Any, Any], Covariance], base: Any, orthogonal: Any, *, correlated: bool) -> Gram:
    """A `Gram` from a function that gives the covariances between two sets, or of one set given twice."""
    Kuu = _with_jitter(between(base, base))
    if orthogonal is None:
        return Gram(Kuu, None, None)
    Kvv = between(orthogonal, orthogonal)
    if not correlated:
        return Gram(Kuu, _with_jitter(Kvv), None)
    return Gram(Kuu, _with_jitter(tf.convert_to_tensor(Kvv)), tf.convert_to_tensor(between(orthogonal, base)))


def _Kuu(features: InducingVariables, kernel: Kernel) -> Covariance:
    if type(features) is InducingPoints:
        return stationary.evaluate(kernel, features.Z)
    return gpflow.covariances.Kuu(features, kernel)


def _Kuf(features: InducingVariables, kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    if type(features) is InducingPoints:
        return stationary.evaluate(kernel, features.Z, X)
    return gpflow.covariances.Kuf(features, kernel, X)


def _with_jitter(K: Covariance) -> Covariance:
    return K if isinstance(K, DiagonalCovariance) else numerics.add_jitter(K)


def are_disjoint(kernel: Kernel, base: Any, orthogonal: Any) -> bool:
    """Whether the two sets have no level in common, so that their covariance is exactly zero."""
    on_sphere = all(isinstance(features, (ActivationFeatures, SphericalHarmonics)) for features in (base, orthogonal))
    return on_sphere and isinstance(kernel, ZonalKernel) and not shared_levels(orthogonal, base, kernel)


def _stack(parts: Sequence[Covariance]) -> Covariance:
    if all(isinstance(part, DiagonalCovariance) for part in parts):
        return DiagonalCovariance(tf.stack([part.diag for part in parts]))
    return tf.stack([tf.convert_to_tensor(part) for part in parts])


def cross(kernel: Kernel, base: InducingVariables, orthogonal: InducingVariables | None, X: tf.Tensor) -> Cross:
    """Covariances with function values at inputs `[N, D]`."""
    Kuf, Kvf, kff = [], [], []
    for latent_kernel, base_part, orthogonal_part in latents(kernel, base, orthogonal):
        Kuf.append(_Kuf(base_part, latent_kernel, X))
        kff.append(latent_kernel(X, full_cov=False))
        if orthogonal_part is not None:
            Kvf.append(_Kuf(orthogonal_part, latent_kernel, X))
    if len(Kuf) == 1:
        return Cross(Kuf[0], Kvf[0] if Kvf else None, kff[0])
    return Cross(tf.stack(Kuf), tf.stack(Kvf) if Kvf else None, tf.stack(kff))
