# %% [markdown]
# # More levels, or orthogonal features?
#
# Features made of activations are truncated to L levels of the sphere. This script fits the same noisy wave with L = 8,
# with L = 16, and with L = 8 and K = 8 orthogonal inducing points, for two kernels and two activations, as the paper
# does, and for inducing points alone. Then it takes the predictive variance apart, to see where it comes from.

# %%
from time import perf_counter

import gpflow
import matplotlib.pyplot as plt
import numpy as np

import keras_odgp as odgp
from keras_odgp import gpflow_models

plt.style.use("tableau-colorblind10")

# %% [markdown]
# 200 data of a wavy function, few of them in the middle, standardised; a third is held out.

# %%
rng = np.random.default_rng(1)
x = np.concatenate([rng.uniform(0, 2.6, 100), rng.uniform(3.4, 6, 92), rng.uniform(2.6, 3.4, 8)])
y = np.sin(2.0 * x) + 0.5 * np.cos(5.0 * x) + 0.3 * x + 0.2 * rng.normal(size=x.shape)
X, Y = ((x - x.mean()) / x.std())[:, None], ((y - y.mean()) / y.std())[:, None]
order = rng.permutation(len(X))
train, test = order[:133], order[133:]
data = X[train], Y[train]

# %% [markdown]
# ## The fits
#
# All models are `OrthogonalSGPR`, the collapsed bound, in which q is at its optimum whatever the rest; L-BFGS trains
# kernel, noise and features. The Matérn kernel's lengthscale is held at 1: on the sphere it is redundant with the
# weight variances, and if free runs away together with the variance. Activations have as many units as their levels
# span dimensions with one input, 9 for L = 8 and 17 for L = 16.


# %%
def make_kernel(name: str) -> odgp.kernels.ZonalKernel:
    if name == "arc-cosine":
        return odgp.kernels.ArcCosine()
    kernel = odgp.kernels.Matern52()
    gpflow.set_trainable(kernel.lengthscale, False)
    return kernel


def make_features(kind: str, size: int) -> gpflow.inducing_variables.InducingVariables:
    if kind == "points":
        return gpflow.inducing_variables.InducingPoints(gpflow_models.points_from_data(data[0], size))
    return odgp.inducing.ActivationFeatures(gpflow_models.random_directions(size + 1, 1), kind, num_levels=size)


def fit(kernel_name: str, kind: str, size: int, num_orthogonal: int) -> tuple[gpflow_models.OrthogonalSVGP, str]:
    orthogonal = gpflow_models.points_from_data(data[0], num_orthogonal, seed=1) if num_orthogonal else None
    model = gpflow_models.OrthogonalSGPR(
        data, make_kernel(kernel_name), make_features(kind, size), orthogonal, noise_variance=0.1
    )
    start = perf_counter()
    gpflow_models.fit_lbfgs(model, max_iterations=100, progress=False)
    seconds = perf_counter() - start
    # The same as a model with an explicit q, which predicts from factors and takes the variance apart.
    explicit = gpflow_models.OrthogonalSVGP(
        model.kernel, model.likelihood, model.inducing_variable, model.orthogonal_inducing_variable
    )
    explicit.set_optimal_q(data)
    nlpd = -float(np.mean(explicit.predict_log_density((X[test], Y[test]))))
    return explicit, f"ELBO {float(model.elbo()):6.1f}, test NLPD {nlpd:5.2f}, {seconds:4.1f} s"


SIZES = {"8": (8, 0), "16": (16, 0), "8, with K = 8": (8, 8)}
ROWS = [(kernel, kind) for kernel in ("Matérn-5/2", "arc-cosine") for kind in ("relu", "softplus", "points")]
METHODS = {("points", 0): "SVGP", ("points", 8): "SOLVE-GP"}  # others: activated SVGP, and with orthogonal points
fits = {}
for row in ROWS:
    kernel_name, kind = row
    for label, sizes in SIZES.items():
        fits[kernel_name, kind, label] = fit(*row, *sizes)
        method = METHODS.get((kind, sizes[1]), "orthogonal activated" if sizes[1] else "activated SVGP")
        print(f"{kernel_name:12}{kind:10}{'M' if kind == 'points' else 'L'} = {label:16}{method:22}", end="")
        print(fits[kernel_name, kind, label][1], flush=True)

# %% [markdown]
# ## The predictives

# %%
grid = np.linspace(X.min() - 1.0, X.max() + 1.0, 300)[:, None]
figure, rows = plt.subplots(len(ROWS), 3, figsize=(11, 15), sharex=True, sharey=True, layout="constrained")
for axes, row in zip(rows, ROWS):
    for ax, label in zip(axes, SIZES):
        key = (*row, label)
        model, scores = fits[key]
        mean, variance = (part.numpy()[:, 0] for part in model.posterior().predict_f(grid))
        noise = float(model.likelihood.variance.numpy())
        for total, alpha, what in ((variance + noise, 0.15, "y, 2 sd"), (variance, 0.4, "f, 2 sd")):
            band = 2 * np.sqrt(total)
            ax.fill_between(grid[:, 0], mean - band, mean + band, color="C0", alpha=alpha, lw=0, label=what)
        ax.plot(grid[:, 0], mean, color="C0", lw=1)
        ax.plot(X[train], Y[train], ".", color="black", ms=2)
        ax.set(ylim=(-4, 4), title=f"{'M' if row[1] == 'points' else 'L'} = {label}: {scores}")
        ax.title.set_fontsize(9)
    axes[0].set_ylabel(f"{row[0]}, {row[1]}")
rows[0, 0].legend(frameon=False, loc="upper left", fontsize=8)
for ax in rows[-1]:
    ax.set_xlabel("x")

# %% [markdown]
# - L = 8 with activations is too smooth for these data under both kernels: wiggles are missed, and the noise that is
#   learned is too large.
# - Twice the levels help ReLU under the arc-cosine kernel, with units to match, and next to nothing elsewhere: softplus
#   has hardly any weight at high levels, and under Matérn-5/2 what is missing lies in levels that no activation here has.
# - Eight orthogonal points help every pair of kernel and activation, and more than more levels do.
# - Inducing points alone do better than all of these: with 16 points, or with 8 + 8, which is as good. In one dimension
#   activations have nothing to offer over points; the [page on choices](choosing.py) has more on that.
#
# ## Where the variance comes from
#
# The variance of f is the prior variance, minus what the base features explain, minus what the orthogonal features
# explain of the rest, plus what is uncertain about each. Relative to the prior variance:

# %%
figure, rows = plt.subplots(4, 3, figsize=(11, 11), sharex=True, sharey=True, layout="constrained")
for axes, row in zip(rows, [row for row in ROWS if row[1] != "points"]):
    for ax, label in zip(axes, SIZES):
        key = (*row, label)
        model = fits[key][0]
        terms = model.posterior().variance_terms(grid)._asdict()
        prior, explained, uncertain, more, more_uncertain = (value.numpy()[:, 0] for value in terms.values())
        curves = [
            ("not explained by the base", prior + explained, "C1", "-"),
            ("left after the orthogonal part", prior + explained + more, "C1", "--"),
            ("uncertain base", uncertain, "C0", "-"),
            ("uncertain orthogonal part", more_uncertain, "C0", "--"),
            ("variance of f", prior + explained + uncertain + more + more_uncertain, "black", "-"),
        ]
        for what, values, colour, style in curves:
            if "orthogonal" not in what or np.any(more):
                ax.semilogy(grid[:, 0], np.maximum(values / prior, 1e-8), style, color=colour, label=what, lw=1.2)
        ax.set(ylim=(1e-6, 2), title=f"L = {label}")
    axes[0].set_ylabel(f"{row[0]}, {row[1]}")
figure.legend(*rows[0, 2].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
for ax in rows[-1]:
    ax.set_xlabel("x")

# %% [markdown]
# Without orthogonal features (left and middle) the solid orange line, prior variance that lies outside of what the
# features span, is a floor under the variance of f: no data can lower it. Under Matérn-5/2 the levels that activations
# lack keep it up, and more levels do not remove it. With orthogonal points (right) the floor is the dashed line, which
# goes to zero at the points.
