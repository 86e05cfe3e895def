"""The paper's table: UCI sets, three kinds of features, four kernels, three sizes; by the collapsed bound.

Conventions: inputs and targets standardised on the training part; ARD weight variances and a trained bias; the
lengthscale of Matérn-5/2 and of the squared exponential held at 1, because free it runs away together with the
variance; activations truncated at L = 6 levels, their directions random; points at k-means centres; noise variance 1
at the start; some iterations of L-BFGS for the features alone, then everything. Large sets, whose evaluations take ten
times as long, get fewer iterations. The scheme "q" optimises q as well, by L-BFGS from N(0, I), unwhitened, as the
paper does.
"""

from __future__ import annotations

import warnings
from typing import Any

from benchmarks import data, scoring
from benchmarks.cells import Context, Experiment, Settings

NUM_LEVELS = 6
SMALL, LARGE = ("yacht", "energy", "concrete"), ("kin8nm", "power")
SIZES = ((128, 0), (256, 0), (128, 128))
ACTIVATIONS = ("relu", "softplus")
COLUMNS = (
    *((features, kernel) for features in ACTIVATIONS for kernel in ("arccos1", "matern52")),
    ("points", "matern52"),
)
POINTS_ARC_COSINE = (("points", "arccos1"), ("points", "arccos0"))
SQUARED_EXPONENTIAL = tuple((features, "squared_exponential") for features in (*ACTIVATIONS, "points"))
PROTOCOL_SMALL = {"first_stage_iterations": 100, "max_iterations": 1000, "tolerance": 1e-6}
PROTOCOL_LARGE = {"first_stage_iterations": 20, "max_iterations": 300, "tolerance": 1e-5}


def cell(data_set: str, column: tuple[str, str], size: tuple[int, int], split: int, **protocol: Any) -> Settings:
    """Settings of one cell."""
    settings: Settings = {"data": data_set, "features": column[0], "kernel": column[1]}
    settings |= {"M": size[0], "K": size[1], "scheme": "collapsed", "split": split}
    return settings | (PROTOCOL_SMALL if data_set in SMALL else PROTOCOL_LARGE) | protocol


def all_cells() -> list[Settings]:
    """What is compared with the paper comes first, small sets before large ones; the squared exponential last."""
    blocks = [
        (SMALL, COLUMNS, range(5)),
        (LARGE, COLUMNS, (0, 1)),
        (SMALL, POINTS_ARC_COSINE, range(5)),
        (LARGE, POINTS_ARC_COSINE, (0, 1)),
        (SMALL, SQUARED_EXPONENTIAL, range(5)),
        (LARGE, SQUARED_EXPONENTIAL, (0, 1)),
        (LARGE, (*COLUMNS, *POINTS_ARC_COSINE, *SQUARED_EXPONENTIAL), (2, 3, 4)),
    ]
    cells = [
        cell(data_set, column, size, split)
        for data_sets, columns, splits in blocks
        for data_set in data_sets
        for column in columns
        for size in SIZES
        for split in splits  # innermost, because splits share a compiled objective
    ]
    schemes = [
        cell("yacht", column, size, split, scheme="q", max_iterations=5000)
        for split in (0, 1)
        for column in (("softplus", "arccos1"), ("points", "matern52"))
        for size in SIZES
    ]
    return cells + schemes


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Fits the model of a cell and scores it."""
    from keras_odgp.gpflow_models import fit_lbfgs

    part = data.split(*data.load(settings["data"], context.data_dir), settings["split"])
    model = _prepared_model(settings, part)
    iterations = {key: settings[key] for key in PROTOCOL_SMALL}
    external = (part.X, part.Y) if settings["scheme"] == "q" else None
    fit = fit_lbfgs(model, external, progress=False, **iterations)
    mean, variance = model.predict_y(part.X_test)
    kernel = model.kernel
    return {
        **scoring.gaussian_scores(part.Y_test, mean, variance, part.scale),
        "elbo": -fit.loss,
        "iterations": fit.num_iterations,
        "evaluations": fit.num_evaluations,
        "restarts": fit.num_restarts,
        "converged": fit.converged,
        "stopped_because": fit.message,
        "noise_variance": float(model.likelihood.variance.numpy()),
        "kernel_variance": float(kernel.variance.numpy()),
        "bias_variance": float(kernel.bias_variance.numpy()),
        "weight_variances": [float(weight) for weight in kernel.weight_variances.numpy()],
    }


def make_kernel(name: str, num_inputs: int) -> Any:
    """A zonal kernel with ARD weights; lengthscales are held at 1."""
    import gpflow
    import numpy as np

    from keras_odgp import kernels

    weights = np.ones(num_inputs)
    if name.startswith("arccos"):
        return kernels.ArcCosine(int(name.removeprefix("arccos")), weight_variances=weights)
    cls = {"matern52": kernels.Matern52, "squared_exponential": kernels.SquaredExponential}[name]
    kernel = cls(weight_variances=weights)
    gpflow.set_trainable(kernel.lengthscale, False)
    return kernel


def make_model(settings: Settings, part: data.Split) -> Any:
    """The model of a cell at its start values."""
    import gpflow
    import numpy as np
    import tensorflow as tf

    from keras_odgp.gpflow_models import OrthogonalSGPR, OrthogonalSVGP, points_from_data, random_directions
    from keras_odgp.inducing import ActivationFeatures

    seed, num_base, num_orthogonal = settings["split"], settings["M"], settings["K"]
    num_inputs = part.X.shape[1]
    kernel = make_kernel(settings["kernel"], num_inputs)
    if settings["features"] == "points":
        points = np.random.default_rng(seed).permutation(points_from_data(part.X, num_base + num_orthogonal, seed=seed))
        base: Any = points[:num_base]
        orthogonal: Any = points[num_base:]
    else:
        with warnings.catch_warnings():  # the paper has more units than their space has dimensions, on small inputs
            warnings.simplefilter("ignore")
            directions = random_directions(num_base, num_inputs, seed=seed)
            base = ActivationFeatures(directions, settings["features"], NUM_LEVELS)
        orthogonal = points_from_data(part.X, num_orthogonal, seed=seed) if num_orthogonal else None
    features = (base, orthogonal if num_orthogonal else None)
    if settings["scheme"] == "q":
        return OrthogonalSVGP(kernel, gpflow.likelihoods.Gaussian(1.0), *features, whiten=False)
    held = tuple(tf.Variable(array, trainable=False) for array in (part.X, part.Y))
    return OrthogonalSGPR(held, kernel, *features, noise_variance=1.0)


def _prepared_model(settings: Settings, part: data.Split) -> Any:
    """The model of a cell at its start values; the collapsed one with an objective that splits share."""
    import gpflow

    fresh = make_model(settings, part)
    if settings["scheme"] == "q":
        return fresh
    shape = {key: value for key, value in settings.items() if key != "split"}
    model = _compiled(tuple(shape.items()), lambda: fresh)
    gpflow.utilities.multiple_assign(model, gpflow.utilities.read_values(fresh))
    for variable, array in zip(model.data, (part.X, part.Y)):
        variable.assign(array)
    return model


_models: dict[tuple[Any, ...], Any] = {}


def _compiled(shape: tuple[Any, ...], make: Any) -> Any:
    """The model of these settings whose objective is compiled; only the last is kept, which saves memory."""
    import tensorflow as tf

    if shape not in _models:
        _models.clear()
        model = make()
        model.training_loss = tf.function(model.training_loss)
        _models[shape] = model
    return _models[shape]


EXPERIMENT = Experiment(
    name="uci",
    description="the paper's table: five UCI sets x features x kernels x sizes, by L-BFGS",
    identity=("data", "features", "kernel", "M", "K", "scheme", "split"),
    cells=all_cells(),
    quick=[
        cell("yacht", column, size, 0, max_iterations=100)
        for column in (("softplus", "arccos1"), ("points", "matern52"))
        for size in SIZES
    ],
    run=run,
)
