import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same, unit_vectors

from keras_odgp.spherical import num_harmonics, spherical_harmonics, zonal_polynomials


@pytest.mark.parametrize("dimension,num_levels", [(2, 12), (3, 8), (4, 7), (9, 5), (26, 3)])
def test_addition_theorem(dimension, num_levels, rng):
    """Identity 1; it also proves orthonormality, because Z_l is the reproducing kernel of the level."""
    x = unit_vectors(rng, (20, dimension))
    polynomials = zonal_polynomials(tf.constant(x @ x.T), num_levels, dimension).numpy()
    for level in range(num_levels):
        harmonics = spherical_harmonics(tf.constant(x), [level]).numpy()
        count = num_harmonics(dimension, level)
        assert harmonics.shape == (count, 20)
        np.testing.assert_allclose(harmonics.T @ harmonics, count * polynomials[level], atol=1e-13 * count)


def test_orthonormal_under_the_normalised_measure():
    """On the sphere in R^3, with an exact product rule of Gauss-Legendre and equispaced nodes."""
    z, weights = np.polynomial.legendre.leggauss(12)
    angles = np.arange(24) * 2 * np.pi / 24
    rho = np.sqrt(1 - z**2)
    x = np.stack(
        [np.outer(rho, np.cos(angles)), np.outer(rho, np.sin(angles)), np.outer(z, np.ones(24))], axis=-1
    ).reshape(-1, 3)
    w = np.repeat(weights / 2, 24) / 24
    harmonics = spherical_harmonics(tf.constant(x), 6).numpy()
    np.testing.assert_allclose(harmonics * w @ harmonics.T, np.eye(36), atol=1e-13)


def test_chosen_levels_are_rows_of_all_levels(rng):
    for dimension in (2, 3, 5):
        x = tf.constant(unit_vectors(rng, (2, 4, dimension)))
        every = spherical_harmonics(x, 5).numpy()
        level = np.repeat(range(5), [num_harmonics(dimension, level) for level in range(5)])
        chosen = spherical_harmonics(x, [4, 1]).numpy()
        assert_same(chosen, every[np.isin(level, [1, 4])])


def test_gradient_is_finite_at_the_poles():
    x = tf.constant([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, -1.0], [1.0, 0.0, 0.0, 0.0]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_sum(spherical_harmonics(x, 6) ** 2)
    assert np.isfinite(tape.gradient(value, x)).all()


@pytest.mark.parametrize("levels", [0, [], [1, 1], [-1, 2]])
def test_bad_levels_are_refused(levels):
    with pytest.raises(ValueError, match="Expected `levels` to be a positive number"):
        spherical_harmonics(tf.ones((1, 3)), levels)
