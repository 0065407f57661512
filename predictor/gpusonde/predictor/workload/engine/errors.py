"""Why a training time cannot be predicted, or a model cannot be fitted or read: one exception per cause."""

from __future__ import annotations


class EngineError(ValueError):
    """Something that the inference engine cannot work with."""


class RequestError(EngineError):
    """A request or measurement that cannot be: impossible counts, unknown device."""


class TooFewMeasurementsError(EngineError):
    """Too few measurements, or of too few architectures, to fit a model on."""


class ModelFileError(EngineError):
    """A file that is no model, is damaged, or was written by another version."""

    def __init__(self, path: str, problem: str) -> None:
        """Keep the path; ``problem`` says what is wrong and what to do."""
        self.path = path
        super().__init__(f"{path}: {problem}")


class MissingEncoderError(ModelFileError):
    """A model whose columns come from an encoder that is not at hand."""
