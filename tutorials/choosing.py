# %% [markdown]
# # Choosing kernel, features, M, K and L
#
# The defaults are a reasonable start: `OrthogonalGP(units)` has the arc-cosine kernel, up to 128 softplus units as base
# features, and 128 orthogonal inducing points. This page says what the choices mean, which limits they have, and what
# was found when they were compared, including where they make no difference.
#
# | argument | what it is | default |
# |---|---|---|
# | `kernel` | how alike the function is at two inputs | `"arccos"` |
# | `features`, `num_inducing` (M) | base features, to which the process is reduced | `"softplus"`, up to 128 |
# | `orthogonal_features`, `num_orthogonal` (K) | features for what the base leaves | `"points"`, up to 128 |
# | `num_levels` (L) | levels of the sphere that activations and harmonics have | 6 |

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np

import keras_odgp as odgp
from keras_odgp import gpflow_models

plt.style.use("tableau-colorblind10")

# %% [markdown]
# ## The kernel
#
# | name | functions are | note |
# |---|---|---|
# | `"arccos"` | once differentiable, linear far away, as a wide layer of ReLU units | the safest choice in stacks; pairs best with activations |
# | `"matern52"`, `"matern32"`, `"matern12"` | twice, once, not differentiable | has a `lengthscale` on the sphere, which is redundant with the weight variances: hold it if you train by L-BFGS |
# | `"squared_exponential"` | infinitely differentiable | with activations keep L at most 8: beyond, high levels blow up |
# | a GPflow kernel | anything | needs `features="points"`, `orthogonal_features="points"` |
#
# All kernels on the sphere scale each input by a weight of its own (ARD), append a bias, and by default grow linearly
# with the norm of the input. Samples of the prior, all from the same random numbers:

# %%
grid = np.linspace(-4, 4, 300)[:, None]
noise = np.random.default_rng(5).normal(size=(len(grid), 3))
names = {
    "arccos": odgp.kernels.ArcCosine(),
    "matern12": odgp.kernels.Matern12(),
    "matern52": odgp.kernels.Matern52(),
    "squared_exponential": odgp.kernels.SquaredExponential(lengthscale=0.5),
}
figure, axes = plt.subplots(1, 4, figsize=(12, 2.8), sharey=True, layout="constrained")
for ax, (name, kernel) in zip(axes, names.items()):
    values, vectors = np.linalg.eigh(kernel(grid).numpy())
    ax.plot(grid[:, 0], vectors @ (np.sqrt(np.maximum(values, 0.0))[:, None] * noise), lw=1)
    ax.set(title=name, xlabel="x")
_ = axes[0].set_ylabel("samples of the prior")

# %% [markdown]
# ## Features and levels
#
# **Points** (`"points"`) are inputs: the process is pinned down at M of them. They know no limit and work with every
# kernel.
#
# **Activations** (`"softplus"`, `"relu"`, `"gelu"`, ...) are units of a neural network. Only the levels that they share
# with the kernel count, and ReLU, softplus, GELU and swish have level 0, level 1 and the even ones. With L levels they
# span a space of limited dimension R; more units than R add nothing, and you get a warning:

# %%
LEVELS = (4, 6, 8, 16)
print("inputs " + "".join(f"{f'L = {levels}':>12}" for levels in LEVELS))
for inputs in (1, 2, 4, 6, 8, 16):
    unit = np.ones((1, inputs + 1))
    ranks = [odgp.inducing.ActivationFeatures(unit, "softplus", num_levels=levels).rank() for levels in LEVELS]
    print(f"{inputs:6} " + "".join(f"{rank:12}" for rank in ranks))

# %% [markdown]
# Raising L makes room for more units. For softplus that is harmless; but high levels have little weight in them (see
# [the spectra](fourier_spectra.py)), so it does not help much either. For ReLU with the arc-cosine kernel it *hurts* at
# fixed M: all levels have the same weight there, and the units become ever more alike to nothing but themselves.
#
# **Harmonics** (`"harmonics"`) are the levels themselves. Nothing in them is trained and their covariance is diagonal,
# so they need no factorisation; but there are many of them in high dimensions, and they come in whole levels. Use them
# for up to about 4 inputs.
#
# A share of the variance lies in levels that activations lack. No M and no L can reach it, orthogonal *points* can. It is
# nothing for arc-cosine, and for Matérn-5/2 11 % with 8 inputs ([table](fourier_spectra.py)).
#
# ## M and K: what more features buy
#
# A comparison on data of 6 inputs, of which 5 matter (Friedman's function), with the collapsed bound, in which q is
# always at its optimum, so that only kernel, features and noise are trained.

# %%
rng = np.random.default_rng(0)
X = rng.uniform(size=(900, 6))
Y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
Y = Y + rng.normal(size=len(Y))
X, Y = (X - X.mean(0)) / X.std(0), ((Y - Y.mean()) / Y.std())[:, None]
train, test = (X[:600], Y[:600]), (X[600:], Y[600:])


def fit(kind: str, M: int, K: int) -> tuple[float, float]:
    """ELBO, and NLPD of the test data, after L-BFGS."""
    kernel = odgp.kernels.ArcCosine(weight_variances=np.full(6, 1 / 6))
    if kind == "points":
        base = gpflow.inducing_variables.InducingPoints(gpflow_models.points_from_data(train[0], M))
    else:
        base = odgp.inducing.ActivationFeatures(gpflow_models.random_directions(M, 6), kind, num_levels=6)
    orthogonal = gpflow_models.points_from_data(train[0], K, seed=1) if K else None
    model = gpflow_models.OrthogonalSGPR(train, kernel, base, orthogonal, noise_variance=0.1)
    gpflow_models.fit_lbfgs(model, max_iterations=60, first_stage_iterations=0, progress=False)
    return float(model.elbo()), -float(np.mean(model.predict_log_density(test)))


print(f"{'base':10}{'M':>5}{'K':>5}{'ELBO':>10}{'test NLPD':>12}")
for kind in ("points", "relu", "softplus"):
    for M, K in ((32, 0), (64, 0), (32, 32)):
        elbo, nlpd = fit(kind, M, K)
        print(f"{kind:10}{M:5}{K:5}{elbo:10.1f}{nlpd:12.3f}")

# %% [markdown]
# ## What was found
#
# - **Orthogonal features repair activations.** Activations alone are the weakest base; with orthogonal points their test
#   NLPD comes close to that of points, though their ELBO stays behind. The paper's tables show the same: on concrete, with the arc-cosine kernel, the test NLPD goes
#   from 3.33 (128 ReLU units) to 3.19 (128 units and 128 points), on energy from 1.83 to 0.68.
# - **Inducing points do as well, if the kernel is the same.** The paper's columns for inducing points under "Arccos" fit
#   a kernel of order 0, while its activations use order 1; with order 1 on both sides points are about as good. With
#   Matérn-5/2 its own tables have points ahead (concrete: 3.12 for 128 + 128 points, 3.18 for activations and points).
#   In deep models of 64 + 64 features points did better than softplus in our trials (energy, yacht: ELBO per datum 0.48
#   and 1.33, against 0.33 and 1.17).
# - **K instead of M is for speed.** 32 + 32 points predict as well as 64, with a slightly lower bound, because the family
#   of q is smaller; and they cost less: the cross block of q and its part of each step are saved.
#
# So: begin with the defaults; compare with `features="points"` before you rely on a difference; raise K first when the
# bound still rises with it.
#
# ## M and K in practice
#
# Features are enough when doubling them no longer changes the ELBO. Small data (a few hundred): 32 + 32. Some thousands:
# 128 + 128. Cost per step grows as $(M + K)^2$ for each datum in the batch, and as $(M + K)^3$ for the batch as a whole.
