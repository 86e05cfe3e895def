"""Choices of features, kernels and covariances."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
from layers import house

from keras_odgp import kernels
from keras_odgp.layers import OrthogonalGP
from keras_odgp.orthogonal.gram import num_features

KINDS = ("points", "harmonics", "softplus")
KERNELS = ("arccos", "matern12", "matern32", "matern52", "squared_exponential")


def check_step(layer, num_inputs=3):
    x, y = house.regression(num_inputs=num_inputs)
    model = house.compiled(house.sequential(layer, *house.head()[1:], inputs=(num_inputs,)))
    for _ in range(2):
        assert np.isfinite(model.train_on_batch(x, y, return_dict=True)["loss"])
    return model


def check_loaded(model, folder):
    x, _ = house.regression(num_inputs=model.input_shape[-1])
    loaded = house.saved_and_loaded(model, folder)
    house.assert_equal_predictions(model, loaded, x)
    return loaded.layers[0]


@pytest.mark.parametrize("num_inputs", [1, 2, 8])
@pytest.mark.parametrize("orthogonal_features", KINDS)
@pytest.mark.parametrize("features", KINDS)
def test_pairs_with_default_sizes(features, orthogonal_features, num_inputs):
    layer = OrthogonalGP(
        1, features=features, orthogonal_features=orthogonal_features, num_data=40, return_moments=True
    )
    if num_inputs == 8:
        layer.build((None, 8))
        posterior = layer.posterior
        assert 1 <= num_features(posterior.inducing_variable) <= 1024
        assert 1 <= num_features(posterior.orthogonal_inducing_variable) <= 1024
    else:
        check_step(layer, num_inputs)


@pytest.mark.parametrize(("num_inputs", "expected"), [(1, 9), (2, 16), (8, 128)])
def test_default_size_is_the_rank_where_that_is_smaller(num_inputs, expected):
    layer = OrthogonalGP(1, num_levels=4, orthogonal_features=None)
    layer.build((None, num_inputs))
    size = num_features(layer.posterior.inducing_variable)
    rank = layer.posterior.inducing_variable.rank(layer.kernel)
    assert size == min(128, rank) <= expected


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_by_name(kernel):
    check_step(house.gp(1, kernel=kernel, return_moments=True))


@pytest.mark.parametrize("kernel", KERNELS)
def test_start_values_of_kernels(kernel):
    for moments, variance in ((True, 1.0), (False, 0.1)):
        layer = house.gp(1, kernel=kernel, return_moments=moments)
        layer.build((None, 4))
        np.testing.assert_allclose(layer.kernel.variance, variance)
        np.testing.assert_allclose(layer.kernel.weight_variances, np.full(4, 0.25))
        np.testing.assert_allclose(np.asarray(layer.posterior.q_sqrt)[0], (1.0 if moments else 0.01) * np.eye(6))


@pytest.mark.parametrize(
    "options",
    [
        {"whiten": False},
        {"orthogonal_covariance": "prior"},
        {"num_orthogonal": 0},
        {"orthogonal_features": None},
        {"features": "relu", "num_inducing": 4},
        {"initial_scale": 0.1},
        {"dtype": "float32"},
        {"dtype": "float32", "features": "points"},
    ],
    ids=str,
)
def test_options_train_and_come_back(options, tmp_path):
    model = check_step(house.gp(1, return_moments=True, **options))
    check_loaded(model, tmp_path)


def test_covariance_of_the_prior_and_no_orthogonal_features_have_fewer_weights():
    prior, none = (house.gp(1, **options) for options in ({"orthogonal_covariance": "prior"}, {"num_orthogonal": 0}))
    for layer in (prior, none):
        layer.build((None, 3))
    assert prior.posterior.orthogonal_q_sqrt is None
    assert len(prior.trainable_weights) == len(house.GP_WEIGHTS) - 1
    assert len(none.trainable_weights) == len(house.GP_WEIGHTS) - 3


GPFLOW_KERNELS = {
    "Matern52": lambda: gpflow.kernels.Matern52(lengthscales=[1.0, 2.0, 3.0]),
    "sum": lambda: (
        gpflow.kernels.Matern32(active_dims=[0, 2]) + gpflow.kernels.Linear(variance=0.5, active_dims=slice(1, 2))
    ),
    "product": lambda: gpflow.kernels.RBF(active_dims=[0]) * gpflow.kernels.Periodic(gpflow.kernels.RBF()),
    "nested": lambda: gpflow.kernels.RBF() * (gpflow.kernels.White() + gpflow.kernels.Constant()),
}


@pytest.mark.parametrize("make", GPFLOW_KERNELS.values(), ids=GPFLOW_KERNELS.keys())
def test_gpflow_kernels_with_points(make, tmp_path):
    model = check_step(house.gp(1, kernel=make(), features="points", return_moments=True))
    kernel, again = model.layers[0].kernel, check_loaded(model, tmp_path).kernel
    assert type(again) is type(kernel)
    for (path, ours), (name, theirs) in zip(
        gpflow.utilities.parameter_dict(kernel).items(), gpflow.utilities.parameter_dict(again).items()
    ):
        assert path == name
        np.testing.assert_array_equal(ours.unconstrained_variable, theirs.unconstrained_variable)
    for left, right in zip(getattr(kernel, "kernels", []), getattr(again, "kernels", [])):
        assert np.array_equal(np.arange(3)[left.active_dims], np.arange(3)[right.active_dims])


def test_zonal_kernel_on_some_inputs(tmp_path):
    kernel = kernels.ArcCosine(weight_variances=[1.0, 2.0], active_dims=[0, 2])
    points = gpflow.inducing_variables.InducingPoints(house.regression()[0][:6].copy())
    check_loaded(check_step(house.gp(1, kernel=kernel, features=points, return_moments=True)), tmp_path)


@pytest.mark.parametrize("features", ["harmonics", "softplus"])
def test_features_on_the_sphere_of_some_inputs(features):
    kernel = kernels.ArcCosine(weight_variances=[1.0, 2.0], active_dims=[0, 2])
    check_step(house.gp(1, kernel=kernel, features=features, num_inducing=5, return_moments=True))


def test_kernels_of_several_outputs(tmp_path):
    kernel = gpflow.kernels.SeparateIndependent([kernels.ArcCosine(), kernels.ArcCosine()])
    x, y = house.regression(num_outputs=2)
    model = house.compiled(house.sequential(*house.head(2, kernel=kernel)))
    assert np.isfinite(model.train_on_batch(x, y, return_dict=True)["loss"])
    check_loaded(model, tmp_path)


def test_float32_kernel_made_within_the_context(tmp_path):
    from keras_odgp.numerics import float_context

    with float_context("float32"):
        kernel = gpflow.kernels.Matern52()
    model = check_step(house.gp(1, kernel=kernel, features="points", dtype="float32", return_moments=True))
    assert check_loaded(model, tmp_path).kernel.variance.dtype == np.float32
