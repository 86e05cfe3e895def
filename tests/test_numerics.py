import contextlib
import threading

import gpflow
import numpy as np
import pytest
import tensorflow as tf

from keras_odgp import numerics
from keras_odgp.orthogonal.solves import solve


def random_covariance(rng, size, rank=None):
    root = rng.normal(size=(size, rank or 2 * size))
    return root @ root.T


def test_jitter_scope_overrides_and_restores():
    assert numerics.relative_jitter(tf.float64) == 1e-8 and numerics.relative_jitter(tf.float32) == 1e-5
    with numerics.jitter_scope(0.0):
        assert numerics.relative_jitter(tf.float64) == 0.0
        with numerics.jitter_scope(1e-3):
            assert numerics.relative_jitter(tf.float32) == 1e-3
        assert numerics.relative_jitter(tf.float64) == 0.0
    assert numerics.relative_jitter(tf.float64) == 1e-8
    with pytest.raises(ValueError, match="relative jitter in"):
        with numerics.jitter_scope(-1.0):
            pass


def test_jitter_is_relative_to_each_diagonal_entry(rng):
    K = random_covariance(rng, 5)
    scale = np.array([1e-4, 1.0, 1e4, 2.0, 3.0])
    with numerics.jitter_scope(1e-3):
        plain = numerics.add_jitter(tf.constant(K)).numpy()
        scaled = numerics.add_jitter(tf.constant(K * np.outer(scale, scale))).numpy()
    np.testing.assert_allclose(plain, K + 1e-3 * np.diag(np.diag(K)), rtol=1e-14)
    np.testing.assert_allclose(scaled, plain * np.outer(scale, scale), rtol=1e-13)


@pytest.mark.parametrize("jit", [False, True])
def test_cholesky_and_its_gradient_equal_tensorflows(jit, rng):
    K = tf.constant(np.stack([random_covariance(rng, 6), random_covariance(rng, 6)]))
    upstream = tf.constant(rng.normal(size=(2, 6, 6)))

    def value_and_gradient(function):
        @tf.function(jit_compile=jit)
        def run(K):
            with tf.GradientTape() as tape:
                tape.watch(K)
                L = function(K)
            return L, tape.gradient(L, K, output_gradients=upstream)

        return run(K)

    for got, expected in zip(value_and_gradient(numerics.cholesky), value_and_gradient(tf.linalg.cholesky)):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("jit", [False, True])
def test_cholesky_raises_the_jitter_until_it_succeeds(jit, rng):
    K = random_covariance(rng, 8, rank=3) - 1e-6 * np.eye(8)  # indefinite by a little
    assert np.isnan(tf.linalg.cholesky(K)).any()
    L = tf.function(numerics.cholesky, jit_compile=jit)(tf.constant(K)).numpy()
    assert np.isfinite(np.diag(L)).all()
    # Raised tenfold at a time, so no more than ten times of what it needs.
    np.testing.assert_allclose(np.tril(L) @ np.tril(L).T, K, atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_hopeless_matrices_are_named(compiled):
    def function(K):
        return numerics.cholesky(K, name="Kuu of layer hidden")

    run = tf.function(function) if compiled else function
    for bad in (np.full((3, 3), np.nan), -np.eye(3)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Kuu of layer hidden failed.*Look for NaN"):
            run(tf.constant(bad))


def test_variance_floor():
    variance = tf.constant([-1e-12, 0.0, 0.5], tf.float64)
    assert (numerics.floor_variance(variance) > 0).numpy().all()
    assert numerics.floor_variance(variance)[2] == 0.5
    assert numerics.floor_variance(tf.constant([-1.0], tf.float32)).dtype == tf.float32


def test_float_context_changes_the_dtype_and_nothing_else():
    custom = gpflow.config.Config(jitter=1e-3, positive_bijector="exp")
    with gpflow.config.as_context(custom):
        with numerics.float_context("float32"):
            assert gpflow.config.default_float() == np.float32
            assert gpflow.config.default_jitter() == 1e-3 and gpflow.config.default_positive_bijector() == "exp"
            assert gpflow.Parameter(1.0).dtype == tf.float32
    assert gpflow.config.default_float() == np.float64


@pytest.mark.parametrize("compiled", [False, True])
def test_second_derivatives_of_the_factor_and_of_solves(compiled, rng):
    root = tf.constant(rng.normal(size=(4, 4)))
    side = tf.constant(rng.normal(size=(4, 3)))
    weights = tf.constant(rng.normal(size=(4, 7)))

    def hessian_product(factorise_and_solve):
        def run(root):
            with tf.GradientTape() as outer:
                outer.watch(root)
                with tf.GradientTape() as inner:
                    inner.watch(root)
                    K = tf.matmul(root, root, transpose_b=True) + tf.eye(4, dtype=root.dtype)
                    value = tf.reduce_sum(weights * tf.concat(factorise_and_solve(K), axis=-1) ** 2)
                first = inner.gradient(value, root)
                total = tf.reduce_sum(first * weights[:, :4])
            return outer.gradient(total, root)

        return (tf.function(run) if compiled else run)(root)

    def plain(K):
        L = tf.linalg.cholesky(K)
        return L, tf.linalg.triangular_solve(L, side)

    ours = hessian_product(lambda K: (numerics.cholesky(K), solve(K, [side])[0]))
    np.testing.assert_allclose(ours, hessian_product(plain), rtol=1e-10, atol=1e-10)  # rounding


def test_float_contexts_of_threads_do_not_mix():
    entered, seen = threading.Barrier(2, timeout=1.0), []

    def work(dtype):
        with numerics.float_context(dtype):
            with contextlib.suppress(threading.BrokenBarrierError):
                entered.wait()  # in vain if the other thread cannot be inside, too
            seen.append(gpflow.config.default_float() == np.dtype(dtype).type)

    threads = [threading.Thread(target=work, args=(dtype,)) for dtype in ("float32", "float64")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True, True]
    assert gpflow.config.default_float() is np.float64
