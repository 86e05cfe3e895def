# %% [markdown]
# # For GPflow and GPflux users
#
# The posterior behind the Keras layer is a GPflow object, and it is available as a GPflow model and as a GPflux layer as
# well. Kernels and features are ordinary `gpflow.kernels.Kernel` and `InducingVariables`: they work in GPflow's models
# too.

# %%
import gpflow
import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_odgp as odgp
from keras_odgp import gpflow_models

keras.utils.set_random_seed(0)
plt.style.use("tableau-colorblind10")
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(200, 2))
Y = (np.sin(3 * X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=200))[:, None]

# %% [markdown]
# ## OrthogonalSVGP
#
# As `gpflow.models.SVGP`, with a second set of features. Without it, it *is* SVGP. `set_optimal_q` puts q at its optimum
# for Gaussian noise, `fit_lbfgs` is a robust L-BFGS: it starts again from the best point when something becomes
# non-finite.

# %%
model = gpflow_models.OrthogonalSVGP(
    odgp.kernels.ArcCosine(weight_variances=[1.0, 1.0]),
    gpflow.likelihoods.Gaussian(0.1),
    odgp.inducing.ActivationFeatures(gpflow_models.random_directions(12, 2), "softplus"),  # base
    gpflow_models.points_from_data(X, 16),  # orthogonal: an array means inducing points
)
model.set_optimal_q((X, Y))
result = gpflow_models.fit_lbfgs(model, (X, Y), max_iterations=100, progress=False)
mean, variance = model.posterior().predict_f(X[:5])  # cached, as in GPflow
print(f"{result.num_iterations} iterations, ELBO {float(model.elbo((X, Y))):.1f}, predictions {mean.shape}")

# %% [markdown]
# | setting | model |
# |---|---|
# | no orthogonal features | SVGP |
# | points and points | SOLVE-GP |
# | `orthogonal_covariance="prior"` | ODVGP |
# | harmonics as base, no orthogonal features | VISH |
# | an activation as base, no orthogonal features | activated SVGP |
#
# ## OrthogonalSGPR
#
# With Gaussian noise and all data in memory the bound with q at its optimum needs no q at all. `factorised=False` leaves
# out the factorisation of q(u) and q(v'), and gives the bound of SGPR with all features.

# %%
for factorised in (True, False):
    collapsed = gpflow_models.OrthogonalSGPR(
        (X, Y),
        model.kernel,
        model.inducing_variable,
        model.orthogonal_inducing_variable,
        noise_variance=float(model.likelihood.variance.numpy()),
        factorised=factorised,
    )
    print(f"factorised={factorised}: bound {float(collapsed.elbo()):.2f}")

# %% [markdown]
# ## Features in GPflow's own models
#
# Covariances are registered on GPflow's dispatchers when `keras_odgp` is imported.

# %%
svgp = gpflow.models.SVGP(
    odgp.kernels.ArcCosine(), gpflow.likelihoods.Gaussian(0.1), odgp.inducing.SphericalHarmonics(3, 2)
)
print(f"gpflow.models.SVGP with harmonics: ELBO {float(svgp.elbo((X, Y))):.1f}")

# %% [markdown]
# ## The GPflow view of a Keras layer
#
# `layer.posterior` is a GPflow posterior whose parameters are the weights of the layer, the same storage. So GPflow's
# tools work on it: `gpflow.utilities.print_summary`, priors, freezing.

# %%
network = keras.Sequential(
    [
        keras.Input((2,)),
        odgp.layers.OrthogonalGP(2, 8, 8, name="hidden"),
        odgp.layers.OrthogonalGP(1, 8, 8, return_moments=True, name="last"),
        odgp.layers.GaussianLikelihood(),
    ]
)
odgp.adapt(network, X, Y)
gpflow.set_trainable(network.get_layer("last").posterior.kernel.bias_variance, False)  # before `compile`
network.compile(keras.optimizers.Adam(1e-2), odgp.losses.VariationalLoss("gaussian"))
_ = network.fit(X, Y, batch_size=100, epochs=20, verbose=0)
gpflow.utilities.print_summary(network.get_layer("last").posterior.kernel)

# %% [markdown]
# ## To GPflux and back
#
# `keras_odgp.gpflux_layers` has `OrthogonalGPLayer`, which stands wherever a `gpflux.layers.GPLayer` does, and the two ways
# between it and the Keras layer. They copy: GPflux runs on Keras 2, whose variables Keras 3 cannot share. The module is
# not imported by `import keras_odgp`, because GPflux brings Keras 2 along.

# %%
import gpflux

from keras_odgp import gpflux_layers

layers = [gpflux_layers.to_gpflux(network.get_layer(name)) for name in ("hidden", "last")]
noise = float(network.layers[-1].variance.numpy()[0])
deep_gp = gpflux.models.DeepGP(layers, gpflow.likelihoods.Gaussian(noise))
back = gpflux_layers.from_gpflux(layers[1], return_moments=True)
hidden = rng.normal(size=(5, 2))
moments = network.get_layer("last")(hidden).numpy()
print("Keras to GPflux and back, largest difference:", np.abs(back(hidden).numpy() - moments).max())

# %% [markdown]
# ## Function samples
#
# A sample of a GPflux model is a function that can be called anywhere, by pathwise conditioning. Here it is drawn with
# both sets of features: `keras_odgp.sample_functions` of a Keras model, `sample_function` of a layer, `sample` of the
# GPflux layer, `FunctionSamples` of any posterior. [Thompson sampling](thompson_sampling.py) puts them to work.

# %%
functions = odgp.sample_functions(network, 3, seed=0)
print("three functions at five inputs:", functions(X[:5]).shape)
print("the same row by row:", np.allclose(functions(X[:5])[:, 1:2], functions(X[1:2]), atol=1e-6))

# %% [markdown]
# ## What is different
#
# | | GPflux | here |
# |---|---|---|
# | model | `gpflux.models.DeepGP(...).as_training_model()` on Keras 2 | any `keras.Model` of Keras 3 |
# | calling a layer | a distribution that turns into a sample | a sample, or with `return_moments=True` mean and variance |
# | divergence | a loss in training only, so `evaluate` leaves it out | a loss in training and evaluation alike |
# | predictions | moments of one sample of the hidden layers | the mixture over `num_samples`, seeded (`keras_odgp.Predictive`) |
# | likelihood | a GPflow likelihood that the model owns | a likelihood layer owns the noise, the loss reads it |
# | start values | `gpflux.helpers.construct_gp_layer` | `keras_odgp.adapt(model, x, y)` |
# | jitter | absolute, `gpflow.config` | relative to each diagonal entry, `keras_odgp.numerics.jitter_scope` |
#
# Predictions of the three surfaces, at the same parameters:

# %%
grid = np.stack([np.linspace(-2, 2, 200), np.ones(200)], axis=1)
layer = network.get_layer("last")
from_keras = layer(grid).numpy()[:, 0, 0]
from_gpflow = layer.posterior.fused_predict_f(grid)[0].numpy()[:, 0]
from_gpflux = layers[1].predict(grid)[0].numpy()[:, 0]
figure, ax = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
ax.plot(grid[:, 0], from_keras, lw=5, alpha=0.3, label="Keras layer")
ax.plot(grid[:, 0], from_gpflow, "--", label="GPflow posterior")
ax.plot(grid[:, 0], from_gpflux, ":", color="black", label="GPflux layer")
ax.set(xlabel="what the last layer sees", ylabel="mean of f")
_ = ax.legend(frameon=False)
