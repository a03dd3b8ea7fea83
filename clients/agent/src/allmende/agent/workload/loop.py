"""The closed loop: at any moment running and waiting jobs ask for about 2.5 times the GPUs there are (Ai2). Pure.

Each team has two accounts, one for jobs with a slice and one for slice-0 jobs: otherwise starved slice-0 jobs would take the place
of what the team really wants. A job that was drawn waits until there is room for half of it, so that the mean keeps to the target
whatever the sizes.
"""

from random import Random
from typing import NamedTuple

from allmende.agent.workload.jobs import Shape, draw_allocated, draw_unallocated, submission
from allmende.agent.workload.lab import Lab, Team
from allmende.agent.workload.moods import Moods
from allmende.proto.ids import ENTROPY_BYTES, make_id
from allmende.proto.units import PPM_WHOLE, Ms
from allmende.proto.user import JobSubmitted

# Demand for each GPU there is, in thousandths: 2.5 in all, of which 15 % are slice-0 jobs.
ALLOCATED_PERMILLE = 2_125
UNALLOCATED_PERMILLE = 375


class Request(NamedTuple):
    """A job to submit now; `team` is who wants it, also where no budget pays."""

    body: JobSubmitted
    team: str
    gpus: int
    debug: bool


class _Account:
    __slots__ = ("allocated", "asked_gpus", "chance", "drawn", "moods", "team")

    def __init__(self, team: Team, allocated: bool, seed: int, from_ms: Ms) -> None:
        self.team = team
        self.allocated = allocated
        self.chance = Random(f"{seed}/jobs/{team.budget}/{allocated}")
        self.moods = Moods(seed, team.budget, from_ms)
        self.asked_gpus = 0
        self.drawn: Shape | None = None


class Loop:
    """The teams of a lab, wanting. `gpus` is the size of the cluster."""

    def __init__(self, lab: Lab, gpus: int, seed: int, from_ms: Ms) -> None:
        self._gpus = gpus
        self._accounts = [_Account(team, allocated, seed, from_ms) for team in lab.teams for allocated in (True, False)]
        self._open: dict[str, tuple[_Account, int]] = {}
        self._number = 0

    @property
    def open(self) -> frozenset[str]:
        """Jobs that were submitted and have not ended."""
        return frozenset(self._open)

    @property
    def asked_gpus(self) -> int:
        """GPUs that running and waiting jobs ask for."""
        return sum(account.asked_gpus for account in self._accounts)

    def ended(self, job: str) -> bool:
        """A job ended or was refused: its owner may want another. False for a job that is not open."""
        found = self._open.pop(job, None)
        if found is None:
            return False
        account, gpus = found
        account.asked_gpus -= gpus
        return True

    def wanted(self, now_ms: Ms) -> list[Request]:
        """What the teams submit now. Calls must not go back in time."""
        requests: list[Request] = []
        for allocated, permille in ((True, ALLOCATED_PERMILLE), (False, UNALLOCATED_PERMILLE)):
            accounts = [account for account in self._accounts if account.allocated == allocated]
            weights = [account.team.effective_ppm * account.moods.at(now_ms) for account in accounts]
            whole = self._gpus * permille // 1_000
            total = sum(weights)
            targets = [whole * weight // total if total else 0 for weight in weights]
            # A team that has gone quiet still has its old jobs: the others wait until these have ended, or the sum would run away.
            room = whole - sum(account.asked_gpus for account in accounts)
            in_need = sorted(range(len(accounts)), key=lambda at: (accounts[at].asked_gpus - targets[at], at))
            for at in in_need:
                room -= self._fill(accounts[at], targets[at], room, now_ms, requests)
        return requests

    def _fill(self, account: _Account, target_gpus: int, room: int, now_ms: Ms, requests: list[Request]) -> int:
        """Submit what the team wants and the lab's sum allows; returns how many GPUs that asks for."""
        before = account.asked_gpus
        while True:
            if account.drawn is None:
                # Nobody asks for more than twice what their team can hope for, nor for more than a quarter of the cluster.
                fair = self._gpus * account.team.effective_ppm * 2 // PPM_WHOLE
                largest = max(1, min(fair, self._gpus // 4))
                draw = draw_allocated if account.allocated else draw_unallocated
                account.drawn = draw(account.chance, largest)
            half = (account.drawn.gpus + 1) // 2
            asked = account.asked_gpus - before
            if account.asked_gpus + half > target_gpus or asked + half > room:
                return asked
            requests.append(self._submit(account, account.drawn, now_ms))
            account.drawn = None

    def _submit(self, account: _Account, shape: Shape, now_ms: Ms) -> Request:
        self._number += 1
        job = make_id(now_ms, account.chance.randbytes(ENTROPY_BYTES))
        # The first of a team submit most: people are as unequal as jobs.
        users = account.team.users
        user = users[min(account.chance.randrange(len(users)), account.chance.randrange(len(users)))]
        budget = account.team.budget if account.allocated else None
        body = submission(shape, user=user, job=job, budget=budget, name=f"{account.team.budget}-{self._number}")
        account.asked_gpus += shape.gpus
        self._open[job] = (account, shape.gpus)
        return Request(body, account.team.budget, shape.gpus, shape.debug)
