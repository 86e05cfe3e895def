"""Deep GPs of one, two and three layers, ours and GPflux's, each with either recipe; trained for some CPU seconds.

A recipe is everything but model and features: start values, optimiser, batches. Ours: one layer is fitted alone, by 150
iterations of L-BFGS on the collapsed bound, and becomes the last layer: its kernel, features and noise. Hidden layers
are put before it, near the identity (kernels of variance 0.1, q of scale 1e-2); q of the last layer starts at its
closed-form optimum. Then everything is trained on batches of 1,024 (all data below) by Adam, whose rate falls from 1e-2
to 1e-4 along half a cosine over the time that is left. GPflux's, as in its published runs: the same centres of
k-means in all layers, hidden kernels of variance 1e-6 and q of scale 1e-5, noise variance 1e-2, Adam at 1e-2 with
`ReduceLROnPlateau` (factor 0.95, patience 3), the same batches. From hidden kernels that small, centres that differ
between layers can lead to a worse optimum. "refresh" is our recipe with `ClosedFormUpdate` of the last layer.
"""

from __future__ import annotations

import time
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
from keras_odgp.gpflow_models import OrthogonalSGPR, fit_lbfgs, points_from_data, random_directions

NUM_SAMPLES, NUM_LEVELS = 64, 6
BATCH_SIZE, LEARNING_RATE, HIDDEN_VARIANCE, NOISE, FIRST_ITERATIONS = 1024, 1e-2, 0.1, 0.1, 150
GPFLUX_NOISE, GPFLUX_SCALE, GPFLUX_VARIANCE = 1e-2, 1e-5, 1e-6


def train_ours(settings: Settings, part: Split) -> dict[str, Any]:
    """Trains and scores a model of ours."""
    keras.utils.set_random_seed(settings["split"])
    began = time.process_time()
    theirs = settings["recipe"] == "gpflux"
    first = None if theirs else fit_one_layer(settings["model"], settings["M"], settings["K"], part, settings["split"])
    first_seconds = time.process_time() - began
    model = our_model(settings, part, first)
    loss = keras_odgp.losses.VariationalLoss("gaussian")
    model.compile(keras.optimizers.Adam(LEARNING_RATE), loss, jit_compile=False)
    deadline = KerasDeadline().start(settings["seconds"] - first_seconds, anneal=not theirs)
    callbacks: list[Any] = [deadline]
    if theirs:
        callbacks.append(keras.callbacks.ReduceLROnPlateau("loss", factor=0.95, patience=3, min_lr=1e-6))
    if settings["recipe"] == "refresh":
        few = min(len(part.X), 2048)
        callbacks.append(keras_odgp.callbacks.ClosedFormUpdate(part.X, part.Y, batch_size=few, seed=settings["split"]))
    history = model.fit(
        part.X,
        part.Y,
        batch_size=BATCH_SIZE,
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
        "first_layer_cpu_seconds": round(first_seconds, 2),
        "final_loss": float(history.history["loss"][-1]),
        "kl_per_datum": [float(layer.posterior.prior_kl()) / len(part.X) for layer in gp_layers],
        "noise_variance": float(np.asarray(model.layers[-1].variance).reshape(-1)[0]),
    }


def fit_one_layer(features: str, num_base: int, num_orthogonal: int, part: Split, seed: int) -> OrthogonalSGPR:
    """One GP layer with q at its optimum, its features and hyperparameters by L-BFGS."""
    num_inputs = part.X.shape[1]
    if features == "softplus":
        base: Any = keras_odgp.inducing.ActivationFeatures(
            random_directions(num_base, num_inputs, seed=seed), features, NUM_LEVELS
        )
        orthogonal: Any = points_from_data(part.X, num_orthogonal, seed=seed)
    else:
        points = points_from_data(part.X, num_base + num_orthogonal, seed=seed)
        points = np.random.default_rng(seed).permutation(points)
        base, orthogonal = points[:num_base], (points[num_base:] if num_orthogonal else None)
    kernel = make_kernel(features, num_inputs)
    model = OrthogonalSGPR((part.X, part.Y), kernel, base, orthogonal, noise_variance=NOISE)
    fit_lbfgs(model, progress=False, max_iterations=FIRST_ITERATIONS, first_stage_iterations=0)
    return model


def our_model(settings: Settings, part: Split, first: OrthogonalSGPR | None) -> keras.Model:
    """The model at its start: with the layer that was fitted first as its last one, or, with GPflux's recipe, a new."""
    num_inputs, num_layers = part.X.shape[1], settings["layers"]
    kind = {"features": settings["model"], "orthogonal_features": "points"}

    def layer(units: int, index: int, **options: Any) -> keras.Layer:
        defaults = {"kernel": make_kernel(settings["model"], num_inputs), "seed": 1000 * settings["split"] + index}
        return keras_odgp.layers.OrthogonalGP(units, settings["M"], settings["K"], **{**kind, **defaults, **options})

    scale = {"initial_scale": GPFLUX_SCALE} if first is None else {}
    hidden = [layer(num_inputs, index, **scale) for index in range(num_layers - 1)]
    fitted: dict[str, Any] = {}
    noise = GPFLUX_NOISE
    if first is not None:
        fitted = {"kernel": first.kernel, "features": first.inducing_variable}
        fitted["orthogonal_features"] = first.orthogonal_inducing_variable
        noise = float(first.likelihood.variance.numpy())
    last = layer(1, num_layers - 1, return_moments=True, **fitted)
    likelihood = keras_odgp.layers.GaussianLikelihood(noise)
    model = keras.Sequential([keras.Input((num_inputs,)), *hidden, last, likelihood])
    for made in hidden:
        made.posterior.kernel.variance.assign(GPFLUX_VARIANCE if first is None else HIDDEN_VARIANCE)
    # With GPflux's recipe q of the last layer starts at the prior, without a look at the targets.
    keras_odgp.adapt(model, part.X, None if first is None else part.Y)
    if first is None:
        _start_at_same_features([*hidden, last])
    return model


def _start_at_same_features(layers: list[Any]) -> None:
    """Gives all layers the features of the first."""
    for layer in layers[1:]:
        for name in ("inducing_variable", "orthogonal_inducing_variable"):
            values = gpflow.utilities.read_values(getattr(layers[0].posterior, name))
            gpflow.utilities.multiple_assign(getattr(layer.posterior, name), values)


def make_kernel(features: str, num_inputs: int) -> Any:
    """The arc-cosine kernel for units; for points the kernel of GPflux's models at their start values."""
    if features == "softplus":
        return keras_odgp.kernels.ArcCosine(weight_variances=np.full(num_inputs, 1.0 / num_inputs))
    return gpflow.kernels.SquaredExponential(lengthscales=np.full(num_inputs, 2.0))


def train_gpflux(settings: Settings, part: Split) -> dict[str, Any]:
    """Trains and scores a model of GPflux with M + K inducing points in each layer."""
    from gpflux.architectures import Config, build_constant_input_dim_deep_gp

    tf_keras.backend.set_floatx("float64")
    tf_keras.utils.set_random_seed(settings["split"])
    theirs = settings["recipe"] == "gpflux"
    size = min(settings["M"] + settings["K"], len(part.X))
    began = time.process_time()
    first = None if theirs else fit_one_layer("points", size, 0, part, settings["split"])
    first_seconds = time.process_time() - began
    config = Config(size, GPFLUX_SCALE if theirs else 1e-2, GPFLUX_NOISE)
    deep_gp = build_constant_input_dim_deep_gp(part.X, settings["layers"], config)
    if first is not None:
        for layer in deep_gp.f_layers[:-1]:
            layer.kernel.kernel.variance.assign(HIDDEN_VARIANCE)
        start_last_layer(deep_gp, first, part)
    model = deep_gp.as_training_model()
    model.compile(tf_keras.optimizers.Adam(LEARNING_RATE))
    deadline = GPfluxDeadline().start(settings["seconds"] - first_seconds, anneal=not theirs)
    callbacks: list[Any] = [deadline]
    if theirs:
        callbacks.append(tf_keras.callbacks.ReduceLROnPlateau("loss", factor=0.95, patience=3, min_lr=1e-6))
    history = model.fit(
        {"inputs": part.X, "targets": part.Y},
        batch_size=BATCH_SIZE,
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
        "first_layer_cpu_seconds": round(first_seconds, 2),
        "final_loss": float(history.history["loss"][-1]),
        "kl_per_datum": [float(layer.prior_kl()) / len(part.X) for layer in deep_gp.f_layers],
        "noise_variance": float(deep_gp.likelihood_layer.likelihood.variance.numpy()),
    }


def start_last_layer(deep_gp: Any, first: OrthogonalSGPR, part: Split) -> None:
    """Makes the layer that was fitted first the last of GPflux's, q at its closed-form optimum at hidden samples."""
    layer = deep_gp.f_layers[-1]
    gpflow.utilities.multiple_assign(layer.kernel.kernel, gpflow.utilities.read_values(first.kernel))
    layer.inducing_variable.inducing_variable.Z.assign(first.inducing_variable.Z)
    deep_gp.likelihood_layer.likelihood.variance.assign(first.likelihood.variance)
    rng = np.random.default_rng(0)
    reached = part.X
    for hidden in deep_gp.f_layers[:-1]:
        mean, variance = hidden.predict(tf.constant(reached))
        reached = mean.numpy() + np.sqrt(np.maximum(variance.numpy(), 0.0)) * rng.normal(size=mean.shape)
    svgp = keras_odgp.gpflow_models.OrthogonalSVGP(
        first.kernel, gpflow.likelihoods.Gaussian(first.likelihood.variance.numpy()), first.inducing_variable
    )
    svgp.set_optimal_q((reached, part.Y))
    layer.q_mu.assign(svgp.q_mu)
    layer.q_sqrt.assign(svgp.q_sqrt)
