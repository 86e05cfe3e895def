import gpflow
import numpy as np
import pytest
import tensorflow as tf
from builders import FEATURES, KERNELS, PAIRS, assert_same, make_feature
from gpflow.inducing_variables import InducingPoints
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_odgp.covariances import DiagonalCovariance, Kuf, Kuu, Kvu, shared_levels
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ArcCosine, Matern52, SquaredExponential
from keras_odgp.spherical import get_activation, num_harmonics, register_activation, zonal_series

register_activation("even_for_test", np.cos, parity="even")


def joint_covariance(kernel, X, u, v):
    """Covariance of (f, u, v), scaled to a unit diagonal."""
    Kuf_, Kvf_ = Kuf(u, kernel, X).numpy(), Kuf(v, kernel, X).numpy()
    Kvu_ = Kvu(v, u, kernel).numpy()
    joint = np.block(
        [
            [kernel(X).numpy(), Kuf_.T, Kvf_.T],
            [Kuf_, np.asarray(Kuu(u, kernel)), Kvu_.T],
            [Kvf_, Kvu_, np.asarray(Kuu(v, kernel))],
        ]
    )
    scale = 1 / np.sqrt(np.diag(joint))
    return joint * scale * scale[:, None]


def smallest_eigenvalue(matrix):
    return np.linalg.eigvalsh(matrix).min()


ACTIVATIONS = st.sampled_from(["relu", "softplus", "gelu", "swish", "tanh", "erf"])


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("kernel_name", [*sorted(KERNELS), "arccos0", "arccos2"])
@settings(max_examples=1)
@given(
    radial_power=st.sampled_from([0, 1]), activations=st.tuples(ACTIVATIONS, ACTIVATIONS), seed=st.integers(0, 10_000)
)
@pytest.mark.filterwarnings("ignore:.*span a space of dimension")
def test_joint_covariance_is_positive_semidefinite_in_every_dimension(
    kernel_name, pair, radial_power, activations, seed
):
    """Identity 8, for all nine pairs, all kernels and five numbers of inputs, the rest drawn."""
    for num_inputs in (1, 2, 3, 8, 25):
        check_positive_semidefinite(kernel_name, pair, num_inputs, radial_power, activations, seed)


@given(
    kernel_name=st.sampled_from([*sorted(KERNELS), "arccos0", "arccos2"]),
    pair=st.sampled_from(PAIRS),
    num_inputs=st.integers(1, 12),
    radial_power=st.sampled_from([0, 1, 2]),
    activations=st.tuples(ACTIVATIONS, ACTIVATIONS),
    seed=st.integers(0, 10_000),
)
@pytest.mark.filterwarnings("ignore:.*span a space of dimension")
def test_joint_covariance_is_positive_semidefinite(kernel_name, pair, num_inputs, radial_power, activations, seed):
    check_positive_semidefinite(kernel_name, pair, num_inputs, radial_power, activations, seed)


def check_positive_semidefinite(kernel_name, pair, num_inputs, radial_power, activations, seed):
    rng = np.random.default_rng(seed)
    own = (
        {"order": int(kernel_name[6:] or 1)}
        if kernel_name.startswith("arccos")
        else {"lengthscale": rng.uniform(0.3, 3.0)}
    )
    kernel = KERNELS["arccos" if kernel_name.startswith("arccos") else kernel_name](
        variance=rng.uniform(0.1, 10),
        weight_variances=rng.uniform(0.2, 3, size=num_inputs),
        bias_variance=rng.uniform(0.2, 3),
        radial_power=radial_power,
        **own,
    )
    u, v = (
        make_feature(kind, kernel, num_inputs, rng, activation=activation)
        for kind, activation in zip(pair, activations)
    )
    joint = joint_covariance(kernel, rng.normal(size=(12, num_inputs)), u, v)
    # rounding: entries of size one, up to 500 rows; a cusp at t = 1 magnifies the rounding of a cosine to its square
    # root
    cusp = kernel_name in ("matern12", "arccos0")
    assert np.abs(joint - joint.T).max() < 1e-12
    assert smallest_eigenvalue(joint) > (-1e-7 if cusp else -1e-10)


def test_exact_activation_or_missing_norms_break_it():
    """Identity 8, second half: the covariance stops being one with the exact activation, or without the norms of the
    weights.
    """
    angles = np.arange(7) * 2 * np.pi / 7
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    kernel = ArcCosine()
    X = np.linspace(-3, 3, 50)[:, None]

    def smallest_residual(Kuf_, Kuu_):
        k = kernel(X, full_cov=False).numpy()
        return ((k - np.einsum("mn,mn->n", Kuf_, np.linalg.solve(Kuu_, Kuf_))) / k).min()

    units = ActivationFeatures(directions, "relu", 6)
    Kuu_ = Kuu(units, kernel).numpy()
    assert smallest_residual(Kuf(units, kernel, X).numpy(), Kuu_) > 0
    inputs, radial = kernel.project(tf.constant(X))
    exact = np.maximum(directions @ inputs.numpy().T, 0) * radial.numpy()
    assert smallest_residual(exact, Kuu_) < -0.01
    long_units = ActivationFeatures(3 * directions, "relu", 6)
    assert smallest_residual(Kuf(long_units, kernel, X).numpy(), Kuu(long_units, kernel).numpy()) > 0
    assert smallest_residual(Kuf(long_units, kernel, X).numpy(), Kuu_) < 0


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("kind", FEATURES)
def test_reproducing_property_and_symmetry(name, kind, rng):
    """Identity 7: the covariance with a point is the feature there; the table is symmetric."""
    kernel = KERNELS[name](weight_variances=rng.uniform(0.5, 2, size=2))
    feature = make_feature(kind, kernel, 2, rng)
    W = rng.normal(size=(4, 2))
    values = Kuf(feature, kernel, W)
    np.testing.assert_allclose(Kvu(feature, InducingPoints(W), kernel), values, rtol=1e-12, atol=1e-13)
    # Parseval: an inner product of functions whose levels the harmonics have is the sum over harmonics.
    if kind == "activations":
        other = ActivationFeatures(rng.normal(size=(4, 3)), "relu", 4)
        harmonics = SphericalHarmonics(3, kernel.active_levels(5))
        through = (Kvu(feature, harmonics, kernel) / Kuu(harmonics, kernel).diag) @ tf.transpose(
            Kvu(other, harmonics, kernel)
        )
        np.testing.assert_allclose(Kvu(feature, other, kernel), through, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(Kvu(InducingPoints(W), feature, kernel), tf.transpose(values), rtol=1e-12, atol=1e-13)
    for other_kind in FEATURES:
        other = make_feature(other_kind, kernel, 2, rng)
        np.testing.assert_allclose(
            Kvu(feature, other, kernel), tf.transpose(Kvu(other, feature, kernel)), rtol=1e-12, atol=1e-13
        )
    # Only Kuu knows that its diagonal has t = 1 exactly: the cusp of Matérn-1/2 magnifies a rounding error to its
    # square root.
    rtol = 1e-7 if name == "matern12" else 1e-12
    np.testing.assert_allclose(Kvu(feature, feature, kernel), np.asarray(Kuu(feature, kernel)), rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("kind", ["harmonics", "activations"])
def test_scaling_of_the_variance(kind, rng):
    """Identity 9."""
    small, large = Matern52(variance=1.0), Matern52(variance=5.0)
    feature, X = make_feature(kind, small, 3, rng), rng.normal(size=(4, 3))
    assert_same(Kuf(feature, small, X), Kuf(feature, large, X))
    np.testing.assert_allclose(np.asarray(Kuu(feature, small)), 5 * np.asarray(Kuu(feature, large)), rtol=1e-14)


@pytest.mark.filterwarnings("ignore:.*span a space of dimension")
@pytest.mark.parametrize("num_inputs,num_levels,rank", [(1, 6, 7), (2, 5, 18), (4, 4, 20)])
def test_rank_of_activations(num_inputs, num_levels, rank, rng):
    """Identity 10, with ReLU and arc-cosine, where all levels weigh the same."""
    kernel = ArcCosine()

    def units(num):
        return ActivationFeatures(rng.normal(size=(num, num_inputs + 1)), "relu", num_levels)

    for M, K in ((rank - 3, 2), (rank - 3, 6), (rank, 2), (rank + 4, 3)):
        u, v = units(M), units(K)
        Kuu_ = Kuu(u, kernel).numpy()
        Kuu_scaled = Kuu_ / np.sqrt(np.outer(np.diag(Kuu_), np.diag(Kuu_)))
        assert np.linalg.matrix_rank(Kuu_scaled, tol=1e-9) == min(M, rank)
        Kvu_ = Kvu(v, u, kernel).numpy()
        Svv = Kuu(v, kernel).numpy() - Kvu_ @ np.linalg.pinv(Kuu_, rcond=1e-11) @ Kvu_.T
        assert np.linalg.matrix_rank(Svv, tol=1e-7 * np.abs(Kuu_).max()) == min(K, max(rank - M, 0))


def test_harmonics_with_harmonics(rng):
    """Identity 11."""
    kernel = Matern52(variance=0.3)
    base = SphericalHarmonics(4, [0, 1, 2])
    same = Kvu(SphericalHarmonics(4, [0, 1, 2]), base, kernel).numpy()
    assert_same(same, np.asarray(Kuu(base, kernel)))
    disjoint = SphericalHarmonics(4, [3, 4])
    assert not Kvu(disjoint, base, kernel).numpy().any() and shared_levels(disjoint, base, kernel) == ()
    partly = Kvu(SphericalHarmonics(4, [2, 3]), base, kernel).numpy()
    assert partly.shape == (9 + 16, 14) and np.count_nonzero(partly) == 9


def test_harmonic_base_truncates(rng):
    """Identity 12: Q_vf is the kernel, or the activation, truncated to the levels of the base."""
    kernel, D, L = Matern52(variance=1.7, weight_variances=[0.5, 2.0, 1.0]), 3, 4
    base = SphericalHarmonics(D + 1, L)
    X = rng.normal(size=(6, D))
    inputs, radial = kernel.project(tf.constant(X))

    def Qvf(v):
        return (Kvu(v, base, kernel) / Kuu(base, kernel).diag) @ Kuf(base, kernel, X)

    Z = rng.normal(size=(5, D))
    points, radial_z = kernel.project(tf.constant(Z))
    cosines = tf.matmul(points, inputs, transpose_b=True)
    truncated = zonal_series(cosines, kernel.fourier_coefficients(L, D + 1).numpy(), levels=range(L), dimension=D + 1)
    np.testing.assert_allclose(
        Qvf(InducingPoints(Z)), kernel.variance * radial_z[:, None] * radial * truncated, rtol=1e-11
    )
    units = ActivationFeatures(rng.normal(size=(5, D + 1)), "softplus", 8)
    directions, norms = units.project(kernel)
    levels = shared_levels(units, base, kernel)
    assert levels == (0, 1, 2)
    cosines = tf.matmul(directions, inputs, transpose_b=True)
    truncated = zonal_series(cosines, units.coefficients(levels, D + 1), levels=levels, dimension=D + 1)
    np.testing.assert_allclose(Qvf(units), norms[:, None] * radial * truncated, rtol=1e-11)


def test_diagonal_of_relu_under_arc_cosine(rng):
    """Identity 13."""
    weights = rng.normal(size=(6, 4))
    units = ActivationFeatures(weights, "relu", 6)
    diagonal = np.diag(Kuu(units, ArcCosine(variance=0.7)))
    expected = units.rank() * (weights**2).sum(axis=1) / (2 * 4 * 0.7)
    np.testing.assert_allclose(diagonal, expected, rtol=1e-13)


def test_kuf_is_the_truncated_activation(rng):
    """With many levels the feature is the activation itself, radial factors included."""
    kernel, X = Matern52(weight_variances=2.0, bias_variance=0.5), rng.normal(size=(6, 1))
    weights = rng.normal(size=(4, 2))
    values = Kuf(ActivationFeatures(weights, "softplus", 30, slope=2.0), kernel, X)
    augmented = np.hstack([np.sqrt(2.0) * X, np.full((6, 1), np.sqrt(0.5))])
    norms, radii = np.linalg.norm(weights, axis=1), np.linalg.norm(augmented, axis=1)
    cosines = (weights @ augmented.T) / np.outer(norms, radii)
    exact = np.outer(norms, radii) * get_activation("softplus").function(2.0 * cosines) / 2.0
    np.testing.assert_allclose(values, exact, rtol=1e-12)


def test_batches_and_active_dims(rng):
    X = rng.normal(size=(2, 3, 5, 4))
    kernel = Matern52(active_dims=[1, 3])
    units = ActivationFeatures(rng.normal(size=(6, 5)))
    narrow = ActivationFeatures(units.weights.numpy()[:, [1, 3, 4]])
    for feature, reference in ((units, narrow), (SphericalHarmonics(3, 3), SphericalHarmonics(3, 3))):
        values = Kuf(feature, kernel, X)
        assert values.shape[1:] == (2, 3, 5)
        np.testing.assert_allclose(values[:, 1, 2], Kuf(reference, Matern52(), X[1, 2][:, [1, 3]]), atol=1e-13)


def test_harmonics_stay_diagonal_but_convert_where_a_tensor_is_needed():
    kernel = Matern52()
    operator = Kuu(SphericalHarmonics(3, 3), kernel, jitter=0.5)
    assert isinstance(operator, DiagonalCovariance) and isinstance(operator, tf.linalg.LinearOperatorDiag)
    coefficients = np.repeat(kernel.fourier_coefficients(3, 3), [1, 3, 5])
    np.testing.assert_allclose(operator.diag, 1 / coefficients + 0.5, rtol=1e-13)
    np.testing.assert_array_equal(tf.convert_to_tensor(operator), operator.to_dense())
    np.testing.assert_array_equal(np.asarray(operator), operator.to_dense())


@pytest.mark.parametrize("name", ["arccos", "matern52"])
@pytest.mark.parametrize("kind", ["harmonics", "activations"])
@pytest.mark.parametrize("whiten", [True, False])
def test_features_work_in_gpflow_svgp(name, kind, whiten, rng):
    """At the closed-form optimum of q, GPflow's SVGP must reach the collapsed bound computed by hand."""
    kernel = KERNELS[name]()
    X = rng.normal(size=(40, 2))
    Y = np.sin(X[:, :1]) + 0.1 * rng.normal(size=(40, 1))
    feature = make_feature(kind, kernel, 2, rng, num=8)
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(0.1), feature, whiten=whiten, num_data=40)
    jitter = gpflow.config.default_jitter()
    L = np.linalg.cholesky(np.asarray(Kuu(feature, kernel, jitter=jitter)))
    A = np.linalg.solve(L, Kuf(feature, kernel, X))
    precision = np.eye(len(A)) + A @ A.T / 0.1
    covariance = np.linalg.inv(precision)
    mean = covariance @ A @ Y / 0.1
    model.q_mu.assign(mean if whiten else L @ mean)
    root = np.linalg.cholesky(covariance if whiten else L @ covariance @ L.T)
    model.q_sqrt.assign(root[None])
    evidence = gpflow.logdensities.multivariate_normal(
        Y, np.zeros_like(Y), np.linalg.cholesky(A.T @ A + 0.1 * np.eye(40))
    )
    trace = (kernel(X, full_cov=False).numpy() - (A**2).sum(axis=0)).sum()
    np.testing.assert_allclose(model.elbo((X, Y)), float(evidence[0]) - trace / 0.2, rtol=1e-7)


def evaluate_all(kernel, u, v, X):
    covariances = [kernel(X), Kuf(u, kernel, X), Kuf(v, kernel, X), Kvu(v, u, kernel)]
    return covariances + [tf.convert_to_tensor(Kuu(feature, kernel)) for feature in (u, v)]


@pytest.mark.parametrize("name", KERNELS)
def test_traces_once_and_compiles_with_xla(name, rng):
    """All nine pairs and their gradients in one function, because compiling takes seconds."""
    kernel = KERNELS[name](weight_variances=np.ones(2))
    features = [make_feature(kind, kernel, 2, rng, num_levels=3) for kind in FEATURES]
    variables = [*kernel.trainable_variables, *(x for feature in features for x in feature.trainable_variables)]
    traces = []

    def gradients(X):
        traces.append(1)
        with tf.GradientTape() as tape:
            tape.watch(X)
            values = [kernel(X), *(Kvu(v, u, kernel) for u in features for v in features)]
            for feature in features:
                values += [Kuf(feature, kernel, X), tf.convert_to_tensor(Kuu(feature, kernel))]
            loss = tf.add_n([tf.reduce_sum(tf.sin(value)) for value in values])
        return loss, tape.gradient(loss, [X, *variables], unconnected_gradients="zero")

    X = tf.constant(rng.normal(size=(4, 2)))
    expected = gradients(X)
    for jit in (False, True):
        del traces[:]
        compiled = tf.function(gradients, jit_compile=jit)
        compiled(X + 1.0)
        result = compiled(X)
        assert len(traces) == 1
        for got, wanted in zip(tf.nest.flatten(result), tf.nest.flatten(expected)):
            # other orders of summation, and fused multiply-add under XLA
            np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-8)
            assert np.isfinite(got).all()


@pytest.mark.parametrize("kind", ["activations", "harmonics"])
def test_gradient_of_the_features_agrees_with_finite_differences(kind, rng):
    kernel = SquaredExponential(lengthscale=0.8)
    base, other = (make_feature(k, kernel, 2, rng) for k in (kind, "activations"))
    X = tf.Variable(rng.normal(size=(4, 2)))
    variables = [X, *kernel.trainable_variables, *base.trainable_variables, *other.trainable_variables]

    def loss():
        return tf.add_n([tf.reduce_sum(tf.sin(value)) for value in evaluate_all(kernel, base, other, X)[1:]])

    with tf.GradientTape() as tape:
        value = loss()
    gradients = tape.gradient(value, variables)
    for variable, gradient in zip(variables, gradients):
        direction = rng.normal(size=variable.shape)
        start, step = variable.numpy(), 1e-6
        numeric = [variable.assign(start + sign * step * direction) is None or float(loss()) for sign in (1, -1)]
        variable.assign(start)
        # the sum has about 300 terms of size one: rounding 1e-14 / step
        expected = (numeric[0] - numeric[1]) / (2 * step)
        assert float(tf.reduce_sum(gradient * direction)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_float32_covariances_agree_with_float64(name, rng):
    X, Z, W = rng.normal(size=(6, 8)), rng.normal(size=(5, 8)), rng.normal(size=(7, 9))

    def all_covariances():
        kernel = KERNELS[name]()
        features = [InducingPoints(Z), ActivationFeatures(W), SphericalHarmonics(9, kernel.active_levels(3))]
        dtype = gpflow.config.default_float()
        return [
            value.numpy()
            for i, u in enumerate(features)
            for value in evaluate_all(kernel, u, features[i - 1], tf.constant(X, dtype))
        ]

    double = all_covariances()
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        single = all_covariances()
    for expected, got in zip(double, single):
        assert got.dtype == np.float32
        # float32 rounding of a cosine and of a few products; coefficients themselves are rounded once
        np.testing.assert_allclose(got, expected, atol=2e-5 * np.abs(expected).max())


def test_errors_say_what_was_expected():
    kernel, X = ArcCosine(), np.ones((3, 2))
    with pytest.raises(
        ValueError, match=r"weights of shape \(4, 5\), which fit 4 inputs.*Got X with 2 columns.*\[M, 3\]"
    ):
        Kuf(ActivationFeatures(np.ones((4, 5))), kernel, X)
    with pytest.raises(ValueError, match="dimension 5, which fits 4 inputs.*Got X with 2.*dimension 3"):
        Kuf(SphericalHarmonics(5, [0, 1]), kernel, X)
    dead = SphericalHarmonics(3, 6)
    message = r"ArcCosine are zero at levels \[3, 5\].*kernel.active_levels\(6\) = \[0, 1, 2, 4\]"
    for call in (
        lambda: Kuu(dead, kernel),
        lambda: Kuf(dead, kernel, X),
        lambda: Kvu(dead, ActivationFeatures(np.ones((4, 3))), kernel),
        lambda: Kvu(SphericalHarmonics(3, 2), dead, kernel),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match="same sphere. Got 3 inputs for the orthogonal features and 2 for the base"):
        Kvu(ActivationFeatures(np.ones((2, 4))), ActivationFeatures(np.ones((2, 3))), kernel)
    for feature in (ActivationFeatures(np.ones((4, 3))), SphericalHarmonics(3, 2)):
        for call in (
            lambda f=feature: Kuu(f, gpflow.kernels.Matern52()),
            lambda f=feature: Kuf(f, gpflow.kernels.Matern52(), X),
        ):
            with pytest.raises(TypeError, match="needs a zonal kernel.*gpflow.kernels.stationaries.Matern52"):
                call()


def test_number_of_harmonics_matches_rows(rng):
    feature = SphericalHarmonics(4, [1, 3])
    assert Kuf(feature, Matern52(), rng.normal(size=(2, 3))).shape[0] == num_harmonics(4, 1) + num_harmonics(4, 3)


def test_sets_without_a_common_level_are_uncorrelated(rng):
    kernel = Matern52()
    odd, even = (
        ActivationFeatures(rng.normal(size=(3, 3)), "tanh"),
        ActivationFeatures(rng.normal(size=(4, 3)), "even_for_test"),
    )
    assert shared_levels(odd, even, kernel) == ()
    np.testing.assert_array_equal(Kvu(odd, even, kernel), np.zeros((3, 4)))
    with pytest.warns(UserWarning, match="R = 0"):
        lost = ActivationFeatures(rng.normal(size=(2, 3)), "tanh", 1)
    with pytest.raises(
        ValueError, match=r"tanh features with num_levels=1 have levels \[\], none of which Matern52 has"
    ):
        Kuu(lost, kernel)


def test_extreme_norms_and_lost_directions(rng):
    kernel, X, weights = Matern52(radial_power=0), rng.normal(size=(5, 2)), rng.normal(size=(4, 3))
    expected = Kuf(ActivationFeatures(weights), kernel, X)
    for scale in (1e-170, 1e170):
        np.testing.assert_allclose(Kuf(ActivationFeatures(scale * weights), kernel, X), expected, rtol=1e-12)
    with pytest.raises(tf.errors.InvalidArgumentError, match="zero in the active columns"):
        Kuf(ActivationFeatures([[0.0, 5.0, 0.0], [1.0, 1.0, 1.0]]), Matern52(active_dims=[0]), X)


@pytest.mark.parametrize("kind", FEATURES)
def test_empty_and_unknown_shapes(kind, rng):
    kernel = Matern52()
    feature, X = make_feature(kind, kernel, 2, rng), rng.normal(size=(4, 2))
    assert Kuf(feature, kernel, np.zeros((0, 2))).shape[1] == 0
    assert kernel(np.zeros((0, 2))).shape == (0, 0)

    def evaluate(X):
        return Kuf(feature, kernel, X), kernel(X, X), kernel(X)

    for signature in ([None, 2], [None, None]):
        run = tf.function(evaluate, input_signature=[tf.TensorSpec(signature, tf.float64)])
        for got, expected in zip(run(X), evaluate(X)):
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)


def test_width_of_ard_weights():
    with pytest.raises(ValueError, match=r"Expected inputs with 3 .active. columns.*Got 1 columns"):
        Matern52(weight_variances=[1.0, 2.0, 3.0])(np.ones((2, 1)))
    with pytest.raises(
        ValueError, match=r"weights for 4 .active. inputs and a bias, but the kernel has 2 weight variances"
    ):
        Kuu(ActivationFeatures(np.random.default_rng(0).normal(size=(4, 5))), ArcCosine(weight_variances=[1.0, 1.0]))


def test_pairs_on_the_sphere_need_a_zonal_kernel(rng):
    features = [SphericalHarmonics(3, 2), ActivationFeatures(rng.normal(size=(4, 3)))]
    for v in features:
        for u in [*features, InducingPoints(rng.normal(size=(3, 2)))]:
            with pytest.raises(TypeError, match="needs a zonal kernel"):
                Kvu(v, u, gpflow.kernels.Matern52())


@pytest.mark.parametrize("compile", [lambda function: function, tf.function], ids=["eager", "graph"])
def test_kernels_of_others_need_no_constant_coefficients_and_keep_their_gradients(compile, rng):
    class Computed(ArcCosine):  # coefficients by operations, which are no constants of a graph
        def log_fourier_coefficients(self, levels, dimension):
            return tf.math.log(tf.exp(super().log_fourier_coefficients(levels, dimension)))

    class Trained(Computed):  # coefficients lambda^c, of a hyperparameter c
        def __init__(self):
            super().__init__()
            self.power = gpflow.Parameter(1.0)

        def shape_hyperparameters(self):
            return (tf.convert_to_tensor(self.power),)

        def log_fourier_coefficients(self, levels, dimension):
            return self.power * super().log_fourier_coefficients(levels, dimension)

    features = ActivationFeatures(rng.normal(size=(3, 3)), "relu", 6)
    expected = Kuu(features, ArcCosine())
    computed, kernel = Computed(), Trained()
    np.testing.assert_allclose(compile(lambda: Kuu(features, computed))(), expected, rtol=1e-12)

    def value_and_gradient():
        with tf.GradientTape() as tape:
            value = Kuu(features, kernel)
        return value, tape.gradient(value, kernel.power.unconstrained_variable)

    value, gradient = compile(value_and_gradient)()
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert gradient is not None and np.abs(gradient) > 0.1
