"""A training that is killed at random moments ends as one that never was."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stress.forms import IS_FULL

import keras_odgp

# Numbers of kills and of epochs.
RUNS = {"eager": (10, 24), "compiled": (3, 9)} if IS_FULL else {"eager": (1, 4)}


def read_diary(path):
    """The epochs that each process began, and those that it ended, in the order of the processes."""
    attempts = {}
    for line in path.read_text().splitlines():
        process, event, epoch = line.split()
        attempts.setdefault(process, {"begin": [], "end": []})[event].append(int(epoch))
    return list(attempts.values())


def check_resumed(attempts, num_epochs):
    """Each process goes on after the last epoch that was kept, or from the beginning once training is complete."""
    assert any(attempt["begin"][0] > 0 for attempt in attempts[1:]), f"none resumed: {attempts}"
    assert attempts[0]["begin"][0] == 0
    for before, after in itertools.pairwise(attempts):
        last = before["begin"][-1]
        possible = {(last + 1) % num_epochs}
        if last not in before["end"]:  # killed within it
            possible.add(last)
        assert after["begin"][0] in possible, attempts
    assert all(begin == list(range(begin[0], begin[-1] + 1)) for begin in (each["begin"] for each in attempts))
    assert attempts[-1]["end"][-1] == num_epochs - 1, attempts


@pytest.mark.parametrize("steps", RUNS)
def test_killed_training_ends_with_equal_weights(steps, tmp_path, record):
    num_kills, num_epochs = RUNS[steps]
    roots = [str(Path(keras_odgp.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    # One thread, so that sums have one order.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(roots),
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    command = [sys.executable, Path(__file__).with_name("kills.py"), tmp_path, str(num_kills), str(num_epochs), steps]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    codes = json.loads(run.stdout.splitlines()[-1])["codes"]
    assert codes[0] == codes[-1] == 0, run.stderr[-3000:]
    kills = codes.count(-signal.SIGKILL)
    assert kills == num_kills, codes
    with np.load(tmp_path / "whole.npz") as whole, np.load(tmp_path / "killed.npz") as killed:
        assert whole.files == killed.files
        for name in whole.files:
            np.testing.assert_array_equal(killed[name], whole[name])
    left = [path.name for path in (tmp_path / "backup").iterdir()]
    assert "latest.weights.h5" not in left  # it has served
    assert all(name.startswith(".latest.weights.h5-") for name in left), left
    attempts = read_diary(tmp_path / "killed.epochs")
    check_resumed(attempts, num_epochs)  # equal weights alone would also come of training from the beginning
    record("kills", steps=steps, tried=kills, equal=True, first_epochs=[attempt["begin"][0] for attempt in attempts])


def test_damaged_backup_is_refused(tmp_path):
    from layers import house

    model = house.compiled(house.sequential(*house.head()))
    keras_odgp.files.save_weights(model, tmp_path / "latest.weights.h5", note={"epoch": 1})
    content = bytearray((tmp_path / "latest.weights.h5").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "latest.weights.h5").write_bytes(content)
    backup = keras_odgp.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(keras_odgp.files.DamagedFileError, match="damaged"):
        model.fit(*house.regression(), epochs=2, verbose=0, callbacks=[backup])


def test_training_after_a_resumed_one_begins_at_its_beginning(tmp_path):
    from layers import house

    model = house.compiled(house.sequential(*house.head()), run_eagerly=True)
    keras_odgp.files.save_weights(model, tmp_path / "latest.weights.h5", note={"epoch": 1})
    backup = keras_odgp.callbacks.BackupAndRestore(tmp_path)
    assert model.fit(*house.regression(), epochs=2, verbose=0, callbacks=[backup]).epoch == [1]
    assert model.fit(*house.regression(), epochs=1, verbose=0).epoch == [0]
