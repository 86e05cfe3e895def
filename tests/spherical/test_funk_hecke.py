import itertools

import numpy as np
import pytest
import tensorflow as tf
from spherical import high_precision

from keras_odgp.spherical import (
    arc_cosine_coefficients,
    get_activation,
    matern_log_coefficients,
    quadrature_coefficients,
    relu_power_coefficients,
    squared_exponential_log_coefficients,
)

LEVELS = (0, 1, 2, 3, 4, 7, 16, 33, 40)
DIMENSIONS = (2, 3, 9, 20)


@pytest.mark.parametrize("power", [0, 1, 2])
@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_relu_powers_and_arc_cosine_agree_with_mpmath(power, dimension):
    relu = relu_power_coefficients(power, 41, dimension)
    arccos = arc_cosine_coefficients(power, 41, dimension)
    for level in LEVELS:
        for got, function in (
            (relu[level], high_precision.relu_power(power)),
            (arccos[level], high_precision.arc_cosine(power)),
        ):
            if level > power and (level - power) % 2 == 0:
                assert got == 0.0
            else:
                # float64 evaluation of a closed form with log-gamma of arguments up to 50: 1e-13 or better
                assert got == pytest.approx(float(high_precision.coefficient(function, level, dimension)), rel=1e-12)


@pytest.mark.parametrize("nu,lengthscale", list(itertools.product([0.5, 1.5, 2.5], [0.1, 1.0, 10.0])))
def test_matern_agrees_with_mpmath(nu, lengthscale):
    for dimension in DIMENSIONS:
        got = np.exp(matern_log_coefficients(nu, tf.constant(lengthscale, tf.float64), LEVELS, dimension))
        function = high_precision.matern(nu, lengthscale)
        expected = [float(high_precision.coefficient(function, level, dimension)) for level in LEVELS]
        np.testing.assert_allclose(got, expected, rtol=1e-11)  # asked for: 1e-8


@pytest.mark.parametrize("lengthscale", [0.1, 0.3, 1.0, 3.0, 10.0])
def test_squared_exponential_agrees_with_bessel_functions(lengthscale):
    for dimension in range(2, 21):
        got = np.exp(squared_exponential_log_coefficients(tf.constant(lengthscale, tf.float64), LEVELS, dimension))
        expected = [
            float(high_precision.squared_exponential_coefficient(lengthscale, level, dimension)) for level in LEVELS
        ]
        np.testing.assert_allclose(got, expected, rtol=1e-10)  # asked for: 1e-8


@pytest.mark.parametrize("slope", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("dimension", [2, 3, 9, 20])
def test_softplus_agrees_with_mpmath_at_every_level(slope, dimension):
    got = get_activation("softplus").coefficients(41, dimension, slope)
    for level in (0, 1, 2, 4, 6, 12, 24, 40):
        exact = float(high_precision.coefficient(high_precision.softplus(slope), level, dimension))
        # below level 6 by quadrature, which is accurate absolutely, and these are still large
        assert got[level] == pytest.approx(exact, rel=1e-9 if level < 6 else 1e-12)


@pytest.mark.parametrize("kind", [0.5, 1.5, 2.5, "squared_exponential"])
@pytest.mark.parametrize("lengthscale", [0.1, 1.0, 10.0])
def test_gradient_in_the_lengthscale_agrees_with_finite_differences(kind, lengthscale):
    levels = (0, 1, 2, 3, 5, 12, 40)

    def log_coefficients(log_lengthscale):
        lengthscale = tf.exp(log_lengthscale)
        if kind == "squared_exponential":
            return squared_exponential_log_coefficients(lengthscale, levels, 9)
        return matern_log_coefficients(kind, lengthscale, levels, 9)

    x = tf.constant(np.log(lengthscale))
    with tf.GradientTape() as tape:
        tape.watch(x)
        values = log_coefficients(x)
    step = 1e-5
    numeric = (log_coefficients(x + step) - log_coefficients(x - step)) / (2 * step)
    # central differences: error of order step^2 times the third derivative (below 1e3), and 1e-13 / step of rounding
    np.testing.assert_allclose(tape.jacobian(values, x), numeric, rtol=1e-6, atol=1e-7)


def test_wide_inputs_need_no_other_rule():
    """In 785 dimensions the Beta density is a narrow peak; the mean of 1 over it must still be 1."""
    level = (0, 1, 2, 5)
    values = np.exp(squared_exponential_log_coefficients(tf.constant(1e4, tf.float64), level, 785))
    assert values[0] == pytest.approx(1.0, rel=1e-7)
    assert np.exp(matern_log_coefficients(2.5, tf.constant(1e6, tf.float64), (0,), 785))[0] == pytest.approx(1.0)


@pytest.mark.parametrize("dimension", [2, 4, 9])
def test_lowering_a_level_differentiates_the_function(dimension):
    """Identity 4: coefficient l of sigma on S^{d-1} is 1/d of that of sigma' at l - 1 on S^{d+1}."""
    pairs = [
        (lambda t: np.logaddexp(0, t), lambda t: 1 / (1 + np.exp(-t))),
        (np.tanh, lambda t: 1 - np.tanh(t) ** 2),
        (lambda t: np.maximum(t, 0), lambda t: np.heaviside(t, 0.5)),
    ]
    for function, derivative in pairs:
        upper = quadrature_coefficients(function, 9, dimension)
        lower = quadrature_coefficients(derivative, 8, dimension + 2)
        np.testing.assert_allclose(upper[1:], lower / dimension, atol=1e-14)
