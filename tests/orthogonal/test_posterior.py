"""The posterior against trusted ones: GPflow's SVGP, the joint SVGP, ODVGP's formulas, and itself from the cache."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from builders import KERNELS, PAIRS, make_feature
from gpflow.inducing_variables import (
    InducingPoints,
    SeparateIndependentInducingVariables,
    SharedIndependentInducingVariables,
)
from gpflow.kernels import LinearCoregionalization, Matern32, Matern52, SeparateIndependent, SharedIndependent

from keras_odgp import numerics
from keras_odgp.covariances import Kuf, Kuu, Kvu
from keras_odgp.gpflow_models import OrthogonalSGPR
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ArcCosine
from keras_odgp.orthogonal import OrthogonalPosterior
from keras_odgp.orthogonal.gram import cross, gram
from keras_odgp.orthogonal.prediction import factorise, whitened_covariances
from keras_odgp.orthogonal.variational import variational

NO_JITTER = gpflow.config.Config(jitter=0.0)


@pytest.fixture(autouse=True)
def no_jitter():
    """Comparisons are exact only without jitter, ours and GPflow's."""
    with numerics.jitter_scope(0.0), gpflow.config.as_context(NO_JITTER):
        yield


def random_q(rng, size, num_outputs=1):
    root = np.tril(rng.normal(size=(num_outputs, size, size))) * 0.3 + np.eye(size)
    return rng.normal(size=(size, num_outputs)), root


def make_posterior(kernel, u, v, rng, *, num_outputs=1, cache="tensor", **kwargs):
    q = random_q(rng, u.shape[0], num_outputs)
    orthogonal_q = (None, None) if v is None else random_q(rng, v.shape[0], num_outputs)
    if kwargs.get("orthogonal_covariance") == "prior":
        orthogonal_q = (orthogonal_q[0], None)
    return OrthogonalPosterior(kernel, u, *q, v, *orthogonal_q, precompute_cache=cache, **kwargs)


FULL = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_without_orthogonal_features_it_is_svgp(whiten, num_outputs, rng):
    """Values, divergence and gradients; the ELBO of the model is compared in the tests of the GPflow models."""
    kernel, Z, X = Matern52(lengthscales=[0.8, 1.3]), rng.normal(size=(6, 2)), rng.normal(size=(9, 2))
    mu, sqrt = random_q(rng, 6, num_outputs)
    ours = OrthogonalPosterior(kernel, InducingPoints(Z), mu, sqrt, whiten=whiten, precompute_cache="tensor")
    theirs = gpflow.posteriors.create_posterior(kernel, InducingPoints(Z), mu, sqrt, whiten=whiten)
    for full_cov, full_output_cov in FULL:
        expected = theirs.predict_f(X, full_cov=full_cov, full_output_cov=full_output_cov)
        for predict in (ours.predict_f, ours.fused_predict_f):
            for got, wanted in zip(predict(X, full_cov=full_cov, full_output_cov=full_output_cov), expected):
                np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-9)
    kl = gpflow.kullback_leiblers.prior_kl(InducingPoints(Z), kernel, mu, sqrt, whiten=whiten)
    np.testing.assert_allclose(ours.prior_kl(), kl, rtol=1e-10)


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_it_is_joint_svgp_with_a_block_structure(pair, whiten, rng):
    """Identities 14 to 16: SVGP on (u, v) with mean T m and covariance T diag(Cu, Cv) T^T."""
    kernel = KERNELS["matern32"]()
    u, v = (make_feature(kind, kernel, 3, rng, num=5, num_levels=2) for kind in pair)
    if pair == ("harmonics", "harmonics"):
        v = SphericalHarmonics(4, [2])
    if pair == ("harmonics", "activations"):
        v = ActivationFeatures(rng.normal(size=(4, 4)), "softplus", 3)
    if pair == ("activations", "harmonics"):
        u, v = ActivationFeatures(rng.normal(size=(3, 4)), "softplus", 2), SphericalHarmonics(4, [0, 2])
    if pair == ("activations", "activations"):
        u, v = (ActivationFeatures(rng.normal(size=(n, 4)), "softplus", 3, slope=3.0) for n in (5, 4))
    X = rng.normal(size=(8, 3))
    posterior = make_posterior(kernel, u, v, rng, whiten=whiten)
    q = posterior.q
    M, K = u.shape[0], v.shape[0]
    Kuu_, Kvv_, Kvu_ = np.asarray(Kuu(u, kernel)), np.asarray(Kuu(v, kernel)), Kvu(v, u, kernel).numpy()
    joint = np.block([[Kuu_, Kvu_.T], [Kvu_, Kvv_]])
    Lu = np.linalg.cholesky(Kuu_)
    B = np.linalg.solve(Lu, Kvu_.T)
    Lv = np.linalg.cholesky(Kvv_ - B.T @ B)
    block_factor = np.block([[Lu, np.zeros((M, K))], [B.T, Lv]])
    np.testing.assert_allclose(block_factor @ block_factor.T, joint, rtol=1e-9, atol=1e-9 * np.abs(joint).max())
    # unwhitened parameters of both parts
    m = [q.mu.numpy()[:, 0], q.orthogonal_mu.numpy()[:, 0]]
    R = [q.sqrt.numpy()[0], q.orthogonal_sqrt.numpy()[0]]
    if whiten:
        m, R = [Lu @ m[0], Lv @ m[1]], [Lu @ R[0], Lv @ R[1]]
    T = np.block([[np.eye(M), np.zeros((M, K))], [np.linalg.solve(Kuu_, Kvu_.T).T, np.eye(K)]])
    mean = T @ np.concatenate(m)
    C = T @ np.block([[R[0] @ R[0].T, np.zeros((M, K))], [np.zeros((K, M)), R[1] @ R[1].T]]) @ T.T
    Kf = np.vstack([Kuf(u, kernel, X).numpy(), Kuf(v, kernel, X).numpy()])
    Q = np.linalg.solve(joint, Kf).T
    expected_mean = Q @ mean
    expected_covariance = kernel(X).numpy() + Q @ (C - joint) @ Q.T
    expected_kl = 0.5 * (
        np.trace(np.linalg.solve(joint, C))
        + mean @ np.linalg.solve(joint, mean)
        - M
        - K
        + np.linalg.slogdet(joint)[1]
        - np.linalg.slogdet(C)[1]
    )
    # the condition of the joint matrix is up to 1e6, of which the reference loses the digits
    got_mean, got_covariance = posterior.predict_f(X, full_cov=True)
    np.testing.assert_allclose(got_mean[:, 0], expected_mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(got_covariance[0], expected_covariance, rtol=1e-8, atol=1e-8)
    marginals = posterior.marginals(tf.constant(X))
    np.testing.assert_allclose(marginals.mean[:, 0], expected_mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(marginals.variance[:, 0], np.diag(expected_covariance), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(marginals.kl, expected_kl, rtol=1e-8)
    np.testing.assert_allclose(posterior.prior_kl(), expected_kl, rtol=1e-8)


@pytest.mark.parametrize("whiten", [True, False])
def test_prior_covariance_is_odvgp(whiten, rng):
    """Identity 14: the covariance of SVGP on u, the mean with Svv^-1, the divergence 1/2 m^T Svv^-1 m."""
    kernel = Matern52()
    u, v, X = InducingPoints(rng.normal(size=(6, 2))), InducingPoints(rng.normal(size=(5, 2))), rng.normal(size=(9, 2))
    posterior = make_posterior(kernel, u, v, rng, whiten=whiten, orthogonal_covariance="prior")
    svgp = OrthogonalPosterior(kernel, u, posterior.q_mu, posterior.q_sqrt, whiten=whiten, precompute_cache="tensor")
    Kuu_, Kvu_, Kvv_ = kernel(u.Z).numpy(), kernel(v.Z, u.Z).numpy(), kernel(v.Z).numpy()
    Svv = Kvv_ - Kvu_ @ np.linalg.solve(Kuu_, Kvu_.T)
    Svf = kernel(v.Z, X).numpy() - Kvu_ @ np.linalg.solve(Kuu_, kernel(u.Z, X).numpy())
    m = posterior.orthogonal_q_mu if not whiten else np.linalg.cholesky(Svv) @ posterior.orthogonal_q_mu
    for full_cov in (False, True):
        base_mean, base_covariance = svgp.predict_f(X, full_cov=full_cov)
        for predict in (posterior.predict_f, posterior.fused_predict_f):
            mean, covariance = predict(X, full_cov=full_cov)
            np.testing.assert_allclose(mean, base_mean + Svf.T @ np.linalg.solve(Svv, m), rtol=1e-8, atol=1e-9)
            np.testing.assert_allclose(covariance, base_covariance, rtol=1e-8, atol=1e-9)
    expected = svgp.prior_kl() + 0.5 * (m.T @ np.linalg.solve(Svv, m))[0, 0]
    np.testing.assert_allclose(posterior.prior_kl(), expected, rtol=1e-9)
    np.testing.assert_allclose(posterior.marginals(tf.constant(X)).kl, expected, rtol=1e-9)


def test_orthogonal_part_at_its_prior_is_svgp(rng):
    """Identity 14: whitened mean 0 and root I change nothing and cost nothing."""
    kernel, X = Matern52(), rng.normal(size=(9, 2))
    u, v = InducingPoints(rng.normal(size=(6, 2))), InducingPoints(rng.normal(size=(5, 2)))
    q = random_q(rng, 6)
    svgp = OrthogonalPosterior(kernel, u, *q)
    ours = OrthogonalPosterior(kernel, u, *q, v, np.zeros((5, 1)), np.eye(5)[None])
    for got, expected in zip(ours.fused_predict_f(X, full_cov=True), svgp.fused_predict_f(X, full_cov=True)):
        np.testing.assert_allclose(got, expected, atol=1e-12)
    np.testing.assert_allclose(ours.prior_kl(), svgp.prior_kl(), rtol=1e-13)


@pytest.mark.parametrize("covariance", ["full", "prior"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("whiten", [True, False])
def test_cached_predictions_equal_fused_ones(pair, whiten, covariance, rng):
    kernel = ArcCosine()
    u = make_feature(pair[0], kernel, 2, rng, num=4, num_levels=2)
    v = make_feature(pair[1], kernel, 2, rng, num=3, num_levels=5)
    if pair[1] == "harmonics":
        v = SphericalHarmonics(3, [2] if pair[0] == "harmonics" else [4])
    posterior = make_posterior(
        kernel, u, v, rng, num_outputs=2, whiten=whiten, orthogonal_covariance=covariance, cache=None
    )
    X = rng.normal(size=(2, 3, 4, 2))
    for cache in ("tensor", "variable"):
        posterior.update_cache(gpflow.posteriors.PrecomputeCacheType(cache))
        for full_cov, full_output_cov in FULL:
            cached = posterior.predict_f(X, full_cov=full_cov, full_output_cov=full_output_cov)
            fused = posterior.fused_predict_f(X, full_cov=full_cov, full_output_cov=full_output_cov)
            for got, expected in zip(cached, fused):
                np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)


def multioutput_cases(rng):
    def points():
        return InducingPoints(rng.normal(size=(5, 2)))

    kernels = [Matern52(), Matern32(lengthscales=0.7), Matern52(variance=2.0)]
    W = rng.normal(size=(4, 3))
    shared = SharedIndependentInducingVariables(points())
    separate = SeparateIndependentInducingVariables([points() for _ in range(3)])
    return {
        "shared, shared": (SharedIndependent(Matern52(), 3), shared, SharedIndependentInducingVariables(points())),
        "separate kernels": (SeparateIndependent(kernels), shared, SharedIndependentInducingVariables(points())),
        "separate features": (SharedIndependent(Matern52(), 3), separate, SharedIndependentInducingVariables(points())),
        "separate both": (
            SeparateIndependent(kernels),
            separate,
            SeparateIndependentInducingVariables([points() for _ in range(3)]),
        ),
        "coregionalised": (LinearCoregionalization(kernels, W), shared, SharedIndependentInducingVariables(points())),
        "coregionalised, separate": (LinearCoregionalization(kernels, W), separate, None),
    }


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("case", multioutput_cases(np.random.default_rng(0)))
def test_multioutput_base_equals_gpflow(case, whiten, rng):
    kernel, u, _ = multioutput_cases(rng)[case]
    mu, sqrt = random_q(rng, 5, 3)
    ours = OrthogonalPosterior(kernel, u, mu, sqrt, whiten=whiten, precompute_cache="tensor")
    theirs = gpflow.posteriors.create_posterior(kernel, u, mu, sqrt, whiten=whiten)
    X = rng.normal(size=(7, 2))
    for full_cov, full_output_cov in FULL:
        expected = theirs.predict_f(X, full_cov=full_cov, full_output_cov=full_output_cov)
        for predict in (ours.predict_f, ours.fused_predict_f):
            for got, wanted in zip(predict(X, full_cov=full_cov, full_output_cov=full_output_cov), expected):
                np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-9)
    kl = gpflow.kullback_leiblers.prior_kl(u, kernel, mu, sqrt, whiten=whiten)
    np.testing.assert_allclose(ours.prior_kl(), kl, rtol=1e-9)


@pytest.mark.parametrize("covariance", ["full", "prior"])
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("case", ["shared, shared", "separate kernels", "separate features", "separate both"])
def test_multioutput_orthogonal_is_one_posterior_for_each_output(case, whiten, covariance, rng):
    kernel, u, v = multioutput_cases(rng)[case]
    posterior = make_posterior(kernel, u, v, rng, num_outputs=3, whiten=whiten, orthogonal_covariance=covariance)
    X = rng.normal(size=(7, 2))
    mean, covariances = posterior.predict_f(X, full_cov=True)
    marginals = posterior.marginals(tf.constant(X))
    kernels = list(kernel.latent_kernels) * 3
    us, vs = list(u.inducing_variables) * 3, list(v.inducing_variables) * 3
    kl = 0.0
    for p in range(3):
        root = None if covariance == "prior" else posterior.orthogonal_q_sqrt[p : p + 1]
        single = OrthogonalPosterior(
            kernels[p],
            us[p],
            posterior.q_mu[:, p : p + 1],
            posterior.q_sqrt[p : p + 1],
            vs[p],
            posterior.orthogonal_q_mu[:, p : p + 1],
            root,
            whiten=whiten,
            orthogonal_covariance=covariance,
        )
        single_mean, single_covariance = single.fused_predict_f(X, full_cov=True)
        np.testing.assert_allclose(mean[:, p], single_mean[:, 0], rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(covariances[p], single_covariance[0], rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(marginals.mean[:, p], single_mean[:, 0], rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(marginals.variance[:, p], np.diag(single_covariance[0]), rtol=1e-9, atol=1e-10)
        kl += single.prior_kl()
    np.testing.assert_allclose(marginals.kl, kl, rtol=1e-10)


def factors_and_whitened(kernel, u, v, X):
    q = variational(
        np.zeros((u.shape[0], 1)), np.eye(u.shape[0])[None], np.zeros((v.shape[0], 1)), np.eye(v.shape[0])[None]
    )
    F = factorise(gram(kernel, u, v), q, whiten=True)
    return F, *whitened_covariances(F, cross(kernel, u, v, tf.constant(X)))


def test_norms_of_weights_and_rotations_change_nothing(rng):
    """Identity 17, with the default jitter: it does not see norms either."""
    kernel, X = ArcCosine(), rng.normal(size=(6, 2))
    weights, points = rng.normal(size=(5, 3)), InducingPoints(rng.normal(size=(4, 2)))
    scales = np.array([1e-3, 0.5, 1.0, 7.0, 1e3])
    with numerics.jitter_scope(1e-8):
        F, A, E = factors_and_whitened(kernel, ActivationFeatures(weights), points, X)
        F2, A2, E2 = factors_and_whitened(kernel, ActivationFeatures(weights * scales[:, None]), points, X)
    for got, expected in ((A2, A), (E2, E), (F2.B, F.B), (F2.Lv, F.Lv)):
        np.testing.assert_allclose(
            np.tril(got) if got is F2.Lv else got, np.tril(expected) if got is F2.Lv else expected, atol=1e-7
        )
    # Rotating the inputs of harmonics rotates the basis inside each level: explained variance stays.
    harmonics = SphericalHarmonics(4, [0, 1, 2])
    X3, rotation = rng.normal(size=(6, 3)), np.linalg.qr(rng.normal(size=(3, 3)))[0]
    explained = [
        np.sum(Kuf(harmonics, kernel, x) ** 2 / Kuu(harmonics, kernel).diag[:, None], axis=0)
        for x in (X3, X3 @ rotation)
    ]
    np.testing.assert_allclose(*explained, rtol=1e-12)


@pytest.mark.parametrize("base", ["points", "harmonics", "activations"])
def test_no_residual_variance_at_orthogonal_points_and_jitter_only_shrinks(base, rng):
    """Identities 18 and 20."""
    kernel, W = KERNELS["matern52"](), rng.normal(size=(5, 2))
    u, v = make_feature(base, kernel, 2, rng, num=4, num_levels=3), InducingPoints(W)
    explained, others = [], rng.normal(size=(6, 2))
    for jitter in (0.0, 1e-6, 1e-3, 1e-1):
        with numerics.jitter_scope(jitter):
            _, A, E = factors_and_whitened(kernel, u, v, np.vstack([W, others]))
        explained.append(np.sum(A**2, axis=0) + np.sum(E**2, axis=0))
    np.testing.assert_allclose(explained[0][:5], kernel(W, full_cov=False), rtol=1e-9)
    for less, more in zip(explained[1:], explained[:-1]):
        assert (less <= more + 1e-10).all()


def test_bad_arguments_are_named(rng):
    kernel, u = Matern52(), InducingPoints(rng.normal(size=(4, 2)))
    mu, sqrt = random_q(rng, 4)
    with pytest.raises(ValueError, match=r"Expected `q_mu` of shape \(4, 1\).*Got shape \(5, 1\)"):
        OrthogonalPosterior(kernel, u, np.zeros((5, 1)), sqrt)
    with pytest.raises(ValueError, match=r"Expected `q_sqrt` of shape \(1, 4, 4\).*Got shape \(1, 4, 5\)"):
        OrthogonalPosterior(kernel, u, mu, np.zeros((1, 4, 5)))
    with pytest.raises(ValueError, match=r"Expected `orthogonal_q_mu` of shape \(4, 1\).*Got shape \(3, 1\)"):
        OrthogonalPosterior(kernel, u, mu, sqrt, u, np.zeros((3, 1)), sqrt)
    with pytest.raises(ValueError, match="'full' .SOLVE-GP. or 'prior' .ODVGP.. Got: 'diag'"):
        OrthogonalPosterior(kernel, u, mu, sqrt, u, mu, sqrt, orthogonal_covariance="diag")
    with pytest.raises(
        ValueError, match=r"`orthogonal_q_mu` and `orthogonal_q_sqrt` for .* 'full'.*Got: .'orthogonal_q_mu'."
    ):
        OrthogonalPosterior(kernel, u, mu, sqrt, u, mu)
    with pytest.raises(ValueError, match=r"`orthogonal_q_mu` alone for .* 'prior'"):
        OrthogonalPosterior(kernel, u, mu, sqrt, u, mu, sqrt, orthogonal_covariance="prior")
    with pytest.raises(ValueError, match="Expected q for 3 latent processes, as the kernel has. Got q for 1"):
        OrthogonalPosterior(SharedIndependent(Matern52(), 3), u, mu, sqrt)
    with pytest.raises(ValueError, match="Expected q for 2 latent processes"):
        OrthogonalPosterior(SeparateIndependent([Matern52(), Matern52()]), u, np.zeros((4, 3)), np.stack([sqrt[0]] * 3))
    with pytest.raises(ValueError, match="equally many, kernels and sets"):
        features = SeparateIndependentInducingVariables([u, u, u])
        two = SeparateIndependent([Matern52(), Matern52()])
        OrthogonalPosterior(two, features, np.zeros((4, 2)), np.stack([sqrt[0]] * 2))


@pytest.mark.filterwarnings("ignore:.*span a space of dimension")
def test_degenerate_pairs_are_refused_or_warned_about(rng):
    kernel = ArcCosine()

    def pair(u, v):
        return make_posterior(kernel, u, v, rng, cache=None)

    harmonics = SphericalHarmonics(3, [0, 1, 2])
    with pytest.raises(ValueError, match=r"Svv of 9 orthogonal features \(harmonics.*is zero.*spans all 9 dimensions"):
        pair(harmonics, SphericalHarmonics(3, [0, 1, 2]))
    with pytest.raises(ValueError, match=r"4 orthogonal features \(relu activations, levels \[0, 1, 2\]\).*is zero"):
        pair(harmonics, ActivationFeatures(rng.normal(size=(4, 3)), "relu", 3))
    with pytest.raises(ValueError, match="is zero"):
        pair(*(ActivationFeatures(rng.normal(size=(n, 3)), "relu", 3) for n in (9, 2)))
    with pytest.warns(UserWarning, match="singular: only 2 of them can add anything"):
        pair(*(ActivationFeatures(rng.normal(size=(n, 3)), "relu", 3) for n in (7, 4)))
    with pytest.warns(UserWarning, match="singular: only 9 of them"):
        pair(harmonics, SphericalHarmonics(3, [2, 4]))


@pytest.mark.parametrize("covariance", ["full", "prior"])
def test_terms_of_the_variance_add_up(covariance, rng):
    kernel, X = ArcCosine(), rng.normal(size=(7, 2))
    u, v = ActivationFeatures(rng.normal(size=(4, 3))), InducingPoints(rng.normal(size=(5, 2)))
    posterior = make_posterior(kernel, u, v, rng, num_outputs=2, orthogonal_covariance=covariance)
    terms = posterior.variance_terms(X)
    np.testing.assert_allclose(sum(terms), posterior.predict_f(X)[1], rtol=1e-10)
    np.testing.assert_allclose(terms.prior[:, 0], kernel(X, full_cov=False), rtol=1e-14)
    assert (terms.explained <= 0).numpy().all() and (terms.orthogonal_uncertainty >= 0).numpy().all()
    alone = make_posterior(kernel, u, None, rng)
    assert not np.any(alone.variance_terms(X).orthogonal_explained)


def test_outputs_with_and_without_correlated_features(rng):
    """One output whose two sets are uncorrelated must not hide the correlation of another."""
    kernel = SharedIndependent(ArcCosine(), 2)
    bases = [SphericalHarmonics(3, [0, 1]), InducingPoints(rng.normal(size=(4, 2)))]
    v = SphericalHarmonics(3, [2])
    u, vs = SeparateIndependentInducingVariables(bases), SharedIndependentInducingVariables(v)
    (mu, sqrt), (omu, osqrt) = random_q(rng, 4, 2), random_q(rng, 5, 2)
    posterior = OrthogonalPosterior(kernel, u, mu, sqrt, vs, omu, osqrt)
    X = rng.normal(size=(6, 2))
    mean, variance = posterior.fused_predict_f(X)
    for p, base in enumerate(bases):
        one = slice(p, p + 1)
        single = OrthogonalPosterior(ArcCosine(), base, mu[:, one], sqrt[one], v, omu[:, one], osqrt[one])
        for got, expected in zip((mean, variance), single.fused_predict_f(X)):
            np.testing.assert_allclose(got[:, p], expected[:, 0], rtol=1e-9, atol=1e-10)


def test_full_covariance_of_inputs_in_clusters(rng):
    """Before data it is that of the prior: within each cluster as if it were alone, and zero between them."""
    inputs, far, kernel = rng.normal(size=(8, 2)), 2.0**20, Matern52()
    X = np.concatenate([inputs, inputs + far])
    u, v = InducingPoints(X[:3]), InducingPoints(X[9:12])
    q = np.zeros((3, 1)), np.eye(3)[None]
    posterior = OrthogonalPosterior(kernel, u, *q, v, *q, precompute_cache="tensor")
    noise = 1e10
    sgpr = OrthogonalSGPR((X, np.zeros((16, 1))), kernel, X[:3], X[9:12], noise_variance=noise)
    expected = np.kron(np.eye(2), kernel(inputs))
    for predict in (posterior.predict_f, posterior.fused_predict_f, sgpr.predict_f):
        covariance = predict(X, full_cov=True)[1][0]
        # inputs this far out are rounded by 1e-10; observations with such noise take 1e-9 off the variance
        np.testing.assert_allclose(covariance, expected, rtol=0, atol=3e-9)
    batches = posterior.predict_f(np.stack([X, X[::-1]]), full_cov=True)[1]
    np.testing.assert_allclose(batches[0, 0], expected, rtol=0, atol=3e-9)
    np.testing.assert_allclose(batches[1, 0], expected[::-1, ::-1], rtol=0, atol=3e-9)
