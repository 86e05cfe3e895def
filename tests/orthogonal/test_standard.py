"""The training path without amplitudes against the same moments of covariances as they are."""

from __future__ import annotations

from collections import Counter

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from builders import PAIRS, make_feature
from gpflow.inducing_variables import InducingPoints

from keras_odgp.inducing import SphericalHarmonics
from keras_odgp.kernels import ArcCosine, Matern52, SquaredExponential
from keras_odgp.orthogonal.gram import cross, gram
from keras_odgp.orthogonal.marginals import marginals, moments
from keras_odgp.orthogonal.standard import standardised
from keras_odgp.orthogonal.variational import variational

ZONAL = {
    "arccos": lambda: ArcCosine(variance=1.7, weight_variances=[0.4, 1.3], bias_variance=0.6),
    "order 2": lambda: ArcCosine(order=2, variance=0.3),
    "no radius": lambda: Matern52(variance=1.7, weight_variances=0.8, lengthscale=0.7, radial_power=0),
    "one active column": lambda: SquaredExponential(variance=0.3, active_dims=[1]),
}


def random_q(rng, u, v, num_outputs=2):
    def part(features):
        size = int(features.shape[0])
        root = np.tril(rng.normal(size=(num_outputs, size, size))) * 0.2 + np.eye(size)
        return tf.constant(rng.normal(size=(size, num_outputs))), tf.constant(root)

    return (*part(u), *(part(v) if v is not None else ()))


def check_equal_to_the_plain_path(kernel, u, v, rng, whiten):
    X, q = tf.constant(rng.normal(size=(7, 2))), random_q(rng, u, v)
    assert standardised(kernel, u, v, X)[2] is not None
    upstream = [tf.constant(rng.normal(size=shape)) for shape in [(7, 2), (7, 2), ()]]

    def value_and_gradients(function):
        owners = [kernel, u] if v is None else [kernel, u, v]
        variables = [variable for owner in owners for variable in owner.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch([X, *q])
            result = function(variational(*q))
        return result, tape.gradient(result, [X, *q, *variables], output_gradients=upstream)

    expected = value_and_gradients(lambda q: moments(gram(kernel, u, v), cross(kernel, u, v, X), q, whiten=whiten))
    got = value_and_gradients(lambda q: marginals(X, kernel, u, v, q, whiten=whiten))
    for wanted, value in zip(tf.nest.flatten(expected), tf.nest.flatten(got), strict=True):
        # 1e-7 of the largest entry: rounding at condition numbers up to 1e8 (squared exponential, one active column)
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-7 * max(1.0, np.abs(wanted).max()))


@pytest.mark.filterwarnings("ignore:.*span a space of dimension")
@pytest.mark.parametrize("whiten", [True, False], ids=["whitened", "unwhitened"])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("name", ZONAL)
def test_zonal_kernels(name, pair, whiten, rng):
    kernel = ZONAL[name]()
    num_active = 1 if name == "one active column" else 2
    # Few harmonics, those of both sets different: they must not span the features of the other set.
    levels = iter([kernel.active_levels(2), kernel.active_levels(5)[2:3]])
    u, v = (
        SphericalHarmonics(num_active + 1, next(levels))
        if kind == "harmonics"
        else make_feature(kind, kernel, 2, rng, num=4)
        for kind in pair
    )
    check_equal_to_the_plain_path(kernel, u, v, rng, whiten)


@pytest.mark.parametrize("whiten", [True, False], ids=["whitened", "unwhitened"])
@pytest.mark.parametrize("cls", [gpflow.kernels.SquaredExponential, gpflow.kernels.Matern12, gpflow.kernels.Matern52])
def test_stationary_kernels(cls, whiten, rng):
    u, v = (InducingPoints(rng.normal(size=(4, 2))) for _ in range(2))
    for orthogonal in (None, v):
        check_equal_to_the_plain_path(cls(variance=1.7, lengthscales=[0.8, 1.4]), u, orthogonal, rng, whiten)


def test_unknown_kernels_keep_their_covariances(rng):
    u, X = InducingPoints(rng.normal(size=(4, 2))), tf.constant(rng.normal(size=(7, 2)))
    total = gpflow.kernels.Matern52() + gpflow.kernels.Linear()
    assert standardised(total, u, None, X)[2] is None

    class Own(gpflow.kernels.Matern52):
        def K(self, X, X2=None):
            return 2.0 * super().K(X, X2)

    _, C, amplitudes = standardised(Own(), u, None, X)
    assert amplitudes is None
    np.testing.assert_allclose(C.Kuf, Own()(u.Z, X))


def test_kernels_derived_from_zonal_ones_keep_their_covariances(rng):
    class Own(Matern52):
        def K(self, X, X2=None):
            return 2.0 * super().K(X, X2)

        def K_diag(self, X):
            return 2.0 * super().K_diag(X)

    u, v = (InducingPoints(rng.normal(size=(4, 2))) for _ in range(2))
    X, q = tf.constant(rng.normal(size=(7, 2))), variational(*random_q(rng, u, v))
    expected = marginals(X, Matern52(variance=2.0), u, v, q, whiten=True)
    for got, wanted in zip(marginals(X, Own(), u, v, q, whiten=True), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-8)  # rounding at a condition number of about 1e4


@pytest.mark.parametrize("whiten", [True, False], ids=["whitened", "unwhitened"])
def test_number_of_operations_does_not_depend_on_the_outputs(whiten, rng):
    kernel, u = Matern52(), InducingPoints(rng.normal(size=(4, 2)))
    v, X = InducingPoints(rng.normal(size=(3, 2))), tf.constant(rng.normal(size=(7, 2)))

    def operations(num_outputs):
        q = random_q(rng, u, v, num_outputs)

        @tf.function
        def run(*upstream):
            with tf.GradientTape() as tape:
                tape.watch([X, *q])
                result = marginals(X, kernel, u, v, variational(*q), whiten=whiten)
            return result, tape.gradient(
                result, [X, *q, *kernel.trainable_variables, u.Z.unconstrained_variable], output_gradients=upstream
            )

        moments_bar = tf.ones([7, num_outputs], tf.float64)
        graph = run.get_concrete_function(moments_bar, moments_bar, tf.constant(1.0, tf.float64)).graph
        # TensorFlow turns constants into fills and captured inputs by their size; everything that computes is counted.
        return Counter(op.type for op in graph.get_operations() if op.type not in {"Const", "Fill", "Placeholder"})

    one, many = operations(1), operations(32)
    assert one == many
    assert one["Cholesky"] == 2
