"""The posterior written down directly, from the formulas, for comparison."""

from __future__ import annotations

import tensorflow as tf

from keras_odgp.orthogonal.marginals import Marginals


def dense(K):
    return tf.convert_to_tensor(K)


def direct_moments(G, C, q, *, whiten):
    """Marginals by the plain algorithm, output by output, to be differentiated by TensorFlow."""
    Lu = tf.linalg.cholesky(dense(G.Kuu))
    A = tf.linalg.triangular_solve(Lu, C.Kuf)
    parts = [(A, Lu, q.mu, q.sqrt)]
    if G.Kvv is not None:
        Kvu = tf.zeros((C.Kvf.shape[0], C.Kuf.shape[0]), A.dtype) if G.Kvu is None else G.Kvu
        B = tf.linalg.triangular_solve(Lu, tf.transpose(Kvu))
        Lv = tf.linalg.cholesky(dense(G.Kvv) - tf.matmul(B, B, transpose_a=True))
        E = tf.linalg.triangular_solve(Lv, C.Kvf - tf.matmul(B, A, transpose_a=True))
        parts.append((E, Lv, q.orthogonal_mu, q.orthogonal_sqrt))
    num_outputs = q.mu.shape[1]
    mean, variance, kl = 0.0, tf.tile(C.kff[:, None], [1, num_outputs]), 0.0
    for whitened, L, mu, sqrt in parts:
        m = mu if whiten else tf.linalg.triangular_solve(L, mu)
        mean += tf.matmul(whitened, m, transpose_a=True)
        kl += 0.5 * tf.reduce_sum(m**2)
        if sqrt is None:
            continue
        columns = []
        for p in range(num_outputs):
            R = sqrt[p] if whiten else tf.linalg.triangular_solve(L, sqrt[p])
            T = tf.matmul(R, whitened, transpose_a=True)
            columns.append(tf.reduce_sum(T**2, axis=0) - tf.reduce_sum(whitened**2, axis=0))
            diagonal = tf.linalg.diag_part(R)
            kl += 0.5 * (tf.reduce_sum(R**2) - R.shape[0]) - tf.reduce_sum(tf.math.log(tf.abs(diagonal)))
        variance += tf.stack(columns, axis=1)
    return Marginals(mean, variance, kl)
