"""Random configurations of models, and what it means that one trains."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import gpflow
import keras
import numpy as np
import tensorflow as tf

import keras_odgp
from keras_odgp import kernels, layers, losses
from keras_odgp.numerics import float_context

NUM_STEPS = 20
STEPS = (*["graph"] * 28, "keras", "eager")  # the last two take several times as long
DEPTHS = (*[1] * 8, *[2] * 5, *[3] * 3, 4, 4, 5)
ACTIVATIONS = ("softplus", "relu", "gelu", "swish", "tanh", "erf")
KINDS = ("points", "harmonics", "activation")
LIKELIHOODS: dict[str, Any] = {
    "gaussian": layers.GaussianLikelihood,
    "student_t": layers.StudentTLikelihood,
    "gamma": layers.GammaLikelihood,
    "beta": layers.BetaLikelihood,
    "bernoulli": None,
    "poisson": None,
    "exponential": None,
    "softmax": None,
}
KERNELS = {
    "arccos": lambda D: "arccos",
    "arccos of order 0": lambda D: kernels.ArcCosine(order=0, weight_variances=np.full(D, 1.0 / D)),
    "arccos of order 2": lambda D: kernels.ArcCosine(order=2, weight_variances=np.full(D, 1.0 / D)),
    "matern12": lambda D: "matern12",
    "matern32": lambda D: "matern32",
    "matern52": lambda D: "matern52",
    "squared_exponential": lambda D: "squared_exponential",
    "gpflow.Matern52": lambda D: gpflow.kernels.Matern52(lengthscales=np.full(D, D**0.5)),
    "gpflow.SquaredExponential": lambda D: gpflow.kernels.SquaredExponential(lengthscales=np.full(D, D**0.5)),
}
# Whose covariances and gradients are ours, too, but which the random configurations do without.
OTHER_KERNELS = {
    "gpflow.Matern12": lambda D: gpflow.kernels.Matern12(lengthscales=np.full(D, D**0.5)),
    "gpflow.Matern32": lambda D: gpflow.kernels.Matern32(lengthscales=np.full(D, D**0.5)),
}
# What may be refused, and how: each a part of a message that says what to do.
DOCUMENTED = {
    "whole levels": "Harmonics come in whole levels, and level",
    "no levels left": "no orthogonal harmonics are left",
    "no levels in common": "none of which",
    "nothing orthogonal": "is zero: the base already spans all",
}


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One model and its data, as plain values."""

    seed: int
    kernel: str
    features: str
    orthogonal_features: str | None
    num_inputs: int
    num_inducing: int
    num_orthogonal: int
    num_levels: int
    depth: int
    width: int
    units: int
    dtype: str
    whiten: bool
    orthogonal_covariance: str
    likelihood: str
    num_data: int
    batch_size: int
    learning_rate: float
    adapted: bool
    step: str

    @property
    def pair(self) -> str:
        """Kinds of base and orthogonal features."""
        return " / ".join("none" if f is None else _kind(f) for f in (self.features, self.orthogonal_features))


def _kind(features: str) -> str:
    return "activation" if features in ACTIVATIONS else features


def draw(seed: int, *, dtype: str | None = None, step: str | None = None) -> Configuration:
    """The configuration of a seed: every choice independent, sizes below and above what the features can span."""
    rng = np.random.default_rng(seed)

    def choose(options: Any) -> Any:
        return options[rng.integers(len(options))]

    kernel = choose(list(KERNELS))
    kinds = [choose(KINDS), choose((*KINDS, None))]
    if kernel.startswith("gpflow"):
        kinds = ["points", choose(("points", None))]
    features = [choose(ACTIVATIONS) if kind == "activation" else kind for kind in kinds]
    num_inputs = int(choose((1, 2, 3, 5, 10, 20, 40)) if rng.random() < 0.7 else rng.integers(1, 41))
    sizes = [int(choose((1, 2, 5, 12, 30, 80))) for _ in features]
    for index, kind in enumerate(kinds):  # room for the first levels, most of the time
        if kind == "harmonics" and rng.random() < 0.8:
            sizes[index] = max(sizes[index], num_inputs + 2)
    likelihood = choose(list(LIKELIHOODS))
    drawn_dtype = choose(("float64", "float32"))
    return Configuration(
        seed=seed,
        kernel=kernel,
        features=features[0],
        orthogonal_features=features[1],
        num_inputs=num_inputs,
        num_inducing=sizes[0],
        num_orthogonal=0 if features[1] is None else sizes[1],
        num_levels=int(rng.integers(1, 9)),
        depth=int(choose(DEPTHS)),
        width=int(choose((1, 2, 3, 5))),
        units=3 if likelihood == "softmax" else int(choose((1, 1, 2))),
        dtype=dtype or drawn_dtype,
        whiten=bool(rng.random() < 0.6),
        orthogonal_covariance=choose(("full", "full", "prior")),
        likelihood=likelihood,
        num_data=int(choose((8, 30, 60))),
        batch_size=int(choose((1, 7, 30))),
        learning_rate=float(choose((1e-3, 1e-2, 1e-1))),
        adapted=bool(rng.random() < 0.8),
        step=step or choose(STEPS),
    )


def targets(likelihood: str, latent: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Targets that a likelihood takes, which follow latent functions `[N, units]`."""
    if likelihood in ("gaussian", "student_t"):
        return latent + 0.1 * rng.normal(size=latent.shape)
    if likelihood == "softmax":
        return np.argmax(latent + 0.1 * rng.normal(size=latent.shape), axis=1)
    draw_targets = {
        "gamma": lambda: rng.gamma(2.0, np.exp(latent)) + 1e-3,
        "beta": lambda: np.clip(rng.beta(2.0, 2.0 * np.exp(latent)), 1e-3, 1.0 - 1e-3),
        "bernoulli": lambda: (latent + 0.3 * rng.normal(size=latent.shape) > 0.0) * 1.0,
        "poisson": lambda: rng.poisson(np.exp(latent)) * 1.0,
        "exponential": lambda: rng.exponential(np.exp(latent)),
    }
    return draw_targets[likelihood]()


def make_data(configuration: Configuration) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(configuration.seed + 1_000_000)
    x = rng.normal(size=(configuration.num_data, configuration.num_inputs))
    weights = rng.normal(size=(configuration.num_inputs, configuration.units)) / configuration.num_inputs**0.5
    return x, targets(configuration.likelihood, np.sin(2.0 * x @ weights), rng)


def make_model(configuration: Configuration) -> keras.Model:
    """A compiled model of the configuration."""
    c = configuration

    def gp(units: int, num_inputs: int, index: int, **options: Any) -> layers.OrthogonalGP:
        with float_context(c.dtype):
            kernel = KERNELS[c.kernel](num_inputs)
        return layers.OrthogonalGP(
            units,
            num_inducing=c.num_inducing,
            num_orthogonal=c.num_orthogonal,
            kernel=kernel,
            features=c.features,
            orthogonal_features=c.orthogonal_features,
            num_levels=c.num_levels,
            whiten=c.whiten,
            orthogonal_covariance=c.orthogonal_covariance,
            num_data=c.num_data,
            seed=c.seed + index,
            dtype=c.dtype,
            **options,
        )

    widths = [c.num_inputs, *[c.width] * (c.depth - 1)]
    stack: list[keras.Layer] = [gp(c.width, width, i) for i, width in enumerate(widths[:-1])]
    stack.append(gp(c.units, widths[-1], c.depth, return_moments=True))
    if LIKELIHOODS[c.likelihood] is not None:
        stack.append(LIKELIHOODS[c.likelihood](dtype=c.dtype))
    model = keras.Sequential([keras.Input((c.num_inputs,)), *stack])
    return compile_model(model, c.likelihood, c.learning_rate, run_eagerly=c.step == "eager")


def compile_model(
    model: keras.Model, likelihood: str, learning_rate: float = 1e-2, *, run_eagerly: bool = False
) -> keras.Model:
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=losses.VariationalLoss(likelihood),
        run_eagerly=run_eagerly,
        jit_compile=False,
    )
    return model


def make_step(model: keras.Model, x: np.ndarray, y: np.ndarray) -> Any:
    """A compiled training step: what `fit` does, without metrics, in half the time of tracing."""
    model.optimizer.build(model.trainable_variables)
    values = [variable.value for variable in model.trainable_variables]
    signature = [tf.TensorSpec((None, *array.shape[1:]), array.dtype) for array in (x, y)]

    @tf.function(autograph=False, input_signature=signature)
    def step(inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            loss = model.compute_loss(inputs, targets, model(inputs, training=True))
        model.optimizer.apply_gradients(zip(tape.gradient(loss, values), model.trainable_variables))
        return loss

    return step


def keras_step(model: keras.Model) -> Any:
    """The step of Keras itself, as the model was compiled."""
    return lambda x, y: model.train_on_batch(x, y, return_dict=True)["loss"]


def take_steps(step: Any, x: np.ndarray, y: np.ndarray, batch_size: int, num_steps: int = NUM_STEPS) -> np.ndarray:
    """Trains over the data, epoch after epoch (the last batch of each ragged), and returns all losses."""
    starts = list(range(0, len(x), batch_size))
    batches = [slice(start, start + batch_size) for start in starts]
    all_losses = [step(x[batch], y[batch]) for batch in itertools.islice(itertools.cycle(batches), num_steps)]
    return np.asarray(all_losses, dtype=np.float64)


def check_healthy(model: keras.Model, x: np.ndarray, all_losses: np.ndarray) -> None:
    """Losses, weights and predictions are finite, and variances positive."""
    assert np.isfinite(all_losses).all(), f"losses {all_losses}"
    for weight in model.weights:
        assert np.isfinite(keras.ops.convert_to_numpy(weight)).all(), f"weight {weight.path}"
    output = np.asarray(model(x[:8], training=False))
    assert np.isfinite(output).all(), "output of the model"
    assert (output[..., 1] > 0.0).all(), "variance of the last layer"


def predict_healthy(model: keras.Model, x: np.ndarray) -> None:
    """The predictive distribution is finite, too."""
    predictive = keras_odgp.Predictive(model, num_samples=4)
    out = predictive(x[:8])
    for name, value in out.items():
        assert np.isfinite(np.asarray(value)).all(), f"predictive {name}"
    assert (np.asarray(out["variance"]) >= 0.0).all(), "predictive variance"


def refusal(error: ValueError) -> str | None:
    """The name of the documented refusal that an error is; None if it is none."""
    return next((name for name, part in DOCUMENTED.items() if part in str(error)), None)


def run(configuration: Configuration) -> dict[str, Any]:
    """Trains a configuration and checks that it is healthy; what came of it, as a record for the table."""
    record = {**dataclasses.asdict(configuration), "pair": configuration.pair, "outcome": "trained"}
    try:
        model = make_model(configuration)
    except ValueError as error:
        record["outcome"] = refusal(error)
        if record["outcome"] is None:
            raise
        return record
    x, y = make_data(configuration)
    if configuration.adapted:
        keras_odgp.adapt(model, x, y)
    step = make_step(model, x, y) if configuration.step == "graph" else keras_step(model)
    all_losses = take_steps(step, x, y, configuration.batch_size)
    check_healthy(model, x, all_losses)
    if configuration.likelihood not in ("gamma", "poisson", "exponential"):  # whose moments can truly overflow
        predict_healthy(model, x)
    record["losses"] = [float(all_losses[0]), float(all_losses[-1])]
    return record
