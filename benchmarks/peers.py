"""A training step of one layer: ours, GPflow's and GPyTorch's, with the flops and the memory that it takes."""

from __future__ import annotations

import importlib.util
import resource
from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from keras_odgp.gpflow_models import OrthogonalSVGP, random_directions
from keras_odgp.inducing import ActivationFeatures
from keras_odgp.kernels import ArcCosine

SEED = 0
NUM_INPUTS = 8
Step = Callable[[], Any]


def make_data(num_data: int, num_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Seeded inputs and targets."""
    rng = np.random.default_rng(SEED)
    return rng.normal(size=(num_data, NUM_INPUTS)), rng.normal(size=(num_data, num_outputs))


def _compiled(model: Any, data: tuple[np.ndarray, np.ndarray]) -> Any:
    X, Y = (tf.constant(array) for array in data)
    variables = model.trainable_variables

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = model.training_loss((X, Y))
        return loss, tape.gradient(loss, variables)

    return step


def ours(N: int, M: int, K: int, P: int = 1, L: int | None = None) -> Any:
    """Points and GPflow's Matérn-5/2; with L levels given, softplus units and the arc-cosine kernel."""
    points = np.random.default_rng(SEED + 1).normal(size=(M + K, NUM_INPUTS))
    if L is None:
        kernel: Any = gpflow.kernels.Matern52(lengthscales=np.full(NUM_INPUTS, 2.0))
        base: Any = points[:M].copy()
    else:
        kernel = ArcCosine(weight_variances=np.full(NUM_INPUTS, 0.25))
        base = ActivationFeatures(random_directions(M, NUM_INPUTS, seed=SEED), "softplus", L)
    orthogonal = points[M:].copy() if K else None
    model = OrthogonalSVGP(kernel, gpflow.likelihoods.Gaussian(), base, orthogonal, num_latent_gps=P, num_data=10 * N)
    return _compiled(model, make_data(N, P))


def gpflow_peer(N: int, M: int, P: int = 1) -> Any:
    """SVGP with M points and Matérn-5/2."""
    points = np.random.default_rng(SEED + 1).normal(size=(M, NUM_INPUTS))
    kernel = gpflow.kernels.Matern52(lengthscales=np.full(NUM_INPUTS, 2.0))
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(), points, num_latent_gps=P, num_data=10 * N)
    return _compiled(model, make_data(N, P))


def gpytorch_peer(N: int, M: int, threads: int) -> Step | None:
    """SVGP with M points and Matérn-5/2 of GPyTorch; None where that is not installed."""
    if importlib.util.find_spec("gpytorch") is None:
        return None
    import gpytorch
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(SEED)
    points = torch.tensor(np.random.default_rng(SEED + 1).normal(size=(M, NUM_INPUTS)))

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(M)
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, q, learn_inducing_locations=True))
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.MaternKernel(2.5, ard_num_dims=NUM_INPUTS)
            )

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model, likelihood = Model().double(), gpytorch.likelihoods.GaussianLikelihood().double()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=10 * N)
    X, Y = (torch.tensor(array) for array in make_data(N, 1))
    parameters = [*model.parameters(), *likelihood.parameters()]

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        loss = -bound(model(X), Y[:, 0])
        loss.backward()

    return step


def matrix_product(M: int, N: int) -> tuple[Step, float]:
    """A product `[M, M] x [M, N]` in float64, and its flops: what the machine can do at best."""
    rng = np.random.default_rng(SEED)
    left, right = tf.constant(rng.normal(size=(M, M))), tf.constant(rng.normal(size=(M, N)))
    return tf.function(lambda: tf.matmul(left, right)), 2.0 * M * M * N


def torch_product(M: int, N: int) -> Step | None:
    """The same product by PyTorch, whose library of products is another; None where that is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    rng = np.random.default_rng(SEED)
    left, right = torch.tensor(rng.normal(size=(M, M))), torch.tensor(rng.normal(size=(M, N)))
    return lambda: torch.matmul(left, right)


def count_flops(step: Any) -> float:
    """Flops of the products, solves and factorisations that a compiled step executes, from its graph.

    What is in a function apart does not count: retries of a factorisation, which are not executed as a rule, and thin
    products of distances.
    """
    return sum(_flops_of(operation) for operation in step.get_concrete_function().graph.get_operations())


def _flops_of(operation: Any) -> float:
    def shape(index: int) -> list[int]:
        return [size or 1 for size in operation.inputs[index].shape.as_list()]

    if operation.type in ("MatMul", "BatchMatMulV2", "BatchMatMul"):
        transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
        inner = shape(0)[-2 if transposed else -1]
        return 2.0 * inner * float(np.prod([size or 1 for size in operation.outputs[0].shape.as_list()]))
    if operation.type == "Cholesky":
        return float(np.prod(shape(0))) * shape(0)[-1] / 3.0
    if operation.type == "MatrixTriangularSolve":
        return float(np.prod(shape(1))) * shape(0)[-1]
    return 0.0


def peak_megabytes() -> float:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
