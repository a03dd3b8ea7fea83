"""The pure half of permissions: what patterns cover, and that the lists come from the table."""

import pytest

from allmende.proto.permissions import covers, inbox_prefix, permissions
from allmende.proto.subjects import REQUESTS, SERVICES, SUBJECTS


@pytest.mark.parametrize(
    ("pattern", "subject", "covered"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.*", "a.>", False),
        ("a.*", "a.*", True),
        ("a.b", "a.*", False),
        ("a.>", "a.*", True),
        ("a.>", "a.>", True),
        ("a.*.c", "a.>", False),
    ],
)
def test_a_pattern_covers_a_subject_or_a_narrower_pattern(pattern: str, subject: str, covered: bool) -> None:
    assert covers(pattern, subject) == covered


def test_an_agent_has_exactly_its_own_cluster() -> None:
    allowed = permissions("agent", "c1")
    assert allowed.publish == (
        "$SYS.REQ.USER.INFO",
        *(f"{row.prefix}.c1.*" for row in SUBJECTS if row.owner == "agent"),
        "rpc.admission.payload.v1.c1",
        "$JS.API.CONSUMER.MSG.NEXT.DECISIONS.agent-c1",
        "$JS.API.CONSUMER.INFO.DECISIONS.agent-c1",
        "$JS.API.CONSUMER.RESET.DECISIONS.agent-c1",
        "$JS.ACK.DECISIONS.agent-c1.>",
        "$JS.ACK.*.*.DECISIONS.agent-c1.>",
    )
    assert allowed.subscribe == ("_INBOX.agent.c1.>", "refusal.message_refused.v1.*.c1")
    assert not allowed.allow_responses


def test_a_dashboard_publishes_requests_that_change_nothing_and_no_event() -> None:
    allowed = permissions("dashboard", "wall")
    reading = tuple(f"{row.prefix}.wall" for row in REQUESTS if "dashboard" in row.asks and not row.changes)
    assert allowed.publish == ("$SYS.REQ.USER.INFO", *reading, "$JS.API.DIRECT.GET.STANDINGS")


def test_only_admission_can_hear_submissions() -> None:
    for role, name in [("user", "alice"), ("gateway", "g"), ("operator", "o"), ("dashboard", "d"), ("agent", "c1"), ("admin", "t")]:
        for pattern in permissions(role, name).subscribe:  # type: ignore[arg-type]
            assert not covers(pattern, "user.job_submitted.v1.alice.job"), role
    for service in SERVICES:
        pulls = "$JS.API.CONSUMER.MSG.NEXT.JOBS.admission" in permissions(service, service).publish
        assert pulls == (service == "admission")


def test_every_service_may_say_its_rows_and_answer_its_requests() -> None:
    for service in SERVICES:
        allowed = permissions(service, service)
        assert allowed.allow_responses
        assert {row.pattern for row in REQUESTS if row.service == service} <= set(allowed.subscribe)
        said = {row.pattern for row in SUBJECTS if service in row.says and row.owner != "refusal"}
        assert said <= set(allowed.publish)
        assert f"refusal.message_refused.v1.{service}.*" in allowed.publish


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "A", "a b", "a\n", "x" * 64])
def test_no_user_is_called_by_what_could_be_a_pattern(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        permissions("user", name)
    with pytest.raises(ValueError, match="name"):
        inbox_prefix("agent", name)
