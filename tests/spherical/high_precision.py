"""Fourier coefficients in 80 digits by mpmath, from the definition."""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp

DIGITS = 80


def coefficient(function: Callable[[mp.mpf], mp.mpf], level: int, dimension: int) -> mp.mpf:
    """The mean of function(theta) P_l(cos theta) over the sphere; `function` must be smooth on each half of [0, pi]."""
    with mp.workdps(DIGITS):
        half = mp.mpf(1) / 2
        omega = mp.gamma(half * dimension) / (mp.sqrt(mp.pi) * mp.gamma(half * (dimension - 1)))

        def polynomial(t: mp.mpf) -> mp.mpf:
            previous, current = mp.mpf(0), mp.mpf(1)
            for n in range(level):
                a, b = (1, 0) if n == 0 else (mp.mpf(2 * n + dimension - 2), mp.mpf(n))
                divisor = 1 if n == 0 else n + dimension - 2
                previous, current = current, (a * t * current - b * previous) / divisor
            return current

        def integrand(theta: mp.mpf) -> mp.mpf:
            return function(theta) * polynomial(mp.cos(theta)) * mp.sin(theta) ** (dimension - 2)

        return omega * mp.quad(integrand, [0, mp.pi / 2, mp.pi], method="gauss-legendre")


def arc_cosine(order: int) -> Callable[[mp.mpf], mp.mpf]:
    def shape(theta: mp.mpf) -> mp.mpf:
        sine, cosine = mp.sin(theta), mp.cos(theta)
        if order == 0:
            return 1 - theta / mp.pi
        if order == 1:
            return (sine + (mp.pi - theta) * cosine) / mp.pi
        return (3 * sine * cosine + (mp.pi - theta) * (1 + 2 * cosine**2)) / mp.pi

    return shape


def relu_power(power: int) -> Callable[[mp.mpf], mp.mpf]:
    return lambda theta: mp.cos(theta) ** power if theta < mp.pi / 2 else mp.mpf(0)


def matern(nu: float, lengthscale: float) -> Callable[[mp.mpf], mp.mpf]:
    def shape(theta: mp.mpf) -> mp.mpf:
        s = mp.sqrt(2 * mp.mpf(nu)) * 2 * mp.sin(theta / 2) / mp.mpf(lengthscale)
        polynomial = {0.5: 1, 1.5: 1 + s, 2.5: 1 + s + s**2 / 3}[nu]
        return polynomial * mp.exp(-s)

    return shape


def squared_exponential_coefficient(lengthscale: float, level: int, dimension: int) -> mp.mpf:
    """By the modified Bessel function."""
    with mp.workdps(DIGITS):
        c = mp.mpf(lengthscale) ** -2
        alpha = mp.mpf(dimension - 2) / 2
        return mp.gamma(alpha + 1) * (2 / c) ** alpha * mp.exp(-c) * mp.besseli(level + alpha, c)


def softplus(slope: float) -> Callable[[mp.mpf], mp.mpf]:
    return lambda theta: mp.log(1 + mp.exp(slope * mp.cos(theta))) / slope
