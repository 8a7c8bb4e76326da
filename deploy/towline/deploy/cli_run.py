"""`towline run …`: start, watch and steer runs from a terminal or a script.

    start      start a run                     approve, reject   decide what a run asks
    list       the newest runs                 send              a signal, or any command as JSON
    show       one run as it is                cancel            ask a run to stop
    tail       its events, live, resumable     artifacts         list what it made, or fetch one

Promises results on stdout (`--json`: one JSON document; one a line for `tail` and `list`), everything else on
stderr, every error in one line with its remedy, and these exit codes:

    0  done; for tail and start --tail: the run completed
    1  the run failed, was cancelled, or completed unverified
    2  called wrongly: an argument, an input that the workflow does not take
    3  no such run, request or artifact, or not readable with this credential
    4  refused: it has ended, was decided before, does not handle this, was changed meanwhile
    5  no answer, or the server cannot now: try again; nothing is lost
    6  the credential is missing, has ended, or does not allow this
    130  interrupted

Leaves failures to `run_call`, the looks to `run_views`. Read `run_call` first.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from towline.deploy import run_views, words
from towline.deploy.run_call import ENDED_BADLY, NOT_ALLOWED, NOT_FOUND, REFUSED, USAGE, Refusal, call
from towline.protocol.approvals import digest_of
from towline.protocol.client.actions import Placed
from towline.protocol.client.connect import Client
from towline.protocol.client.views import SeenRun
from towline.protocol.values import JsonObject

run_app = typer.Typer(
    help="Start, watch and steer runs.",
    epilog="Exit codes: 0 done, 1 the run failed, was cancelled or completed unverified, 2 called wrongly, "
    "3 not found, 4 refused, 5 no answer, 6 not allowed, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
UrlOption = Annotated[str | None, typer.Option("--url", metavar="URL", help="The gateway. Default: TOWLINE_URL.")]
TokenOption = Annotated[str | None, typer.Option("--token", help="The credential. Default: TOWLINE_TOKEN.")]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Folder of a running 'towline dev'. Default: .towline.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs: JSON on stdout.")]
ReasonOption = Annotated[str | None, typer.Option(help="Why; stands in the log.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def print_json(value: Any) -> None:
    """One value a line on stdout."""
    print(msgspec.json.encode(value).decode(), flush=True)


def _object(text: str, option: str) -> Any:
    """The JSON in an option, or in the file that `@FILE` names."""
    try:
        return msgspec.json.decode(Path(text[1:]).read_bytes() if text.startswith("@") else text.encode())
    except OSError as error:
        raise typer.BadParameter(f"cannot be read: {error}", param_hint=option) from None
    except msgspec.DecodeError as error:
        raise typer.BadParameter(
            f"is not JSON: {error}; write it like '{{\"n\": 1}}', or @FILE", param_hint=option
        ) from None


@run_app.command()
def start(
    workflow: Annotated[str, typer.Argument(help="The workflow's name, such as review.")],
    input_: Annotated[str | None, typer.Option("--input", metavar="JSON", help="Its input, or @FILE.")] = None,
    path: Annotated[Path | None, typer.Option(metavar="DIR", help="Short for a folder as input.source.path.")] = None,
    upload: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Send a zip or tar.gz, and name it as input.source.upload.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--id", help="An address of your own; the same again is the run.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency-Key: the same key and input start one run.")] = None,
    headline: Annotated[str | None, typer.Option(help="Its title in lists.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be repeated.")] = None,
    follow: Annotated[bool, typer.Option("--tail", help="Then watch it until it ends.")] = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Start a run and print its address."""
    value: Any = {} if input_ is None else _object(input_, "'--input'")
    if (path is not None or upload is not None) and not isinstance(value, dict):
        raise typer.BadParameter("must be an object when --path or --upload is given", param_hint="'--input'")
    if path is not None and upload is not None:
        raise typer.BadParameter("give a folder or a file, not both", param_hint="'--upload'")
    if path is not None:
        value["source"] = {"path": os.path.abspath(path)}
    labels = dict[str, str]()
    for each in label or ():
        name, equals, text = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="'--label'")
        labels[name] = text

    async def work(client: Client) -> int:
        if upload is not None:
            try:
                sent = await client.upload(upload)
            except OSError as error:
                raise Refusal(f"{upload} cannot be read: {error.strerror}", USAGE) from None
            value["source"] = {"upload": sent["ref"]}
        run = await client.start(workflow, value, key=key, id=run_id, headline=headline, labels=labels or None)
        if as_json and not follow:
            print_json(run.fields)
        elif not follow:
            print(run.id)
            _say(f"watch it:  towline run tail {run.id}")
        return await _tail(client, run.id, "0", as_json) if follow else 0

    return call(url, token, data, work)


@run_app.command("list")
def list_runs(
    status: Annotated[str | None, typer.Option(help="Only these, such as running,waiting.")] = None,
    workflow: Annotated[str | None, typer.Option(help="Only this workflow.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """The newest runs."""

    async def work(client: Client) -> int:
        runs = await client.runs(status=status, workflow=workflow, limit=limit)
        if as_json:
            for run in runs:
                print_json(run.fields)
        else:
            run_views.console().print(run_views.runs_table(runs))
        return 0

    return call(url, token, data, work)


@run_app.command()
def show(
    run: RunArgument,
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """One run as it is now."""

    async def work(client: Client) -> int:
        _show(await client.get(run), as_json)
        return 0

    return call(url, token, data, work)


def _show(seen: SeenRun, as_json: bool) -> None:
    if as_json:
        print_json(seen.fields)
    else:
        run_views.console().print(run_views.run_view(seen))


@run_app.command()
def tail(
    run: RunArgument,
    after: Annotated[str, typer.Option(metavar="CURSOR", help="Go on from here: a cursor, 0, or latest.")] = "0",
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print a run's events until it ends; come back with --after and miss nothing."""
    return call(url, token, data, lambda client: _tail(client, run, after, as_json))


async def _tail(client: Client, run: str, after: str, as_json: bool) -> int:
    await client.get(run)  # an address without a run fails here, in words
    console = run_views.console()

    def on_place(placed: Placed) -> None:
        if placed.recovery == "reset":
            _say(f"towline: the server's history of {run} is another one now ({placed.code}); it begins again")
        else:
            first, last = placed.lost or placed.skipped or (0, 0)
            _say(f"towline: events {first} to {last} are not shown ({placed.code}); see 'towline run show {run}'")

    stream = client.events(run, after, on_place=on_place)
    try:
        async for event in stream:
            if as_json:
                print_json({**event.fields, "run": run, "cursor": event.cursor})
                continue
            console.print(run_views.event_line(event))
            if event.type == "approval.requested" and isinstance(event.data, dict):
                _say(f"→ towline run approve {run} {words.plain(event.data.get('request'))}")
    except asyncio.CancelledError:
        _say(f"go on with:  towline run tail {run} --after {stream.cursor}")
        raise
    seen = await client.get(run)
    is_good = seen.status == "completed" and (seen.outcome or {}).get("verified") is not False
    return 0 if is_good else ENDED_BADLY


@run_app.command()
def send(
    run: RunArgument,
    name: Annotated[str, typer.Argument(help="The signal's name; with --command a type of command.")],
    payload: Annotated[str | None, typer.Argument(metavar="[JSON]", help="Its payload, or @FILE.")] = None,
    command: Annotated[bool, typer.Option("--command", help="NAME is a command, JSON its data.")] = False,
    command_id: Annotated[
        str | None, typer.Option("--id", help="Id of the command; the same again applies once.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until the run has applied or rejected it.")] = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Send a run a signal, or any command as JSON."""
    value = None if payload is None else _object(payload, "'JSON'")
    if command and value is not None and not isinstance(value, dict):
        raise typer.BadParameter("must be an object with --command", param_hint="'JSON'")
    type_, body = (name, value) if command else ("signal", {"name": name, "payload": value})

    async def work(client: Client) -> int:
        receipt = await client.send(run, type_, body, command_id=command_id, wait="applied" if wait else None)
        return print_receipt(receipt, as_json)

    return call(url, token, data, work)


def print_receipt(receipt: JsonObject, as_json: bool) -> int:
    """Says what became of a command; the exit code."""
    if as_json:
        print_json(receipt)
    else:
        effect = f": {words.plain(receipt['effect'])}" if receipt.get("effect") else ""
        late = ", no outcome in time" if receipt.get("timed_out") else ""
        again = ", as before" if receipt.get("duplicate") else ""
        print(f"{receipt.get('status')}{again}{effect}{late}")
    return REFUSED if receipt.get("status") == "rejected" else 0


RequestArgument = Annotated[str | None, typer.Argument(metavar="[REQUEST]", help="Which, if it asks several things.")]


@run_app.command()
def approve(
    run: RunArgument,
    request: RequestArgument = None,
    comment: Annotated[str | None, typer.Option(help="Stands in the log.")] = None,
    yes: YesOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show what a run asks leave for, ask you, and approve exactly that."""
    return call(url, token, data, lambda client: _decide(client, "approve", run, request, comment, yes, as_json))


@run_app.command()
def reject(
    run: RunArgument,
    request: RequestArgument = None,
    comment: Annotated[str | None, typer.Option(help="Stands in the log.")] = None,
    yes: YesOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show what a run asks leave for, ask you, and reject it."""
    return call(url, token, data, lambda client: _decide(client, "reject", run, request, comment, yes, as_json))


async def _decide(
    client: Client, decision: str, run: str, request: str | None, comment: str | None, yes: bool, as_json: bool
) -> int:
    request = request or _only_request(await client.get(run))
    asked = await client.request(run, request)
    details = asked.get("request") or {}
    digest = details.get("digest")
    if details.get("proposal") is None or digest is None:
        raise Refusal(f"what {request} asks is not shown to this credential, so nothing can be decided", NOT_ALLOWED)
    if digest_of(request, details["proposal"], details.get("questions") or []) != digest:
        raise Refusal(f"the digest of {request} is not that of what it shows: do not decide, report it", REFUSED)
    if not as_json:
        run_views.console(stderr=True).print(run_views.request_view(request, asked.get("title"), details))
    if not yes:
        if not sys.stdin.isatty():
            raise Refusal(f"nobody can be asked here; add --yes to {decision} {request} unseen", USAGE)
        if not typer.confirm(f"{decision.capitalize()}?", err=True):
            _say("nothing was decided")
            return ENDED_BADLY
    decide = client.approve if decision == "approve" else client.reject
    return print_receipt(await decide(run, request, digest, comment=comment), as_json)


def _only_request(run: SeenRun) -> str:
    open_requests = [str(wait["id"]) for wait in run.waiting_on if wait.get("kind") == "approval"]
    if not open_requests:
        raise Refusal(f"{run.id} asks for no approval now; it is {words.status_of(run)}", REFUSED)
    if len(open_requests) > 1:
        raise Refusal(f"{run.id} asks several things: name one of {', '.join(open_requests)}", USAGE)
    return open_requests[0]


@run_app.command()
def cancel(
    run: RunArgument,
    reason: ReasonOption = None,
    grace_s: Annotated[float | None, typer.Option("--grace", metavar="SECONDS", min=0, max=600)] = None,
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Ask a run to stop; it has --grace seconds (30) to clean up."""

    async def work(client: Client) -> int:
        grace_ms = None if grace_s is None else round(grace_s * 1000)
        seen = await client.cancel(run, reason=reason, grace_ms=grace_ms)
        if as_json:
            print_json(seen.fields)
        else:
            print(words.status_of(seen))
        return 0

    return call(url, token, data, work)


@run_app.command()
def artifacts(
    run: RunArgument,
    artifact: Annotated[str | None, typer.Argument(metavar="[ARTIFACT]", help="Fetch this one: id or name.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: stdout.")] = None,
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """List what a run has made, or fetch one of it."""

    async def work(client: Client) -> int:
        found = await client.artifacts(run)
        if artifact is None:
            if as_json:
                for item in found:
                    print_json(item)
            else:
                run_views.console().print(run_views.artifacts_table(found))
            return 0
        wanted = [item for item in found if artifact in (item["id"], item.get("name"))]
        if not wanted:
            raise Refusal(f"{run} has no artifact {artifact}; see 'towline run artifacts {run}'", NOT_FOUND)
        content = await client.artifact(run, wanted[-1]["id"])
        if output is None:
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        else:
            try:
                output.write_bytes(content)
            except OSError as error:
                raise Refusal(f"{output} cannot be written: {error.strerror}", USAGE) from None
        return 0

    return call(url, token, data, work)
