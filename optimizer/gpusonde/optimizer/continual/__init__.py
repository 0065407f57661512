"""Continual optimisation: which machines a job goes on with, from its progress and from what the cloud takes away."""

from gpusonde.optimizer.continual.clock import Clock, RealClock, SimulatedClock
from gpusonde.optimizer.continual.cloud import Cloud, CloudError, Machine, Notice, NoticeKind, ReportedCloud
from gpusonde.optimizer.continual.controller import Controller
from gpusonde.optimizer.continual.decision import Decision, DecisionKind, Recommendation
from gpusonde.optimizer.continual.epochs import EpochProgress
from gpusonde.optimizer.continual.options import ContinualOptions
from gpusonde.optimizer.continual.progress import ProgressWindow, Projection, Throughput, project
from gpusonde.optimizer.continual.risk import ExpectedRun, PreemptionRates, checkpoint_interval_s, expected_run
from gpusonde.optimizer.continual.runtime import Runtime, Trainer

__all__ = [
    "Clock",
    "Cloud",
    "CloudError",
    "ContinualOptions",
    "Controller",
    "Decision",
    "DecisionKind",
    "EpochProgress",
    "ExpectedRun",
    "Machine",
    "Notice",
    "NoticeKind",
    "PreemptionRates",
    "ProgressWindow",
    "Projection",
    "RealClock",
    "Recommendation",
    "ReportedCloud",
    "Runtime",
    "SimulatedClock",
    "Throughput",
    "Trainer",
    "checkpoint_interval_s",
    "expected_run",
    "project",
]
