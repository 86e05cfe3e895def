from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
from layers import house

from keras_odgp import layers, losses

X, Y = house.regression()
MOMENTS = np.random.default_rng(3).uniform(0.1, 1.0, size=(12, 1, 2))
FRACTIONS = np.random.default_rng(4).uniform(0.1, 0.9, size=(12, 1))
CONSTANTS = ["num_data", "kl_weight", "mean_function/matrix"]


def likelihood_case(cls, likelihood, weight):
    return house.Case(
        make=lambda dtype: cls(name="tested", dtype=dtype),
        model=lambda layer: house.sequential(layer, inputs=(1, 2)),
        loss=lambda: losses.VariationalLoss(likelihood),
        x=MOMENTS,
        y=FRACTIONS,
        trainable=[weight],
        output_shape=(1, 3),
    )


CASES = {
    layers.OrthogonalGP: house.Case(
        make=lambda dtype: house.gp(2, name="tested", dtype=dtype, seed=5),
        model=lambda layer: house.sequential(layer, keras.layers.Dense(1)),
        loss=lambda: "mse",
        x=X,
        y=Y,
        trainable=house.GP_WEIGHTS,
        non_trainable=CONSTANTS,
        num_losses=1,
        output_shape=(1,),
    ),
    layers.FixedLinear: house.Case(
        make=lambda dtype: layers.FixedLinear(2, name="tested", dtype=dtype),
        model=lambda layer: house.sequential(layer, keras.layers.Dense(1)),
        loss=lambda: "mse",
        x=X,
        y=Y,
        trainable=[],
        non_trainable=["matrix"],
        output_shape=(1,),
    ),
    layers.GaussianLikelihood: likelihood_case(layers.GaussianLikelihood, "gaussian", "variance"),
    layers.StudentTLikelihood: likelihood_case(layers.StudentTLikelihood, "student_t", "scale"),
    layers.GammaLikelihood: likelihood_case(layers.GammaLikelihood, "gamma", "shape"),
    layers.BetaLikelihood: likelihood_case(layers.BetaLikelihood, "beta", "scale"),
    losses.VariationalLoss: house.Case(
        make=lambda dtype: losses.VariationalLoss("exponential", dtype=dtype),
        model=lambda loss: house.sequential(keras.layers.Dense(2, "softplus"), inputs=(1, 2)),
        loss=lambda: losses.VariationalLoss("exponential"),
        x=MOMENTS,
        y=FRACTIONS,
        trainable=[],
        output_shape=(1, 2),
    ),
}


def public(module, base):
    found = [thing for _, thing in inspect.getmembers(module, inspect.isclass) if issubclass(thing, base)]
    return [cls for cls in found if cls.__module__.startswith("keras_odgp") and not cls.__name__.startswith("_")]


LAYERS, LOSSES = public(layers, keras.Layer), public(losses, keras.losses.Loss)
EVERY = pytest.mark.parametrize("cls", LAYERS + LOSSES)
DTYPES = pytest.mark.parametrize("dtype", ["float64", "float32"])


def case_and_model(cls, dtype="float64"):
    case = CASES[cls]
    thing = case.make(dtype)
    model = case.model(thing)
    house.perturb(model)
    return case, thing, model


def test_every_public_class_has_a_case():
    assert set(LAYERS + LOSSES) == set(CASES)
    assert {cls.__name__ for cls in LAYERS} == set(layers.__all__)


@EVERY
@DTYPES
def test_config_round_trip(cls, dtype):
    house.check_config(CASES[cls].make(dtype))


@pytest.mark.parametrize("cls", LAYERS)
@DTYPES
def test_names_of_weights_dtype_and_number_of_losses(cls, dtype):
    case, layer, model = case_and_model(cls, dtype)
    model(case.x)
    house.check_weights(case, layer)
    assert {weight.dtype for weight in layer.weights} <= {dtype}
    assert layer.compute_dtype == dtype
    assert layer(case.x).shape == layer.compute_output_shape(case.x.shape)


@EVERY
@DTYPES
def test_copies_are_equal(cls, dtype, tmp_path):
    case, _, model = case_and_model(cls, dtype)
    house.check_copies(case, model, tmp_path)


@EVERY
def test_compiled_step_moves_all_weights_and_goes_on_after_loading(cls, tmp_path):
    case, _, model = case_and_model(cls)
    house.compiled(model, case.loss(), run_eagerly=False)
    house.check_step_moves_all(case, model)
    house.check_goes_on_training(case, model, tmp_path)


@EVERY
def test_step_in_float32(cls):
    case, _, model = case_and_model(cls, "float32")
    house.compiled(model, case.loss())
    house.check_step_moves_all(case, model)


@EVERY
def test_step_with_xla(cls):
    case, _, model = case_and_model(cls)
    house.check_compiled_step(case, model, jit_compile=True)


@EVERY
@DTYPES
def test_export(cls, dtype, tmp_path):
    case, _, model = case_and_model(cls, dtype)
    house.check_export(case, model, tmp_path)
