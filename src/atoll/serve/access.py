"""The door: who may come in, with how much, and what browsers are told of every answer."""

import base64
import binascii
import hmac
import json
from collections.abc import Callable, Collection, Mapping
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = ("/", "/healthz", "/readyz", "/openapi.json")
"""Pages and questions that need no token: they tell nothing of samples."""
OPEN_BELOW = ("/static/", "/v1/images/files/")
"""The same for all that lies below; a file of a picture is found by who was told its random name."""
ASKING = "/watch"
"""Pages below this have the browser ask for the token, as a password under any name."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Pages load nothing from elsewhere, run no inline scripts, and are framed by nobody."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Door:
    """Lets requests in that know the token, come from here, and are not too large."""

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        body: int,
        hosts: Collection[str] | None = None,
        answered: Callable[[str, int], None] = lambda route, status: None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """With `hosts`, only requests to these names: a page elsewhere cannot rebind its own to us.

        `answered` is told the route and the status of every answer. `users` are the names behind tokens of
        their own, which routes find as `request.state.user`.
        """
        self.users = users or {}
        self.app, self.token, self.body, self.hosts, self.answered = app, token, body, hosts, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answered(getattr(scope.get("route"), "path", "none"), message["status"])
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer.setdefault(name, value)
            await send(message)

        scope.setdefault("state", {})["user"] = self._user(headers)
        refusal = self._refusal(scope["path"], headers)
        if refusal is not None:
            await _refuse(send_with_headers, *refusal, asks=scope["path"].startswith(ASKING))
            return
        await self._limited(scope, receive, send_with_headers)

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str] | None:
        """Why a request is not let in, if it is not."""
        host = headers.get("host", "")
        if self.hosts is not None and _split(f"//{host}").hostname not in self.hosts:
            return 421, "this server is not asked by that name"
        origin = headers.get("origin")
        if origin is not None and _split(origin).netloc != host:
            return 403, "pages of other servers may not ask this one"
        if (self.token or self.users) and not self._knows_token(path, headers):
            return 401, "give the server's token: Authorization: Bearer …"
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            return 400, "a content-length is a number of bytes"
        if int(length) > self.body:
            return 413, f"a request has at most {self.body} bytes"
        return None

    def _knows_token(self, path: str, headers: Headers) -> bool:
        if path in OPEN or path.startswith(OPEN_BELOW):
            return True
        given = _given(headers)
        if given is None:
            return False
        return bool(self._user(headers)) or (self.token is not None and is_token(given, self.token))

    def _user(self, headers: Headers) -> str:
        """The user whose token was given; all are compared, so that the time does not tell which is near."""
        given = _given(headers) or ""
        names = [name for token, name in self.users.items() if is_token(given, token)]
        return names[0] if names else ""

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on that may not say how long it is; one that is too long ends here."""
        received, refused = 0, False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return {"type": "http.disconnect"} if received > self.body else message

        async def replaced(message: Message) -> None:
            """Whatever is answered to half a request, the answer is that it is too long."""
            nonlocal refused
            if received <= self.body:
                await send(message)
            elif not refused:
                refused = True
                await _refuse(send, 413, f"a request has at most {self.body} bytes")

        await self.app(scope, counted, replaced)


def _split(address: str) -> SplitResult:
    """An address in its parts; what is none has none."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _given(headers: Headers) -> str | None:
    """What a client says that it knows."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return {"bearer": given.strip(), "basic": _password(given)}.get(scheme.lower())


def is_token(given: str, token: str) -> bool:
    """Whether somebody knows the token, in a time that does not tell how much of it."""
    return hmac.compare_digest(given.encode(), token.encode())


def _password(given: str) -> str:
    """What a person typed when the browser asked, whatever the name; nothing where it cannot be read."""
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def problem(status: int, message: str) -> dict[str, object]:
    """A refusal as OpenAI's clients read it."""
    kind = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    fallback = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind.get(status, fallback), "param": None, "code": None}}


async def _refuse(send: Send, status: int, message: str, *, asks: bool = False) -> None:
    content = json.dumps(problem(status, message)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="Atoll"' if asks else b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
