"""Training for a given time, whatever the model, with scores on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
from gpflow.keras import tf_keras

Evaluate = Callable[[], dict[str, Any]]


class Deadline:
    """Ends a `fit` after some seconds of CPU time: with one thread, those of a clock on an otherwise idle machine.

    Steps that compile do not count, nor does the time of evaluations. A mixin for callbacks of Keras 2 and 3.
    """

    model: Any

    def start(
        self, seconds: float, *, times: Sequence[float] = (), evaluate: Evaluate | None = None, anneal: bool = False
    ) -> Any:
        """Sets the clock.

        Args:
            seconds: When training ends.
            anneal: Whether the learning rate falls to a hundredth by then, along half a cosine.
            times: Seconds at which to evaluate, increasing.
            evaluate: Returns scores of the model as it is.
        """
        self.seconds, self.spent, self.steps = seconds, 0.0, 0
        self.curve: list[dict[str, Any]] = []
        self._times, self._evaluate = list(times), evaluate
        self._since: float | None = None
        self._anneal, self._first_rate = anneal, 0.0
        return self

    def on_train_begin(self, logs: Any = None) -> None:
        self._first_rate = float(self.model.optimizer.learning_rate)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self._since is None:
            self._since = time.process_time()  # what was before has compiled the step
            return
        self.spent = time.process_time() - self._since
        if self._times and self.spent >= self._times[0] and self._evaluate is not None:
            scores = self._evaluate()
            self.curve.append({"seconds": round(self.spent, 2), "steps": self.steps, **scores})
            while self._times and self._times[0] <= self.spent:
                del self._times[0]
            self._since = time.process_time() - self.spent
        if self._anneal:
            share = 0.5 + 0.5 * math.cos(math.pi * min(self.spent / self.seconds, 1.0))
            self.model.optimizer.learning_rate.assign(self._first_rate * (0.01 + 0.99 * share))
        if self.spent >= self.seconds:
            self.model.stop_training = True

    def effort(self) -> dict[str, Any]:
        """What training took."""
        return {"steps": self.steps, "training_cpu_seconds": round(self.spent, 2)}


class KerasDeadline(Deadline, keras.callbacks.Callback):
    """For Keras 3."""


class GPfluxDeadline(Deadline, tf_keras.callbacks.Callback):
    """For the Keras 2 of GPflux."""
