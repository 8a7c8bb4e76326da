"""The command line `towline`: putting Towline together on a machine, looking into it, and talking to runs.

    dev       store, gateway and workers in one terminal        doctor    is the store fit, does the stack answer
    gateway   one gateway process                               token     mint a credential
    worker    one worker process                                demo      a run that loses its worker, start to end
    run …     start, watch and steer runs (`cli_run`)

Promises one line on stderr for every error, with its remedy, and exit codes that mean something: 0 done, 1 it
failed, 2 called wrongly or cannot start as called, 130 interrupted; those of `run` are in `cli_run`. `--json`
where programs read. Each command lives in a module of its own, imported when it is called, so that `run status`
does not wait for the store's client library; here are only options and words.
"""

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from towline.deploy.cli_steer import run_app
from towline.deploy.data_folder import StoreFailed
from towline.deploy.durations import parse_duration
from towline.deploy.loading import SHIPPED, LoadError, load
from towline.deploy.local import DEFAULT_PORT, StackError, StackOptions
from towline.deploy.settings import (
    PREFIXES,
    VARIABLES,
    SettingsError,
    payloads_of,
    refuse_unknown,
    secret_of,
    store_url_of,
)
from towline.deploy.supervise import end_with_supervisor
from towline.gateway.settings import SettingsError as GatewaySettingsError
from towline.protocol.store.api import StoreError, StoreUnavailable
from towline.protocol.store.crash_points import BadCrashPoint
from towline.protocol.tokens import ROLES, mint
from towline.workers.settings import WorkerSettingsError

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

DEFAULT_DATA: Final = Path(".towline")

app = typer.Typer(
    name="towline",
    help="A durable address for every long-running agent run.",
    epilog=f"Environment: {', '.join(VARIABLES)}, and what begins with {' or '.join(PREFIXES)}.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(run_app, name="run")

DataOption = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="The data folder.")]
UrlOption = Annotated[str | None, typer.Option("--url", metavar="URL", help="The store: redis://, rediss://, unix://.")]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command()
def dev(
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the gateway; 0 takes a free one.")
    ] = DEFAULT_PORT,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    data: Annotated[Path, typer.Option(metavar="DIR", help="The data folder, made with mode 0700.")] = DEFAULT_DATA,
    workflows: Annotated[
        list[str] | None, typer.Option(metavar="MODULE_OR_FILE", help="Your own workflows; may be repeated.")
    ] = None,
    allow_path: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A folder that runs may read; may be repeated. Default: the current one."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many worker processes.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="One line when ready; everything else on stderr.")] = False,
) -> int:
    """Run the whole stack in this terminal until Ctrl-C: store, gateway, workers."""
    from towline.deploy.dev import run_dev

    options = StackOptions(
        data=data,
        host=host,
        port=port,
        workers=workers,
        workflows=workflows or (),
        allow_paths=allow_path or (),
    )
    return asyncio.run(run_dev(options, as_json=as_json))


@app.command()
def gateway(
    data: DataOption = None,
    url: UrlOption = None,
    host: Annotated[str | None, typer.Option("--host", help="The address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Default: 8480; 0 takes a free one.")] = None,
    uds: Annotated[Path | None, typer.Option(metavar="PATH", help="A unix socket instead of host and port.")] = None,
) -> None:
    """Run one gateway process."""
    from towline.gateway.server import run_gateway
    from towline.gateway.settings import from_environment
    from towline.protocol.store.durability import enforce_at

    begin_process()
    settings = from_environment(
        store_url=store_url_of(data, url),
        jwt_secret=secret_of(data).encode(),
        payloads=payloads_of(data),
        host=host,
        port=port,
        socket_path=uds,
    )
    asyncio.run(enforce_at(settings.store_url, development=settings.development))
    try:
        run_gateway(
            settings, on_ready=lambda address: logging.getLogger("towline.gateway").info("ready at %s", address)
        )
    except OSError as error:
        where = uds or f"{settings.host}:{settings.port}"
        raise StackError(f"{where} cannot be used ({error.strerror}): choose another with --port or --uds") from error


@app.command()
def worker(
    workflows: Annotated[list[str] | None, typer.Argument(metavar="[MODULE_OR_FILE]...")] = None,
    data: DataOption = None,
    url: UrlOption = None,
    slots: Annotated[int | None, typer.Option(min=1, max=10_000, help="How many runs it holds at once.")] = None,
) -> None:
    """Run one worker process for the workflows of these modules or files (default: the shipped ones)."""
    from towline.protocol.store.durability import enforce_at
    from towline.workers.settings import from_environment
    from towline.workers.worker import run_worker

    begin_process()
    load(workflows or [SHIPPED])
    settings = from_environment(store_url=store_url_of(data, url), payloads=payloads_of(data), slots=slots)
    asyncio.run(enforce_at(settings.store_url))
    run_worker(settings)


@app.command()
def token(
    data: DataOption = None,
    sub: Annotated[str, typer.Option(metavar="SUBJECT", help="Whose credential it is.")] = "dev",
    role: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(ROLES)}; may be repeated.")] = None,
    ttl: Annotated[
        str, typer.Option(help="How long it is valid: 90s, 15m, 12h, 7d; a bare number is seconds.")
    ] = "12h",
    as_json: JsonOption = False,
) -> None:
    """Mint a credential, signed with the secret of the data folder, else with TOWLINE_JWT_SECRET."""
    roles = role or ["user"]
    if unknown := sorted(set(roles) - set(ROLES)):
        raise typer.BadParameter(f"{unknown[0]!r} is no role; there are {', '.join(ROLES)}", param_hint="'--role'")
    try:
        ttl_s = parse_duration(ttl)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--ttl'") from None
    secret = secret_of(data).encode()
    try:
        minted = mint(secret, subject=sub, roles=[each for each in ROLES if each in roles], ttl_s=ttl_s)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--sub'") from None
    print(
        msgspec.json.encode({"token": minted, "sub": sub, "roles": roles, "ttl_s": ttl_s}).decode()
        if as_json
        else minted
    )


@app.command()
def doctor(data: DataOption = None, url: UrlOption = None, as_json: JsonOption = False) -> int:
    """Check that the store keeps what it acknowledges, and that the stack around it answers."""
    from towline.deploy.doctor import run_doctor

    return asyncio.run(run_doctor(data, url, as_json=as_json))


@app.command()
def demo(
    folder: Annotated[Path | None, typer.Argument(help="What to review; default: an installed package.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the gateway; 0 takes a free one.")] = 0,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the data here; default: a temporary folder.")
    ] = None,
) -> int:
    """Watch a review lose its worker and its watcher, carry on, ask, and finish with evidence."""
    from towline.deploy.demo import run_demo

    return asyncio.run(run_demo(folder, yes=yes, port=port, data=data))


def begin_process() -> None:
    """What gateway and worker processes begin with."""
    end_with_supervisor()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)


def _fail(message: str, code: int) -> int:
    print(f"towline: {' '.join(message.split())}", file=sys.stderr)
    return code


def _cannot_start() -> tuple[type[Exception], ...]:
    """The errors of what was called or set up wrongly; looked up when there is one, see the module."""
    from towline.protocol.store.durability import NotDurable

    return (SettingsError, GatewaySettingsError, WorkerSettingsError, BadCrashPoint, LoadError, NotDurable)


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code; nothing but SystemExit of a child program comes out."""
    try:
        refuse_unknown(os.environ)
        answer = typer.main.get_command(app).main(args=arguments, prog_name="towline", standalone_mode=False)
        return answer if isinstance(answer, int) else 0
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return USAGE
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "towline"
        return _fail(f"{error.format_message().rstrip('.')}; see '{where} --help'", error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except _cannot_start() as error:
        return _fail(str(error), USAGE)
    except StoreUnavailable as error:
        return _fail(f"{error}; start the store, or name another with --url", FAILED)
    except (StackError, StoreFailed, StoreError) as error:
        return _fail(str(error), FAILED)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            return _fail(f"{error.filename or 'the system'}: {error.strerror or error}", FAILED)
        # Whoever read us has gone (`towline … | head`); Python must not complain at exit either.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
