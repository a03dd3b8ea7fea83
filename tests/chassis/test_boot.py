"""Start and end of a service as a process: over real servers, by signals and exit codes."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from allmende.chassis import rpc
from allmende.cli.lab.running import serves
from allmende.proto import subjects
from allmende.proto.ledger import LedgerStateQuery
from tests.chassis.scene import until
from tests.chassis.test_health import get
from tests.servers import NAMES, Lab

SERVICE = str(Path(__file__).with_name("service_on_trial.py"))


@asynccontextmanager
async def started(environment: Mapping[str, str], *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, SERVICE, *arguments, env=dict(environment), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: asyncio.subprocess.Process, within_s: float = 20.0) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    async with asyncio.timeout(within_s):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def port_of(lab: Lab) -> int:
    file = lab.directory / "ledger.port"

    async def there() -> bool:
        return file.exists()

    await until(there, "the port file is written")
    return int(file.read_text())


async def wait_ready(port: int, wanted: bool = True) -> None:
    async def ready() -> bool:
        return (await get(port, "/readyz"))[1]["ready"] is wanted

    await until(ready, f"ready: {wanted}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_service_says_once_that_it_started_and_ends_cleanly_by_a_signal(lab: Lab, number: signal.Signals) -> None:
    async with started(lab.env("ledger")) as process:
        port = await port_of(lab)
        await wait_ready(port)
        assert (await get(port, "/healthz"))[0] == 200
        process.send_signal(number)
        code, out, err = await ended(process, 5)
    assert (code, out) == (0, "")
    lines = [msgspec.json.decode(line) for line in err.splitlines()]
    assert [line["event"] for line in lines] == ["started", "stopping"]
    assert (lines[0]["service"], lines[0]["port"], lines[0]["level"]) == ("ledger", port, "info")
    assert lines[0]["instance"].endswith(f"-{process.pid}")


async def test_one_that_is_ready_answers_the_first_question(lab: Lab) -> None:
    asker = await lab.bus("operator")
    async with started(lab.env("ledger")) as process:
        await wait_ready(await port_of(lab))
        state = await rpc.ask(asker, subjects.LEDGER_STATE, NAMES["operator"], LedgerStateQuery(cluster="c1"))
        assert state.cluster == "c1"
        process.terminate()


async def test_one_that_does_not_answer_yet_is_not_ready_though_it_is_alive_and_a_lab_waits_for_it(lab: Lab) -> None:
    async with started({**lab.env("ledger"), "ALLMENDE_LEDGER_MANNER": "mute"}) as process:
        port = await port_of(lab)

        async def nothing_else_is_missing() -> bool:
            return set((await get(port, "/readyz"))[1]["why"]) == {"requests"}

        await until(nothing_else_is_missing, "all but the requests is ready")
        assert (await get(port, "/healthz"))[0] == 200
        assert not await asyncio.to_thread(serves, lab.directory / "ledger.port")
        process.terminate()


@pytest.mark.parametrize(
    ("manner", "code", "words"),
    [("return", 0, ""), ("assert", 70, "the books do not balance"), ("stale", 75, "taken over")],
)
async def test_a_service_ends_with_a_code_that_says_whether_to_start_it_again(lab: Lab, manner: str, code: int, words: str) -> None:
    async with started({**lab.env("ledger"), "ALLMENDE_LEDGER_MANNER": manner}) as process:
        found, _, err = await ended(process)
    assert found == code, err
    assert words in err


async def test_one_that_hangs_at_its_end_is_ended_within_five_seconds(lab: Lab) -> None:
    async with started({**lab.env("ledger"), "ALLMENDE_LEDGER_MANNER": "hang"}) as process:
        await wait_ready(await port_of(lab))
        process.terminate()
        code, _, _ = await ended(process, 5)
    assert code == 70


MISCONFIGURED = [
    ("an unknown setting", {"ALLMENDE_LEDGER_COLOUR": "red"}, "ALLMENDE_LEDGER_COLOUR is set, but ledger has no setting colour"),
    ("no database", {"ALLMENDE_DATABASE_URL": ""}, "database_url is missing: set ALLMENDE_LEDGER_DATABASE_URL"),
    ("a clock that cannot be read", {"ALLMENDE_CLOCK": "fast"}, "clock 'fast' is neither real nor"),
    ("a wrong password", {"ALLMENDE_DATABASE_URL": "wrong"}, "password authentication failed"),
    ("a seed file that is not there", {"ALLMENDE_NATS_SEED_FILE": "/nowhere"}, "/nowhere"),
    ("a port file in no folder", {"ALLMENDE_PORT_FILE": "/nowhere/port"}, "port_file /nowhere/port cannot be written"),
    ("an address that is not ours", {"ALLMENDE_HTTP_HOST": "192.0.2.1"}, "cannot be opened"),
]


@pytest.mark.parametrize(("sentence", "change", "words"), MISCONFIGURED, ids=[row[0] for row in MISCONFIGURED])
async def test_a_wrong_setting_ends_it_with_78_and_one_sentence(
    lab: Lab, sentence: str, change: dict[str, str], words: str
) -> None:
    if change.get("ALLMENDE_DATABASE_URL") == "wrong":
        change = {"ALLMENDE_DATABASE_URL": lab.dsn("ledger").replace("ledger:", "ledger:x")}
    async with started({**lab.env("ledger"), **change}) as process:
        code, out, err = await ended(process)
    assert (code, out) == (78, ""), sentence
    assert words in err
    assert len(err.splitlines()) == 1, "one sentence, no traceback"


async def test_it_waits_for_servers_that_are_not_there_yet_and_says_for_which(lab: Lab) -> None:
    await lab.kill("nats")
    async with started(lab.env("ledger")) as process:
        port = await port_of(lab)

        async def waits_for_bus() -> bool:
            return "bus" in (await get(port, "/readyz"))[1]["why"]

        await until(waits_for_bus, "the page says that the bus is missing")
        await lab.restart("nats")
        await wait_ready(port)
        process.terminate()
        assert (await ended(process, 5))[0] == 0


async def test_it_can_be_stopped_while_it_waits(lab: Lab) -> None:
    await lab.kill("nats")
    async with started(lab.env("ledger")) as process:
        await port_of(lab)
        process.terminate()
        assert (await ended(process, 5))[0] == 0
    await lab.restart("nats")


async def test_credentials_that_are_taken_away_end_it(lab: Lab) -> None:
    async with started(lab.env("ledger")) as process:
        await wait_ready(await port_of(lab))
        await lab.remove_user("ledger", "ledger")
        code, _, err = await ended(process)
    assert code in (75, 78), err


async def test_settings_are_shown_without_starting_anything_and_without_secrets(lab: Lab) -> None:
    async with started(lab.env("ledger"), "settings") as process:
        code, out, err = await ended(process)
    assert (code, err) == (0, "")
    assert 'manner = "wait"  # default' in out
    assert "ledger:***@" in out


async def test_migrations_can_be_run_apart(lab: Lab) -> None:
    for words in ("applied 001_chassis.sql", "nothing to apply"):
        async with started(lab.env("ledger"), "migrate") as process:
            code, out, err = await ended(process)
        assert code == 0, err
        assert words in out


async def test_settings_come_from_a_file_too(lab: Lab) -> None:
    file = lab.directory / "ledger.toml"
    file.write_text('manner = "return"\n')
    async with started(lab.env("ledger"), "--settings", str(file)) as process:
        assert (await ended(process))[0] == 0
