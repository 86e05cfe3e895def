# %% [markdown]
# # GP layers inside neural networks
#
# A GP layer is a layer: it may follow a convolutional network, and networks may compute what a likelihood needs. Two
# examples: a GP as the head of a convolutional network, and noise that depends on the input.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import keras_odgp as odgp

keras.utils.set_random_seed(0)
plt.style.use("tableau-colorblind10")

# %% [markdown]
# ## Convolutional features with a GP head
#
# The network turns an image into a few features, the GP classifies them; both are trained together on one loss.
# `BatchNormalization` in between keeps the features standardised, which the GP layer expects.

# %%
images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))
images, labels = images[order].reshape(-1, 8, 8, 1) / 16.0, labels[order]
x_train, y_train, x_test, y_test = images[:1300], labels[:1300], images[1300:], labels[1300:]


def features() -> list[keras.Layer]:
    return [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(8),
        keras.layers.BatchNormalization(),
    ]


gp_head = keras.Sequential([*features(), odgp.layers.OrthogonalGP(10, 32, 32, return_moments=True)])
odgp.adapt(gp_head, x_train, y_train)
gp_head.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss=odgp.losses.VariationalLoss("softmax"),
    metrics=[odgp.metrics.Accuracy("softmax")],
)
_ = gp_head.fit(x_train, y_train, batch_size=130, epochs=40, verbose=0)

dense_head = keras.Sequential([*features(), keras.layers.Dense(10, activation="softmax")])
dense_head.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy")
_ = dense_head.fit(x_train, y_train, batch_size=130, epochs=40, verbose=0)

# %% [markdown]
# `adapt` was called when the network was still untrained; the features of the GP move with it afterwards, as weights do.
# If a network was trained before, load it first and adapt then.
#
# Both are scored on the test images, and on the same images with their pixels shuffled, which are no digits at all. A
# model that knows what it does not know should then spread its probabilities: the entropy of ten equal ones is 2.3.

# %%
predictive = odgp.Predictive(gp_head)
shuffled = np.random.default_rng(1).permuted(x_test.reshape(-1, 64), axis=1).reshape(x_test.shape)


def scores(probabilities: np.ndarray, strange: np.ndarray) -> str:
    nlpd = -np.log(np.maximum(probabilities[np.arange(len(y_test)), y_test], 1e-12)).mean()
    entropy = -(strange * np.log(np.maximum(strange, 1e-12))).sum(axis=1).mean()
    accuracy = odgp.metrics.accuracy(y_test, probabilities)
    return f"accuracy {accuracy:.3f}   NLPD {nlpd:.3f}   entropy on shuffled images {entropy:.2f}"


print("GP head:   ", scores(predictive.probabilities(x_test), predictive.probabilities(shuffled)))
print("Dense head:", scores(dense_head.predict(x_test, verbose=0), dense_head.predict(shuffled, verbose=0)))

# %% [markdown]
# After equally many epochs the dense head classifies these digits better, and the GP head is the more cautious one, on
# digits and on what are none. That is the trade to expect: a GP head is worth its cost where a wrong answer that sounds
# sure is expensive.
#
# A GP head is no guard against everything: it is uncertain where the *features* are unlike those of the training data,
# and a network is free to map strange images to familiar features.
#
# ## Noise that depends on the input
#
# A likelihood layer appends the noise variance as a third column to mean and variance. Any other layer may do that: here
# a small network computes it from the input.

# %%
rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, size=(600, 1))
true_deviation = 0.05 + 0.35 / (1 + np.exp(-3 * x[:, 0]))
y = np.sin(2 * x[:, 0]) + true_deviation * rng.normal(size=len(x))

inputs = keras.Input((1,))
moments = odgp.layers.OrthogonalGP(1, 16, 16, features="points", kernel="matern52", return_moments=True)(inputs)
hidden = keras.layers.Dense(16, activation="tanh")(inputs)
noise = keras.layers.Dense(1, activation="softplus", bias_initializer=keras.initializers.Constant(-2.0))(hidden)
noise = keras.layers.Reshape((1, 1))(keras.layers.Rescaling(1.0, offset=1e-4)(noise))
model = keras.Model(inputs, keras.layers.Concatenate(axis=-1, dtype="float64")([moments, noise]))
odgp.adapt(model, x, y)
model.compile(keras.optimizers.Adam(1e-2), odgp.losses.VariationalLoss("gaussian"))
_ = model.fit(x, y, batch_size=100, epochs=150, verbose=0)

# %%
predictive = odgp.Predictive(model)
grid = np.linspace(-2, 2, 200)[:, None]
out, parts = predictive.predict(grid, verbose=0), predictive.decompose(grid)
mean, deviation = out["mean"][:, 0], np.sqrt(out["variance"][:, 0])
figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
axes[0].fill_between(grid[:, 0], mean - 2 * deviation, mean + 2 * deviation, color="C0", alpha=0.2, lw=0)
axes[0].plot(x, y, ".", color="C3", ms=2)
axes[0].plot(grid[:, 0], mean, color="C0")
axes[0].set(xlabel="x", ylabel="y", title="mean, band of 2 sd")
axes[1].plot(grid[:, 0], np.sqrt(parts["noise"][:, 0]), color="C0", label="learned")
axes[1].plot(grid[:, 0], 0.05 + 0.35 / (1 + np.exp(-3 * grid[:, 0])), "--", color="C1", label="true")
axes[1].set(xlabel="x", ylabel="standard deviation of the noise", ylim=(0, None))
_ = axes[1].legend(frameon=False)

# %% [markdown]
# ## Notes
#
# - GP layers compute in float64 unless told otherwise; Keras casts between layers by itself, but a `Concatenate` needs to
#   be told its dtype, as above.
# - GP layers work on the last axis, so they may stand within `keras.layers.TimeDistributed` and after recurrent layers.
# - Layers of Keras before a GP layer are trained with the ELBO as a whole; `trainable = False` freezes them as always.
