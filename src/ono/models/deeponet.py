"""DeepONet (Lu, Jin, Pang, Zhang, Karniadakis; Nature Machine Intelligence 2021).

    û(y) = Σ_p branch_p(f) trunk_p(y) + b

The branch reads the input function f at fixed sensors, the trunk reads a place y (and a time).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import ShapeError, UnsupportedDomain
from ono.models.deeponet_config import DeepONetConfig
from ono.nn.branch import MLP, ConvolutionalBranch
from ono.problem import Problem


class DeepONet(nn.Module):
    """Map a function known at fixed sensors to a function that can be asked for anywhere.

    The sensors are the points of the domain, always as many as in training and in the same order.
    On a grid they tell their values; elsewhere their places too, and without input channels their
    places alone. What a sensor tells is standardised by itself, once `fit_inputs` has seen the
    training data: where sensors differ more from each other than samples do, a branch that does
    without learns next to nothing. Queries need no interpolation.

    >>> from ono.domain import Domain
    >>> problem = Problem.grid((9, 9), in_channels=1, out_channels=1)
    >>> model = DeepONet(DeepONetConfig(width=16, layers=3), problem)
    >>> grid = Domain.grid((9, 9), batch=4)
    >>> model(grid, torch.randn(4, 81, 1), query=Domain.grid((17, 17), batch=4)).shape
    torch.Size([4, 289, 1])
    """

    queries_are_independent = True
    sensor_mean: Tensor
    sensor_scale: Tensor

    def __init__(self, config: DeepONetConfig, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        if problem.points is None:
            raise UnsupportedDomain(
                "deeponet reads its input at fixed sensors, got a cloud whose samples have "
                "different numbers of points; use geo-fno, ono, gnot or transolver"
            )
        out = problem.out_channels
        self.tells_place = problem.kind != "grid" or problem.in_channels == 0
        told = problem.in_channels + problem.dim * self.tells_place
        self.register_buffer("sensor_mean", torch.zeros(problem.points, told))
        self.register_buffer("sensor_scale", torch.ones(problem.points, told))
        nets = out if config.outputs == "independent" else 1
        split_branch = config.outputs in ("split-both", "split-branch")
        split_trunk = config.outputs in ("split-both", "split-trunk")
        p = config.width
        self.branches = nn.ModuleList(
            self._branch(p * out if split_branch else p) for _ in range(nets)
        )
        # The trunk is a basis, and as published ends in its activation.
        hidden = [problem.dim + problem.timed, *[p] * (config.layers - 1)]
        self.trunks = nn.ModuleList(
            MLP([*hidden, p * out if split_trunk else p], ends_active=True) for _ in range(nets)
        )
        self.b = nn.Parameter(torch.zeros(out))
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                nn.init.xavier_normal_(part.weight)
                assert part.bias is not None
                nn.init.zeros_(part.bias)

    def forward(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        query: Domain | None = None,
        time: Float[Tensor, " batch"] | Float[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return the output function at the points of `domain`, or at those of `query`.

        With times of shape [batch time] the branch is evaluated once for all of them and the
        result is [batch time points out].
        """
        terms = self.terms(domain, values, time)
        return self.decode(terms, domain, values, query or domain, time=time)

    def encode(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        time: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch ... out"], Float[Tensor, "batch one_or_out terms"]]:
        """Return the output at the sensors and what queries need."""
        terms = self.terms(domain, values, time)
        return self.decode(terms, domain, values, domain, time=time), terms

    def decode(
        self,
        terms: Float[Tensor, "batch one_or_out terms"],
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        query: Domain,
        *,
        time: Tensor | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Evaluate the sum over p at query points, each independent of the others."""
        y = query.coords
        if time is not None:
            moment = time[..., None, None]
            y = y if time.ndim == 1 else y[:, None].expand(-1, time.shape[1], -1, -1)
            y = torch.cat((y, moment.expand(*y.shape[:-1], 1)), -1)
        # Short as it is, all of it is left in float32 by autocast.
        with torch.autocast(y.device.type, enabled=False):
            basis = torch.cat([trunk(y) for trunk in self.trunks], -1)
            basis = basis.unflatten(-1, (-1, self.config.width))
            # One set of terms, or of basis functions, may serve all outputs: its axis o is one.
            return torch.einsum("bop,b...op->b...o", terms, basis) + self.b

    def terms(
        self, domain: Domain, values: Float[Tensor, "batch points channels"], time: Tensor | None
    ) -> Float[Tensor, "batch one_or_out terms"]:
        """Return branch_p(f), for each output or for all of them."""
        self.problem.refuse_other("deeponet", domain, values, time)
        if domain.points != self.problem.points:
            raise ShapeError(
                f"this deeponet reads its input at {self.problem.points} fixed sensors, got "
                f"{domain.points} points; give the input at those, and ask for others as query"
            )
        f = (self._told(domain, values) - self.sensor_mean) / self.sensor_scale
        if domain.mask is not None:
            f = f * domain.mask[..., None]
        with torch.autocast(f.device.type, enabled=False):
            told = torch.cat([branch(f) for branch in self.branches], -1)
        apart: Tensor = told.unflatten(-1, (-1, self.config.width))
        return apart

    @torch.no_grad()
    def fit_inputs(self, batches: Iterable[tuple[Domain, Tensor]]) -> None:
        """Take the mean and the deviation of what each sensor tells from the training data."""
        count, total, square = 0, torch.zeros(()), torch.zeros(())
        for domain, values in batches:
            f = self._told(domain, values).double()
            count, total, square = count + len(f), total + f.sum(0), square + f.square().sum(0)
        mean = total / count
        scale = (square / count - mean.square()).clamp_min(0).sqrt()
        self.sensor_mean.copy_(mean)
        # A sensor that always tells the same tells nothing: it is left at zero.
        self.sensor_scale.copy_(torch.where(scale > 1e-6 * scale.max(), scale, torch.inf))

    def _told(self, domain: Domain, values: Tensor) -> Float[Tensor, "batch points told"]:
        return torch.cat((domain.coords, values), -1) if self.tells_place else values

    def _branch(self, out: int) -> nn.Module:
        problem, config = self.problem, self.config
        inputs = problem.in_channels + problem.dim * self.tells_place
        if config.branch == "mlp":
            hidden = [config.width] * (config.layers - 1)
            return nn.Sequential(nn.Flatten(), MLP([inputs * (problem.points or 0), *hidden, out]))
        if problem.shape is None:
            raise UnsupportedDomain(
                "the convolutional branch of deeponet needs a grid or a structured mesh, got "
                f'{problem.points} scattered points; set model.branch="mlp"'
            )
        return ConvolutionalBranch(problem.shape, inputs, config.width, out)
