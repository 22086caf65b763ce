"""The providers a user names, and their options: spelled out, checked, and sorted by provider."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from graphopt.errors import ExecutionError, ProviderOptionError, UsageError
from graphopt.runtime.session import CPU, CUDA, PROBE, SHORT_NAMES, Session, SessionSettings, runtime
from graphopt.runtime.worker import Worker

AUTO = "auto"
_ENDING = "ExecutionProvider"
# What the runtime calls its providers in any build; other names are looked up in the one that is installed.
_KNOWN = tuple(
    name + _ENDING
    for name in (
        "CPU", "CUDA", "Tensorrt", "NvTensorRTRTX", "MIGraphX", "OpenVINO", "Dnnl", "VitisAI", "QNN", "Nnapi", "CoreML",
        "ACL", "Dml", "Rknpu", "WebNN", "WebGpu", "Xnnpack", "CANN", "Azure",
    )
)  # fmt: skip


def provider_names(asked: str | Sequence[str]) -> tuple[str, ...]:
    """The providers named, each once and in order: `auto`, or the runtime's full name.

    Args:
        asked: One name, several with commas between, or a sequence of such.

    Raises:
        UsageError: The runtime has no provider of that name, or none is named.
    """
    texts = [asked] if isinstance(asked, str) else list(asked)
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError("no provider is named; use auto, cpu, cuda or a name like CUDAExecutionProvider")
    return tuple(dict.fromkeys(map(_full_name, names)))


def short_name(provider: str) -> str:
    """What people call a provider."""
    return {CPU: "cpu", CUDA: "cuda"}.get(provider, provider)


def _full_name(name: str) -> str:
    low = name.lower()
    if low == AUTO:
        return AUTO
    if low in SHORT_NAMES:
        return SHORT_NAMES[low]
    for known in _KNOWN:
        if low in (known.lower(), known.lower().removesuffix(_ENDING.lower())):
            return known
    try:
        listed = [str(known) for known in runtime().get_all_providers()]
    except ExecutionError:
        listed = []
    for known in listed:
        if low in (known.lower(), known.lower().removesuffix(_ENDING.lower())):
            return known
    raise UsageError(f"there is no provider '{name}'; {_nearest(low, [*_KNOWN, *listed])}")


def _nearest(low: str, known: Sequence[str]) -> str:
    spellings = {short: short for short in (AUTO, *SHORT_NAMES)}
    for name in known:
        spellings.setdefault(name.lower(), name)
        spellings.setdefault(name.lower().removesuffix(_ENDING.lower()), name)
    near = list(dict.fromkeys(spellings[found] for found in difflib.get_close_matches(low, spellings, 3, 0.6)))
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"choose auto, cpu, cuda or a name like CUDA{_ENDING}"


def options_of(
    given: Mapping[str, str], providers: Sequence[str], asked: Sequence[str]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Options by provider.

    Args:
        given: `use_tf32` or `cuda:use_tf32` -> value.
        providers: Full names of the providers that shall run.
        asked: What was asked for, which may be `auto`.

    Returns:
        Provider -> option -> value, and sentences on what was left aside: the options of CUDA where `auto` meant the
        CPU.

    Raises:
        UsageError: An option names a provider that does not run, or it does not say which of several it is for.
    """
    found: dict[str, dict[str, str]] = {name: {} for name in providers}
    aside = []
    fell_back = AUTO in asked and CPU in providers and CPU not in asked
    for key, value in given.items():
        prefix, separator, option = key.rpartition(":")
        if separator:
            provider = _full_name(prefix)
            provider = providers[asked.index(AUTO)] if provider == AUTO and AUTO in asked else provider
            if provider not in found:
                if fell_back:
                    aside.append(key)
                    continue
                raise UsageError(
                    f"the option '{key}' is for {provider}, which is not asked for; add --provider {prefix}"
                )
        elif len(providers) > 1:
            raise UsageError(
                f"several providers are asked for; say which the option '{key}' is for, as in cuda:{key}={value}"
            )
        else:
            provider = providers[0]
            if fell_back:
                aside.append(key)
                continue
        found[provider][option] = value
    notes = [f"CUDA does not start here, so its options were left aside: {', '.join(aside)}"] if aside else []
    return found, notes


def require_options_here(provider: str, options: Mapping[str, str]) -> None:
    """Refuse, in this process, options that the provider does not take.

    Raises:
        ProviderOptionError: The provider refuses an option or its value, or has no options at all.
    """
    if not options:
        return
    whole = _refusal(provider, options)
    if not whole:
        return
    for name, value in options.items():
        why = _refusal(provider, {name: value})
        if why:
            raise ProviderOptionError(f"{provider} refuses the option '{name}={value}': {why}")
    raise ProviderOptionError(f"{provider} refuses the options {', '.join(options)} together: {whole}")


def checked_options(
    worker: Worker, asked: str, provider: str, given: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The options of the one provider that runs, which it takes, and sentences on what was left aside.

    Args:
        worker: The process it runs in.
        asked: What was asked for, which may be `auto`.
        provider: Full name of what runs.
        given: The user's options.

    Raises:
        UsageError: An option is for another provider, or this one refuses it.
    """
    found, notes = options_of(given, [provider], provider_names(asked))
    worker.call(require_options_here, provider, found[provider])
    return found[provider], notes


def _refusal(provider: str, options: Mapping[str, str]) -> str:
    """Why a provider does not take options; empty where it does."""
    try:
        session = Session(PROBE, SessionSettings(provider=provider, provider_options=tuple(options.items())))
    except ExecutionError as error:
        return str(error)
    reported = session.raw.get_provider_options().get(provider, {})
    if not reported and provider == CPU:
        return "it has no options; leave it out"
    # A provider that tells its options and leaves one out has dropped it without a word.
    unknown = [name for name in options if reported and name not in reported]
    return f"it has no such option; it has {', '.join(sorted(reported))}" if unknown else ""
