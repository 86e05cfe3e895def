"""GPflow computes in TensorFlow, so Keras has to as well."""

import os

MESSAGE = (
    "keras_odgp needs the TensorFlow backend of Keras, because GPflow is built on TensorFlow. Got: {!r}. Before "
    "Keras is imported, set "
    'os.environ["KERAS_BACKEND"] = "tensorflow", or run: export KERAS_BACKEND=tensorflow'
)

# Looked at before Keras is imported, which would fail with a missing module where another backend is named but not
# installed.
if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    raise ImportError(MESSAGE.format(os.environ["KERAS_BACKEND"]))

import keras

if keras.config.backend() != "tensorflow":
    raise ImportError(MESSAGE.format(keras.config.backend()))
