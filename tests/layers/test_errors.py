"""Bad input: each an error that names what is wrong and says what to do."""

from __future__ import annotations

import gpflow
import keras
import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same
from layers import house

import keras_odgp
from keras_odgp import layers
from keras_odgp.losses import VariationalLoss

X, Y = house.regression()


@pytest.mark.parametrize("run_eagerly", [True, False])
def test_training_without_number_of_data(run_eagerly):
    with pytest.warns(UserWarning, match="number of data"):
        model = house.sequential(*house.head(num_data=None))
        model(X)
    house.compiled(model, run_eagerly=run_eagerly)
    with pytest.raises(ValueError, match=r"number of data.*keras_odgp\.adapt.*`num_data`"):
        model.fit(X, Y, verbose=0)


def test_predicting_without_number_of_data_warns_and_is_right():
    layer = house.gp(1, num_data=None, return_moments=True, seed=0)
    with pytest.warns(UserWarning, match="number of data"):
        output = layer(X)
    assert_same(output, house.gp(1, return_moments=True, seed=0)(X))


def test_inputs_of_another_width():
    model = house.sequential(*house.head())
    with pytest.raises(ValueError, match="shape"):
        model(X[:, :2])
    layer = house.gp(1, return_moments=True)
    layer(X)
    with pytest.raises(ValueError, match="axis -1.*value 3"):
        layer(X[:, :2])
    with pytest.raises(ValueError, match="takes 3 inputs.*2 columns"):
        layer.adapt(X[:, :2])


def test_inputs_of_unknown_width():
    with pytest.raises(ValueError, match="known width"):
        house.gp(1).build((None, None))


def test_nan_in_adapt():
    bad = X.copy()
    bad[3, 1] = np.nan
    model = house.sequential(*house.head())
    with pytest.raises(ValueError, match=r"NaN or infinity in 1 of 40 rows, in columns \[1\]"):
        model.layers[0].adapt(bad)
    with pytest.raises(ValueError, match="NaN or infinity"):
        keras_odgp.adapt(model, bad, Y)
    with pytest.raises(ValueError, match="finite targets.*NaN"):
        keras_odgp.adapt(model, X, np.where(Y > 0, Y, np.nan))
    dataset = tf.data.Dataset.from_tensor_slices((bad, Y)).batch(10)
    with pytest.raises(ValueError, match="NaN or infinity"):
        keras_odgp.adapt(model, dataset)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X, Y[:5], "equal length"),
        (X[:0], Y[:0], "Got none"),
        (tf.data.Dataset.from_tensor_slices((X, Y)).batch(10).repeat(), None, "infinite"),
        (tf.data.Dataset.from_tensor_slices((X, Y)).batch(10), Y, "dataset as `x`"),
    ],
    ids=["lengths", "empty", "infinite", "dataset and y"],
)
def test_data_that_adapt_cannot_take(x, y, message):
    with pytest.raises(ValueError, match=message):
        keras_odgp.adapt(house.sequential(*house.head()), x, y)


def test_adapt_without_gp_layers_and_unknown_method():
    with pytest.raises(ValueError, match="`OrthogonalGP` layers"):
        keras_odgp.adapt(house.sequential(keras.layers.Dense(1)), X, Y)
    with pytest.raises(ValueError, match="'kmeans' or 'subset'"):
        keras_odgp.adapt(house.sequential(*house.head()), X, Y, method="grid")


class Unregistered(gpflow.kernels.Matern52):
    pass


def test_kernel_that_cannot_be_saved(tmp_path):
    layer = house.gp(1, kernel=Unregistered(), features="points")
    model = house.sequential(layer)
    with pytest.raises(ValueError, match=r"Unregistered.*keras_odgp\.saving\.register"):
        model.save(tmp_path / "model.keras")


def test_parameter_with_a_prior_cannot_be_saved():
    import tensorflow_probability as tfp

    kernel = gpflow.kernels.Matern52()
    kernel.variance.prior = tfp.distributions.Gamma(np.float64(1.0), np.float64(1.0))
    with pytest.raises(ValueError, match=r"Matern52\.variance cannot be saved.*prior"):
        house.gp(1, kernel=kernel, features="points").get_config()


@pytest.mark.parametrize("argument", ["kernel", "features"])
def test_float64_objects_in_a_float32_layer(argument):
    things = {"kernel": gpflow.kernels.Matern52(), "features": gpflow.inducing_variables.InducingPoints(X[:6].copy())}
    options = {"features": "points", argument: things[argument]}
    layer = house.gp(1, dtype="float32", name="gp", **options)
    with pytest.raises(ValueError, match="'gp' computes in float32.*float64.*float_context"):
        layer(X)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "mixed_float16", "int32"])
def test_dtypes_that_do_not_work(dtype):
    with pytest.raises(ValueError, match="'float64' or 'float32'"):
        house.gp(1, dtype=dtype)


def test_moments_missing():
    model = house.compiled(house.sequential(house.gp(1)), VariationalLoss("bernoulli"))
    with pytest.raises(ValueError, match="`return_moments=True`"):
        model.fit(X, Y, verbose=0)
    with pytest.raises(ValueError, match="`return_moments=True`"):
        house.sequential(house.gp(1), layers.GaussianLikelihood())
    with pytest.raises(ValueError, match="`return_moments=True`"):
        house.sequential(house.gp(2), layers.GaussianLikelihood())


def test_likelihood_layer_missing_or_too_much():
    model = house.compiled(house.sequential(*house.head()[:1]))
    with pytest.raises(ValueError, match=r"keras_odgp\.layers\.GaussianLikelihood"):
        model.fit(X, Y, verbose=0)
    model = house.compiled(house.sequential(*house.head()), VariationalLoss("bernoulli"))
    with pytest.raises(ValueError, match="no dispersion"):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("shape", [(40, 2), (40, 1, 2), (40, 3, 1)])
def test_targets_of_another_shape(shape):
    model = house.compiled(house.sequential(*house.head()))
    with pytest.raises(ValueError, match=r"Expected targets of shape.*Got shape"):
        model.fit(X, np.zeros(shape), verbose=0)


def test_one_hot_labels():
    model = house.sequential(house.gp(3, return_moments=True))
    house.compiled(model, VariationalLoss("softmax"))
    with pytest.raises(ValueError, match="not one-hot.*argmax"):
        model.fit(X, np.eye(3)[np.arange(40) % 3], verbose=0)


@pytest.mark.parametrize(
    ("likelihood", "layer", "targets", "message"),
    [
        ("gamma", layers.GammaLikelihood, -1.0, "numbers above 0"),
        ("beta", layers.BetaLikelihood, 1.0, "between 0 and 1"),
        ("bernoulli", None, 2.0, "labels 0 and 1"),
        ("poisson", None, -1.0, "at least 0"),
        ("exponential", None, -1.0, "at least 0"),
        ("softmax", None, -1.0, "integer labels"),
        ("softmax", None, 2.0, "[Ll]abel"),
        ("softmax", None, 0.5, "integer labels"),
        ("bernoulli", None, np.nan, "labels 0 and 1"),
    ],
)
def test_targets_outside_of_the_support(likelihood, layer, targets, message):
    units = 2 if likelihood == "softmax" else 1
    parts = [house.gp(units, return_moments=True)] + ([layer()] if layer else [])
    model = house.compiled(house.sequential(*parts), VariationalLoss(likelihood))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        model.train_on_batch(X, np.full((40, 1), targets))


def test_likelihood_with_parameters_to_train():
    with pytest.raises(ValueError, match="cannot train.*GaussianLikelihood.*set_trainable"):
        VariationalLoss(gpflow.likelihoods.Gaussian())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "rbf"}, "kernel among.*'rbf'"),
        ({"features": "swishy"}, "`features`.*'points', 'harmonics'.*swishy"),
        ({"orthogonal_features": "swishy"}, "`orthogonal_features`.*swishy"),
        ({"mean_function": "constant"}, "`mean_function`.*constant"),
        ({"orthogonal_covariance": "diagonal"}, "'full'.*'prior'|diagonal"),
        ({"units": 0}, "`units`"),
        ({"units": 1.5}, "`units`"),
        ({"num_inducing": 0}, "`num_inducing`"),
        ({"num_orthogonal": -1}, "`num_orthogonal`"),
        ({"num_levels": None}, "`num_levels`"),
        ({"num_data": 0}, "`num_data`"),
        ({"initial_scale": 0.0}, "`initial_scale`"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_arguments_of_the_layer(options, message):
    with pytest.raises(ValueError, match=message):
        house.gp(**{"units": 1, **options})


@pytest.mark.parametrize("options", [{"kernel": 3}, {"features": np.ones((6, 3))}, {"orthogonal_features": 5}], ids=str)
def test_arguments_of_another_type(options):
    with pytest.raises(TypeError, match="Expected"):
        house.gp(1, **options)


def test_arguments_of_losses_and_likelihood_layers():
    with pytest.raises(ValueError, match="likelihood among.*'normal'"):
        VariationalLoss("normal")
    with pytest.raises(TypeError, match="likelihood"):
        VariationalLoss(3)
    for value in (0.0, -1.0, np.inf, [0.1]):
        with pytest.raises(ValueError, match="`initial_variance`"):
            layers.GaussianLikelihood(value)


@pytest.mark.parametrize("features", ["softplus", "harmonics"])
def test_kernel_off_the_sphere_with_features_on_it(features):
    layer = house.gp(1, kernel=gpflow.kernels.Matern52(), features=features)
    with pytest.raises(ValueError, match="need a zonal kernel.*Matern52.*'points'"):
        layer(X)


def test_mean_function_of_another_width():
    for mean_function in ("identity", keras.layers.Dense(4)):
        with pytest.raises(ValueError, match="mean function.*outputs.*2 units"):
            house.gp(2, mean_function=mean_function)(X)


def test_posterior_and_parameter_before_they_are_built():
    with pytest.raises(ValueError, match="before it is built"):
        _ = house.gp(1).posterior
    with pytest.raises(ValueError, match="before it is built"):
        _ = layers.GaussianLikelihood().variance


def test_number_of_outputs_of_the_kernel():
    kernel = gpflow.kernels.SharedIndependent(gpflow.kernels.Matern52(), output_dim=3)
    with pytest.raises(ValueError, match="2 outputs.*Got 3"):
        house.gp(2, kernel=kernel, features="points")(X)
