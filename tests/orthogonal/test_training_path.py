"""The hand-derived gradient against autodiff of the direct algorithm, and the number of operations."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from orthogonal.reference import direct_moments

from keras_odgp.covariances import DiagonalCovariance
from keras_odgp.orthogonal.gram import Cross, Gram
from keras_odgp.orthogonal.marginals import Marginals, moments
from keras_odgp.orthogonal.variational import Variational

# Base covariance, orthogonal covariance (None: no orthogonal features), whether the two sets are correlated.
BRANCHES = {
    "no orthogonal features": ("dense", None, False),
    "dense": ("dense", "dense", True),
    "dense, uncorrelated": ("dense", "dense", False),
    "harmonic base": ("diagonal", "dense", True),
    "harmonic base alone": ("diagonal", None, False),
    "disjoint harmonics": ("diagonal", "diagonal", False),
    "harmonics outside the levels of the base": ("dense", "diagonal", False),
}
SIZES = [(7, 5, 11), (131, 133, 40)]  # below and above the smallest size that is cut into blocks; divisible by nothing


def random_inputs(branch, num_base, num_orthogonal, num_data, num_outputs, covariance, rng):
    base, orthogonal, correlated = BRANCHES[branch]
    total = num_base + num_orthogonal + num_data
    root = rng.normal(size=(total, 2 * total))
    joint = root @ root.T / total
    u, v = slice(0, num_base), slice(num_base, num_base + num_orthogonal)
    f = slice(num_base + num_orthogonal, None)
    arrays = {
        "Kuu": np.diag(joint[u, u]) if base == "diagonal" else joint[u, u],
        "Kuf": joint[u, f],
        "kff": np.diag(joint[f, f]),
        "mu": rng.normal(size=(num_base, num_outputs)),
        "sqrt": np.tril(rng.normal(size=(num_outputs, num_base, num_base))) + 2 * np.eye(num_base),
    }
    if orthogonal is not None:
        arrays |= {
            "Kvv": np.diag(joint[v, v]) if orthogonal == "diagonal" else joint[v, v],
            "Kvf": joint[v, f],
            "orthogonal_mu": rng.normal(size=(num_orthogonal, num_outputs)),
        }
        if correlated:
            arrays["Kvu"] = 0.5 * joint[v, u]
        if covariance == "full":
            arrays["orthogonal_sqrt"] = np.tril(
                rng.normal(size=(num_outputs, num_orthogonal, num_orthogonal))
            ) + 2 * np.eye(num_orthogonal)
    return {name: tf.constant(value) for name, value in arrays.items()}


def assemble(values):
    def covariance(name):
        value = values.get(name)
        return DiagonalCovariance(value) if value is not None and len(value.shape) == 1 else value

    G = Gram(covariance("Kuu"), covariance("Kvv"), values.get("Kvu"))
    C = Cross(values["Kuf"], values.get("Kvf"), values["kff"])
    q = Variational(values["mu"], values["sqrt"], values.get("orthogonal_mu"), values.get("orthogonal_sqrt"))
    return G, C, q


def value_and_gradients(function, inputs, weights, whiten):
    @tf.function
    def run():
        with tf.GradientTape() as tape:
            tape.watch(list(inputs.values()))
            result = function(*assemble(inputs), whiten=whiten)
            loss = tf.add_n([tf.reduce_sum(w * value) for w, value in zip(weights, result)])
        gradients = tape.gradient(loss, inputs, unconnected_gradients="zero")
        # A symmetric matrix has one gradient up to how it is split between the triangles.
        for name in ("Kuu", "Kvv"):
            if name in gradients and len(gradients[name].shape) == 2:
                gradients[name] = 0.5 * (gradients[name] + tf.transpose(gradients[name]))
        gradients = {k: tf.linalg.band_part(g, -1, 0) if k.endswith("sqrt") else g for k, g in gradients.items()}
        return result, gradients

    return run()


@pytest.mark.parametrize("whiten", [True, False], ids=["whitened", "unwhitened"])
@pytest.mark.parametrize("covariance", ["full", "prior"])
@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_gradient_equals_autodiff_of_the_direct_algorithm(branch, covariance, whiten, sizes, num_outputs, rng):
    if BRANCHES[branch][1] is None and covariance == "prior":
        pytest.skip("without orthogonal features there is no orthogonal covariance")
    if sizes == SIZES[1] and num_outputs == 1 and not whiten:
        pytest.skip("covered by three outputs")
    inputs = random_inputs(branch, *sizes, num_outputs, covariance, rng)
    shape = (sizes[2], num_outputs)
    weights = [rng.normal(size=shape), rng.normal(size=shape), 0.7]
    expected, expected_gradients = value_and_gradients(direct_moments, inputs, weights, whiten)
    result, gradients = value_and_gradients(moments, inputs, weights, whiten)
    # 1e-12 of the largest entry: rounding at condition numbers of about 1e3
    for got, wanted in zip(result, expected):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
    assert gradients.keys() == inputs.keys()
    for name, wanted in expected_gradients.items():
        np.testing.assert_allclose(gradients[name], wanted, rtol=0, atol=1e-12 * np.abs(wanted).max(), err_msg=name)


def traced_operations(branch, num_outputs, covariance="full", whiten=True):
    """Types of the operations in the graph of value and gradient, those inside the retries of Cholesky apart."""
    rng = np.random.default_rng(0)
    inputs = random_inputs(branch, 130, 132, 16, num_outputs, covariance, rng)
    upstream = Marginals(*(tf.constant(rng.normal(size=shape)) for shape in [(16, num_outputs)] * 2 + [()]))

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            tape.watch(list(inputs.values()))
            result = moments(*assemble(inputs), whiten=whiten)
        return result, tape.gradient(result, inputs, output_gradients=upstream)

    return [operation.type for operation in run.get_concrete_function().graph.get_operations()]


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize(
    "branch,covariance,count",
    [
        ("no orthogonal features", "full", 1),
        ("dense", "full", 2),
        ("dense", "prior", 2),
        ("harmonic base", "full", 1),
        ("harmonic base alone", "full", 0),
        ("disjoint harmonics", "full", 0),
        ("disjoint harmonics", "prior", 0),
    ],
)
def test_number_of_factorisations(branch, covariance, count, whiten):
    types = traced_operations(branch, 2, covariance, whiten)
    assert types.count("Cholesky") == count
    assert sum("Inverse" in t or "Svd" in t or "Eig" in t for t in types) == 0


def test_number_of_operations_does_not_depend_on_the_outputs():
    # TensorFlow turns constants into fills and captured inputs by their size; everything that computes is counted.
    passive = {"Const", "Fill", "Placeholder"}
    counts = [
        Counter(t for t in traced_operations("dense", num_outputs) if t not in passive) for num_outputs in (1, 2, 32)
    ]
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("branch", ["dense", "harmonic base"])
def test_compiles_with_xla(branch, rng):
    inputs = random_inputs(branch, 6, 5, 9, 2, "full", rng)

    def run():
        with tf.GradientTape() as tape:
            tape.watch(list(inputs.values()))
            result = moments(*assemble(inputs), whiten=True)
            loss = tf.add_n([tf.reduce_sum(value) for value in result])
        return loss, tape.gradient(loss, inputs)

    for got, expected in zip(tf.nest.flatten(tf.function(run, jit_compile=True)()), tf.nest.flatten(run())):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11)
