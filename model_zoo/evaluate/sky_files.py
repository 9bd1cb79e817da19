"""The files of a labelled star: under a folder, or members of zip archives there."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Final

from broker_filter.errors import ConfigError
from broker_filter.replay.lightcurves.file import read_lightcurve
from broker_filter.replay.lightcurves.stream import load
from broker_filter.types import Photometry
from model_zoo.evaluate.labels import LabelledStar

__all__ = ["digest", "read_star"]

UNREADABLE: Final = (OSError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What files, archives and members raise that are missing or damaged."""


def read_star(folder: Path, star: LabelledStar) -> list[Photometry]:
    """The photometry of all files of a star.

    Raises
    ------
    ConfigError
        A file is missing or cannot be read, or two files are of one band and source.
    """
    parts: list[Photometry] = []
    owner: dict[tuple[str, str], str] = {}
    for path, band in star.files:
        read = partial(read_lightcurve, star=star.name, band=band or None, survey=star.survey)
        with tempfile.TemporaryDirectory() as unpacked:
            curves, problems = load([_file(folder, path, Path(unpacked))], read)
        if problems:
            raise ConfigError(f"{star.name}: {problems[0]}")
        found = [part for curve in curves for part in curve.parts]
        for part in found:
            other = owner.setdefault((part.band, part.source), path)
            if other != path:
                raise ConfigError(
                    f"{star.name}: {other} and {path} both are band {part.band!r}, source"
                    f" {part.source!r}: rename one, since the name of a file is that of its source"
                )
        parts += found
    return parts


def digest(folder: Path, files: Iterable[tuple[str, str]]) -> str:
    """What files hold, as a sha256 in hex; empty where one of them cannot be read.

    Parameters
    ----------
    folder : Path
    files : iterable of (str, str)
        Paths and bands, as of `LabelledStar.files`.
    """
    found = hashlib.sha256()
    try:
        for path, _ in files:
            with _opened(folder, path) as file:
                found.update(hashlib.sha256(file.read()).digest())
    except UNREADABLE:
        return ""
    return found.hexdigest()


def _file(folder: Path, path: str, unpacked: Path) -> Path:
    """A file under the folder, or a member of an archive, unpacked."""
    if ".zip/" not in path:
        return folder / path
    target = unpacked / Path(path).name
    try:
        with _opened(folder, path) as member, target.open("wb") as copy:
            shutil.copyfileobj(member, copy)
    except UNREADABLE as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return target


@contextmanager
def _opened(folder: Path, path: str) -> Iterator[IO[bytes]]:
    archive, dot_zip, member = path.partition(".zip/")
    if not dot_zip:
        with (folder / path).open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(folder / f"{archive}.zip") as opened, opened.open(member) as file:
        yield file
