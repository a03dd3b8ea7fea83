"""`python -m allmende.agent.audit`: hold a run against its cluster's own log. Prints one JSON object."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from allmende.agent.audit.history import read
from allmende.agent.audit.report import Evidence, report
from allmende.agent.synthetic import truth
from allmende.agent.workload import log as workload
from allmende.proto.admission import AttemptProtected
from allmende.proto.ledger import Posting
from allmende.proto.preemptor import EvictionOrdered

T = TypeVar("T")


def _bodies(path: Path | None, kind: type[T]) -> Sequence[T]:
    if path is None:
        return ()
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as lines:
        return [decoder.decode(line) for line in lines if line.endswith(b"\n")]


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m allmende.agent.audit", description=__doc__)
    parser.add_argument("--truth", type=Path, required=True, help="the cluster's own log")
    parser.add_argument("--postings", type=Path, help="one ledger.Posting a line")
    parser.add_argument("--protected", type=Path, help="one AttemptProtected a line, as heard")
    parser.add_argument("--evictions", type=Path, help="one EvictionOrdered a line, as heard")
    parser.add_argument("--workload", type=Path, help="the workload's log")
    parser.add_argument("--warmup-ms", type=int, default=0, help="occupancy is measured from the first instant plus this")
    options = parser.parse_args()
    try:
        with options.truth.open("rb") as lines:
            history = read(truth.from_lines(lines))
        entries: Sequence[workload.AnyEntry] = ()
        if options.workload is not None:
            with options.workload.open("rb") as lines:
                entries = tuple(workload.from_lines(lines))
        evidence = Evidence(
            history=history,
            postings=_bodies(options.postings, Posting),
            protections=_bodies(options.protected, AttemptProtected),
            orders=_bodies(options.evictions, EvictionOrdered),
            entries=entries,
        )
    except (OSError, ValueError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 1
    print(msgspec.json.encode(report(evidence, options.warmup_ms)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(_main())
