"""The index of the decision records names each of them, once, by its own title."""

import re
from pathlib import Path

from tests.repo.tree import files, text

FOLDER = Path("docs/decisions")


def test_the_index_lists_every_record_in_order() -> None:
    listed = [line for line in text(FOLDER / "README.md").splitlines() if re.match(r"- \[\d{4}", line)]
    assert listed == [_index_line(path) for path in _records()], "copy the lines of the right side into docs/decisions/README.md"


def test_no_two_records_share_a_number() -> None:
    numbers = [path.name[:4] for path in _records()]
    assert len(set(numbers)) == len(numbers), numbers


def _records() -> list[Path]:
    return [path for path in files() if path.parent == FOLDER and path.suffix == ".md" and path.name != "README.md"]


def _index_line(path: Path) -> str:
    title = text(path).splitlines()[0].removeprefix("# ").removeprefix(path.name[:4]).lstrip(" .:—-")
    return f"- [{path.name[:4]}]({path.name}) {title}"
