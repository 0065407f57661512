"""``ROUTES``: what HTTP offers, each a method of a service; everything else about it follows from the messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor

from gpusonde.admin.v1 import admin_pb2
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
