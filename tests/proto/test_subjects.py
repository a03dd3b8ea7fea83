"""THE table against itself: prefixes, tokens, publishers, streams; and an envelope against the subject it came on."""

import inspect
from types import ModuleType

import msgspec
import pytest

from allmende.proto import admission, agent, budget, ledger, lost, message, notices, policy, preemptor, proposals, user
from allmende.proto.envelope import Refusal
from allmende.proto.message import Message
from allmende.proto.streams import STREAMS, all_consumers, consumer_of_agent, consumers_of
from allmende.proto.subjects import (
    BY_MESSAGE,
    BY_PREFIX,
    REQUESTS,
    SERVICES,
    SUBJECTS,
    Subject,
    check,
    origin_of,
    publisher_of,
    subject_of,
)
from tests.proto.samples import BODIES, JOB, MESSAGE, enveloped

MODULES: tuple[ModuleType, ...] = (user, agent, budget, ledger, admission, lost, policy, preemptor, proposals, notices, message)
ROWS = pytest.mark.parametrize("row", SUBJECTS, ids=lambda row: row.message.TYPE)


def test_prefixes_are_unique_and_begin_no_other() -> None:
    prefixes = [row.prefix for row in SUBJECTS] + [row.prefix for row in REQUESTS]
    assert len(BY_PREFIX) == len(BY_MESSAGE) == len(SUBJECTS)
    for ours in prefixes:
        assert [other for other in prefixes if f"{other}.".startswith(f"{ours}.")] == [ours]


@ROWS
def test_every_token_is_a_field_that_can_be_part_of_a_subject(row: Subject) -> None:
    body = next(each for each in BODIES if type(each) is row.message)
    assert set(row.tokens) <= set(row.message.__struct_fields__)
    assert subject_of(body).split(".")[3:] == [str(getattr(body, token)) for token in row.tokens]


@ROWS
def test_who_says_it_is_the_owner(row: Subject) -> None:
    assert row.says
    assert row.hears
    assert not set(row.says) & {"dashboard"}
    if row.owner in SERVICES or row.owner == "agent":
        assert row.says == (row.owner,)
    elif row.owner == "user":
        assert "user" in row.says
    else:
        assert row.owner == "refusal"
        assert row.says == SERVICES


@ROWS
def test_who_is_no_service_says_its_own_name_first(row: Subject) -> None:
    # The server can only enforce a name that stands at a fixed place.
    first = row.tokens[0] if row.tokens else None
    assert "agent" not in row.says or first == "cluster" or row.owner == "refusal"
    assert "user" not in row.says or first == "user"


@ROWS
def test_an_agent_hears_only_what_names_a_cluster(row: Subject) -> None:
    # ... or, a refusal, its publisher: else it would hear of other clusters.
    if "agent" in row.hears:
        assert row.tokens[:1] == ("cluster",) or row.tokens == ("service", "publisher")


def test_every_message_class_is_in_the_table() -> None:
    declared = {
        each
        for module in MODULES
        for _, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, Message) and each is not Message
    }
    assert declared == set(BY_MESSAGE)


def test_payloads_are_heard_by_nobody_but_admission() -> None:
    assert BY_MESSAGE[user.JobSubmitted].hears == ("admission",)
    carriers = [row for row in SUBJECTS if "Payload" in str(msgspec.json.schema(row.message))]
    assert carriers == [BY_MESSAGE[user.JobSubmitted]]


def test_every_request_is_answered_by_a_service_and_changes_only_for_those_who_may() -> None:
    assert len({row.prefix for row in REQUESTS}) == len(REQUESTS)
    for row in REQUESTS:
        assert row.service in SERVICES
        assert row.asks
        assert not (row.changes and "dashboard" in row.asks)
        assert row.of("ada") == f"{row.prefix}.ada"
        for caller in ("", "a.b", "*", ">", "a\n"):
            with pytest.raises(ValueError, match="not a user's name"):
                row.of(caller)


# ----------------------------------------------------------------------------------------------------------------- streams


def _overlap(first: str, second: str) -> bool:
    ours, theirs = first.split("."), second.split(".")
    return len(ours) == len(theirs) and all(a == b or "*" in (a, b) for a, b in zip(ours, theirs, strict=True))


def test_every_subject_lives_in_exactly_one_stream() -> None:
    patterns = [(stream.name, pattern) for stream in STREAMS for pattern in stream.subjects]
    assert sorted(pattern for _, pattern in patterns) == sorted(row.pattern for row in SUBJECTS)
    for name, pattern in patterns:
        assert [other for other, each in patterns if _overlap(pattern, each)] == [name]
    assert {row.stream for row in SUBJECTS} == {stream.name for stream in STREAMS}


def test_a_consumer_filters_what_its_service_hears_and_nothing_else() -> None:
    for service in SERVICES:
        filters = [pattern for consumer in consumers_of(service) for pattern in consumer.filters]
        assert sorted(filters) == sorted(row.pattern for row in SUBJECTS if service in row.hears)
        for consumer in consumers_of(service):
            stream = next(each for each in STREAMS if each.name == consumer.stream)
            assert set(consumer.filters) <= set(stream.subjects)


def test_an_agents_consumer_hears_its_own_cluster_only() -> None:
    consumer = consumer_of_agent("c1")
    assert consumer.durable == "agent-c1"
    assert all(pattern.split(".")[3] == "c1" for pattern in consumer.filters)
    for cluster in ("", "c1.c2", "*", ">"):
        with pytest.raises(ValueError, match="not a cluster's name"):
            consumer_of_agent(cluster)


def test_no_two_consumers_share_a_name_on_a_stream() -> None:
    names = [(each.stream, each.durable) for each in all_consumers(("c1", "c2"))]
    assert len(set(names)) == len(names)


# ------------------------------------------------------------------------------------------------------------------- check


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.TYPE)
def test_a_message_agrees_with_its_subject(body: Message) -> None:
    check(subject_of(body), enveloped(body))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.TYPE)
def test_a_message_disagrees_with_every_other_subject(body: Message) -> None:
    good = subject_of(body).split(".")
    for place, token in enumerate(BY_MESSAGE[type(body)].tokens, start=3):
        _refused(".".join([*good[:place], "other", *good[place + 1 :]]), body, f"{token}_mismatch")
    _refused(".".join([*good, "more"]), body, "tokens_mismatch")
    _refused(".".join(good[:-1]), body, "tokens_mismatch" if len(good) > 3 else "unknown_subject")
    other = next(each for each in BODIES if type(each) is not type(body))
    _refused(subject_of(other), body, "type_mismatch")


@pytest.mark.parametrize(
    "subject", ["", ".", "agent", "agent.usage_tick", "agent.usage_tick.v2.c1.n1", "AGENT.usage_tick.v1.c1.n1", "x.y.z"]
)
def test_nobody_says_anything_there(subject: str) -> None:
    _refused(subject, BODIES[0], "unknown_subject")


def _refused(subject: str, body: Message, code: str) -> None:
    with pytest.raises(Refusal) as caught:
        check(subject, enveloped(body))
    assert caught.value.problem.code == code
    assert caught.value.message == MESSAGE


@pytest.mark.parametrize(
    ("subject", "publisher"),
    [
        (f"user.job_submitted.v1.ada.{JOB}", "ada"),
        ("agent.usage_tick.v1.c1.n1", "c1"),
        ("budget.revision_complete.v1", "budget"),
        ("agent.usage_tick.v1", "agent"),
        ("user.job_submitted.v1.*.x", "user"),
        ("", "unknown"),
        ("$JS.API", "unknown"),
    ],
)
def test_a_refusal_is_addressed_to_its_publisher(subject: str, publisher: str) -> None:
    assert publisher_of(subject) == publisher


def test_people_clusters_and_services_of_one_name_are_told_apart() -> None:
    for name in ("c1", "budget", "user", "agent", "unknown"):
        said = {f"user.job_submitted.v1.{name}.{JOB}", f"agent.usage_tick.v1.{name}.n1", "budget.revision_complete.v1"}
        assert len({origin_of(subject) for subject in said}) == len(said), name


def test_a_subject_is_not_made_of_what_is_no_token() -> None:
    refused = message.MessageRefused(
        service="ledger",
        publisher="a.b",
        subject="x",
        stream="USAGE",
        stream_seq=1,
        message=None,
        problem=message.Problem(code="abc", sentence="x"),
    )
    with pytest.raises(ValueError, match=r"publisher 'a\.b' cannot be part of a subject"):
        subject_of(refused)
