"""The components of a predictive mixture: outputs of a model for all samples of its hidden layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_odgp._private import flatten_layers
from keras_odgp.layers import OrthogonalGP, recording
from keras_odgp.layers.likelihood_layers import DispersionLayer
from keras_odgp.predictive.factors import CachedDispersion, CachedLayer, SampledPass, ShapePass
from keras_odgp.predictive.repeats import repeats_examples

MOST_ROWS = 16_384  # that go through the GP layers at a time: examples times samples
MOST_VALUES, LATENT_VALUES = 8_000_000, 1024  # of latent functions at a time, and at least for each example and unit


class Plan(NamedTuple):
    """What is known of a pass before it is made.

    Attributes:
        num_samples: Number of samples; 1 for a model without hidden layers, in which nothing is random.
        chunk: Number of examples at a time.
        dtype: Dtype of the output of the model.
        is_repeated: Whether the model repeats each example, so that its second axis holds samples too.
    """

    num_samples: int
    chunk: int
    dtype: tf.DType
    is_repeated: bool


class Mixture:
    """Passes of samples through a model, from cached factors of its GP layers.

    Args:
        model: The model.
        layers: Its GP layers.
        num_samples: Number of samples of the hidden layers.
        seed: Seed of the samples.
        check: Called on the output of the model: returns it or raises.
    """

    def __init__(
        self,
        model: keras.Model,
        layers: list[OrthogonalGP],
        *,
        num_samples: int,
        seed: int,
        check: Callable[[tf.Tensor], tf.Tensor],
    ) -> None:
        self._model, self._num_samples, self._seed, self._check = model, num_samples, seed, check
        self._layers = {id(layer): CachedLayer(layer) for layer in layers}
        self._dispersions = {
            id(layer): CachedDispersion(layer)
            for layer in flatten_layers(model)
            if isinstance(layer, DispersionLayer) and layer.built
        }
        self._plans: dict[Any, Plan] = {}
        self._compiled: dict[Any, Any] = {}

    def refresh(self) -> None:
        """Computes factors anew where weights have changed."""
        with tf.init_scope():
            if tf.executing_eagerly():
                for layer in self._cached():
                    layer.refresh()

    def variables(self) -> list[keras.Variable]:
        """The factors of all layers as Keras variables."""
        return [variable for layer in self._cached() for variable in layer.variables()]

    def _cached(self) -> list[CachedLayer | CachedDispersion]:
        return [*self._layers.values(), *self._dispersions.values()]

    def by_chunks(
        self, function: Callable[..., Any], inputs: Any, *others: tf.Tensor, num_results: int = 1
    ) -> list[tf.Tensor]:
        """Results `[N, ...]` of a function of components, so many examples at a time that memory is bounded.

        Args:
            function: From components and parts of the other arrays to a result, or a tuple of results.
            inputs: Inputs of the model.
            *others: Other arrays with an axis of examples.
            num_results: Number of results.
        """
        plan = self.plan(inputs)
        first = keras.tree.flatten(inputs)[0]
        shapes: list[tf.TensorShape] = []

        def results_of(part: Any, *rest: tf.Tensor) -> list[tf.Tensor]:
            results = function(self._components(part, plan), *rest)
            results = [results] if num_results == 1 else list(results)
            shapes[:] = [result.shape for result in results]
            return results

        if first.shape[0] is not None and first.shape[0] <= plan.chunk:
            return results_of(inputs, *others)
        num = tf.maximum((tf.shape(first)[0] + plan.chunk - 1) // plan.chunk, 1)
        arrays = [tf.TensorArray(plan.dtype, size=num, infer_shape=False) for _ in range(num_results)]

        def body(index: tf.Tensor, arrays: list[tf.TensorArray]) -> tuple[tf.Tensor, list[tf.TensorArray]]:
            start = index * plan.chunk
            parts = keras.tree.map_structure(lambda array: array[start : start + plan.chunk], (inputs, *others))
            results = results_of(*parts)
            return index + 1, [array.write(index, result) for array, result in zip(arrays, results)]

        _, arrays = tf.while_loop(lambda index, _: index < num, body, (0, arrays), parallel_iterations=1)
        return [tf.ensure_shape(array.concat(), [None, *shape[1:]]) for array, shape in zip(arrays, shapes)]

    def _components(self, inputs: Any, plan: Plan) -> tf.Tensor:
        """Outputs of the model for all samples, `[N, ..., S, units, columns]`."""
        num_samples = plan.num_samples

        def repeat(array: tf.Tensor) -> tf.Tensor:
            return tf.tile(array, [num_samples, *([1] * (len(array.shape) - 1))])

        rows = keras.tree.map_structure(repeat, inputs) if num_samples > 1 else inputs
        dispersions = {key: tf.convert_to_tensor(layer.value) for key, layer in self._dispersions.items()}
        sampled = SampledPass(self._layers, num_samples, self._seed)
        with recording.substituting(sampled), recording.providing(dispersions):
            output = self._model(rows, training=False)
        static = output.shape
        if num_samples == 1 and not plan.is_repeated:
            return tf.expand_dims(output, -3)
        output = tf.reshape(output, tf.concat([[num_samples, -1], tf.shape(output)[1:]], axis=0))
        output = tf.ensure_shape(output, [num_samples, None, *static[1:]])
        rank = len(output.shape)
        output = tf.transpose(output, [*range(1, rank - 2), 0, rank - 2, rank - 1])
        if plan.is_repeated:  # [N, R, S, units, columns]
            num, *end = static[1:]
            output = tf.reshape(output, [-1, num * num_samples, *end])
        return output

    def components(self, x: Any) -> tf.Tensor:
        """Outputs of the model for all samples, `[N, ..., S, units, columns]`, from a compiled function."""
        self.refresh()
        inputs = tensors(x)
        self.plan(inputs)  # raises if the inputs do not fit
        key = _key(inputs)
        if key not in self._compiled:
            function = tf.function(
                lambda arrays: self.by_chunks(lambda components: components, arrays)[0],
                input_signature=[_specs(inputs)],
                autograph=False,
            )
            self._compiled[key] = function.get_concrete_function()  # or TensorFlow warns that many are traced
        return self._compiled[key](inputs)

    def parts(self, x: Any, *others: Any) -> Iterator[list[Any]]:
        """Components and parts of other arrays, as many examples at a time as a pass takes."""
        inputs = tensors(x)
        chunk, size = self.plan(inputs).chunk, keras.tree.flatten(inputs)[0].shape[0]
        for start in range(0, max(size, 1), chunk):
            part = keras.tree.map_structure(lambda array, s=start: array[s : s + chunk], inputs)
            yield [self.components(part), *(other[start : start + chunk] for other in others)]

    def plan(self, inputs: Any) -> Plan:
        """Finds, in a pass without numbers, how many samples are needed and how many examples at a time."""
        key = _key(inputs)
        if key not in self._plans:
            self.check_inputs(keras.tree.flatten(inputs))
            found, outputs = ShapePass(), []

            def run(arrays: Any) -> tf.Tensor:
                with recording.substituting(found):
                    output = self._model(arrays, training=False)
                if not tf.is_tensor(output):
                    raise ValueError(
                        f"Expected a model with one output, the moments of its last GP layer. Got: {output!r}."
                    )
                outputs.append(self._check(output))
                return output

            with tf.init_scope():
                tf.function(run, autograph=False).get_concrete_function(_specs(inputs))
                is_repeated = repeats_examples(self._model, _specs(inputs), outputs[0].shape)
            num_samples = self._num_samples if found.has_hidden else 1
            values = max(LATENT_VALUES, num_samples) * found.rows_per_example * outputs[0].shape[-2]
            chunk = min(MOST_ROWS // (num_samples * found.rows_per_example), MOST_VALUES // values)
            self._plans[key] = Plan(num_samples, max(1, chunk), outputs[0].dtype, is_repeated)
        return self._plans[key]

    def input_specs(self) -> Any:
        """Shapes and dtypes of the inputs, in their structure; None for a model that does not know them."""
        if not getattr(self._model, "inputs", None):
            return None
        inputs = self._model.inputs[0] if isinstance(self._model, keras.Sequential) else self._model.input
        return keras.tree.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), inputs)

    def check_inputs(self, arrays: list[Any]) -> None:
        """Raises unless the arrays have the shapes of the inputs of the model, where it knows them."""
        expected = getattr(self._model, "inputs", None)
        if not expected:
            return
        if len(expected) != len(arrays):
            raise ValueError(f"Expected {len(expected)} inputs, as the model has. Got: {len(arrays)}.")
        for tensor, array in zip(expected, arrays):
            if not tf.TensorShape([None, *tensor.shape[1:]]).is_compatible_with([None, *array.shape[1:]]):
                raise ValueError(
                    f"Expected inputs of shape {tuple(tensor.shape)}, as the model has. Got shape {tuple(array.shape)}."
                )


def _specs(inputs: Any) -> Any:
    return keras.tree.map_structure(lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), inputs)


def _key(inputs: Any) -> Any:
    return tuple((tuple(array.shape[1:]), array.dtype) for array in keras.tree.flatten(inputs))


def tensors(x: Any) -> Any:
    """Inputs as tensors, each with an axis of examples."""
    inputs = keras.tree.map_structure(tf.convert_to_tensor, x)
    if any(array.shape.rank == 0 for array in keras.tree.flatten(inputs)):
        raise ValueError(f"Expected arrays of inputs, with an axis of examples. Got: {x!r}.")
    return inputs
