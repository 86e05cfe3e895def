"""GPflow parameters as weights of a Keras layer."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import gpflow
import keras
import numpy as np
import tensorflow as tf

from keras_odgp._private import flag_of


class GuardedLayer(keras.layers.Layer):
    """A layer that keeps a digest of its own weights in files, and refuses weights that are not those it saved."""

    def extra_state(self) -> dict[str, np.ndarray]:
        """What files keep beside the weights, by name."""
        return {}

    def load_extra_state(self, state: dict[str, np.ndarray]) -> None:
        """Takes back what `extra_state` gave."""

    def save_own_variables(self, store: Any) -> None:
        state: dict[str, Any] = {}
        super().save_own_variables(state)
        state = {name: keras.ops.convert_to_numpy(value) for name, value in (state | self.extra_state()).items()}
        for name, value in {**state, "digest": _digest(state)}.items():
            store[name] = value

    def load_own_variables(self, store: Any) -> None:
        state = {name: store[name] for name in store.keys()}
        if not state and self.variables:
            raise ValueError(f"Expected weights of layer {self.name!r}. Got none: is the file of another model?")
        digest = state.pop("digest", None)  # files of earlier versions have none
        is_whole = digest is None or np.array_equal(digest, _digest(state))
        if not is_whole or not state.keys() >= self.extra_state().keys():
            raise ValueError(
                f"The weights of layer {self.name!r} are damaged or missing: they are not those that were saved. Use "
                "a copy of the file, or save again."
            )
        extra = {name: state.pop(name) for name in self.extra_state()}
        self._check_shapes(state)
        super().load_own_variables(state)
        self.load_extra_state(extra)

    def _check_shapes(self, state: dict[str, np.ndarray]) -> None:
        """Raises before any weight is set, so that a layer that does not fit stays as it was."""
        own: dict[str, Any] = {}
        super().save_own_variables(own)
        for name, variable in own.items():
            if name in state and tuple(variable.shape) != state[name].shape:
                raise ValueError(
                    f"Expected weights of layer {self.name!r} as it was made: {variable.path!r} has shape "
                    f"{tuple(variable.shape)}. Got shape {state[name].shape}, of a layer of other sizes."
                )


class AdoptingLayer(GuardedLayer):
    """A layer whose weights are GPflow parameters.

    What `gpflow.set_trainable` does to a parameter holds for the weight, before and after the layer is built, and is
    part of the layer's configuration. As always in Keras, a model that has been trained must be compiled again.
    """

    _module: tf.Module | None = None
    _frozen: list[str] | None = None  # paths of frozen parameters, in a configuration that was read; None for no word

    def adopt(self, module: tf.Module) -> None:
        """Makes GPflow parameters weights of the layer, within its `build`: Keras variables that share their storage.

        Keras trains and saves only its own variables; a layer that merely held GPflow parameters would train nothing.
        The optimiser, GPflow and files all see the same numbers. Paths read like `orthogonal_gp/kernel/variance`.

        Args:
            module: A module with GPflow parameters.
        """
        parameters = gpflow.utilities.parameter_dict(module)
        if self._frozen is not None:
            for path, parameter in parameters.items():
                gpflow.set_trainable(parameter, path not in self._frozen)
        variables = [_adopt_one(parameter, _components(path)) for path, parameter in parameters.items()]
        self.adopted_weights = variables  # assigned to an attribute, Keras tracks them
        self._module = module
        for variable, parameter in zip(variables, parameters.values()):
            variable.follow(parameter)
        if not self.trainable:  # after that, so that `layer.trainable = True` finds them
            for variable in variables:
                variable.trainable = False

    def get_config(self) -> dict[str, Any]:
        frozen = self._frozen
        if self._module is not None:
            parameters = gpflow.utilities.parameter_dict(self._module)
            frozen = sorted(path for path, parameter in parameters.items() if not _is_trainable(parameter))
        return super().get_config() if frozen is None else {**super().get_config(), "frozen": frozen}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        config = dict(config)
        frozen = config.pop("frozen", None)
        layer = cls(**config)
        layer._frozen = frozen
        return layer


class AdoptedVariable(keras.Variable):
    """A Keras variable that is trainable if Keras and the GPflow parameter behind it say so."""

    _parameter: gpflow.Parameter | None = None

    def follow(self, parameter: gpflow.Parameter) -> None:
        """Lets the parameter have a say.

        Not before Keras has tracked the variable: Keras files a variable that is trainable when it is tracked before
        those that are not, and files of weights have that order, which must not depend on what is frozen.
        """
        self._parameter = parameter

    @property
    def trainable(self) -> bool:
        return super().trainable and (self._parameter is None or _is_trainable(self._parameter))

    @trainable.setter
    def trainable(self, value: bool) -> None:
        keras.Variable.trainable.fset(self, value)


def _digest(state: dict[str, np.ndarray]) -> np.ndarray:
    """Digest of arrays, their names, shapes and dtypes: files have no checksum of their own."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {value.shape} ".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return np.frombuffer(digest.digest(), dtype=np.uint8)


def _is_trainable(parameter: gpflow.Parameter) -> bool:
    return bool(parameter.trainable and flag_of(parameter.unconstrained_variable))


def _components(path: str) -> list[str]:
    """`.kernel.kernels[0].variance` to `["kernel", "kernels_0", "variance"]`."""
    return re.sub(r"\[(\w+)\]", r"_\1", path).strip(".").split(".")


def _adopt_one(parameter: gpflow.Parameter, components: list[str]) -> AdoptedVariable:
    scope, *rest = components
    if rest:
        with keras.name_scope(scope):
            return _adopt_one(parameter, rest)
    return AdoptedVariable(
        initializer=parameter.unconstrained_variable,
        dtype=parameter.dtype.name,
        autocast=False,
        aggregation="none",
        name=scope,
    )
