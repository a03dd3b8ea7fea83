"""The scene on which the service is tried. A file that begins with more has a fixture of the same name that takes this one."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.admission.scene import Scene
from tests.servers import Lab


@pytest_asyncio.fixture
async def scene(lab: Lab) -> AsyncIterator[Scene]:
    """Everybody connected; admission is not started yet."""
    scene = Scene(lab)
    await scene.open()
    yield scene
    await scene.close()
