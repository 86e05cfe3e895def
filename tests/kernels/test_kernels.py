import gpflow
import mpmath as mp
import numpy as np
import pytest
import tensorflow as tf
from builders import KERNELS, unit_vectors
from hypothesis import given
from hypothesis import strategies as st

from keras_odgp.kernels import ArcCosine, Matern52, SquaredExponential
from keras_odgp.spherical import num_harmonics, zonal_series


def all_kernels(**kwargs):
    return [make(**kwargs) for make in KERNELS.values()] + [ArcCosine(order=0, **kwargs), ArcCosine(order=2, **kwargs)]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("num_inputs", [1, 3, 8])
@pytest.mark.parametrize("ard", [False, True])
def test_arc_cosine_equals_gpflow(order, num_inputs, ard, rng):
    weights = rng.uniform(0.3, 2.0, size=num_inputs) if ard else 1.7
    arguments = dict(order=order, variance=1.3, weight_variances=weights, bias_variance=0.7)
    ours, theirs = ArcCosine(**arguments), gpflow.kernels.ArcCosine(**arguments)
    X, X2 = rng.normal(size=(2, 20, num_inputs)), rng.normal(size=(3, 5, num_inputs))
    # the diagonal of order 0 is left out: GPflow's jitter shows there
    off_diagonal = 1.0 - np.eye(20) if order == 0 else np.ones((20, 20))
    np.testing.assert_allclose(ours(X) * off_diagonal, theirs(X) * off_diagonal, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours(X, X2), theirs(X, X2), rtol=1e-10)
    np.testing.assert_allclose(ours(X2, full_cov=False), theirs(X2, full_cov=False), rtol=1e-10)


@pytest.mark.parametrize("kernel", all_kernels(), ids=lambda k: f"{k.name}{getattr(k, 'order', '')}")
def test_batch_shapes_and_active_dims_are_those_of_gpflow(kernel, rng):
    X, X2 = rng.normal(size=(2, 3, 6, 4)), rng.normal(size=(5, 7, 4))
    full, cross, diagonal = kernel(X), kernel(X, X2), kernel(X, full_cov=False)
    assert full.shape == (2, 3, 6, 6) and cross.shape == (2, 3, 6, 5, 7) and diagonal.shape == (2, 3, 6)
    np.testing.assert_allclose(tf.linalg.diag_part(full), diagonal, rtol=1e-14)
    np.testing.assert_allclose(cross[1, 2, :, 4, :], kernel(X[1, 2], X2[4]), rtol=1e-13)
    sliced = type(kernel)(active_dims=[0, 2])
    np.testing.assert_allclose(sliced(X[0, 0]), type(kernel)()(X[0, 0][:, [0, 2]]), rtol=1e-14)


@pytest.mark.parametrize("kernel", all_kernels(), ids=lambda k: f"{k.name}{getattr(k, 'order', '')}")
@pytest.mark.parametrize("dimension", [2, 3, 9])
def test_mercer_series_within_the_truncation_bound(kernel, dimension):
    """Identities 5 and 6: partial sums of lambda J approach kappa(1) from below, and their gap bounds the error
    everywhere.
    """
    if isinstance(kernel, SquaredExponential):
        kernel = SquaredExponential(lengthscale=0.5)
    num_levels = 30
    coefficients = kernel.fourier_coefficients(num_levels, dimension).numpy()
    counts = np.array([num_harmonics(dimension, level) for level in range(num_levels)], dtype=float)
    sums = np.cumsum(coefficients * counts)
    assert (np.diff(sums) >= 0).all() and sums[-1] <= kernel.shape_at_one * (1 + 1e-12)
    t = np.linspace(-1, 1, 101)
    series = zonal_series(tf.constant(t), coefficients, levels=range(num_levels), dimension=dimension)
    exact = kernel.shape_function(t)
    bound = kernel.shape_at_one - sums[-1] + 1e-12
    assert np.abs(series - exact).max() <= bound
    even = (coefficients * counts)[::2].sum()
    assert even <= 0.5 * (exact[-1] + exact[0]) + 1e-12


def test_long_series_exhaust_the_variance():
    for kernel, tolerance in ((ArcCosine(), 1e-4), (Matern52(), 1e-6), (SquaredExponential(), 1e-13)):
        coefficients = kernel.fourier_coefficients(60, 3).numpy()
        counts = np.array([num_harmonics(3, level) for level in range(60)], dtype=float)
        assert coefficients @ counts == pytest.approx(1.0, abs=tolerance)
        even = (coefficients * counts)[::2].sum()
        assert even == pytest.approx(float(0.5 * (1 + kernel.shape_function(-1.0))), abs=tolerance)


@given(lengthscale=st.floats(0.1, 10), dimension=st.integers(2, 20))
def test_matern_and_squared_exponential_have_every_level(lengthscale, dimension):
    for name in ("matern12", "matern32", "matern52", "squared_exponential"):
        kernel = KERNELS[name](lengthscale=lengthscale)
        assert kernel.active_levels(12) == tuple(range(12))
        assert (kernel.fourier_coefficients(12, dimension) > 0).numpy().all()


@pytest.mark.parametrize("nu,name", [(0.5, "matern12"), (1.5, "matern32"), (2.5, "matern52")])
def test_matern_at_large_lengthscales(nu, name):
    """Identity 6: above nu, coefficients fall like rho^(-2 nu)."""
    first, second = (KERNELS[name](lengthscale=rho).fourier_coefficients(8, 4).numpy() for rho in (1e4, 2e4))
    np.testing.assert_allclose(first[4:] / second[4:], 2 ** (2 * nu), rtol=1e-3)


def test_arc_cosine_levels():
    assert ArcCosine(order=0).active_levels(8) == (0, 1, 3, 5, 7)
    assert ArcCosine(order=1).active_levels(8) == (0, 1, 2, 4, 6)
    assert ArcCosine(order=2).active_levels(8) == (0, 1, 2, 3, 5, 7)
    coefficients = ArcCosine().fourier_coefficients(8, 5).numpy()
    assert not coefficients[[3, 5, 7]].any() and coefficients[[0, 1, 2, 4, 6]].all()


@pytest.mark.parametrize("name", KERNELS)
def test_float32_coefficients(name):
    """Asked for: 1e-5; they are computed in float64 and rounded once."""
    for lengthscale in (0.1, 1.0, 10.0):
        arguments = {} if name == "arccos" else {"lengthscale": lengthscale}
        exact = KERNELS[name](**arguments).fourier_coefficients(12, 9).numpy()
        with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
            kernel = KERNELS[name](**arguments)
            got = kernel.fourier_coefficients(12, 9).numpy()
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("kernel", all_kernels(), ids=lambda k: f"{k.name}{getattr(k, 'order', '')}")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_shape_function_and_gradient_are_finite_on_the_closed_interval(kernel, dtype):
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        kernel = (
            gpflow.utilities.deepcopy(kernel)
            if dtype == np.float64
            else type(kernel)(**({"order": kernel.order} if hasattr(kernel, "order") else {}))
        )
        beyond = np.array(
            [-1.0, 1.0, np.nextafter(dtype(1), dtype(2)), np.nextafter(dtype(-1), dtype(-2)), 0.3], dtype=dtype
        )
        t = tf.constant(beyond)
        with tf.GradientTape() as tape:
            tape.watch(t)
            value = kernel.shape_function(t)
        gradients = tape.gradient(value, [t, *kernel.trainable_variables])
    assert np.isfinite(value).all()
    assert all(np.isfinite(g).all() for g in gradients if g is not None)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_at_coincident_points(name, rng):
    kernel = KERNELS[name]()
    X = tf.constant(np.repeat(rng.normal(size=(3, 2)), 3, axis=0))
    for function in (lambda: kernel(X), lambda: kernel(X, tf.identity(X)), lambda: kernel(X, full_cov=False)):
        with tf.GradientTape() as tape:
            tape.watch(X)
            value = function()
        gradients = tape.gradient(value, [X, *kernel.trainable_variables])
        assert np.isfinite(value).all() and all(np.isfinite(g).all() for g in gradients if g is not None)
        assert np.abs(gradients[0]).max() < 1e3  # a rounding error of t must not be blown up


@pytest.mark.parametrize("kernel", all_kernels(), ids=lambda k: f"{k.name}{getattr(k, 'order', '')}")
def test_gradients_agree_with_finite_differences(kernel, rng):
    X, X2 = tf.constant(rng.normal(size=(4, 3))), tf.constant(rng.normal(size=(5, 3)))
    upstream = tf.constant(rng.normal(size=(4, 5)))
    step = 1e-6
    for x in [X, *kernel.trainable_variables]:

        def loss(value, x=x):
            if x is X:
                return tf.reduce_sum(upstream * kernel(value, X2))
            before = tf.identity(x)
            x.assign(value)
            result = tf.reduce_sum(upstream * kernel(X, X2))
            x.assign(before)
            return result

        with tf.GradientTape() as tape:
            tape.watch(X)
            value = tf.reduce_sum(upstream * kernel(X, X2))
        direction = tf.constant(rng.normal(size=x.shape))
        analytic = tf.reduce_sum(tape.gradient(value, x, unconnected_gradients="zero") * direction)
        numeric = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
        # rounding 1e-15 / step and third derivatives times step^2
        np.testing.assert_allclose(analytic, numeric, rtol=1e-6, atol=1e-7)


def test_radial_power_zero_sees_directions_only(rng):
    kernel = Matern52(radial_power=0, variance=2.0)
    X = rng.normal(size=(4, 2))
    np.testing.assert_allclose(kernel(X, full_cov=False), 2.0)
    assert ArcCosine().radial_power == 1 and ArcCosine(order=2).radial_power == 2
    assert ArcCosine(order=2, radial_power=0).radial_power == 0


@pytest.mark.parametrize("name", KERNELS)
def test_work_in_gpflow_models(name, rng):
    X = rng.normal(size=(30, 2))
    Y = np.sin(X[:, :1]) + 0.1 * rng.normal(size=(30, 1))
    exact = gpflow.models.GPR((X, Y), KERNELS[name](), noise_variance=0.1)
    sparse = gpflow.models.SGPR((X, Y), KERNELS[name](), X.copy(), noise_variance=0.1)
    # every datum an inducing point: the bound is the likelihood up to GPflow's jitter of 1e-6
    np.testing.assert_allclose(sparse.elbo(), exact.log_marginal_likelihood(), atol=2e-3)
    before = float(exact.training_loss())
    gpflow.optimizers.Scipy().minimize(exact.training_loss, exact.trainable_variables, options={"maxiter": 10})
    assert float(exact.training_loss()) < before
    variational = gpflow.models.SVGP(KERNELS[name](), gpflow.likelihoods.Gaussian(), X[:8])
    assert np.isfinite(variational.elbo((X, Y)))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="0, 1 or 2. Got: 3"):
        ArcCosine(order=3)
    with pytest.raises(ValueError, match="Expected `radial_power`.*Got: -1"):
        Matern52(radial_power=-1)
    with pytest.raises(ValueError, match=r"Expected a scalar `lengthscale`.*shape \(2,\)"):
        Matern52(lengthscale=[1.0, 2.0])
    for name, value in (
        ("variance", [1.0, 2.0]),
        ("bias_variance", 0.0),
        ("weight_variances", np.ones((2, 2))),
        ("lengthscale", -1.0),
    ):
        with pytest.raises(ValueError, match=f"Expected `{name}` to be a positive scalar"):
            Matern52(**{name: value})
    with pytest.raises(ValueError, match="Got: 1.0"):
        ArcCosine(order=1.0)
    with pytest.raises(ValueError, match="Expected `dimension` to be an integer of at least 2"):
        Matern52().fourier_coefficients(4, 1)
    with pytest.raises(ValueError, match="Expected `num_levels`"):
        Matern52().active_levels(0)


def test_shape_function_does_not_see_rotations(rng):
    """A zonal kernel is invariant when inputs and bias rotate together; for equal weights, when the inputs rotate."""
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    X = unit_vectors(rng, (6, 3))
    for kernel in all_kernels():
        np.testing.assert_allclose(kernel(X), kernel(X @ rotation), atol=1e-13)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine_keeps_its_digits_next_to_the_poles(order):
    steps = np.logspace(-16, -1, 31)
    t = np.concatenate([[-1.0, 0.0, 1.0], -1.0 + steps, 1.0 - steps, np.linspace(-0.9, 0.9, 19)])

    def exact(cosine):
        with mp.workdps(40):
            cosine = mp.mpf(float(cosine))
            rest, sine = mp.pi - mp.acos(cosine), mp.sqrt(1 - cosine**2)
            value = [rest, sine + rest * cosine, 3 * sine * cosine + rest * (1 + 2 * cosine**2)][order]
            return float(value / mp.pi)

    # A few roundings of values up to 1, for order 2 up to 3.
    np.testing.assert_allclose(ArcCosine(order).shape_function(t), [exact(c) for c in t], rtol=0, atol=2e-15)
