"""Files under faults: damaged ones are refused by name, none runs code, and an error spares the previous file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import resource
import shutil
import signal
import tempfile
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from keras.src.backend.common import global_state
from layers import house
from stress.forms import IS_FULL

from keras_odgp import files, layers

X, Y = house.regression()
NUM_DAMAGED = 150  # of each kind of file
NUM_PLAIN = 150 if IS_FULL else 4  # of each kind that Keras reads without our check, which takes longer


def make_model():
    model = house.compiled(house.sequential(house.gp(2, seed=1), *house.head(seed=2)))
    house.perturb(model)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model and its files: those of `keras_odgp.files`, and those of Keras."""
    folder = tmp_path_factory.mktemp("saved")
    model = make_model()
    model.train_on_batch(X, Y)
    files.save_model(model, folder / "model.keras")
    files.save_weights(model, folder / "model.weights.h5", note={"epoch": 3})
    model.save(folder / "plain.keras")
    model.save_weights(folder / "plain.weights.h5")
    return model, folder


def damage(content: bytes, index: int) -> bytes:
    """A file with one bit flipped, or cut short, or with a block of zeros in it."""
    rng = np.random.default_rng(index)
    place = int(rng.integers(len(content)))
    if index % 3 == 1:
        return content[:place]
    end = place + (1 if index % 3 == 0 else 64)
    changed = bytes(b ^ (1 << int(rng.integers(8))) if index % 3 == 0 else 0 for b in content[place:end])
    if changed == content[place:end]:
        return damage(content, index + 3_000)  # zeros in place of zeros
    return content[:place] + changed + content[end:]


@contextlib.contextmanager
def time_limit(seconds: int):
    def stop(*_):
        raise TimeoutError(f"no answer within {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def gp_weights(model):
    return house.values([w for layer in model.layers if isinstance(layer, layers.OrthogonalGP) for w in layer.weights])


def test_whole_files_load(saved):
    model, folder = saved
    house.assert_equal_predictions(files.load_model(folder / "model.keras"), model, X)
    other = make_model()
    files.load_weights(other, folder / "model.weights.h5")
    for left, right in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    assert files.read_note(folder / "model.weights.h5") == {"epoch": 3}
    assert files.read_note(folder / "model.keras") is None


def test_keras_reads_sealed_files(saved):
    model, folder = saved
    other = make_model()
    other.load_weights(folder / "model.weights.h5")
    for each in (other, keras.saving.load_model(folder / "model.keras")):
        for left, right in zip(each.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_damaged_files_are_refused_by_name(saved, tmp_path, name, record):
    model, folder = saved
    content = (folder / name).read_bytes()
    before = model.get_weights()
    path = tmp_path / name
    for index in range(NUM_DAMAGED):
        path.write_bytes(damage(content, index))
        with pytest.raises(files.DamagedFileError, match="damaged"), time_limit(20):
            if name.endswith(".keras"):
                files.load_model(path)
            else:
                files.load_weights(model, path)
    for left, right in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(left, right)
    record("damaged", reader="keras_odgp.files", file=name, tried=NUM_DAMAGED, refused=NUM_DAMAGED, equal=0)


@pytest.mark.parametrize("name", ["plain.keras", "plain.weights.h5"])
def test_keras_never_loads_other_weights_of_gp_layers(saved, tmp_path, name, record):
    """Keras does not see all damage, but the digest of a GP layer guards its weights: an error, or all as saved."""
    model, folder = saved
    content, expected = (folder / name).read_bytes(), gp_weights(model)
    path, target = tmp_path / name, make_model()
    other = [weight + 1.0 for weight in target.get_weights()]
    outcomes = {"refused": 0, "equal": 0}
    for index in range(NUM_PLAIN):
        path.write_bytes(damage(content, index))
        try:
            with time_limit(60):
                if name.endswith(".keras"):
                    target = keras.saving.load_model(path)
                else:
                    target.set_weights(other)  # so that a load that does nothing is seen
                    target.load_weights(path)
        except TimeoutError:
            raise
        except Exception as error:
            assert str(error), f"{type(error).__name__} without a message, at index {index}"
            outcomes["refused"] += 1
            continue
        outcomes["equal"] += 1
        for left, right in zip(gp_weights(target), expected, strict=True):
            np.testing.assert_array_equal(left, right, err_msg=f"damage of index {index}")
    assert outcomes["refused"] > 0
    record("damaged", reader="keras", file=name, tried=NUM_PLAIN, **outcomes)


def test_damaged_weights_of_a_layer_are_named():
    layer, store = house.gp(1, name="third"), {}
    layer.build((None, 3))
    layer.save_own_variables(store)
    layer.load_own_variables(store)
    store["0"] = np.nextafter(store["0"], np.inf)
    with pytest.raises(ValueError, match="weights of layer 'third' are damaged or missing"):
        layer.load_own_variables(store)


def test_files_of_earlier_versions_load():
    layer, store = house.gp(1), {}
    layer.build((None, 3))
    layer.save_own_variables(store)
    del store["digest"]
    layer.load_own_variables(store)


def test_a_layer_of_other_sizes_stays_as_it_was():
    small, large = (house.gp(1, num_inducing=size, name="third") for size in (4, 5))
    store: dict = {}
    for layer in (small, large):
        layer.build((None, 3))
    small.posterior.kernel.variance.assign(3.0)
    small.save_own_variables(store)
    before = large.get_weights()
    with pytest.raises(ValueError, match="'third' as it was made: .*shape.*Got shape .*of a layer of other sizes"):
        large.load_own_variables(store)
    with pytest.raises(ValueError, match="'third'. Got none: is the file of another model"):
        large.load_own_variables({})
    for left, right in zip(large.get_weights(), before, strict=True):
        np.testing.assert_array_equal(left, right)


def test_permissions_and_links_stay(saved, tmp_path):
    model, _ = saved
    path, link = tmp_path / "a.weights.h5", tmp_path / "b.weights.h5"
    files.save_weights(model, path)
    path.chmod(0o600)
    link.symlink_to(path)
    files.save_weights(model, link)
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o600
    files.load_weights(model, path)


def test_what_is_loaded_is_what_was_checked(saved, tmp_path, monkeypatch):
    _, folder = saved
    path = tmp_path / "model.keras"
    path.write_bytes((folder / "model.keras").read_bytes())
    load = keras.saving.load_model

    def replaced_meanwhile(file, **options):
        path.write_bytes(b"something else")
        return load(file, **options)

    monkeypatch.setattr(keras.saving, "load_model", replaced_meanwhile)
    assert files.load_model(path).count_params() == load(folder / "model.keras").count_params()


def test_unsafe_loading_is_refused(saved):
    _, folder = saved
    with pytest.raises(ValueError, match="Expected `safe_mode` to stay True"):
        files.load_model(folder / "model.keras", safe_mode=False)


def test_weights_of_another_model_leave_it_as_it_was(saved):
    _, folder = saved
    other = house.compiled(house.sequential(house.gp(2), *house.head(2)))
    before = other.get_weights()
    with pytest.raises(ValueError):
        files.load_weights(other, folder / "model.weights.h5")
    for left, right in zip(other.get_weights(), before, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    ("function", "path"), [("save_model", "a.h5"), ("load_model", "a.h5"), ("save_weights", "a.keras")]
)
def test_suffix(saved, tmp_path, function, path):
    arguments = [tmp_path / path] if function.startswith("load") else [saved[0], tmp_path / path]
    with pytest.raises(ValueError, match="path that ends in"):
        getattr(files, function)(*arguments)


# Nothing in a file runs code.


class Evil:
    """Pickled, it makes a file when it is read."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def foreign(module: str, name: str, config: dict) -> dict:
    return {"module": module, "class_name": name, "config": config, "registered_name": None}


def attacks(config: dict, marker: str) -> dict[str, dict]:
    """Configurations that would make the marker, if what they name were called."""
    source = f"lambda x: __import__('os').mkdir({marker!r}) or x"
    before = global_state.get_global_attribute("safe_mode_saving")
    keras.config.enable_unsafe_deserialization()
    try:
        evil = keras.saving.serialize_keras_object(keras.layers.Lambda(eval(source)))
    finally:
        global_state.set_global_attribute("safe_mode_saving", before)
    gpflow_class = {"class": "os.mkdir", "arguments": {"path": marker}, "frozen": [], "dtype": "float64"}

    def of_layer(**options) -> dict:
        changed = json.loads(json.dumps(config))
        layer = next(part for part in changed["config"]["layers"] if part["class_name"] == "OrthogonalGP")
        layer["config"].update(options)
        return changed

    with_lambda = json.loads(json.dumps(config))
    with_lambda["config"]["layers"].append(evil)
    return {
        "lambda layer": with_lambda,
        "lambda as mean function": of_layer(mean_function=evil),
        "function as mean function": of_layer(mean_function=foreign("os", "mkdir", {"path": marker})),
        "class as kernel": of_layer(kernel=gpflow_class),
        "class as features": of_layer(features=gpflow_class),
        "function within a kernel": of_layer(
            kernel={
                "class": "gpflow.kernels.Constant",
                "arguments": {"variance": {"function": "os.mkdir"}},
                "frozen": [],
                "dtype": "float64",
            }
        ),
        "function as model": foreign("os", "mkdir", {"path": marker}),
        "class as model": foreign("subprocess", "Popen", {"args": ["mkdir", marker]}),
        "builtin as model": foreign("builtins", "eval", {"source": f"__import__('os').mkdir({marker!r})"}),
    }


def rewritten(path: Path, replacements: dict[str, bytes | None]) -> bytes:
    """A `.keras` file with other members; None leaves one out."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w") as new:
        members = {name: old.read(name) for name in old.namelist()} | replacements
        for name, content in members.items():
            if content is not None:
                new.writestr(name, content)
    return buffer.getvalue()


def test_nothing_in_a_file_runs(saved, tmp_path, record):
    _, folder = saved
    marker = tmp_path / "marker"
    with zipfile.ZipFile(folder / "plain.keras") as archive:
        config = json.loads(archive.read("config.json"))
    tried = attacks(config, str(marker))
    for name, changed in tried.items():
        path = tmp_path / "attack.keras"
        content = rewritten(folder / "plain.keras", {"config.json": json.dumps(changed).encode()})
        for load, seal in ((keras.saving.load_model, b""), (files.load_model, files._seal(content, None))):
            path.write_bytes(content + seal)
            with pytest.raises((ValueError, TypeError, KeyError)) as caught:
                load(path)
            assert str(caught.value), name
            assert not isinstance(caught.value, files.DamagedFileError), name
            assert not marker.exists(), name
    path.write_bytes(rewritten(folder / "plain.keras", {"config.json": json.dumps(tried["lambda layer"]).encode()}))
    keras.saving.load_model(path, safe_mode=False)
    assert marker.exists()  # the attack itself works
    record("attacks", tried=[*tried, "pickled weights"])


def test_pickled_weights_are_not_read(saved, tmp_path):
    _, folder = saved
    marker = tmp_path / "marker"
    buffer = io.BytesIO()
    np.savez(buffer, **{"layers": np.array(Evil(str(marker)), dtype=object)})
    members = {"model.weights.h5": None, "model.weights.npz": buffer.getvalue()}
    path = tmp_path / "attack.keras"
    path.write_bytes(rewritten(folder / "plain.keras", members))
    with pytest.raises(ValueError, match="Got none: is the file of another model|pickle"):
        keras.saving.load_model(path)
    assert not marker.exists()
    pickle.loads(pickle.dumps(Evil(str(marker))))  # the attack itself works
    assert marker.exists()


# Errors while a file is written.


@contextlib.contextmanager
def full_disk(free: int):
    """Files cannot grow beyond so many bytes; holds for every user."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def read_only(folder: Path):
    """Permissions do not bind the superuser, who therefore becomes somebody else."""
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


SAVERS = {"model.keras": files.save_model, "model.weights.h5": files.save_weights}


@pytest.fixture
def open_folder():
    """A folder that other users may enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", SAVERS)
@pytest.mark.parametrize("fault", ["full disk", "full disk at the end", "read-only directory", "interrupt"])
def test_error_while_saving_spares_the_previous_file(saved, open_folder, name, fault, monkeypatch, record):
    model, folder = saved
    path = open_folder / name
    shutil.copy(folder / name, path)
    content = path.read_bytes()
    expected = OSError
    with contextlib.ExitStack() as stack:
        if fault.startswith("full disk"):
            # "At the end" only the seal has no room left.
            stack.enter_context(full_disk(len(content) - 20 if fault.endswith("end") else len(content) // 2))
        elif fault == "read-only directory":
            stack.enter_context(read_only(open_folder))
        else:
            expected = KeyboardInterrupt
            stack.enter_context(monkeypatch.context()).setattr(os, "replace", raise_interrupt)
        stack.enter_context(pytest.raises(expected))
        SAVERS[name](model, path)
    assert path.read_bytes() == content
    assert [file.name for file in open_folder.iterdir()] == [name]  # and nothing else is left over
    record("saving", fault=fault, file=name)


def raise_interrupt(*_):
    raise KeyboardInterrupt
