from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from ono.errors import RecipeError
from ono.models.ono_config import ONOConfig
from ono.models.ono_fused import unfusable
from ono.nn import fused_launch
from ono.train.kernels import choose_kernels
from ono.train.prepare import cut, new_operator
from ono.train.recipe import Recipe


def test_the_cpu_keeps_plain_kernels(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path)
    recipe = Recipe.from_mapping(tiny.content(data.path))
    operator = new_operator(recipe, cut(data, recipe).train)
    assert not choose_kernels(operator, recipe, torch.device("cpu"))
    wanted = Recipe.from_mapping(tiny.content(data.path, kernels="fused"))
    message = "train.kernels=fused needs a GPU, and this run is on cpu; use auto or plain"
    with pytest.raises(RecipeError, match=f"^{message}$"):
        choose_kernels(operator, wanted, torch.device("cpu"))


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"width": 96}, "model.width=96"),
        ({"ffn_ratio": 2.0}, "model.ffn_ratio=2.0"),
        ({"lower": {"attention": "softmax"}}, "model.lower.attention=softmax"),
        ({"lower": {"layers": 2}}, "model.lower.layers=2"),
        ({"eigen": {"norm": "ln"}}, "model.eigen.norm=ln"),
        ({"eigen": {"measure": "sum"}}, "model.eigen.measure=sum"),
        ({"eigen": {"heads": 16}}, "model.eigen.heads=16"),
        ({"query": "cross"}, "model.query=cross"),
    ],
)
def test_what_the_kernels_cannot_do_is_named(changes: dict[str, object], option: str) -> None:
    assert unfusable(ONOConfig.model_validate(changes)) == option


def test_the_packaged_recipes_can_be_fused() -> None:
    for name in ("darcy", "ns2d", "airfoil", "pipe", "elasticity", "plasticity"):
        config = Recipe.load(f"{name}/ono").model.config
        assert isinstance(config, ONOConfig)
        assert unfusable(config) is None, name


@pytest.mark.gpu
@pytest.mark.skipif(not fused_launch.available(), reason="needs a CUDA device and Triton")
def test_a_peer_is_refused(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path)
    content = tiny.content(data.path, kernels="fused") | {"model": {"name": "transolver"}}
    recipe = Recipe.from_mapping(content)
    operator = new_operator(recipe, cut(data, recipe).train)
    with pytest.raises(RecipeError, match="fused is for ono, and this model is transolver;"):
        choose_kernels(operator, recipe, torch.device("cuda"))
