"""The package as a whole: what importing does, where imports point, whether the examples run."""

import ast
import doctest
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import gpflow
import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_odgp

ROOT = Path(keras_odgp.__file__).parent
MODULES = [keras_odgp.__name__, *(m.name for m in pkgutil.walk_packages(keras_odgp.__path__, "keras_odgp."))]
# Each part may import the parts before it.
ORDER = [
    "_backend",
    "_private",
    "_version",
    "checks",
    "file_contents",
    "files",
    "backup",
    "numerics",
    "spherical",
    "kernels",
    "inducing",
    "covariances",
    "orthogonal",
    "sampling",
    "gpflow_models",
    "likelihoods",
    "saving",
    "weights",
    "layers",
    "losses",
    "metrics",
    "heads",
    "adapting",
    "predictive",
    "natural",
    "callbacks",
    "multiworker",
    "gpflux_layers",
]


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_imports_point_one_way():
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                if name and name.startswith("keras_odgp."):
                    target = name.split(".")[1]
                    typing_only = part == "inducing" and target == "kernels"
                    assert typing_only or ORDER.index(target) <= ORDER.index(part), f"{path} imports {name}"
                if part == "spherical":
                    assert name is None or name.split(".")[0] not in ("gpflow", "keras", "gpflux"), (
                        f"{path} imports {name}"
                    )


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module):
    names = {"keras": keras, "keras_odgp": keras_odgp, "np": np, "tf": tf, "gpflow": gpflow}
    loaded = importlib.import_module(module)
    for test in doctest.DocTestFinder(exclude_empty=True).find(loaded, extraglobs=names):
        result = doctest.DocTestRunner().run(test)
        assert result.failed == 0, test.name


def test_readme_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = (ROOT.parent / "README.md").read_text().split("```python\n")[1:]
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block.split("```")[0], "README.md", "exec"), names)


def test_import_stays_light():
    """Whatever GPflow itself loads is its own; beyond that nothing heavy comes in."""
    code = (
        "import sys, gpflow; before = set(sys.modules); import keras_odgp; new = set(sys.modules) - before;"
        "heavy = {'gpflux', 'tf_keras', 'matplotlib', 'pandas', 'sklearn', 'tensorboard', 'spherical_harmonics'};"
        "print(sorted(heavy & new))"
    )
    assert run_python(code).stdout.strip() == "[]"


def test_other_backends_are_refused_with_the_line_to_set():
    by_environment = run_python("import keras_odgp", KERAS_BACKEND="jax")
    by_configuration = run_python("import keras; keras.config.backend = lambda: 'jax'; import keras_odgp")
    for run in (by_environment, by_configuration):
        assert run.returncode != 0
        assert "Got: 'jax'" in run.stderr and 'os.environ["KERAS_BACKEND"] = "tensorflow"' in run.stderr
