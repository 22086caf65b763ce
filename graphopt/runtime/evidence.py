"""What two models and the runtime have to say: sessions, feeds, repeated runs, measured noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from graphopt.errors import ExecutionError
from graphopt.runtime.compare import compare, scale_of
from graphopt.runtime.feeds import Feed, FeedMaker, FeedOptions, FeedSet
from graphopt.runtime.remote import RemoteSession
from graphopt.runtime.session import AS_USERS, CPU, JUDGE, SessionInfo, SessionSettings
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.structure import Structure, structure_of, try_load
from graphopt.runtime.tally import OutputTally
from graphopt.runtime.tolerance import Noise, has_floats, noise, one_ulp
from graphopt.runtime.userdata import read_data
from graphopt.runtime.values import Data
from graphopt.runtime.worker import Worker

Outputs = dict[str, Data]
# Runs with inputs moved by an ulp, for each feed: the largest of few elements scatters.
_ULP_SAMPLES = 2
# Added to the user's seed for random operators that have none; the runtime takes 0 and 1 for the same.
_SEED, _OTHER_SEED = 17, 7919


class RewrittenFailedError(Exception):
    """The rewritten model does not run where the original does; holds the sentence and the runtime's error."""

    def __init__(self, sentence: str, cause: ExecutionError) -> None:
        super().__init__(sentence)
        self.cause = cause


class Evidence:
    """Runs of both models. One session is open at a time, so that a model has to fit only once."""

    def __init__(
        self,
        original: ModelSource,
        rewritten: ModelSource,
        worker: Worker,
        options: FeedOptions,
        custom_ops: tuple[str, ...],
        timeout: float,
    ) -> None:
        self.original = original
        self.rewritten = rewritten
        self.worker = worker
        self.options = options
        self.custom_ops = custom_ops
        self.timeout = timeout
        self.provider = CPU
        self.notes: list[str] = []
        self.found = FeedSet()
        self.tallies: dict[str, OutputTally] = {}
        self.structure = Structure()
        self.info = SessionInfo((), (), ())
        self._random_known = False
        self._noise_known = False

    def session(self, source: ModelSource, base: SessionSettings) -> RemoteSession:
        """A session on the provider at hand."""
        settings = base.but(provider=self.provider, custom_ops=self.custom_ops, seed=self.options.seed + _SEED)
        if self.provider != CPU:
            settings = settings.but(prepack=True, arena=True)
        return RemoteSession(source, settings, worker=self.worker, timeout=self.timeout)

    def as_users(self, source: ModelSource) -> RemoteSession:
        """A session with default options, but for TF32, which is a thousand times coarser than all the rest."""
        return self.session(source, AS_USERS.but(tf32=False))

    def run_original(self, given: Sequence[Mapping[str, Data]] | None, data: str | Path | None) -> None:
        """Load the original, make feeds that it runs on, and keep what it gives.

        Raises:
            ExecutionError: It does not load.
            FeedError: The user's data or options do not fit.
        """
        with ThreadPoolExecutor(1) as pool, self.session(self.original, JUDGE) as session:
            graph = pool.submit(try_load, self.original)  # while the worker loads it, too
            self.info = session.info
            self.structure = structure_of(graph.result(), self.info)
            self._collect(session, given, data)
        self.tallies = {port.name: OutputTally(port.name) for port in self.info.outputs}
        if self.found.note:
            self.notes.append(self.found.note)

    def _collect(
        self, session: RemoteSession, given: Sequence[Mapping[str, Data]] | None, data: str | Path | None
    ) -> None:
        structure = self.structure
        maker = FeedMaker(
            self.info.inputs,
            self.options,
            roles=structure.roles,
            unranked=structure.unranked,
            defaults=structure.defaults,
            hints=structure.hints,
        )
        own = [Feed(f"given {number}", dict(feed)) for number, feed in enumerate(given or (), 1)]
        if data is not None:
            own += read_data(data, self.info.inputs, self.options.runs)
        if not own:
            self.found = maker.collect(session.run)
            return
        for feed in own:
            try:
                self.found.working.append((feed, session.run(feed.values)))
            except ExecutionError as error:
                self.found.failing.append((feed, str(error)))
                self.found.error = self.found.error or error
        if not self.found.working:
            self.found.advice = f"the original runs on none of the inputs given: {self.found.error}"
        elif given is None:
            more = maker.collect(session.run, tries=12, seconds=5.0)
            self.found.working += more.working
            self.found.failing += more.failing

    def references(self) -> list[Outputs]:
        """What the original gave, feed by feed."""
        return [outputs for _, outputs in self.found.working]

    def strictly(self, session: RemoteSession) -> list[Outputs]:
        """All feeds.

        Raises:
            RewrittenFailedError: One fails.
        """
        results = []
        for feed, _ in self.found.working:
            try:
                results.append(session.run(feed.values))
            except ExecutionError as error:
                sentence = (
                    f"the original runs at {feed.label} and the rewritten model does not ({error.reason}): {error}"
                )
                raise RewrittenFailedError(sentence, error) from error
        return results

    def as_users_run(self, session: RemoteSession) -> list[Outputs]:
        """All feeds, but for empty ones at which the runtime fails; those are set aside.

        Fused kernels of the runtime's own making divide by an empty dim, or start a kernel of no threads. Where the
        model ran at such a feed with the runtime's optimizer off, that is a fault of the runtime and not of the model.

        Raises:
            RewrittenFailedError: One that is not empty fails.
        """
        results, ran = [], []
        may_fail = not all(feed.is_empty for feed, _ in self.found.working)
        for feed, outputs in self.found.working:
            try:
                results.append(session.run(feed.values))
                ran.append((feed, outputs))
            except ExecutionError as error:
                if not (feed.is_empty and may_fail):
                    sentence = (
                        f"the original runs at {feed.label} and the rewritten model does not ({error.reason}): {error}"
                    )
                    raise RewrittenFailedError(sentence, error) from error
                self.found.unoptimized.append((feed, f"{error.reason}: {error}"))
        self.found.working = ran
        return results

    def leniently(self, session: RemoteSession) -> list[Outputs | None]:
        """All feeds; None for those that fail, and for all where the model does not load."""
        results: list[Outputs | None] = []
        for feed, _ in self.found.working:
            try:
                results.append(session.run(feed.values))
            except ExecutionError:
                results.append(None)
        return results

    def find_random(self) -> None:
        """Run the original again in another session with another seed: what moves is random."""
        if self._random_known:
            return
        self._random_known = True
        with self.session(self.original, JUDGE) as session:
            session.settings = session.settings.but(seed=self.options.seed + _OTHER_SEED)
            again = self.leniently(session)
        for tally in self.tallies.values():
            for (feed, left), right in zip(self.found.working, again, strict=True):
                if right is not None and not compare(left[tally.name], right[tally.name]).identical:
                    tally.random[feed.label] = None

    def measure_noise(self) -> None:
        """Noise of the original: the runtime's optimizer on against off, and its inputs moved by one ulp."""
        if self._noise_known:
            return
        self._noise_known = True
        with self.session(self.original, JUDGE.but(optimize="all", prepack=True)) as session:
            optimized = self.leniently(session)
        if not any(optimized):
            self.notes.append("the original does not run with the runtime's optimizer on")
        for tally in self.tallies.values():
            tally.floor.quantized = self.structure.quantized
            tally.floor.coarsest = self.structure.coarsest
            tally.floor.largest = max((scale_of(item[tally.name]) for item in self.references()), default=0.0)
            for (feed, reference), other in zip(self.found.working, optimized, strict=True):
                if (value := noise(reference, other, tally.name)) is not None:
                    tally.floor.optimizer[feed.label] = value
        self._move_inputs()

    def _move_inputs(self) -> None:
        switches = [name for name, role in self.structure.roles.items() if role.choices is not None]
        with self.session(self.original, JUDGE) as session:
            for number, (feed, reference) in enumerate(self.found.working):
                if not has_floats({name: value for name, value in feed.values.items() if name not in switches}):
                    continue
                for sample in range(_ULP_SAMPLES):
                    try:
                        moved = session.run(one_ulp(feed.values, self.options.seed + 100 * number + sample, switches))
                    except ExecutionError:
                        break
                    for tally in self.tallies.values():
                        if (value := noise(reference, moved, tally.name)) is not None:
                            tally.floor.ulp[feed.label] = tally.floor.ulp.get(feed.label, Noise()) | value
