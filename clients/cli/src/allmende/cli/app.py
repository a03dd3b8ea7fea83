"""The command `allmende`: every subcommand in one place."""

import typer

from allmende.cli.commands import (
    budgets,
    cluster,
    dated,
    elsewhere,
    faults,
    jobs,
    ledger,
    ledger_correct,
    ledger_demand,
    ledger_figures,
    ledger_follow,
    ledger_forecast,
    ledger_gaps,
    ledger_quarantine,
    ledger_verify,
    ledger_waits,
    nodes,
    notices,
    policies,
    proposals,
    run,
    submit,
)
from allmende.cli.demo.command import demo
from allmende.cli.lab.command import up

app = typer.Typer(
    name="allmende",
    cls=elsewhere.Commands,
    help="GPU time as budgets: shares decided before any job exists, and starts that follow them.",
    epilog="Exit codes: 0 done, 1 refused, 2 wrong command line or file, 3 somebody changed it first, 69 nobody answered, "
    "74 the answer could not be written.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: it is quick, and does not fold words into boxes.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(up)
app.command()(demo)
app.command(options_metavar="[OPTIONS] --")(run.run)
app.command(options_metavar="[OPTIONS] --")(submit.submit)
app.command()(jobs.queue)
app.command()(jobs.jobs)
app.command()(jobs.why)
app.command()(jobs.cancel)
app.command()(jobs.hold)
app.command()(jobs.release)
app.command()(jobs.change)
proposals.add_to(budgets.app)
dated.add_to(budgets.app)
app.add_typer(budgets.app, name="budgets")
app.add_typer(policies.app, name="policy")
app.command()(cluster.standings)
app.command()(faults.faults)
ledger.app.command()(ledger_verify.verify)
ledger.app.command()(ledger_quarantine.quarantine)
ledger.app.command()(ledger_quarantine.release)
ledger.app.command()(ledger_demand.demand)
ledger.app.command()(ledger_figures.figures)
ledger.app.command()(ledger_waits.waits)
ledger.app.command()(ledger_waits.idle)
ledger.app.command()(ledger_forecast.forecast)
ledger.app.command()(ledger_follow.follow)
ledger.app.command()(ledger_correct.correct)
ledger.app.command()(ledger_correct.corrections)
ledger.app.command()(ledger_gaps.gaps)
app.add_typer(ledger.app, name="ledger")
app.add_typer(nodes.app, name="nodes")
app.add_typer(notices.app, name="notices")
app.command(context_settings=elsewhere.UNREAD, add_help_option=False)(elsewhere.simulate)
app.command(context_settings=elsewhere.UNREAD, add_help_option=False)(elsewhere.agent)
