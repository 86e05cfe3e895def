import numpy as np
import tensorflow as tf

from keras_odgp.spherical.directions import split_norms


def test_directions_and_norms_and_their_gradients(rng):
    vectors = tf.constant(rng.normal(size=(2, 5, 3)))
    weights = tf.constant(rng.normal(size=(2, 5, 4)))

    def plain(vectors):
        norms = tf.sqrt(tf.reduce_sum(tf.square(vectors), axis=-1))
        return vectors / norms[..., None], norms

    results = []
    for function in (split_norms, plain):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(vectors)
            directions, norms = function(vectors)
            value = tf.reduce_sum(weights * tf.concat([directions, norms[..., None]], axis=-1))
            first = tape.gradient(value, vectors)
            squared = tf.reduce_sum(tf.square(first))
        results.append((directions, norms, first, tape.gradient(squared, vectors)))
    for ours, autodiff in zip(*results):
        np.testing.assert_allclose(ours, autodiff, rtol=1e-12, atol=1e-13)  # rounding
