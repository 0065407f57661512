"""Continual optimisation: which machines a job goes on with, from its progress and from what the cloud takes away."""

from gpusonde.errors import CloudError
from gpusonde.optimizer.continual.controller import Controller, Decision, DecisionKind, Recommendation
from gpusonde.optimizer.continual.fleet import Cloud, Machine, Notice, NoticeKind, ReportedCloud
from gpusonde.optimizer.continual.options import ContinualOptions
from gpusonde.optimizer.continual.progress import ProgressWindow, Projection, Throughput, project
from gpusonde.optimizer.continual.runtime import Clock, Runtime, Trainer
from gpusonde.optimizer.preemptions import ExpectedRun, PreemptionRates, checkpoint_interval_s, expected_run

__all__ = [
    "Clock",
    "Cloud",
    "CloudError",
    "ContinualOptions",
    "Controller",
    "Decision",
    "DecisionKind",
    "ExpectedRun",
    "Machine",
    "Notice",
    "NoticeKind",
    "PreemptionRates",
    "ProgressWindow",
    "Projection",
    "Recommendation",
    "ReportedCloud",
    "Runtime",
    "Throughput",
    "Trainer",
    "checkpoint_interval_s",
    "expected_run",
    "project",
]
