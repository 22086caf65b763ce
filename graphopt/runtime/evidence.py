"""What two models and the runtime have to say: sessions, feeds, repeated runs, measured noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from graphopt.errors import ExecutionError
from graphopt.ir import Graph
from graphopt.runtime.compare import compare, scale_of
from graphopt.runtime.contents import count_operators
from graphopt.runtime.decoding import cache_pairs, decoder_feeds
from graphopt.runtime.feeds import Feed, FeedMaker, FeedOptions, FeedSet
from graphopt.runtime.remote import RemoteSession
from graphopt.runtime.session import CPU, JUDGE, SessionInfo, SessionSettings
from graphopt.runtime.set_ups import SetUp
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.structure import Structure, structure_of, try_load
from graphopt.runtime.tally import OutputTally
from graphopt.runtime.tolerance import FACTOR, Noise, has_floats, noise, one_ulp
from graphopt.runtime.userdata import read_data
from graphopt.runtime.values import Data
from graphopt.runtime.worker import Worker
from graphopt.targets import MICROSOFT

Outputs = dict[str, Data]
# Runs with inputs moved by an ulp, for each feed: the largest of few elements scatters.
_ULP_SAMPLES = 2
# Added to the user's seed for random operators that have none; the runtime takes 0 and 1 for the same.
_SEED, _OTHER_SEED = 17, 7919
# For inputs of a decoder made one by one, before they are made as those of a generation.
_DECODER_SECONDS = 5.0


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
        self.provider_options: dict[str, str] = {}
        self.graph: Graph | None = None
        self.notes: list[str] = []
        self.found = FeedSet()
        self.tallies: dict[str, OutputTally] = {}
        self.structure = Structure()
        self.info = SessionInfo((), (), ())
        self._random_known = False
        self._noise_known = False
        self._tf32_known = False
        self._as_users: list[Outputs | None] | None = None

    @property
    def set_up(self) -> SetUp:
        """The settings of all runs on the provider at hand."""
        seed = self.options.seed + _SEED
        return SetUp(self.provider, tuple(self.provider_options.items()), self.custom_ops, seed)

    def session(self, source: ModelSource, base: SessionSettings) -> RemoteSession:
        """A session on the provider at hand, set up for the class check."""
        return RemoteSession(source, self.set_up.judged(base), worker=self.worker, timeout=self.timeout)

    def as_users(self, source: ModelSource) -> RemoteSession:
        """A session with default options and what the user set, as users will run it."""
        return RemoteSession(source, self.set_up.as_users(), worker=self.worker, timeout=self.timeout)

    def original_as_users(self) -> list[Outputs | None]:
        """What the original gives with default options, feed by feed; it is run once."""
        if self._as_users is None or len(self._as_users) != len(self.found.working):
            with self.as_users(self.original) as session:
                self._as_users = self.leniently(session)
        return self._as_users

    def run_original(
        self,
        given: Sequence[Mapping[str, Data]] | None,
        data: str | Path | None,
        ready: Sequence[Feed] | None = None,
    ) -> None:
        """Load the original, make feeds that it runs on, and keep what it gives.

        Args:
            given: Inputs of the caller's.
            data: Where the user's inputs are.
            ready: Feeds that were made before, in place of all others.

        Raises:
            ExecutionError: It does not load.
            FeedError: The user's data or options do not fit.
        """
        with ThreadPoolExecutor(1) as pool, self.session(self.original, JUDGE) as session:
            graph = pool.submit(try_load, self.original)  # while the worker loads it, too
            self.info = session.info
            self.graph = graph.result()
            self.structure = structure_of(self.graph, self.info)
            if ready is None:
                self._collect(session, given, data)
            else:
                self.found = FeedSet()
                self._try_all(session, ready)
        self.tallies = {port.name: OutputTally(port.name) for port in self.info.outputs}
        if self.found.note:
            self.notes.append(self.found.note)

    def maker(self) -> FeedMaker:
        """Makes inputs for the original, once it was loaded."""
        structure = self.structure
        return FeedMaker(
            self.info.inputs,
            self.options,
            roles=structure.roles,
            unranked=structure.unranked,
            defaults=structure.defaults,
            hints=structure.hints,
        )

    def _collect(
        self, session: RemoteSession, given: Sequence[Mapping[str, Data]] | None, data: str | Path | None
    ) -> None:
        maker = self.maker()
        own = [Feed(f"given {number}", dict(feed)) for number, feed in enumerate(given or (), 1)]
        if data is not None:
            own += read_data(data, self.info.inputs, self.options.runs)
        if not own:
            decodes = bool(cache_pairs(self.info)) and not self.options.shapes
            if decodes:  # what a decoder takes in goes together in ways that are found faster there
                self.found = maker.collect(session.run, seconds=_DECODER_SECONDS)
                self.found.working = self.found.working or self._decoder_feeds(session)
            if not self.found.working:
                self.found = maker.collect(session.run)
            return
        self._try_all(session, own)
        if self.found.working and given is None:
            more = maker.collect(session.run, tries=12, seconds=5.0)
            self.found.working += more.working
            self.found.failing += more.failing

    def _decoder_feeds(self, session: RemoteSession) -> list[tuple[Feed, Outputs]]:
        def maker(dims: Mapping[str, int]) -> FeedMaker:
            structure = self.structure
            options = replace(self.options, dims=dict(dims))
            return FeedMaker(self.info.inputs, options, roles=structure.roles, unranked=structure.unranked)

        try:
            return decoder_feeds(self.info, maker, self.options.dims, session.run)
        except ExecutionError:
            return []

    def _try_all(self, session: RemoteSession, feeds: Sequence[Feed]) -> None:
        for feed in feeds:
            try:
                self.found.working.append((feed, session.run(feed.values)))
            except ExecutionError as error:
                self.found.failing.append((feed, str(error)))
                self.found.error = self.found.error or error
        if not self.found.working:
            self.found.advice = f"the original runs on none of the inputs given: {self.found.error}"

    def references(self) -> list[Outputs]:
        """What the original gave, feed by feed."""
        return [outputs for _, outputs in self.found.working]

    def strictly(self, session: RemoteSession) -> list[Outputs]:
        """All feeds.

        Raises:
            RewrittenFailedError: One fails.
        """
        return self._run_all(session, None)

    def as_judged_run(self, session: RemoteSession) -> list[Outputs]:
        """All feeds, but for empty ones at which operators fail that only the rewritten model has; those are set aside.

        Kernels of the runtime's own operators are written for at least one element: they divide by an empty dim, start
        a kernel of no threads, or refuse. A model that was fused for a runtime is such a kernel's from then on.

        Raises:
            RewrittenFailedError: One fails that is not empty, or though nothing was fused.
        """
        return self._run_all(session, self.found.refused, self._is_fused)

    def _is_fused(self) -> bool:
        """True if the rewritten model has operators of the runtime's own which the original does not have."""
        try:
            before, after = count_operators(self.original), count_operators(self.rewritten)
        except ValueError:
            return False
        return any(name.startswith(f"{MICROSOFT}::") for name in after - before)

    def as_users_run(self, session: RemoteSession) -> list[Outputs]:
        """All feeds, but for empty ones at which the runtime fails; those are set aside.

        Fused kernels of the runtime's own making divide by an empty dim, or start a kernel of no threads. Where the
        model ran at such a feed with the runtime's optimizer off, that is a fault of the runtime and not of the model.

        Raises:
            RewrittenFailedError: One that is not empty fails.
        """
        return self._run_all(session, self.found.unoptimized)

    def _run_all(
        self, session: RemoteSession, aside: list[tuple[Feed, str]] | None, may_be: Callable[[], bool] = lambda: True
    ) -> list[Outputs]:
        """All feeds; empty ones that fail go `aside`, if there is such a list, some other feed, and if that `may_be`.

        It is only asked where one fails: what it takes to know reads both models in full.

        Raises:
            RewrittenFailedError: Another one fails.
        """
        results, ran = [], []
        may_fail = aside is not None and not all(feed.is_empty for feed, _ in self.found.working)
        for feed, outputs in self.found.working:
            try:
                results.append(session.run(feed.values))
                ran.append((feed, outputs))
            except ExecutionError as error:
                if aside is None or not (feed.is_empty and may_fail and may_be()):
                    sentence = (
                        f"the original runs at {feed.label} and the rewritten model does not ({error.reason}): {error}"
                    )
                    raise RewrittenFailedError(sentence, error) from error
                aside.append((feed, f"{error.reason}: {error}"))
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
        """Run the original again in another session with another seed: what moves is random.

        On an accelerator a kernel may not repeat itself either, so there what moves is run once more with the same
        seed: what that moves is noise, and only more than that is random.
        """
        if self._random_known:
            return
        self._random_known = True
        again = self._once_more(_OTHER_SEED)
        moved = []
        for tally in self.tallies.values():
            for place, (feed, left) in enumerate(self.found.working):
                right = again[place]
                if right is None:
                    continue
                difference = compare(left[tally.name], right[tally.name])
                if difference.identical:
                    tally.floor.sessions[feed.label] = Noise()
                else:
                    moved.append((tally, feed.label, place, difference))
        if not moved:
            return
        repeated = self._once_more(_SEED) if self.provider != CPU else []
        for tally, label, place, difference in moved:
            same = repeated[place] if repeated else None
            own = noise(self.found.working[place][1], same, tally.name)
            if own is None:
                tally.random[label] = None
                continue
            tally.floor.sessions[label] = own
            if difference.mismatch or difference.error > FACTOR * max(own.most, difference.epsilon):
                tally.random[label] = None

    def _once_more(self, seed: int) -> list[Outputs | None]:
        """The original in another session."""
        with self.session(self.original, JUDGE) as session:
            session.settings = session.settings.but(seed=self.options.seed + seed)
            return self.leniently(session)

    def measure_noise(self) -> None:
        """Noise of the original: the runtime's optimizer on against off, and its inputs moved by one ulp."""
        if self._noise_known:
            return
        self._noise_known = True
        self.measure_optimizer()
        with self.session(self.original, JUDGE) as session:
            self.move_inputs(session, _ULP_SAMPLES)

    def measure_optimizer(self) -> None:
        """The original with the runtime's optimizer on against off, all else as in the class check."""
        with self.session(self.original, JUDGE.but(optimize="all", prepack=True)) as session:
            optimized = self.leniently(session)
        if not any(optimized):
            self.notes.append("the original does not run with the runtime's optimizer on")
        self.know_model()
        for tally in self.tallies.values():
            for (feed, reference), other in zip(self.found.working, optimized, strict=True):
                if (value := noise(reference, other, tally.name)) is not None:
                    tally.floor.optimizer[feed.label] = value

    def know_model(self) -> None:
        """Note in every tally what bounds its noise from above."""
        for tally in self.tallies.values():
            tally.floor.quantized = self.structure.quantized
            tally.floor.coarsest = self.structure.coarsest
            tally.floor.largest = max((scale_of(item[tally.name]) for item in self.references()), default=0.0)

    def measure_tf32(self) -> None:
        """What TF32 alone does: the original as users run it against the same without TF32."""
        if self._tf32_known or not self.set_up.has_tf32:
            return
        self._tf32_known = True
        with_tf32 = self.original_as_users()
        settings = self.set_up.without_tf32()
        with RemoteSession(self.original, settings, worker=self.worker, timeout=self.timeout) as session:
            without = self.leniently(session)
        for tally in self.tallies.values():
            for place, (feed, _) in enumerate(self.found.working):
                reference = without[place]
                if reference is None:
                    continue
                if (value := noise(reference, with_tf32[place], tally.name)) is not None:
                    tally.floor.tf32[feed.label] = value

    def move_inputs(self, session: RemoteSession, samples: int) -> None:
        """Move the inputs by one ulp, some times for each feed, in an open session of the original."""
        for number, (feed, reference) in enumerate(self.found.working):
            for sample in range(samples):
                moved = self.moved(session, feed, 100 * number + sample)
                if moved is None:
                    break
                for tally in self.tallies.values():
                    if (value := noise(reference, moved, tally.name)) is not None:
                        tally.floor.ulp[feed.label] = tally.floor.ulp.get(feed.label, Noise()) | value

    def moved(self, session: RemoteSession, feed: Feed, sample: int) -> Outputs | None:
        """What the original gives where the inputs are one ulp off; None where no input can be, or it fails."""
        switches = [name for name, role in self.structure.roles.items() if role.choices is not None]
        if not has_floats({name: value for name, value in feed.values.items() if name not in switches}):
            return None
        try:
            return session.run(one_ulp(feed.values, self.options.seed + sample, switches))
        except ExecutionError:
            return None
