"""Updates of q of the last layer during training, by closed form and by natural gradients."""

from __future__ import annotations

import gpflow
import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_odgp.callbacks import ClosedFormUpdate, NaturalGradient
from keras_odgp.gpflow_models import OrthogonalSVGP
from keras_odgp.layers import GammaLikelihood, GaussianLikelihood, OrthogonalGP
from keras_odgp.losses import VariationalLoss
from keras_odgp.natural.batches import batches_of

NUM_DATA = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(NUM_DATA, 2))
Y = np.stack([np.sin(2.0 * X[:, 0]), np.cos(X[:, 1])], axis=1) + 0.1 * RNG.normal(size=(NUM_DATA, 2))
LABELS = (Y[:, :1] + 0.3 * RNG.normal(size=(NUM_DATA, 1)) > 0).astype(float)


@pytest.fixture
def eagerly():
    """Few steps are sooner done than compiled."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def gp(units=1, **kwargs):
    return OrthogonalGP(
        units,
        **{"num_inducing": 6, "num_orthogonal": 5, "return_moments": True, "num_data": NUM_DATA, "seed": 0, **kwargs},
    )


def make(*layers, likelihood="gaussian", learning_rate=0.0):
    model = keras.Sequential([keras.Input((2,), dtype="float64"), *layers])
    optimizer = keras.optimizers.Adam(learning_rate)
    model.compile(optimizer=optimizer, loss=VariationalLoss(likelihood), jit_compile=False)
    return model


def fit(model, x, y, *callbacks, epochs=1, batch_size=NUM_DATA):
    return model.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=0, callbacks=list(callbacks)).history


def evaluate(model, x, y):
    return model.evaluate(x, y, verbose=0, return_dict=True)["loss"]


def q_of(posterior):
    """Means and covariances of q: roots are unique up to signs only."""
    parts = [posterior.q_mu, posterior.q_sqrt, posterior.orthogonal_q_mu, posterior.orthogonal_q_sqrt]
    parts = [np.asarray(part) for part in parts if part is not None]
    return [np.tril(part) @ np.tril(part).swapaxes(-1, -2) if part.ndim == 3 else part for part in parts]


def assert_equal_q(left, right, tolerance):
    for one, other in zip(q_of(left), q_of(right), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def as_gpflow(layer, likelihood):
    """A GPflow model of the features and the q of a layer."""
    posterior = layer.posterior
    return OrthogonalSVGP(
        gpflow.utilities.deepcopy(posterior.kernel),
        likelihood,
        gpflow.utilities.deepcopy(posterior.inducing_variable),
        gpflow.utilities.deepcopy(posterior.orthogonal_inducing_variable),
        num_latent_gps=layer.units,
        q_mu=posterior.q_mu.numpy(),
        q_sqrt=np.tril(posterior.q_sqrt.numpy()),
        whiten=layer.whiten,
        orthogonal_covariance=layer.orthogonal_covariance,
    )


def optimum(layer, noise, y, x=X):
    """The posterior with q from GPflow's side; noise shared by all outputs."""
    model = as_gpflow(layer, gpflow.likelihoods.Gaussian(float(noise.variance.numpy().flat[0])))
    model.set_optimal_q((x, y))
    return model.posterior(None)


OPTIONS = [
    {},
    {"whiten": False},
    {"orthogonal_covariance": "prior"},
    {"orthogonal_covariance": "prior", "whiten": False},
    {"orthogonal_features": None},
    {"features": "harmonics"},
]


def disturb(layer, seed=1):
    """Moves q away from its start, to somewhere that differs between outputs and has negative diagonals."""
    rng = np.random.default_rng(seed)
    posterior = layer.posterior
    for part in (posterior.q_mu, posterior.q_sqrt, posterior.orthogonal_q_mu, posterior.orthogonal_q_sqrt):
        if part is not None:
            part.assign(part.numpy() * np.where(part.shape[-1] == 2, 1.0, -1.0) + 0.1 * rng.normal(size=part.shape))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("callback, num_outputs", [(ClosedFormUpdate, 2), (NaturalGradient, 1)])
@pytest.mark.usefixtures("eagerly")
def test_one_full_step_is_the_closed_form(callback, num_outputs, options):
    y = Y[:, :num_outputs]
    model = make(gp(num_outputs, **options), GaussianLikelihood())
    layer, noise = model.layers
    disturb(layer)
    full = {"damping": 1.0} if callback is ClosedFormUpdate else {"gamma": 1.0, "warmup": 0}
    fit(model, X, y, callback(X, y, every=1, batch_size=1000, **full))
    assert_equal_q(layer.posterior, optimum(layer, noise, y), 1e-8 if callback is ClosedFormUpdate else 1e-6)


@pytest.mark.parametrize("callback", [ClosedFormUpdate, NaturalGradient])
@pytest.mark.parametrize("form", ["arrays", "dataset", "column"])
@pytest.mark.usefixtures("eagerly")
def test_a_weight_counts_as_so_many_examples(callback, form):
    y, times = Y[:, :1], np.random.default_rng(0).integers(1, 4, size=NUM_DATA)
    model = make(gp(), GaussianLikelihood())
    layer, noise = model.layers
    disturb(layer)
    full = {"damping": 1.0} if callback is ClosedFormUpdate else {"gamma": 1.0, "warmup": 0}
    data = (X, y, times[:, None] if form == "column" else times)
    if form == "dataset":
        data = (tf.data.Dataset.from_tensor_slices(data).batch(NUM_DATA),)
    fit(model, X, y, callback(*data, **full))
    expected = optimum(layer, noise, np.repeat(y, times, axis=0), np.repeat(X, times, axis=0))
    assert_equal_q(layer.posterior, expected, 1e-6)


@pytest.mark.usefixtures("eagerly")
def test_noise_of_each_output():
    model = make(gp(2), GaussianLikelihood())
    layer, noise = model.layers
    noise.variance.assign([0.05, 0.4])
    fit(model, X, Y, ClosedFormUpdate(X, Y, damping=1.0, every=1))
    for p, variance in enumerate([0.05, 0.4]):
        reference = as_gpflow(layer, gpflow.likelihoods.Gaussian(variance))
        reference.set_optimal_q((X, Y))
        for ours, expected in zip(q_of(layer.posterior), q_of(reference.posterior(None))):
            index = p if ours.ndim == 3 else (slice(None), p)
            np.testing.assert_allclose(ours[index], expected[index], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("likelihood, whiten", [("bernoulli", True), ("gaussian", False)])
@pytest.mark.usefixtures("eagerly")
def test_steps_of_one_pair_are_those_of_gpflow(likelihood, whiten):
    y = LABELS if likelihood == "bernoulli" else Y[:, :1]
    layer = gp(orthogonal_features=None, whiten=whiten)
    model = make(layer, *([GaussianLikelihood()] if likelihood == "gaussian" else []), likelihood=likelihood)
    gpflow_likelihood = (
        gpflow.likelihoods.Bernoulli() if likelihood == "bernoulli" else gpflow.likelihoods.Gaussian(0.1)
    )
    reference = as_gpflow(layer, gpflow_likelihood)
    reference.q_mu.assign(layer.posterior.q_mu)
    fit(model, X, y, NaturalGradient(X, y, gamma=0.3, warmup=2, initial_gamma=0.1), epochs=4)
    for gamma in (0.1, np.sqrt(0.03), 0.3, 0.3):
        gpflow.optimizers.NaturalGradient(gamma).minimize(
            reference.training_loss_closure((X, y), compile=False), [(reference.q_mu, reference.q_sqrt)]
        )
    assert_equal_q(layer.posterior, reference.posterior(None), 1e-7)


@pytest.mark.parametrize("options", [{}, {"orthogonal_covariance": "prior"}], ids=str)
def test_natural_gradients_end_where_the_gradient_is_zero(options):
    model = make(gp(**options), likelihood="bernoulli")
    layer = model.layers[0]
    fit(model, X, LABELS, NaturalGradient(X, LABELS, gamma=0.5, warmup=3), epochs=60)
    parameters = [variable.value for variable in layer.adopted_weights if "q_" in variable.name]
    assert len(parameters) == (3 if options.get("orthogonal_covariance") else 4)
    with tf.GradientTape() as tape:
        output = model(X, training=False)
        loss = model.loss(LABELS, output) + sum(tf.cast(term, "float32") for term in model.losses)
    for gradient in tape.gradient(loss, parameters):
        np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


def test_optimiser_trains_the_rest_and_q_again_afterwards():
    model = make(gp(), GaussianLikelihood(), learning_rate=1e-2)
    layer = model.layers[0]
    y = Y[:, :1]
    names = {variable.path for variable in model.trainable_variables}
    fit(model, X, y)  # compiled with q among what is trained
    before, variance = q_of(layer.posterior), float(layer.kernel.variance.numpy())
    never = ClosedFormUpdate(X, y, every=1000)
    fit(model, X, y, never, epochs=2, batch_size=25)
    for one, other in zip(q_of(layer.posterior), before):
        np.testing.assert_array_equal(one, other)
    assert float(layer.kernel.variance.numpy()) != variance
    assert {variable.path for variable in model.trainable_variables} == names
    fit(model, X, y)
    assert all(np.any(one != other) for one, other in zip(q_of(layer.posterior), before))


@pytest.mark.usefixtures("eagerly")
def test_a_fresh_optimiser_knows_q_afterwards(tmp_path):
    y = Y[:, :1]
    model = make(gp(), GaussianLikelihood(), learning_rate=1e-2)
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "model.keras")
    fit(model, X, y, ClosedFormUpdate(X, y, every=1, damping=1.0), checkpoint)  # at the optimum before the end too
    expected = evaluate(model, X, y)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for trained in (model, loaded):
        assert evaluate(trained, X, y) == pytest.approx(expected, rel=1e-6)
        before = q_of(trained.layers[0].posterior)
        fit(trained, X, y)
        assert all(np.any(one != other) for one, other in zip(q_of(trained.layers[0].posterior), before))


@pytest.mark.usefixtures("eagerly")
def test_interrupted_training_is_put_right():
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    y = Y[:, :1]
    model = make(gp(), GaussianLikelihood())
    count = len(model.trainable_variables)
    update = ClosedFormUpdate(X, y)
    with pytest.raises(KeyboardInterrupt):
        fit(model, X, y, update, Interrupt())
    assert len(model.trainable_variables) == count - 4
    update.on_train_end()
    assert len(model.trainable_variables) == count


def endless(y):
    """Batches of 15 in their order, in a dataset that does not end."""
    return tf.data.Dataset.from_tensor_slices((X, y)).batch(15).repeat()


@pytest.mark.usefixtures("eagerly")
def test_batches_of_equal_weight_make_the_optimum_of_all_data():
    """With next to no decay, as many updates as there are batches and a full step, the sums are those over all data."""
    y = Y[:, :1]
    model = make(gp(), GaussianLikelihood())
    fit(model, X, y, ClosedFormUpdate(endless(y), damping=1.0, every=1, decay=1.0 - 1e-12), batch_size=15)
    assert_equal_q(model.layers[0].posterior, optimum(*model.layers, y), 1e-8)


@pytest.mark.parametrize("form", ["arrays", "dataset"])
@pytest.mark.usefixtures("eagerly")
def test_closed_form_ends_at_the_optimum_of_all_data(form):
    """Whatever damping, decay and batches (the last one smaller) were during training."""
    y = Y[:, :1]
    model = make(gp(), GaussianLikelihood(), learning_rate=1e-2)
    data = (X, y) if form == "arrays" else (tf.data.Dataset.from_tensor_slices((X, y)).batch(16),)
    fit(model, X, y, ClosedFormUpdate(*data, damping=0.1, batch_size=16), batch_size=20)
    assert_equal_q(model.layers[0].posterior, optimum(*model.layers, y), 1e-8)


@pytest.mark.usefixtures("eagerly")
def test_without_an_end_q_stays_where_the_estimates_are():
    y = Y[:, :1]
    model = make(gp(), GaussianLikelihood())
    before = q_of(model.layers[0].posterior)
    fit(model, X, y, ClosedFormUpdate(endless(y)), batch_size=30)
    best = q_of(optimum(*model.layers, y))
    for one, start, exact in zip(q_of(model.layers[0].posterior), before, best):
        assert np.any(one != start)
        assert np.abs(one - exact).max() > 1e-3


@pytest.mark.parametrize("size, batch_size, expected", [(60, None, 60), (8193, None, 2048), (60, 15, 15), (60, 90, 60)])
def test_few_data_make_one_batch(size, batch_size, expected):
    batches = batches_of(np.zeros((size, 1)), np.zeros(size), batch_size, seed=0)
    for dataset in (batches.endless, batches.once):
        assert next(iter(dataset))[0].shape == (expected, 1)
    assert batches.fraction == expected / size


@pytest.mark.parametrize("hidden, batch_size, expected", [(False, None, 1.0), (False, 15, 0.5), (True, None, 0.5)])
def test_damping_where_sums_are_not_exact(hidden, batch_size, expected):
    update = ClosedFormUpdate(X, Y[:, :1], batch_size=batch_size)
    layers = [OrthogonalGP(2, num_inducing=4, num_orthogonal=0, num_data=NUM_DATA)] if hidden else []
    update.set_model(make(*layers, gp(), GaussianLikelihood()))
    assert update._rate(0) == expected


@pytest.mark.usefixtures("eagerly")
def test_window_of_the_sums_is_all_data(monkeypatch):
    y = Y[:, :1]
    update = ClosedFormUpdate(X, y, batch_size=15)
    updates = []
    monkeypatch.setattr(update, "_run_update", lambda iterator, decay, rate: updates.append(decay))
    monkeypatch.setattr(update, "_finish", lambda batches: None)
    fit(make(gp(), GaussianLikelihood()), X, y, update, batch_size=20)
    np.testing.assert_allclose(updates, [0.75, 0.75, 0.75])  # at every step


@pytest.mark.usefixtures("eagerly")
def test_float32():
    y = Y[:, :1]
    model = make(gp(dtype="float32"), GaussianLikelihood(dtype="float32"))
    losses = fit(model, X, y, ClosedFormUpdate(X, y, every=1), epochs=5)["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.usefixtures("eagerly")
def test_errors_of_models():
    y = Y[:, :1]
    with pytest.raises(ValueError, match="closed form for Gaussian likelihoods only.*NaturalGradient"):
        fit(make(gp(), likelihood="bernoulli"), X, LABELS, ClosedFormUpdate(X, LABELS))
    dense = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Reshape((1, 2))])
    dense.compile("adam", VariationalLoss("bernoulli"))
    with pytest.raises(ValueError, match="Expected an `OrthogonalGP` layer .* Got none in"):
        fit(dense, X, LABELS, NaturalGradient(X, LABELS))
    frozen = gp()
    frozen.trainable = False
    with pytest.raises(ValueError, match="whose q is trainable.*Got none in"):
        fit(make(frozen, GaussianLikelihood()), X, y, ClosedFormUpdate(X, y))
    dense.compile("adam", "mse")
    with pytest.raises(ValueError, match="VariationalLoss"):
        fit(dense, X, np.zeros((NUM_DATA, 1, 2)), NaturalGradient(X, y))
    averaged = make(gp(), GaussianLikelihood())
    averaged.compile(keras.optimizers.Adam(use_ema=True), VariationalLoss("gaussian"))
    with pytest.raises(ValueError, match="use_ema"):
        fit(averaged, X, y, ClosedFormUpdate(X, y))


@pytest.mark.usefixtures("eagerly")
def test_number_of_data_must_be_known():
    model = make(gp(num_data=None), GaussianLikelihood())
    with pytest.raises(ValueError, match="number of data"):
        fit(model, X, Y[:, :1], ClosedFormUpdate(X, Y[:, :1]))


@pytest.mark.parametrize(
    "make_callback, message",
    [
        (lambda: ClosedFormUpdate(X), "Expected targets"),
        (lambda: ClosedFormUpdate(X, Y[:5]), "equal length"),
        (lambda: ClosedFormUpdate(tf.data.Dataset.from_tensors((X, Y)), Y), "within the dataset"),
        (lambda: ClosedFormUpdate(X, Y, damping=1.5), "damping"),
        (lambda: ClosedFormUpdate(X, Y, decay=1.0), "decay"),
        (lambda: ClosedFormUpdate(X, Y, every=0), "every"),
        (lambda: NaturalGradient(X, Y, gamma=0.0), "gamma"),
        (lambda: NaturalGradient(X, Y, warmup=-1), "warmup"),
        (lambda: NaturalGradient(X, Y, batch_size=0), "batch_size"),
    ],
)
def test_errors_of_arguments(make_callback, message):
    with pytest.raises(ValueError, match=message):
        make_callback()


@pytest.mark.usefixtures("eagerly")
def test_closed_form_moves_gaussian_heads_only_each_to_its_own_targets():
    inputs = keras.Input((2,), dtype="float64")
    layers = [gp(seed=0), gp(seed=1), gp(seed=2)]
    likelihoods = [GaussianLikelihood(name="z"), GaussianLikelihood(name="a"), GammaLikelihood(name="g")]
    model = keras.Model(inputs, [last(layer(inputs)) for layer, last in zip(layers, likelihoods)])
    losses = {"z": "gaussian", "a": "gaussian", "g": "gamma"}
    model.compile(keras.optimizers.Adam(0.0), {name: VariationalLoss(value) for name, value in losses.items()})
    y = {"z": np.full(NUM_DATA, 3.0), "a": np.full(NUM_DATA, -3.0), "g": np.full(NUM_DATA, 50.0)}
    fit(model, X, y, ClosedFormUpdate(X, y, damping=1.0, every=1, decay=0.0, batch_size=NUM_DATA))
    first, second, third = (np.mean(output[..., 0]) for output in model(X))
    assert first > 2.0
    assert second < -2.0
    assert third == 0.0


def two_fidelities():
    """The mean of one head is an input of another."""
    inputs = keras.Input((2,), dtype="float64")
    first, second = gp(), gp(name="second")
    moments = first(inputs)
    joined = keras.layers.Concatenate(dtype="float64")([inputs, moments[..., 0]])
    return keras.Model(inputs, [GaussianLikelihood()(moments), GaussianLikelihood()(second(joined))])


def noise_of_the_mean():
    """The noise is computed from the moments."""
    inputs = keras.Input((2,), dtype="float64")
    moments = gp()(inputs)
    noise = keras.ops.exp(moments[..., :1])
    return keras.Model(inputs, keras.layers.Concatenate(dtype="float64")([moments, noise]))


def plain():
    return keras.Sequential([keras.Input((2,), dtype="float64"), gp(), GaussianLikelihood()])


@pytest.mark.parametrize("build, spared", [(two_fidelities, 0), (noise_of_the_mean, 0), (plain, 1)])
@pytest.mark.usefixtures("eagerly")
def test_moments_are_spared_only_where_nothing_depends_on_them(build, spared):
    model = build()
    model.compile(keras.optimizers.Adam(0.0), VariationalLoss("gaussian"))
    y = [Y[:, :1]] * len(model.outputs)
    update = ClosedFormUpdate(X, y if len(y) > 1 else y[0])
    update.set_model(model)
    update.on_train_begin()
    assert len(update._answers) == spared
    update.on_train_end()


@pytest.mark.parametrize("names, message", [(["q_mu"], "frozen in part"), (["q_mu", "q_sqrt"], "whose q is trainable")])
def test_frozen_q_is_not_moved(names, message):
    layer = gp(num_orthogonal=0)
    model = make(layer, GaussianLikelihood())
    for name in names:
        gpflow.set_trainable(getattr(layer.posterior, name), False)
    with pytest.raises(ValueError, match=message):
        fit(model, X, Y[:, :1], ClosedFormUpdate(X, Y[:, :1]))


@pytest.mark.usefixtures("eagerly")
def test_optimum_of_a_loss_with_less_divergence():
    y = Y[:, :1]
    layer = gp()
    model = make(layer, GaussianLikelihood())
    layer.kl_weight.assign(0.2)
    fit(model, X, y, ClosedFormUpdate(X, y))
    weights = [weight.value for weight in layer.adopted_weights if "q_" in weight.path]
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x=X, y=y, y_pred=model(X))
    assert len(weights) == 4
    for gradient in tape.gradient(loss, weights):
        np.testing.assert_allclose(
            np.tril(gradient) if gradient.shape.rank == 3 else gradient, 0.0, atol=1e-5
        )  # float32
