"""Why a question has no answer."""

from __future__ import annotations

import grpc


class QueryError(Exception):
    """A question that cannot be answered.

    Attributes:
        code: gRPC status.
    """

    code = grpc.StatusCode.UNKNOWN


class NotFoundError(QueryError):
    """There is no such run, GPU or metric."""

    code = grpc.StatusCode.NOT_FOUND


class InvalidQuestionError(QueryError):
    """A field of the request cannot be used."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotYetError(QueryError):
    """What is asked for does not exist in the state that the run is in."""

    code = grpc.StatusCode.FAILED_PRECONDITION
