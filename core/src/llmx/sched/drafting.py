"""Drafting: which decode rows of a step bring drafts, and what became of them.

The model's own draw decides: a draft is accepted when it is the token drawn for the row before it (docs/adr/0006-drafts-by-equality.md). So nothing here
changes an answer; only how many steps it takes. Drafts take the token budget and the blocks that are left when the rest of the step is planned, and
what they took is given back when they are rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llmx.batch import Step
from llmx.draft import Drafter, Proposer
from llmx.draft.depth import DEVICE_KIND, FIRST_RATE, DraftDepth
from llmx.draft.device import DeviceDrafter, DeviceProposer
from llmx.draft.length import Acceptance, StepCost, best_lengths, evidence_kind
from llmx.request import Request, RequestState

if TYPE_CHECKING:
    from llmx.kv.manager import KVManager
    from llmx.sched.step_builder import StepBuilder

__all__ = ["Drafting"]

_LEARN_DEVICE = 0.1  # weight of one more guess of a drafter on the device in the rate that new requests begin with
_EXPLORE = 16  # of so many steps with drafts one takes longer ones
_AT_BEST = 0.98  # when even drafts that are right so often do not pay, none are made


@dataclass(slots=True)
class _Track:
    """One request: its proposer, and how its drafts fare. flying: (kind of evidence, drafts) of its step in flight."""

    proposer: Proposer
    acceptance: Acceptance
    flying: tuple[int, int] | None = None


@dataclass(slots=True)
class _Offer:
    request: Request
    track: _Track
    kind: int
    tokens: list[int]


class Drafting:
    """The drafts of one engine. `enabled` may change between steps; so may `fixed`, with which every guess is taken whole."""

    def __init__(self, drafter: Drafter, num_tokens: int, kv: KVManager) -> None:
        self._drafter, self._num_tokens, self._kv = drafter, num_tokens, kv
        self._tracks: dict[Request, _Track] = {}
        self._fed: dict[Request, int] = {}  # tokens that a drafter on the device has seen, about
        self.cost = StepCost()
        self.depth = DraftDepth(num_tokens, self.cost) if isinstance(drafter, DeviceDrafter) else None  # of a drafter on the device
        self.enabled, self.fixed = True, False
        self.reset()

    def reset(self) -> None:
        """Counters back to zero, and what is known of acceptance forgotten."""
        self._all, self._planned = Acceptance(), 0
        if self.depth is not None:
            self._all.rates[DEVICE_KIND] = FIRST_RATE
        self.num_drafts = self.num_draft_tokens = 0  # requests' steps with drafts, and the drafts
        self.accepted_per_position = [0] * self._num_tokens

    def ready(self, decoding: list[Request]) -> list[Request]:
        """Those that may go ahead of a step in flight: a request waits while its drafts, or the token that its next guess needs, are not known."""
        if not self.enabled:
            return [request for request in decoding if not request.num_pending or not self._is_flying(request)]
        return [request for request in decoding if not request.num_pending or not _guesses(request)]

    def _is_flying(self, request: Request) -> bool:
        track = self._tracks.get(request)
        return track is not None and track.flying is not None

    def add_to(self, build: StepBuilder, room: int) -> None:
        """Give decode rows of the step in the making their drafts, `room` token rows at most; and ask the device for those of the next step."""
        if self.enabled and room > 0:
            self._add_drafts(build, room)
        if self.enabled and self.depth is not None and build.rows:
            self._ask(build, self.depth)

    def _ask(self, build: StepBuilder, depth: DraftDepth) -> None:
        """Let the executor guess at the end of this step; its Program writes pages past the step's own rows."""
        deciding = sum(request.num_computed + q >= len(request.tokens) for request, q in build.rows.items())
        behind = sum(request.num_computed - self._fed.get(request, 0) for request in build.rows)
        build.draft_k = self._num_tokens if self.fixed else depth.choose(deciding, self._rate(build), behind)
        for request, q in build.rows.items() if build.draft_k else ():
            self._fed[request] = request.num_computed + q
            end = min(request.num_computed + q + build.draft_k, self._kv.plan.max_model_len)
            if end > request.num_computed + q and not request.children:  # those that are forked off would share the blocks
                self._kv.extend(request, end, drafts=len(build.drafts.get(request, ())))

    def _rate(self, build: StepBuilder) -> float:
        """How often the device's guesses were right, for the requests of a step."""
        rates = [track.acceptance.rates[DEVICE_KIND] for request in build.rows if (track := self._tracks.get(request)) is not None]
        return sum(rates) / len(rates) if rates else self._all.rates[DEVICE_KIND]

    def _add_drafts(self, build: StepBuilder, room: int) -> None:
        rows = [request for request, q in build.rows.items() if q == 1 and request.num_computed >= request.prompt_len]
        if not rows or not (self.fixed or self.cost.pays(len(rows), _AT_BEST)):
            return
        offers = [offer for request in rows if (offer := self._offer(request)) is not None]
        if not offers:
            return
        chances = [(offer.track.acceptance.rates[offer.kind], len(offer.tokens)) for offer in offers]
        lengths = self._lengths(chances, len(rows))
        for offer, length in zip(offers, lengths, strict=True):
            if not length and self.depth is None:  # now and then one is tried, or nobody would notice that an answer begins to repeat
                offer.track.acceptance.tried(offer.kind)
            count = min(length or 1, room)
            if count and self._kv.extend(offer.request, offer.request.num_computed + 1 + count, drafts=count):
                build.drafts[offer.request] = offer.tokens[:count]
                build.rows[offer.request] += count
                build.num_tokens += count
                offer.track.flying = offer.kind, count
                room -= count

    def _lengths(self, chances: list[tuple[float, int]], rows: int) -> list[int]:
        """How many drafts of each offer to take. Now and then as many as are more likely right than wrong, so that the cost of more rows stays known."""
        if self.fixed:
            return [count for _, count in chances]
        lengths = best_lengths(chances, rows, self.cost)
        if any(lengths):
            self._planned += 1
            if self._planned % _EXPLORE == 0:
                return [count if chance**count > 0.5 else length for length, (chance, count) in zip(lengths, chances, strict=True)]
        return lengths

    def _offer(self, request: Request) -> _Offer | None:
        """A guess for the request, without what cannot be accepted: past its longest answer, or from a stop token on."""
        limit = min(self._num_tokens, request.max_new - request.num_generated - 1)
        if limit <= 0 or request.num_pending or not _guesses(request):
            return None
        track = self._track(request)
        guess = track.proposer.propose(limit)
        if guess is None:
            return None
        tokens, kind = guess[0], evidence_kind(guess[1])
        if not self.fixed and self.depth is None and track.acceptance.passes_over(kind):  # what the device has guessed is paid for
            return None
        for index, token in enumerate(tokens):
            if token in request.stop_ids:
                tokens = tokens[:index]
                break
        return _Offer(request, track, kind, tokens) if tokens else None

    def _track(self, request: Request) -> _Track:
        track = self._tracks.get(request)
        if track is None:
            proposer = self._drafter.begin(request.tokens, private=bool(request.cache_salt))
            track = self._tracks[request] = _Track(proposer, Acceptance(self._all.rates))
        return track

    def observe(self, step: Step, t_us: tuple[int, int, int], *, prefill: bool) -> None:
        """A step took so long."""
        if step.num_tokens and not prefill:
            self.cost.observe(step.num_tokens, float(t_us[0] + t_us[1]))
            if self.depth is not None and step.draft_k:
                self.depth.observe(len(step.samples), t_us[2] / step.draft_k)

    def settle(self, request: Request, taken: int, drafts: np.ndarray | None = None) -> None:
        """A step of the request came back with `taken` tokens, which are in its list: count, and give back what rejected drafts took.

        drafts: i32 [draft_k], what the device guesses to follow; -1 pads.
        """
        if drafts is not None and self.depth is not None:
            proposer = self._track(request).proposer
            if isinstance(proposer, DeviceProposer):
                proposer.receive([token for token in drafts.tolist() if token >= 0])
        track = self._tracks.get(request)
        if track is None or track.flying is None:
            return
        (kind, drafted), track.flying = track.flying, None
        accepted = max(taken - 1, 0)
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        for position in range(accepted):
            self.accepted_per_position[position] += 1
        request.num_drafted += drafted
        request.num_accepted += accepted
        track.acceptance.learn(kind, drafted, accepted)
        if self.depth is None:
            self._all.learn_of_all(kind, drafted, accepted)
        else:  # a wrong guess of a Program is dear: others need not find out for themselves
            self._all.learn(kind, drafted, accepted, _LEARN_DEVICE)
        if request.state is RequestState.RUNNING:
            self._kv.settle_drafts(request, accepted)

    def ended(self, request: Request) -> None:
        """The request has ended, whatever is in flight."""
        self._fed.pop(request, None)
        track = self._tracks.pop(request, None)
        if track is not None:
            track.proposer.close()


def _guesses(request: Request) -> bool:
    """Whether the request may bring drafts: the masks behind them can be known."""
    return request.constraint is None or request.constraint.forks
