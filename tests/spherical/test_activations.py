import copy
import pickle

import numpy as np
import pytest

from keras_odgp.spherical import (
    activations,
    arc_cosine_coefficients,
    get_activation,
    quadrature_coefficients,
    register_activation,
)


@pytest.mark.parametrize("dimension", [2, 3, 9, 20])
def test_arc_cosine_is_relu_squared(dimension):
    """Identity 3: lambda_l = 2 d sigma_l^2 for order 1."""
    relu = quadrature_coefficients(lambda t: np.maximum(t, 0), 12, dimension)
    np.testing.assert_allclose(arc_cosine_coefficients(1, 12, dimension), 2 * dimension * relu**2, atol=1e-15)


def test_a_copied_activation_has_the_same_coefficients():
    for copied in (copy.deepcopy(get_activation("softplus")), pickle.loads(pickle.dumps(get_activation("softplus")))):
        assert copied.coefficients(31, 5)[28] != 0.0
        np.testing.assert_array_equal(copied.coefficients(31, 5), get_activation("softplus").coefficients(31, 5))
    with pytest.raises(ValueError, match="read-only"):
        copied.coefficients(31, 5)[0] = 1.0


@pytest.mark.parametrize("name", ["relu", "softplus", "gelu", "swish"])
@pytest.mark.parametrize("slope", [1.0, 3.0])
def test_linear_plus_even_activations(name, slope):
    activation = get_activation(name)
    assert activation.active_levels(10) == (0, 1, 2, 4, 6, 8)
    for dimension in (2, 3, 9):
        coefficients = activation.coefficients(10, dimension, slope)
        assert coefficients[1] == pytest.approx(1 / (2 * dimension), rel=1e-13)
        assert not coefficients[[3, 5, 7, 9]].any()


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_odd_activations(name):
    assert get_activation(name).active_levels(6) == (1, 3, 5)
    assert not get_activation(name).coefficients(6, 3)[::2].any()


def test_every_builtin_has_its_declared_parity():
    for activation in activations._REGISTRY.values():
        if activation.relu_power is None:
            activations._check_parity(activation.name, activation.function, activation.parity)


@pytest.mark.parametrize("name", ["relu", "softplus", "gelu", "swish", "tanh", "erf", "step", "relu_squared"])
def test_series_rebuilds_the_activation(name):
    from scipy.special import eval_chebyt

    activation = get_activation(name)
    t = np.linspace(-1, 1, 21)
    coefficients = activation.coefficients(200, 2)
    series = sum((1 if level == 0 else 2) * c * eval_chebyt(level, t) for level, c in enumerate(coefficients))
    # Fourier series on the circle: a jump leaves 1/L near it (t = 0 is left out), a kink 1/L, the others nothing
    tolerance = {"step": 3e-2, "relu": 2e-3, "relu_squared": 1e-4}.get(name, 1e-12)
    away = np.abs(t) > 0.05
    np.testing.assert_allclose(series[away], activation.function(t)[away], atol=tolerance)


def test_quadrature_noise_is_dropped():
    """Coefficients of swish fall below rounding; what is left of them must be exactly zero, not noise."""
    coefficients = get_activation("swish").coefficients(40, 3)
    assert coefficients[2] != 0 and not coefficients[30:].any()


def test_unknown_activation_names_the_known_ones():
    with pytest.raises(ValueError, match="Unknown activation 'rleu'.*'relu'.*register_activation"):
        get_activation("rleu")


def test_registering():
    activation = register_activation("sine_for_test", np.sin, parity="odd")
    assert get_activation("sine_for_test") is activation
    assert activation.coefficients(4, 3)[1] > 0
    with pytest.raises(ValueError, match="registered already"):
        register_activation("relu", np.sin)
    with pytest.raises(ValueError, match="declared 'even'.*contradict"):
        register_activation("not_even_for_test", np.sin, parity="even")
    with pytest.raises(ValueError, match="Unknown parity"):
        register_activation("strange_for_test", np.sin, parity="strange")
    with pytest.raises(ValueError, match="finite array of the same shape"):
        register_activation("infinite_for_test", lambda t: np.full_like(t, np.inf))
