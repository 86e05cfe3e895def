# %% [markdown]
# # Functions drawn from a model
#
# Bayesian optimisation looks for the minimum of a function that is expensive to evaluate. Thompson sampling does it with
# functions drawn from a model: draw one, find its minimum, evaluate the true function there, and fit the model again.
# Functions that are uncertain in different places have their minima in different places: that is all the exploration
# there is.
#
# It needs whole functions, not values at given inputs. `keras_odgp.sample_functions` draws them from a (deep) model: each
# is one and the same function at every call, cheap at new inputs, and differentiable. Here they minimise Branin's
# function in 30 evaluations.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import keras_odgp as odgp

NUM_START, NUM_PER_ROUND, NUM_EVALUATIONS = 10, 4, 30
MINIMUM = 0.397887  # of Branin's function, at three places
MINIMISERS = np.array([[-np.pi, 12.275], [np.pi, 2.275], [9.42478, 2.475]])
LOWER, UPPER = np.array([-5.0, 0.0]), np.array([10.0, 15.0])


def branin(x: np.ndarray) -> np.ndarray:
    """Branin's function on the square [-1, 1]^2, which stands for [-5, 10] x [0, 15]; from `[N, 2]` to `[N]`."""
    a, b = (LOWER + (x + 1.0) / 2.0 * (UPPER - LOWER)).T
    return (b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6) ** 2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10


# %% [markdown]
# ## The model
#
# Two GP layers; as many points as there are data, up to 20, make the second one flexible. All evaluations are one batch.
# The targets are square roots, so that large values count less.


# %%
def fit(x: np.ndarray, y: np.ndarray, seed: int) -> keras.Model:
    size = min(20, len(x))
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="float64"),
            odgp.layers.OrthogonalGP(2, 7, size, num_levels=4, seed=seed),
            odgp.layers.OrthogonalGP(1, 7, size, num_levels=4, kernel="matern52", return_moments=True, seed=seed),
            odgp.layers.GaussianLikelihood(1e-2),
        ]
    )
    roots = np.sqrt(y)
    targets = (roots - roots.mean()) / roots.std()
    odgp.adapt(model, x, targets)
    model.compile(optimizer=keras.optimizers.Adam(2e-2), loss=odgp.losses.VariationalLoss("gaussian"))
    model.fit(tf.data.Dataset.from_tensors((x, targets)).repeat(300), shuffle=False, verbose=0)
    return model


# %% [markdown]
# ## The minimum of each function
#
# Gradient steps from the best four of many starts. The functions are evaluated all at once; each has a say about its own
# inputs only.


# %%
def minimise(model: keras.Model, seed: int, num_steps: int = 60) -> np.ndarray:
    functions = odgp.sample_functions(model, NUM_PER_ROUND, seed)
    starts = np.random.default_rng(seed).uniform(-1, 1, size=(500, 2))
    best = tf.argsort(functions(starts)[..., 0], axis=1)[:, :4]
    inputs = tf.Variable(tf.reshape(tf.gather(starts, best), [-1, 2]))  # the starts of one function in a row
    own = tf.repeat(tf.eye(NUM_PER_ROUND, dtype=tf.float64), 4, axis=1)  # which of the inputs are of which function
    optimiser = keras.optimizers.Adam(0.03)
    optimiser.build([inputs])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(own * functions(inputs)[..., 0])
        optimiser.apply([tape.gradient(total, inputs)], [inputs])
        inputs.assign(tf.clip_by_value(inputs, -1.0, 1.0))

    for _ in range(num_steps):
        step()
    values = tf.where(own > 0, functions(inputs)[..., 0], np.inf)
    return tf.gather(inputs, tf.argmin(values, axis=1)).numpy()


# %% [markdown]
# ## Rounds
#
# Ten evaluations on a Latin square to start with, then four a round, one for each of four functions.

# %%
rng = np.random.default_rng(0)
x = (np.stack([rng.permutation(NUM_START) for _ in range(2)], axis=1) + 0.5) / NUM_START * 2 - 1
y = branin(x)
while len(y) < NUM_EVALUATIONS:
    chosen = minimise(fit(x, y, seed=len(y)), seed=len(y))
    x, y = np.concatenate([x, chosen]), np.concatenate([y, branin(chosen)])
    print(f"{len(y):3} evaluations: best {y.min():8.4f} (minimum {MINIMUM:.4f})")
    keras.backend.clear_session()

# %% [markdown]
# ## The path

# %%
BLUE, ORANGE = "#1b4f8a", "#d9730d"
grid = np.linspace(-1, 1, 120)
points = np.stack(np.meshgrid(grid, grid), axis=-1)
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
heights = np.log(branin(points.reshape(-1, 2)).reshape(120, 120))
left.contourf(heights, 25, extent=[LOWER[0], UPPER[0], LOWER[1], UPPER[1]], cmap="Greys", alpha=0.7)
places = LOWER + (x + 1.0) / 2.0 * (UPPER - LOWER)
left.plot(*places[:NUM_START].T, "s", color=BLUE, markersize=5, label="start")
left.plot(*places[NUM_START:].T, "-", color=ORANGE, linewidth=0.5, alpha=0.6)
left.plot(*places[NUM_START:].T, "o", color=ORANGE, markersize=5, label="chosen by function samples")
for index, place in enumerate(places[NUM_START:], start=NUM_START + 1):
    left.annotate(str(index), place, xytext=(4, 3), textcoords="offset points", fontsize=7)
left.plot(*MINIMISERS.T, "*", color="white", markeredgecolor="black", markersize=13, label="minima")
left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False)
left.set(xlabel="$x_1$", ylabel="$x_2$", title="Branin's function (logarithmic grey) and the path")
best = np.minimum.accumulate(y) - MINIMUM
right.semilogy(np.arange(1, len(y) + 1), best, color=BLUE, label="best so far")
right.semilogy(np.arange(1, len(y) + 1), y - MINIMUM, ".", color=ORANGE, label="evaluated")
right.axvline(NUM_START + 0.5, color="black", linewidth=0.5, linestyle=":")
right.legend(fontsize=8, frameon=False)
_ = right.set(xlabel="evaluation", ylabel="distance to the minimum", title="Regret")
