"""Questions that a run asks people, by a worker over HTTP: who may answer, with what, and once."""

import asyncio
from typing import Any

from tests.support.gateway import RunningGateway, token
from tests.support.http_worker import DONE, NOTE, HttpWorker, data_of, events_of, http_worker, offer_essay, start_essay

SCHEMA = {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1}}, "required": ["size"]}


def question(request: str = "q", **more: Any) -> dict[str, Any]:
    return data_of("input.requested", request=request, title="Which size?", schema=SCHEMA, **more)


async def respond(gateway: RunningGateway, run: str, value: Any, request: str = "q", **more: Any) -> Any:
    who, command_id = more.pop("who", None), more.pop("command_id", None)
    body = {"type": "respond", "data": {"request": request, "value": value}}
    body |= {} if command_id is None else {"command_id": command_id}
    headers = None if who is None else gateway.as_(who, **more)
    return await gateway.http.post(f"/v1/runs/{run}/commands", json=body, headers=headers)


async def ask(gateway: RunningGateway, worker: HttpWorker, **more: Any) -> None:
    await worker.claim()
    assert (await worker.write(question(**more), release={"on": ["q"]}))["status"] == "waiting"


async def test_a_question_waits_in_the_run_and_its_answer_brings_the_run_back(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await ask(gateway, worker)
        shown = (await gateway.http.get(f"/v1/runs/{run}")).json()
        (wait,) = shown["waiting_on"]
        assert (wait["id"], wait["kind"], wait["may_answer"], wait["request"]["schema"]) == ("q", "input", True, SCHEMA)
        assert {"type": "respond", "request": "q", "schema": SCHEMA} in shown["actions"]
        (item,) = (await gateway.http.get("/v1/inbox")).json()["items"]
        assert (item["kind"], item["run"]["id"], item["request"]["id"]) == ("input", run, "q")
        receipt = (await respond(gateway, run, {"size": 3}, command_id="k")).json()
        assert (receipt["status"], receipt["effect"], receipt["duplicate"]) == ("applied", "answered", False)
        assert (await gateway.http.get("/v1/inbox")).json()["items"] == []
        again = await worker.claim()
        assert again["run"]["status"] == "running"
        assert again["run"]["waiting_on"] == []
        await worker.write(DONE)
    events = await events_of(gateway, run)
    (resolved,) = [event for event in events if event["type"] == "input.resolved"]
    assert resolved["data"] == {"request": "q", "outcome": "answered", "by": "user:ana", "value": {"size": 3}}
    kept = (await gateway.http.get(f"/v1/runs/{run}/requests/q")).json()
    assert (kept["kind"], kept["outcome"], kept["may_answer"]) == ("input", "answered", False)
    assert [(vote["by"], vote["decision"]) for vote in kept["decisions"]] == [("user:ana", "answered")]


async def test_one_answer_wins_and_the_others_are_told(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    names = [f"q{n}" for n in range(20)]
    async with http_worker(gateway) as worker:
        await worker.claim()
        await worker.write(*[question(name, answerers=["role:owner", "user:bob"]) for name in names])
        answers = await asyncio.gather(
            *(
                respond(gateway, run, {"size": n}, name, who="bob" if n % 2 else "ana")
                for n in range(1, 5)
                for name in names
            )
        )
        told: dict[str, int] = {}
        for name in names:
            mine = answers[names.index(name) :: len(names)]
            codes = [answer.status_code for answer in mine]
            assert sorted(codes) == [200] + [409] * 3, name
            loser = mine[codes.index(409)].json()
            assert (loser["code"], loser["request"]["outcome"]) == ("already_decided", "answered")
            told[name] = loser["request"]["seq"]
            winner = codes.index(200) + 1
            repeat = (await respond(gateway, run, {"size": winner}, name, who="bob" if winner % 2 else "ana")).json()
            assert (repeat["status"], repeat["duplicate"]) == ("applied", True)
        resolved = [event for event in await events_of(gateway, run) if event["type"] == "input.resolved"]
        assert {event["data"]["request"]: event["seq"] for event in resolved} == told
        assert len(resolved) == len(names)


async def test_who_is_not_named_and_what_does_not_fit_is_refused(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await ask(gateway, worker, answerers=["user:bob"])
        refused = await respond(gateway, run, {"size": 1})
        assert (refused.status_code, refused.json()["code"], refused.json()["needs"]) == (403, "forbidden", "answerer")
        assert "bob" not in refused.text
        assert (await respond(gateway, run, {"size": 1}, who="eve")).status_code == 404
        assert (await respond(gateway, run, {"size": 1}, who="w1", roles=["worker"])).status_code in (403, 404)
        for value, field in (({"size": 0}, "data.value.size"), ({}, "data.value.size"), (None, "data.value")):
            refused = await respond(gateway, run, value, who="bob")
            assert (refused.status_code, refused.json()["field"]) == (400, field), refused.text
        refused = await respond(gateway, run, {"size": 1, "upload": "upl_" + "0" * 26}, who="bob")
        assert refused.json()["code"] == "unsupported"
        assert (await respond(gateway, run, {"size": 1}, "other", who="bob")).status_code == 404
        body = {"type": "approve", "data": {"request": "q", "digest": "sha256:" + "0" * 64}}
        refused = await gateway.http.post(f"/v1/runs/{run}/commands", json=body)
        assert (refused.status_code, refused.json()["field"]) == (400, "data.request")
        assert (await respond(gateway, run, {"size": 1}, who="bob")).status_code == 200


async def test_a_question_that_nobody_could_answer_is_not_asked(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        for more, field in (
            ({"answerers": []}, "answerers"),
            ({"answerers": ["everyone"]}, "answerers"),
            ({"schema": {"type": "no such"}}, "schema"),
            ({"on_expire": "default", "default": {"size": 0}}, "default.size"),
            ({"expires_at": "tomorrow"}, "expires_at"),
        ):
            worker.number = 0
            refused = await worker.append({"type": "input.requested", "data": {**question()["data"], **more}})
            assert (refused.status_code, refused.json()["field"]) == (400, f"events[0].data.{field}"), refused.text
        worker.number = 0
        await worker.write(question(), NOTE)
        assert (await worker.append(question())).json()["code"] == "conflict"


async def test_a_question_left_open_or_too_late_is_not_answered(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        await worker.write(question("late", expires_at="2020-01-01T00:00:00.000Z"), question("open"))
        refused = await respond(gateway, run, {"size": 1}, "late")
        assert (refused.status_code, refused.json()["code"]) == (410, "expired")
        await worker.write(DONE)
    events = await events_of(gateway, run)
    ended = {e["data"]["request"]: e["data"]["outcome"] for e in events if e["type"] == "input.resolved"}
    assert ended == {"late": "withdrawn", "open": "withdrawn"}
    assert (await respond(gateway, run, {"size": 1}, "open")).json()["code"] == "run_closed"
    assert (await gateway.http.get(f"/v1/runs/{run}/requests/open")).json()["outcome"] == "withdrawn"


async def test_a_viewer_who_is_named_reads_the_question_and_answers_on_a_socket(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await ask(gateway, worker, answerers=["user:bob"])
        async with gateway.socket(token("bob")) as wire:
            subscribed = await wire.subscribe(run, after="0")
            (wait,) = subscribed["projection"]["waiting_on"]
            assert (wait["may_answer"], wait["request"]["schema"]) == (True, SCHEMA)
            data = {"request": "q", "value": {"size": 5}}
            await wire.send(op="command", id="c", run=run, type="respond", command_id="k", data=data)
            receipt = await wire.until("receipt", id="c")
            assert (receipt["status"], receipt["effect"]) == ("applied", "answered")
            again = await worker.claim()
            assert again["run"]["id"] == run
