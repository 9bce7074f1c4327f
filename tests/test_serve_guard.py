"""Who may ask: the key, the page's origin, the name by which the server was called."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
from collections.abc import Iterator

import httpx
import psutil
import pytest
from starlette.responses import PlainTextResponse

from fake_server import FakeServer, fake_serving
from headway.api.app import make_app
from headway.artifacts.files import ModelFiles
from headway.core.config import ServeOptions, add_arguments, read_options
from headway.front.guard import Guard
from headway.front.origins import ANY
from headway.front.state import Front
from headway.replica.options import ModelOptions, ReplicaOptions
from serving import MODEL, Server, headway, serving

KEY = "sk-Correct.Horse/Battery+Staple="
ALLOWED = "https://pages.example.com"
COMPLETION = {"model": MODEL, "prompt": [5], "max_tokens": 1}
EVERY_ROUTE = [
    ("GET", "/v1/models"), ("GET", f"/v1/models/{MODEL}"), ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/metrics"),
    ("GET", "/v1/requests"), ("GET", "/v1/requests/r-1"), ("DELETE", "/v1/requests/r-1"), ("GET", "/v1/pool"),
    ("GET", "/v1/requests/never-seen"), ("GET", "/nowhere"), ("HEAD", "/v1/models"), ("PUT", "/v1/models"),
    ("GET", "/health/"), ("GET", "/HEALTH"),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    with fake_serving(smollm2, guard=Guard(key=KEY, origins=(ALLOWED,), loopback=True)) as server:
        yield server


def ask(server: FakeServer, method: str, path: str, **headers: str) -> httpx.Response:
    body = {"json": COMPLETION} if method == "POST" else {}
    return server.http.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()}, **body)


def keyed(server: FakeServer, method: str, path: str, **headers: str) -> httpx.Response:
    return ask(server, method, path, authorization=f"Bearer {KEY}", **headers)


# -- the key --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), EVERY_ROUTE)
def test_every_route_needs_the_key(server: FakeServer, method: str, path: str) -> None:
    answer = ask(server, method, path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="headway"'
    if method != "HEAD":
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert error["message"] == "an API key is required; send the header `Authorization: Bearer KEY`"


def test_with_the_key_every_route_is_there(server: FakeServer) -> None:
    assert keyed(server, "POST", "/v1/completions", x_request_id="mine").status_code == 200
    for path in ("/v1/models", "/v1/requests/mine", "/v1/pool", "/metrics"):
        assert keyed(server, "GET", path).status_code == 200
    assert keyed(server, "GET", "/nowhere").status_code == 404
    assert ask(server, "GET", "/v1/models", authorization=f"bEaReR  {KEY}").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_whoever_watches_the_process_needs_no_key(server: FakeServer, path: str) -> None:
    assert ask(server, "GET", path).status_code == 200


@pytest.mark.parametrize(
    "given", [f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Bearer {KEY.lower()}", "Bearer é", f"Bearer {KEY} {KEY}"]
)
def test_a_wrong_key_is_401_and_is_not_repeated(server: FakeServer, given: str) -> None:
    answer = server.http.get("/v1/models", headers={b"authorization": given.encode("latin-1")})
    assert answer.status_code == 401 and 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert answer.json()["error"]["message"] == "the API key is incorrect"


@pytest.mark.parametrize("given", [f"Basic {KEY}", KEY, "Bearer", ""])
def test_a_key_that_is_sent_in_another_way_is_no_key(server: FakeServer, given: str) -> None:
    answer = server.http.get("/v1/models", headers={"authorization": given})
    assert answer.status_code == 401 and "is required" in answer.json()["error"]["message"]


def test_without_the_key_nobody_learns_which_ids_exist_or_how_many(server: FakeServer) -> None:
    assert keyed(server, "POST", "/v1/completions", x_request_id="secret-id").status_code == 200
    told = [ask(server, "GET", f"/v1/requests/{id}") for id in ("secret-id", "never-seen")]
    assert told[0].status_code == told[1].status_code == 401 and told[0].content == told[1].content
    names = [ask(server, "POST", "/v1/completions").headers["x-request-id"] for _ in range(2)]
    assert names[0] != names[1] and not any(re.search(r"-\d", name) for name in names)
    mine = ask(server, "POST", "/v1/completions", x_request_id="secret-id")
    assert mine.status_code == 401 and mine.headers["x-request-id"] == "secret-id"


# -- the origin -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/completions"), ("DELETE", "/v1/requests/here")])
def test_a_page_of_another_origin_may_not_change_anything(server: FakeServer, method: str, path: str) -> None:
    keyed(server, "POST", "/v1/completions", x_request_id="here")
    own = f"http://127.0.0.1:{server.port}"
    for origin in (
        "null", "http://evil.example", f"https://127.0.0.1:{server.port}", "http://127.0.0.1", "http://127.0.0.1:1",
        f"http://localhost:{server.port}", f"{ALLOWED}.evil.example", f"{own}.evil.example", "",
    ):  # fmt: skip
        answer = keyed(server, method, path, origin=origin)
        assert answer.status_code == 403, origin
        error = answer.json()["error"]
        assert (error["type"], error["code"], error["param"]) == (
            "invalid_request_error", "origin_not_allowed", "origin",
        )  # fmt: skip
        assert repr(origin) in error["message"] and own in error["message"]
        assert "--allow-origin" in error["message"]
    for origin in (own, own.upper(), ALLOWED):
        assert keyed(server, method, path, origin=origin).status_code == 200, origin
    assert keyed(server, method, path).status_code == 200, "programs send no origin"


def test_a_second_origin_does_not_hide_behind_a_good_one(server: FakeServer) -> None:
    headers = [("authorization", f"Bearer {KEY}"), ("origin", ALLOWED), ("origin", "http://evil.example")]
    assert server.http.post("/v1/completions", json=COMPLETION, headers=headers).status_code == 403


def test_reading_needs_no_origin_but_its_answer_is_hidden_from_strange_pages(server: FakeServer) -> None:
    strange = keyed(server, "GET", "/v1/models", origin="http://evil.example")
    assert strange.status_code == 200 and "access-control-allow-origin" not in strange.headers
    allowed = keyed(server, "GET", "/v1/models", origin=ALLOWED)
    assert allowed.headers["access-control-allow-origin"] == ALLOWED
    assert "headway-timing" in allowed.headers["access-control-expose-headers"]
    no_key = ask(server, "GET", "/v1/models", origin=ALLOWED)
    assert no_key.status_code == 401 and no_key.headers["access-control-allow-origin"] == ALLOWED


def test_a_browser_may_ask_beforehand_without_a_key(server: FakeServer) -> None:
    before = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,content-type"}
    allowed = ask(server, "OPTIONS", "/v1/completions", origin=ALLOWED, **before)
    assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == ALLOWED
    assert "POST" in allowed.headers["access-control-allow-methods"]
    assert re.fullmatch("[A-Za-z0-9-]+", allowed.headers["x-request-id"])
    strange = ask(server, "OPTIONS", "/v1/completions", origin="http://evil.example", **before)
    assert strange.status_code == 403 and "access-control-allow-origin" not in strange.headers
    message = strange.json()["error"]["message"]
    assert "'http://evil.example'" in message and "--allow-origin http://evil.example allows it" in message


def test_a_page_of_the_internet_that_was_named_may_call_a_server_on_this_machine(server: FakeServer) -> None:
    before = {"access_control_request_method": "POST", "access_control_request_private_network": "true"}
    allowed = ask(server, "OPTIONS", "/v1/completions", origin=ALLOWED, **before)
    assert allowed.status_code == 200 and allowed.headers["access-control-allow-private-network"] == "true"


def test_without_named_origins_a_page_that_asks_beforehand_is_told_why_not(smollm2: ModelFiles) -> None:
    front = Front({MODEL: smollm2}, ReplicaOptions(models=(ModelOptions(model=MODEL),), cache=""))
    before = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}

    async def life() -> httpx.Response:
        transport = httpx.ASGITransport(app=make_app(front))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as http:
            return await http.options("/v1/chat/completions", headers=before)

    answer = asyncio.run(life())
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "origin_not_allowed"
    assert "--allow-origin http://localhost:3000 allows it" in answer.json()["error"]["message"]


def guarded(guard: Guard, method: str = "POST", host: str = "127.0.0.1:8000", **headers: str) -> str | None:
    """The code of the refusal."""
    given = {"host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    pairs = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "method": method, "scheme": "http", "path": "/v1/completions", "headers": pairs}
    refusal = guard.refusal(scope)
    return None if refusal is None else refusal.code


@pytest.mark.parametrize(
    ("named", "origin", "admitted"),
    [
        ("app://obsidian.md", "app://obsidian.md", True),
        ("app://obsidian.md", "app://obsidian.md.evil", False),
        ("app://obsidian.md", "http://obsidian.md", False),
        ("app://obsidian.md", "app://obsidianxmd", False),
        ("chrome-extension://abcdef", "chrome-extension://abcdef", True),
        ("chrome-extension://abcdef", "chrome-extension://abcdeg", False),
        ("tauri://localhost", "tauri://localhost", True),
        ("vscode-webview://*", "vscode-webview://0f1e2d-abc", True),
        ("vscode-webview://*", "vscode-webview://a/b", False),
        ("http://localhost:*", "http://localhost:3000", True),
        ("http://localhost:*", "http://localhost", True),
        ("http://localhost:*", "http://localhost.evil:3000", False),
        ("http://localhost:*", "https://localhost:3000", False),
        ("http://localhost:*", "http://localhost:1@evil", False),
        ("https://*.example.com", "https://a.b.example.com", True),
        ("https://*.example.com", "https://example.com", False),
        ("https://*.example.com", "https://evilexample.com", False),
        ("https://*.example.com", "https://a.example.com.evil", False),
        ("file://", "file://", True),
        ("*", "http://anything.example:9", True),
        ("*", "null", True),
        ("file://", "null", False),
    ],
)
def test_an_origin_is_admitted_where_the_option_says_so_and_nowhere_else(
    named: str, origin: str, admitted: bool
) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, ServeOptions)
    options, _ = read_options(ServeOptions, parser.parse_args(["--allow-origin", named]), {})
    guard = Guard(origins=options.allow_origin, loopback=True)
    assert guarded(guard, origin=origin) == (None if admitted else "origin_not_allowed")
    shown = asyncio.run(shown_to(guard, origin))
    assert shown == ((ANY if named == ANY else origin) if admitted else None)


async def shown_to(guard: Guard, origin: str) -> str | None:
    """What an answer's header tells the browser of a page of this origin."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guard.shared(PlainTextResponse("")))) as http:
        answer = await http.get("http://localhost/", headers={"origin": origin})
        return answer.headers.get("access-control-allow-origin")


def test_an_application_s_origin_names_no_host() -> None:
    """`app://obsidian.md` admits that application; a site of that name that points here is as foreign as before."""
    guard = Guard(origins=("app://obsidian.md", "https://*.example.com"), loopback=True)
    assert guarded(guard, host="obsidian.md") == "host_not_allowed"
    assert guarded(guard, host="a.example.com") is None
    assert guarded(Guard(origins=("*",), loopback=True), host="gpu.lan", origin="http://gpu.lan") is None


def test_a_server_that_every_page_may_use_says_so_at_start() -> None:
    """The port is taken, so that it ends there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ask = ("serve", "--port", str(taken.getsockname()[1]), "--allow-origin")
        warned, quiet = headway(*ask, "*"), headway(*ask, "http://localhost:*", HEADWAY_API_KEY=KEY)
        keyed = headway(*ask, "*", HEADWAY_API_KEY=KEY)
    assert "Warning: --allow-origin * lets every web page use this server" in warned.stderr
    assert "without a key" in warned.stderr and "Warning" not in quiet.stderr
    assert "Warning" in keyed.stderr and "without a key" not in keyed.stderr


# -- the name -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "[::2]"])
def test_a_name_that_was_made_to_point_here_is_refused_also_for_reading(server: FakeServer, host: str) -> None:
    for method, path in (("GET", "/v1/requests"), ("POST", "/v1/completions"), ("GET", "/health")):
        answer = keyed(server, method, path, host=host, origin=f"http://{host}")
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "host_not_allowed"
        assert repr(host) in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "LocalHost.:1", "a.localhost", "127.0.0.2:9", "[::1]:8000", "[::1]"]
)
def test_loopback_names_and_addresses_and_named_ones_are_let_in(server: FakeServer, host: str) -> None:
    assert keyed(server, "POST", "/v1/completions", host=host, origin=f"http://{host}").status_code == 200
    assert keyed(server, "GET", "/v1/models", host=ALLOWED.removeprefix("https://")).status_code == 200


def test_a_server_for_all_addresses_is_called_by_any_name() -> None:
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/v1/completions"}
    headers = [(b"host", b"gpu.lan:8000"), (b"origin", b"http://gpu.lan:8000")]
    assert Guard().refusal(scope | {"headers": headers}) is None
    refused = Guard(loopback=True).refusal(scope | {"headers": headers})
    assert refused is not None and refused.code == "host_not_allowed"
    headers = [(b"host", b"gpu.lan:80"), (b"origin", b"http://gpu.lan")]
    assert Guard().refusal(scope | {"headers": headers}) is None, "80 is http's own port"
    headers = [(b"host", b"gpu.lan"), (b"origin", b"https://gpu.lan")]
    assert Guard().refusal(scope | {"headers": headers}) is not None


# -- a whole server -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--memory", "64blocks", "--max-body", "1MiB", key=KEY) as server:
        yield server


def test_the_key_is_shown_nowhere(whole: Server) -> None:
    log = whole.log.read_text()
    assert re.search(r"api-key = set +from HEADWAY_API_KEY", log) and KEY not in log
    assert "$HEADWAY_API_KEY" in log, "the line to copy works for whoever has the key"
    for process in (psutil.Process(whole.process.pid), whole.replica):
        assert KEY not in " ".join(process.cmdline())


def test_the_commands_send_the_key(whole: Server) -> None:
    ask = ("chat", "--max-tokens", "2", "What is the capital of France?", "--url", whole.url)
    by_option = headway(*ask, "--api-key", KEY)
    assert by_option.returncode == 0 and by_option.stdout.startswith("The capital"), by_option.stderr
    assert headway(*ask, HEADWAY_API_KEY=KEY).stdout == by_option.stdout
    id = by_option.stderr.split()[0]
    assert id.startswith("r-")
    told = headway("why", id, "--json", "--url", whole.url, HEADWAY_API_KEY=KEY)
    assert json.loads(told.stdout)["stage"] == "finished"
    for words in (ask, ("why", id, "--url", whole.url), ("why", id, "--url", whole.url, "--api-key", "wrong")):
        without = headway(*words)
        assert without.returncode == 2 and without.stderr.count("\n") == 1
        assert "(--api-key, or HEADWAY_API_KEY)" in without.stderr and KEY not in without.stderr


def test_a_whole_server_keeps_its_options(whole: Server) -> None:
    assert httpx.get(f"{whole.url}/v1/models", trust_env=False).status_code == 401
    strange = whole.http.get("/v1/models", headers={"host": "evil.example"})
    assert strange.status_code == 403, "it listens on loopback"
    large = whole.http.post("/v1/completions", content=b" " * (1 << 20) + b" ")
    assert large.status_code == 413 and "--max-body is 1048576" in large.json()["error"]["message"]


MARKER = "Zanzibar"


def test_no_word_of_prompts_or_answers_is_logged(whole: Server) -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": f"Say {MARKER}"}], "max_tokens": 8}
    bodies = [
        ("/v1/chat/completions", chat | {"stop": [f"{MARKER}?!"], "temperature": 0}),
        ("/v1/chat/completions", chat | {"stream": True}),
        ("/v1/chat/completions", chat | {"messages": [{"role": MARKER, "content": MARKER}]}),
        ("/v1/chat/completions", chat | {"messages": [{"role": "user", "content": [{"type": MARKER}]}]}),
        ("/v1/chat/completions", chat | {"messages": MARKER}),
        ("/v1/chat/completions", chat | {MARKER: MARKER, "temperature": MARKER}),
        ("/v1/completions", {"model": MODEL, "prompt": MARKER, "logit_bias": {MARKER: 1}}),
        ("/v1/completions", {"model": MARKER, "prompt": MARKER}),
        ("/v1/completions", {"model": MODEL, "prompt": MARKER * 9, "max_tokens": 9000}),
        ("/v1/completions", {"model": MODEL, "prompt": {MARKER: MARKER}}),
        ("/tokenize", {"prompt": MARKER}),
        ("/tokenize", {"prompt": MARKER, "messages": [{"content": MARKER}]}),
        ("/detokenize", {"tokens": [MARKER]}),
    ]
    for path, body in bodies:
        assert whole.http.post(path, json=body, headers={"user": MARKER}).status_code < 500, body
    whole.http.post("/v1/completions", content=f'{{"prompt": "{MARKER}'.encode())
    whole.http.post("/v1/completions", content=b'{"model": "' + MODEL.encode() + b'", "prompt": "\\ud800Zanzibar"}')
    whole.http.get(f"/{MARKER}?{MARKER}")
    whole.http.get("/v1/models", headers={"x-request-id": f"{MARKER} {MARKER}"})
    log = whole.log.read_text()
    assert MARKER not in log and "Traceback" not in log and "capital" not in log.partition("Try it")[0], log
