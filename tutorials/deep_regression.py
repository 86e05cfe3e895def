# %% [markdown]
# # Deep GPs
#
# A GP has one smoothness everywhere. A deep GP feeds the output of one GP layer to the next, so that the first can bend
# the input: stretch it where the function is busy, squeeze it where it is calm, tear it where it jumps. This page trains
# both on the same data, with the same number of inducing variables in a layer, and says what to look at when a deep
# model does not learn.

# %%
from time import perf_counter
from typing import Any

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_odgp as odgp

keras.utils.set_random_seed(0)
plt.style.use("tableau-colorblind10")

# %% [markdown]
# ## Data whose smoothness changes
#
# Slow waves on the left, a jump in the middle, fast waves on the right; noise of standard deviation 0.05.


# %%
def clean_function(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, 0.5 * np.sin(2 * x) - 0.8, 0.8 + 0.35 * np.sin(9 * x))


def make_data(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(num, 1))
    return x, clean_function(x) + 0.05 * rng.normal(size=x.shape)


training, held_out = make_data(500, seed=0), make_data(500, seed=1)

# %% [markdown]
# ## Stacking
#
# A *hidden* GP layer passes a sample of its processes on: it is called without `return_moments`. The last one returns
# moments, which the loss integrates over exactly. Everything else is as with one layer.

# %%
NUM = 24
points: dict[str, Any] = {"features": "points", "kernel": "matern52"}
one_layer = keras.Sequential(
    [
        keras.Input((1,)),
        odgp.layers.OrthogonalGP(1, 2 * NUM, num_orthogonal=0, return_moments=True, **points),  # plain SVGP
        odgp.layers.GaussianLikelihood(),
    ],
    name="one_layer_svgp",
)
two_layers = keras.Sequential(
    [
        keras.Input((1,)),
        odgp.layers.OrthogonalGP(1, NUM, NUM, name="hidden", **points),
        odgp.layers.OrthogonalGP(1, NUM, NUM, name="last", return_moments=True, **points),
        odgp.layers.GaussianLikelihood(name="noise"),
    ],
    name="two_layer_deep_gp",
)

# %% [markdown]
# `adapt` calls the model layer by layer and gives each what reaches it. Training is plain Keras. With an ordinary
# learning rate schedule the loss, which is noisy because of the samples, settles.

# %%
EPOCHS = 400
models = [one_layer, two_layers]
histories = []
for model in models:
    odgp.adapt(model, *training)
    model.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-2, EPOCHS * 4)),
        loss=odgp.losses.VariationalLoss("gaussian"),
        metrics=[odgp.metrics.NLPD("gaussian"), odgp.metrics.RMSE()],
    )
    start = perf_counter()
    histories.append(model.fit(*training, batch_size=128, epochs=EPOCHS, verbose=0).history)
    print(f"{model.name}: loss {histories[-1]['loss'][-1]:.3f} after {perf_counter() - start:.0f} seconds")

# %% [markdown]
# ## Predictions are mixtures
#
# Each sample of the hidden layer gives another Gaussian for y. The predictive distribution is their mixture, which need
# not look like a Gaussian. `Predictive` pushes `num_samples` samples through the model in one pass, and returns the mean and the variance of the mixture; `log_density` is the logarithm of the mixture's density.
# 64 samples are the default. One sample, which is what `model.predict` gives, is a worse prediction than the mixture.

# %%
predictives = [odgp.Predictive(model, num_samples=64) for model in models]
print(f"{'held-out data':20}{'NLPD':>9}{'RMSE':>9}")
for model, predictive in zip(models, predictives):
    nlpd = -np.mean(predictive.log_density(*held_out))
    rmse = odgp.metrics.rmse(held_out[1], predictive.predict(held_out[0], verbose=0)["mean"])
    print(f"{model.name:20}{nlpd:9.3f}{rmse:9.3f}")

for num_samples in (1, 8, 64):
    nlpd = -np.mean(odgp.Predictive(two_layers, num_samples=num_samples).log_density(*held_out))
    print(f"two layers, {num_samples:2} samples: NLPD {nlpd:.3f}")

# %%
grid = np.linspace(-2, 2, 400)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), sharey=True, layout="constrained")
titles = (f"One layer (SVGP, {2 * NUM} points)", f"Two layers ({NUM} + {NUM} each)")
for ax, predictive, title in zip(axes, predictives, titles):
    out = predictive.predict(grid, verbose=0)
    mean, deviation = out["mean"][:, 0], np.sqrt(out["variance"][:, 0])
    ax.fill_between(grid[:, 0], mean - 2 * deviation, mean + 2 * deviation, color="C0", alpha=0.2, lw=0)
    ax.plot(*training, ".", color="C3", ms=2.5, alpha=0.7, label="data")
    ax.plot(grid, clean_function(grid), "--", color="C1", lw=1.2, label="true function")
    ax.plot(grid[:, 0], mean, color="C0", lw=1.5, label="mean, band of 2 sd")
    ax.set(title=title, xlabel="x", xlim=(-2, 2))
axes[0].set_ylabel("y")
_ = axes[0].legend(loc="upper left", frameon=False)

# %% [markdown]
# ## What the hidden layer does
#
# Its moments are a method away. Where the curve is steep the input is stretched, where it is flat it is squeezed: the
# jump at zero has become a distance, which a smooth function can climb.

# %%
mean, variance, _ = (part.numpy() for part in two_layers.get_layer("hidden").marginals(grid))
figure, ax = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
band = 2 * np.sqrt(variance[:, 0])
ax.fill_between(grid[:, 0], mean[:, 0] - band, mean[:, 0] + band, color="C0", alpha=0.25, lw=0)
ax.plot(grid[:, 0], mean[:, 0], color="C0", label="hidden layer, band of 2 sd")
ax.plot(grid[:, 0], grid[:, 0], ":", color="C3", label="its mean function: the identity")
ax.set(xlabel="input", ylabel="what the last layer sees")
_ = ax.legend(frameon=False)

# %% [markdown]
# ## Save and load

# %%
two_layers.save("deep_gp.keras")
reloaded = odgp.Predictive(keras.saving.load_model("deep_gp.keras"), num_samples=64)
difference = reloaded.predict(grid, verbose=0)["mean"] - predictives[1].predict(grid, verbose=0)["mean"]
print(f"saved and loaded again, predictions differ by {np.abs(difference).max():.1e} at most")

# %% [markdown]
# ## Choices
#
# **Mean functions.** A hidden layer starts as its mean function plus a small GP. The default, `mean_function="auto"`, is
# the identity, or the leading principal components where the layer has fewer units than inputs. With a mean of zero all
# inputs start at the same point, and training is slow: in trials on two data sets (UCI's energy and yacht, 12 CPU
# seconds, one seed) the test NLPD was 0.22 and -0.04 without mean function, and -0.92 and -1.44 with the identity.
#
# **How many layers.** Begin with one. In such trials two layers were better than one on yacht and concrete, worse on
# energy, and three were behind two at equal time; other data will differ.
#
# **How many samples.** One per datum in training: four took so much longer that they lost at equal time. For prediction,
# 64; 8 where it must be fast. To train on S samples of each datum nevertheless, put `keras.layers.RepeatVector(S)` in
# front.
#
# **Width.** As many units as inputs keeps the identity as mean function. Outputs of a layer share kernel and features,
# so width is cheap.
#
# ## When it does not learn
#
# | what you see | what it may be | what to try |
# |---|---|---|
# | the loss is as that of one layer, and `hidden_kl` is near 0 | the hidden layer has returned to its mean function | that can be right: compare with one layer. Otherwise `keras_odgp.callbacks.KLWarmup`, or a larger batch |
# | the loss falls for a very long time | noise and kernel move slowly | Adam at 1e-2, not 1e-3; `keras_odgp.callbacks.ClosedFormUpdate` for Gaussian noise |
# | the loss jumps | the learning rate is too large for the last layer | a decaying schedule; no rule that lowers the rate when the noisy loss stands still |
# | NaN, or an error that names a matrix | inputs that are not standardised, or duplicate features | [Sharp bits](../sharp_bits.md) |
# | good error, bad NLPD | one sample was scored, or the noise is still at its start value | score with `Predictive`; train longer |
#
# [Monitoring](../monitoring.md) shows these numbers during training.

# %%
figure, ax = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
for model, history in zip(models, histories):
    ax.plot(history["loss"], label=model.name)
ax.set(xlabel="epoch", ylabel="negative ELBO per datum")
_ = ax.legend(frameon=False)

# %% [markdown]
# The peaks are no fault of the arithmetic: in one dimension inducing points meet, and when two change places the
# distribution of the values there, which is trained relative to their covariance, means something else for some epochs.
# Fewer points, a smaller learning rate, or points held fixed with `gpflow.set_trainable` avoid that.
