"""Functions drawn from a posterior: their moments are those of the posterior, and each is one and the same function."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from builders import KERNELS, PAIRS, assert_same, make_feature
from gpflow.inducing_variables import InducingPoints, SharedIndependentInducingVariables
from gpflow.kernels import LinearCoregionalization

from keras_odgp.covariances import Kuu, Kvu
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ArcCosine, Matern12, Matern52, SquaredExponential
from keras_odgp.numerics import float_context
from keras_odgp.orthogonal import OrthogonalPosterior
from keras_odgp.sampling import FunctionSamples
from keras_odgp.sampling.spectrum import NUM_LEVELS, split_levels
from keras_odgp.spherical import arc_cosine_coefficients, num_harmonics

NUM_SAMPLES, NUM_INPUTS = 20_000, 20
FEW = {"num_harmonics": 20, "num_waves": 8}  # so that much of the prior is random: moments are right all the same


def random_q(rng, size, num_outputs=1):
    root = np.tril(rng.normal(size=(num_outputs, size, size))) * 0.2 + 0.6 * np.eye(size)
    return rng.normal(size=(size, num_outputs)), root


def make_posterior(rng, kernel, base, orthogonal=None, num_outputs=1, **options):
    q = random_q(rng, base.shape[0], num_outputs)
    if orthogonal is None:
        return OrthogonalPosterior(kernel, base, *q, **options)
    mu, sqrt = random_q(rng, orthogonal.shape[0], num_outputs)
    sqrt = None if options.get("orthogonal_covariance") == "prior" else sqrt
    return OrthogonalPosterior(kernel, base, *q, orthogonal, mu, sqrt, **options)


def make_pair(pair, kernel, rng):
    """Features of every pair of kinds that are not degenerate, on two inputs."""
    if pair == ("harmonics", "harmonics"):
        return SphericalHarmonics(3, [0, 1]), SphericalHarmonics(3, [2, 4])
    if pair == ("harmonics", "activations"):
        return SphericalHarmonics(3, [0, 1]), ActivationFeatures(rng.normal(size=(4, 3)), "softplus", 6, slope=3.0)
    if pair == ("activations", "harmonics"):
        return ActivationFeatures(rng.normal(size=(3, 3)), "relu", 8), SphericalHarmonics(3, [1, 2])
    num_levels = 8  # activations reach levels that are sampled
    return tuple(make_feature(kind, kernel, 2, rng, num=n, num_levels=num_levels) for kind, n in zip(pair, (5, 4)))


def assert_moments(values, mean, covariance):
    """Draws `[S, N]` have this mean and covariance, within four standard errors (of normal draws)."""
    deviations = values - mean
    errors = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / len(values))
    assert (np.abs(deviations.mean(axis=0)) <= 4 * np.sqrt(np.diag(covariance) / len(values))).all()
    assert (np.abs(deviations.T @ deviations / len(values) - covariance) <= 4 * errors).all()


KERNELS_OF_PAIRS = ("arccos", "matern12", "matern52")


@pytest.mark.parametrize(("pair", "name"), [(p, KERNELS_OF_PAIRS[i % 3]) for i, p in enumerate(PAIRS)])
def test_mean_and_covariance_are_those_of_the_posterior(pair, name, rng):
    kernel = KERNELS[name](variance=0.8, weight_variances=[0.7, 1.3])
    posterior = make_posterior(rng, kernel, *make_pair(pair, kernel, rng))
    X = rng.normal(size=(NUM_INPUTS, 2))
    values = FunctionSamples(posterior, NUM_SAMPLES, 0, **FEW)(X).numpy()
    mean, covariance = posterior.fused_predict_f(X, full_cov=True)
    assert_moments(values[..., 0], mean[:, 0].numpy(), covariance[0].numpy())


def test_at_inducing_points_they_have_the_covariance_of_q(rng):
    kernel = Matern52()
    Z = rng.normal(size=(7, 2))
    base, orthogonal = InducingPoints(Z[:4]), InducingPoints(Z[4:])
    posterior = make_posterior(rng, kernel, base, orthogonal, whiten=False)
    values = FunctionSamples(posterior, NUM_SAMPLES, 1, **FEW)(Z).numpy()[..., 0]
    Q = np.linalg.solve(Kuu(base, kernel).numpy(), Kvu(orthogonal, base, kernel).numpy().T).T
    parts = [values[:, :4], values[:, 4:] - values[:, :4] @ Q.T]  # u and v'
    q = [part.numpy() for part in posterior.q]
    for part, mu, sqrt in zip(parts, q[::2], q[1::2]):
        assert_moments(part, mu[:, 0], sqrt[0] @ sqrt[0].T)
    cross = (parts[0] - q[0][:, 0]).T @ (parts[1] - q[2][:, 0]) / NUM_SAMPLES
    spread = [np.linalg.norm(sqrt[0], axis=1) for sqrt in q[1::2]]
    assert (np.abs(cross) < 4 * np.outer(*spread) / np.sqrt(NUM_SAMPLES)).all()


@pytest.mark.parametrize("case", ["svgp", "prior covariance", "columns and no radius", "one input", "many inputs"])
def test_moments_in_other_settings(case, rng):
    width = {"one input": 1, "many inputs": 12}.get(case, 3)
    options = {}
    if case == "columns and no radius":
        kernel = Matern12(lengthscale=0.3, weight_variances=[0.5, 2.0], radial_power=0, active_dims=[2, 0])
    else:
        kernel = {"svgp": SquaredExponential(lengthscale=0.4), "prior covariance": ArcCosine(0)}.get(case, Matern52())
    base, orthogonal = (make_feature("points", kernel, width, rng, num=n) for n in (4, 3))
    if case == "svgp":
        orthogonal = None
    if case == "prior covariance":
        options = {"orthogonal_covariance": "prior", "whiten": False}
    if case == "columns and no radius":
        base = ActivationFeatures(rng.normal(size=(4, 4)), "softplus")
    posterior = make_posterior(rng, kernel, base, orthogonal, **options)
    X = rng.normal(size=(8, width))
    values = FunctionSamples(posterior, NUM_SAMPLES, 2, **FEW)(X).numpy()
    mean, covariance = posterior.fused_predict_f(X, full_cov=True)
    assert_moments(values[..., 0], mean[:, 0].numpy(), covariance[0].numpy())


def test_outputs_are_mixed_from_latent_functions_with_kernels_of_their_own(rng):
    kernel = LinearCoregionalization([ArcCosine(), Matern52(variance=0.5)], W=rng.normal(size=(3, 2)))
    base, orthogonal = (SharedIndependentInducingVariables(InducingPoints(rng.normal(size=(n, 2)))) for n in (4, 3))
    q, orthogonal_q = random_q(rng, 4, 2), random_q(rng, 3, 2)
    posterior = OrthogonalPosterior(kernel, base, *q, orthogonal, *orthogonal_q)
    X = rng.normal(size=(4, 2))
    values = FunctionSamples(posterior, NUM_SAMPLES, 0, **FEW)(X).numpy()
    mean, covariance = posterior.fused_predict_f(X, full_cov=True, full_output_cov=True)
    flat = [values.reshape(NUM_SAMPLES, -1), mean.numpy().ravel(), covariance.numpy().reshape(12, 12)]
    assert_moments(*flat)


@pytest.mark.parametrize(
    "kernel", [gpflow.kernels.SquaredExponential, gpflow.kernels.Matern12, gpflow.kernels.Matern52]
)
def test_stationary_kernels_of_gpflow(kernel, rng):
    kernel = kernel(variance=0.7, lengthscales=[0.8, 1.5], active_dims=[0, 2])
    points = [InducingPoints(rng.normal(size=(n, 3))) for n in (4, 3)]
    num, num_outputs = 40, 250  # outputs share the frequencies, of which there are enough
    posterior = make_posterior(rng, kernel, *points, num_outputs=num_outputs)
    X = rng.normal(size=(6, 3))
    functions = FunctionSamples(posterior, num, 0)
    mean, covariance = posterior.fused_predict_f(X, full_cov=True)
    # Every output has its own q, so each is whitened by its own moments first.
    centred = functions(X).numpy() - mean.numpy()  # [S, N, P]
    roots = np.linalg.cholesky(covariance.numpy())
    white = np.linalg.solve(roots, np.transpose(centred, [2, 1, 0]))  # [P, N, S]
    assert_moments(np.transpose(white, [0, 2, 1]).reshape(-1, 6), np.zeros(6), np.eye(6))
    inputs = np.stack([X + index for index in range(num)])
    each = functions.each(inputs)
    np.testing.assert_allclose(each[3], functions(inputs[3])[3], rtol=1e-10, atol=1e-10)


def make_functions(rng, num=2, kernel=None, **options):
    kernel = kernel or Matern12(weight_variances=[0.5, 1.0])
    features = make_pair(("activations", "points"), kernel, rng)
    return FunctionSamples(make_posterior(rng, kernel, *features, num_outputs=2), num, 3, **options)


def test_a_function_is_the_same_at_every_call(rng):
    functions = make_functions(rng)
    X = rng.normal(size=(3, 4, 2))
    values = functions(X)
    assert values.shape == (2, 3, 4, 2)
    assert_same(functions(X), values)
    rows = [[functions(x) for x in part] for part in X]
    np.testing.assert_allclose(np.moveaxis(rows, 2, 0), values, rtol=1e-10, atol=1e-10)
    own = functions.each(X[:2])
    np.testing.assert_allclose(own, tf.stack([values[0, 0], values[1, 1]]), rtol=1e-10, atol=1e-10)
    # Drawn again: equal up to the order of sums, which threads may change.
    np.testing.assert_allclose(make_functions(np.random.default_rng(0))(X), values, rtol=1e-10, atol=1e-10)


def test_seeds_differ_and_functions_of_one_seed_differ(rng):
    kernel = ArcCosine()
    posterior = make_posterior(rng, kernel, *make_pair(("points", "points"), kernel, rng))
    X = rng.normal(size=(5, 2))
    draws = np.concatenate([FunctionSamples(posterior, 3, seed, **FEW)(X) for seed in (0, 1, 2**40)])[..., 0]
    distances = np.linalg.norm(draws[:, None] - draws[None, :], axis=-1)
    assert (distances[~np.eye(9, dtype=bool)] > 1e-3).all()


def test_a_function_keeps_the_parameters_it_was_drawn_with(rng):
    kernel = ArcCosine()
    posterior = make_posterior(rng, kernel, *make_pair(("points", "points"), kernel, rng))
    X = rng.normal(size=(5, 2))
    functions = FunctionSamples(posterior, 1, 0, **FEW)
    kernel.variance.assign(3.0)
    before = functions(X)
    kernel.variance.assign(5.0)
    assert_same(functions(X), before)


def test_evaluation_factorises_nothing(rng):
    functions = make_functions(rng)
    traced = tf.function(functions).get_concrete_function(tf.TensorSpec([None, 2], tf.float64))
    operations = {node.op for node in traced.graph.as_graph_def().node}
    assert "MatMul" in operations or "BatchMatMulV2" in operations
    assert not operations & {"Cholesky", "MatrixTriangularSolve", "MatrixInverse", "MatrixSolve"}


def test_gradient_agrees_with_finite_differences(rng):
    functions = make_functions(rng, kernel=Matern52(lengthscale=0.5), **FEW)
    X, step = tf.constant(rng.normal(size=(3, 2))), 1e-5
    with tf.GradientTape() as tape:
        tape.watch(X)
        total = tf.reduce_sum(functions(X))
    gradient = tape.gradient(total, X).numpy()
    for row, column in np.ndindex(3, 2):
        shift = np.zeros((3, 2))
        shift[row, column] = step
        difference = tf.reduce_sum(functions(X + shift) - functions(X - shift)) / (2 * step)
        # Differences are good to step^2 times the third derivative, which high levels make large.
        np.testing.assert_allclose(gradient[row, column], difference, rtol=1e-4, atol=1e-5)


def test_float32_agrees_with_float64(rng):
    def functions(dtype):
        with float_context(dtype):
            kernel = Matern52()
            own = np.random.default_rng(0)
            q = [array.astype(dtype) for size in (5, 4) for array in random_q(own, size)]
            features = [make_feature(kind, kernel, 2, own, num=n) for kind, n in (("activations", 5), ("points", 4))]
            return FunctionSamples(OrthogonalPosterior(kernel, features[0], *q[:2], features[1], *q[2:]), 2, 0)

    X = rng.normal(size=(6, 2))
    single, double = functions("float32")(X), functions("float64")(X)
    assert single.dtype == tf.float32
    # The relative jitter of float32, 1e-5, which conditions the features, is the larger part of the difference.
    np.testing.assert_allclose(single, double, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("order", [0, 1])
def test_the_law_of_the_levels_goes_on_above_those_computed(order):
    """Against the closed form, far beyond."""
    dimension, far = 3, 4000
    exact, tail = split_levels(ArcCosine(order), dimension, 100)
    assert sum(num_harmonics(dimension, level) for level in exact) <= 100
    shares = arc_cosine_coefficients(order, far, dimension) * [num_harmonics(dimension, n) for n in range(far)]
    uniform = tf.constant((np.arange(10**6) + 0.5) / 10**6)
    levels = tail.quantile(uniform).numpy().astype(int)
    assert set(levels % 2) == ({1} if order == 0 else {0})  # the parity of the kernel
    assert not set(levels) & set(exact)
    np.testing.assert_allclose(tail.share, 1.0 - shares[list(exact)].sum(), rtol=1e-8)
    for level in (exact[-1] + 2, 40, NUM_LEVELS, 1000):
        expected = shares[level:].sum() + (shares[far // 2 :].sum() if order == 0 else 0.0)  # the rest, like 1 / level
        np.testing.assert_allclose(tail.share * (levels >= level).mean(), expected, rtol=0.03, atol=2e-6)


def test_errors_say_what_to_do(rng):
    points = [InducingPoints(rng.normal(size=(n, 2))) for n in (4, 3)]
    posterior = make_posterior(rng, gpflow.kernels.Linear(), *points)
    with pytest.raises(TypeError, match="need a zonal kernel.*SquaredExponential.*Got gpflow.*Linear"):
        FunctionSamples(posterior, 1, 0)
    for change in ({"num": 0}, {"seed": -1}, {"num_waves": 0}):
        with pytest.raises(ValueError, match=f"Expected `{next(iter(change))}` to be an integer"):
            FunctionSamples(posterior, **{"num": 1, "seed": 0, **change})
