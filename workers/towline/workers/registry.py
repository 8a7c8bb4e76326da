"""Definitions: what `@workflow` and `@activity` make of a function, and the registry that collects them.

Promises that a definition that registered is sound: its signature fits, its types can be decoded, its effect
can be repeated safely; anything else is a `RegistrationError` at import, which names the function and the
remedy. Definitions are frozen and carry their function: no module path is ever stored in a log. Leaves running
them to `machine` (workflows) and `activities`.
"""

import inspect
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import GenericAlias
from typing import Any, Final, Generic, ParamSpec, TypeVar, get_args, get_type_hints

import msgspec

from towline.protocol.ids import is_name
from towline.protocol.values import Effect, OnBusy

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_START_TO_CLOSE: Final = timedelta(seconds=60)


class RegistrationError(TypeError):
    """A workflow or activity that could not work as it is written. The fault is the definition's."""


@dataclass(frozen=True)
class Retry:
    """How often and when a failed activity is tried again.

    `attempts` counts the first one too. The wait before attempt n+1 is drawn evenly from 0 to
    `first × factor^(n-1)`, at most `longest` (full jitter). `never` names exceptions that no repetition heals.
    """

    attempts: int = 3
    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(seconds=60)
    never: tuple[type[BaseException] | str, ...] = ()

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.factor < 1 or self.first < timedelta(0) or self.longest < timedelta(0):
            raise RegistrationError("Retry: attempts ≥ 1, factor ≥ 1, and no negative waits")

    def wait_ms(self, seed: str, failed_attempt: int) -> int:
        """Milliseconds to wait after `failed_attempt`; the same for the same seed and attempt."""
        ceiling_s = min(
            self.first.total_seconds() * self.factor ** min(failed_attempt - 1, 64), self.longest.total_seconds()
        )
        return int(random.Random(f"{seed}/{failed_attempt}").uniform(0, ceiling_s * 1000))

    def heals(self, error: BaseException) -> bool:
        """Whether another attempt could help after `error`."""
        names = {base.__name__ for base in type(error).__mro__}
        return not any(entry in names if isinstance(entry, str) else isinstance(error, entry) for entry in self.never)


@dataclass(frozen=True)
class Activity(Generic[P, R]):
    """One activity. Called directly it is just its function, which is how unit tests use it."""

    name: str
    fn: Callable[P, Any] = field(repr=False)
    is_async: bool
    retry: Retry
    start_to_close: timedelta | None
    heartbeat: timedelta | None
    effect: Effect
    idempotent: bool
    read_back: Callable[..., Any] | None = field(repr=False)
    parameters: tuple[Any, ...] = field(repr=False)
    result: Any = field(repr=False)
    signature: inspect.Signature = field(repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.fn(*args, **kwargs)

    @property
    def title(self) -> str:
        """For people: the name in words."""
        return self.name.replace("_", " ").capitalize()

    def encode_args(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments as a JSON array in the order of the parameters.

        Raises `TypeError` when they do not fit the signature or cannot be encoded.
        """
        if kwargs or len(args) != len(self.parameters):  # else they stand in their order already: binding is slow
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args = tuple(bound.arguments.values())
        return encode_value(list(args), f"the arguments of {self.name}")

    def decode_args(self, raw: bytes) -> tuple[Any, ...]:
        """The arguments as the annotations declare them. Raises `msgspec.ValidationError`."""
        return tuple(msgspec.json.decode(raw, type=GenericAlias(tuple, self.parameters)))

    def decode_result(self, raw: bytes) -> Any:
        """The result as the annotation declares it. Raises `msgspec.ValidationError`."""
        return msgspec.json.decode(raw, type=self.result)


@dataclass(frozen=True)
class Workflow:
    """One workflow at one declared version."""

    name: str
    version: str
    fn: Callable[..., Awaitable[Any]] = field(repr=False)
    queue: str
    takes_input: bool
    input: Any = field(repr=False)
    signals: Mapping[str, Any] = field(repr=False)
    plan_first: bool = False
    on_busy: OnBusy | None = None

    def __call__(self, *args: Any) -> Awaitable[Any]:
        return self.fn(*args)

    def decode_input(self, raw: bytes | None) -> Any:
        """The run's input as the annotation declares it. Raises `msgspec.ValidationError`."""
        return msgspec.json.decode(raw if raw is not None else b"null", type=self.input)

    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of the input, for `GET /workflows`."""
        return schema_of(self.input) if self.takes_input else {}


class Registry:
    """The definitions of one worker. `workflow` and `activity` of this module fill the one that workers read."""

    def __init__(self) -> None:
        self.workflows: dict[tuple[str, str], Workflow] = {}
        self.activities: dict[str, Activity[..., Any]] = {}

    def workflow(
        self,
        *,
        name: str,
        version: str = "1",
        queue: str = "default",
        signals: Mapping[str, Any] | None = None,
        plan_first: bool = False,
        on_busy: OnBusy | None = None,
    ) -> Callable[[Callable[..., Awaitable[Any]]], Workflow]:
        """Register `async def run(ctx, input)` as a workflow. `signals` maps names to payload types.

        `on_busy`: what becomes of a run that is started in a busy thread and does not say it itself.
        """

        def register(fn: Callable[..., Awaitable[Any]]) -> Workflow:
            where = f"workflow {name!r} ({fn.__qualname__})"
            _require(is_name(name), where, "its name must look like an identifier")
            _require(bool(version) and len(version) <= 64, where, "its version is a text of 1 to 64 characters")
            _require(on_busy in (None, *get_args(OnBusy)), where, f"on_busy is one of {', '.join(get_args(OnBusy))}")
            _require(is_name(queue), where, "its queue must be named like an identifier")
            _require(inspect.iscoroutinefunction(fn), where, "write it as `async def run(ctx, input)`")
            parameters, _, hints = _read_signature(fn, where)
            _require(1 <= len(parameters) <= 2, where, "it takes ctx and at most one input")
            input_type = hints.get(parameters[1].name, Any) if len(parameters) == 2 else Any
            _require_decodable(input_type, where, "its input")
            for signal, payload in (signals or {}).items():
                _require(is_name(signal), where, f"signal {signal!r} must be named like an identifier")
                _require_decodable(payload, where, f"signal {signal!r}")
            made = Workflow(
                name=name,
                version=version,
                fn=fn,
                queue=queue,
                takes_input=len(parameters) == 2,
                input=input_type,
                signals=dict(signals or {}),
                plan_first=plan_first,
                on_busy=on_busy,
            )
            known = self.workflows.get((name, version))
            _require(known is None or _same_place(known.fn, fn), where, "this name and version are registered already")
            self.workflows[name, version] = made
            return made

        return register

    def activity(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        start_to_close: timedelta | None = DEFAULT_START_TO_CLOSE,
        heartbeat: timedelta | None = None,
        effect: Effect = "write",
        idempotent: bool = False,
        read_back: Callable[..., Any] | None = None,
    ) -> Any:
        """Register a function as an activity; `activity_api.activity` is the typed form for users."""

        def register(fn: Callable[..., Any]) -> Activity[..., Any]:
            called = name or fn.__name__
            where = f"activity {called!r} ({fn.__qualname__})"
            _require(is_name(called), where, "its name must look like an identifier")
            _require(effect in ("none", "read", "write"), where, 'effect is "none", "read" or "write"')
            _require(
                effect != "write" or idempotent or read_back is not None,
                where,
                "a write needs idempotent=True (it passes activity.idempotency_key on) or read_back=…, "
                'since a crash may run it twice; say effect="read" or effect="none" if it changes nothing',
            )
            parameters, signature, hints = _read_signature(fn, where)
            types = tuple(hints.get(parameter.name, Any) for parameter in parameters)
            for parameter, annotation in zip(parameters, types, strict=True):
                _require_decodable(annotation, where, f"parameter {parameter.name!r}")
            result = hints.get("return", Any)
            _require_decodable(result, where, "its result")
            made: Activity[..., Any] = Activity(
                name=called,
                fn=fn,
                is_async=inspect.iscoroutinefunction(fn),
                retry=retry or Retry(),
                start_to_close=start_to_close,
                heartbeat=heartbeat,
                effect=effect,
                idempotent=idempotent,
                read_back=read_back,
                parameters=types,
                result=result,
                signature=signature,
            )
            known = self.activities.get(called)
            _require(
                known is None or _same_place(known.fn, fn), where, "another activity is registered under this name"
            )
            self.activities[called] = made
            return made

        return register if fn is None else register(fn)

    def workflow_for(self, name: str, version: str) -> Workflow | None:
        """The workflow of exactly this name and declared version, or None."""
        return self.workflows.get((name, version))


def encode_value(value: Any, what: str) -> bytes:
    """`value` as JSON. Raises `TypeError`, naming `what`, when it has no JSON form."""
    try:
        raw = msgspec.json.encode(value)
        if b"null" in raw and not _is_finite(msgspec.to_builtins(value)):
            raise ValueError("it holds a number that is not finite, which JSON would turn into null")
        return raw
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{what} cannot be recorded: {error}; use JSON values or msgspec structs") from None


def _is_finite(value: Any) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(_is_finite(each) for each in value.values())
        case list() | tuple():
            return all(_is_finite(each) for each in value)
        case _:
            return True


def schema_of(annotation: Any) -> dict[str, Any]:
    """JSON Schema of a type; for a type that msgspec cannot describe, the schema that allows anything."""
    try:
        return msgspec.json.schema(annotation)
    except (TypeError, NotImplementedError):
        return {}


def _read_signature(
    fn: Callable[..., Any], where: str
) -> tuple[list[inspect.Parameter], inspect.Signature, dict[str, Any]]:
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        _require(
            parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD),
            where,
            f"parameter {parameter.name!r}: arguments are recorded by position; use plain parameters",
        )
    try:
        hints = get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise RegistrationError(f"{where}: {error}; import the types it names at module level") from None
    return parameters, signature, hints


def _require(holds: bool, where: str, remedy: str) -> None:
    if not holds:
        raise RegistrationError(f"{where}: {remedy}")


def _require_decodable(annotation: Any, where: str, what: str) -> None:
    try:
        msgspec.json.Decoder(annotation)
    except TypeError as error:
        raise RegistrationError(f"{where}: {what} has a type that cannot be recorded: {error}") from None


def _same_place(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions stand in the same place of the same module: one module loaded twice."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


registry: Final = Registry()
"""What `towline worker MODULE_OR_FILE` collects by importing the module."""


workflow = registry.workflow
