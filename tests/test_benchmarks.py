"""The runner of the benchmarks: cells are stored, skipped and resumed; errors say what to do; the report is written."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import scipy.stats

from benchmarks import __main__ as program
from benchmarks import data, deadline, deep_models, paper, report, report_losses, runner, scoring
from benchmarks.cells import Context, Experiment, Store
from benchmarks.experiments import EXPERIMENTS
from benchmarks.report_uci import verdicts

ROOT = Path(__file__).parent.parent


def toy(run, number=3):
    cells = [{"index": index, "factor": 2} for index in range(number)]
    return Experiment("toy", "doubles", ("index",), cells, cells[:1], run)


def double(settings, context):
    return {"value": settings["factor"] * settings["index"]}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_finished_cells_are_stored_and_skipped(store):
    experiment = toy(double)
    first = runner.run(experiment, experiment.cells, store, Context())
    second = runner.run(experiment, experiment.cells, store, Context())
    assert first.finished == second.skipped == ["0.json", "1.json", "2.json"]
    assert not second.finished
    records = store.load("toy")
    assert [record["results"]["value"] for record in records] == [0, 2, 4]
    assert records[1]["settings"] == {"index": 1, "factor": 2}
    assert {"tensorflow", "python"} <= records[0]["versions"].keys()
    assert {"processor", "cores", "threads"} <= records[0]["machine"].keys()
    assert {"wall_seconds", "cpu_seconds", "load_at_start"} <= records[0]["timings"].keys()


def test_another_protocol_is_run_again(store):
    experiment = toy(double)
    runner.run(experiment, experiment.cells, store, Context())
    changed = [{**cell, "factor": 3} for cell in experiment.cells]
    assert runner.run(experiment, changed, store, Context()).finished == ["0.json", "1.json", "2.json"]
    assert [record["results"]["value"] for record in store.load("toy")] == [0, 3, 6]


def test_a_cell_that_fails_costs_no_other_and_is_left_for_later(store, capsys):
    def run(settings, context):
        if settings["index"] == 1:
            raise RuntimeError("no luck")
        return double(settings, context)

    outcome = runner.run(toy(run), toy(run).cells, store, Context())
    assert (outcome.finished, outcome.failed) == (["0.json", "2.json"], ["1.json"])
    assert "no luck" in capsys.readouterr().out
    assert runner.run(toy(double), toy(double).cells, store, Context()).finished == ["1.json"]


def test_no_cell_starts_after_the_budget(store):
    outcome = runner.run(toy(double), toy(double).cells, store, Context(), budget=0.0)
    assert (outcome.finished, outcome.left) == ([], ["0.json", "1.json", "2.json"])


def test_a_killed_run_loses_only_the_cell_that_was_running(store, tmp_path):
    code = """
        import sys, time
        from pathlib import Path
        from benchmarks import runner
        from benchmarks.cells import Context, Experiment, Store

        def run(settings, context):
            with open(sys.argv[1] + "/started", "a") as file:
                file.write(f"{settings['index']}\\n")
            if settings["index"] == 2 and sys.argv[2] == "hang":
                time.sleep(60)
            return {"value": 1}

        cells = [{"index": index} for index in range(4)]
        experiment = Experiment("toy", "", ("index",), cells, cells, run)
        runner.run(experiment, cells, Store(Path(sys.argv[1])), Context())
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*command, "hang"], env=environment, stderr=subprocess.DEVNULL)
    started = tmp_path / "started"
    limit = time.monotonic() + 60
    while not (started.exists() and "2" in started.read_text()) and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert sorted(path.name for path in (tmp_path / "toy").glob("*.json")) == ["0.json", "1.json"]
    subprocess.run([*command, "go on"], env=environment, check=True, stderr=subprocess.DEVNULL)
    assert started.read_text().split() == ["0", "1", "2", "2", "3"]  # nothing repeated but what was lost
    assert len(store.load("toy")) == 4


def test_a_file_is_there_as_a_whole_or_not_at_all(store):
    experiment = toy(double)
    record = {"settings": {"index": 0}, "results": {"value": object()}}  # which JSON cannot write
    with pytest.raises(TypeError):
        store.save(experiment, record)
    assert store.load("toy") == []
    assert not store.has(experiment, {"index": 0})


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_cells_have_files_of_their_own_and_plain_settings(name):
    experiment = EXPERIMENTS[name]
    for cells in (experiment.cells, experiment.quick):
        assert cells
        assert len({experiment.file_name(cell) for cell in cells}) == len(cells)
        assert json.loads(json.dumps(list(cells))) == list(cells)


def test_help_lists_all_experiments(capsys):
    with pytest.raises(SystemExit, match="0"):
        program.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text and experiment.description in text for name, experiment in EXPERIMENTS.items())


def test_conditions_choose_cells():
    cells = EXPERIMENTS["uci"].cells
    chosen = program.select(cells, ["data=yacht", "split=0,1", "features=relu"])
    assert {(cell["data"], cell["features"]) for cell in chosen} == {("yacht", "relu")}
    assert {cell["split"] for cell in chosen} == {0, 1}
    with pytest.raises(ValueError, match="Expected `data` among .*yacht.*Got: boston"):
        program.select(cells, ["data=boston"])
    with pytest.raises(ValueError, match="Expected conditions as NAME=VALUE"):
        program.select(cells, ["nonsense"])


def test_missing_directory_unknown_set_and_missing_file_say_what_to_do(tmp_path, capsys):
    assert program.main(["uci", "--data-dir", str(tmp_path / "nowhere"), "--results", str(tmp_path)]) == 2
    assert "Expected a directory of .npz files as --data-dir" in capsys.readouterr().err
    assert program.main(["uci", "--data-dir", str(tmp_path), "--results", str(tmp_path)]) == 2
    assert "arrays X [N, D] and Y [N, 1]. Found: no .npz file" in capsys.readouterr().err
    assert program.main(["uci", "--only", "data=boston", "--results", str(tmp_path)]) == 2
    assert "Expected `data` among concrete, energy, kin8nm, power, yacht. Got: boston" in capsys.readouterr().err
    with pytest.raises(data.DataError, match="Expected a data set among yacht, .*Got: 'boston'"):
        data.load("boston", tmp_path)


def test_offline_machine_says_what_to_do(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", offline)
    with pytest.raises(
        data.DataError, match="no route to host.*Is this machine online.*--data-dir with a file yacht.npz"
    ):
        data.load("yacht", None)
    with pytest.raises(data.DataError, match="Give --data-dir with a file power.npz"):
        data.load("power", None)


def test_split_follows_the_conventions():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(3.0, 2.0, size=(101, 2)), rng.normal(5.0, 4.0, size=(101, 1))
    part = data.split(X, Y, 3)
    order = np.random.RandomState(3).permutation(101)
    assert (len(part.X), len(part.X_test)) == (90, 11)  # int(0.9 N)
    np.testing.assert_allclose(part.X.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(part.Y.std(), 1.0)
    np.testing.assert_allclose(part.Y_test * part.scale + Y[order[:90]].mean(), Y[order[90:]])


def test_scores_of_a_mixture_of_equal_parts_are_those_of_the_part():
    rng = np.random.default_rng(1)
    Y, mean, variance = rng.normal(size=40), rng.normal(size=40), rng.uniform(0.5, 2.0, size=40)
    one = scoring.gaussian_scores(Y, mean, variance, 3.0)
    many = scoring.mixture_scores(Y, np.tile(mean, (5, 1)), np.tile(variance, (5, 1)), 3.0)
    for key, value in one.items():
        np.testing.assert_allclose(many[key], value, rtol=1e-12)
    # On the original scale: the density of 3 y is that of y divided by 3.
    original = -np.mean(scipy.stats.norm.logpdf(3 * Y, 3 * mean, 3 * np.sqrt(variance)))
    np.testing.assert_allclose(one["nlpd"], original, rtol=1e-12)
    np.testing.assert_allclose(one["rmse"], np.sqrt(np.mean(np.square(3 * Y - 3 * mean))), rtol=1e-12)


def test_calibrated_predictions_have_small_calibration_error():
    Y = np.random.default_rng(2).normal(size=20_000)
    result = scoring.gaussian_scores(Y, np.zeros_like(Y), np.ones_like(Y), 1.0)
    # Shares of 20,000 draws deviate by sqrt(p (1 - p) / 20,000) < 0.004.
    assert result["calibration_error"] < 0.01
    assert abs(result["coverage_95"] - 0.95) < 0.01
    assert scoring.gaussian_scores(Y, np.zeros_like(Y), 9 * np.ones_like(Y), 1.0)["coverage_50"] > 0.9


def uci_record(split, rmse, nlpd, key=("yacht", "relu", "arccos1", 128, 128)):
    settings = dict(zip(("data", "features", "kernel", "M", "K"), key)) | {"scheme": "collapsed", "split": split}
    results = {"rmse": rmse, "nlpd": nlpd, "converged": True, "elbo": 1.0, "iterations": 3}
    timings = {"wall_seconds": 1.0, "cpu_seconds": 1.0, "load_at_start": 0.5}
    machine = {"processor": "toy", "cores": 1, "threads": "1", "system": "toy"}
    return {"settings": settings, "results": results, "timings": timings, "machine": machine, "versions": {"p": "1"}}


def test_verdict_counts_the_papers_deviations():
    key = ("yacht", "relu", "arccos1", 128, 128)
    published = paper.UCI[key]
    assert published.rmse == (0.59, 0.23)
    rmse, nlpd = verdicts({key: [uci_record(0, 0.59 + 2 * 0.23, 0.90)]})
    np.testing.assert_allclose(rmse.worse_by, (2 * 0.23 - paper.ROUNDING) / 0.23)
    assert not rmse.is_better
    assert rmse.exceeds_printed
    assert not nlpd.exceeds_printed
    assert nlpd.is_better


def test_report_has_what_the_files_have(store, tmp_path):
    experiment = EXPERIMENTS["uci"]
    for split, rmse in enumerate((0.5, 0.7, 0.9, 1.1, 1.3)):
        store.save(experiment, uci_record(split, rmse, 0.91))
    page = report.write(store, tmp_path / "docs")
    text = page.read_text()
    assert "0.90 ± 0.32 | 0.59 ± 0.23 | +0.8" in text  # sample deviation of the five; (0.9 - 0.59) / hypot
    assert "| yacht | relu | arccos1 | 128 | 128 | RMSE | 1.3 |" in text
    assert "toy, 1 cores" in text
    losses = text.split("## Where we lose")[1]
    assert "UCI, yacht, ReLU, arc-cosine, order 1: behind the paper at (128, 128) RMSE by 1.3 sd." in losses
    assert "Not run yet: `python -m benchmarks deep`" in text
    assert (tmp_path / "docs" / "images" / "benchmarks_uci_yacht.png").stat().st_size > 5000


NOTHING = {name: [] for name in EXPERIMENTS}


def deep_record(model, recipe, nlpd, split=0):
    settings = {"data": "yacht", "layers": 2, "model": model, "recipe": recipe, "split": split}
    return {"settings": settings, "results": {"nlpd_standardised": nlpd, "rmse_standardised": 0.01}}


def test_losses_are_those_to_published_runs_and_to_peers():
    assert paper.GPFLUX["yacht"][1][1] == -1.084
    found = [deep_record("softplus", "ours", -1.0), deep_record("gpflux", "ours", -1.2)]
    found += [deep_record("points", "gpflux", -1.1), deep_record("gpflux", "gpflux", -0.9)]
    text = report_losses.section(NOTHING | {"deep": found})
    assert text.count("- Deep, yacht, layers: 2, ours, softplus, our recipe: NLPD -1.000") == 2
    assert "GPflux published -1.084" in text
    assert "GPflux here with our recipe -1.200 (splits: 1)." in text
    assert "GPflux here with GPflux's recipe" not in text
    assert "ours, points" not in text
    found[0]["results"]["rmse_standardised"] = 0.05
    found[3]["results"]["nlpd_standardised"] = -1.3
    text = report_losses.section(NOTHING | {"deep": found})
    assert "RMSE 0.050, GPflux published 0.043." in text
    assert "RMSE 0.050, GPflux here with our recipe 0.010 (splits: 1)." in text
    assert "softplus, our recipe: NLPD -1.000, GPflux here with GPflux's recipe -1.300 (splits: 1)." in text
    assert "points, GPflux's recipe: NLPD -1.100, GPflux here with GPflux's recipe -1.300 (splits: 1)." in text


def test_losses_to_peers_are_those_on_splits_that_both_have():
    found = [deep_record("points", "ours", -2.6), deep_record("gpflux", "ours", -2.5)]
    hard_split = deep_record("points", "ours", -1.5, split=1)
    records = NOTHING | {"deep": [*found, hard_split]}
    assert "Nothing, of what was run." in report_losses.section(records)
    records["deep"].append(deep_record("gpflux", "ours", -1.8, split=1))
    losses = report_losses.section(records)
    assert "our recipe: NLPD -2.050, GPflux here with our recipe -2.150 (splits: 2)." in losses


def test_losses_of_one_dimension_are_those_of_fewer_levels_with_orthogonal_points():
    def snelson_record(levels, num_orthogonal, elbo, rate):
        settings = {"kernel": "arccos1", "features": "relu", "L": levels, "K": num_orthogonal, "repetition": 0}
        return {"settings": settings, "results": {"elbo": elbo, "iterations_per_second": rate}}

    found = [snelson_record(8, 0, -150.0, 300.0), snelson_record(16, 0, -111.5, 200.0)]
    assert "Nothing" in report_losses.section(NOTHING | {"snelson": found})  # nothing to compare with yet
    assert "Nothing" in report_losses.section(NOTHING | {"snelson": [*found, snelson_record(8, 8, -110.0, 210.0)]})
    losses = report_losses.section(NOTHING | {"snelson": [*found, snelson_record(8, 8, -113.5, 180.0)]})
    assert "ELBO -113.5 of L = 8 with K = 8, -111.5 of L = 16." in losses
    assert "iterations per second 180 of L = 8 with K = 8, 200 of L = 16." in losses


def test_training_ends_in_time_with_a_small_rate():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    clock = deadline.KerasDeadline().start(0.3, anneal=True)
    model.fit(np.ones((64, 2)), np.ones(64), batch_size=8, epochs=10**6, verbose=0, callbacks=[clock])
    assert 0.3 <= clock.spent < 30.0
    np.testing.assert_allclose(float(model.optimizer.learning_rate), 0.1 * 0.01, rtol=1e-5)  # float32


@pytest.mark.parametrize("features", ["points", "softplus"])
def test_gpflux_recipe_starts_all_layers_alike(rng, features):
    part = data.split(rng.normal(size=(60, 2)), rng.normal(size=(60, 1)), 0)
    settings = {"model": features, "recipe": "gpflux", "layers": 3, "M": 5, "K": 4, "split": 0}
    layers = deep_models.our_model(settings, part, None).layers[:-1]
    for name in ("inducing_variable", "orthogonal_inducing_variable"):
        first, *others = [getattr(layer.posterior, name).trainable_variables for layer in layers]
        assert all(first[0] is not other[0] for other in others)
        for other in others:
            np.testing.assert_array_equal(other[0], first[0])
    variances = [layer.posterior.kernel.variance.numpy() for layer in layers]
    np.testing.assert_allclose(variances, [1e-6, 1e-6, 1.0], rtol=1e-6)  # softplus and back
