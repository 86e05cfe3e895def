"""Published numbers that results are compared with."""

from __future__ import annotations

from typing import NamedTuple

# Test RMSE and NLPD, mean ± standard deviation over five splits, of "Spherical Inducing Features for
# Orthogonally-Decoupled Gaussian Processes" (ICML 2023). Its column of points and arc-cosine fits order 0.
COLUMNS = (
    ("relu", "arccos1"),
    ("relu", "matern52"),
    ("softplus", "arccos1"),
    ("softplus", "matern52"),
    ("points", "arccos0"),
    ("points", "matern52"),
)
_TABLE = """
concrete 128 0   | 6.82 .30 3.33 .04 | 6.92 .25 3.36 .02 | 6.69 .29 3.31 .04 | 6.89 .26 3.36 .03 | 6.58 .37 3.30 .05 | 5.94 .25 3.19 .07
concrete 128 128 | 5.93 .38 3.19 .08 | 5.87 .30 3.18 .08 | 6.06 .32 3.22 .08 | 5.91 .33 3.18 .08 | 6.40 .40 3.27 .06 | 5.75 .35 3.12 .08
concrete 256 0   | 6.56 .20 3.29 .03 | 6.87 .26 3.35 .03 | 6.45 .24 3.27 .04 | 6.86 .26 3.35 .03 | 6.40 .35 3.26 .05 | 5.64 .29 3.11 .09
energy 128 0     | 1.36 .30 1.83 .12 | 1.58 .17 2.03 .04 | 0.95 .10 1.49 .04 | 1.53 .16 2.01 .04 | 0.47 .08 0.70 .17 | 0.47 .08 0.68 .20
energy 128 128   | 0.47 .08 0.68 .20 | 0.47 .08 0.68 .20 | 0.47 .08 0.69 .20 | 0.47 .08 0.69 .19 | 0.48 .08 0.70 .18 | 0.47 .08 0.67 .19
energy 256 0     | 0.91 .08 1.43 .03 | 1.51 .15 1.99 .04 | 0.86 .08 1.38 .03 | 1.51 .15 1.99 .04 | 0.47 .08 0.70 .18 | 0.46 .08 0.67 .20
kin8nm 128 0     | 0.12 .00 -.69 .02 | 0.10 .00 -.78 .02 | 0.10 .00 -.83 .02 | 0.10 .00 -.82 .02 | 0.10 .00 -.85 .02 | 0.08 .00 -1.03 .02
kin8nm 128 128   | 0.08 .00 -1.03 .02 | 0.08 .00 -1.03 .02 | 0.08 .00 -1.03 .02 | 0.08 .00 -1.03 .02 | 0.09 .00 -.90 .01 | 0.08 .00 -1.10 .02
kin8nm 256 0     | 0.10 .00 -.89 .02 | 0.10 .00 -.83 .02 | 0.09 .00 -.95 .02 | 0.10 .00 -.84 .02 | 0.09 .00 -.90 .01 | 0.08 .00 -1.10 .02
power 128 0      | 4.20 .16 2.85 .04 | 4.22 .15 2.86 .03 | 4.20 .16 2.85 .04 | 4.22 .15 2.86 .03 | 3.93 .18 2.79 .04 | 3.90 .19 2.78 .05
power 128 128    | 3.96 .18 2.80 .05 | 3.96 .19 2.80 .05 | 3.91 .19 2.79 .05 | 3.96 .19 2.80 .05 | 3.85 .18 2.77 .04 | 3.71 .19 2.73 .05
power 256 0      | 4.20 .16 2.85 .04 | 4.22 .15 2.86 .03 | 4.20 .16 2.85 .04 | 4.22 .15 2.86 .03 | 3.83 .19 2.77 .05 | 3.68 .19 2.73 .05
yacht 128 0      | 1.17 .36 1.81 .08 | 2.43 .54 2.51 .06 | 1.16 .36 1.80 .08 | 2.43 .54 2.51 .06 | 1.06 .24 1.50 .15 | 0.34 .19 0.33 .25
yacht 128 128    | 0.59 .23 0.91 .26 | 0.51 .25 0.73 .40 | 0.60 .23 0.92 .26 | 0.49 .29 0.70 .41 | 1.06 .23 1.51 .17 | 0.34 .19 0.30 .23
yacht 256 0      | 1.16 .35 1.81 .08 | 2.43 .54 2.51 .06 | 1.13 .36 1.79 .08 | 2.43 .54 2.51 .06 | 1.07 .23 1.52 .18 | 0.28 .14 0.07 .30
"""  # noqa: E501
ROUNDING = 0.005  # the table has two decimals


class Score(NamedTuple):
    """Mean and standard deviation over splits."""

    mean: float
    deviation: float


class Published(NamedTuple):
    """A cell of the table."""

    rmse: Score
    nlpd: Score


def _parse() -> dict[tuple[str, str, str, int, int], Published]:
    cells = {}
    for line in _TABLE.strip().splitlines():
        head, *columns = line.split("|")
        data_set, num_base, num_orthogonal = head.split()
        for (features, kernel), column in zip(COLUMNS, columns):
            rmse, rmse_sd, nlpd, nlpd_sd = (float(word) for word in column.split())
            key = (data_set, features, kernel, int(num_base), int(num_orthogonal))
            cells[key] = Published(Score(rmse, rmse_sd), Score(nlpd, nlpd_sd))
    return cells


UCI = _parse()  # by data set, features, kernel, M, K

# GPflux's own published runs: RMSE and NLPD on the standardised scale, means over five splits, 256 inducing points,
# 1,000 epochs; one, two and three layers.
GPFLUX: dict[str, tuple[tuple[float, float], ...]] = {
    "concrete": ((0.322, 0.527), (0.306, 0.388), (0.320, 0.624)),
    "energy": ((0.061, -0.992), (0.063, -1.090), (0.063, -1.092)),
    "kin8nm": ((0.314, 0.264), (0.248, 0.040), (0.253, 0.144)),
    "power": ((0.237, -0.009), (0.210, -0.129), (0.206, -0.114)),
    "yacht": ((0.071, -0.909), (0.043, -1.084), (0.043, -1.086)),
}
