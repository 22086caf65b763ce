"""Every exception graphopt raises on purpose, on one screen. Each message ends with what to do next."""

from __future__ import annotations


class GraphoptError(Exception):
    """The base of all errors a user can meet; catch this one to catch them all."""


# --- the file


class ModelError(GraphoptError):
    """The model file cannot be used: missing, truncated, not ONNX, or its external data is not where it says."""


class TruncatedModelError(ModelError):
    """The protobuf ends before a length it promises; `offset` is the byte where it went wrong."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class ExternalDataError(ModelError):
    """External data is missing, too short, or lies outside the model's folder."""


class OutputError(GraphoptError):
    """The result cannot be written: no permission, no space, or the file exists already."""


# --- the graph


class EditError(GraphoptError):
    """An edit that would break the graph was refused; the graph is as it was before."""


class InvariantViolationError(GraphoptError):
    """A numbered invariant of the graph does not hold; `number` says which one."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(f"invariant {number} is broken: {sentence}")
        self.number = number


# --- rules and passes


class RuleError(GraphoptError):
    """A rule is declared wrongly, or returned a replacement that does not fit what it replaces."""


class PassError(GraphoptError):
    """A pass raised or broke the graph; it was rolled back. Raised only under `strict`."""


class OpsetError(GraphoptError):
    """The model cannot be converted to the opset asked for; the message names the node and the reason."""


class DidNotConvergeError(GraphoptError):
    """Rules keep undoing each other; the message names the ones that repeat."""


class PluginError(GraphoptError):
    """A plugin cannot be loaded, or claims a name that is taken."""


class UsageError(GraphoptError):
    """An option, pass or rule name that does not exist or does not fit."""


class ProviderOptionError(UsageError):
    """A provider does not take an option, or not that value of it; the message names the option."""


# --- running models


class ExecutionError(GraphoptError):
    """ONNX Runtime could not do what was asked; `reason` is a short word for the kind of failure."""

    reason = "failed"


class KernelMissingError(ExecutionError):
    """The provider has no kernel for an operator at the dtypes at hand."""

    reason = "no kernel"


class ModelRefusedError(ExecutionError):
    """The runtime would not load the model: invalid graph, unknown operator, unreadable data."""

    reason = "model refused"


class RunFailedError(ExecutionError):
    """The model loaded, but running it on these inputs failed."""

    reason = "run failed"


class FeedRefusedError(RunFailedError):
    """An input has a type, rank or fixed dim other than the one that the model declares."""

    reason = "feed refused"


class ValueNotSupportedError(ExecutionError):
    """A value of this type cannot be handed to the runtime or read back from it in Python."""

    reason = "value not supported"


class ProviderMissingError(ExecutionError):
    """The provider asked for does not really start on this machine."""

    reason = "provider missing"


class WorkerCrashedError(ExecutionError):
    """The worker process died while it ran a call (a signal, or an exit nobody asked for)."""

    reason = "crashed"


class WorkerTimeoutError(ExecutionError):
    """The worker process did not answer in the time allowed and was ended."""

    reason = "timed out"


class WorkerMemoryError(ExecutionError):
    """The worker process asked for more memory than is allowed or there is."""

    reason = "out of memory"


class RecipeError(GraphoptError):
    """A recipe cannot be read, or belongs to another model; tune anew."""


class FeedError(GraphoptError):
    """No inputs could be made, or the inputs given do not fit the model."""
