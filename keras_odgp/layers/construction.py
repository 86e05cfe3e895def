"""From kernel and features to the posterior of a layer."""

from __future__ import annotations

import weakref
from typing import Any

import gpflow
import keras
import numpy as np
import tensorflow as tf
from gpflow.inducing_variables import InducingVariables
from gpflow.kernels import Kernel, LinearCoregionalization, MultioutputKernel

from keras_odgp.layers.specification import make_features
from keras_odgp.orthogonal import OrthogonalPosterior
from keras_odgp.orthogonal.gram import num_features
from keras_odgp.orthogonal.optimal import unwhiten_q
from keras_odgp.orthogonal.variational import OrthogonalCovariance, Variational


def make_posterior(
    kernel: Kernel,
    features: tuple[Any, Any],
    sizes: tuple[int | None, int | None],
    *,
    num_inputs: int,
    num_levels: int,
    units: int,
    whiten: bool,
    orthogonal_covariance: OrthogonalCovariance,
    scale: float,
    seed: int,
) -> OrthogonalPosterior:
    """The posterior with q at its start: mean zero, and `scale` times the prior's standard deviations.

    Args:
        kernel: The kernel.
        features: Kinds of base and orthogonal features, or the inducing variables themselves.
        sizes: Their numbers, or None.
        num_inputs: Number of inputs D.
        num_levels: Levels of activations and harmonics.
        units: Number of outputs.
        whiten: Whether q is about whitened features.
        orthogonal_covariance: `"full"` or `"prior"`.
        scale: Standard deviation of q at its start.
        seed: Seed of random points and directions.
    """
    base, orthogonal = make_features(
        features, sizes, kernel=kernel, num_inputs=num_inputs, num_levels=num_levels, seed=seed
    )
    num_latents = units
    if isinstance(kernel, MultioutputKernel):
        num_latents = kernel.num_latent_gps
        num_outputs = kernel.W.shape[0] if isinstance(kernel, LinearCoregionalization) else num_latents
        if num_outputs != units:
            raise ValueError(f"Expected a kernel with {units} outputs, as many as units. Got {num_outputs}.")
    orthogonal_q: tuple[Any, Any] = (None, None) if orthogonal is None else _start_q(orthogonal, num_latents, scale)
    posterior = OrthogonalPosterior(
        kernel,
        base,
        *_start_q(base, num_latents, scale),
        orthogonal,
        orthogonal_q[0],
        orthogonal_q[1] if orthogonal_covariance == "full" else None,
        whiten=whiten,
        orthogonal_covariance=orthogonal_covariance,
    )
    if not whiten:
        restart_q(posterior, scale)
    return posterior


def restart_q(posterior: OrthogonalPosterior, scale: float) -> None:
    """Puts q at `scale` times the prior's standard deviations; an unwhitened q moves with kernel and features."""
    starts = []
    for mu, sqrt in ((posterior.q_mu, posterior.q_sqrt), (posterior.orthogonal_q_mu, posterior.orthogonal_q_sqrt)):
        root = None if sqrt is None else tf.eye(sqrt.shape[-1], batch_shape=sqrt.shape[:1], dtype=sqrt.dtype) * scale
        starts += [None if mu is None else tf.zeros_like(mu), root]
    q = Variational(*starts)
    q = q if posterior.whiten else unwhiten_q(posterior.prior_factors(), q)
    parameters = (posterior.q_mu, posterior.q_sqrt, posterior.orthogonal_q_mu, posterior.orthogonal_q_sqrt)
    for parameter, value in zip(parameters, q):
        if parameter is not None:
            parameter.assign(value)


def _start_q(features: InducingVariables, num_latents: int, scale: float) -> tuple[gpflow.Parameter, gpflow.Parameter]:
    size = num_features(features)
    # The root is a full matrix, of which the upper triangle is ignored: cheaper than a triangular transform.
    root = np.tile(scale * np.eye(size), (num_latents, 1, 1))
    return gpflow.Parameter(np.zeros((size, num_latents))), gpflow.Parameter(root)


def check_dtype(posterior: OrthogonalPosterior, dtype: str, *, layer: str) -> None:
    """Raises if a kernel or inducing variable that the layer was given is of another dtype."""
    for path, parameter in gpflow.utilities.parameter_dict(posterior).items():
        if parameter.dtype.name != dtype:
            raise ValueError(
                f"Layer {layer!r} computes in {dtype}, but its {path.removeprefix('.')} is of dtype "
                f"{parameter.dtype.name}. Make the object within `with keras_odgp.numerics.float_context({dtype!r}):`, "
                f"or give the layer dtype={parameter.dtype.name!r}."
            )


def claim(posterior: OrthogonalPosterior, mean_layer: keras.Layer | None, layer: keras.Layer) -> None:
    """Raises if weights belong to another layer already: Keras would train them twice, and save but one of them."""
    for parameter in posterior.parameters:
        _claim(parameter, layer, "kernel or inducing variable", "by `gpflow.utilities.deepcopy`")
    if mean_layer is not None and mean_layer.weights:
        _claim(mean_layer, layer, "mean function", "a layer made from the same configuration")


def _claim(thing: Any, layer: keras.Layer, kind: str, remedy: str) -> None:
    # With the identity of the thing, so that a copy of it belongs to nobody.
    reference, identity = getattr(thing, "_keras_odgp_owner", (None, None))
    owner = reference() if reference is not None and identity == id(thing) else None
    object.__setattr__(thing, "_keras_odgp_owner", (weakref.ref(layer), id(thing)))  # unseen by Keras, which tracks
    if owner is not None and owner is not layer:
        raise ValueError(
            f"Layers {owner.name!r} and {layer.name!r} were given the same {kind}. Weights belong to one layer: give "
            f"each its own, for example {remedy}."
        )
