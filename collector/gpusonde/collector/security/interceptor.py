"""The one gate that every call passes: who calls, may it, and only then what it says."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, cast

import grpc
import grpc.aio

from gpusonde.collector.security.guard import Context, Guard, required_role
from gpusonde.collector.security.identity import AuthenticationError, Role

_LOG = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_LOG_INTERVAL_S = 1.0


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Checks the role of every caller before its request is even decoded.

    Args:
        guard: Knows callers.
        refused: Counts refusals by reason.
        clock: Monotonic seconds.
    """

    def __init__(self, guard: Guard, refused: Counter[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._guard = guard
        self._refused = refused
        self._clock = clock
        self._logged_s = -_LOG_INTERVAL_S

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the method's handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        role = required_role(method)
        if handler.unary_unary is not None:
            return self._unary_unary(handler, role, method)
        if role is None:
            return handler
        if handler.unary_stream is not None:
            return self._unary_stream(handler, role, method)
        return self._stream_stream(handler, role, method)

    def _unary_unary(self, handler: Handler, role: Role | None, method: str) -> Handler:
        async def answer(data: bytes, context: Context) -> Any:
            await self._admit(context, role, method)
            request = await self._decode(handler, data, context)
            return await cast(Any, handler.unary_unary)(request, context)

        return grpc.unary_unary_rpc_method_handler(answer, None, handler.response_serializer)

    def _unary_stream(self, handler: Handler, role: Role, method: str) -> Handler:
        async def answer(data: bytes, context: Context) -> AsyncIterator[Any]:
            await self._admit(context, role, method)
            request = await self._decode(handler, data, context)
            async for response in cast(Any, handler.unary_stream)(request, context):
                yield response

        return grpc.unary_stream_rpc_method_handler(answer, None, handler.response_serializer)

    def _stream_stream(self, handler: Handler, role: Role, method: str) -> Handler:
        async def answer(requests: AsyncIterator[Any], context: Context) -> None:
            await self._admit(context, role, method)
            await cast(Any, handler.stream_stream)(requests, context)

        return grpc.stream_stream_rpc_method_handler(
            cast(Any, answer), handler.request_deserializer, handler.response_serializer
        )

    async def _admit(self, context: Context, role: Role | None, method: str) -> None:
        if role is None:
            return
        try:
            identity = self._guard.identify(context)
        except AuthenticationError as error:
            await self._refuse(context, "unauthenticated", grpc.StatusCode.UNAUTHENTICATED, str(error), method)
            return
        if not identity.may(role):
            text = f"{identity.name} is no {role.value}, which {method} is for"
            await self._refuse(context, "not_permitted", grpc.StatusCode.PERMISSION_DENIED, text, method)

    async def _decode(self, handler: Handler, data: bytes, context: Context) -> Any:
        if handler.request_deserializer is None:
            return data
        try:
            return handler.request_deserializer(data)
        except Exception:  # protobuf's own, and the UTF-8 decoder's below it
            self._refused["undecodable"] += 1
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the request cannot be decoded; run one version of both sides"
            )

    async def _refuse(self, context: Context, reason: str, code: grpc.StatusCode, text: str, method: str) -> None:
        self._refused[reason] += 1
        # Whoever is refused can come again a thousand times a second; the log is not theirs to fill.
        if self._clock() - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = self._clock()
            _LOG.warning("%s: %s is refused: %s", context.peer(), method, text)
        await context.abort(code, text)
