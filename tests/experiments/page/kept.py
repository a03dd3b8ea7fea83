"""The kept results as the page asks for them: by experiment, by seed, and with what they were measured. Only reads."""

from collections.abc import Mapping, Sequence

from tests.experiments.results import Result, key
from tests.experiments.table import BY_NAME, Experiment


class Kept:
    """All results of the table; those of experiments that are no longer in it are left out."""

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._results = {name: each for name, each in results.items() if each.experiment in BY_NAME}

    def of(self, experiment: str) -> list[Result]:
        """The runs of an experiment, by seed, in the order of the table."""
        found = (self.one(experiment, seed) for seed in BY_NAME[experiment].seeds)
        return [each for each in found if each is not None]

    def one(self, experiment: str, seed: int) -> Result | None:
        """One run."""
        return self._results.get(key(experiment, seed))

    def all(self) -> list[Result]:
        """All runs, in the order of the table."""
        return [each for name in BY_NAME for each in self.of(name)]

    def missing(self, experiments: Sequence[Experiment]) -> list[str]:
        """Runs that the table wants and nobody has made yet."""
        return [key(each.name, seed) for each in experiments for seed in each.seeds if self.one(each.name, seed) is None]

    def older(self, experiments: Sequence[Experiment]) -> list[str]:
        """Runs that were made with other rules than most of the same policy."""
        newest = {policy: self._usual(policy) for policy in dict.fromkeys(each.policy for each in self.all())}
        return [each.key for one in experiments for each in self.of(one.name) if each.version != newest[each.policy]]

    def shorter(self, experiments: Sequence[Experiment]) -> list[str]:
        """Runs over fewer days than the table wants."""
        return [f"{each.key} ({each.days} d)" for one in experiments for each in self.of(one.name) if each.days < one.days]

    def versions(self) -> dict[str, dict[str, int]]:
        """By policy: how many runs were made with each version of the rules."""
        found: dict[str, dict[str, int]] = {}
        for each in self.all():
            counts = found.setdefault(each.policy, {})
            counts[each.version] = counts.get(each.version, 0) + 1
        return found

    def _usual(self, policy: str) -> str:
        counts = self.versions()[policy]
        return max(counts, key=lambda version: (counts[version], version))
