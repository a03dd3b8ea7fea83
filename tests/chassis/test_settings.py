"""Settings: every fault is named, nothing is guessed, no secret is shown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import pytest
from msgspec import Meta

from allmende.chassis.errors import Misconfigured
from allmende.chassis.settings import BaseSettings, load, shown


class Settings(BaseSettings, frozen=True, kw_only=True):
    window_ms: Annotated[int, Meta(ge=1)] = 60_000
    share: Annotated[int, Meta(ge=0)] | None = None
    clusters: tuple[str, ...] = ()
    limits: dict[str, int] = {}  # noqa: RUF012 msgspec copies it
    api_token: str | None = None

    def __post_init__(self) -> None:
        if self.share is not None and self.share > self.window_ms:
            raise ValueError("share is larger than window_ms")


URLS = {"ALLMENDE_NATS_URL": "nats://bus:4222", "ALLMENDE_DATABASE_URL": "postgresql://ledger:s3cret@db/allmende"}


def read(environment: Mapping[str, str], file: Path | None = None) -> Settings:
    return load("ledger", Settings, {**URLS, **environment}, file)[0]


def test_defaults_file_and_environment_in_this_order_and_the_services_own_variable_last(tmp_path: Path) -> None:
    file = tmp_path / "ledger.toml"
    file.write_text('window_ms = 5\nhttp_port = 1000\nlog_level = "debug"\nclusters = ["c1"]\n')
    environment = {"ALLMENDE_HTTP_PORT": "2000", "ALLMENDE_LEDGER_HTTP_PORT": "3000", "ALLMENDE_LOG_LEVEL": "error", "PATH": "/bin"}
    settings = read(environment, file)
    assert (settings.window_ms, settings.http_port, settings.log_level, settings.clusters) == (5, 3000, "error", ("c1",))
    assert settings.migrate is True


def test_text_is_read_by_the_fields_type() -> None:
    settings = read(
        {
            "ALLMENDE_MIGRATE": "false",
            "ALLMENDE_LEDGER_SHARE": "0",
            "ALLMENDE_LEDGER_CLUSTERS": '["c1", "c2"]',
            "ALLMENDE_LEDGER_LIMITS": '{"c1": 3}',
        }
    )
    assert (settings.migrate, settings.share, settings.clusters, settings.limits) == (False, 0, ("c1", "c2"), {"c1": 3})


def test_an_empty_variable_is_unset_which_is_not_zero() -> None:
    assert read({"ALLMENDE_LEDGER_SHARE": ""}).share is None


def test_variables_of_other_services_are_not_ours() -> None:
    assert read({"ALLMENDE_ADMISSION_WINDOW": "7", "ALLMENDE_HOME": "/somewhere", "ALLMENDE_WINDOW_MS": "7"}).window_ms == 60_000


FAULTS = [
    (
        "a misspelt variable",
        {"ALLMENDE_LEDGER_WINDWO_MS": "5"},
        "ALLMENDE_LEDGER_WINDWO_MS is set, but ledger has no setting windwo_ms",
    ),
    ("zero where it means nothing", {"ALLMENDE_LEDGER_WINDOW_MS": "0"}, "ALLMENDE_LEDGER_WINDOW_MS='0': Expected `int` >= 1"),
    ("a negative number", {"ALLMENDE_LEDGER_WINDOW_MS": "-5"}, "Expected `int` >= 1"),
    ("half a number", {"ALLMENDE_LEDGER_WINDOW_MS": "1.5"}, "ALLMENDE_LEDGER_WINDOW_MS='1.5'"),
    ("a unit", {"ALLMENDE_LEDGER_WINDOW_MS": "5m"}, "ALLMENDE_LEDGER_WINDOW_MS='5m'"),
    ("a port too large", {"ALLMENDE_HTTP_PORT": "65536"}, "ALLMENDE_HTTP_PORT='65536'"),
    ("a level nobody knows", {"ALLMENDE_LOG_LEVEL": "loud"}, "ALLMENDE_LOG_LEVEL='loud'"),
    ("broken JSON", {"ALLMENDE_LEDGER_CLUSTERS": "[1"}, "ALLMENDE_LEDGER_CLUSTERS='[1'"),
    ("a rule between two", {"ALLMENDE_LEDGER_SHARE": "9", "ALLMENDE_LEDGER_WINDOW_MS": "8"}, "share is larger than window_ms"),
]


@pytest.mark.parametrize(("sentence", "environment", "words"), FAULTS, ids=[row[0] for row in FAULTS])
def test_a_fault_is_told_by_the_variable_and_what_is_wrong(sentence: str, environment: dict[str, str], words: str) -> None:
    with pytest.raises(Misconfigured) as found:
        read(environment)
    assert words in str(found.value), sentence


def test_all_faults_are_told_at_once_and_missing_settings_by_the_variable_to_set(tmp_path: Path) -> None:
    file = tmp_path / "ledger.toml"
    file.write_text('colour = "red"\nwindow_ms = "long"\n')
    with pytest.raises(Misconfigured) as found:
        load("ledger", Settings, {"ALLMENDE_LEDGER_HTTP_PORT": "x"}, file)
    for words in (
        "colour, which nobody knows",
        "window_ms = 'long'",
        "HTTP_PORT='x'",
        "set ALLMENDE_LEDGER_NATS_URL",
        "DATABASE_URL",
    ):
        assert words in str(found.value)


@pytest.mark.parametrize("text", ["window_ms = ", "\x00"])
def test_a_file_that_is_no_toml_is_told_by_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ledger.toml"
    file.write_text(text)
    with pytest.raises(Misconfigured, match=r"ledger\.toml cannot be read"):
        read({}, file)
    with pytest.raises(Misconfigured, match="cannot be read"):
        read({}, tmp_path / "missing.toml")


def test_effective_settings_are_shown_with_their_origin_and_without_secrets() -> None:
    environment = {**URLS, "ALLMENDE_LEDGER_API_TOKEN": "hush", "ALLMENDE_LEDGER_WINDOW_MS": "7"}
    text = shown(*load("ledger", Settings, environment, None))
    assert "s3cret" not in text
    assert "hush" not in text
    assert 'database_url = "postgresql://ledger:***@db/allmende"  # ALLMENDE_DATABASE_URL' in text
    assert "window_ms = 7  # ALLMENDE_LEDGER_WINDOW_MS" in text
    assert 'clock = "real"  # default' in text
    assert "# share is unset" in text


def test_a_secret_is_not_shown_in_a_fault_either() -> None:
    class Strict(BaseSettings, frozen=True, kw_only=True):
        api_token: Annotated[str, Meta(min_length=20)]

    with pytest.raises(Misconfigured) as found:
        load("ledger", Strict, {**URLS, "ALLMENDE_LEDGER_API_TOKEN": "hush"}, None)
    assert "hush" not in str(found.value)
