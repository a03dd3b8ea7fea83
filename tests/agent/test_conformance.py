"""The conformance suite passes on our agents and on the guide's example, and finds fault with one that is not an agent."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.agent.machine import needs_linux

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "agent-author.md"
LINES_MAX = 100
SYNTHETIC = (
    *("--rate", "20", "--quick", "synthetic-job --runtime-ms 6000 --startup-ms 0", "--long", "synthetic-job --runtime-ms 36000000"),
    *("--failing", "synthetic-job --runtime-ms 60000 --startup-ms 0 --crash-after-ms 2000"),
    *("--stubborn", "synthetic-job --runtime-ms 36000000 --ignore-sigterm"),
)
VARIABLES = ("GPUS=8", "NODE_FAILURES_PER_DAY=0", "MIN_TICK_MS=200", "TICK_S=1", "TRUTH_FILE={folder}/truth.jsonl")


class Tried(NamedTuple):
    code: int
    reply: Any


async def tried(*words: str) -> Tried:
    suite = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "allmende.agent.conformance", "--json", *words),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ,
    )
    out, _ = await suite.communicate()
    assert suite.returncode is not None
    return Tried(suite.returncode, json.loads(out))


def example() -> str:
    (found,) = [block for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "asyncio.run(" in block]
    return str(found)


@needs_linux
@pytest.mark.timeout(180)  # three suites side by side, each of which waits for what comes again
async def test_our_agents_and_the_guides_example_conform(tmp_path: Path) -> None:
    source = example()
    assert len(source.splitlines()) < LINES_MAX
    program = tmp_path / "example_agent.py"
    program.write_text(source)
    python = sys.executable
    synthetic = [f"ALLMENDE_SYNTHETIC_{variable}" for variable in VARIABLES]
    found = await asyncio.gather(
        tried("--", python, "-m", "allmende.agent.process", "--folder", "{folder}", "--gpus", "4", "--tick-ms", "200"),
        tried(*SYNTHETIC, "--", "env", *synthetic, python, "-m", "allmende.agent.synthetic"),
        tried("--", python, str(program), "{folder}"),
    )
    for each in found:
        assert [case for case in each.reply["cases"] if case["fault"]] == []
        assert (each.code, each.reply["conforms"], len(each.reply["cases"])) == (0, True, 22)


async def test_what_is_no_agent_does_not_conform() -> None:
    found = await tried("--", "false")
    assert (found.code, found.reply["conforms"]) == (1, False)
    assert "ended with exit code 1" in found.reply["cases"][0]["fault"]
