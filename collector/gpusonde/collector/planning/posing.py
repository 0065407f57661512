"""``RunProblems``: answers ``PoseProblem``, with a problem of a stored run."""

from __future__ import annotations

from gpusonde import formatting
from gpusonde.collector.messages import fill
from gpusonde.collector.query.job_tree import JobTree
from gpusonde.collector.query.prediction import LatencyPredictor
from gpusonde.collector.query.runs import tree_parts
from gpusonde.collector.storage.store import ResultStore
from gpusonde.epoch_detect import told_role
from gpusonde.errors import CommandError, RequestError
from gpusonde.optimizer.documents.posing import PosedProblem, Terms
from gpusonde.planning.v1 import planning_pb2
from gpusonde.query.v1 import query_pb2

_MOST_PROVIDERS = 32
_LONGEST_PROVIDER = 40


class RunProblems:
    """Poses problems.

    Args:
        predictor: Says what an epoch takes elsewhere.
        results: Where the trees of cycles are.
    """

    def __init__(self, predictor: LatencyPredictor, results: ResultStore) -> None:
        self._predictor = predictor
        self._results = results

    def pose(self, request: planning_pb2.PoseProblemRequest) -> planning_pb2.PoseProblemResponse:
        """Answer a request.

        Raises:
            RequestError: As of ``LatencyPredictor.predict_run``.
            RequestError: What is wanted cannot be (``INVALID_ARGUMENT``).
            RequestError: No GPU that can be rented is predicted (``FAILED_PRECONDITION``).
        """
        terms = _terms(request)
        question = query_pb2.PredictEpochLatencyRequest(
            run_id=request.run_id,
            precision=request.precision,
            target_placements=[query_pb2.Placement(gpu_count=1, host_count=1)],
        )
        found = self._predictor.predict_run(question)
        assert found.run is not None  # noqa: S101 - a run was asked for
        tree = JobTree.of(tree_parts(self._results, found.run)).listed()
        length = formatting.seconds(found.source.epoch_latency_s)
        is_sure = told_role(tree.cycles, tree.level) == "epoch"
        doubt = (
            "" if is_sure else f"every cycle of {length} is taken for an epoch, which its metrics do not tell for sure"
        )
        name = found.run.job_id or found.run.run_id
        try:
            posed = PosedProblem.of_run(
                name, found.predictions, found.source, found.here, terms, cycles=tree.cycles, doubt=doubt
            )
        except CommandError as error:
            raise RequestError("FAILED_PRECONDITION", str(error)) from None
        response = planning_pb2.PoseProblemResponse(assumed=[posed.measured, *posed.assumed])
        fill(response.problem, posed.document)
        return response


def _terms(request: planning_pb2.PoseProblemRequest) -> Terms:
    for name in ("epochs", "batch_size", "steps_per_epoch", "quota"):
        if (name == "epochs" or request.HasField(name)) and not getattr(request, name):
            raise RequestError("INVALID_ARGUMENT", f"field '{name}': give a number of at least 1")
    if len(request.providers) > _MOST_PROVIDERS or max(map(len, request.providers), default=0) > _LONGEST_PROVIDER:
        raise RequestError("INVALID_ARGUMENT", f"field 'providers': at most {_MOST_PROVIDERS} names are taken")
    terms = Terms(
        epochs=request.epochs,
        batch_size=request.batch_size if request.HasField("batch_size") else None,
        steps_per_epoch=request.steps_per_epoch if request.HasField("steps_per_epoch") else None,
        quota=request.quota if request.HasField("quota") else None,
        providers=tuple(request.providers),
    )
    try:
        terms.offers()
    except CommandError as error:
        raise RequestError("INVALID_ARGUMENT", f"field 'providers': {error}") from None
    return terms
