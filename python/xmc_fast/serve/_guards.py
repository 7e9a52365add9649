"""What stands before every request: limits of size and time, the token, headers, the log and the measures."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xmc_fast.serve._metrics import Metrics
from xmc_fast.serve._settings import Settings

log = logging.getLogger("xmc_fast.serve")

# Nothing of another host, no inline script or style. The API's own page needs inline styles.
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'{styles}; img-src 'self' data:; connect-src 'self'"
_POLICY += "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_SAME = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_HEADERS = [*_SAME, (b"content-security-policy", _POLICY.format(styles="").encode())]
_DOCS_HEADERS = [*_SAME, (b"content-security-policy", _POLICY.format(styles=" 'unsafe-inline'").encode())]


class Guards:
    """ASGI middleware around the application."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 499  # the client left before an answer

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *self._headers(scope)]}
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is None:
                await self.app(scope, self._limited(scope, receive), sending)
            else:
                await refusal(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - start
            route = getattr(scope.get("route"), "path", "other")  # never the path: it may hold a text
            self.metrics.observe(route, status, seconds)
            log.info("%s %s %d %.1f ms", scope["method"], route, status, 1e3 * seconds)

    def _headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        return _DOCS_HEADERS if scope["path"] == "/docs" else _HEADERS

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        """An answer before the body is read: no token, or too large a body announced."""
        headers = dict(scope["headers"])
        if self.settings.token and scope["path"].startswith(("/v1/", "/metrics")):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {self.settings.token}".encode()):
                return problem(
                    401, "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
                )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limit(scope):
            return problem(413, self._too_large(scope), _CLOSE)
        return None

    def _limited(self, scope: Scope, receive: Receive) -> Callable[[], Awaitable[Message]]:
        """``receive`` that counts bytes and time until the body is whole; the application answers its errors."""
        limit, read, whole = self._limit(scope), 0, False
        end = time.monotonic() + self.settings.timeout

        async def receiving() -> Message:
            nonlocal read, whole
            if whole:  # what follows is the client's leaving, at any time
                return await receive()
            try:
                with anyio.fail_after(max(end - time.monotonic(), 0.001)):
                    message = await receive()
            except TimeoutError:
                late = f"the request did not arrive within {self.settings.timeout:g} s"
                raise HTTPException(408, late, _CLOSE) from None
            read += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if read > limit:
                raise HTTPException(413, self._too_large(scope), _CLOSE)
            return message

        return receiving

    def _limit(self, scope: Scope) -> int:
        upload = scope["path"].endswith("/tag")
        return self.settings.max_upload if upload else self.settings.max_body

    def _too_large(self, scope: Scope) -> str:
        return f"the body has more than {self._limit(scope):,} bytes"


_CLOSE = {"Connection": "close"}  # the rest of the body is not read


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error's answer."""
    body: dict[str, Any] = {"detail": detail}
    return JSONResponse(body, status, headers)
