# %% [markdown]
# # Getting started
#
# A GP layer is a Keras layer. You put it at the end of a model, `compile`, `fit`, and get predictions that say how sure
# they are. This page goes from data to a saved model with bands, and to a model that is served without this library.
#
# It needs the library with its extra for tutorials (see [Installation](../installation.md)).

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_odgp as odgp

keras.utils.set_random_seed(0)
plt.style.use("tableau-colorblind10")

# %% [markdown]
# ## Data
#
# A wave with noise, and a gap in which there are no data. Inputs and targets are standardised, because all start values
# assume that: in your own work, `sklearn.preprocessing.StandardScaler` does it for inputs and for targets, or
# `keras.layers.Normalization` does it for inputs inside the model (call its own `adapt(x)` first, then `odgp.adapt`).

# %%
rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, size=(400, 1))
x = x[(x[:, 0] < 0.3) | (x[:, 0] > 1.0)]
y = np.sin(3 * x[:, 0]) + 0.4 * x[:, 0] + 0.15 * rng.normal(size=len(x))
scale = y.std()
y /= scale
x_train, y_train, x_test, y_test = x[:250], y[:250], x[250:], y[250:]

# %% [markdown]
# ## A model
#
# `OrthogonalGP(1, return_moments=True)` is a Gaussian process with one output that returns the mean and the variance of
# its value at each input. `GaussianLikelihood` appends the variance of the noise, which is learned.
#
# `adapt` looks at the data once, as that of `keras.layers.Normalization` does. It places the features of the GP layer,
# tells it the number of data, and starts it at the best fit for the initial kernel. Then everything is plain Keras.

# %%
model = keras.Sequential(
    [
        keras.Input((1,)),
        odgp.layers.OrthogonalGP(1, kernel="matern52", num_orthogonal=16, return_moments=True),
        odgp.layers.GaussianLikelihood(),
    ]
)
odgp.adapt(model, x_train, y_train)
model.compile(
    optimizer=keras.optimizers.Adam(2e-2),
    loss=odgp.losses.VariationalLoss("gaussian"),
    metrics=[odgp.metrics.NLPD("gaussian"), odgp.metrics.RMSE()],
)
update = odgp.callbacks.ClosedFormUpdate(x_train, y_train)
history = model.fit(
    x_train, y_train, batch_size=64, epochs=100, validation_data=(x_test, y_test), callbacks=[update], verbose=0
)
print({name: round(values[-1], 3) for name, values in history.history.items()})

# %% [markdown]
# The callback `ClosedFormUpdate` is optional. With Gaussian noise the best fit for a given kernel is known in closed
# form, and the callback keeps the layer there while Adam trains kernel, features and noise: fewer epochs do.
#
# The loss is the negative ELBO per datum: how badly the data are explained, plus the divergence of the GP from its prior
# divided by the number of data. It is the same quantity in training and in validation, so early stopping works as
# always. `NLPD` is the negative log density of the targets, the score to look at first; smaller is better.

# %% [markdown]
# ## Predictions with bands
#
# `Predictive` turns the model into one that predicts the targets: mean and variance with the noise in it, intervals,
# densities, samples.

# %%
predictive = odgp.Predictive(model)
grid = np.linspace(-3, 3, 300)[:, None]
out = predictive.predict(grid, verbose=0)
print({name: values.shape for name, values in out.items()})
lower, upper = predictive.interval(grid, level=0.95)

figure, ax = plt.subplots(figsize=(8, 3.8), layout="constrained")
ax.fill_between(grid[:, 0], lower[:, 0], upper[:, 0], color="C0", alpha=0.2, lw=0, label="95 % of y")
ax.plot(grid[:, 0], out["mean"][:, 0], color="C0", label="mean")
ax.plot(x_train[:, 0], y_train, ".", color="C3", ms=3, label="data")
ax.set(xlabel="x", ylabel="y", xlim=(-3, 3))
_ = ax.legend(frameon=False, loc="upper left")

# %% [markdown]
# The band opens in the gap and beyond the data, because there the model knows less. How much of the width is ignorance,
# and how much is noise that no further data would remove, is what `decompose` says:

# %%
parts = predictive.decompose(np.array([[-1.0], [0.65], [3.0]]))
for where, model_part, noise in zip(("among data", "in the gap", "outside"), parts["model"], parts["noise"]):
    print(f"{where:12} model {model_part[0]:.4f}   noise {noise[0]:.4f}")

# %% [markdown]
# ## How good is it?
#
# Half of the answer is the error, the other half is whether the bands are right: 95 % of the test data should be in the
# 95 % band.

# %%
test = predictive.predict(x_test, verbose=0)
mean, variance = test["mean"][:, 0], test["variance"][:, 0]
print(f"RMSE {odgp.metrics.rmse(y_test, mean):.3f}   (standard deviation of the noise: {0.15 / scale:.3f})")
print(f"NLPD {-predictive.log_density(x_test, y_test).mean():.3f}")
print(f"in the 95 % band: {odgp.metrics.coverage(y_test, mean, variance, level=0.95):.0%}")

# %% [markdown]
# ## Save and load
#
# `model.save` and `keras.saving.load_model` work as for every Keras model. Only the import of `keras_odgp` must come
# before loading, so that Keras knows the layers. `odgp.files.save_model` and `load_model` do the same with files that a full
# disk or a kill cannot spoil.

# %%
model.save("gp.keras")
loaded = odgp.Predictive(keras.saving.load_model("gp.keras"))
print("largest difference:", np.abs(loaded.predict(grid, verbose=0)["mean"] - out["mean"]).max())

# %% [markdown]
# ## Serve
#
# `export` writes a SavedModel: TensorFlow alone loads and runs it, without Keras, GPflow or this library, in Python, in
# TensorFlow Serving or in C++. The endpoint `serve` returns mean and variance of y, for inputs of type float32 that are
# scaled as in training. Export the `Predictive`: the model itself, if it is deep, would serve one random draw.

# %%
predictive.export("served_gp", verbose=False)

# %%
import tensorflow as tf  # in the process that serves, the only import

served = tf.saved_model.load("served_gp")
answer = served.serve(tf.constant([[0.5], [3.0]], tf.float32))
print({name: value.numpy().round(3).tolist() for name, value in answer.items()})

# %% [markdown]
# ## Where to go on
#
# - [Deep GPs](deep_regression.py): stack GP layers.
# - [Classification](classification.py): other likelihoods, in the same fifteen lines.
# - [Sharp bits](../sharp_bits.md): what will surprise you, in one page.
