"""Deep GPs of one, two and three layers, ours and GPflux's, each with either recipe; trained for some CPU seconds.

A recipe is everything but model and features: start values, optimiser, batches. Ours: `keras_odgp.adapt` with targets,
hidden kernels of variance 0.1 and q of scale 1e-2, noise variance 0.1, batches of 256 (all data below 1,000), Adam
whose rate falls from 1e-2 to 1e-4 along half a cosine over the time that there is. GPflux's, as in its published runs:
k-means for the points, hidden kernels of variance 1e-6 and q of scale 1e-5, noise variance 1e-2, Adam at 1e-2 with
`ReduceLROnPlateau` (factor 0.95, patience 3), batches of 1,024. "refresh" is our recipe with `ClosedFormUpdate` of the
last layer.
"""

from __future__ import annotations

from typing import Any

import gpflow
import keras
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras

import keras_odgp
from benchmarks import scoring
from benchmarks.cells import Settings
from benchmarks.data import Split
from benchmarks.deadline import GPfluxDeadline, KerasDeadline

NUM_SAMPLES = 64
LEARNING_RATE, HIDDEN_VARIANCE = 1e-2, 0.1
GPFLUX_NOISE, GPFLUX_SCALE, GPFLUX_VARIANCE = 1e-2, 1e-5, 1e-6


def batch_size(settings: Settings, num_data: int) -> int:
    """Rows of a batch."""
    if settings["recipe"] == "gpflux":
        return 1024
    return num_data if num_data < 1000 else 256


def train_ours(settings: Settings, part: Split) -> dict[str, Any]:
    """Trains and scores a model of ours."""
    keras.utils.set_random_seed(settings["split"])
    model = _our_model(settings, part)
    theirs = settings["recipe"] == "gpflux"
    # With GPflux's recipe q of the last layer starts at the prior, without a look at the targets.
    keras_odgp.adapt(model, part.X, None if theirs else part.Y)
    loss = keras_odgp.losses.VariationalLoss("gaussian")
    model.compile(keras.optimizers.Adam(LEARNING_RATE), loss, jit_compile=False)
    deadline = KerasDeadline().start(settings["seconds"], anneal=not theirs)
    callbacks: list[Any] = [deadline]
    if theirs:
        callbacks.append(keras.callbacks.ReduceLROnPlateau("loss", factor=0.95, patience=3, min_lr=1e-6))
    if settings["recipe"] == "refresh":
        few = min(len(part.X), 2048)
        callbacks.append(keras_odgp.callbacks.ClosedFormUpdate(part.X, part.Y, batch_size=few, seed=settings["split"]))
    history = model.fit(
        part.X,
        part.Y,
        batch_size=batch_size(settings, len(part.X)),
        epochs=10**6,
        verbose=0,
        callbacks=callbacks,
    )
    mixture = keras_odgp.Predictive(model, NUM_SAMPLES).distribution(part.X_test)
    normal = mixture.components_distribution
    normal = getattr(normal, "distribution", normal)
    means, variances = (
        np.moveaxis(np.asarray(array)[..., 0], -1, 0) for array in (normal.mean(), normal.variance())
    )  # [S, N]
    gp_layers = [layer for layer in model.layers if isinstance(layer, keras_odgp.layers.OrthogonalGP)]
    return {
        **scoring.mixture_scores(part.Y_test, means, variances, part.scale),
        **deadline.effort(),
        "final_loss": float(history.history["loss"][-1]),
        "kl_per_datum": [float(layer.posterior.prior_kl()) / len(part.X) for layer in gp_layers],
        "noise_variance": float(np.asarray(model.layers[-1].variance).reshape(-1)[0]),
    }


def _our_model(settings: Settings, part: Split) -> keras.Model:
    num_inputs, num_layers = part.X.shape[1], settings["layers"]
    theirs = settings["recipe"] == "gpflux"

    def layer(units: int, index: int, **kwargs: Any) -> keras.Layer:
        seed = 1000 * settings["split"] + index
        kernel = make_kernel(settings["model"], num_inputs)
        return keras_odgp.layers.OrthogonalGP(
            units, settings["M"], settings["K"], kernel, settings["model"], seed=seed, **kwargs
        )

    hidden_scale = {"initial_scale": GPFLUX_SCALE} if theirs else {}
    hidden = [layer(num_inputs, index, **hidden_scale) for index in range(num_layers - 1)]
    last = layer(1, num_layers - 1, return_moments=True)
    noise = keras_odgp.layers.GaussianLikelihood(GPFLUX_NOISE if theirs else 0.1)
    model = keras.Sequential([keras.Input((num_inputs,)), *hidden, last, noise])
    for made in hidden:
        made.posterior.kernel.variance.assign(GPFLUX_VARIANCE if theirs else HIDDEN_VARIANCE)
    return model


def make_kernel(features: str, num_inputs: int) -> Any:
    """The arc-cosine kernel for units; for points the kernel of GPflux's models at their start values."""
    if features != "points":
        return "arccos"
    return gpflow.kernels.SquaredExponential(lengthscales=np.full(num_inputs, 2.0))


def train_gpflux(settings: Settings, part: Split) -> dict[str, Any]:
    """Trains and scores a model of GPflux with M + K inducing points in each layer."""
    from gpflux.architectures import Config, build_constant_input_dim_deep_gp

    tf_keras.backend.set_floatx("float64")
    tf_keras.utils.set_random_seed(settings["split"])
    theirs = settings["recipe"] == "gpflux"
    size = min(settings["M"] + settings["K"], len(part.X))
    config = Config(size, GPFLUX_SCALE if theirs else 1e-2, GPFLUX_NOISE if theirs else 0.1)
    deep_gp = build_constant_input_dim_deep_gp(part.X, settings["layers"], config)
    if not theirs:
        for layer in deep_gp.f_layers[:-1]:
            layer.kernel.kernel.variance.assign(HIDDEN_VARIANCE)
        start_last_layer(deep_gp, part)
    model = deep_gp.as_training_model()
    model.compile(tf_keras.optimizers.Adam(LEARNING_RATE))
    deadline = GPfluxDeadline().start(settings["seconds"], anneal=not theirs)
    callbacks: list[Any] = [deadline]
    if theirs:
        callbacks.append(tf_keras.callbacks.ReduceLROnPlateau("loss", factor=0.95, patience=3, min_lr=1e-6))
    history = model.fit(
        {"inputs": part.X, "targets": part.Y},
        batch_size=batch_size(settings, len(part.X)),
        epochs=10**6,
        verbose=0,
        callbacks=callbacks,
    )
    predictor = deep_gp.as_prediction_model()

    @tf.function
    def sample() -> tuple[tf.Tensor, tf.Tensor]:
        output = predictor(tf.constant(part.X_test))
        return output.y_mean[:, 0], output.y_var[:, 0]

    samples = [sample() for _ in range(NUM_SAMPLES if settings["layers"] > 1 else 1)]
    means, variances = (np.stack(arrays) for arrays in zip(*samples))
    return {
        **scoring.mixture_scores(part.Y_test, means, variances, part.scale),
        **deadline.effort(),
        "final_loss": float(history.history["loss"][-1]),
        "kl_per_datum": [float(layer.prior_kl()) / len(part.X) for layer in deep_gp.f_layers],
        "noise_variance": float(deep_gp.likelihood_layer.likelihood.variance.numpy()),
    }


def start_last_layer(deep_gp: Any, part: Split) -> None:
    """Starts q of the last layer of GPflux's model at its closed-form optimum, as our recipe does, by our own model."""
    layer = deep_gp.f_layers[-1]
    rng = np.random.default_rng(0)
    reached = part.X
    for hidden in deep_gp.f_layers[:-1]:
        mean, variance = hidden.predict(tf.constant(reached))
        reached = mean.numpy() + np.sqrt(np.maximum(variance.numpy(), 0.0)) * rng.normal(size=mean.shape)
    svgp = keras_odgp.gpflow_models.OrthogonalSVGP(
        layer.kernel.kernel,
        gpflow.likelihoods.Gaussian(deep_gp.likelihood_layer.likelihood.variance.numpy()),
        layer.inducing_variable.inducing_variable,
    )
    svgp.set_optimal_q((reached, part.Y))
    layer.q_mu.assign(svgp.q_mu)
    layer.q_sqrt.assign(svgp.q_sqrt)
