# %% [markdown]
# # Which parts of a kernel can features reach?
#
# Kernels and activations on the sphere are sums over levels, as functions on a circle are sums over frequencies. A
# feature made of an activation can explain the part of a kernel in those levels which the activation has too. This
# script draws the roots of the kernel's Fourier coefficients against those of the activation, for two kernels and two
# activations, as the paper does.

# %%
import matplotlib.pyplot as plt
import numpy as np

import keras_odgp as odgp

plt.style.use("tableau-colorblind10")
LEVELS = np.arange(1, 36)
DIMENSION = 3  # two inputs and a bias

# %%
kernels = {"Matérn-5/2": odgp.kernels.Matern52(), "arc-cosine": odgp.kernels.ArcCosine()}
figure, rows = plt.subplots(2, 2, figsize=(10, 7), sharex=True, sharey="row", layout="constrained")
for row, (kernel_name, kernel) in zip(rows, kernels.items()):
    root = np.sqrt(kernel.fourier_coefficients(LEVELS[-1] + 1, DIMENSION).numpy()[LEVELS])
    for ax, name in zip(row, ("relu", "softplus")):
        feature = np.abs(odgp.spherical.get_activation(name).coefficients(LEVELS[-1] + 1, DIMENSION)[LEVELS])
        for values, label, marker, colour in ((root, kernel_name, "o", "C0"), (feature, name, "s", "C1")):
            ax.semilogy(LEVELS[values > 0], values[values > 0], marker, color=colour, ms=4, label=label)
        missing = LEVELS[(root > 0) & (feature == 0)]
        if len(missing):
            ax.semilogy(missing, np.full(len(missing), 3e-9), "x", color="C1", label=f"no {name} at this level")
        ax.set(title=f"{kernel_name} kernel, {name} features", xlim=(0, LEVELS[-1] + 1), ylim=(1e-9, 5))
        ax.grid(alpha=0.25)
        ax.legend(frameon=False, loc="upper right", fontsize=9)
    row[0].set_ylabel(r"$\sqrt{\lambda_\ell}$ of the kernel,  $|\varsigma_\ell|$ of the feature")
for ax in rows[-1]:
    ax.set_xlabel(r"level $\ell$")

# %% [markdown]
# - Matérn kernels have every level. ReLU, softplus, GELU and swish lack all odd levels above 1 (crosses): whatever lies
#   there, no number of such features can explain. Orthogonal inducing points can.
# - The arc-cosine kernel lacks the same levels, and its coefficients are $\lambda_\ell = 2 d\, \varsigma_\ell^2$ with the
#   coefficients of ReLU: the two columns of points on the lower left run parallel, exactly.
# - Softplus is smooth, so its coefficients fall faster than those of any of these kernels. High levels carry next to no
#   weight in such features.
#
# In numbers: the share of the prior variance that lies in levels which these activations have, for one lengthscale and
# several numbers of inputs. No set of such features can explain more.

# %%
print(
    "inputs   " + "  ".join(f"{name:>20}" for name in ("Matérn-1/2", "Matérn-3/2", "Matérn-5/2", "squared exponential"))
)
for inputs in (1, 4, 8):
    shares = []
    for make in (
        odgp.kernels.Matern12,
        odgp.kernels.Matern32,
        odgp.kernels.Matern52,
        odgp.kernels.SquaredExponential,
    ):
        kernel = make()
        first = float(kernel.fourier_coefficients(2, inputs + 1)[1])
        ends = [float(kernel.shape_function(np.float64(t))) for t in (1.0, -1.0)]
        shares.append((0.5 * sum(ends) + (inputs + 1) * first) / ends[0])
    print(f"{inputs:6}   " + "  ".join(f"{share:20.3f}" for share in shares))
