"""Cells: the units of an experiment that are run, stored and skipped one by one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Settings = dict[str, Any]  # of one cell: names and plain values
Record = dict[str, Any]  # of one finished cell: what is in its file
Run = Callable[[Settings, "Context"], dict[str, Any]]


@dataclass(frozen=True)
class Context:
    """What a run of a cell may use beside its settings.

    Attributes:
        data_dir: Directory of the data, or None for those that are fetched.
        results: Directory of results, for cells that look at others.
    """

    data_dir: Path | None = None
    results: Path | None = None


@dataclass(frozen=True)
class Experiment:
    """An experiment, declared as data.

    Attributes:
        name: Its name on the command line, and that of its directory of results.
        description: What it shows, in a line.
        identity: The settings that name a cell; the others are its protocol.
        cells: Settings of all cells, the most important first.
        quick: Settings of a few cells that together take two minutes or so, a subset of everything.
        run: Computes what a cell is about. Whatever is slow to import, it imports itself.
    """

    name: str
    description: str
    identity: tuple[str, ...]
    cells: Sequence[Settings]
    quick: Sequence[Settings]
    run: Run

    def file_name(self, settings: Settings) -> str:
        """Name of the file of a cell."""
        return "_".join(str(settings[key]).replace(" ", "-") for key in self.identity) + ".json"


class Store:
    """Records of finished cells, one JSON file each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, experiment: Experiment, settings: Settings) -> Path:
        """File of a cell."""
        return self.directory / experiment.name / experiment.file_name(settings)

    def has(self, experiment: Experiment, settings: Settings) -> bool:
        """Whether a cell is finished, with these very settings: another protocol makes another cell."""
        path = self.path(experiment, settings)
        return path.exists() and read(path)["settings"] == json.loads(json.dumps(settings))

    def save(self, experiment: Experiment, record: Record) -> Path:
        """Writes a record such that its file is there as a whole or not at all, whenever the process ends."""
        path = self.path(experiment, record["settings"])
        text = json.dumps(record, indent=1) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".unfinished-", delete=False) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
        return path

    def load(self, name: str) -> list[Record]:
        """All records of an experiment, in the order of their file names."""
        return list(self._records(name))

    def _records(self, name: str) -> Iterator[Record]:
        for path in sorted((self.directory / name).glob("*.json")):
            yield read(path)


def read(path: Path) -> Record:
    """A record from its file."""
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"Expected a JSON record in {path}. Got something else ({error}): delete the file.") from error
