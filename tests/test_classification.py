"""Classification through softmax on handwritten digits, against logistic regression on the same split."""

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import keras_odgp

BATCH_SIZE = 128


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)
    scaler = StandardScaler().fit(x_train)
    return scaler.transform(x_train), y_train, scaler.transform(x_test), y_test


def logistic_regression(x_train, y_train, x_test, y_test):
    probabilities = LogisticRegression(max_iter=5000).fit(x_train, y_train).predict_proba(x_test)
    nlpd = -np.log(probabilities[np.arange(len(y_test)), y_test]).mean()
    return keras_odgp.metrics.accuracy(y_test, probabilities), nlpd


@pytest.mark.parametrize(("num_classes", "epochs"), [(2, 25), (10, 80)], ids=["even or odd", "ten digits"])
def test_better_than_logistic_regression(digits, num_classes, epochs):
    x_train, y_train, x_test, y_test = digits
    y_train, y_test = (y_train, y_test) if num_classes == 10 else (y_train % 2, y_test % 2)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((x_train.shape[1],)),
            keras_odgp.layers.OrthogonalGP(num_classes, num_inducing=32, num_orthogonal=96, return_moments=True),
        ]
    )
    keras_odgp.adapt(model, x_train, y_train)
    num_steps = epochs * -(-len(x_train) // BATCH_SIZE)
    model.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-1, num_steps)),
        loss=keras_odgp.losses.VariationalLoss("softmax"),
        metrics=[keras_odgp.metrics.Accuracy("softmax"), keras_odgp.metrics.NLPD("softmax")],
    )
    model.fit(x_train, y_train, batch_size=BATCH_SIZE, epochs=epochs, verbose=0)
    scores = model.evaluate(x_test, y_test, batch_size=len(x_test), return_dict=True, verbose=0)
    accuracy, nlpd = logistic_regression(x_train, y_train, x_test, y_test)
    print(f"ours {scores['accuracy']:.3f}, {scores['nlpd']:.3f}; logistic regression {accuracy:.3f}, {nlpd:.3f}")
    assert scores["accuracy"] >= accuracy
    assert scores["nlpd"] < nlpd
