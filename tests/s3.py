"""A real S3 server for tests, and a proxy before it that can be told to fail."""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

KEY, SECRET = "AKATOLLTEST", "sEcReTtHaTmUsTnOtLeAk0123456789"
READER, READER_SECRET = "AKREADER", "rEaDeRsEcReT0123456789"
BUCKET = "runs"
TOKEN, OPEN_BUCKET = "tOkEnThAtMuStNoTlEaK0123456789", "open"
"""What Google's protocol has instead of keys, and the bucket behind it."""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def environment(port: int, key: str = KEY, secret: str = SECRET) -> dict[str, str]:
    """What a machine with access to the server has in its environment."""
    return {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }


@contextlib.contextmanager
def server(folder: Path) -> Iterator[int]:
    """SeaweedFS with two users, one of whom may only read, and a bucket that is open; gives the port."""
    actions = ["Admin", "Read", "Write", "List"]
    reading = [f"Read:{BUCKET}", f"List:{BUCKET}"]
    identities = [
        {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": may}
        for name, key, secret, may in (
            ("writer", KEY, SECRET, actions),
            ("reader", READER, READER_SECRET, reading),
        )
    ]
    open_to_all = [f"Read:{OPEN_BUCKET}", f"Write:{OPEN_BUCKET}", "List"]
    anonymous = {"name": "anonymous", "actions": open_to_all}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s3.json").write_text(json.dumps({"identities": [*identities, anonymous]}))
    master, master_rpc, volume, volume_rpc, filer, filer_rpc, s3, s3_rpc = free_ports(8)
    program = Path(sys.executable).with_name("weed")
    command = [
        *(str(program), "-logtostderr=true", "server", f"-dir={folder}"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=20"),
        *(f"-master.port={master}", f"-master.port.grpc={master_rpc}", "-master.telemetry=false"),
        *(f"-volume.port={volume}", f"-volume.port.grpc={volume_rpc}"),
        *(f"-filer.port={filer}", f"-filer.port.grpc={filer_rpc}"),
        *(
            "-s3",
            f"-s3.port={s3}",
            f"-s3.port.grpc={s3_rpc}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.iam=false",
        ),
        f"-s3.config={folder / 's3.json'}",
    ]
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        wait_until_it_answers(process, s3, folder / "weed.log")
        yield s3
    finally:
        process.kill()  # it does not listen to SIGTERM
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_it_answers(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    stores = [
        S3Store(
            bucket,
            access_key_id=KEY,
            secret_access_key=SECRET,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
            endpoint=f"http://127.0.0.1:{port}",
            region="us-east-1",
        )
        for bucket in (BUCKET, OPEN_BUCKET)
    ]
    for _ in range(3000):
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(BaseError, OSError):
            for store in stores:
                obstore.put(store, "ready", b"")  # makes the bucket as well
            return
        time.sleep(0.2)
    raise AssertionError(log.read_text())


Fault = Callable[[int, str, str], str | None]
"""(number of the request, method, path) to what goes wrong: "503", "drop", "truncate", "short" or nothing."""


def no_fault(number: int, method: str, path: str) -> None:
    """All goes well."""


class Proxy:
    """Passes requests on to the server as they are, unless a fault is due."""

    def __init__(self, backend: int) -> None:
        self.backend = backend
        self.fault: Fault = no_fault
        self.requests: list[tuple[str, str]] = []
        self.faults = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do(self) -> None:
                proxy.answer(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do  # noqa: N815

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        self.port = self.httpd.server_address[1]
        threading.Thread(target=self.httpd.serve_forever, daemon=True, name="proxy").start()

    def reset(self) -> None:
        self.fault, self.requests, self.faults = no_fault, [], 0

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self._lock:
            self.requests.append((handler.command, handler.path))
            due = self.fault(len(self.requests), handler.command, handler.path)
            self.faults += due is not None
        if due == "503":
            self.reply(handler, 503, [("Content-Type", "text/plain")], b"out of order")
            return
        if due == "drop":
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        sent = self.translated(handler.headers.items())
        if sent is None:
            self.reply(handler, 401, [("Content-Type", "text/plain")], b"Invalid Credentials")
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.backend, timeout=600)
        connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent:
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        data = response.read()
        headers = [
            (name, value)
            for name, value in response.getheaders()
            if name.lower() not in ("transfer-encoding", "connection", "date", "server")
        ]
        connection.close()
        if due == "short":
            data = data[: len(data) // 2]
            headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
        self.reply(handler, response.status, headers, data, cut=due == "truncate")

    def translated(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]] | None:
        """The headers of a request as the server has to see them; None if it has no business there."""
        return list(headers)

    def reply(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        headers: list[tuple[str, str]],
        data: bytes,
        cut: bool = False,
    ) -> None:
        with contextlib.suppress(OSError):  # a client that was killed does not listen
            handler.send_response_only(status)
            for name, value in headers:
                handler.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _ in headers):
                handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            if handler.command != "HEAD":
                handler.wfile.write(data[: len(data) // 2] if cut else data)
            if cut:
                handler.wfile.flush()
                handler.close_connection = True
                handler.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()


class Google(Proxy):
    """Speaks as Google Cloud Storage does: a token, and generations for conditions; the rest is as in S3."""

    def translated(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]] | None:
        given = {name.lower(): value for name, value in headers}
        if given.pop("authorization", "") != f"Bearer {TOKEN}":
            return None
        if given.pop("x-goog-if-generation-match", None) == "0":
            given["if-none-match"] = "*"
        return [*given.items()]

    def environment(self, token: str = TOKEN) -> dict[str, str]:
        """What a machine with access has in its environment."""
        return {"GOOGLE_BASE_URL": f"http://127.0.0.1:{self.port}", "GOOGLE_BEARER_TOKEN": token}


@dataclass(frozen=True)
class Place:
    """Where a test keeps its run, and the proxy on the way there."""

    address: str
    proxy: Proxy
