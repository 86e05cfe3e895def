"""What is trained and what is not."""

from __future__ import annotations

import gpflow
import keras
import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same
from layers import house

from keras_odgp import kernels
from keras_odgp.layers import GaussianLikelihood, OrthogonalGP

X, Y = house.regression()


def paths(weights):
    return {weight.path.split("gp/")[-1] for weight in weights}


def frozen_kernel():
    kernel = kernels.Matern52(variance=2.0, weight_variances=np.ones(3))
    gpflow.set_trainable(kernel.variance, False)
    return kernel


def test_frozen_parameter_is_not_trained_nor_after_loading(tmp_path):
    layer = house.gp(1, kernel=frozen_kernel(), return_moments=True, name="gp")
    model = house.compiled(house.sequential(layer, GaussianLikelihood()))
    for _ in range(2):
        layer = model.layers[0]
        assert "kernel/variance" in paths(layer.non_trainable_weights)
        assert "kernel/lengthscale" in paths(layer.trainable_weights)
        model.train_on_batch(X, Y)
        assert float(layer.kernel.variance.numpy()) == pytest.approx(2.0, abs=1e-12)  # through softplus and back
        assert not layer.kernel.variance.trainable
        model = house.saved_and_loaded(model, tmp_path)
    assert float(model.layers[0].kernel.lengthscale.numpy()) != 1.0


@pytest.mark.parametrize("frozen", ["features", "orthogonal_features"])
def test_frozen_features_are_not_trained(frozen):
    points = gpflow.inducing_variables.InducingPoints(X[:6].copy())
    gpflow.set_trainable(points, False)
    model = house.compiled(house.sequential(*house.head(**{frozen: points})))
    model.train_on_batch(X, Y)
    np.testing.assert_array_equal(points.Z, X[:6])


@pytest.mark.parametrize("kernel", ["arccos", "object"])
def test_parameter_frozen_after_the_build_is_not_trained_nor_after_loading(kernel, tmp_path):
    kernel = kernels.ArcCosine(weight_variances=np.ones(3)) if kernel == "object" else kernel
    layer = house.gp(1, kernel=kernel, return_moments=True, name="gp")
    model = house.sequential(layer, GaussianLikelihood())
    house.perturb(model)
    frozen = [layer.posterior.kernel.weight_variances, layer.posterior.q_sqrt, model.layers[1].variance]
    for parameter in frozen:
        gpflow.set_trainable(parameter, False)
    expected = [parameter.numpy() for parameter in frozen]
    for _ in range(2):
        layer, noise = model.layers
        names = {"kernel/weight_variances", "q_sqrt"}
        assert names <= paths(layer.non_trainable_weights) and not names & paths(layer.trainable_weights)
        assert noise.trainable_weights == []
        before = layer.posterior.q_mu.numpy()
        house.compiled(model).train_on_batch(X, Y)
        assert (layer.posterior.q_mu.numpy() != before).any()
        for parameter, value in zip((layer.kernel.weight_variances, layer.posterior.q_sqrt, noise.variance), expected):
            np.testing.assert_array_equal(parameter.numpy(), value)
        loaded = house.saved_and_loaded(model, tmp_path)
        for left, right in zip(house.values(model.weights), house.values(loaded.weights)):
            np.testing.assert_array_equal(left, right)
        model = loaded
    clone = keras.models.clone_model(model)
    assert paths(clone.layers[0].trainable_weights) == paths(model.layers[0].trainable_weights)


def test_parameter_may_be_thawed():
    layer = house.gp(1, kernel=frozen_kernel(), return_moments=True, name="gp")
    layer(X)
    assert "kernel/variance" in paths(layer.non_trainable_weights)
    gpflow.set_trainable(layer.kernel, True)
    assert "kernel/variance" in paths(layer.trainable_weights)


def test_freezing_the_layer_leaves_frozen_parameters_frozen():
    layer = house.gp(1, name="gp")
    layer(X)
    gpflow.set_trainable(layer.kernel.variance, False)
    layer.trainable = False
    assert layer.trainable_weights == []
    assert layer.get_config()["frozen"] == [".kernel.variance"]  # the layer's own state is another key
    layer.trainable = True
    assert paths(layer.non_trainable_weights) >= {"kernel/variance"}
    assert "q_mu" in paths(layer.trainable_weights)


def test_layer_that_is_not_trainable_holds():
    model = house.sequential(house.gp(3), *house.head())
    model.layers[0].trainable = False
    assert model.layers[0].trainable_weights == []
    house.compiled(model)
    before = house.values(model.layers[0].weights)
    last = house.values(model.layers[1].trainable_weights)
    model.train_on_batch(X, Y)
    for left, right in zip(before, house.values(model.layers[0].weights)):
        np.testing.assert_array_equal(left, right)
    assert any((left != right).any() for left, right in zip(last, house.values(model.layers[1].trainable_weights)))
    model.layers[0].trainable = True
    assert len(model.layers[0].trainable_weights) == len(house.GP_WEIGHTS)


def test_layer_that_is_not_trainable_before_it_is_built():
    layer = house.gp(1, return_moments=True, trainable=False)
    model = house.sequential(layer, GaussianLikelihood())
    assert layer.trainable_weights == []
    assert len(model.trainable_weights) == 1


@pytest.mark.parametrize("argument", ["kernel", "features"])
def test_the_same_object_in_two_layers_is_an_error(argument):
    things = {"kernel": kernels.ArcCosine(), "features": gpflow.inducing_variables.InducingPoints(X[:6].copy())}
    options = {argument: things[argument]}
    first = house.gp(3, name="first", **options)
    first(X)
    with pytest.raises(ValueError, match="'first' and 'second'.*deepcopy"):
        house.gp(3, name="second", **options)(X)


def test_the_same_mean_function_in_two_layers_is_an_error():
    dense = keras.layers.Dense(3)
    first = house.gp(3, name="first", mean_function=dense)
    first(X)
    with pytest.raises(ValueError, match="'first' and 'second'.*same mean function.*give each its own"):
        house.gp(3, name="second", mean_function=dense)(X)
    identity = keras.layers.Identity()
    for _ in range(2):  # without weights there is nothing to lose
        house.gp(3, mean_function=identity)(X)


def test_weights_share_storage_with_gpflow_parameters():
    layer = house.gp(2)
    layer(X)
    variables = {id(parameter.unconstrained_variable) for parameter in layer.posterior.parameters}
    assert {id(weight.value) for weight in layer.trainable_weights} == variables


def test_what_stands_above_the_diagonal_of_roots_is_ignored():
    model = house.sequential(*house.head())
    before = np.asarray(model(X))
    layer = model.layers[0]
    layer.posterior.q_sqrt.assign(layer.posterior.q_sqrt + np.triu(np.ones((6, 6)), 1))
    assert_same(np.asarray(model(X)), before)


@pytest.mark.parametrize("per_output", [True, False])
def test_noise_of_each_output_or_of_all(per_output):
    layer = GaussianLikelihood(initial_variance=0.3, per_output=per_output)
    output = layer(np.ones((4, 2, 2)))
    assert layer.variance.shape == ((2,) if per_output else ())
    np.testing.assert_allclose(output[..., 2], 0.3, rtol=1e-12)


def test_keras_layer_as_mean_function(tmp_path):
    layer = house.gp(2, mean_function=keras.layers.Dense(2, name="dense"))
    model = house.compiled(house.sequential(layer, *house.head()))
    assert {"kernel", "bias"} <= {weight.name for weight in layer.trainable_weights}
    house.perturb(model)
    before = house.values(model.trainable_weights)
    model.train_on_batch(X, Y)
    for weight, old in zip(model.trainable_weights, before):
        assert (np.asarray(weight) != old).any(), weight.path
    house.assert_equal_predictions(model, house.saved_and_loaded(model, tmp_path), X)


@pytest.mark.parametrize(("mean_function", "units"), [("identity", 3), ("linear", 5), (None, 2), ("auto", 3)])
def test_start_of_mean_functions(mean_function, units):
    layer = house.gp(units, mean_function=mean_function)
    layer.build((None, 3))
    mean = np.asarray(layer.marginals(keras.ops.convert_to_tensor(X))[0])
    expected = np.zeros((40, units)) if mean_function is None else X @ np.eye(3, units)
    np.testing.assert_allclose(mean, expected, atol=1e-12)


@pytest.mark.parametrize("whiten", [True, False])
def test_q_starts_at_the_prior(whiten):
    layer = OrthogonalGP(2, 6, 5, num_levels=4, whiten=whiten, return_moments=True)
    layer.adapt(np.random.default_rng(0).normal(size=(30, 3)))
    # Rounding of the solves with the factor that made q: 1e-16 times its condition.
    np.testing.assert_allclose(layer.posterior.prior_kl(), 0.0, atol=1e-8)


def test_freezing_holds_for_variables_with_copies_on_devices():
    layer = house.gp(2)
    layer(X)
    gpflow.set_trainable(layer.posterior.kernel.variance, False)
    config = layer.get_config()
    with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
        copy = OrthogonalGP.from_config(config)
        copy.build((None, 3))
        assert isinstance(copy.posterior.q_mu.unconstrained_variable, tf.distribute.DistributedValues)
        assert copy.get_config()["frozen"] == config["frozen"] == [".kernel.variance"]
        assert len(copy.trainable_weights) == len(layer.trainable_weights)
