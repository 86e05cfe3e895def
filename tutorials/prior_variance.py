# %% [markdown]
# # A prior in two parts
#
# The orthogonal decomposition writes the prior as a sum of two independent processes: f = g + h, where g is what the
# base features know of f, and h is the rest. Orthogonal features are inducing features for h. This script draws both,
# for three kinds of base features.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import keras_odgp as odgp
from keras_odgp.covariances import Kuf, Kuu

plt.style.use("tableau-colorblind10")

# %% [markdown]
# With covariances $K_{uu}$ of the base features and $K_{uf}$ of them with function values, the part $g$ has covariance
# $Q_{ff} = K_{fu} K_{uu}^{-1} K_{uf}$ and $h$ has $S_{ff} = K_{ff} - Q_{ff}$. They are independent, so variances add up.

# %%
grid = np.linspace(-3, 3, 400)[:, None]
kernel = odgp.kernels.Matern52(lengthscale=0.4)
bases = {
    "5 inducing points": gpflow.inducing_variables.InducingPoints(np.linspace(-2, 2, 5)[:, None]),
    "harmonics, levels 0 to 2": odgp.inducing.SphericalHarmonics(2, 3),
    "7 softplus units, L = 6": odgp.inducing.ActivationFeatures(
        odgp.gpflow_models.random_directions(7, 1), "softplus", num_levels=6
    ),
}
rng = np.random.default_rng(3)
noise = rng.normal(size=(2, len(grid), 4))


def draw_from(covariance: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Samples of a process with this covariance, which may be singular, `[N, samples]`."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors @ (np.sqrt(np.maximum(values, 0.0))[:, None] * noise)


figure, rows = plt.subplots(3, 3, figsize=(11, 8), sharex=True, layout="constrained")
for column, (name, features) in zip(rows.T, bases.items()):
    covariance = Kuf(features, kernel, grid).numpy()
    gram = tf.convert_to_tensor(Kuu(features, kernel, jitter=1e-10)).numpy()
    Kff = kernel(grid).numpy()
    Qff = covariance.T @ np.linalg.solve(gram, covariance)
    for ax, part, label in zip(column[:2], (Qff, Kff - Qff), ("parallel part g", "orthogonal part h")):
        deviation = np.sqrt(np.maximum(np.diag(part), 0.0))
        ax.fill_between(grid[:, 0], -2 * deviation, 2 * deviation, color="C0", alpha=0.2, lw=0)
        ax.plot(grid[:, 0], draw_from(part, noise[0 if label.startswith("par") else 1]), lw=1)
        ax.set(ylim=(-7, 7))
    share = np.diag(Qff) / np.diag(Kff)
    column[2].stackplot(grid[:, 0], share, 1 - share, colors=["C0", "C1"], alpha=0.8, labels=["parallel", "orthogonal"])
    column[2].set(ylim=(0, 1), xlabel="x")
    column[0].set_title(name)
for ax, label in zip(
    rows[:, 0], ("parallel part g\nsamples, 2 sd", "orthogonal part h\nsamples, 2 sd", "share of variance")
):
    ax.set_ylabel(label)
_ = rows[2, 0].legend(loc="lower center", framealpha=0.9)

# %% [markdown]
# - Inducing points leave no variance at the points themselves, and more and more away from them.
# - Harmonics and activations are global: what they leave lies in levels that they lack, everywhere alike in the
#   direction of the input. (The band of the prior itself widens to the sides, because the kernel has a radial factor.)
# - What is left for the orthogonal part is rough where the base is smooth.
