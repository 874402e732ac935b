"""The fault proxy: messages pass unchanged, and each fault does what it says, to the requests it
was queued for.
"""

from __future__ import annotations

import gc
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from recovery.harness.services.fault_messages import Head, operation_of
from recovery.harness.services.fault_proxy import FaultProxy
from recovery.harness.services.fault_rules import (
    EXPIRED_TOKEN,
    INTERNAL_ERROR_AFTER_EFFECT,
    SLOW_DOWN,
    CutUpload,
    Delay,
    DropReply,
    DropRequest,
    FlipBit,
    Late,
    Stall,
    Truncate,
    Twice,
    WrongRange,
)
from tests.support.suites import slow
from tier2.request_statistics import Operation

LOST = (http.client.RemoteDisconnected, http.client.IncompleteRead, ConnectionError)


class PlainServer(ThreadingHTTPServer):
    """Keeps what is PUT; answers ranges; writes down every request that came whole."""

    daemon_threads = True

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.applied: list[tuple[str, str, bytes]] = []
        super().__init__(("127.0.0.1", 0), PlainHandler)


class PlainHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def plain(self) -> PlainServer:
        assert isinstance(self.server, PlainServer)
        return self.server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass

    def body(self) -> bytes | None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found
        length = int(self.headers.get("Content-Length") or 0)
        found = self.rfile.read(length)
        return found if len(found) == length else None

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self.body()
        if body is None:
            self.close_connection = True
            return
        self.plain.applied.append((self.command, self.path, body))
        taken = self.path in self.plain.objects
        if taken and self.headers.get("If-None-Match") == "*":
            self.answer(412, b"taken")
        else:
            self.plain.objects[self.path] = body
            self.answer(200, b"%d" % len(self.plain.applied))

    do_POST = do_PUT  # noqa: N815 - the base class's names

    def do_GET(self) -> None:
        self.plain.applied.append((self.command, self.path, b""))
        data = self.plain.objects.get(self.path)
        if data is None:
            self.answer(404, b"absent")
        elif self.path.endswith("chunked"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in (data[:3], data[3:]):
                self.wfile.write(b"%x;name=value\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\nTrailing: yes\r\n\r\n")
        elif self.path.endswith("until-close"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = True
        elif (wanted := self.headers.get("Range")) is not None:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            self.answer(
                206, data[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}"
            )
        else:
            self.answer(200, data)

    do_HEAD = do_GET  # noqa: N815 - the base class's names


@pytest.fixture
def server() -> Iterator[PlainServer]:
    with PlainServer() as plain:
        serving = threading.Thread(target=plain.serve_forever, args=(0.01,))
        serving.start()
        yield plain
        plain.shutdown()
        serving.join()


@pytest.fixture
def proxy(server: PlainServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", server.server_address[1]) as found:
        yield found


class Answer:
    def __init__(self, reply: http.client.HTTPResponse) -> None:
        self.status = reply.status
        self.headers = reply.headers
        self.body = reply.read()


def ask(
    proxy: FaultProxy, method: str, path: str, body: bytes | None = None, **headers: str
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        return Answer(connection.getresponse())
    finally:
        connection.close()


def ask_again(connection: http.client.HTTPConnection) -> None:
    """On the connection there is: http.client would make a new one after an error, not before."""
    connection.request("GET", "/b/o")
    connection.getresponse()


# --- messages -------------------------------------------------------------------------------------


def test_many_requests_pass_unchanged_over_one_connection(
    proxy: FaultProxy, server: PlainServer
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    data = bytes(range(256)) * 5000
    for number in range(3):
        connection.request("PUT", f"/b/{number}", data[number:])
        assert connection.getresponse().read() == b"%d" % (2 * number + 1)
        connection.request("HEAD", f"/b/{number}")
        head = connection.getresponse()
        assert (head.status, head.headers["Content-Length"], head.read()) == (
            200,
            str(len(data) - number),
            b"",
        )
    connection.request("GET", "/b/none")
    absent = connection.getresponse()
    assert (absent.status, absent.read()) == (404, b"absent")
    connection.close()
    assert server.objects == {f"/b/{number}": data[number:] for number in range(3)}
    assert [each.operation for each in proxy.seen()] == ["put", "head"] * 3 + ["get"]


@pytest.mark.parametrize("path", ["/b/plain", "/b/chunked", "/b/until-close"])
def test_replies_end_where_the_server_ends_them(
    proxy: FaultProxy, server: PlainServer, path: str
) -> None:
    server.objects[path] = bytes(1000)
    assert ask(proxy, "GET", path).body == bytes(1000)
    proxy.fault(FlipBit())
    changed = ask(proxy, "GET", path).body
    assert len(changed) == 1000
    assert sum(byte.bit_count() for byte in changed) == 1


def test_chunked_requests_pass_streamed_and_held(proxy: FaultProxy, server: PlainServer) -> None:
    for path in ("/b/streamed", "/b/held"):
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
        connection.request("PUT", path, iter([b"one", b"-", b"two"]), encode_chunked=True)
        assert connection.getresponse().status == 200
        connection.close()
        proxy.fault(Twice())
    assert server.objects == {"/b/streamed": b"one-two", "/b/held": b"one-two"}
    assert len(server.applied) == 3


def test_the_proxy_itself_says_100_continue(proxy: FaultProxy, server: PlainServer) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as caller:
        caller.sendall(
            b"PUT /b/o HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        )
        assert caller.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert server.applied == []
        caller.sendall(b"abc")
        assert caller.recv(1000).startswith(b"HTTP/1.1 200")
    assert server.objects == {"/b/o": b"abc"}


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"PUT /b/o HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nx\r\n\r\n",
    ],
)
def test_what_is_no_message_ends_its_connection_and_nothing_else(
    proxy: FaultProxy, server: PlainServer, sent: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as caller:
        caller.sendall(sent)
        assert caller.recv(1000) == b""
    assert ask(proxy, "PUT", "/b/o", b"x").status == 200


@pytest.mark.parametrize(
    ("line", "headers", "operation"),
    [
        ("PUT /b/k", (), "put"),
        ("PUT /b/k?partNumber=1&uploadId=u", (), "put_part"),
        ("PUT /b/k?partNumber=1&uploadId=u", (("X-Amz-Copy-Source", "/b/o"),), "copy_part"),
        ("PUT /b", (), None),
        ("POST /b/k?uploads", (), "begin_upload"),
        ("POST /b/k?uploadId=u", (), "complete_upload"),
        ("DELETE /b/k?uploadId=u", (), "abort_upload"),
        ("DELETE /b/k", (), "delete"),
        ("POST /b?delete", (), "delete"),
        ("GET /b/k", (), "get"),
        ("HEAD /b/k", (), "head"),
        ("HEAD /b", (), None),
        ("GET /b?list-type=2&prefix=p%2F", (), "list"),
        ("GET /b?uploads", (), "list_uploads"),
        ("GET /b?location", (), None),
    ],
)
def test_requests_are_distinguished(
    line: str, headers: tuple[tuple[str, str], ...], operation: Operation | None
) -> None:
    assert operation_of(Head(f"{line} HTTP/1.1", headers)) == operation


# --- faults ---------------------------------------------------------------------------------------


def test_a_dropped_request_never_reaches_the_server(proxy: FaultProxy, server: PlainServer) -> None:
    proxy.fault(DropRequest())
    with pytest.raises(LOST):
        ask(proxy, "PUT", "/b/o", b"x" * 1000)
    assert server.applied == []
    assert ask(proxy, "PUT", "/b/o", b"x").status == 200


def test_a_cut_upload_is_never_whole_at_the_server(proxy: FaultProxy, server: PlainServer) -> None:
    proxy.fault(CutUpload(), "put")
    with pytest.raises(LOST):
        ask(proxy, "PUT", "/b/o", b"x" * 3_000_000)
    assert server.applied == []


def test_a_dropped_reply_has_taken_effect(proxy: FaultProxy, server: PlainServer) -> None:
    proxy.fault(DropReply(), "put")
    with pytest.raises(LOST):
        ask(proxy, "PUT", "/b/o", b"x")
    assert server.objects == {"/b/o": b"x"}


@pytest.mark.parametrize(("which", "status"), [("first", 200), ("second", 412)])
def test_a_request_is_applied_twice_and_answered_once(
    proxy: FaultProxy, server: PlainServer, which: str, status: int
) -> None:
    proxy.fault(Twice("first" if which == "first" else "second"))
    assert ask(proxy, "PUT", "/b/o", b"x", If_None_Match="*").status == status
    assert server.applied == [("PUT", "/b/o", b"x")] * 2


def test_a_late_request_is_applied_when_it_is_released(
    proxy: FaultProxy, server: PlainServer
) -> None:
    proxy.fault(Late(), "put", times=2)
    for body in (b"one", b"two"):
        with pytest.raises(LOST):
            ask(proxy, "PUT", "/b/o", body)
    assert server.applied == []
    assert ask(proxy, "PUT", "/b/o", b"three").status == 200
    assert proxy.release_late() == [200, 200]
    assert [body for _, _, body in server.applied] == [b"three", b"one", b"two"]
    assert proxy.release_late() == []


def test_a_late_request_is_applied_by_itself(proxy: FaultProxy, server: PlainServer) -> None:
    proxy.fault(Late(0.001))
    with pytest.raises(LOST):
        ask(proxy, "PUT", "/b/o", b"x")
    while ("PUT", "/b/o", b"x") not in server.applied:
        ask(proxy, "GET", "/b/other")


def test_an_error_reply_instead_of_the_request_or_of_its_reply(
    proxy: FaultProxy, server: PlainServer
) -> None:
    proxy.fault(SLOW_DOWN)
    refused = ask(proxy, "PUT", "/b/o&", b"x")
    assert (refused.status, server.applied) == (503, [])
    assert b"<Code>SlowDown</Code>" in refused.body
    assert b"/b/o&amp;" in refused.body
    proxy.fault(EXPIRED_TOKEN)
    head = ask(proxy, "HEAD", "/b/o")
    assert (head.status, head.body) == (400, b"")
    proxy.fault(INTERNAL_ERROR_AFTER_EFFECT)
    assert ask(proxy, "PUT", "/b/o", b"y").status == 500
    assert server.objects == {"/b/o": b"y"}


def test_a_truncated_body_breaks_off_or_lies(proxy: FaultProxy, server: PlainServer) -> None:
    server.objects["/b/o"] = bytes(range(100))
    proxy.fault(Truncate(), "get")
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(proxy, "GET", "/b/o")
    assert caught.value.partial == bytes(range(50))
    proxy.fault(Truncate(0.1, lying=True), "get")
    assert ask(proxy, "GET", "/b/o").body == bytes(range(10))


def test_a_wrong_range_is_another_that_went_through(proxy: FaultProxy, server: PlainServer) -> None:
    server.objects |= {"/b/o": bytes(range(100)), "/b/p": bytes(100)}
    proxy.fault(WrongRange(), times=1)
    assert ask(proxy, "GET", "/b/p", Range="bytes=5-9").body == bytes(5)
    assert ask(proxy, "GET", "/b/o", Range="bytes=5-9").body == bytes(range(5, 10))
    honest = ask(proxy, "GET", "/b/o", Range="bytes=50-54")
    assert (honest.body, honest.headers["Content-Range"]) == (bytes(range(5, 10)), "bytes 5-9/100")
    proxy.fault(WrongRange(lying=True))
    lying = ask(proxy, "GET", "/b/o", Range="bytes=50-54")
    assert (lying.body, lying.headers["Content-Range"]) == (bytes(range(5, 10)), "bytes 50-54/100")


def test_one_bit_of_a_request_changes(proxy: FaultProxy, server: PlainServer) -> None:
    proxy.fault(FlipBit("request", 1.0))
    assert ask(proxy, "PUT", "/b/o", bytes(10)).status == 200
    assert server.objects == {"/b/o": bytes(9) + b"\x10"}


def test_a_stalled_request_goes_on_when_it_is_released_unless_its_caller_went(
    proxy: FaultProxy, server: PlainServer
) -> None:
    rule = proxy.fault(Stall(), times=2)
    patient = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    patient.request("PUT", "/b/patient", b"x")
    hasty = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    hasty.request("GET", "/b/hasty")
    hasty.sock.settimeout(0.01)
    with pytest.raises(TimeoutError):
        hasty.getresponse()
    hasty.close()
    while rule.taken < 2:
        ask(proxy, "GET", "/b/other")
    proxy.release()
    assert patient.getresponse().status == 200
    patient.close()
    assert ask(proxy, "GET", "/b/patient").body == b"x"
    assert "/b/hasty" not in [path for _, path, _ in server.applied]


def test_a_stalled_reply_comes_when_it_is_released(proxy: FaultProxy, server: PlainServer) -> None:
    proxy.fault(Stall(after_effect=True))
    caller = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    caller.request("PUT", "/b/o", b"x")
    while not server.applied:
        ask(proxy, "GET", "/b/o")
    proxy.release()
    assert caller.getresponse().status == 200
    caller.close()


def test_a_delayed_request_is_as_any_other(proxy: FaultProxy, server: PlainServer) -> None:
    proxy.fault(Delay(0.001), times=None)
    assert ask(proxy, "PUT", "/b/o", b"x").status == 200
    assert ask(proxy, "GET", "/b/o").body == b"x"


def test_a_server_that_is_missing_refuses_and_comes_back_at_the_same_place(
    proxy: FaultProxy, server: PlainServer
) -> None:
    server.objects["/b/o"] = b"x"
    for _ in range(2):
        idle = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
        idle.request("GET", "/b/o")
        assert idle.getresponse().read() == b"x"
        proxy.refuse()
        with pytest.raises(LOST):
            ask_again(idle)
        idle.close()
        with pytest.raises(ConnectionRefusedError):
            ask(proxy, "GET", "/b/o")
        proxy.accept()
        proxy.accept()
        assert ask(proxy, "GET", "/b/o").body == b"x"


@slow(2)
@pytest.mark.filterwarnings("error::ResourceWarning")
def test_connections_that_come_with_a_refusal_are_closed(proxy: FaultProxy) -> None:
    for _ in range(30):
        clients = [socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(3)]
        proxy.refuse()
        for client in clients:
            client.settimeout(60)
            with client, suppress(ConnectionError):
                assert client.recv(1) == b""
        proxy.accept()
    gc.collect()


def test_a_server_behind_that_is_missing_ends_the_callers_connection(
    proxy: FaultProxy, server: PlainServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    proxy.point_at("127.0.0.1", port)
    with pytest.raises(LOST):
        ask(proxy, "GET", "/b/o")
    proxy.point_at("127.0.0.1", server.server_address[1])
    assert ask(proxy, "GET", "/b/o").status == 404


# --- rules ----------------------------------------------------------------------------------------


def test_rules_are_used_in_their_order_on_what_they_name(
    proxy: FaultProxy, server: PlainServer
) -> None:
    server.objects["/b/o"] = b"x"
    first = proxy.fault(SLOW_DOWN, "get", "head", times=2)
    second = proxy.fault(EXPIRED_TOKEN, "get", skip=1, when=lambda head: head.target == "/b/o")
    never = proxy.fault(DropRequest(), "put", "delete")
    statuses = [
        ask(proxy, method, "/b/o").status for method in ("GET", "HEAD", "GET", "HEAD", "GET", "GET")
    ]
    assert statuses == [503, 503, 200, 200, 400, 200]
    assert (first.taken, second.taken, never.taken) == (2, 1, 0)
    assert proxy.unused() == [never]
    proxy.heal([never])
    assert ask(proxy, "PUT", "/b/o", b"y").status == 200
    assert proxy.unused() == []


def test_a_fault_that_lasts_ends_with_heal(proxy: FaultProxy, server: PlainServer) -> None:
    proxy.fault(SLOW_DOWN, times=None)
    assert [ask(proxy, "GET", "/b/o").status for _ in range(5)] == [503] * 5
    proxy.heal()
    assert ask(proxy, "GET", "/b/o").status == 404


def test_stopping_ends_what_is_stalled_late_or_open(server: PlainServer) -> None:
    with FaultProxy("127.0.0.1", server.server_address[1]) as proxy:
        proxy.fault(Late(1000.0), "put")
        with pytest.raises(LOST):
            ask(proxy, "PUT", "/b/o", b"x")
        rule = proxy.fault(Stall())
        stalled = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
        stalled.request("GET", "/b/o")
        while not rule.taken:
            ask(proxy, "GET", "/b/other")
    with pytest.raises(LOST):
        stalled.getresponse()
    stalled.close()
    proxy.stop()
    assert "PUT" not in [method for method, _, _ in server.applied]
