"""The GPflux layer: equal to the other surfaces, at home in GPflux, convertible, and apart from the rest."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import gpflow
import gpflux
import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from builders import assert_same, make_feature
from gpflow.inducing_variables import (
    InducingPoints,
    SeparateIndependentInducingVariables,
    SharedIndependentInducingVariables,
)
from gpflow.keras import tf_keras
from gpflow.kernels import LinearCoregionalization, SeparateIndependent, SharedIndependent
from gpflow.mean_functions import Constant, Identity, Linear, Zero

import keras_odgp
from keras_odgp.gpflow_models import OrthogonalSVGP
from keras_odgp.gpflux_layers import OrthogonalGPLayer, from_gpflux, to_gpflux
from keras_odgp.inducing import SphericalHarmonics
from keras_odgp.kernels import ArcCosine, Matern52
from keras_odgp.layers import GaussianLikelihood, OrthogonalGP
from keras_odgp.losses import VariationalLoss
from keras_odgp.sampling import FunctionSamples

NUM_DATA, NUM_INPUTS = 20, 2
Q = ("q_mu", "q_sqrt", "orthogonal_q_mu", "orthogonal_q_sqrt")
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture
def x(rng):
    return rng.normal(size=(NUM_DATA, NUM_INPUTS))


@pytest.fixture
def y(x):
    return np.sin(2 * x[:, :1])


def points(rng, num=4):
    return InducingPoints(rng.normal(size=(num, NUM_INPUTS)))


def make_layer(rng, pair=("activations", "points"), num_outputs=2, kernel=None, mean_function=None, **options):
    """A small layer with a q away from its start."""
    kernel = ArcCosine(weight_variances=[1.0, 0.7]) if kernel is None else kernel
    base, orthogonal = (None if kind is None else make_feature(kind, kernel, NUM_INPUTS, rng, num=4) for kind in pair)
    layer = OrthogonalGPLayer(
        kernel, base, NUM_DATA, orthogonal, mean_function or Zero(), num_latent_gps=num_outputs, **options
    )
    perturb(layer, rng)
    return layer


def perturb(layer, rng):
    for name in Q:
        parameter = getattr(layer, name, None)
        if parameter is not None:
            noise = 0.3 * rng.normal(size=parameter.shape)
            parameter.assign(parameter + (np.tril(noise) if name.endswith("sqrt") else noise))


def make_twin(layer):
    """The GPflow model with the same parameters."""
    values = {name: getattr(layer, name).numpy() for name in Q if getattr(layer, name) is not None}
    return OrthogonalSVGP(
        layer.kernel,
        gpflow.likelihoods.Gaussian(0.1),
        layer.inducing_variable,
        layer.orthogonal_inducing_variable,
        num_latent_gps=layer.num_latent_gps,
        mean_function=layer.mean_function,
        whiten=layer.whiten,
        orthogonal_covariance=layer.orthogonal_covariance,
        num_data=layer.num_data,
        **values,
    )


def train(model, x, y, epochs=3, **options):
    training = model.as_training_model()
    training.compile(tf_keras.optimizers.Adam(1e-2))
    return training.fit({"inputs": x, "targets": y}, batch_size=len(x), epochs=epochs, verbose=0, **options)


# -- one core ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pair,whiten,covariance",
    [
        (("activations", "points"), True, "full"),
        (("activations", "points"), False, "full"),
        (("points", "points"), False, "prior"),
        (("harmonics", "points"), True, "prior"),
        (("points", "activations"), True, "full"),
        (("points", None), False, "full"),
    ],
)
def test_three_surfaces_agree(pair, whiten, covariance, rng, x):
    layer = make_layer(rng, pair, whiten=whiten, orthogonal_covariance=covariance)
    model, keras_layer = make_twin(layer), from_gpflux(layer, return_moments=True)
    mean, variance = layer.predict(x)
    for other in (model.predict_f(x), tf.unstack(keras_layer(x), axis=-1)):
        np.testing.assert_allclose(other[0], mean, **TOLERANCE)
        np.testing.assert_allclose(other[1], variance, **TOLERANCE)
    for outputs in (False, True):
        options = {"full_cov": True, "full_output_cov": outputs}
        _, expected = model.predict_f(x, **options)
        _, ours = layer.predict(x, **options)
        _, theirs = keras_layer.posterior.fused_predict_f(x, **options)
        np.testing.assert_allclose(ours, expected, **TOLERANCE)
        np.testing.assert_allclose(theirs, expected, **TOLERANCE)
    np.testing.assert_allclose(layer.prior_kl(), model.prior_kl(), **TOLERANCE)
    np.testing.assert_allclose(keras_layer.posterior.prior_kl(), model.prior_kl(), **TOLERANCE)
    layer(x, training=True)
    np.testing.assert_allclose(layer.losses, [model.prior_kl() / NUM_DATA], **TOLERANCE)


def test_elbo_is_that_of_the_gpflow_model(rng, x, y):
    layer = make_layer(rng, num_outputs=1, whiten=False)
    model = gpflux.models.DeepGP([layer], gpflow.likelihoods.Gaussian(0.1))
    np.testing.assert_allclose(model.elbo((x, y)), make_twin(layer).elbo((x, y)), rtol=1e-10)


def test_without_orthogonal_features_it_is_gpfluxs_layer(rng, x):
    """Up to the jitter, which GPflow adds in its own way."""
    kernel, features = SharedIndependent(gpflow.kernels.Matern52(), 2), SharedIndependentInducingVariables(points(rng))
    layers = [
        cls(kernel, features, NUM_DATA, mean_function=Identity()) for cls in (OrthogonalGPLayer, gpflux.layers.GPLayer)
    ]
    perturb(layers[0], rng)
    for name in ("q_mu", "q_sqrt"):
        getattr(layers[1], name).assign(getattr(layers[0], name))
    for options in ({}, {"full_cov": True}, {"full_output_cov": True}):
        for ours, theirs in zip(*(layer.predict(x, **options) for layer in layers)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    for layer in layers:
        layer(x, training=True)
    np.testing.assert_allclose(layers[0].losses, layers[1].losses, rtol=1e-12)


@pytest.mark.parametrize("whiten,full_output_cov", [(True, False), (False, False), (False, True)])
def test_a_training_step_makes_two_factorisations(whiten, full_output_cov, rng, x):
    layer = make_layer(rng, ("points", "points"), whiten=whiten, full_output_cov=full_output_cov)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            distribution = layer(tf.constant(x), training=True)
            loss = tf.reduce_sum(distribution.loc) + tf.add_n(layer.losses)
        return tape.gradient(loss, layer.trainable_variables)

    types = [operation.type for operation in step.get_concrete_function().graph.get_operations()]
    of_outputs = 1 if full_output_cov else 0  # the distribution factorises the covariance of the outputs
    assert types.count("Cholesky") == 2 + of_outputs


# -- at home in GPflux ------------------------------------------------------------------------------------------------


def test_two_layers_train_and_the_elbo_rises(rng, x, y, tmp_path):
    layers = [
        make_layer(rng, num_outputs=2, mean_function=Identity()),
        make_layer(rng, ("harmonics", "points"), num_outputs=1),
    ]
    layers[0].q_sqrt.assign(1e-2 * layers[0].q_sqrt)
    model = gpflux.models.DeepGP(layers, gpflux.layers.LikelihoodLayer(gpflow.likelihoods.Gaussian(0.1)))

    def elbo():
        return np.mean([model.elbo((x, y)) for _ in range(3)])

    before, weights = elbo(), [v.numpy() for layer in layers for v in layer.trainable_variables]
    board = gpflux.callbacks.TensorBoard(str(tmp_path), profile_batch=0, write_graph=False)
    history = train(model, x, y, epochs=30, callbacks=[board]).history
    assert elbo() > before + 10  # the noise of three samples is below 1
    assert f"{layers[0].name}_prior_kl" in history
    moved = [v.numpy() for layer in layers for v in layer.trainable_variables]
    assert len(moved) == 17 and all(np.abs(new - old).max() > 0 for old, new in zip(weights, moved))
    assert list(tmp_path.rglob("events*"))
    assert model.as_prediction_model()(x).y_mean.shape == (NUM_DATA, 1)


def test_stands_next_to_other_layers_of_gpflux(rng, x, y):
    encoder = gpflux.encoders.DirectlyParameterizedNormalDiag(NUM_DATA, 1)
    prior = tfp.distributions.MultivariateNormalDiag(np.zeros(1), np.ones(1))
    ordinary = gpflux.layers.GPLayer(
        SharedIndependent(gpflow.kernels.Matern52(), 2),
        SharedIndependentInducingVariables(InducingPoints(rng.normal(size=(4, 3)))),
        NUM_DATA,
        Zero(2),
        num_samples=2,  # so that the next layer sees inputs with a leading axis
    )
    last = make_layer(rng, num_outputs=1)
    layers = [gpflux.layers.LatentVariableLayer(prior, encoder), ordinary, last]
    model = gpflux.models.DeepGP(layers, gpflow.likelihoods.Gaussian(0.1))
    assert np.isfinite(train(model, x, y, epochs=2).history["loss"]).all()
    assert model.predict_f(x)[0].shape == (2, NUM_DATA, 1)


def test_works_with_likelihood_loss(rng, x, y):
    model = tf_keras.Sequential([make_layer(rng, num_outputs=1)])
    model.compile(tf_keras.optimizers.Adam(1e-2), gpflux.losses.LikelihoodLoss(gpflow.likelihoods.Gaussian(0.1)))
    losses = model.fit(x, y, batch_size=NUM_DATA, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_kernels_and_features_work_in_the_layer_of_gpflux(rng, x):
    for kind in ("activations", "harmonics"):
        kernel = ArcCosine()
        features = make_feature(kind, kernel, NUM_INPUTS, rng, num=4)
        layer = gpflux.layers.GPLayer(
            SharedIndependent(kernel, 2), SharedIndependentInducingVariables(features), NUM_DATA, Identity()
        )
        perturb(layer, rng)
        mean, variance = layer.predict(x)
        again = from_gpflux(layer, return_moments=True)
        assert again.posterior.orthogonal_inducing_variable is None
        # GPflow's jitter is not ours.
        np.testing.assert_allclose(tf.stack([mean, variance], axis=-1), again(x), rtol=1e-3, atol=1e-4)
        layer(x, training=True)
        np.testing.assert_allclose(layer.losses[0] * NUM_DATA, again.posterior.prior_kl(), rtol=1e-10)


@pytest.mark.parametrize("full_cov,full_output_cov", [(True, False), (False, True)])
@pytest.mark.parametrize("kind", ["separate", "coregionalised"])
def test_outputs_with_kernels_of_their_own(kind, full_cov, full_output_cov, rng, x):
    kernels = [Matern52(weight_variances=scale) for scale in (0.5, 1.0)]
    features = SeparateIndependentInducingVariables([points(rng), points(rng)])
    kernel = (
        SeparateIndependent(kernels)
        if kind == "separate"
        else LinearCoregionalization(kernels, rng.normal(size=(3, 2)))
    )
    num_outputs = 2 if kind == "separate" else 3
    layer = OrthogonalGPLayer(
        kernel,
        features,
        NUM_DATA,
        points(rng, 3),
        Zero(),
        full_cov=full_cov,
        full_output_cov=full_output_cov,
        num_samples=5,
    )
    perturb(layer, rng)
    options = {"full_cov": full_cov, "full_output_cov": full_output_cov}
    for ours, theirs in zip(layer.predict(x, **options), make_twin(layer).predict_f(x, **options)):
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)
    assert tf.convert_to_tensor(layer(x, training=True)).shape == (5, NUM_DATA, num_outputs)
    np.testing.assert_allclose(layer.losses, [layer.prior_kl() / NUM_DATA], rtol=1e-10)


def test_priors_count_and_a_frozen_kernel_is_no_error(rng, x):
    layer = make_layer(rng)
    kernel = layer.kernel.kernel
    kernel.variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(3.0))
    layer(x, training=True)
    expected = (layer.prior_kl() - kernel.variance.log_prior_density()) / NUM_DATA
    np.testing.assert_allclose(layer.losses, [expected], rtol=1e-10)
    gpflow.set_trainable(kernel, False)
    layer(x, training=True)
    np.testing.assert_allclose(layer.losses, [layer.prior_kl() / NUM_DATA], rtol=1e-10)
    layer(x)
    assert layer.losses == [0.0]  # as in GPflux: only training has the divergence


def test_errors(rng, x):
    good = {"kernel": ArcCosine(), "inducing_variable": points(rng), "num_data": 5, "num_latent_gps": 1}
    for change, error, message in (
        ({"kernel": "arccos"}, TypeError, "Expected `kernel`.*Got: 'arccos'"),
        ({"inducing_variable": np.ones((2, 2))}, TypeError, "Expected `inducing_variable`.*Got: array"),
        ({"orthogonal_inducing_variable": Zero()}, TypeError, "Expected `orthogonal_inducing_variable`"),
        ({"mean_function": "zero"}, TypeError, "Expected `mean_function`.*Got: 'zero'"),
        ({"num_data": 0}, ValueError, "Expected `num_data`.*Got: 0"),
        ({"num_latent_gps": 0}, ValueError, "Expected `num_latent_gps`.*Got: 0"),
        ({"num_latent_gps": None}, ValueError, "Expected one number of latent processes.*Got: \\[\\]"),
        ({"kernel": SharedIndependent(ArcCosine(), 2)}, ValueError, "Expected one number.*Got: \\[1, 2\\]"),
        ({"orthogonal_covariance": "diagonal"}, ValueError, "Expected `orthogonal_covariance`.*Got: 'diagonal'"),
    ):
        with pytest.raises(error, match=message):
            OrthogonalGPLayer(**{"mean_function": Zero(), **good, **change})
    with pytest.warns(UserWarning, match="Identity"):
        layer = OrthogonalGPLayer(**{**good, "num_latent_gps": 3})
    with pytest.raises(ValueError, match="Expected a mean function with 3 outputs.*Got 2 of Identity"):
        layer.predict(x)
    for inputs in (x[0], x[:, :1]):
        with pytest.raises(ValueError, match="Expected inputs of shape \\[..., N, 2\\]. Got shape"):
            layer.predict(inputs)


# -- function samples -------------------------------------------------------------------------------------------------


def test_sample_is_a_function_of_gpflux(rng, x):
    layer = make_layer(rng, mean_function=Linear(rng.normal(size=(2, 2)), [0.3, -0.2]))
    sample = layer.sample(seed=4)
    assert isinstance(sample, gpflux.sampling.sample.Sample)
    values = sample(x)
    expected = FunctionSamples(layer.posterior(None), 1, 4)(x)[0] + layer.mean_function(x)
    np.testing.assert_allclose(values, expected, **TOLERANCE)
    layer.mean_function.b.assign([5.0, 5.0])
    layer.q_mu.assign(layer.q_mu + 1.0)
    assert_same(sample(x), values)  # the function that was drawn
    assert np.abs(layer.sample()(x) - layer.sample()(x)).max() > 1e-3
    repeated = []
    for _ in range(2):
        tf.random.set_seed(1)
        repeated.append(layer.sample()(x))
    assert_same(*repeated)


def test_samples_of_deep_models_of_gpflux(rng, x):
    layers = [make_layer(rng, mean_function=Identity()), make_layer(rng, pair=("points", "points"), num_outputs=1)]
    model = gpflux.models.DeepGP(layers, gpflow.likelihoods.Gaussian(0.1))
    sample = gpflux.models.deep_gp.sample_dgp(model)
    values = sample(x)
    assert values.shape == (NUM_DATA, 1)
    rows = np.concatenate([sample(row[None]) for row in x[:3]])
    np.testing.assert_allclose(rows, values[:3], **TOLERANCE)


# -- to the Keras layer and back --------------------------------------------------------------------------------------


def adapted(x, units=2, **options):
    options = {"num_inducing": 4, "num_orthogonal": 3, "num_levels": 4, **options}
    layer = OrthogonalGP(units, **options)
    layer.adapt(x)
    perturb(layer.posterior, np.random.default_rng(3))
    return layer


def flags(posterior):
    return {path: parameter.trainable for path, parameter in gpflow.utilities.parameter_dict(posterior).items()}


@pytest.mark.parametrize(
    "options",
    [
        {"mean_function": "identity"},
        {"mean_function": None, "whiten": False},
        {"units": 1, "mean_function": "linear", "orthogonal_covariance": "prior"},
        {"units": 3, "mean_function": keras.layers.Dense(3, bias_initializer="normal")},
        {"units": 1, "mean_function": keras.layers.Dense(1, use_bias=False), "num_orthogonal": 0},
        {"mean_function": keras.layers.Dense(2, bias_initializer="normal", trainable=False), "features": "harmonics"},
        {"mean_function": None, "features": "harmonics", "num_orthogonal": 0, "trainable": False},
    ],
)
def test_round_trip(options, x):
    layer = adapted(x, return_moments=True, **options)
    gpflow.set_trainable(layer.posterior.kernel.bias_variance, False)
    layer.adopted_weights[2].trainable = False
    before = [weight.numpy() for weight in layer.weights]
    there = to_gpflux(layer)
    back = from_gpflux(there, return_moments=True)
    np.testing.assert_allclose(tf.stack(there.predict(x), axis=-1), layer(x), rtol=1e-6, atol=1e-7)
    assert back.num_data == there.num_data == NUM_DATA
    assert back.trainable == there.trainable == layer.trainable
    assert back.whiten == layer.whiten and back.orthogonal_covariance == layer.orthogonal_covariance
    assert flags(back.posterior) == flags(layer.posterior)
    names = [[weight.path.split("/")[-1] for weight in each.trainable_weights] for each in (layer, back)]
    assert names[0] == names[1]
    ours, theirs = (gpflow.utilities.parameter_dict(each.posterior) for each in (layer, back))
    for name, parameter in ours.items():
        value = np.tril(parameter) if name.endswith("q_sqrt") else parameter
        np.testing.assert_array_equal(value, theirs[name])
    if layer.mean_layer is not None:
        for left, right in zip(layer.mean_layer.get_weights(), back.mean_layer.get_weights()):
            np.testing.assert_array_equal(left, right)
    for variable in there.variables:
        variable.assign_add(tf.ones_like(variable))
    for weight in back.weights:
        weight.assign(weight + 1)
    for left, right in zip(before, layer.weights):  # nothing was shared
        np.testing.assert_array_equal(left, right)


def test_flags_of_q_and_of_weights_are_carried(x):
    layer = adapted(x, mean_function=None)
    layer.adopted_weights[0].trainable = False  # frozen for Keras, which GPflow does not know
    gpflow.set_trainable(layer.posterior.q_mu, True)
    there = to_gpflux(layer)
    assert not there.kernel.kernel.variance.trainable and there.q_mu.trainable
    gpflow.set_trainable(there.q_mu, False)
    back = from_gpflux(there)
    paths = [weight.path.split("/")[-1] for weight in back.trainable_weights]
    assert "q_mu" not in paths and "variance" not in paths and "q_sqrt" in paths
    assert not back.posterior.q_mu.trainable


def test_a_converted_layer_trains_and_is_saved(rng, x, y, tmp_path):
    mean_function = Linear(rng.normal(size=(2, 1)), rng.normal(size=1))
    layer = from_gpflux(make_layer(rng, num_outputs=1, mean_function=mean_function), return_moments=True)
    model = keras.Sequential([keras.Input((NUM_INPUTS,)), layer, GaussianLikelihood()])
    model.compile(keras.optimizers.Adam(1e-2), VariationalLoss("gaussian"), run_eagerly=True)
    losses = model.fit(x, y, batch_size=NUM_DATA, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(loaded(x), model(x))


def test_conversions_refuse_by_name(rng, x):
    for convert in (to_gpflux, from_gpflux):
        with pytest.raises(TypeError, match="Expected `layer` to be a .*Got: 'layer'"):
            convert("layer")
    with pytest.raises(ValueError, match="before it is built"):
        to_gpflux(OrthogonalGP(1))
    unknown = OrthogonalGP(1, num_inducing=3, num_orthogonal=3)
    unknown.build((None, 2))
    with pytest.raises(ValueError, match="Expected a layer that knows its number of data"):
        to_gpflux(unknown)
    with pytest.raises(ValueError, match="default dtype, float64.*Got float32"):
        to_gpflux(adapted(x, dtype="float32"))
    with pytest.raises(ValueError, match="linear. Got: <Dense"):
        to_gpflux(adapted(x, mean_function=keras.layers.Dense(2, activation="tanh")))
    warming = adapted(x)
    warming.kl_weight.assign(0.5)
    with pytest.raises(ValueError, match="divergence by 1. Got: 0.5"):
        to_gpflux(warming)

    for options in ({"full_cov": True}, {"full_output_cov": True}, {"num_samples": 3}):
        with pytest.raises(ValueError, match=f"without `{next(iter(options))}`"):
            from_gpflux(make_layer(rng, **options))
    with pytest.raises(ValueError, match="Linear mean function with 2 outputs. Got one with A of shape .1, 1."):
        from_gpflux(make_layer(rng, mean_function=Linear()))
    with pytest.raises(ValueError, match="Got: Constant"):
        from_gpflux(make_layer(rng, mean_function=Constant()))
    half = Linear(np.ones((2, 2)), np.ones(2))
    gpflow.set_trainable(half.b, False)
    with pytest.raises(ValueError, match="both A and b"):
        from_gpflux(make_layer(rng, mean_function=half))
    layer = make_layer(rng)
    layer.kernel.kernel.variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(3.0))
    with pytest.raises(ValueError, match="Got a prior on the kernel's kernel.variance"):
        from_gpflux(layer)
    kernel = ArcCosine(active_dims=[0])
    layer = OrthogonalGPLayer(kernel, SphericalHarmonics(2, [0, 1]), 5, None, Zero(), num_latent_gps=1)
    with pytest.raises(ValueError, match="Expected `num_inputs`"):
        from_gpflux(layer)
    np.testing.assert_allclose(
        from_gpflux(layer, num_inputs=2, return_moments=True)(x)[..., 1], layer.predict(x)[1], **TOLERANCE
    )


# -- apart from the rest ----------------------------------------------------------------------------------------------


def test_no_other_part_brings_gpflux():
    code = (
        "import sys, gpflow; before = set(sys.modules); import keras_odgp;"
        "names = {name for name in set(sys.modules) - before if name.split('.')[0] == 'tf_keras'};"
        "print(sorted(names | {name for name in sys.modules if name.split('.')[0] == 'gpflux'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
    root = Path(keras_odgp.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            brings = any(name.split(".")[0] == "gpflux" or name.startswith("keras_odgp.gpflux") for name in names)
            # Fourier features too are of GPflux, but imported within a function, when they are needed.
            assert not brings or path.parent.name == "gpflux_layers" or path.name == "fourier.py", path


def test_models_of_both_keras_train_in_one_process(rng, x, y):
    """The Keras 3 model takes the same steps whether or not a GPflux model trains between them."""
    start = make_layer(rng, num_outputs=1)

    def keras_model():
        model = keras.Sequential(
            [keras.Input((NUM_INPUTS,)), from_gpflux(start, return_moments=True), GaussianLikelihood()]
        )
        model.compile(keras.optimizers.Adam(1e-2), VariationalLoss("gaussian"), run_eagerly=True)
        return model

    def steps(model, num):
        return model.fit(x, y, batch_size=NUM_DATA, epochs=num, verbose=0).history["loss"]

    expected = steps(keras_model(), 4)
    deep = gpflux.models.DeepGP([to_gpflux(from_gpflux(start))], gpflow.likelihoods.Gaussian(0.1))
    model = keras_model()
    losses, before = steps(model, 2), float(deep.elbo((x, y)))
    floatx = keras.config.floatx()
    train(deep, x, y)
    after = float(deep.elbo((x, y)))
    assert_same(losses + steps(model, 2), expected)
    assert before < after == float(deep.elbo((x, y)))
    assert keras.config.floatx() == floatx and gpflow.default_float() is np.float64
