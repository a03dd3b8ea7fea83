"""The folder of CSV files: documented columns, every row, and sums that agree with the figures."""

import csv as reader
import re
from pathlib import Path

from allmende.proto.units import HOUR_MS
from allmende.simulator import figures
from allmende.simulator.report import csv
from tests.simulator.figures.builders import TEAMS, generated, history, job, life, run

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "simulate-outputs.md"


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return list(reader.DictReader(file))


def test_every_file_has_its_rows_and_they_add_up(tmp_path: Path) -> None:
    told = generated(1)
    measured = figures.measure(told)
    csv.write(tmp_path / "new" / "folder", told, measured)
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == sorted(csv.COLUMNS)
    assert len(rows(folder, "jobs.csv")) == len(told.lives)
    assert len(rows(folder, "attempts.csv")) == len(told.runs)
    assert len(rows(folder, "nodes.csv")) == len(told.nodes)
    assert len(rows(folder, "standings.csv")) == sum(len(sample.standings) for sample in told.standings)
    hourly = rows(folder, "teams_hourly.csv")
    assert len(hourly) == len(measured.hourly.available) * len(TEAMS)
    assert round(sum(int(row["delivered_gpu_ms"]) for row in hourly) / HOUR_MS, 6) == measured.delivered_gpu_hours
    waits = rows(folder, "waits.csv")
    assert len(waits) == measured.waits_s["all"].jobs
    assert sum(int(row["never_started"]) for row in waits) == measured.waits_s["all"].never_started
    assert sum("debug" in row["classes"].split() for row in waits) == measured.waits_s["debug"].jobs


def test_a_name_with_a_comma_or_a_quote_stays_one_field(tmp_path: Path) -> None:
    name = 'a,"b\n=1'
    told = history([life(job("j", name), name, 0, 4)], [run("j", 0, 4, name)])
    csv.write(tmp_path, told, figures.measure(told))
    assert [row["leaf"] for row in rows(tmp_path, "attempts.csv")] == [name]
    assert [row["budget"] for row in rows(tmp_path, "jobs.csv")] == [name]


def test_what_is_unknown_is_empty_and_a_placement_names_its_nodes(tmp_path: Path) -> None:
    told = history([life(job("j"))], [run("j", 0, 4)])
    csv.write(tmp_path, told, figures.measure(told))
    (lived,), (ran,) = rows(tmp_path, "jobs.csv"), rows(tmp_path, "attempts.csv")
    assert (lived["ended_at_ms"], lived["end"], lived["gpus"], lived["resumable"]) == ("", "", "8", "1")
    assert (ran["placement"], ran["gpus"], ran["claimant"]) == ("n1:8", "8", "")


def test_the_guide_documents_every_column_and_no_other() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    documented: dict[str, list[str]] = {}
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        name = section.split("`")[1]
        documented[name] = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert {name: tuple(columns) for name, columns in documented.items()} == csv.COLUMNS
