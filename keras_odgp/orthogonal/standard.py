r"""Covariances for the training path, with amplitudes taken out.

Under many kernels a function is $f(x) = a(x)\, g(x)$: a stationary kernel has its standard deviation as amplitude, a
zonal one a norm as well. Whitened features do not see their own amplitudes, and those of inputs can be multiplied to
the moments of $g$ in the end. So no matrix has to be scaled, nor its gradient; and every set of features, and the
inputs, are brought into the units of the kernel once, not for each covariance that they are part of.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import tensorflow as tf
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.kernels import Kernel

from keras_odgp.covariances import sphere, stationary
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.orthogonal.gram import Cross, Gram, are_disjoint, assemble, cross, gram, latents
from keras_odgp.orthogonal.variational import Variational


class Amplitudes(NamedTuple):
    """Factors of base features, of orthogonal features and of function values at the inputs, each a scalar or a
    vector.
    """

    base: tf.Tensor
    orthogonal: tf.Tensor | None
    inputs: tf.Tensor

    def take_out(self, q: Variational) -> Variational:
        """An unwhitened q over features without amplitudes."""

        def divide(values: tf.Tensor | None, amplitude: tf.Tensor) -> tf.Tensor | None:
            return None if values is None else values / _columns(amplitude, values.shape[-1])

        return Variational(
            divide(q.mu, self.base),
            divide(q.sqrt, self.base),
            divide(q.orthogonal_mu, self.orthogonal),
            divide(q.orthogonal_sqrt, self.orthogonal),
        )

    def put_back(self, mean: tf.Tensor, variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Moments `[N, P]` of f from those of g."""
        factor = _columns(self.inputs, mean.shape[1])
        return factor * mean, tf.square(factor) * variance


def _columns(amplitude: tf.Tensor, width: int) -> tf.Tensor:
    """An amplitude for each row of a matrix of that width.

    Tiled, not broadcast: then the graph is the same for one output and for many.
    """
    return tf.tile(amplitude[:, None], [1, width]) if amplitude.shape.rank else amplitude


def standardised(
    kernel: Kernel, base: InducingVariables, orthogonal: InducingVariables | None, X: tf.Tensor
) -> tuple[Gram, Cross, Amplitudes | None]:
    """Covariances among features and with function values at inputs `[N, D]`, without the amplitudes.

    These are None where nothing was taken out: for kernels whose amplitudes are not known, and for outputs with
    kernels or features of their own.
    """
    geometry = _geometry(kernel, base, orthogonal)
    if geometry is None:
        features = (kernel, base, orthogonal)
        return gram(*features), cross(*features, X), None
    [(kernel, base, orthogonal)] = latents(kernel, base, orthogonal)
    placed = geometry.place(kernel, *(part for part in (base, orthogonal, X) if part is not None))
    u, v, x = placed if orthogonal is not None else (placed[0], None, placed[1])
    prior = tf.fill([tf.shape(X)[0]], tf.constant(getattr(kernel, "shape_at_one", 1.0), X.dtype))

    G = assemble(
        lambda first, second: geometry.unit_covariance(first, second, kernel),
        u,
        v,
        correlated=not are_disjoint(kernel, base, orthogonal),
    )
    C = Cross(
        geometry.unit_covariance(u, x, kernel), None if v is None else geometry.unit_covariance(v, x, kernel), prior
    )
    return G, C, Amplitudes(*(None if part is None else geometry.amplitude(part, kernel) for part in (u, v, x)))


def _geometry(kernel: Kernel, base: InducingVariables, orthogonal: InducingVariables | None) -> ModuleType | None:
    """The module that knows the kernel's units, amplitudes and unit covariances."""
    processes = latents(kernel, base, orthogonal)
    if len(processes) > 1:
        return None
    kernel, *sets = processes[0]
    kinds = {type(features) for features in sets if features is not None}
    if sphere.is_known(kernel) and kinds <= {InducingPoints, ActivationFeatures, SphericalHarmonics}:
        return sphere
    return stationary if stationary.is_known(kernel) and kinds == {InducingPoints} else None
