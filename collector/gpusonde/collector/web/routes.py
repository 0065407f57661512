"""``ROUTES``: what HTTP offers, each a method of a service; ``openapi``: its description for programs.

Everything else about a route follows from the messages and their descriptors.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from gpusonde.admin.v1 import admin_pb2
from gpusonde.collector.messages import is_repeated
from gpusonde.planning.v1 import planning_pb2
from gpusonde.query.v1 import query_pb2
from gpusonde.workload.v1 import workload_pb2

_SERVICES = {
    service.name: service
    for module in (admin_pb2, planning_pb2, query_pb2, workload_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
}
_PLACE = re.compile(r"\{(\w+)(?::path)?\}")


@dataclass(frozen=True)
class ApiRoute:
    """A path and the method behind it.

    Attributes:
        verb: ``GET``: the message's fields stand in path and query. ``POST``: they stand in the body, as JSON.
        path: With fields in braces.
        service: Name of the service.
        rpc: Name of its method.
        summary: What it does, for OpenAPI.
        answers: ``json``, the method's answer; ``events``, server-sent ones of a stream; ``arrow``, a stream's bytes.
    """

    verb: Literal["GET", "POST"]
    path: str
    service: str
    rpc: str
    summary: str
    answers: Literal["json", "events", "arrow"] = "json"

    @cached_property
    def method(self) -> MethodDescriptor:
        """The method's description."""
        found: MethodDescriptor = _SERVICES[self.service].methods_by_name[self.rpc]
        return found

    @property
    def full_name(self) -> str:
        """The method's name as gRPC writes it."""
        return f"/{self.method.containing_service.full_name}/{self.rpc}"

    @cached_property
    def request_class(self) -> Any:
        """The class of its requests."""
        return message_factory.GetMessageClass(self.method.input_type)

    @cached_property
    def response_class(self) -> Any:
        """The class of its answers."""
        return message_factory.GetMessageClass(self.method.output_type)

    @property
    def path_fields(self) -> list[str]:
        """Fields that stand in the path."""
        return _PLACE.findall(self.path)

    @property
    def plain_path(self) -> str:
        """The path as OpenAPI writes it."""
        return _PLACE.sub(r"{\1}", self.path)


ROUTES = (
    ApiRoute("GET", "/v1/runs", "QueryService", "ListRuns", "List runs, newest first."),
    ApiRoute("GET", "/v1/runs/{run_id}", "QueryService", "GetRun", "Tell one run."),
    ApiRoute("GET", "/v1/runs/{run_id}/epochs", "QueryService", "ListEpochs", "List a run's epochs and cycles."),
    ApiRoute(
        "GET", "/v1/runs/{run_id}/samples", "QueryService", "DecimateSamples", "Tell a run's samples for a picture."
    ),
    ApiRoute(
        "GET", "/v1/gpus/{gpu_uuid}/samples", "QueryService", "DecimateSamples", "Tell a GPU's samples for a picture."
    ),
    ApiRoute(
        "GET",
        "/v1/gpus/{gpu_uuid}/samples:arrow",
        "QueryService",
        "ReadSamples",
        "Read a GPU's samples as they were taken, as one Arrow IPC stream.",
        "arrow",
    ),
    ApiRoute("GET", "/v1/jobs", "QueryService", "ListJobs", "List jobs and what they do, newest first."),
    ApiRoute("GET", "/v1/jobs/{job_id:path}", "QueryService", "GetJob", "Tell one job and what it does."),
    ApiRoute("GET", "/v1/alerts", "QueryService", "ListAlerts", "List alerts about jobs, newest first."),
    ApiRoute(
        "GET",
        "/v1/watch",
        "QueryService",
        "WatchChanges",
        "Send what goes on and what changes, as events named change.",
        "events",
    ),
    ApiRoute(
        "POST",
        "/v1/predictions",
        "QueryService",
        "PredictEpochLatency",
        "Predict the epoch latency of a run on other GPUs.",
    ),
    ApiRoute("POST", "/v1/plans:pose", "PlanningService", "PoseProblem", "Make a problem of a run."),
    ApiRoute("POST", "/v1/plans:solve", "PlanningService", "SolveProblem", "Say what to rent."),
    ApiRoute(
        "POST",
        "/v1/plans:solve-several",
        "PlanningService",
        "SolveProblems",
        "Say what to rent for jobs that share it.",
    ),
    ApiRoute("POST", "/v1/plans:pareto", "PlanningService", "ListParetoPlans", "List plans by time and cost."),
    ApiRoute("POST", "/v1/plans:estimate", "PlanningService", "EstimatePlan", "Say what a plan takes and costs."),
    ApiRoute("POST", "/v1/workload:predict", "WorkloadService", "Predict", "Predict training times from graphs."),
    ApiRoute("POST", "/v1/workload:embed", "WorkloadService", "Embed", "Turn networks into vectors."),
    ApiRoute("GET", "/v1/hosts", "WorkloadService", "DescribeCluster", "List the hosts of all agents."),
    ApiRoute("GET", "/v1/trainings", "WorkloadService", "ListTrainings", "List trainings of embeddings."),
    ApiRoute("POST", "/v1/trainings", "WorkloadService", "QueueTraining", "Queue a training of embeddings."),
    ApiRoute("GET", "/v1/agents", "AdminService", "ListAgents", "List agents whose stream is open."),
    ApiRoute("POST", "/v1/agents:drain", "AdminService", "DrainAgents", "Ask agents to go elsewhere."),
)


_KINDS: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_DOUBLE: {"type": ["number", "string"], "description": 'also "NaN", "Infinity", "-Infinity"'},
    FieldDescriptor.TYPE_FLOAT: {"type": ["number", "string"], "description": 'also "NaN", "Infinity", "-Infinity"'},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "format": "uint32"},
    FieldDescriptor.TYPE_INT64: {"type": "string", "format": "int64"},
    FieldDescriptor.TYPE_UINT64: {"type": "string", "format": "uint64"},
}
_TEXTS: dict[str, dict[str, Any]] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?\d+(\.\d{1,9})?s$", "examples": ["1.5s"]},
}
_PROBLEM = {
    "type": "object",
    "description": "Problem details (RFC 9457).",
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "gRPC's name of the status"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
    "required": ["title", "status", "detail", "code"],
}
_MEDIA = {
    "json": "application/json",
    "events": "text/event-stream",
    "arrow": "application/vnd.apache.arrow.stream",
}


def openapi() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM}
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.plain_path, {})[route.verb.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpusonde collector",
            "version": importlib.metadata.version("gpusonde"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: ApiRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "The answer."}
    if route.answers == "json":
        answer["content"] = {_MEDIA["json"]: {"schema": _reference(route.method.output_type, schemas)}}
    else:
        _reference(route.method.output_type, schemas)
        answer["content"] = {_MEDIA[route.answers]: {}}
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    operation: dict[str, Any] = {
        "operationId": "".join([route.rpc, *("By" + field.title().replace("_", "") for field in route.path_fields)]),
        "summary": route.summary,
        "responses": {
            "200": answer,
            "default": {"description": "Why not.", "content": {"application/problem+json": problem}},
        },
    }
    if route.verb == "POST":
        schema = _reference(route.method.input_type, schemas)
        operation["requestBody"] = {"required": True, "content": {_MEDIA["json"]: {"schema": schema}}}
    else:
        operation["parameters"] = [_parameter(route, field, schemas) for field in _fields_of(route)]
    return operation


def _fields_of(route: ApiRoute) -> list[Any]:
    """Return the fields that stand in path and query: of those of which only one may be given, the path's."""
    fields: list[Any] = list(route.method.input_type.fields)
    taken = {field.containing_oneof.name for field in fields if field.containing_oneof and _is_in_path(route, field)}
    return [
        field
        for field in fields
        if _is_in_path(route, field) or field.containing_oneof is None or field.containing_oneof.name not in taken
    ]


def _is_in_path(route: ApiRoute, field: Any) -> bool:
    return field.name in route.path_fields


def _parameter(route: ApiRoute, field: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    is_in_path = _is_in_path(route, field)
    return {
        "name": field.name,
        "in": "path" if is_in_path else "query",
        "required": is_in_path,
        "schema": _schema(field, schemas),
    }


def _reference(message: Descriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    name = message.full_name.removeprefix("gpusonde.")
    if name not in schemas:
        schemas[name] = {}  # those that hold themselves find it
        properties = {field.name: _schema(field, schemas) for field in message.fields}
        schemas[name] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"$ref": f"#/components/schemas/{name}"}


def _schema(field: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _one(kind.fields_by_name["value"], schemas)}
    one = _one(field, schemas)
    return {"type": "array", "items": one} if is_repeated(field) else one


def _one(field: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        text = _TEXTS.get(field.message_type.full_name)
        return text or _reference(field.message_type, schemas)
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    return _KINDS[field.type]
