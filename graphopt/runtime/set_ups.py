"""The settings of every kind of run that a verification makes, on any provider.

The class check asks what the graph computes, so everything that moves numbers by itself is fixed there. The final run
asks what users get, so everything is at the runtime's defaults, or at what the user set.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.runtime.session import AS_USERS, CPU, CUDA, JUDGE, SessionSettings

# CUDA in the class check: no TF32, and the one convolution algorithm that the runtime documents as fixed. The default,
# EXHAUSTIVE, takes the algorithm that was fastest in a trial, which need not be the same one in the next session.
_FIXED = {"use_tf32": "0", "cudnn_conv_algo_search": "DEFAULT"}
# Options that say where a model runs and not how: they belong to every run.
_PLACES = ("device_id", "gpu_mem_limit", "arena_extend_strategy", "user_compute_stream", "has_user_compute_stream")
_TF32 = "use_tf32"


@dataclass(frozen=True, slots=True)
class SetUp:
    """How models are run in one verification.

    Attributes:
        provider: Full name.
        options: The user's options of the provider.
        custom_ops: Libraries of custom operators.
        seed: Seed of random operators that have none.
    """

    provider: str = CPU
    options: tuple[tuple[str, str], ...] = ()
    custom_ops: tuple[str, ...] = ()
    seed: int | None = None

    def judged(self, base: SessionSettings = JUDGE) -> SessionSettings:
        """The class check, or a variant of it.

        On CUDA it is deterministic, and only options that the user named by name differ from that. A provider of which
        no such set-up is known gets all of the user's options: it may not start without them.
        """
        settings = base.but(provider=self.provider, custom_ops=self.custom_ops, seed=self.seed)
        if self.provider == CPU:
            return settings.but(provider_options=self.options)
        settings = settings.but(prepack=True, arena=True, deterministic=True)
        if self.provider != CUDA:
            return settings.but(provider_options=self.options)
        named = {name: value for name, value in self.options if name in _FIXED or name in _PLACES}
        return settings.but(tf32=False, provider_options=tuple({**_FIXED, **named}.items()))

    def as_users(self) -> SessionSettings:
        """The final run: default options, TF32 on among them, and what the user set."""
        return AS_USERS.but(
            provider=self.provider, custom_ops=self.custom_ops, seed=self.seed, provider_options=self.options
        )

    @property
    def has_tf32(self) -> bool:
        """True where the final run may round float32 to TF32."""
        return self.provider == CUDA and dict(self.options).get(_TF32, "1").strip().lower() not in ("0", "false")

    def without_tf32(self) -> SessionSettings:
        """The final run but for TF32; against the final run of the same model it measures what TF32 alone does."""
        options = {**dict(self.options), _TF32: "0"} if self.provider == CUDA else dict(self.options)
        return self.as_users().but(tf32=False, provider_options=tuple(options.items()))

    def runs(self) -> dict[str, SessionSettings]:
        """Every kind of run by what it is for."""
        kinds = {
            "class check": self.judged(),
            "noise of the runtime's optimizer": self.judged(JUDGE.but(optimize="all", prepack=True)),
            "final run": self.as_users(),
        }
        if self.has_tf32:
            kinds["final run without TF32"] = self.without_tf32()
        return kinds
