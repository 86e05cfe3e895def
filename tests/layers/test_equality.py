"""One layer and Gaussian noise are the GPflow model: in value, in gradient and in training."""

from __future__ import annotations

import gpflow
import keras
import numpy as np
import pytest
import tensorflow as tf
from layers import house

from keras_odgp.gpflow_models import OrthogonalSVGP
from keras_odgp.losses import VariationalLoss

LIKELIHOOD = ".likelihood.variance"


def make_model(num_outputs=1, **options):
    model = house.sequential(*house.head(num_outputs, **options))
    house.perturb(model)
    return model


def make_twin(model):
    """The GPflow model with the same parameters, none of them shared."""
    layer, noise = model.layers
    posterior = gpflow.utilities.deepcopy(layer.posterior)
    return OrthogonalSVGP(
        posterior.kernel,
        gpflow.likelihoods.Gaussian(float(noise.variance.numpy()[0])),
        posterior.inducing_variable,
        posterior.orthogonal_inducing_variable,
        num_latent_gps=layer.units,
        q_mu=layer.posterior.q_mu.numpy(),
        q_sqrt=np.tril(layer.posterior.q_sqrt.numpy()),
        orthogonal_q_mu=layer.posterior.orthogonal_q_mu.numpy(),
        orthogonal_q_sqrt=np.tril(layer.posterior.orthogonal_q_sqrt.numpy()),
        whiten=layer.whiten,
        num_data=layer.num_data,
    )


def layer_parameters(model):
    layer, noise = model.layers
    return {**gpflow.utilities.parameter_dict(layer.posterior), LIKELIHOOD: noise.variance}


def assert_same(name, ours, theirs, tolerance):
    """Compares entries: GPflow holds the root of q as the vector of its lower triangle, the layer as a matrix."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if name.endswith("q_sqrt"):
        theirs, ours = np.asarray(gpflow.utilities.triangular()(theirs)), np.tril(ours)
    atol = tolerance * max(1.0, np.abs(theirs).max())
    np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, rtol=tolerance, atol=atol, err_msg=name)


def loss_and_gradients(model, x, y):
    variables = [weight.value for weight in model.trainable_weights]
    with tf.GradientTape() as tape:
        loss = VariationalLoss("gaussian")(y, model(x, training=True)) + sum(model.losses)
    parameters = layer_parameters(model)
    gradients = tape.gradient(loss, variables)
    by_variable = {id(variable): gradient for variable, gradient in zip(variables, gradients)}
    return loss, {name: by_variable[id(parameter.unconstrained_variable)] for name, parameter in parameters.items()}


def check_elbo_and_gradient(model, tolerance, num_data=house.NUM_DATA):
    x, y = house.regression(num_outputs=model.layers[0].units)
    twin = make_twin(model)
    parameters = gpflow.utilities.parameter_dict(twin)
    with tf.GradientTape() as tape:
        elbo = twin.elbo((x, y))
    theirs = tape.gradient(elbo, [parameter.unconstrained_variable for parameter in parameters.values()])
    house.compiled(model)
    got = house.evaluate(model, x, y, batch_size=len(x))
    np.testing.assert_allclose(-got * num_data, elbo, rtol=tolerance)
    _, ours = loss_and_gradients(model, x, y)
    assert ours.keys() == parameters.keys()
    for name, gradient in zip(parameters, theirs):
        assert_same(name, -num_data * ours[name], gradient, tolerance)


@pytest.mark.parametrize("whiten", [True, False])
def test_loss_and_gradient_are_those_of_the_gpflow_model(float64, whiten):
    check_elbo_and_gradient(make_model(whiten=whiten), 1e-8)


def test_loss_of_several_outputs_is_the_gpflow_models(float64):
    model = make_model(2)
    model.layers[1].variance.assign([0.2, 0.2])
    x, y = house.regression(num_outputs=2)
    loss = house.evaluate(house.compiled(model), x, y)
    np.testing.assert_allclose(-loss * house.NUM_DATA, make_twin(model).elbo((x, y)), rtol=1e-8)


def test_loss_and_gradient_with_the_default_floatx():
    check_elbo_and_gradient(make_model(), 1e-5)  # the loss passes through float32, whose precision is 6e-8


def test_mean_of_batches_is_the_loss_of_all(float64):
    model = house.compiled(make_model())
    x, y = house.regression()
    parts = [house.evaluate(model, x[i : i + 10], y[i : i + 10]) for i in range(0, 40, 10)]
    whole = house.evaluate(model, x, y, batch_size=40)
    np.testing.assert_allclose([np.mean(parts), house.evaluate(model, x, y, batch_size=10)], whole, rtol=1e-12)


def test_an_epoch_of_fit_is_a_loop_over_the_gpflow_model(float64):
    model = make_model()
    twin = make_twin(model)
    x, y = house.regression()
    house.compiled(model, run_eagerly=False).fit(x, y, batch_size=10, shuffle=False, verbose=0)

    adopted = {
        name: keras.Variable(parameter.unconstrained_variable, dtype="float64")
        for name, parameter in gpflow.utilities.parameter_dict(twin).items()
    }
    adam = keras.optimizers.Adam(1e-2)
    for start in range(0, 40, 10):
        with tf.GradientTape() as tape:
            loss = -twin.elbo((x[start : start + 10], y[start : start + 10])) / house.NUM_DATA
        adam.apply(tape.gradient(loss, [each.value for each in adopted.values()]), list(adopted.values()))
    parameters = layer_parameters(model)
    assert parameters.keys() == adopted.keys()
    for name, weight in adopted.items():
        # Adam divides by the root of the squared gradient, which magnifies rounding where gradients are small.
        assert_same(name, parameters[name].unconstrained_variable, weight, 1e-8)


def test_predictions_are_the_gpflow_models(float64):
    model = make_model()
    x, _ = house.regression()
    mean, variance = make_twin(model).predict_f(x)
    output = np.asarray(model(x))
    np.testing.assert_allclose(output[..., 0], mean, rtol=1e-9, atol=1e-12)  # two orders of the same sums
    np.testing.assert_allclose(output[..., 1], variance, rtol=1e-9, atol=1e-12)


def test_posterior_is_a_view_of_the_weights():
    model = make_model()
    layer = model.layers[0]
    layer.posterior.kernel.variance.assign(3.0)
    weight = next(weight for weight in layer.weights if weight.path.endswith("kernel/variance"))
    np.testing.assert_allclose(gpflow.utilities.positive()(weight.value), 3.0)
    gpflow.utilities.tabulate_module_summary(layer.posterior, tablefmt="plain")
