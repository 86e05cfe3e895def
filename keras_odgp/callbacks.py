"""Callbacks that show what GP layers do during training, and steer it."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import gpflow
import keras
import numpy as np
import tensorflow as tf

from keras_odgp._private import flatten_layers, train_writer
from keras_odgp.backup import BackupAndRestore
from keras_odgp.checks import check_count
from keras_odgp.covariances import DiagonalCovariance
from keras_odgp.layers import OrthogonalGP
from keras_odgp.layers.likelihood_layers import DispersionLayer
from keras_odgp.natural import ClosedFormUpdate, NaturalGradient
from keras_odgp.numerics import RELATIVE_JITTER, float_context, relative_jitter
from keras_odgp.orthogonal.gram import gram
from keras_odgp.orthogonal.prediction import factorise_prior
from keras_odgp.predictive import Predictive, plot_predictive

GRID_SIZES = {1: 200, 2: 40}  # of images, along each input
GRID_MARGIN = 0.15  # of the range of the data, on each side
MOST_DOTS = 500

__all__ = ["BackupAndRestore", "ClosedFormUpdate", "KLWarmup", "NaturalGradient", "TensorBoard"]


class TensorBoard(keras.callbacks.TensorBoard):
    """Writes what GP layers do to TensorBoard, beside what `keras.callbacks.TensorBoard` writes.

    At the end of an epoch, into the logs of training:

    - `epoch_data_term`: the loss without the divergences of the GP layers (other regularisation stays in it);
    - `<layer>/kl`: the divergence of each GP layer from its prior, mean over the epoch;
    - `<layer>/kernel/<parameter>`: kernel parameters, vectors (such as one `weight_variances` per input) as
      histograms;
    - `<layer>/Kuu/condition`, `<layer>/Svv/condition`: a lower bound on the condition number of the covariance of the
      base features, and of the orthogonal features given them;
    - `<layer>/Kuu/jitter`, `<layer>/Svv/jitter`: jitter relative to the diagonal, with all that was added because a
      factorisation failed;
    - `<layer>/variance`, `<layer>/scale` or `<layer>/shape`: the dispersion of a likelihood layer;
    - `predictive`: with `image_data`, an image of the predictive distribution (see `keras_odgp.plot_predictive`).

    Layers within layers are found too. Needs the package tensorboard: `pip install tensorboard`.

    Args:
        log_dir: Directory of the logs. Defaults to `"logs"`.
        gp_freq: Number of epochs from one record of the GP layers to the next; 0 for none. Each costs about one
            factorisation of each covariance. Defaults to 1.
        image_data: For a model with one input of one or two columns, data `(x, y)`, or inputs `x` alone, to draw the
            predictive over: the image spans the range of `x` and somewhat more, and shows up to 500 data. A callback
            does not see the data of `fit`, so without it there is no image. Needs the package matplotlib:
            `pip install matplotlib`. Defaults to None.
        num_samples: Number of samples of the hidden layers in the image. Defaults to 64.
        **kwargs: Arguments of `keras.callbacks.TensorBoard`.

    Example:

    >>> x, y = np.random.randn(100, 1), np.random.randn(100)  # inputs [N, D], targets [N]
    >>> board = keras_odgp.callbacks.TensorBoard("logs", gp_freq=5, image_data=(x, y))

    and then `model.fit(x, y, epochs=100, callbacks=[board])`.
    """

    def __init__(
        self, log_dir: Any = "logs", *, gp_freq: int = 1, image_data: Any = None, num_samples: int = 64, **kwargs: Any
    ) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise ImportError("Logs need the package tensorboard, which is not installed: `pip install tensorboard`.")
        check_count("gp_freq", gp_freq, 0)
        check_count("num_samples", num_samples, 1)
        super().__init__(log_dir=log_dir, **kwargs)
        self.gp_freq = gp_freq
        self.num_samples = num_samples
        self._image_data = None if image_data is None else _check_image_data(image_data)
        self._predictive: Predictive | None = None

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._predictive = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.gp_freq and epoch % self.gp_freq == 0:
            with train_writer(self).as_default(epoch):
                for tag, value in _summaries(self.model, logs or {}):
                    write = self.summary.scalar if np.size(value) == 1 else self.summary.histogram
                    write(tag, np.squeeze(value), step=epoch)
                if self._image_data is not None:
                    self.summary.image("predictive", self._image(), step=epoch)

    def _image(self) -> np.ndarray:
        """The predictive as an image `[1, height, width, 3]`."""
        assert self._image_data is not None
        if self._predictive is None:
            self._predictive = Predictive(self.model, num_samples=self.num_samples)
        return _draw(self._predictive, *self._image_data)


class KLWarmup(keras.callbacks.Callback):
    """Raises the weight of the divergence of every GP layer in the loss from a start value to 1.

    The weight rises linearly from epoch to epoch, so losses of the first epochs are not comparable with later ones: let
    `keras.callbacks.EarlyStopping` and the like start after them (`start_from_epoch`). The weight is part of the
    model: a file saved during the warm-up has the weight of that moment. When training ends it is 1.

    Args:
        epochs: Number of epochs after which the weight is 1.
        start: Weight in the first epoch, from 0 to 1. Defaults to 0.

    Example:

    >>> warmup = keras_odgp.callbacks.KLWarmup(epochs=20)

    and then `model.fit(x, y, epochs=100, callbacks=[warmup])`.
    """

    def __init__(self, epochs: int, start: float = 0.0) -> None:
        super().__init__()
        check_count("epochs", epochs, 1)
        if not 0.0 <= start <= 1.0:
            raise ValueError(f"Expected `start` from 0 to 1. Got: {start!r}.")
        self.epochs = epochs
        self.start = float(start)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not any(True for _ in _layers(self.model, OrthogonalGP)):
            raise ValueError(
                f"Expected a model with `OrthogonalGP` layers to warm up. Got none in {self.model.name!r}."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._assign(self.start + (1.0 - self.start) * min(1.0, epoch / self.epochs))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._assign(1.0)

    def _assign(self, weight: float) -> None:
        for _, layer in _layers(self.model, OrthogonalGP):
            layer.kl_weight.assign(weight)


def _check_image_data(data: Any) -> tuple[np.ndarray, np.ndarray | None]:
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("Images need the package matplotlib, which is not installed: `pip install matplotlib`.")
    x, y = data if isinstance(data, (tuple, list)) and len(data) == 2 else (data, None)
    x, y = np.asarray(x), None if y is None else np.asarray(y)
    if x.ndim != 2 or x.shape[1] not in GRID_SIZES or len(x) == 0 or (y is not None and len(y) != len(x)):
        shapes = x.shape if y is None else (x.shape, y.shape)
        raise ValueError(f"Expected `image_data` of inputs [N, 1] or [N, 2], and N targets. Got shape {shapes}.")
    return x, y


def _draw(predictive: Predictive, x: np.ndarray, y: np.ndarray | None) -> np.ndarray:
    """The predictive over the range of inputs as an image `[1, height, width, 3]`, without a state of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    low, high = x.min(axis=0), x.max(axis=0)
    margin = GRID_MARGIN * np.where(high > low, high - low, 1.0)
    edges = [np.linspace(a, b, GRID_SIZES[x.shape[1]]) for a, b in zip(low - margin, high + margin)]
    grid = np.stack(np.meshgrid(*edges), axis=-1).reshape(-1, x.shape[1])
    dots = np.random.default_rng(0).permutation(len(x))[:MOST_DOTS]
    canvas = FigureCanvasAgg(Figure(figsize=(7.0, 4.5), layout="constrained"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No contour levels", UserWarning)  # where the predictive is constant
        plot_predictive(predictive, grid, None if y is None else (x[dots], y[dots]), canvas.figure.add_subplot())
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[None, ..., :3].copy()


def _layers(model: keras.Model, cls: type[keras.Layer]) -> Iterator[tuple[str, Any]]:
    """Layers of a class, at any depth, that have weights, each with a name of its own."""
    layers: list[Any] = [layer for layer in flatten_layers(model) if isinstance(layer, cls) and layer.built]
    names = [layer.name for layer in layers]
    for layer in layers:
        yield (layer.name if names.count(layer.name) == 1 else layer.path), layer


def _summaries(model: keras.Model, logs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Tags and values of all that is known about the GP layers of a model."""
    layers = list(_layers(model, OrthogonalGP))
    metric_names = [layer.kl_metric.name for _, layer in layers]
    divergence = 0.0
    for name, layer in layers:
        with float_context(layer.compute_dtype):
            # The log has the mean over the training batches, as of the loss; the metric may have seen validation since.
            # Layers of one name in different models share an entry there, so for them the present value must do.
            metric = layer.kl_metric.name
            is_logged = metric in logs and metric_names.count(metric) == 1
            kl = float(logs[metric] if is_logged else layer.posterior.prior_kl())
            divergence += float(layer.kl_weight) * kl / layer.num_data
            yield f"{name}/kl", kl
            for path, parameter in gpflow.utilities.parameter_dict(layer.posterior.kernel).items():
                yield f"{name}/kernel{path.replace('.', '/')}", parameter.numpy()
            for matrix, (jitter, condition) in _conditions(layer).items():
                yield f"{name}/{matrix}/jitter", jitter
                yield f"{name}/{matrix}/condition", condition
    if layers and "loss" in logs:
        yield "epoch_data_term", logs["loss"] - divergence
    for name, layer in _layers(model, DispersionLayer):
        with float_context(layer.compute_dtype):
            yield f"{name}/{layer.parameter_name}", layer.parameter.numpy()


def _conditions(layer: OrthogonalGP) -> dict[str, tuple[float, float]]:
    """Effective relative jitter and condition estimate of the covariance of each set of features."""
    posterior = layer.posterior
    G = gram(posterior.kernel, posterior.inducing_variable, posterior.orthogonal_inducing_variable)
    F = factorise_prior(G, name=f" of layer {layer.name!r}")
    conditions = {"Kuu": (_jitter(F.Lu, G.Kuu, None), _condition(F.Lu))}
    if F.Lv is not None:
        conditions["Svv"] = (_jitter(F.Lv, G.Kvv, F.B), _condition(F.Lv))
    return conditions


def _condition(L: Any) -> float:
    """The squared ratio of the extreme diagonal entries of a factor: at most the condition number of L L^T."""
    diagonal = L.diag if isinstance(L, DiagonalCovariance) else tf.linalg.diag_part(L)
    ratio = tf.reduce_max(diagonal, axis=-1) / tf.reduce_min(diagonal, axis=-1)
    return float(tf.reduce_max(tf.square(ratio)))


def _jitter(L: Any, K: Any, B: tf.Tensor | None) -> float:
    """Jitter in L L^T = K - B^T B, relative to the diagonal of K: what K has by default, and what retries added."""
    if isinstance(L, DiagonalCovariance):
        return 0.0
    diagonal = tf.linalg.diag_part(K)
    expected = diagonal if B is None else diagonal - tf.reduce_sum(tf.square(B), axis=-2)
    added = float(tf.reduce_max((tf.reduce_sum(tf.square(L), axis=-1) - expected) / diagonal))
    # A retry adds at least the default of the dtype; less is rounding.
    return relative_jitter(L.dtype) + (added if added > 0.5 * RELATIVE_JITTER[L.dtype] else 0.0)
