"""The hand-derived gradient of stationary kernels against GPflow's own kernels."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same
from hypothesis import given
from hypothesis import strategies as st

from keras_odgp.covariances.stationary import evaluate
from keras_odgp.numerics import float_context

KERNELS = ["SquaredExponential", "Exponential", "Matern12", "Matern32", "Matern52"]


def make_kernel(name, rng, num_inputs, **settings):
    return getattr(gpflow.kernels, name)(
        variance=rng.uniform(0.5, 2.0), lengthscales=rng.uniform(0.5, 2.0, size=num_inputs), **settings
    )


def value_and_gradients(function, kernel, X, X2, weights, jit_compile=None):
    inputs = [X] if X2 is None else [X, X2]
    variables = list(kernel.trainable_variables)

    @tf.function(jit_compile=jit_compile)
    def run(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            K = function(kernel, *inputs)
            loss = tf.reduce_sum(weights * K)
        return K, tape.gradient(loss, [*inputs, *variables])

    K, gradients = run(*inputs)
    return [K, *gradients]


def assert_agree(got, wanted, tolerance):
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max()))


@given(
    name=st.sampled_from(KERNELS),
    num_inputs=st.integers(1, 6),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    seed=st.integers(0, 10_000),
)
def test_values_and_gradients_are_those_of_gpflow(name, num_inputs, sizes, seed):
    rng = np.random.default_rng(seed)
    kernel = make_kernel(name, rng, num_inputs)
    X, X2 = (tf.constant(rng.normal(size=(size, num_inputs))) for size in sizes)
    weights = rng.normal(size=sizes)
    wanted = value_and_gradients(lambda k, *inputs: k(*inputs), kernel, X, X2, weights)
    # 1e-10: squared distances are differences, in both, and close pairs of points lose digits of them
    assert_agree(value_and_gradients(evaluate, kernel, X, X2, weights), wanted, 1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_one_set_of_points(name, rng):
    """On the diagonal the distance is zero, which GPflow has up to rounding: 1e-16 in r^2 and its root, 1e-8, in r."""
    kernel = make_kernel(name, rng, 3)
    X, weights = tf.constant(rng.normal(size=(7, 3))), rng.normal(size=(7, 7))
    got = value_and_gradients(evaluate, kernel, X, None, weights)
    wanted = value_and_gradients(lambda k, X: k(X), kernel, X, None, weights)
    assert_agree(got, wanted, 1e-6 if name in ("Exponential", "Matern12") else 1e-10)
    np.testing.assert_array_equal(np.diag(got[0]), np.full(7, kernel.variance.numpy()))
    assert all(np.isfinite(value).all() for value in got)


@pytest.mark.parametrize("active_dims", [[2, 0], slice(1, 3)], ids=str)
def test_active_dimensions(active_dims, rng):
    kernel = make_kernel("Matern52", rng, 2, active_dims=active_dims)
    X, X2, weights = tf.constant(rng.normal(size=(5, 4))), tf.constant(rng.normal(size=(6, 4))), rng.normal(size=(5, 6))
    wanted = value_and_gradients(lambda k, *inputs: k(*inputs), kernel, X, X2, weights)
    assert_agree(value_and_gradients(evaluate, kernel, X, X2, weights), wanted, 1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_single_precision_and_one_lengthscale(name, rng):
    X, X2 = (tf.constant(rng.normal(size=(size, 3)), tf.float32) for size in (5, 6))
    weights = rng.normal(size=(5, 6)).astype(np.float32)
    with float_context("float32"):
        kernel = getattr(gpflow.kernels, name)(lengthscales=1.3)
        wanted = value_and_gradients(lambda k, *inputs: k(*inputs), kernel, X, X2, weights)
        got = value_and_gradients(evaluate, kernel, X, X2, weights)
    assert all(value.dtype == tf.float32 for value in got)
    assert_agree(got, wanted, 1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_second_derivative(name, rng):
    kernel = make_kernel(name, rng, 2)
    X, X2 = tf.constant(rng.normal(size=(3, 2))), tf.constant(rng.normal(size=(4, 2)))
    weights = rng.normal(size=(3, 4))

    def hessian(function):
        with tf.GradientTape() as outer:
            outer.watch(X)
            with tf.GradientTape() as inner:
                inner.watch(X)
                loss = tf.reduce_sum(weights * function(X, X2))
            gradient = inner.gradient(loss, X)
        return outer.jacobian(gradient, X)

    assert_agree([hessian(lambda *inputs: evaluate(kernel, *inputs))], [hessian(kernel)], 1e-10)


def test_compiles_with_xla_and_other_kernels_are_left_alone(rng):
    X, X2, weights = tf.constant(rng.normal(size=(5, 2))), tf.constant(rng.normal(size=(6, 2))), rng.normal(size=(5, 6))
    kernel = make_kernel("Matern52", rng, 2)
    wanted = value_and_gradients(evaluate, kernel, X, X2, weights)
    assert_agree(value_and_gradients(evaluate, kernel, X, X2, weights, jit_compile=True), wanted, 1e-12)

    class Doubled(gpflow.kernels.Matern52):
        def K_r(self, r):
            return 2.0 * super().K_r(r)

    for other in (Doubled(), gpflow.kernels.Matern52() + gpflow.kernels.White()):
        assert_same(evaluate(other, X, X2), other(X, X2))


@pytest.mark.parametrize("name", KERNELS)
def test_points_far_from_zero_keep_their_digits_in_float32(name, rng):
    X, X2 = (np.float32(1e6 + rng.normal(size=(n, 3))) for n in (9, 7))
    weights = rng.normal(size=(9, 7))
    results = {}
    for dtype in ("float32", "float64"):
        with float_context(dtype):
            kernel = getattr(gpflow.kernels, name)(variance=1.5, lengthscales=[0.5, 1.0, 2.0])
            inputs = (tf.constant(array, dtype) for array in (X, X2))
            results[dtype] = value_and_gradients(evaluate, kernel, *inputs, tf.constant(weights, dtype))
    # Differences of these inputs are exact; what is left are roundings of float32 and sums of 63 products.
    assert_agree(results["float32"], results["float64"], 1e-5)


FAR = {"float32": (30.0, 100.0, 1e3), "float64": (1e4, 1e6, 1e8)}


@pytest.mark.parametrize("dtype, far", [(dtype, far) for dtype, distances in FAR.items() for far in distances])
@pytest.mark.parametrize("name", KERNELS)
def test_clusters_many_lengthscales_apart(name, dtype, far, rng):
    """In each, neighbours stay neighbours, and K positive definite up to rounding of the positions themselves."""
    X = rng.normal(size=(100, 2))
    X[60:] += far
    rounded = X.astype(dtype)
    with float_context(dtype):
        kernel = getattr(gpflow.kernels, name)()
        K = np.asarray(evaluate(kernel, tf.constant(rounded)), np.float64)
        crossed = evaluate(kernel, tf.constant(rounded), tf.constant(rounded[::-1].copy()))[:, ::-1]
    distances = np.linalg.norm(rounded[:, None].astype(np.float64) - rounded[None], axis=-1)
    exact = getattr(gpflow.kernels, name)()(np.zeros((1, 1)), distances.reshape(-1, 1)).numpy().reshape(100, 100)
    # Differences to the centre are rounded, by half a unit of the last digit of `far`; the rest is up to rounding of
    # squares of 2,500 in float32 and of 1e8 in float64, below which they come from one product.
    tolerance = 4.0 * far * np.finfo(dtype).eps + {"float32": 1e-3, "float64": 1e-7}[dtype]
    if name in ("Exponential", "Matern12"):  # which see the root of an error
        tolerance = tolerance**0.5
    np.testing.assert_allclose(K, exact, rtol=0, atol=tolerance)
    np.testing.assert_allclose(crossed, exact, rtol=0, atol=tolerance)
    assert np.linalg.eigvalsh(K).min() > -2.0 * tolerance


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KERNELS)
def test_points_that_coincide_far_from_the_others_stay_together(name, dtype, rng):
    """Rounding would have them apart: the squares of such distances are differences of numbers of 1e16 and more."""
    X = 1e8 * rng.normal(size=(200, 8))
    with float_context(dtype):
        kernel = getattr(gpflow.kernels, name)(variance=1.5, lengthscales=rng.uniform(0.5, 2.0, size=8))
        K = evaluate(kernel, tf.constant(X, dtype), tf.constant(X.copy(), dtype))
        compiled = tf.function(evaluate, jit_compile=True)(kernel, tf.constant(X, dtype), tf.constant(X.copy(), dtype))
    for got in (K, compiled):  # 1e-6: the variance is rounded when it is read
        np.testing.assert_allclose(got, 1.5 * np.eye(200), rtol=1e-6, atol=0)
