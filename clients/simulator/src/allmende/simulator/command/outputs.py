"""The files that a run leaves: made ready before it begins, so that what cannot be written is known then, and put in place whole.

Each is written under another name beside its place and then renamed. Never replaces what is no ordinary file, nor an input.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from allmende.simulator.command.ask import Ask
from allmende.simulator.command.failures import Asked, CommandFailed, Exit
from allmende.simulator.figures import Figures
from allmende.simulator.model import History
from allmende.simulator.report import csv
from allmende.simulator.report.html import page
from allmende.simulator.report.places import draft, real


class Outputs:
    """The files of all runs. The first run has the places that were asked for, further ones have theirs beside or below."""

    def __init__(self, ask: Ask, keys: Sequence[str]) -> None:
        self._pages: dict[str, Path] = {}
        self._folders: dict[str, Path] = {}
        self._parts: list[Path] = []
        self._made: list[Path] = []
        for number, key in enumerate(keys):
            if ask.html is not None:
                first = real(ask.html)
                self._pages[key] = first.parent / f"{first.stem}-{key}{first.suffix}" if number else first
            if ask.csv_dir is not None:
                self._folders[key] = real(ask.csv_dir / key if number else ask.csv_dir)

    def prepare(self, inputs: Sequence[Path], asked: Asked) -> None:
        """Begin every file; what cannot be written goes into `asked`. Call `discard` in any case."""
        read = {real(path) for path in inputs} | {real(path / "philly.csv") for path in inputs}
        # Folders first: a page may go into one.
        for folder in self._folders.values():
            self._try("--csv-dir", folder, self._begin_folder, read, asked)
        for target in self._pages.values():
            self._try("--html", target, self._begin_page, read, asked)

    def write(self, key: str, history: History, figures: Figures, notes: Sequence[str]) -> None:
        """Write the files of one run.

        Raises:
            CommandFailed: the disk is full, or somebody took the folder away meanwhile.
        """
        target = next((each for each in (self._pages.get(key), self._folders.get(key)) if each is not None), None)
        try:
            if (folder := self._folders.get(key)) is not None:
                target = folder
                csv.write(draft(folder / "csv"), history, figures)
                for name in csv.COLUMNS:
                    (draft(folder / "csv") / name).replace(folder / name)
            if (target_page := self._pages.get(key)) is not None:
                target = target_page
                # Without the cost: the page is the same for the same inputs and seed.
                page.write(draft(target_page), history, figures, None, notes)
                draft(target_page).replace(target_page)
        except OSError as error:
            raise CommandFailed(Exit.OUTPUT, f"{target}: the run is over, but this cannot be written: {error.strerror}") from None

    def discard(self) -> None:
        """Remove what was begun and not put in place."""
        for part in self._parts:
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)
        for folder in reversed(self._made):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _try(
        self, option: str, target: Path, begin: Callable[[Path, set[Path]], str | None], read: set[Path], asked: Asked
    ) -> None:
        try:
            sentence = begin(target, read)
        except OSError as error:
            sentence = f"cannot be written: {error.strerror}"
        if sentence is not None:
            asked.add(option, f"{target}: {sentence}")

    def _begin_page(self, target: Path, read: set[Path]) -> str | None:
        if (sentence := _not_a_place(target, read)) is not None:
            return sentence
        if not target.parent.is_dir():
            return f"there is no folder {target.parent}; make it first"
        self._begin(target)
        return None

    def _begin_folder(self, folder: Path, read: set[Path]) -> str | None:
        if folder.exists() and not folder.is_dir():
            return "is a file; give a folder"
        for name in csv.COLUMNS:
            if (sentence := _not_a_place(folder / name, read)) is not None:
                return f"{name} {sentence}"
        for each in reversed((folder, *folder.parents)):
            if not each.exists():
                each.mkdir()
                self._made.append(each)
        part = draft(folder / "csv")
        part.mkdir()
        self._parts.append(part)
        return None

    def _begin(self, target: Path) -> None:
        part = draft(target)
        part.open("x").close()
        self._parts.append(part)


def _not_a_place(target: Path, read: set[Path]) -> str | None:
    if target in read:
        return "is read by this very run; give another place"
    if target.exists() and not target.is_file():
        return "is there already and no ordinary file; give another place"
    return None
