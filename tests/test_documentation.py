"""The documentation: everything in it runs, links resolve, names exist, nothing public is left out."""

from __future__ import annotations

import importlib
import inspect
import re
import types
from pathlib import Path

import pytest
from stress import hostile

import keras_odgp
from tutorials.__main__ import NAMES, fast, run

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TUTORIALS = [ROOT / "tutorials" / f"{name}.py" for name in NAMES]
ALIAS = "odgp"  # the name under which the documentation imports the package


def public_modules() -> list[types.ModuleType]:
    names = [name for name in keras_odgp.__all__ if isinstance(getattr(keras_odgp, name), types.ModuleType)]
    return [keras_odgp, *(importlib.import_module(f"keras_odgp.{name}") for name in [*names, "gpflux_layers"])]


def public_objects() -> dict[str, object]:
    """Public classes and functions by their full names; what other packages own is theirs to document."""
    found = {f"{part.__name__}.{name}": getattr(part, name) for part in public_modules() for name in part.__all__}
    return {
        name: part
        for name, part in found.items()
        if callable(part) and (getattr(part, "__module__", None) or "").startswith("keras_odgp")
    }


def resolves(dotted: str) -> bool:
    """Whether `keras_odgp.a.b` is a module, or an attribute of one, or of a class in one."""
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            part: object = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for name in parts[split:]:
            if not hasattr(part, name):
                return False
            part = getattr(part, name)
        return True
    return False


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *PAGES, *TUTORIALS], ids=lambda path: path.name)
def test_links_resolve(path):
    text = path.read_text()
    folder = path.parent
    if path in TUTORIALS:  # which are pages of the site, below `docs`
        folder = DOCS / "tutorials"
        text = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if re.match(r"https?://|mailto:", target) or not file:
            continue
        resolved = (folder / file).resolve()
        if resolved.parent == DOCS / "tutorials":
            resolved = ROOT / "tutorials" / resolved.name
        assert resolved.exists(), f"{path.name} links to {target}"
        if anchor:
            headings = re.findall(r"^(?:# )?#+ (.+)$", resolved.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}, target


def test_table_of_contents_is_complete():
    """Sphinx would warn of a page that no table of contents has; this is faster to hear of."""
    entries = set(re.findall(r"^([\w/]+)$", (DOCS / "index.md").read_text(), re.MULTILINE))
    pages = {page.stem for page in PAGES} - {"index"} | {f"tutorials/{name}" for name in NAMES}
    assert pages <= entries


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *PAGES, *TUTORIALS], ids=lambda path: path.name)
def test_names_exist(path):
    """Whatever is written as a name of the package is one."""
    text = path.read_text()
    names = re.findall(rf"\b(?:keras_odgp|{ALIAS})(?:\.[A-Za-z_]\w*)+", text)
    names = [re.sub(rf"^{ALIAS}\b", "keras_odgp", name) for name in names]
    files = {name for name in names if name.endswith((".py", ".md"))}
    assert not [name for name in names if name not in files and not resolves(name)]


def test_reference_has_every_public_name():
    """Each public module is in the reference with its members, which Sphinx takes from `__all__`."""
    reference = (DOCS / "api.md").read_text()
    documented = set(re.findall(r"automodule:: (\S+)\n   :members:\n   :imported-members:", reference))
    assert documented == {module.__name__ for module in public_modules()}
    for module in public_modules():
        assert all(hasattr(module, name) for name in module.__all__), module.__name__


def test_table_of_what_was_tried_has_every_hostile_data_set():
    """`make stress` writes it: it has not been run since the data sets changed if this fails."""
    text = (DOCS / "reliability.md").read_text()
    expected = {*hostile.trainable(), *hostile.refused()}
    assert f"**Hostile data: {len(expected)} data sets.**" in text
    assert {name for name in expected if f"| {name} |" in text} == expected


@pytest.mark.parametrize("name", sorted(public_objects()))
def test_public_names_have_examples(name):
    """A docstring of its own, with an example that the tests of docstrings run, and with shapes if it takes tensors."""
    public = public_objects()[name]
    documentation = inspect.cleandoc(public.__doc__ or "")
    assert ">>> " in documentation
    annotations = inspect.get_annotations(public.__init__ if inspect.isclass(public) else public)
    if any("Tensor" in str(annotation) or "ndarray" in str(annotation) for annotation in annotations.values()):
        assert re.search(r"\[[^\]]*\b[A-Z]\w*\b[^\]]*\]|shape", documentation), "no shapes"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    """All blocks of a page, one after the other; what is not Python (shell, text) is marked as such."""
    blocks = re.findall(r"^```(\S*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert all(language for language, _ in blocks), "a block has no language"
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    with fast():
        for language, code in blocks:
            if language == "python":
                exec(compile(code, page.name, "exec"), names)


@pytest.mark.parametrize("name", NAMES)
def test_tutorials_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fast():
        figures = run(name, tmp_path)
    assert figures and all(path.stat().st_size > 10_000 for path in figures)  # a blank one is smaller
