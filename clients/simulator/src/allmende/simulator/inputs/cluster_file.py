"""A cluster as people describe it: `--cluster FILE.toml`. docs/guides/simulate-inputs.md shows it.

Never stops at the first fault, and never takes an unknown key: a misspelt one would simulate another cluster in silence.
silence.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from allmende.proto.ids import is_name
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Ms, Ppm, parse_duration, parse_share
from allmende.simulator.inputs.faults import Faults, Read, quote
from allmende.simulator.inputs.toml_places import Places
from allmende.simulator.inputs.whole_file import read_text
from allmende.simulator.model import Cluster, Failures, Leaving, NodeSpec

# A group is some lines; a file of this size describes something else.
FILE_MOST = 1024 * 1024
# Ten times the largest cluster in use anywhere; a node is one row of a report.
NODES_MOST = 10_000
# As `gpus_per_replica` of a job.
NODE_GPUS_MOST = 1_024
DEFAULT_NAME = "cluster"
DEFAULT_PREFIX = "node"
# The longest time that repairs and failures are drawn from.
_LONG_MS: Ms = 3_660 * DAY_MS

_Table: TypeAlias = Mapping[str, object]
_TOP = ("name", "nodes", "failures", "leaving", "start")
_NODES = ("name", "prefix", "count", "gpus", "model")
_FAILURES = ("mean_between", "repair_median", "repair_p95")
_LEAVING = ("median", "p95", "ignore")


def read_cluster(path: Path) -> Read[Cluster]:
    """Read a cluster file.

    Codes of faults: `cannot_read`, `file_too_large`, `nul_byte`, `not_utf8`, `malformed_toml`, `unknown_key`, `missing_key`,
    `wrong_type`, `out_of_range`, `bad_name`, `bad_duration`, `bad_share`, `repeated_node`, `name_and_group`, `p95_below_median`,
    `no_nodes`, `too_many_nodes`.
    """
    faults = Faults(str(path))
    text = read_text(path, FILE_MOST, faults)
    if text is None:
        return faults.refused()
    places = Places(text)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # ValueError: what is no TOML, and whole numbers of more digits than Python reads.
        faults.add(*places.of_error(str(error)), "", "malformed_toml", f"the file is not TOML: {error}")
        return faults.refused()
    cluster = _Reader(places, faults).cluster(document)
    return faults.refused() if faults else faults.done(cluster)


class _Reader:
    """Reads tables; a value at fault is replaced by its default, so that the rest is judged too."""

    def __init__(self, places: Places, faults: Faults) -> None:
        self._places = places
        self._faults = faults

    def cluster(self, document: _Table) -> Cluster:
        self._known((), document, _TOP)
        nodes = tuple(self._nodes(document.get("nodes")))
        failures = self._table(document, "failures")
        leaving = self._table(document, "leaving")
        return Cluster(
            cluster=self._name((), document, "name", DEFAULT_NAME) or DEFAULT_NAME,
            nodes=nodes,
            failures=None if failures is None else self._failures(failures),
            leaving=Leaving() if leaving is None else self._leaving(leaving),
            start_ms=self._duration((), document, "start", SECOND_MS, 0, HOUR_MS),
        )

    # ------------------------------------------------------------------------------------------------------------------ nodes

    def _nodes(self, groups: object) -> Iterator[NodeSpec]:
        if not isinstance(groups, list) or not groups or not all(isinstance(group, dict) for group in groups):
            code = "no_nodes" if groups is None or groups == [] else "wrong_type"
            self._add(("nodes",), "nodes", code, "a cluster has nodes, in groups that begin with [[nodes]]")
            return
        seen: dict[str, int] = {}
        for number, group in enumerate(groups):
            for node in self._group(number, group):
                if node.node in seen:
                    sentence = f"node {node.node} is in group {seen[node.node] + 1} already; give this group another prefix or name"
                    self._add(("nodes", number), "nodes", "repeated_node", sentence)
                    break
                seen[node.node] = number
                yield node
            if len(seen) > NODES_MOST:
                self._add(("nodes", number), "nodes", "too_many_nodes", f"the cluster has more than {NODES_MOST:,} nodes")
                return

    def _group(self, number: int, group: _Table) -> list[NodeSpec]:
        at = ("nodes", number)
        self._known(at, group, _NODES)
        gpus = self._whole(at, group, "gpus", None, 1, NODE_GPUS_MOST)
        model = self._name(at, group, "model", None)
        if "name" in group:
            for key in ("prefix", "count"):
                if key in group:
                    self._add((*at, key), key, "name_and_group", f"a node with a name is one node; leave {key} out, or the name")
            name = self._name(at, group, "name", None)
            return [NodeSpec(name, gpus, model)] if name else []
        prefix = self._name(at, group, "prefix", DEFAULT_PREFIX) or DEFAULT_PREFIX
        count = self._whole(at, group, "count", 1, 1, NODES_MOST)
        width = max(3, len(str(count)))
        names = [f"{prefix}-{each:0{width}d}" for each in range(1, count + 1)]
        if not is_name(names[-1]):
            self._add(
                (*at, "prefix"), "prefix", "bad_name", f"{quote(names[-1])} is too long for the name of a node; shorten the prefix"
            )
        return [NodeSpec(name, gpus, model) for name in names]

    # -------------------------------------------------------------------------------------------------------------- behaviour

    def _failures(self, table: _Table) -> Failures:
        at = ("failures",)
        self._known(at, table, _FAILURES)
        mean = self._duration(at, table, "mean_between", None, HOUR_MS, _LONG_MS)
        median = self._duration(at, table, "repair_median", None, SECOND_MS, _LONG_MS)
        p95 = self._duration(at, table, "repair_p95", None, SECOND_MS, _LONG_MS)
        self._ordered(at, "repair_p95", "repair_median", median, p95)
        return Failures(mean, median, p95)

    def _leaving(self, table: _Table) -> Leaving:
        at = ("leaving",)
        usual = Leaving()
        self._known(at, table, _LEAVING)
        median = self._duration(at, table, "median", usual.median_ms, SECOND_MS, 60 * MINUTE_MS)
        p95 = self._duration(at, table, "p95", max(median, usual.p95_ms), SECOND_MS, 60 * MINUTE_MS)
        self._ordered(at, "p95", "median", median, p95)
        return Leaving(median, p95, self._share(at, table, "ignore", usual.ignore_ppm))

    def _ordered(self, at: tuple[str, ...], upper: str, lower: str, median: Ms, p95: Ms) -> None:
        if p95 < median:
            self._add(
                (*at, upper),
                upper,
                "p95_below_median",
                f"{upper} is below {lower}; of a hundred, 95 are below the one and 50 below the other",
            )

    # ----------------------------------------------------------------------------------------------------------------- values

    def _known(self, at: tuple[str | int, ...], table: _Table, known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                self._add((*at, key), key, "unknown_key", f"unknown key {quote(key)}; known here are {', '.join(known)}")

    def _table(self, document: _Table, key: str) -> _Table | None:
        value = document.get(key)
        if value is None or isinstance(value, dict):
            return value
        self._add((key,), key, "wrong_type", f"{key} is a table; write [{key}] on a line of its own")
        return None

    def _whole(self, at: tuple[str | int, ...], table: _Table, key: str, default: int | None, least: int, most: int) -> int:
        value = self._value(at, table, key, default, str(least))
        if value is None:
            return least
        if not isinstance(value, int) or isinstance(value, bool):
            self._add((*at, key), key, "wrong_type", f"{key} must be a whole number, such as {key} = {max(least, 8)}")
            return least
        if not least <= value <= most:
            # Never the number itself: Python refuses to write one of more than 4,300 digits.
            self._add((*at, key), key, "out_of_range", f"{key} must be within {least} to {most:,}")
            return least
        return value

    def _name(self, at: tuple[str | int, ...], table: _Table, key: str, default: str | None) -> str | None:
        value = table.get(key, default)
        if value is None:
            return None
        if not isinstance(value, str):
            self._add((*at, key), key, "wrong_type", f'{key} must be a name in quotes, such as {key} = "h100"')
        elif not is_name(value):
            sentence = f"{quote(value)} is not a name: 1 to 63 of a-z, 0-9, - and _, beginning and ending with a letter or digit"
            self._add((*at, key), key, "bad_name", sentence)
        else:
            return value
        return default

    def _duration(self, at: tuple[str | int, ...], table: _Table, key: str, default: Ms | None, least: Ms, most: Ms) -> Ms:
        fallback = least if default is None else default
        value = self._value(at, table, key, default, "90s")
        if value is None or (isinstance(value, int) and key not in table):
            return fallback
        if not isinstance(value, str):
            self._add((*at, key), key, "wrong_type", f'{key} must be a duration in quotes, such as {key} = "90s"')
            return fallback
        try:
            length = parse_duration(value)
        except ValueError:
            self._add((*at, key), key, "bad_duration", f"{quote(value)} is not a duration; write for example 90s, 30m, 8h or 1d12h")
            return fallback
        if not least <= length <= most:
            sentence = f"{quote(value)} is not within {least // SECOND_MS}s to {_words(most)}"
            self._add((*at, key), key, "out_of_range", sentence)
            return fallback
        return length

    def _share(self, at: tuple[str | int, ...], table: _Table, key: str, default: Ppm) -> Ppm:
        value = table.get(key)
        if value is None:
            return default
        try:
            if isinstance(value, str):
                return parse_share(value)
        except ValueError:
            pass
        self._add((*at, key), key, "bad_share", f'{key} must be a part in quotes, such as {key} = "2%" or "0.02"')
        return default

    def _value(self, at: tuple[str | int, ...], table: _Table, key: str, default: object, example: str) -> object:
        value = table.get(key, default)
        if value is None:
            self._add((*at, key), key, "missing_key", f"{key} is missing; it has no default (an example: {example})")
        return value

    def _add(self, trail: tuple[str | int, ...], name: str, code: str, sentence: str) -> None:
        self._faults.add(*self._places.of(*trail), name, code, sentence)


def _words(length_ms: Ms) -> str:
    return f"{length_ms // DAY_MS}d" if length_ms >= DAY_MS else f"{length_ms // MINUTE_MS}m"
