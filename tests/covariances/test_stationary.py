"""The hand-derived gradient of stationary kernels against GPflow's own kernels."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same
from hypothesis import given
from hypothesis import strategies as st

from keras_odgp.covariances.stationary import evaluate, evaluate_each, evaluate_prepared, prepare
from keras_odgp.numerics import add_jitter, float_context

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


FAR = {"float32": (30.0, 100.0, 1e3, 1e6, 1e8), "float64": (1e3, 1e4, 1e6, 1e8)}


def clusters(far, dtype, rng, num=100, share=0.4):
    X = rng.normal(size=(num, 2))
    X[num - round(share * num) :] += far
    return X.astype(dtype)


def by_differences(name, X, lengthscale=1.0):
    """K in float64 from differences of points, by GPflow's kernel on a line."""
    difference = tf.cast(X, tf.float64)[:, None] - tf.cast(X, tf.float64)
    distances = tf.sqrt(tf.reduce_sum(tf.square(difference / lengthscale), axis=-1) + 1e-24)
    K = getattr(gpflow.kernels, name)()(tf.zeros((1, 1), tf.float64), tf.reshape(distances, (-1, 1)))
    return tf.reshape(K, distances.shape)


@pytest.mark.parametrize("dtype, far", [(dtype, far) for dtype, distances in FAR.items() for far in distances])
@pytest.mark.parametrize("name", KERNELS)
def test_clusters_many_lengthscales_apart(name, dtype, far, rng):
    """In each, neighbours stay neighbours."""
    X = clusters(far, dtype, rng)
    with float_context(dtype):
        kernel = getattr(gpflow.kernels, name)()
        K = evaluate(kernel, tf.constant(X))
        crossed = evaluate(kernel, tf.constant(X), tf.constant(X[::-1].copy()))[:, ::-1]
        prepared = evaluate_prepared(kernel, prepare(kernel, tf.constant(X)), kernel.variance, tf.constant(X))
    # What one product may lose: a tenth of the jitter in float64, ten times of it in float32, of norms that are up to
    # five times as large. Further apart, differences have all their digits, whichever cluster the centre is in.
    tolerance = {"float32": 1e-3, "float64": 1e-8}[dtype]
    if name in ("Exponential", "Matern12"):  # which see the root of an error
        tolerance = tolerance**0.5
    for got in (K, crossed, prepared):
        np.testing.assert_allclose(got, by_differences(name, X), rtol=0, atol=tolerance)


@pytest.mark.parametrize("far", FAR["float32"])
@pytest.mark.parametrize("name", ["SquaredExponential", "Matern32", "Matern52"])
def test_sets_whose_centres_are_in_different_clusters_belong_together(name, far, rng):
    """The covariances of each and those of one with the other are parts of one positive definite matrix."""
    Z, V = clusters(far, "float32", rng, 30, share=0.3), clusters(far, "float32", rng, 30, share=0.7)
    both = np.concatenate([Z, V])
    with float_context("float32"):
        kernel = getattr(gpflow.kernels, name)()
        crossed = evaluate(kernel, tf.constant(Z), tf.constant(V))
        K = np.block([[evaluate(kernel, tf.constant(Z)), crossed], [np.transpose(crossed), evaluate(kernel, V)]])
        prepared = evaluate_prepared(kernel, prepare(kernel, tf.constant(both)), kernel.variance, tf.constant(both))
    # As above; errors of nearby points are alike, and the first jitter, 1e-5, is enough for them.
    np.testing.assert_allclose(K, by_differences(name, both), rtol=0, atol=1e-3)
    np.testing.assert_allclose(prepared, by_differences(name, both), rtol=0, atol=1e-3)
    assert np.isfinite(np.linalg.cholesky(add_jitter(tf.constant(K)))).all()


@pytest.mark.parametrize("far", [1.5e3, 3e3, 2e4, 1e6])
@pytest.mark.parametrize("name", KERNELS)
def test_clusters_have_positive_definite_covariances(name, far, rng):
    """With the first jitter, before any retry, on either side of where distances are taken column by column."""
    K = evaluate(getattr(gpflow.kernels, name)(), tf.constant(clusters(far, "float64", rng, 400)))
    assert np.isfinite(np.linalg.cholesky(add_jitter(K))).all()


@pytest.mark.parametrize("dtype, far", [("float32", 1e3), ("float64", 1e7)])
@pytest.mark.parametrize("name", ["SquaredExponential", "Matern32", "Matern52"])
def test_lengthscales_and_points_have_gradients_in_clusters(name, dtype, far, rng):
    X = clusters(far, dtype, rng)
    weights = rng.normal(size=(100, 100))
    points, lengthscale = tf.constant(X, tf.float64), tf.constant(1.3, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch((points, lengthscale))
        loss = tf.reduce_sum(weights * by_differences(name, points, lengthscale))
    wanted, wanted_slope = tape.gradient(loss, (points, lengthscale))
    with float_context(dtype):
        kernel = getattr(gpflow.kernels, name)(lengthscales=1.3)
        points = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(points)
            loss = tf.reduce_sum(tf.cast(weights, points.dtype) * evaluate(kernel, points))
        got, slope = tape.gradient(loss, (points, kernel.lengthscales.unconstrained_variable))
    slope /= tf.sigmoid(kernel.lengthscales.unconstrained_variable)
    # Positions are rounded by half a unit of the last digit of `far`, and so are their products with gradients.
    tolerance = 20.0 * far * np.finfo(dtype).eps
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())
    np.testing.assert_allclose(slope, wanted_slope, rtol=0, atol=tolerance * np.abs(wanted).sum())


@pytest.mark.parametrize("far", [0.0, 1e8])
def test_derivatives_of_compiled_functions(far, rng):
    """Of covariances by XLA and in parallel, once and twice, for ordinary points as for clusters."""
    X, Z = (tf.constant(clusters(far, "float64", rng, 10)) for _ in range(2))
    kernel, weights = gpflow.kernels.Matern52(), rng.normal(size=(10, 10))
    tolerance = 1e-12 + 10.0 * far * np.finfo(np.float64).eps
    prepared = prepare(kernel, Z)

    def gradient(function, X):
        with tf.GradientTape() as tape:
            tape.watch(X)
            value = tf.reduce_sum(weights * function(X))
        return tape.gradient(value, X)

    def curvature(function, X):
        return gradient(lambda X: gradient(function, X) * weights[:, :2] @ np.ones((2, 10)), X)

    def jacobian(function, X):
        with tf.GradientTape() as tape:
            tape.watch(X)
            value = function(X)
        return tape.batch_jacobian(value, X)

    def cached(X):
        return evaluate_prepared(kernel, prepared, kernel.variance, X)

    def plain(X):
        return evaluate(kernel, X, Z)

    for function in (cached, plain):
        for derivative in (gradient, curvature):
            wanted = derivative(function, X)
            for jit_compile in (False, True):
                compiled = tf.function(lambda X: derivative(function, X), jit_compile=jit_compile)  # noqa: B023
                np.testing.assert_allclose(compiled(X), wanted, rtol=0, atol=tolerance * np.abs(wanted).max())
        rows = tf.function(jacobian)(function, X)
        wanted = tf.einsum("nm,nmd->nd", weights, rows)
        np.testing.assert_allclose(wanted, gradient(function, X), rtol=0, atol=tolerance * np.abs(wanted).max())


def test_second_derivatives_where_few_sizes_are_known(rng):
    """The loop over columns keeps the shape it starts with, also where one row and no number of columns is known."""
    kernel, X = gpflow.kernels.SquaredExponential(), tf.constant(rng.normal(size=(1, 2)))
    Z = tf.constant(rng.normal(size=(1, 2)))

    def curvature(X):
        with tf.GradientTape() as outer:
            outer.watch(X)
            with tf.GradientTape() as inner:
                inner.watch(X)
                K = evaluate(kernel, X, Z)
            slope = tf.reduce_sum(inner.gradient(K, X))
        return outer.gradient(slope, X)

    compiled = tf.function(curvature, input_signature=[tf.TensorSpec([1, None], tf.float64)])
    np.testing.assert_allclose(compiled(X), curvature(X), rtol=1e-12)


@pytest.mark.parametrize("far", [1e3, 1e5])
def test_lengthscale_gradients_in_float32_have_the_digits_that_distance_leaves(far):
    """What docs/sharp_bits.md says of clusters; about one rounding of the distance was measured."""
    errors, sizes = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X, weights = clusters(far, "float32", rng, 40), rng.normal(size=(40, 40))
        gradients = []
        for dtype in ("float32", "float64"):
            with float_context(dtype):
                kernel = gpflow.kernels.Matern52(lengthscales=[1.0, 1.0])
                with tf.GradientTape() as tape:
                    points = tf.constant(X.astype(dtype))
                    value = tf.reduce_sum(weights.astype(dtype) * evaluate(kernel, points, tf.identity(points)))
                unconstrained = kernel.lengthscales.unconstrained_variable
                gradients.append(tape.gradient(value, unconstrained).numpy().astype(np.float64))
        errors.append(np.abs(gradients[0] - gradients[1]))
        sizes.append(np.abs(gradients[1]))
    tolerance = 5.0 * far * np.finfo(np.float32).eps
    assert np.sqrt(np.mean(np.square(errors))) < tolerance * np.sqrt(np.mean(np.square(sizes)))


@pytest.mark.parametrize("far", [1e4, 1e6])
@pytest.mark.parametrize("name", ["SquaredExponential", "Matern52"])
def test_second_derivatives_in_clusters(name, far, rng):
    """In inputs and in weights, with rounding of the points as the only error."""
    X = tf.constant(clusters(far, "float64", rng, 20))
    kernel = getattr(gpflow.kernels, name)()
    weights, direction = tf.constant(rng.normal(size=(20, 20))), tf.constant(rng.normal(size=(20, 2)))

    def curvature(function):
        with tf.GradientTape() as outer:
            outer.watch((X, weights))
            with tf.GradientTape() as inner:
                inner.watch(X)
                value = tf.reduce_sum(weights * function(X))
            slope = tf.reduce_sum(inner.gradient(value, X) * direction)
        return outer.gradient(slope, (X, weights))

    got = curvature(lambda X: evaluate(kernel, X, tf.identity(X)))
    wanted = curvature(lambda X: by_differences(name, X))
    off_diagonal = 1.0 - np.eye(20)  # where by_differences has the derivative of a root at zero
    tolerance = 20.0 * far * np.finfo(np.float64).eps
    np.testing.assert_allclose(got[0], wanted[0], rtol=0, atol=tolerance * np.abs(wanted[0]).max())
    np.testing.assert_allclose(
        got[1] * off_diagonal, wanted[1] * off_diagonal, rtol=0, atol=tolerance * np.abs(wanted[1]).max()
    )


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_inputs_that_are_not_finite_leave_the_others_alone(bad, rng):
    """Those near the centre, and those of clusters, which are taken column by column with them as without."""
    for far in (0.0, 1e6):
        kernel, Z = gpflow.kernels.Matern32(), tf.constant(clusters(far, "float64", rng, 10))
        X = clusters(far, "float64", rng, 10)
        wanted = evaluate(kernel, Z, tf.constant(X))
        X[3, 1] = bad
        got = evaluate(kernel, Z, tf.constant(X)).numpy()
        assert np.isnan(got[:, 3]).all()
        np.testing.assert_array_equal(np.delete(got, 3, axis=1), np.delete(wanted, 3, axis=1))


@pytest.mark.parametrize("num_bad", [1, 2, 5, 9])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_rows_that_are_not_finite_leave_the_others_alone_in_their_own_set(bad, num_bad, rng):
    X = rng.normal(size=(9, 2))
    wanted = gpflow.kernels.Matern52()(X).numpy()
    X[:num_bad, 1] = bad
    got = evaluate(gpflow.kernels.Matern52(), tf.constant(X)).numpy()
    np.testing.assert_allclose(got[num_bad:, num_bad:], wanted[num_bad:, num_bad:], rtol=0, atol=1e-12)
    assert np.isnan(got[:num_bad, num_bad:]).all()


def test_no_inputs():
    kernel, nothing, some = gpflow.kernels.Matern52(), tf.zeros((0, 2), tf.float64), tf.zeros((3, 2), tf.float64)
    assert evaluate(kernel, nothing).shape == (0, 0)
    assert evaluate(kernel, nothing, some).shape == (0, 3)
    assert evaluate(kernel, some, nothing).shape == (3, 0)


def test_sets_of_inputs(rng):
    X = tf.constant(np.stack([clusters(far, "float64", rng, 12) for far in (0.0, 1e4, 1e8)]))
    for kernel in (gpflow.kernels.Matern52(), gpflow.kernels.Matern52() + gpflow.kernels.Constant(0.5)):
        got = evaluate_each(kernel, X)
        np.testing.assert_allclose(got[0], kernel(X[0]), rtol=0, atol=1e-12)
        if isinstance(kernel, gpflow.kernels.Matern52):
            for inputs, K in zip(X, got):
                np.testing.assert_array_equal(K, evaluate(kernel, inputs))


def test_infinite_inputs_are_not_taken_for_far_ones():
    kernel = gpflow.kernels.SquaredExponential()
    X = tf.constant([[np.inf, 0.0], [1.0, 2.0], [0.0, 1.0]], tf.float64)
    K = evaluate(kernel, X, tf.constant([[5.0, 0.0]], tf.float64))
    assert np.isnan(K[0, 0]) and np.isfinite(K[1:, 0]).all()


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
