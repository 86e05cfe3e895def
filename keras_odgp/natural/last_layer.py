"""What the callbacks that move q of the last GP layer have in common: their batches, and the care of the optimiser.

Callbacks do not see the batches of `fit`, and layers do not see targets; so these draw batches of their own.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_odgp._private import storage_of
from keras_odgp.checks import check_count
from keras_odgp.heads import call_recording, flatten_targets
from keras_odgp.layers import OrthogonalGP
from keras_odgp.likelihoods import OutputLikelihood
from keras_odgp.natural.batches import batches_of, unpack
from keras_odgp.natural.head import Head


class LastLayerUpdate(keras.callbacks.Callback):
    """Updates q of the last GP layer from batches of its own, and keeps the optimiser away from it."""

    def __init__(
        self, x: Any, y: Any, sample_weight: Any, batch_size: int | None, every: int, seed: int | None
    ) -> None:
        super().__init__()
        check_count("every", every)
        self.every = int(every)
        self._batches = batches_of(x, y, batch_size, seed, sample_weight)
        self._heads: list[Head] = []
        self._taken_out: list[keras.Variable] = []
        self._num_steps = self._num_updates = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._put_back()  # after training that was interrupted
        self._iterator = iter(self._batches.endless)
        few = keras.tree.map_structure(lambda part: part[:8], unpack(next(iter(self._batches.endless)))[0])
        heads, likelihood = self._find_heads(few)
        self._heads = [Head(layer, index, likelihood) for layer, index in heads.items() if _has_trainable_q(layer)]
        if not self._heads:
            raise ValueError(
                "Expected an `OrthogonalGP` layer with `return_moments=True` whose q is trainable, whose moments reach "
                f"an output, and whose kernel does not mix latent functions. Got none in {self.model.name!r}."
            )
        self._answers = self._spare(few)
        for head in self._heads:
            if head.layer.num_data is None:
                raise ValueError(
                    f"Layer {head.layer.name!r} does not know the number of data. Call `keras_odgp.adapt(model, "
                    "x_train, y_train)` before training, or give the layer `num_data`."
                )
        self._num_steps = self._num_updates = 0
        self._compiled_update = tf.function(self._update, autograph=False)  # as Keras compiles its own steps
        self._take_out()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._num_steps += 1
        if self._num_steps % self.every == 0:
            self._run_update(self._iterator, self._decay(), self._rate(self._num_updates))
            self._num_updates += 1

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._put_back()

    def _run_update(self, iterator: Any, decay: float, rate: float) -> None:
        self._compiled_update(iterator, tf.constant(decay, tf.float64), tf.constant(rate, tf.float64))

    def _find_heads(self, few: Any) -> tuple[dict[OrthogonalGP, int], OutputLikelihood | None]:
        """Layers and the outputs that they reach, and their likelihood; None for the closed form."""
        raise NotImplementedError

    def _spare(self, few: Any) -> dict[OrthogonalGP, float]:
        """Layers whose moments an update does not need, with what they pass on instead."""
        return {}

    def _rate(self, update: int) -> float:
        """By how much an update moves q towards its optimum, from 0 to 1."""
        raise NotImplementedError

    def _decay(self) -> float:
        """By which factor the weight of earlier batches shrinks at an update."""
        raise NotImplementedError

    def _update(self, iterator: Any, decay: tf.Tensor, rate: tf.Tensor) -> None:
        inputs, targets, weights = unpack(iterator.get_next())
        outputs, reached = call_recording(self.model, inputs, self._answers)
        targets = flatten_targets(self.model, targets)
        weights = (
            [weights] * len(targets) if not keras.tree.is_nested(weights) else flatten_targets(self.model, weights)
        )
        for head in self._heads:
            data = (reached[head.layer], targets[head.index], weights[head.index], outputs[head.index])
            head.update(*data, decay=decay, rate=rate)

    def _take_out(self) -> None:
        """Makes q not trainable. The optimiser gets its slots for it before, for training without the callback."""
        optimizer = self.model.optimizer
        if optimizer.use_ema:
            raise ValueError(
                "Expected an optimizer without `use_ema`, which would put a moving average in place of q. Got one with."
            )
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        for head in self._heads:
            self._taken_out += _q_weights(head.layer)
        for variable in self._taken_out:
            variable.trainable = False
        self.model.make_train_function(force=True)  # an earlier one would go on to train q

    def _put_back(self) -> None:
        if self._taken_out:
            self.model.train_function = None
        for variable in self._taken_out:
            variable.trainable = True
        self._taken_out = []


def _q_weights(layer: OrthogonalGP) -> list[keras.Variable]:
    posterior = layer.posterior
    q = (posterior.q_mu, posterior.q_sqrt, posterior.orthogonal_q_mu, posterior.orthogonal_q_sqrt)
    storage = {id(parameter.unconstrained_variable) for parameter in q if parameter is not None}
    return [variable for variable in layer.adopted_weights if id(storage_of(variable)) in storage]


def _has_trainable_q(layer: OrthogonalGP) -> bool:
    trainable = {variable.trainable for variable in _q_weights(layer)}
    if len(trainable) > 1:
        raise ValueError(
            f"Expected q of layer {layer.name!r} to be trainable as a whole, or frozen. Got one that is frozen in part."
        )
    return trainable == {True}
