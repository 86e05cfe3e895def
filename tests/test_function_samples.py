"""Functions drawn from Keras layers and models."""

from __future__ import annotations

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same

import keras_odgp
from keras_odgp.layers import GaussianLikelihood, OrthogonalGP
from keras_odgp.losses import VariationalLoss
from keras_odgp.predictive.functions import layer_seed
from keras_odgp.sampling import FunctionSamples

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).normal(size=(30, 2))


def make_layer(units, **options):
    return OrthogonalGP(units, **{"num_inducing": 5, "num_orthogonal": 4, "num_levels": 4, "seed": 1, **options})


@pytest.fixture(scope="module")
def model(x):
    """Two GP layers, an ordinary layer between them, trained for a moment."""
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="float64"),
            make_layer(2, initial_scale=0.5),
            keras.layers.Dense(3, activation="tanh", dtype="float64"),
            make_layer(2, kernel="matern52", return_moments=True),
            GaussianLikelihood(),
        ]
    )
    y = np.stack([np.sin(x[:, 0]), x[:, 1]], axis=1)
    keras_odgp.adapt(model, x, y)
    model.compile(optimizer="adam", loss=VariationalLoss("gaussian"), run_eagerly=True)
    model.fit(x, y, epochs=1, verbose=0)
    return model


@pytest.fixture(scope="module")
def functions(model):
    return keras_odgp.sample_functions(model, 3, seed=7)


def compose(model, x, num, seed):
    """What the functions of `model` are, put together by hand."""
    first, dense, last = model.layers[:3]
    samples = [FunctionSamples(layer.posterior, num, layer_seed(seed, i)) for i, layer in enumerate((first, last))]
    return samples[1].each(tf.stack([dense(hidden + first.mean_layer(x)) for hidden in samples[0](x)]))


def test_layers_are_composed(model, functions, x):
    assert functions(x).shape == (3, 30, 2)
    np.testing.assert_allclose(functions(x), compose(model, x, 3, 7), **TOLERANCE)


def test_in_one_batch_or_row_by_row(functions, x):
    values = functions(x)
    assert_same(functions(x), values)
    rows = np.concatenate([functions(row[None]) for row in x[:5]], axis=1)
    np.testing.assert_allclose(rows, values[:, :5], **TOLERANCE)
    compiled = tf.function(functions, input_signature=[tf.TensorSpec([None, 2], tf.float64)])
    np.testing.assert_allclose(compiled(x[:4]), values[:, :4], **TOLERANCE)


def test_many_functions_go_in_chunks(functions, x, monkeypatch):
    values = functions(x)
    monkeypatch.setattr("keras_odgp.predictive.functions.MOST_ROWS", 12)
    np.testing.assert_allclose(functions(x), values, **TOLERANCE)


def test_gradient_agrees_with_finite_differences(functions, x):
    inputs, step = tf.constant(x[:2]), 1e-5
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        total = tf.reduce_sum(functions(inputs))
    gradient = tape.gradient(total, inputs).numpy()
    for row, column in np.ndindex(2, 2):
        shift = np.zeros((2, 2))
        shift[row, column] = step
        difference = tf.reduce_sum(functions(inputs + shift) - functions(inputs - shift)) / (2 * step)
        np.testing.assert_allclose(gradient[row, column], difference, rtol=1e-4, atol=1e-5)


def test_a_loaded_model_in_another_process_has_the_same_functions(model, functions, x, tmp_path):
    """And drawing them imports no GPflux, whose Keras is another."""
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, keras, numpy as np, keras_odgp;"
        "model = keras.models.load_model(sys.argv[1] + '/model.keras'); x = np.load(sys.argv[1] + '/x.npy');"
        "np.save(sys.argv[1] + '/values.npy', keras_odgp.sample_functions(model, 3, seed=7)(x));"
        "np.save(sys.argv[1] + '/layer.npy', model.layers[0].sample_function(3)(x));"
        "print('gpflux' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
    np.testing.assert_allclose(np.load(tmp_path / "values.npy"), functions(x), **TOLERANCE)
    np.testing.assert_allclose(np.load(tmp_path / "layer.npy"), model.layers[0].sample_function(3)(x), **TOLERANCE)


def test_functional_models_with_several_inputs_and_outputs(x):
    """A skip connection, a layer that is used twice, and outputs of which only one has moments."""
    a, b = (keras.Input((n,), dtype="float64", name=name) for n, name in ((2, "a"), (1, "b")))
    shared = make_layer(2, mean_function="identity")
    hidden = shared(shared(a))
    joined = keras.layers.Concatenate(dtype="float64")([hidden, a, b])
    model = keras.Model({"a": a, "b": b}, {"y": make_layer(1, return_moments=True)(joined), "hidden": hidden})
    keras_odgp.adapt(model, {"a": x, "b": x[:, :1]})
    values = keras_odgp.sample_functions(model, 2, seed=0)({"a": x, "b": x[:, :1]})
    assert values["y"].shape == (2, 30, 1) and values["hidden"].shape == (2, 30, 2)
    index = [layer for layer in model._flatten_layers() if isinstance(layer, OrthogonalGP)].index(shared)
    samples = FunctionSamples(shared.posterior, 2, layer_seed(0, index))
    once = samples(x) + x
    np.testing.assert_allclose(values["hidden"], samples.each(once) + once, **TOLERANCE)


def test_sequences_and_repeated_examples(x):
    layer = make_layer(1, return_moments=True)
    repeated = keras.Sequential(
        [keras.Input((2,), dtype="float64"), keras.layers.RepeatVector(4, dtype="float64"), make_layer(2), layer]
    )
    keras_odgp.adapt(repeated, x)
    values = keras_odgp.sample_functions(repeated, 2, seed=0)(x)
    assert values.shape == (2, 30, 1)  # all copies of an example have the same value
    sequences = keras.Sequential([keras.Input((5, 2), dtype="float64"), *repeated.layers[1:]])
    steps = keras_odgp.sample_functions(sequences, 2, seed=0)(x.reshape(6, 5, 2))
    np.testing.assert_allclose(np.reshape(steps, values.shape), values, **TOLERANCE)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_function_of_a_layer(dtype, x):
    layer = make_layer(3, dtype=dtype, mean_function=keras.layers.Dense(3, dtype=dtype))
    layer.adapt(x)
    layer.posterior.q_mu.assign(np.random.default_rng(1).normal(size=layer.posterior.q_mu.shape))
    function = layer.sample_function(5)
    values = function(x)
    assert values.shape == (30, 3) and values.dtype == dtype
    expected = FunctionSamples(layer.posterior, 1, 5)(x)[0] + layer.mean_layer(tf.cast(x, dtype))
    np.testing.assert_allclose(values, expected, rtol=1e-10 if dtype == "float64" else 1e-5)
    assert function(x.reshape(5, 6, 2)).shape == (5, 6, 3)
    assert function(x[0].astype("float32")).shape == (3,)
    # What happens to the layer later is not the function's concern.
    layer.mean_layer.bias.assign([1.0, 2.0, 3.0])
    layer.posterior.q_mu.assign(layer.posterior.q_mu + 1.0)
    assert_same(function(x), values)
    with pytest.raises(ValueError, match=r"Expected inputs of shape \[..., 2\]. Got shape \(30, 1\)"):
        function(x[:, :1])


def test_functions_outlive_the_training_of_their_model(model, functions, x):
    values = functions(x)
    weights = model.get_weights()
    model.set_weights([weight * 1.1 if weight.dtype.kind == "f" else weight for weight in weights])
    assert_same(functions(x), values)
    model.set_weights(weights)


def test_errors_say_what_to_do(model):
    with pytest.raises(ValueError, match="Expected `num` to be an integer, at least 1. Got: 0"):
        keras_odgp.sample_functions(model, 0, seed=0)
    with pytest.raises(TypeError, match="Expected a Keras model"):
        keras_odgp.sample_functions(model.layers[0], 1, seed=0)
    with pytest.raises(ValueError, match="has no posterior before it is built"):
        make_layer(1).sample_function(0)
