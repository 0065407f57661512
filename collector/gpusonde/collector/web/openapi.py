"""``openapi``: the description of the HTTP interface for programs, from ``ROUTES`` and the messages' descriptors."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from gpusonde.collector.messages import is_repeated
from gpusonde.collector.web.routes import ROUTES, ApiRoute

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
