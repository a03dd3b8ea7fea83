"""THE table: for every subject its message, its stream, who says it and who hears it. And the same for requests.

Permissions, consumers, asyncapi.yaml and the tests are all derived from these rows. A subject reads
`owner.fact.version.tokens`: owner and fact first, so that permissions and dashboards use prefixes. For people and agents the
first token is the publisher's authenticated identity: the server enforces it, and `check` holds the payload against it.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from allmende.proto import (
    admission,
    agent,
    budget,
    commands,
    corrections,
    dated,
    figures,
    gaps,
    ledger,
    lost,
    notices,
    payload,
    policy,
    preemptor,
    proposals,
    quarantine,
    reports,
    user,
)
from allmende.proto.envelope import Envelope, Refusal, register
from allmende.proto.ids import is_name
from allmende.proto.message import Message, MessageRefused

Role = Literal["user", "agent", "gateway", "operator", "dashboard", "budget", "ledger", "admission", "preemptor"]
"""gateway: a trusted front door that has authenticated people itself and speaks for them (the web page, the demo's 150 users)."""

StreamName = Literal["JOBS", "USAGE", "TREE", "STANDINGS", "DECISIONS", "REFUSALS"]

SERVICES: tuple[Role, ...] = ("budget", "ledger", "admission", "preemptor")
PEOPLE: tuple[Role, ...] = ("user", "gateway", "operator")
WATCHERS: tuple[Role, ...] = ("user", "gateway", "operator", "dashboard")


class Subject(Struct, frozen=True, kw_only=True):
    """One row of events. `tokens` name the fields of the body that fill the subject."""

    message: type[Message]
    owner: str
    tokens: tuple[str, ...]
    stream: StreamName
    says: tuple[Role, ...]
    hears: tuple[Role, ...]

    @property
    def prefix(self) -> str:
        """The part before the tokens, such as `agent.usage_tick.v1`."""
        fact = self.message.TYPE.replace(".", "_")
        return f"{self.owner}.{fact}.v{self.message.VERSION}"

    @property
    def pattern(self) -> str:
        """The NATS pattern of all subjects of the row."""
        return ".".join((self.prefix, *("*" for _ in self.tokens)))

    def of(self, body: Message) -> str:
        """The subject of one body.

        Raises:
            ValueError: a token of the body is not a name (None, empty, with a dot).
        """
        values = [str(getattr(body, token)) for token in self.tokens]
        for token, value in zip(self.tokens, values, strict=True):
            if not is_name(value):
                raise ValueError(f"{self.message.TYPE}: {token} {value!r} cannot be part of a subject")
        return ".".join((self.prefix, *values))


def _row(
    message: type[Message],
    owner: str,
    tokens: str,
    stream: StreamName,
    says: tuple[Role, ...],
    hears: tuple[Role, ...],
) -> Subject:
    return Subject(message=message, owner=owner, tokens=tuple(tokens.split()), stream=stream, says=says, hears=hears)


_ALL_SERVICES = SERVICES
SUBJECTS: tuple[Subject, ...] = (
    # People. Payloads are inside: nobody but admission hears it.
    _row(user.JobSubmitted, "user", "user job", "JOBS", ("user", "gateway", "operator"), ("admission",)),
    # Agents.
    _row(agent.NodeReported, "agent", "cluster node", "USAGE", ("agent",), ("ledger", "admission", "preemptor", *WATCHERS)),
    _row(agent.UsageTick, "agent", "cluster node", "USAGE", ("agent",), ("ledger", "admission", "preemptor", *WATCHERS)),
    _row(agent.AttemptStarted, "agent", "cluster attempt", "USAGE", ("agent",), ("ledger", "admission", *WATCHERS)),
    _row(agent.AttemptEnded, "agent", "cluster attempt", "USAGE", ("agent",), ("ledger", "admission", "preemptor", *WATCHERS)),
    _row(agent.GpuFreed, "agent", "cluster attempt", "USAGE", ("agent",), ("admission", "preemptor", *WATCHERS)),
    # Budget.
    _row(budget.BudgetChanged, "budget", "budget", "TREE", ("budget",), ("ledger", "admission", "preemptor", *WATCHERS)),
    _row(budget.RevisionComplete, "budget", "", "TREE", ("budget",), ("ledger", "admission", "preemptor", *WATCHERS)),
    _row(proposals.ShareProposed, "budget", "budget", "DECISIONS", ("budget",), WATCHERS),
    _row(proposals.ProposalDecided, "budget", "budget", "DECISIONS", ("budget",), WATCHERS),
    _row(notices.BudgetNotice, "budget", "budget", "DECISIONS", ("budget",), WATCHERS),
    # Ledger.
    _row(
        ledger.UsageStanding, "ledger", "cluster budget", "STANDINGS", ("ledger",), ("budget", "admission", "preemptor", *WATCHERS)
    ),
    _row(ledger.BudgetUsage, "ledger", "cluster budget", "STANDINGS", ("ledger",), WATCHERS),
    _row(ledger.UsageConfirmed, "ledger", "cluster", "DECISIONS", ("ledger",), ("agent",)),
    # Admission.
    _row(admission.JobQueued, "admission", "user job", "DECISIONS", ("admission",), ("ledger", *WATCHERS)),
    _row(admission.JobRefused, "admission", "user job", "DECISIONS", ("admission",), ("ledger", *WATCHERS)),
    _row(
        admission.JobGranted,
        "admission",
        "cluster attempt",
        "DECISIONS",
        ("admission",),
        ("agent", "ledger", "preemptor", *WATCHERS),
    ),
    _row(
        admission.AttemptProtected, "admission", "cluster attempt", "DECISIONS", ("admission",), ("ledger", "preemptor", *WATCHERS)
    ),
    _row(admission.AttemptStopOrdered, "admission", "cluster attempt", "DECISIONS", ("admission",), ("agent", *WATCHERS)),
    _row(admission.JobEnded, "admission", "user job", "DECISIONS", ("admission",), ("ledger", *WATCHERS)),
    _row(admission.JobChanged, "admission", "user job", "DECISIONS", ("admission",), ("ledger", *WATCHERS)),
    _row(admission.ClaimRaised, "admission", "cluster claim", "DECISIONS", ("admission",), ("preemptor", *WATCHERS)),
    _row(admission.ClaimWithdrawn, "admission", "cluster claim", "DECISIONS", ("admission",), ("preemptor", *WATCHERS)),
    _row(admission.NodeClosed, "admission", "cluster node", "DECISIONS", ("admission",), ("preemptor", *WATCHERS)),
    _row(
        lost.NodeDeclaredLost, "admission", "cluster node", "DECISIONS", ("admission",), ("agent", "ledger", "preemptor", *WATCHERS)
    ),
    _row(policy.PolicyChanged, "admission", "cluster", "DECISIONS", ("admission",), ("preemptor", *WATCHERS)),
    # Preemptor.
    _row(preemptor.ClaimAnswered, "preemptor", "cluster claim", "DECISIONS", ("preemptor",), ("admission", *WATCHERS)),
    _row(preemptor.EvictionOrdered, "preemptor", "cluster attempt", "DECISIONS", ("preemptor",), ("agent", "admission", *WATCHERS)),
    _row(preemptor.EvictionOverdue, "preemptor", "cluster attempt", "DECISIONS", ("preemptor",), ("admission", *WATCHERS)),
    _row(preemptor.SliceExpired, "preemptor", "cluster attempt", "DECISIONS", ("preemptor",), ("admission", *WATCHERS)),
    _row(preemptor.NodeCordoned, "preemptor", "cluster node", "DECISIONS", ("preemptor",), ("admission", *WATCHERS)),
    _row(preemptor.NodeDrained, "preemptor", "cluster node", "DECISIONS", ("preemptor",), WATCHERS),
    _row(preemptor.NodeReturned, "preemptor", "cluster node", "DECISIONS", ("preemptor",), ("admission", *WATCHERS)),
    # Everybody who refuses a message says so to its publisher.
    _row(MessageRefused, "refusal", "service publisher", "REFUSALS", _ALL_SERVICES, (*WATCHERS, "agent")),
)

for _subject in SUBJECTS:
    register(_subject.message)

BY_MESSAGE: dict[type[Message], Subject] = {row.message: row for row in SUBJECTS}
BY_PREFIX: dict[str, Subject] = {row.prefix: row for row in SUBJECTS}


class Request(Struct, frozen=True, kw_only=True):
    """One row of requests: subject `rpc.service.verb.v1.caller`, where the server enforces the caller's own name."""

    service: Role
    verb: str
    request: type[Struct]
    reply: type[Struct]
    asks: tuple[Role, ...]
    changes: bool = False

    @property
    def prefix(self) -> str:
        """The part before the caller's name."""
        return f"rpc.{self.service}.{self.verb}.v1"

    @property
    def pattern(self) -> str:
        """What the service listens to."""
        return f"{self.prefix}.*"

    def of(self, caller: str) -> str:
        """The subject a caller uses.

        Raises:
            ValueError: the caller is not a name.
        """
        if not is_name(caller):
            raise ValueError(f"{caller!r} is not a user's name")
        return f"{self.prefix}.{caller}"


def _ask(service: Role, verb: str, request: type[Struct], reply: type[Struct]) -> Request:
    return Request(service=service, verb=verb, request=request, reply=reply, asks=WATCHERS)


TREE = _ask("budget", "tree", budget.TreeQuery, budget.TreePage)
REVISIONS = _ask("budget", "revisions", budget.RevisionsQuery, budget.RevisionsPage)
SET_SHARES = Request(
    service="budget", verb="set_shares", request=budget.SetShares, reply=budget.WriteReply, asks=PEOPLE, changes=True
)
PUT_BUDGETS = Request(
    service="budget", verb="put_budgets", request=budget.PutBudgets, reply=budget.WriteReply, asks=PEOPLE, changes=True
)
CLOSE_BUDGET = Request(
    service="budget", verb="close_budget", request=budget.CloseBudget, reply=budget.WriteReply, asks=PEOPLE, changes=True
)
LOAD_TREE = Request(
    service="budget", verb="load_tree", request=budget.UploadPiece, reply=budget.WriteReply, asks=("operator",), changes=True
)
DATED = _ask("budget", "dated", dated.DatedQuery, dated.DatedPage)
PLAN_SHARES = Request(
    service="budget", verb="plan_shares", request=dated.PlanShares, reply=dated.DatedReply, asks=PEOPLE, changes=True
)
WITHDRAW_DATED = Request(
    service="budget", verb="withdraw_dated", request=dated.WithdrawDated, reply=dated.DatedReply, asks=PEOPLE, changes=True
)
PROPOSALS = _ask("budget", "proposals", proposals.ProposalsQuery, proposals.ProposalsPage)
PROPOSE = Request(
    service="budget", verb="propose", request=proposals.Propose, reply=proposals.ProposalReply, asks=PEOPLE, changes=True
)
ACCEPT_PROPOSAL = Request(
    service="budget",
    verb="accept_proposal",
    request=proposals.AcceptProposal,
    reply=proposals.ProposalReply,
    asks=PEOPLE,
    changes=True,
)
DECLINE_PROPOSAL = Request(
    service="budget",
    verb="decline_proposal",
    request=proposals.DeclineProposal,
    reply=proposals.ProposalReply,
    asks=PEOPLE,
    changes=True,
)
WITHDRAW_PROPOSAL = Request(
    service="budget",
    verb="withdraw_proposal",
    request=proposals.WithdrawProposal,
    reply=proposals.ProposalReply,
    asks=PEOPLE,
    changes=True,
)
NOTICES = _ask("budget", "notices", notices.NoticesQuery, notices.NoticesPage)
DELIVERIES = Request(
    service="budget", verb="deliveries", request=notices.DeliveriesQuery, reply=notices.DeliveriesPage, asks=("operator",)
)
RETRY_DELIVERIES = Request(
    service="budget",
    verb="retry_deliveries",
    request=notices.RetryDeliveries,
    reply=notices.Retried,
    asks=("operator",),
    changes=True,
)
STANDINGS = _ask("ledger", "standings", ledger.StandingsQuery, ledger.StandingsReply)
POSTINGS = _ask("ledger", "postings", ledger.PostingsQuery, ledger.PostingsPage)
BOOKS = _ask("ledger", "books", ledger.CapacityQuery, ledger.CapacityReply)
LEDGER_STATE = _ask("ledger", "state", ledger.LedgerStateQuery, ledger.LedgerState)
FAULTS = _ask("ledger", "faults", ledger.FaultsQuery, ledger.FaultsPage)
STATEMENT = _ask("ledger", "statement", reports.StatementQuery, reports.StatementPage)
USAGE = _ask("ledger", "usage", reports.UsageQuery, reports.UsagePage)
USAGE_BY = _ask("ledger", "usage_by", reports.UsageByQuery, reports.UsageByPage)
VERIFY = _ask("ledger", "verify", reports.VerifyQuery, reports.VerifyPage)
QUARANTINE = _ask("ledger", "quarantine", quarantine.QuarantineQuery, quarantine.QuarantinePage)
RELEASE = Request(
    service="ledger", verb="release", request=quarantine.ReleaseItem, reply=quarantine.Released, asks=("operator",), changes=True
)
DEMAND = _ask("ledger", "demand", figures.DemandQuery, figures.DemandPage)
FIGURES = _ask("ledger", "figures", figures.FiguresQuery, figures.FiguresPage)
WAITS = _ask("ledger", "waits", figures.WaitsQuery, figures.WaitsReply)
IDLE = _ask("ledger", "idle", figures.IdleQuery, figures.IdlePage)
PACE = _ask("ledger", "pace", figures.PaceQuery, figures.PacePage)
CORRECTIONS = _ask("ledger", "corrections", corrections.CorrectionsQuery, corrections.CorrectionsPage)
CORRECT = Request(
    service="ledger", verb="correct", request=corrections.Correct, reply=corrections.Correction, asks=("operator",), changes=True
)
GAPS = _ask("ledger", "gaps", gaps.GapsQuery, gaps.GapsPage)
VERIFY_EVENTS = _ask("ledger", "verify_events", reports.VerifyEventsQuery, reports.VerifyEventsPage)
QUEUE = _ask("admission", "queue", admission.QueueQuery, admission.QueuePage)
JOBS = _ask("admission", "jobs", admission.JobsQuery, admission.JobsPage)
WHY = _ask("admission", "why", admission.WhyQuery, admission.WhyReply)
NODES = _ask("admission", "nodes", admission.NodesQuery, admission.NodesPage)
HISTORY = _ask("admission", "history", admission.HistoryQuery, admission.HistoryPage)
CANCEL = Request(
    service="admission", verb="cancel", request=commands.CancelJob, reply=commands.Cancelled, asks=PEOPLE, changes=True
)
POLICY = _ask("admission", "policy", policy.PolicyQuery, policy.PolicyReply)
POLICY_HISTORY = _ask("admission", "policy_history", policy.PolicyHistoryQuery, policy.PolicyHistoryPage)
SET_POLICY = Request(
    service="admission", verb="set_policy", request=policy.SetPolicy, reply=policy.PolicySet, asks=("operator",), changes=True
)
CHANGE = Request(service="admission", verb="change", request=commands.ChangeJob, reply=commands.Changed, asks=PEOPLE, changes=True)
DECLARE_LOST = Request(
    service="admission", verb="declare_lost", request=lost.DeclareLost, reply=lost.DeclaredLost, asks=("operator",), changes=True
)
PAYLOAD = Request(service="admission", verb="payload", request=payload.PayloadQuery, reply=payload.PayloadReply, asks=("agent",))
CORDON = Request(
    service="preemptor", verb="cordon", request=preemptor.CordonNodes, reply=preemptor.DrainPage, asks=("operator",), changes=True
)
UNCORDON = Request(
    service="preemptor",
    verb="uncordon",
    request=preemptor.UncordonNodes,
    reply=preemptor.DrainPage,
    asks=("operator",),
    changes=True,
)
DRAINS = _ask("preemptor", "drains", preemptor.DrainQuery, preemptor.DrainPage)

REQUESTS: tuple[Request, ...] = (
    TREE,
    REVISIONS,
    SET_SHARES,
    PUT_BUDGETS,
    CLOSE_BUDGET,
    LOAD_TREE,
    DATED,
    PLAN_SHARES,
    WITHDRAW_DATED,
    PROPOSALS,
    PROPOSE,
    ACCEPT_PROPOSAL,
    DECLINE_PROPOSAL,
    WITHDRAW_PROPOSAL,
    NOTICES,
    DELIVERIES,
    RETRY_DELIVERIES,
    STANDINGS,
    POSTINGS,
    BOOKS,
    LEDGER_STATE,
    FAULTS,
    STATEMENT,
    USAGE,
    USAGE_BY,
    VERIFY,
    QUARANTINE,
    RELEASE,
    DEMAND,
    FIGURES,
    WAITS,
    IDLE,
    PACE,
    CORRECTIONS,
    CORRECT,
    GAPS,
    VERIFY_EVENTS,
    QUEUE,
    JOBS,
    WHY,
    NODES,
    HISTORY,
    CANCEL,
    CHANGE,
    POLICY,
    POLICY_HISTORY,
    SET_POLICY,
    DECLARE_LOST,
    PAYLOAD,
    CORDON,
    UNCORDON,
    DRAINS,
)


def subject_of(body: Message) -> str:
    """The subject on which a body travels.

    Raises:
        KeyError: the message is not in the table.
        ValueError: a token of the body cannot be part of a subject.
    """
    return BY_MESSAGE[type(body)].of(body)


def check(subject: str, envelope: Envelope[Message]) -> None:
    """Hold an envelope against the subject it came on: type, version and every token must agree.

    Raises:
        Refusal: `unknown_subject`, `type_mismatch`, `tokens_mismatch`, or `<token>_mismatch` naming the token that differs.
    """
    parts = subject.split(".")
    row = BY_PREFIX.get(".".join(parts[:3]))
    if row is None:
        raise Refusal("unknown_subject", f"nobody says anything on {subject!r}", envelope.id)
    if type(envelope.body) is not row.message:
        raise Refusal("type_mismatch", f"{subject!r} carries {row.message.TYPE}, not {envelope.type}", envelope.id)
    values = parts[3:]
    if len(values) != len(row.tokens):
        raise Refusal("tokens_mismatch", f"{subject!r} should read {row.pattern!r}", envelope.id)
    for token, value in zip(row.tokens, values, strict=True):
        said = msgspec.to_builtins(getattr(envelope.body, token))
        if said != value:
            raise Refusal(f"{token}_mismatch", f"the message says {token} {said!r}, its subject {value!r}", envelope.id)


def publisher_of(subject: str) -> str:
    """The identity token of a subject: whom a refusal is addressed to. A service is named by its own word."""
    parts = subject.split(".")
    if parts and parts[0] in {"user", "agent"} and len(parts) > 3 and is_name(parts[3]):
        return parts[3]
    return parts[0] if parts and is_name(parts[0]) else "unknown"


def origin_of(subject: str) -> str:
    """Who said it, told apart from whoever else bears the name: `user.ada`, `agent.c1`, `budget.budget`.

    A person may be called as a cluster or a service is; `publisher_of` alone would take them for one.
    """
    return f"{subject.partition('.')[0]}.{publisher_of(subject)}"
