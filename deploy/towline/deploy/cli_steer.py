"""`towline run pause`, `resume` and `inbox`: holding a run, letting it go on, and what waits for the caller.

Promises what `cli_run` promises of every command of `towline run`. Leaves the looks to `run_views`.
"""

from typing import Annotated

import typer

from towline.deploy import run_views
from towline.deploy.cli_run import (
    DataOption,
    JsonOption,
    ReasonOption,
    RunArgument,
    TokenOption,
    UrlOption,
    print_json,
    print_receipt,
)
from towline.deploy.cli_run import (
    run_app as run_app,
)
from towline.deploy.run_call import call
from towline.protocol.client.connect import Client


@run_app.command()
def pause(
    run: RunArgument,
    reason: ReasonOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let what runs end, and start nothing more until resume."""
    return call(url, token, data, lambda client: _steer(client, "pause", run, reason, as_json))


@run_app.command()
def resume(
    run: RunArgument,
    reason: ReasonOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let a paused run go on."""
    return call(url, token, data, lambda client: _steer(client, "resume", run, reason, as_json))


async def _steer(client: Client, command: str, run: str, reason: str | None, as_json: bool) -> int:
    return print_receipt(await client.send(run, command, {} if reason is None else {"reason": reason}), as_json)


@run_app.command()
def inbox(
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many.")] = 50,
    url: UrlOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """What waits for you, over all runs."""

    async def work(client: Client) -> int:
        items = await client.inbox(limit=limit)
        if as_json:
            for item in items:
                print_json(item)
        else:
            run_views.console().print(run_views.inbox_table(items))
        return 0

    return call(url, token, data, work)
