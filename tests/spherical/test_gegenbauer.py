import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_odgp.spherical import num_harmonics, zonal_polynomials, zonal_series

DIMENSIONS = (2, 3, 5, 9, 20)
T = np.linspace(-1.0, 1.0, 41)


def reference_zonal(level: int, dimension: int, t: np.ndarray) -> np.ndarray:
    """Z_l by SciPy: (l + alpha) / alpha C_l^(alpha), and 2 T_l on the circle."""
    if dimension == 2:
        return (1.0 if level == 0 else 2.0) * scipy.special.eval_chebyt(level, t)
    alpha = (dimension - 2) / 2
    return (level + alpha) / alpha * scipy.special.eval_gegenbauer(level, alpha, t)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_polynomials_are_scaled_gegenbauer_and_chebyshev(dimension):
    values = zonal_polynomials(tf.constant(T), 12, dimension).numpy()
    for level in range(12):
        expected = reference_zonal(level, dimension, T)
        # 1e-13 of the largest value: rounding of SciPy's and of our recurrence
        np.testing.assert_allclose(
            num_harmonics(dimension, level) * values[level], expected, atol=1e-13 * np.abs(expected).max()
        )
    np.testing.assert_allclose(values[:, -1], 1.0, rtol=1e-13)


def test_number_of_harmonics():
    assert [num_harmonics(3, level) for level in range(5)] == [1, 3, 5, 7, 9]
    assert [num_harmonics(2, level) for level in range(4)] == [1, 2, 2, 2]
    # dimension of homogeneous polynomials minus that of two degrees lower
    for d in DIMENSIONS:
        for level in range(2, 9):
            difference = scipy.special.comb(level + d - 1, d - 1, exact=True) - scipy.special.comb(
                level + d - 3, d - 1, exact=True
            )
            assert num_harmonics(d, level) == difference


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_orthogonality_under_the_normalised_measure(dimension):
    nodes, weights = scipy.special.roots_gegenbauer(20, (dimension - 2) / 2)
    values = zonal_polynomials(tf.constant(nodes), 8, dimension).numpy()
    gram = values * weights / weights.sum() @ values.T
    expected = np.diag([1 / num_harmonics(dimension, level) for level in range(8)])
    np.testing.assert_allclose(gram, expected, atol=1e-14)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_derivative_identity(dimension):
    t = tf.constant(T)
    for level in range(1, 7):
        with tf.GradientTape() as tape:
            tape.watch(t)
            value = zonal_polynomials(t, level + 1, dimension)[-1]
        factor = level * (level + dimension - 2) / (dimension - 1)
        expected = factor * zonal_polynomials(t, level, dimension + 2)[-1]
        np.testing.assert_allclose(tape.gradient(value, t), expected, atol=1e-12 * factor)


@given(
    dimension=st.integers(2, 25),
    levels=st.sets(st.integers(0, 24), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
)
def test_series_and_its_gradients_equal_the_plain_sum(dimension, levels, seed):
    levels = tuple(sorted(levels))
    rng = np.random.default_rng(seed)
    counts = np.array([num_harmonics(dimension, level) for level in levels], dtype=float)
    coefficients = rng.normal(size=len(levels)) / counts
    t = tf.constant(rng.uniform(-1, 1, size=(3, 7)))
    upstream = tf.constant(rng.normal(size=(3, 7)))

    def plain(t, coefficients):
        polynomials = tf.gather(zonal_polynomials(t, max(levels) + 1, dimension), levels)
        return tf.einsum("l,lij->ij", coefficients * counts, polynomials)

    results = []
    for function in (plain, lambda t, c: zonal_series(t, c, levels=levels, dimension=dimension)):
        c = tf.constant(coefficients)
        with tf.GradientTape() as tape:
            tape.watch([t, c])
            value = function(t, c)
        results.append((value, *tape.gradient(value, [t, c], output_gradients=upstream)))
    for expected, got in zip(*results):
        # monomials of level 15 cancel to 4e-13 of the largest value
        scale = np.abs(expected).max() + 1.0
        np.testing.assert_allclose(got, expected, atol=2e-11 * scale)
    constant = zonal_series(t, coefficients, levels=levels, dimension=dimension)
    np.testing.assert_allclose(constant, results[1][0], atol=1e-14)


@pytest.mark.parametrize("num_levels", [8, 9, 24])
def test_series_in_float32_keeps_six_digits(num_levels, rng):
    levels = tuple(range(num_levels))
    coefficients = rng.normal(size=num_levels) / [num_harmonics(9, level) for level in levels]
    exact = zonal_series(tf.constant(T), coefficients, levels=levels, dimension=9).numpy()
    single = zonal_series(tf.constant(T, tf.float32), coefficients, levels=levels, dimension=9).numpy()
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, atol=1e-5 * np.abs(exact).max())


def test_number_of_stored_arrays_does_not_grow_with_the_levels():
    """The backward pass reads t and the upstream gradient, however many levels there are."""

    def num_stored(num_levels):
        @tf.function
        def forward(t):
            return zonal_series(t, np.ones(num_levels), levels=tuple(range(num_levels)), dimension=5)

        concrete = forward.get_concrete_function(tf.TensorSpec((64, 64), tf.float64))
        _, backward = concrete._delayed_rewrite_functions.forward_backward()  # no public name; TensorFlow 2.21
        return sum(x.shape.as_list() == [64, 64] for x in backward.inputs)

    assert num_stored(4) == num_stored(12) == num_stored(30)


def test_empty_series_is_zero():
    assert not np.any(zonal_series(tf.constant(T), np.zeros(0), levels=(), dimension=3))


@pytest.mark.parametrize("dimension", [1, 0, -3, 2.5])
def test_dimension_below_two_is_refused(dimension):
    with pytest.raises(ValueError, match="Expected `dimension` to be an integer of at least 2"):
        zonal_polynomials(tf.constant(T), 3, dimension)


@pytest.mark.parametrize("num_levels", [0, -1, 1.5])
def test_fewer_than_one_level_is_refused(num_levels):
    with pytest.raises(ValueError, match="Expected `num_levels` to be an integer of at least 1"):
        zonal_polynomials(tf.constant(T), num_levels, 3)
