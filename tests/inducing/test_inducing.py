import warnings

import gpflow
import numpy as np
import pytest
import tensorflow as tf

from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ArcCosine, Matern52
from keras_odgp.spherical import register_activation


def test_shapes_are_those_gpflow_wants(rng):
    activations = ActivationFeatures(rng.normal(size=(7, 4)))
    assert int(activations.num_inducing) == 7 and activations.shape == (7, 3, 1)
    harmonics = SphericalHarmonics(4, 3)
    assert int(harmonics.num_inducing) == 1 + 4 + 9 and harmonics.shape == (14, None, 1)
    assert len(activations.trainable_variables) == 1 and not harmonics.trainable_variables


def test_levels_as_number_or_list():
    assert SphericalHarmonics(3, 4).levels == (0, 1, 2, 3)
    assert SphericalHarmonics(3, [4, 0]).levels == (0, 4)


# Rank table of the mathematical reference (section 6.2): levels 0, 1 and even
@pytest.mark.parametrize(
    "num_inputs,num_levels,rank",
    [
        (1, 6, 7),
        (1, 8, 9),
        (1, 16, 17),
        (4, 6, 75),
        (4, 8, 215),
        (4, 16, 3065),
        (6, 6, 217),
        (6, 8, 931),
        (8, 6, 504),
        (8, 8, 3012),
        (8, 16, 319779),
    ],
)
@pytest.mark.parametrize("activation", ["relu", "softplus"])
def test_rank_table(num_inputs, num_levels, rank, activation):
    features = ActivationFeatures(np.ones((1, num_inputs + 1)), activation, num_levels)
    for kernel in (None, ArcCosine(), Matern52()):
        assert features.rank(kernel) == rank


def test_rank_follows_kernel_and_active_dims():
    features = ActivationFeatures(np.ones((1, 5)), "relu", 6)
    assert features.active_levels(ArcCosine(order=0)) == (0, 1)
    assert features.rank(ArcCosine(order=0)) == 1 + 5
    assert features.rank(ArcCosine(active_dims=[2])) == features.rank(ArcCosine(active_dims=slice(0, 1))) == 7


def test_more_units_than_the_rank_warn_with_the_rank(rng):
    with pytest.warns(UserWarning, match="8 relu features of 1 inputs with num_levels=6.*R = 7"):
        ActivationFeatures(rng.normal(size=(8, 2)), "relu", 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        features = ActivationFeatures(rng.normal(size=(7, 2)), "relu", 6)
    with pytest.warns(UserWarning, match="R = 3 under ArcCosine"):
        gpflow.covariances.Kuu(features, ArcCosine(order=0))


@pytest.mark.parametrize(
    "weights,message",
    [
        (np.ones(3), r"Got shape \(3,\)"),
        (np.ones((2, 3, 4)), r"Got shape \(2, 3, 4\)"),
        (np.ones((0, 3)), r"Got shape \(0, 3\)"),
        (np.ones((3, 1)), r"D >= 1. Got shape \(3, 1\)"),
        ([[1.0, 2.0], [0.0, 0.0]], r"no row all zero.*rows \[1\]"),
        ([[1.0, np.nan], [1.0, 0.0]], r"finite. Got NaN or infinity in rows \[0\]"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=r"Expected `weights` of shape \[M, D \+ 1\].*" + message):
        ActivationFeatures(weights)


def test_other_bad_arguments():
    with pytest.raises(ValueError, match="Expected `num_levels`.*Got: 0"):
        ActivationFeatures(np.ones((2, 3)), num_levels=0)
    with pytest.raises(ValueError, match="Unknown activation 'sofplus'"):
        ActivationFeatures(np.ones((2, 3)), "sofplus")
    with pytest.raises(ValueError, match="Expected a finite `slope` above 0. Got: -1"):
        ActivationFeatures(np.ones((2, 3)), slope=-1)
    with pytest.raises(ValueError, match="Expected `dimension` to be an integer of at least 2.*Got: 1"):
        SphericalHarmonics(1, 3)
    with pytest.raises(ValueError, match="Expected `levels`"):
        SphericalHarmonics(3, [])


def test_registered_activation_and_given_parameter(rng):
    register_activation("cubic_for_features", lambda t: t**3, parity="odd")
    weights = gpflow.Parameter(rng.normal(size=(4, 3)), trainable=False)
    features = ActivationFeatures(weights, "cubic_for_features", 4)
    assert features.weights is weights and not features.trainable_variables
    # t^3 has levels 1 and 3 only, and is rebuilt exactly by four levels
    kernel = Matern52(radial_power=0)
    X = rng.normal(size=(5, 2))
    directions, _ = features.project(kernel)
    inputs, _ = kernel.project(tf.constant(X))
    cosines = tf.matmul(directions, inputs, transpose_b=True)
    np.testing.assert_allclose(gpflow.covariances.Kuf(features, kernel, X), cosines**3, atol=1e-13)
