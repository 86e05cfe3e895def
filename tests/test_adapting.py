"""Start values from data: for a layer, and for all layers of a model, each from what reaches it."""

from __future__ import annotations

import gpflow
import keras
import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same
from layers import house

import keras_odgp
from keras_odgp.gpflow_models import OrthogonalSVGP
from keras_odgp.layers import GaussianLikelihood, OrthogonalGP, starts
from keras_odgp.numerics import float_context

X, Y = house.regression()


def unknown(units=1, **options):
    """A GP layer that has not been told the number of data."""
    return house.gp(units, num_data=None, **options)


def built(units=1, **options):
    layer = unknown(units, **options)
    layer.build((None, 3))
    return layer


def one_layer(**options):
    return keras.Sequential([unknown(return_moments=True, seed=0, **options), GaussianLikelihood()])


def points(layer):
    return np.asarray(layer.posterior.orthogonal_inducing_variable.Z)


def is_among(rows, data):
    return (np.abs(rows[:, None] - data[None]).max(axis=-1).min(axis=1) < 1e-6).all()


def optimal_twin(layer, noise, x, y):
    posterior = gpflow.utilities.deepcopy(layer.posterior)
    twin = OrthogonalSVGP(
        posterior.kernel,
        gpflow.likelihoods.Gaussian(float(noise.variance.numpy()[0])),
        posterior.inducing_variable,
        posterior.orthogonal_inducing_variable,
        num_latent_gps=layer.units,
        whiten=layer.whiten,
        orthogonal_covariance=layer.orthogonal_covariance,
    )
    twin.set_optimal_q((x, y))
    return twin


def assert_optimal(layer, noise, x, y):
    twin = optimal_twin(layer, noise, x, y)
    for name in ("q_mu", "q_sqrt", "orthogonal_q_mu", "orthogonal_q_sqrt"):
        ours, theirs = getattr(layer.posterior, name), getattr(twin, name)
        if theirs is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8 * np.abs(theirs).max(), err_msg=name)


def rounded(x):
    """As a model's input with Keras's default floatx passes it on."""
    return np.asarray(x, np.float32).astype(np.float64)


def test_layer_that_is_not_built_adapts_without_warning():
    layer = unknown(seed=0)
    layer.adapt(X)
    assert layer.num_data == 40


@pytest.mark.parametrize("method", ["kmeans", "subset"])
def test_layer_takes_start_values_from_data(method):
    layer = built(features="points", seed=0)
    layer.adapt(X, method=method)
    assert layer.num_data == 40
    base = np.asarray(layer.posterior.inducing_variable.Z)
    for chosen in (base, points(layer)):
        assert len(np.unique(chosen, axis=0)) == len(chosen)
        assert (chosen.min(axis=0) >= X.min(axis=0)).all() and (chosen.max(axis=0) <= X.max(axis=0)).all()
    if method == "subset":
        assert is_among(base, X)


def test_directions_point_at_data():
    layer = built(seed=0)
    layer.adapt(X, method="subset")
    weights = np.asarray(layer.posterior.inducing_variable.weights)
    kernel = layer.kernel
    augmented = np.hstack([X * np.sqrt(kernel.weight_variances), np.full((40, 1), np.sqrt(kernel.bias_variance))])
    cosines = weights @ augmented.T
    cosines /= np.linalg.norm(weights, axis=1)[:, None] * np.linalg.norm(augmented, axis=1)
    np.testing.assert_allclose(cosines.max(axis=1), 1.0, atol=1e-9)


def test_layer_adapts_to_datasets_and_sequences():
    from_array, from_dataset, from_pairs, from_sequences = (built(seed=0) for _ in range(4))
    from_array.adapt(X)
    from_dataset.adapt(tf.data.Dataset.from_tensor_slices(X).batch(7))
    from_pairs.adapt(tf.data.Dataset.from_tensor_slices((X, Y)).batch(7))
    from_sequences.adapt(X.reshape(8, 5, 3))
    for layer in (from_dataset, from_pairs, from_sequences):
        assert layer.num_data == 40
        assert_same(points(layer), points(from_array))
    from_array.adapt(X, num_data=1000)
    assert from_array.num_data == 1000


def test_given_feature_objects_keep_their_values():
    given = gpflow.inducing_variables.InducingPoints(np.zeros((6, 3)) + np.arange(6)[:, None])
    layer = built(features=given)
    layer.adapt(X)
    np.testing.assert_array_equal(given.Z, np.zeros((6, 3)) + np.arange(6)[:, None])


def test_fewer_data_than_points():
    layer = built(features="points")
    layer.adapt(X[:3])
    assert np.isfinite(points(layer)).all()
    assert len(np.unique(points(layer), axis=0)) == 5


def test_linear_mean_function_is_the_principal_components():
    layer = built(2)
    layer.adapt(X)
    values, vectors = np.linalg.eigh(np.cov(X.T))
    expected = vectors[:, np.argsort(values)[::-1][:2]]
    signs = np.sign(np.sum(expected * layer.mean_layer.matrix, axis=0))
    np.testing.assert_allclose(layer.mean_layer.matrix, expected * signs, atol=1e-10)
    wider = built(5)
    wider.adapt(X)
    np.testing.assert_array_equal(wider.mean_layer.matrix, np.eye(3, 5))


@pytest.mark.parametrize("options", [{}, {"whiten": False}, {"orthogonal_covariance": "prior"}], ids=str)
def test_start_of_the_last_layer_is_the_optimal_q(options):
    model = one_layer(**options)
    keras_odgp.adapt(model, X, Y)
    assert_optimal(*model.layers, X, Y)
    assert model.layers[0].num_data == 40


def test_start_of_a_built_model_and_in_batches():
    model = house.sequential(*house.head(seed=0))
    keras_odgp.adapt(model, X, Y[:, 0], batch_size=16)
    assert_optimal(*model.layers, rounded(X), Y)


def test_start_from_a_dataset():
    model = house.sequential(*house.head(seed=0))
    keras_odgp.adapt(model, tf.data.Dataset.from_tensor_slices((X, Y)).batch(16))
    assert_optimal(*model.layers, rounded(X), Y)
    assert model.layers[0].num_data == 40


def test_start_in_float32():
    outputs = []
    for dtype in ("float64", "float32"):
        model = keras.Sequential([unknown(return_moments=True, dtype=dtype, seed=0), GaussianLikelihood(dtype=dtype)])
        keras_odgp.adapt(model, X, Y)
        outputs.append(np.asarray(model(X)))
    # The jitter of float32 is 1e-5 of the diagonal, and the optimum magnifies it by the ratio of signal and noise.
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-2)


def test_without_targets_q_keeps_its_start():
    model = one_layer()
    keras_odgp.adapt(model, X)
    np.testing.assert_array_equal(model.layers[0].posterior.q_mu, np.zeros((6, 1)))
    assert model.layers[0].num_data == 40


def test_of_other_likelihoods_q_keeps_its_start():
    model = keras.Sequential([unknown(return_moments=True)])
    model.compile(loss=keras_odgp.losses.VariationalLoss("bernoulli"))
    keras_odgp.adapt(model, X, (Y > 0) * 1.0)
    np.testing.assert_array_equal(model.layers[0].posterior.q_mu, np.zeros((6, 1)))


def test_several_outputs():
    x, y = house.regression(num_outputs=2)
    model = keras.Sequential([unknown(2, return_moments=True), GaussianLikelihood()])
    keras_odgp.adapt(model, x, y)
    assert_optimal(*model.layers, x, y)


def two_layers():
    return house.sequential(unknown(3, seed=0), unknown(return_moments=True, seed=1), GaussianLikelihood())


def test_two_layers_start_better_with_targets():
    losses = []
    for targets in (None, Y):
        model = two_layers()
        keras_odgp.adapt(model, X, targets)
        assert [layer.num_data for layer in model.layers[:2]] == [40, 40]
        losses.append(house.evaluate(house.compiled(model), X, Y))
    assert losses[1] < losses[0]
    assert np.isfinite(model.fit(X, Y, batch_size=20, verbose=0).history["loss"]).all()


def test_branches_each_adapt_to_what_reaches_them():
    inputs = keras.Input((3,))
    scaled = keras.layers.Rescaling(100.0)(inputs)
    near, far = unknown(3, features="points", name="near"), unknown(3, features="points", name="far")
    joined = keras.layers.Concatenate()([near(inputs), far(scaled), inputs])
    model = keras.Model(inputs, GaussianLikelihood()(unknown(return_moments=True, name="last")(joined)))
    keras_odgp.adapt(model, X, Y, method="subset")
    assert is_among(points(near), X)
    assert is_among(points(far) / 100, X)
    assert {layer.num_data for layer in (near, far, model.get_layer("last"))} == {40}


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = unknown(3, name="hidden")
        self.last = unknown(return_moments=True, name="last")
        self.noise = GaussianLikelihood()

    def call(self, inputs, training=False):
        hidden = self.hidden(inputs, training=training)
        return self.noise(self.last(keras.ops.add(hidden, inputs), training=training))


def test_subclassed_model():
    model = Subclassed()
    keras_odgp.adapt(model, X, Y)
    assert model.hidden.num_data == model.last.num_data == 40
    assert np.abs(model.last.posterior.q_mu).max() > 0
    house.compiled(model)
    assert np.isfinite(model.fit(X, Y, batch_size=20, verbose=0).history["loss"]).all()


def test_sequences_have_a_datum_at_each_step():
    model = keras.Sequential([unknown(return_moments=True, seed=0), GaussianLikelihood()])
    x, y = X.reshape(8, 5, 3), Y.reshape(8, 5)
    keras_odgp.adapt(model, x, y)
    assert model.layers[0].num_data == 40
    assert_optimal(*model.layers, X, Y)
    house.compiled(model)
    flat = one_layer()
    keras_odgp.adapt(flat, X, Y)
    np.testing.assert_allclose(
        house.evaluate(model, x, y, batch_size=8),
        house.evaluate(house.compiled(flat), X, Y, batch_size=40),
        rtol=1e-5,  # losses are added in float32
    )


@pytest.mark.parametrize(
    ("parts", "shape"),
    [
        ([lambda: unknown(1)], (8, 5, 1)),
        ([lambda: unknown(1)], (8, 5)),
        ([lambda: unknown(2), lambda: keras.layers.Dense(3, "softmax")], (8, 5)),  # labels
        ([lambda: unknown(2), lambda: keras.layers.Dense(3, "softmax")], (8, 5, 3)),
        ([lambda: unknown(2, return_moments=True)], (8, 5, 2)),  # for a loss of one's own
        ([lambda: unknown(2, return_moments=True)], (8, 5)),  # labels
        ([lambda: unknown(2, return_moments=True)], None),
        ([lambda: unknown(1)], None),
    ],
)
def test_steps_of_sequences_count_whatever_the_loss(parts, shape):
    model = keras.Sequential([part() for part in parts])
    keras_odgp.adapt(model, X.reshape(8, 5, 3), None if shape is None else np.zeros(shape))
    assert model.layers[0].num_data == 40


def test_losses_of_keras_are_means_over_steps():
    """So with the number of steps the loss does not depend on how steps are arranged."""
    losses = []
    for shape in ((40,), (8, 5)):
        model = keras.Sequential([unknown(1, return_moments=True, seed=0)])
        keras_odgp.adapt(model, X.reshape(*shape, 3), Y.reshape(*shape, 1))
        model.layers[0].posterior.q_mu.assign_add(np.ones_like(model.layers[0].posterior.q_mu))
        model.compile(loss=lambda y, moments: keras.losses.mean_squared_error(y, moments[..., 0]), run_eagerly=True)
        losses.append(house.evaluate(model, X.reshape(*shape, 3), Y.reshape(*shape, 1), batch_size=40))
        assert model.losses[0] > 0.01
    np.testing.assert_allclose(*losses, rtol=1e-5)  # in float32


@pytest.mark.parametrize("y", [None, Y, Y[:, 0], Y[:, None]], ids=lambda y: str(np.shape(y)))
def test_repeated_inputs_are_no_data_under_ordinary_losses(y):
    model = house.sequential(keras.layers.RepeatVector(4), unknown(1))
    keras_odgp.adapt(model, X, y)
    assert model.layers[1].num_data == 40


def test_repeated_inputs_are_samples_of_one_datum():
    model = house.sequential(
        keras.layers.RepeatVector(4), unknown(3, seed=0), unknown(return_moments=True, seed=1), GaussianLikelihood()
    )
    keras_odgp.adapt(model, X, Y)
    assert [layer.num_data for layer in model.layers[1:3]] == [40, 40]
    house.compiled(model)
    assert np.isfinite(model.fit(X, Y, batch_size=20, verbose=0).history["loss"]).all()
    assert model(X).shape == (40, 4, 1, 3)


def test_repeated_inputs_of_one_layer_give_the_same_optimum():
    model = house.sequential(keras.layers.RepeatVector(4), *house.head(seed=0))
    keras_odgp.adapt(model, X, Y)
    assert model.layers[1].num_data == 40
    assert_optimal(*model.layers[1:], rounded(X), Y)


def test_number_of_data_can_be_given():
    model = one_layer()
    keras_odgp.adapt(model, X, Y, num_data=1234)
    assert model.layers[0].num_data == 1234


def test_number_of_data_is_saved(tmp_path):
    model = one_layer()
    keras_odgp.adapt(model, X, Y)
    loaded = house.saved_and_loaded(house.compiled(model), tmp_path)
    assert loaded.layers[0].num_data == 40
    assert np.isfinite(loaded.train_on_batch(X, Y, return_dict=True)["loss"])
    fresh = house.sequential(*house.head(num_data=7))
    model.save_weights(tmp_path / "some.weights.h5")
    fresh.load_weights(tmp_path / "some.weights.h5")
    assert fresh.layers[0].num_data == 40


def test_adapting_twice_gives_the_same():
    model = one_layer()
    keras_odgp.adapt(model, X, Y)
    before = model.get_weights()
    keras_odgp.adapt(model, X, Y)
    for left, right in zip(before, model.get_weights()):
        np.testing.assert_array_equal(left, right)


def test_nested_model():
    model = keras.Sequential([keras.Sequential([unknown(2, seed=0)]), *one_layer().layers])
    keras_odgp.adapt(model, X, Y)
    assert {layer.num_data for layer in model._flatten_layers() if isinstance(layer, OrthogonalGP)} == {40}


def two_heads(likelihoods=(None, None), names=(None, None), as_dict=False):
    inputs = keras.Input((3,))
    outputs = []
    for likelihood, name in zip(likelihoods, names):
        moments = keras_odgp.layers.OrthogonalGP(1, 6, 5, num_levels=4, return_moments=True)(inputs)
        outputs.append((likelihood or keras_odgp.layers.GaussianLikelihood)(name=name)(moments))
    return keras.Model(inputs, dict(zip(names, outputs)) if as_dict else outputs)


@pytest.mark.parametrize("form", ["list", "named", "dictionary"])
def test_each_head_starts_at_its_own_targets(form):
    x = np.random.default_rng(0).normal(size=(50, 3))
    first, second = np.full(50, -2.0), np.full(50, 5.0)
    model = two_heads(names=("z", "a"), as_dict=form == "dictionary")
    keras_odgp.adapt(model, x, [first, second] if form == "list" else {"z": first, "a": second})
    outputs = model(x)
    outputs = [outputs["z"], outputs["a"]] if form == "dictionary" else outputs
    for output, target in zip(outputs, (first, second)):
        # Constants are learned up to the shrinkage of the prior.
        assert abs(np.mean(output[..., 0]) - target[0]) < 0.5


def test_closed_form_is_for_gaussian_heads_only():
    x = np.random.default_rng(0).normal(size=(50, 3))
    model = two_heads((keras_odgp.layers.GaussianLikelihood, keras_odgp.layers.GammaLikelihood))
    keras_odgp.adapt(model, x, [np.full(50, 3.0), np.full(50, 1000.0)])
    gaussian, gamma = model(x)
    assert np.mean(gaussian[..., 0]) > 2.0
    np.testing.assert_allclose(gamma[..., 0], 0.0)  # q is where it was, at the prior


def test_failed_adapt_leaves_the_number_of_data_unknown():
    x = np.random.default_rng(0).normal(size=(50, 3))
    x[3, 1] = np.nan
    model = two_heads()
    with pytest.raises(ValueError, match="NaN"):
        keras_odgp.adapt(model, x, [x[:, 0] * 0, x[:, 0] * 0])
    assert [layer.num_data for layer in model.layers if isinstance(layer, keras_odgp.layers.OrthogonalGP)] == [None] * 2


def test_closed_form_is_the_optimum_for_a_given_number_of_data():
    x = np.random.default_rng(0).normal(size=(50, 3))
    y = np.sin(x[:, 0])
    model = two_heads()
    keras_odgp.adapt(model, x, [y, y], num_data=500)
    loss = keras_odgp.losses.VariationalLoss("gaussian")
    layer = next(layer for layer in model.layers if isinstance(layer, keras_odgp.layers.OrthogonalGP))
    with tf.GradientTape() as tape:
        value = tf.cast(loss(y, model(x)[0]), tf.float64) + tf.cast(tf.add_n(layer.losses), tf.float64)
    gradient = tape.gradient(value, layer.posterior.q_mu.unconstrained_variable)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)  # the loss is float32


def test_generators_are_refused_by_name():
    with pytest.raises(TypeError, match="more than\\s*once"):
        keras_odgp.adapt(two_heads(), (batch for batch in [np.zeros((5, 3))]))


def test_nan_beyond_the_rows_that_start_values_come_from(monkeypatch):
    monkeypatch.setattr("keras_odgp.layers.starts.MOST_ROWS", 600)
    x = np.random.default_rng(0).normal(size=(4000, 3))
    kept = starts.Subset()
    kept.add(np.arange(4000))
    x[np.setdiff1d(np.arange(4000), kept.values)] = np.nan
    model = keras.Sequential([keras.Input((3,)), *house.head()])
    with pytest.raises(ValueError, match="NaN or infinity among the inputs"):
        keras_odgp.adapt(model, x, np.zeros((4000, 1)), batch_size=4000)


@pytest.mark.parametrize("size", [1e20, 1e39])
def test_inputs_that_float32_cannot_square_are_refused(size):
    with float_context("float32"):
        kernel = gpflow.kernels.Matern52()
    layer = OrthogonalGP(1, 4, 4, kernel, "points", dtype="float32")
    with pytest.raises(ValueError, match="whose squares.*standardise the inputs"):
        layer.adapt(size * X)


def test_range_of_kernels_of_several_outputs_needs_no_covariances_between_them():
    kernel = gpflow.kernels.SharedIndependent(gpflow.kernels.Matern52(), output_dim=3000)
    starts.check_range(kernel, np.ones((2000, 2)), "gp")  # 2000 x 3000 x 3000 numbers would not fit
