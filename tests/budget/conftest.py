"""What several files of this folder begin with."""

import pytest

from allmende.budget.handlers.trees import Handlers
from allmende.chassis.db import Database
from tests.budget.replicas import replica
from tests.servers import Lab


@pytest.fixture
async def db(lab: Lab) -> Database:
    """The migrated schema `budget`."""
    return await lab.database("budget")


@pytest.fixture
def handlers(lab: Lab, db: Database) -> Handlers:
    """Handlers that commit and publish nothing."""
    return replica(db, lab.clock).trees
