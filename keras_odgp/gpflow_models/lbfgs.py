"""Training of GPflow models by L-BFGS, in two stages, with progress, and with a way back when the objective breaks
down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gpflow
import numpy as np
import scipy.optimize
import tensorflow as tf
from tqdm import tqdm

VARIATIONAL = (
    "inducing_variable",
    "orthogonal_inducing_variable",
    "q_mu",
    "q_sqrt",
    "orthogonal_q_mu",
    "orthogonal_q_sqrt",
)
MAX_RESTARTS = 5


@dataclass
class FitResult:
    """How a fit went.

    Attributes:
        loss: Loss at the point that the model was left at, the best one found.
        num_iterations: Iterations in all stages.
        num_evaluations: Evaluations of the loss and its gradient.
        num_restarts: How often the loss became non-finite and the fit went on from the best point.
        converged: Whether the last stage ended because nothing more was to be gained.
        message: Why the last stage ended, in words.
        losses: Loss after each iteration.

    Example:

    >>> result = keras_odgp.gpflow_models.FitResult(loss=1.5, message="the loss stands still")
    >>> result.loss, result.converged
    (1.5, False)
    """

    loss: float
    num_iterations: int = 0
    num_evaluations: int = 0
    num_restarts: int = 0
    converged: bool = False
    message: str = ""
    losses: list[float] = field(default_factory=list)


class _NonFiniteError(Exception):
    """Raised inside SciPy to get out of it."""


class _Objective:
    """Loss and gradient as functions of one flat vector, remembering the best point.

    SciPy sees the vector (point - origin) / scale. A restart moves the origin to the best point and shrinks the
    scale, so that the first step, whose length SciPy chooses, does not fall over the same edge again.
    """

    def __init__(self, loss: Any, variables: Sequence[tf.Variable], result: FitResult) -> None:
        self.variables = list(variables)
        self.result = result
        self.best_loss, self.best = np.inf, self.read()
        self.origin, self.scale = self.best, 1.0

        @tf.function
        def evaluate() -> tuple[tf.Tensor, list[tf.Tensor]]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(self.variables)
                value = loss()
            return value, tape.gradient(value, self.variables, unconnected_gradients="zero")

        self._evaluate = evaluate

    def read(self) -> np.ndarray:
        return np.concatenate([variable.numpy().ravel() for variable in self.variables]).astype(np.float64)

    def write(self, point: np.ndarray) -> None:
        position = 0
        for variable in self.variables:
            size = int(np.prod(variable.shape))
            variable.assign(point[position : position + size].reshape(variable.shape))
            position += size

    def restart(self) -> None:
        self.origin, self.scale = self.best, 0.1 * self.scale

    def __call__(self, scaled: np.ndarray) -> tuple[float, np.ndarray]:
        point = self.origin + self.scale * scaled
        self.write(point)
        self.result.num_evaluations += 1
        try:
            value, gradients = self._evaluate()
        except tf.errors.InvalidArgumentError as error:
            if "Cholesky factorisation" not in error.message:
                raise
            sentence = error.message[error.message.index("The Cholesky factorisation") :].split(":")[0]
            raise _NonFiniteError(sentence) from error
        loss = float(value)
        gradient = np.concatenate([g.numpy().ravel() for g in gradients]).astype(np.float64)
        if not np.isfinite(loss) or not np.isfinite(gradient).all():
            raise _NonFiniteError("the loss or its gradient became non-finite")
        if loss < self.best_loss:
            self.best_loss, self.best = loss, point
        return loss, self.scale * gradient


def fit_lbfgs(
    model: gpflow.models.GPModel,
    data: Any = None,
    *,
    max_iterations: int = 1000,
    first_stage_iterations: int = 100,
    progress: bool = True,
    tolerance: float = 1e-9,
) -> FitResult:
    """Fits a GPflow model by L-BFGS-B on all of its data.

    First the variational parameters and the inducing inputs alone, with hyperparameters held, then everything
    together. When the loss or its gradient becomes non-finite, the fit starts again from the best point, with a fresh
    approximation of the curvature.

    Args:
        model: A model such as `OrthogonalSVGP` or `OrthogonalSGPR`; any GPflow model will do.
        data: Inputs and targets for models that do not hold their data.
        max_iterations: Largest number of iterations of the last stage.
        first_stage_iterations: Largest number of iterations of the first stage; 0 leaves it out.
        progress: Whether to show a bar with the objective.
        tolerance: Relative change of the loss below which it stops.

    Returns:
        A `FitResult`, which says how it ended. The model is left at the best point.

    Example:

    >>> X = np.linspace(-1, 1, 20)[:, None]  # [N, D]
    >>> model = keras_odgp.gpflow_models.OrthogonalSGPR((X, np.sin(3 * X)), gpflow.kernels.Matern52(), X[::5].copy())
    >>> result = keras_odgp.gpflow_models.fit_lbfgs(model, max_iterations=3, progress=False)
    >>> np.isclose(result.loss, model.training_loss())
    True
    """
    loss = model.training_loss if data is None else lambda: model.training_loss(data)
    variables = list(model.trainable_variables)
    if not variables:
        raise ValueError("Expected a model with trainable parameters. Got one in which every parameter is fixed.")
    first = [v for name in VARIATIONAL for v in _variables_of(getattr(model, name, None))]
    result = FitResult(loss=float("nan"), message="no iterations were asked for")
    stages = [(first, first_stage_iterations)] if first and len(first) < len(variables) else []
    for stage_variables, iterations in [*stages, (variables, max_iterations)]:
        if iterations > 0:
            _run_stage(_Objective(loss, stage_variables, result), iterations, tolerance, progress, result)
    if result.num_evaluations == 0:
        result.loss = float(loss())
    return result


def _variables_of(part: Any) -> tuple[tf.Variable, ...]:
    return () if part is None else tuple(part.trainable_variables)


def _run_stage(objective: _Objective, iterations: int, tolerance: float, progress: bool, result: FitResult) -> None:
    remaining, restarts = iterations, 0
    with tqdm(total=iterations, desc="L-BFGS", disable=None if progress else True) as bar:

        def step(intermediate_result: Any) -> None:
            nonlocal remaining
            remaining -= 1
            result.num_iterations += 1
            result.losses.append(float(intermediate_result.fun))
            bar.update()
            bar.set_postfix(loss=f"{intermediate_result.fun:.4f}")

        while remaining > 0:
            try:
                outcome = scipy.optimize.minimize(
                    objective,
                    np.zeros_like(objective.origin),
                    jac=True,
                    method="L-BFGS-B",
                    callback=step,
                    options={"maxiter": remaining, "maxfun": 20 * iterations, "ftol": tolerance, "gtol": 1e-6},
                )
                result.converged, result.message = bool(outcome.success), str(outcome.message)
                break
            except _NonFiniteError as error:
                if not np.isfinite(objective.best_loss):
                    raise ValueError(f"The loss is not finite at the start: {error}.") from error
                result.converged, result.message = False, f"stopped after {restarts} restarts: {error}"
                if restarts == MAX_RESTARTS:
                    break
                restarts += 1
                result.num_restarts += 1
                objective.restart()
        else:
            result.converged, result.message = False, f"reached {iterations} iterations"
    objective.write(objective.best)
    result.loss = objective.best_loss
