# %% [markdown]
# # Classification
#
# A classifier is the same model with another likelihood. There is no likelihood layer, because labels have no noise
# parameter: the moments of the latent functions are the output, and the loss knows what they mean.
#
# | targets | `VariationalLoss(...)` | units | likelihood layer |
# |---|---|---|---|
# | labels 0 and 1 | `"bernoulli"` | 1 | none |
# | integer labels 0, ..., C - 1 | `"softmax"` | C | none |
# | counts | `"poisson"` | 1 | none |
# | positive numbers | `"exponential"`, `"gamma"` | 1 | none, `GammaLikelihood` |
# | numbers in (0, 1) | `"beta"` | 1 | `BetaLikelihood` |
# | numbers with outliers | `"student_t"` | 1 | `StudentTLikelihood` |

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits, make_moons
from sklearn.linear_model import LogisticRegression

import keras_odgp as odgp

keras.utils.set_random_seed(0)
plt.style.use("tableau-colorblind10")

# %% [markdown]
# ## Two classes
#
# `NaturalGradient` is optional: it trains the distribution of the last GP layer by natural gradients, which need few
# steps, and leaves the rest to Adam. With weighted examples give it the `sample_weight` of `fit`, or of `class_weight` the
# weight of each example's class.

# %%
x, y = make_moons(300, noise=0.2, random_state=0)
x = (x - x.mean(axis=0)) / x.std(axis=0)
model = keras.Sequential(
    [
        keras.Input((2,)),
        odgp.layers.OrthogonalGP(1, 16, 32, kernel="matern52", return_moments=True),
    ]
)
odgp.adapt(model, x, y)
model.compile(
    optimizer=keras.optimizers.Adam(2e-2),
    loss=odgp.losses.VariationalLoss("bernoulli"),
    metrics=[odgp.metrics.Accuracy("bernoulli"), odgp.metrics.NLPD("bernoulli")],
)
history = model.fit(
    x, y, batch_size=100, epochs=60, callbacks=[odgp.callbacks.NaturalGradient(x, y)], verbose=0
).history
print({name: round(values[-1], 3) for name, values in history.items()})

# %% [markdown]
# `probabilities` gives both classes. Near the border between the moons the labels overlap, and the probability passes
# through one half. Away from the data it moves back towards one half, because the latent function becomes uncertain
# (right): the model knows less there.

# %%
predictive = odgp.Predictive(model)
axis = np.linspace(-5, 5, 80)
columns, rows = np.meshgrid(axis, axis)
grid = np.stack([columns.ravel(), rows.ravel()], axis=1)
probability = predictive.probabilities(grid)[:, 1].reshape(columns.shape)
deviation = np.sqrt(model.predict(grid, verbose=0)[:, 0, 1]).reshape(columns.shape)

figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained", sharey=True)
filled = axes[0].contourf(columns, rows, probability, levels=np.linspace(0, 1, 11), cmap="PuOr")
figure.colorbar(filled, ax=axes[0], label="probability of class 1")
filled = axes[1].contourf(columns, rows, deviation, levels=10, cmap="Blues")
figure.colorbar(filled, ax=axes[1], label="standard deviation of the latent function")
for ax in axes:
    for label, marker in ((0, "o"), (1, "^")):
        ax.plot(*x[y == label].T, marker, color="black", ms=3, mfc="none", mew=0.6, label=f"class {label}")
    ax.set(xlabel="first input")
axes[0].set_ylabel("second input")
_ = axes[0].legend(loc="lower left")

# %% [markdown]
# ## Ten classes
#
# Handwritten digits of 8 by 8 pixels, against logistic regression on the same split. Ten latent functions share kernel
# and features, so that all that is costly in a step is done once for all of them.

# %%
pixels, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(pixels))
pixels, labels = pixels[order] / 16.0, labels[order]
pixels = (pixels - pixels[:1300].mean()) / pixels[:1300].std()
x_train, y_train, x_test, y_test = pixels[:1300], labels[:1300], pixels[1300:], labels[1300:]
digits = keras.Sequential(
    [
        keras.Input((64,)),
        odgp.layers.OrthogonalGP(10, 32, 64, return_moments=True),
    ]
)
odgp.adapt(digits, x_train, y_train)
EPOCHS, BATCH = 40, 130
digits.compile(
    optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(5e-2, EPOCHS * len(x_train) // BATCH)),
    loss=odgp.losses.VariationalLoss("softmax"),
    metrics=[odgp.metrics.Accuracy("softmax")],
)
_ = digits.fit(x_train, y_train, batch_size=BATCH, epochs=EPOCHS, verbose=0)

predictive = odgp.Predictive(digits)
ours = predictive.probabilities(x_test)
theirs = LogisticRegression(max_iter=2000).fit(x_train, y_train).predict_proba(x_test)
for name, probabilities in (("GP layer", ours), ("logistic regression", theirs)):
    nlpd = -np.log(probabilities[np.arange(len(y_test)), y_test]).mean()
    print(f"{name:20} accuracy {odgp.metrics.accuracy(y_test, probabilities):.3f}   NLPD {nlpd:.3f}")

# %% [markdown]
# As accurate as logistic regression, and more cautious: digits are nearly linear in 64 pixels, so a linear model is
# hard to beat in NLPD here.
#
# ## Who knows what it does not know
#
# If the surest predictions are kept and the others refused, the accuracy of what is kept should rise to one:

# %%
figure, ax = plt.subplots(figsize=(5.5, 3.5), layout="constrained")
for name, probabilities, style in (("GP layer", ours, "-"), ("logistic regression", theirs, "--")):
    sure = np.argsort(-probabilities.max(axis=1))
    hits = probabilities.argmax(axis=1)[sure] == y_test[sure]
    kept = np.arange(1, len(hits) + 1)
    ax.plot(kept / len(hits), np.cumsum(hits) / kept, style, label=name)
ax.set(xlabel="fraction that is answered, surest first", ylabel="accuracy of the answers", ylim=(0.97, 1.001))
_ = ax.legend(frameon=False, loc="lower left")

# %% [markdown]
# ## Notes
#
# - Labels are integers, not one-hot rows.
# - The integral over ten latent functions has no closed form: with `"softmax"` the loss and the metrics use Monte Carlo
#   samples, so `evaluate` varies a little from call to call. `Predictive` is seeded.
# - Any GPflow likelihood without trainable parameters can be given instead of a name, for example
#   `VariationalLoss(gpflow.likelihoods.MultiClass(10))`.
