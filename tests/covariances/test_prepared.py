"""Prepared covariances against `Kuf` and the kernel, and predictions where features are nearly alike."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from builders import KERNELS, PAIRS, make_feature
from gpflow.inducing_variables import InducingPoints

from keras_odgp import numerics
from keras_odgp.covariances import Kuf
from keras_odgp.covariances.prepared import FeatureMap, feature_map
from keras_odgp.inducing import ActivationFeatures
from keras_odgp.kernels import ArcCosine, Matern52
from keras_odgp.orthogonal import OrthogonalPosterior


def assert_equals_kuf(kernel, sets, X, *, is_general=False):
    """Values and gradients in the inputs, all scales multiplied in."""
    each = feature_map(kernel, sets)
    assert (type(each) is FeatureMap) == is_general
    prepared = each.prepare()
    upstream = [np.random.default_rng(1).normal(size=(len(X), int(part.num_inducing))) for part in sets]

    def ours(X):
        found = each(prepared.tensors, X).scaled()
        values = [scale * part for scale, part in zip(prepared.scales, found.sets)]
        return values, tf.broadcast_to(found.prior[:, 0], [X.shape[0]])

    def reference(X):
        return [tf.transpose(Kuf(part, kernel, X)) for part in sets], kernel(X, full_cov=False)

    results = []
    for function in (ours, reference):
        inputs = tf.Variable(X)
        with tf.GradientTape() as tape:
            values, prior = function(inputs)
            total = tf.add_n([tf.reduce_sum(u * v) for u, v in zip(upstream, values)]) + tf.reduce_sum(prior)
        gradient = tape.gradient(total, inputs)
        results.append([*values, prior, tf.convert_to_tensor(gradient)])
    for got, expected in zip(*results):
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("radial_power", [0, 1, 2])
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_on_the_sphere(name, radial_power, rng):
    kernel = KERNELS[name](
        variance=0.7, weight_variances=[0.5, 2.0], bias_variance=1.5, radial_power=radial_power, active_dims=[0, 2]
    )
    X = rng.normal(size=(4, 3))
    for kinds in PAIRS if (name, radial_power) == ("arccos", 1) else PAIRS[::4]:
        sets = [make_feature(kind, kernel, 2, rng, num=3, num_levels=3) for kind in kinds]
        for index, part in enumerate(sets):  # features of all three columns, of which the kernel sees two
            if isinstance(part, InducingPoints):
                sets[index] = InducingPoints(rng.normal(size=(3, 3)))
            elif isinstance(part, ActivationFeatures):
                sets[index] = ActivationFeatures(rng.normal(size=(3, 4)), num_levels=3)
        assert_equals_kuf(kernel, sets, X)
        assert_equals_kuf(kernel, sets[:1], X)


@pytest.mark.parametrize("cls", ["SquaredExponential", "Exponential", "Matern12", "Matern32", "Matern52"])
def test_stationary(cls, rng):
    kernel = getattr(gpflow.kernels, cls)(variance=0.7, lengthscales=[0.5, 2.0], active_dims=[0, 2])
    sets = [InducingPoints(rng.normal(size=(num, 3))) for num in (3, 2)]
    assert_equals_kuf(kernel, sets, rng.normal(size=(4, 3)))
    assert_equals_kuf(kernel, sets[:1], rng.normal(size=(4, 3)))


def test_other_kernels_are_called_as_they_are(rng):
    kernel = gpflow.kernels.Matern52() + gpflow.kernels.Linear()
    sets = [InducingPoints(rng.normal(size=(num, 2))) for num in (3, 2)]
    assert_equals_kuf(kernel, sets, rng.normal(size=(4, 2)), is_general=True)


def test_inputs_of_another_width_are_named(rng):
    each = feature_map(ArcCosine(), [ActivationFeatures(rng.normal(size=(3, 3)))])
    with pytest.raises(ValueError, match="2 .active. columns.*Got 3"):
        each(each.prepare().tensors, tf.ones([4, 3], tf.float64))


@pytest.mark.filterwarnings("ignore:40 softplus features")  # one more than they span, to be nearly singular
@pytest.mark.parametrize("num_outputs", [1, 2])
@pytest.mark.parametrize(("jitter", "least_condition"), [(1e-8, 1e8), (1e-12, 1e11)])
def test_predictions_keep_their_digits_where_features_are_nearly_alike(num_outputs, jitter, least_condition, rng):
    """The explicit inverse of the factor costs at most its condition, the root of that of the covariance."""
    kernel, base = ArcCosine(), ActivationFeatures(rng.normal(size=(40, 4)))
    sizes = (40, 30)
    q = []
    for size in sizes:
        root = 0.3 * np.eye(size) + np.tril(rng.normal(size=(num_outputs, size, size))) * 0.1 / np.sqrt(size)
        q.append((rng.normal(size=(size, num_outputs)), root))
    points = InducingPoints(rng.normal(size=(30, 3)))
    with numerics.jitter_scope(jitter):
        Kuu = numerics.add_jitter(tf.convert_to_tensor(gpflow.covariances.Kuu(base, kernel)))
        assert np.linalg.cond(Kuu) > least_condition
        posterior = OrthogonalPosterior(kernel, base, *q[0], points, *q[1], precompute_cache="tensor")
        X = tf.constant(rng.normal(size=(50, 3)))
        (mean, variance), (fused_mean, fused_variance) = posterior.predict_f(X), posterior.fused_predict_f(X)
    prior = kernel(X, full_cov=False)[:, None]
    tolerance = 10 * np.finfo(float).eps * np.sqrt(np.linalg.cond(Kuu))
    assert np.abs((variance - fused_variance) / prior).max() < tolerance
    assert (
        np.abs(mean - fused_mean).max() < 100 * tolerance
    )  # products of weights as large as the root of the condition


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_variances_in_float32_are_as_good_as_in_training(num_outputs, rng):
    """With certain q, variances are what is left of prior variances; the product must not round them away."""
    Z, X = np.sort(rng.uniform(-1, 1, (100, 1)), axis=0), rng.uniform(-1, 1, (60, 1))
    root = np.tile(1e-3 * np.eye(100), [num_outputs, 1, 1])
    mu = rng.normal(size=(100, num_outputs))

    def posterior(dtype):
        with numerics.float_context(dtype), numerics.jitter_scope(1e-5):
            points = InducingPoints(Z.astype("float32").astype(dtype))
            kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3)
            result = OrthogonalPosterior(
                kernel, points, mu.astype(dtype), root.astype(dtype), precompute_cache="tensor"
            )
            inputs = tf.constant(X.astype("float32").astype(dtype))
            return result.predict_f(inputs)[1].numpy(), result.fused_predict_f(inputs)[1].numpy()

    _, exact = posterior("float64")
    cached, fused = posterior("float32")
    # A few roundings of the prior variance, 1. By an inverse in float32 it is 1e-5, and a third of them are negative.
    np.testing.assert_allclose(fused, exact, rtol=0, atol=3e-6)
    np.testing.assert_allclose(cached, exact, rtol=0, atol=3e-6)


def test_kernels_derived_from_zonal_ones_are_called_as_they_are(rng):
    class Own(Matern52):
        def K(self, X, X2=None):
            return 2.0 * super().K(X, X2)

        def K_diag(self, X):
            return 2.0 * super().K_diag(X)

    assert type(feature_map(Own(), [InducingPoints(rng.normal(size=(3, 2)))])) is FeatureMap
