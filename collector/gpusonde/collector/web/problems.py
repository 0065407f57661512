"""Errors over HTTP: problem details of RFC 9457, with the status that gRPC has for them and the field at fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

import grpc
from starlette.responses import Response

from gpusonde.collector.details import field_of

_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class ProblemError(Exception):
    """A request that is not answered.

    Attributes:
        status: Its HTTP status.
        code: Name of its gRPC status.
        field: The field at fault; empty where it is none.
        headers: What the answer's head says beside.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str = "INVALID_ARGUMENT",
        field: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the parts."""
        self.status = status
        self.code = code
        self.field = field
        self.headers = headers or {}
        super().__init__(detail)

    @classmethod
    def of_rpc(cls, error: grpc.aio.AioRpcError) -> ProblemError:
        """Return what a service has refused."""
        return cls.of_status(error.code(), error.details() or error.code().name)

    @classmethod
    def of_status(cls, code: grpc.StatusCode, text: str) -> ProblemError:
        """Return a refusal by its status and its text."""
        headers = {}
        if code is grpc.StatusCode.UNAUTHENTICATED:
            headers["WWW-Authenticate"] = "Bearer"
        elif code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE):
            headers["Retry-After"] = "5"
        return cls(_STATUSES.get(code, 500), text, code=code.name, field=field_of(text), headers=headers)

    def document(self) -> dict[str, object]:
        """Return the problem's details."""
        document: dict[str, object] = {
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": str(self),
            "code": self.code,
        }
        if self.field:
            document["errors"] = [{"field": self.field, "detail": str(self).removeprefix(f"field '{self.field}': ")}]
        return document

    def response(self) -> Response:
        """Return it as an answer."""
        return Response(
            json.dumps(self.document()),
            self.status,
            dict(self.headers),
            media_type="application/problem+json",
        )
