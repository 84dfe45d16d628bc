"""Evaluate ONO on more points than fit: layer by layer, chunk by chunk.

With constant statistics a layer knows of all points only a summary of its lower attention and its
k×d latent matrix. One pass over the chunks gathers both for a layer, so L layers take L + 1 passes.
The flows g and h of all points are kept between the passes where the inputs lie, or computed again
in every pass from the inputs, with memory for a single chunk.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import NotCalibrated, UnsupportedDomain
from ono.models.ono import ONO, Seen
from ono.nn.attention import Summary
from ono.nn.blocks import NNBlock
from ono.nn.heads import block_diagonal
from ono.nn.measure import Measure
from ono.nn.orthogonal_attention import OrthogonalAttention, Told
from ono.nn.running_summary import STREAMED, RunningSummary
from ono.nn.whitening import SampleWhitening, second_moments


def can_stream(model: nn.Module) -> bool:
    """Say whether a model can be evaluated in chunks of its input points."""
    return (
        isinstance(model, ONO)
        and model.config.query != "cross"
        and all(
            isinstance(block.attention, STREAMED)
            for block in model.lower
            if isinstance(block, NNBlock)
        )
    )


@torch.no_grad()
def stream(
    model: ONO,
    domain: Domain,
    values: Float[Tensor, "batch points channels"],
    *,
    time: Tensor | None = None,
    chunk: int = 1 << 16,
    keep: bool = True,
) -> Float[Tensor, "batch ... out"]:
    """Return what `model(domain, values, time=time)` returns, computed in chunks of points.

    The inputs may lie in host memory while the model is on a GPU: then the flows are kept there
    too. Without `keep` they are not kept at all; that takes about L/2 times as long.
    """
    if model.training:
        raise NotCalibrated("points are streamed with constant statistics; call model.eval() first")
    if model.config.query == "cross":
        raise UnsupportedDomain(
            'a model with query="cross" needs all points at once and cannot take them in chunks; '
            "train with model.query=linear"
        )
    model.problem.refuse_other("ono", domain, values, time)
    if time is not None and time.ndim == 2 and model.config.time.to == "g":
        moments = time.unbind(1)
        parts = [
            stream(model, domain, values, time=moment, chunk=chunk, keep=keep) for moment in moments
        ]
        return torch.stack(parts, 1)
    flows = _Flows(model, domain, values, time, chunk, keep=keep)
    gathered = _Summary(next(iter(model.lower)))
    for place in range(len(flows)):
        gathered.add(flows.at(place)[0], flows.measure(place))
    after = [*model.lower, None][1:]
    for (lower, upper), following in zip(model._blocks(), after, strict=True):
        summary = gathered.result()
        gathered, latent = _Summary(following), _Latent(upper.attention)
        for place in range(len(flows)):
            g, h = flows.at(place)
            g, measure = lower.read(g, summary), flows.measure(place)
            latent.add(g, upper.norm_attention(h), measure)
            gathered.add(g, measure)
            flows.put(place, g, h)
        flows.seen.append((summary, latent.told()))
    outputs = [model.head(flows.at(place)[1]).to(values.device) for place in range(len(flows))]
    return torch.cat(outputs, -2)


class _Flows:
    """Both flows at all points, after the layers whose states are in `seen`."""

    def __init__(
        self,
        model: ONO,
        domain: Domain,
        values: Tensor,
        time: Tensor | None,
        chunk: int,
        *,
        keep: bool,
    ) -> None:
        self.model, self.time = model, time
        self.seen: Seen = []
        self.home = domain.coords.device
        self.device = next(model.parameters()).device
        self.places = model._place(domain).split(chunk, 1)
        if model.surroundings is not None:  # which need all nodes, but little memory for each
            known = model.with_surroundings(domain.to(self.device), values.to(self.device))
            values = known.to(self.home)
        self.values = values.split(chunk, 1)
        whole = model._measure(domain)
        weights = whole.weights
        if weights is None:
            weights = domain.coords.new_full(domain.coords.shape[:2], 1 / domain.points)
        self.weights, self.total = weights.split(chunk, 1), whole.total
        self.kept: list[tuple[Tensor, Tensor] | None] | None = None
        if keep:
            self.kept = [None] * len(self)

    def __len__(self) -> int:
        return len(self.values)

    def measure(self, place: int) -> Measure:
        """Return how much each point of a chunk counts among all points."""
        total = self.total if isinstance(self.total, float) else self.total.to(self.device)
        return Measure(self.weights[place].to(self.device), total)

    def at(self, place: int) -> tuple[Tensor, Tensor]:
        """Return g and h of a chunk."""
        layers = list(zip(self.model._blocks(), self.seen, strict=False))
        if self.kept is not None and (flows := self.kept[place]) is not None:
            g, h = (x.to(self.device) for x in flows)
            (_, upper), (_, told) = layers[-1]
            return g, upper.read(g, h, told)
        waves = self.model.octaves(self.places[place].to(self.device))
        inputs = torch.cat((waves, self.values[place].to(self.device)), -1)
        g, h = self.model.lift(inputs, self.time)
        for (lower, upper), (summary, told) in layers:
            g = lower.read(g, summary)
            h = upper.read(g, h, told)
        return g, h

    def put(self, place: int, g: Tensor, h: Tensor) -> None:
        """Keep g after the present layer, and h before it."""
        if self.kept is not None:
            self.kept[place] = (g.to(self.home), h.to(self.home))


class _Summary:
    """What an NN block reads of all points, gathered from chunks; other blocks read nothing."""

    def __init__(self, block: nn.Module | None) -> None:
        self.block = block if isinstance(block, NNBlock) else None
        self.running = None if self.block is None else RunningSummary(self.block.attention)

    def add(self, g: Tensor, measure: Measure) -> None:
        if self.block is not None and self.running is not None:
            self.running.add(self.block.norm_attention(g), measure)

    def result(self) -> Summary:
        return () if self.running is None else self.running.result()


class _Latent:
    """The latent matrix of a layer, gathered from chunks."""

    def __init__(self, attention: OrthogonalAttention) -> None:
        self.attention = attention
        self.moment: Tensor | None = None
        self.covariance: Tensor | None = None
        self.mixing = self.statistics = torch.empty(0)

    def add(self, g: Tensor, h: Tensor, measure: Measure) -> None:
        attention, norm = self.attention, self.attention.norm
        if isinstance(norm, SampleWhitening):
            features = attention.w_q(g)
            own = second_moments(features, norm.options.heads, measure)
            self.covariance = own if self.covariance is None else self.covariance + own
        else:  # the statistics of these points play no part
            features, self.mixing, self.statistics = attention.basis(g, measure)
        if h.ndim > features.ndim:
            features = features[:, None]
        moment = attention.moment(features, h, measure)
        self.moment = moment if self.moment is None else self.moment + moment

    def told(self) -> Told:
        """Return what points read."""
        norm, mixing, statistics = self.attention.norm, self.mixing, self.statistics
        assert self.moment is not None
        if isinstance(norm, SampleWhitening) and self.covariance is not None:
            statistics = norm.factor(self.covariance)
            mixing = block_diagonal(norm.kernel(self.attention.mu, statistics))
            if self.moment.ndim > mixing.ndim:
                mixing = mixing[:, None]
        return (mixing @ self.moment.double()).to(self.moment.dtype), statistics
