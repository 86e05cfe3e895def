# %% [markdown]
# # Uncertainty you can trust
#
# A band around a curve is a claim: so many of the data lie within it. This page is about checking such claims, about the
# difference between uncertainty of the function and of the data, and about predictions that are no bells.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_odgp as odgp

keras.utils.set_random_seed(0)
plt.style.use("tableau-colorblind10")


# %%
def make_data(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(num, 1))
    y = np.tanh(20 * x[:, 0]) + 0.4 * np.sin(4 * x[:, 0]) + 0.15 * rng.normal(size=num)
    return x, y


training, test = make_data(300, seed=0), make_data(1000, seed=1)


def train(*gp_layers: keras.Layer, epochs: int) -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), *gp_layers, odgp.layers.GaussianLikelihood()])
    odgp.adapt(model, *training)
    schedule = keras.optimizers.schedules.CosineDecay(2e-2, 3 * epochs)
    model.compile(keras.optimizers.Adam(schedule), odgp.losses.VariationalLoss("gaussian"))
    model.fit(*training, batch_size=100, epochs=epochs, verbose=0)
    return model


shallow = train(
    odgp.layers.OrthogonalGP(1, 20, 20, features="points", kernel="matern52", return_moments=True), epochs=150
)
predictive = odgp.Predictive(shallow)

# %% [markdown]
# ## f is not y
#
# The GP layer returns the moments of the *function* f. The data y have noise on top. `Predictive` is always about y,
# and `decompose` separates the two:
#
# - `"model"`: the variance of f, what more data would lower;
# - `"noise"`: what no data would lower.
#
# Use the first to decide where to measure next, the sum to say what will be measured.

# %%
grid = np.linspace(-3, 3, 300)[:, None]
out, parts = predictive.predict(grid, verbose=0), predictive.decompose(grid)
mean = out["mean"][:, 0]
figure, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
for variance, alpha, label in ((out["variance"], 0.18, "y: 2 sd"), (parts["model"], 0.45, "f: 2 sd")):
    band = 2 * np.sqrt(variance[:, 0])
    ax.fill_between(grid[:, 0], mean - band, mean + band, color="C0", alpha=alpha, lw=0, label=label)
ax.plot(grid[:, 0], mean, color="C0", lw=1)
ax.plot(*training, ".", color="C3", ms=3)
ax.set(xlabel="x", ylabel="y", ylim=(-3, 3))
_ = ax.legend(frameon=False, loc="upper left")

# %% [markdown]
# ## Scores
#
# | score | asks | as a Keras metric, as a function |
# |---|---|---|
# | NLPD | how likely were the targets? Error and bands in one number; harsh on surprises | `keras_odgp.metrics.NLPD`, `nlpd` |
# | CRPS | how far is the distribution from the target, in units of y? Milder | `CRPS`, `crps` |
# | coverage | how many targets are in the central interval of a level? | `Coverage`, `coverage` |
# | calibration error | the same over many levels: mean difference to what it should be | `CalibrationError`, `calibration_error` |
# | RMSE, MAE | how far is the mean? Blind to bands | `RMSE`, `rmse`, `MAE`, `mae` |
#
# NLPD and CRPS are *proper*: cheating on the width of the bands makes them worse. Coverage alone is not: bands that
# are too wide here and too narrow there can add up to 95 %.
#
# Below, the model; the same with the noise forgotten, as if f were y; and the same with all deviations doubled.

# %%
scored = predictive.predict(test[0], verbose=0)
mean, variance = scored["mean"][:, 0], scored["variance"][:, 0]
forgotten = predictive.decompose(test[0])["model"][:, 0]
claims = {"as it is": variance, "f as if it were y": forgotten, "doubled": 4 * variance}
print(f"{'':20}{'NLPD':>9}{'CRPS':>9}{'in 95 %':>9}{'calibration error':>20}")
for name, claimed in claims.items():
    print(
        f"{name:20}{odgp.metrics.nlpd(test[1], mean, claimed):9.3f}{odgp.metrics.crps(test[1], mean, claimed):9.3f}"
        f"{odgp.metrics.coverage(test[1], mean, claimed, level=0.95):9.1%}"
        f"{odgp.metrics.calibration_error(test[1], mean, claimed):20.3f}"
    )

# %%
figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained", sharey=True)
for ax, (name, claimed) in zip(axes, claims.items()):
    odgp.metrics.plot_calibration(test[1], mean, claimed, ax=ax)
    ax.set_title(name)

# %% [markdown]
# A curve below the diagonal: too sure. Above: too cautious.
#
# ## Predictions that need not be bells
#
# A GP of one layer with Gaussian noise answers with a bell everywhere. A deep GP mixes the answers of many samples of its
# hidden layer, and the mixture is as skewed, or has as many humps, as the samples disagree. Here the data leave little
# doubt of where the jump is, so that both densities are close to bells, in different places.

# %%
deep = train(
    odgp.layers.OrthogonalGP(1, 20, 20, features="points", kernel="matern52"),
    odgp.layers.OrthogonalGP(1, 20, 20, features="points", kernel="matern52", return_moments=True),
    epochs=150,
)
mixture = odgp.Predictive(deep, num_samples=200)
print(
    f"NLPD: one layer {-predictive.log_density(*test).mean():.3f}, two layers {-mixture.log_density(*test).mean():.3f}"
)

where = np.array([[0.02]])
values = np.linspace(-2.5, 2.5, 400)
figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for name, model, style in (("one layer", predictive, "--"), ("two layers", mixture, "-")):
    density = np.exp(model.distribution(where).log_prob(values[:, None, None]))
    ax.plot(values, density[:, 0], style, label=name)
    lower, upper = (end[0, 0] for end in model.interval(where, level=0.9))
    print(f"{name}: 90 % of y at x = {where[0, 0]} between {lower:.2f} and {upper:.2f}")
ax.set(xlabel=f"y at x = {where[0, 0]}", ylabel="predictive density")
_ = ax.legend(frameon=False)

# %% [markdown]
# So score a deep model with `log_density`, which takes the mixture as it is, not with the mean and variance of it, and
# never with one sample. `interval` and `quantiles` are those of the mixture too.
#
# ## Before you trust it
#
# - Score held-out data, with NLPD first.
# - Look at the calibration plot; with few hundred test data it is uneven by chance alone.
# - Ask for predictions far from the data: the bands should open. With the arc-cosine kernel they open linearly.
# - The uncertainty is that of the model, given its kernel: it knows nothing of a world in which the data to come are of
#   another kind.
