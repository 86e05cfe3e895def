"""GPflow objects as plain data and back, and models that hold them as files."""

from __future__ import annotations

import json
import zipfile

import gpflow
import keras
import numpy as np
import pytest
from layers import house

from keras_odgp import inducing, kernels, saving
from keras_odgp.numerics import float_context

X, Y = house.regression()
OBJECTS = {
    "ArcCosine": lambda: kernels.ArcCosine(order=2, variance=2.0, weight_variances=[1.0, 2.0, 3.0], bias_variance=0.5),
    "Matern12": lambda: kernels.Matern12(lengthscale=0.7, active_dims=[0, 2]),
    "Matern32": lambda: kernels.Matern32(variance=0.1),
    "Matern52": lambda: kernels.Matern52(radial_power=0),
    "SquaredExponential": kernels.SquaredExponential,
    "gpflow.Matern32": lambda: gpflow.kernels.Matern32(lengthscales=[1.0, 2.0], active_dims=slice(0, 2)),
    "gpflow.RationalQuadratic": lambda: gpflow.kernels.RationalQuadratic(alpha=0.3),
    "gpflow.ArcCosine": lambda: gpflow.kernels.ArcCosine(order=1),
    "gpflow.Periodic": lambda: gpflow.kernels.Periodic(gpflow.kernels.RBF(), period=0.7),
    "gpflow.Polynomial": lambda: gpflow.kernels.Polynomial(degree=2.0),
    "Sum": lambda: gpflow.kernels.RBF(active_dims=[0]) + kernels.ArcCosine(active_dims=[1, 2]),
    "Product": lambda: gpflow.kernels.RBF(active_dims=[0]) * (gpflow.kernels.Linear() + gpflow.kernels.Constant()),
    "SharedIndependent": lambda: gpflow.kernels.SharedIndependent(kernels.ArcCosine(), output_dim=2),
    "SeparateIndependent": lambda: gpflow.kernels.SeparateIndependent([gpflow.kernels.RBF(), kernels.ArcCosine()]),
    "LinearCoregionalization": lambda: gpflow.kernels.LinearCoregionalization(
        [gpflow.kernels.RBF(), gpflow.kernels.RBF()], W=np.arange(6.0).reshape(3, 2)
    ),
    "points": lambda: gpflow.inducing_variables.InducingPoints(X[:4].copy()),
    "activations": lambda: inducing.ActivationFeatures(X[:4].copy(), "softplus", 5),
    "harmonics": lambda: inducing.SphericalHarmonics(4, [0, 1, 2]),
    "shared points": lambda: gpflow.inducing_variables.SharedIndependentInducingVariables(
        gpflow.inducing_variables.InducingPoints(X[:4].copy())
    ),
    "separate points": lambda: gpflow.inducing_variables.SeparateIndependentInducingVariables(
        [gpflow.inducing_variables.InducingPoints(X[:4].copy()) for _ in range(2)]
    ),
    "gpflow.Gaussian": lambda: gpflow.likelihoods.Gaussian(0.3),
    "gpflow.Gaussian of scale": lambda: gpflow.likelihoods.Gaussian(scale=0.3),
    "gpflow.StudentT": lambda: gpflow.likelihoods.StudentT(scale=0.3, df=4.0),
    "gpflow.Gamma": lambda: gpflow.likelihoods.Gamma(shape=0.3),
    "gpflow.Beta": lambda: gpflow.likelihoods.Beta(scale=0.3),
    "gpflow.Softmax": lambda: gpflow.likelihoods.Softmax(3),
    "gpflow.MultiClass": lambda: gpflow.likelihoods.MultiClass(3),
}
EVERY = pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS.keys())


@EVERY
def test_objects_come_back(make):
    thing = make()
    config = json.loads(json.dumps(saving.serialise(thing)))
    again = saving.deserialise(config)
    assert type(again) is type(thing)
    ours, theirs = (gpflow.utilities.parameter_dict(each) for each in (thing, again))
    assert ours.keys() == theirs.keys()
    for path, parameter in ours.items():
        # Values pass through the transform of the parameter and back, which rounds.
        np.testing.assert_allclose(theirs[path], parameter, rtol=1e-12, atol=1e-14, err_msg=path)
        assert theirs[path].trainable == parameter.trainable
    np.testing.assert_equal(saving.serialise(again).keys(), config.keys())
    if isinstance(thing, gpflow.kernels.Kernel) and not isinstance(thing, gpflow.kernels.MultioutputKernel):
        np.testing.assert_allclose(again(X[:5]), thing(X[:5]), rtol=1e-10)


@EVERY
def test_trainable_flags_come_back(make):
    thing = make()
    gpflow.set_trainable(thing, False)
    again = saving.deserialise(saving.serialise(thing))
    assert not again.trainable_parameters


def test_dtype_comes_back():
    with float_context("float32"):
        kernel = gpflow.kernels.Matern52(variance=0.3)
    again = saving.deserialise(saving.serialise(kernel))
    assert again.variance.dtype == np.float32
    np.testing.assert_allclose(again.variance, 0.3, rtol=1e-6)  # the precision of float32


@pytest.mark.parametrize("value", [None, "arccos"])
def test_strings_stay(value):
    assert saving.serialise(value) == saving.deserialise(value) == value


class Mine(gpflow.kernels.Matern52):
    pass


class Registered(gpflow.kernels.Matern52):
    pass


saving.register(Registered, ["variance", "lengthscales", "active_dims"])


def test_subclass_needs_a_registration_of_its_own(tmp_path):
    with pytest.raises(ValueError, match="Mine.*register"):
        saving.serialise(Mine())
    with pytest.raises(ValueError, match=r"Mine.*Sum\.kernels"):
        saving.serialise(gpflow.kernels.RBF() + Mine())
    again = saving.deserialise(saving.serialise(Registered(lengthscales=0.3)))
    assert type(again) is Registered
    model = house.sequential(*house.head(kernel=Registered(), features="points"))
    house.assert_equal_predictions(model, house.saved_and_loaded(model, tmp_path), X)


def test_transform_of_ones_own_is_refused():
    kernel = gpflow.kernels.Matern52()
    kernel.variance = gpflow.Parameter(1.0, transform=gpflow.utilities.positive(lower=0.1))
    with pytest.raises(ValueError, match=r"Matern52\.variance cannot be saved"):
        saving.serialise(kernel)


@pytest.mark.parametrize(
    "config",
    [
        {"class": "os.system", "arguments": {"command": "true"}, "frozen": [], "dtype": "float64"},
        {"class": "gpflow.kernels.RBF", "frozen": [], "dtype": "float64"},
        {"arguments": {}},
    ],
    ids=["unknown class", "no arguments", "no class"],
)
def test_damaged_or_foreign_configurations_are_refused(config):
    with pytest.raises(ValueError, match="Unknown class|damaged"):
        saving.deserialise(config)


def test_file_needs_no_custom_objects_and_holds_no_code(tmp_path):
    model = house.compiled(house.sequential(house.gp(2), *house.head(kernel=kernels.Matern52())))
    model.train_on_batch(X, Y)
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        config = archive.read("config.json").decode()
    assert "keras_odgp>OrthogonalGP" in config
    assert "__lambda__" not in config
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert loaded.optimizer.iterations == model.optimizer.iterations == 1
    for left, right in zip(loaded.optimizer.variables, model.optimizer.variables):
        np.testing.assert_array_equal(left, right)


def test_saving_twice_and_loading_a_loaded_model(tmp_path):
    model = house.sequential(house.gp(2), *house.head())
    house.perturb(model)
    once = house.saved_and_loaded(model, tmp_path)
    twice = house.saved_and_loaded(once, tmp_path)
    house.assert_equal_predictions(model, twice, X)


def test_weights_of_objects_after_training_are_in_the_configuration():
    kernel = kernels.Matern52()
    layer = house.gp(1, kernel=kernel)
    layer(X)
    layer.kernel.variance.assign(3.0)
    again = type(layer).from_config(layer.get_config())
    np.testing.assert_allclose(again.kernel.variance, 3.0, rtol=1e-12)
    assert again.kernel is not kernel
