"""GPflow computes in TensorFlow, so Keras has to as well."""

import keras

if keras.config.backend() != "tensorflow":
    raise ImportError(
        f"keras_odgp needs the TensorFlow backend of Keras, because GPflow is built on TensorFlow. Got: {keras.config.backend()!r}. "
        'Before Keras is imported, set os.environ["KERAS_BACKEND"] = "tensorflow", or export KERAS_BACKEND=tensorflow in the shell.'
    )
