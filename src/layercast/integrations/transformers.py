"""Hugging Face models whose experts come from a stream: they are never materialised as a whole.

A model's experts modules are dispatched by transformers' own registry of experts implementations; "layercast" is one
of them. Attention, routers, norms and shared experts are the model's own and stay on its device; with several ranks
each holds all of them, and a slice of every expert.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open

from layercast import _native
from layercast.arena import Arena
from layercast.checkpoint import Checkpoint
from layercast.checkpoint.index import TensorIndex
from layercast.devices import Cuda
from layercast.errors import ConfigError, GroupError
from layercast.group import Group
from layercast.integrations import FORMATS
from layercast.integrations.torch import TensorParallel, fence, moe_forward
from layercast.sources import LayerSource
from layercast.stream import LayerStream

try:
    import transformers
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
except ImportError as missing:
    raise ImportError(
        "layercast.integrations.transformers needs transformers 5: pip install 'layercast[transformers]'"
    ) from missing

_NAME = "layercast"
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
#: Parameters of an experts module, as transformers 5 calls them.
_PARAMETERS = ("gate_up_proj", "down_proj")


@dataclass
class _Source:
    """What an experts module finds its weights by."""

    stream: LayerStream
    layer: int
    parallel: TensorParallel
    on_use: list[Any]

    def fail(self, error: BaseException) -> None:
        """A rank that leaves a layer half way must not meet the others' later sums: all of them fail.

        Raises the group's cause instead where another rank was first: what failed here is its consequence.
        """
        transport = self.stream.transport
        why = f"the model failed in layer {self.layer}: {type(error).__name__}: {error}"
        first = not transport.closed and not transport.failed
        if first:
            transport.fail(f"rank {transport.rank}: {why}", self.layer)
        self.parallel.give_up(why)
        if not first and not transport.closed:
            transport.overdue(0, 0.0)  # raises the cause


def _experts_forward(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    source = getattr(module, "_layercast", None)
    if source is None:
        raise ConfigError(
            "this model's experts are to come from a stream, but none is attached",
            hint="layercast.integrations.transformers.attach(model, checkpoint)",
        )
    source = cast(_Source, source)
    try:
        with source.stream.layer(source.layer) as weights:
            for call in source.on_use:
                call(weights)
            return moe_forward(
                hidden_states, top_k_index, top_k_weights, weights, gate=module._apply_gate, group=source.parallel
            )
    except GroupError:
        raise  # every rank's, at this layer
    except BaseException as error:
        if source.parallel.ranks > 1:
            source.fail(error)
        raise


ALL_EXPERTS_FUNCTIONS.register(_NAME, _experts_forward)


def _experts_modules(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules that transformers dispatches by `experts_implementation`."""
    for name, module in model.named_modules():
        if hasattr(type(module), "_apply_gate") and hasattr(module, "is_concatenated"):
            yield name, module


def _modules_by_layer(model: torch.nn.Module) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for name, module in _experts_modules(model):
        hit = _LAYER.search(name)
        if hit is None or int(hit[1]) in found:
            raise ConfigError(f"experts module {name}: its layer cannot be told from its name")
        if not module.is_concatenated or module.is_transposed or module.has_bias or not module.has_gate:
            raise ConfigError(
                f"experts module {name} ({type(module).__name__}): gate and up interleaved, transposed or with biases,"
                " which is not supported here"
            )
        found[int(hit[1])] = module
    if not found:
        raise ConfigError(
            f"{type(model).__name__} has no experts modules that transformers dispatches",
            hint="mixture-of-experts models of transformers 5 only",
        )
    return found


def _drop_parameters(module: Any, name: str) -> None:
    for parameter in _PARAMETERS:
        value = getattr(module, parameter, None)
        if value is None:
            continue
        if value.device.type != "meta":
            raise ConfigError(
                f"{name}.{parameter} is materialised already ({value.numel() * value.element_size():,} bytes)",
                hint="use layercast.integrations.transformers.load, or make the model on the meta device",
            )
        delattr(module, parameter)
    module._is_hf_initialized = True  # there is nothing to initialise


class Attached:
    """A model whose experts are streamed. Attributes: `model`, `stream`, `parallel`, `on_use`.

    `on_use`: functions that are called with each layer's `LayerWeights` when its experts run.
    """

    def __init__(
        self,
        model: Any,
        stream: LayerStream,
        parallel: TensorParallel,
        group: Group | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.model, self.stream, self.parallel = model, stream, parallel
        self.on_use: list[Any] = []
        self._group, self._checkpoint = group, checkpoint

    def close(self) -> None:
        """End the stream; the model cannot run any more. Collective where there are several ranks. Idempotent."""
        self.stream.close()
        self.parallel.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
        if self._group is not None:
            self._group.close()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def attach(
    model: Any,
    source: Checkpoint | LayerSource,
    *,
    group: Group | None = None,
    device: str | Cuda | _native.Device = "host",
    depth: int = 2,
    arena: Arena | None = None,
    **options: Any,
) -> Attached:
    """Let the experts of `model` come from `source`, `depth` layers on the device at a time.

    `model`: of a family whose experts modules transformers dispatches, gate and up concatenated (Qwen3-MoE,
    DeepSeek-V3, GLM-4-MoE, ...), its experts on the meta device: `load` makes such a model. `group`: with several
    ranks every rank attaches a model of its own; None: this process alone. `device`, `arena` and further options are
    `LayerStream`'s. Raises ConfigError where model and source have other layers, sizes or numbers of experts.
    """
    alone = Group.alone() if group is None else None
    group = group or alone
    assert group is not None
    try:
        where = next(model.parameters()).device
        if where.type == "cuda":
            options.setdefault("fence", fence)
        stream = LayerStream(source, group, device, depth, arena=arena, **options)
        try:
            modules = _modules_by_layer(model)
            _refuse_second(modules)
            _compare(modules, stream)
            _compare_devices(stream, where)
            for name, module in _experts_modules(model):
                _drop_parameters(module, name)
            parallel = TensorParallel.over(group, where)
        except BaseException:
            stream.close()
            raise
    except BaseException:
        if alone is not None:
            alone.close()
        raise
    attached = Attached(model, stream, parallel, alone, None)
    for layer, module in modules.items():
        # Past nn.Module's own __setattr__: it is no submodule, and not to be saved or moved.
        object.__setattr__(module, "_layercast", _Source(stream, layer, parallel, attached.on_use))
    model.set_experts_implementation(_NAME)
    return attached


def _compare(modules: dict[int, Any], stream: LayerStream) -> None:
    if stream.layout.format not in FORMATS:
        raise ConfigError(
            f"{stream.source.name}: experts in {stream.layout.format} cannot be computed with here",
            hint=f"formats: {', '.join(FORMATS)}",
        )
    if sorted(modules) != sorted(stream.layers):
        raise ConfigError(
            f"the model has experts in layers {sorted(modules)}, {stream.source.name} in {sorted(stream.layers)}"
        )
    for layer, module in modules.items():
        theirs = (module.num_experts, module.hidden_dim, module.intermediate_dim)
        ours = (stream.source.experts(layer), stream.layout.hidden, stream.layout.intermediate)
        if theirs != ours:
            raise ConfigError(
                f"layer {layer}: the model has (experts, H, I) = {theirs}, {stream.source.name} has {ours}"
            )


def _refuse_second(modules: dict[int, Any]) -> None:
    for module in modules.values():
        there = getattr(module, "_layercast", None)
        if there is not None and not there.stream.closed:
            raise ConfigError("this model has a stream already", hint="close what attach or load returned first")


def _compare_devices(stream: LayerStream, where: torch.device) -> None:
    theirs = "cpu" if stream.transport.device.readable else "cuda"
    if where.type != theirs:
        raise ConfigError(
            f"the model is on {where}, its experts would be on {stream.transport.device.describe()}",
            hint="device='cuda' and torch_device='cuda', or neither",
        )


def load(
    path: str | os.PathLike[str],
    *,
    group: Group | None = None,
    device: str | Cuda | _native.Device = "host",
    depth: int = 2,
    dtype: torch.dtype = torch.bfloat16,
    torch_device: str | torch.device = "cpu",
    **options: Any,
) -> Attached:
    """The checkpoint's model without its experts, as transformers loads it, and `attach`.

    All but the routed experts is loaded onto `torch_device` in `dtype`; what is stored as block FP8 is dequantised.
    Further arguments are `attach`'s. Raises ConfigError and CheckpointError, and what transformers raises.
    """
    checkpoint = Checkpoint.open(path)
    try:
        model = model_without_experts(path, dtype=dtype, torch_device=torch_device)
        attached = attach(model, checkpoint, group=group, device=device, depth=depth, **options)
    except BaseException:
        checkpoint.close()
        raise
    attached._checkpoint = checkpoint
    return attached


def model_without_experts(
    path: str | os.PathLike[str], *, dtype: torch.dtype = torch.bfloat16, torch_device: str | torch.device = "cpu"
) -> Any:
    """The causal language model at `path`; its experts modules have no parameters and take no memory."""
    config = read_config(path)
    try:
        found: Any = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError:
        raise ConfigError(
            f"{path}: transformers {transformers.__version__} has no causal language model for {config.model_type!r}"
        ) from None

    class Streamed(found):  # type: ignore[misc]
        """The family's class, but for its experts' parameters."""

        def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
            raise ConfigError("this model's experts are not its own, so it cannot be saved", hint="copy the checkpoint")

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            for name, module in _experts_modules(self):
                _drop_parameters(module, name)

    Streamed.__name__, Streamed.__qualname__, Streamed.__module__ = found.__name__, found.__qualname__, found.__module__
    with contextlib.ExitStack() as files:
        model = Streamed.from_pretrained(
            None,
            config=config,
            state_dict=_all_but_experts(Path(path), files),
            dtype=dtype,
            device_map={"": str(torch_device)},
            experts_implementation=_NAME,
            **as_plain_numbers(config),
        )
    return model.eval()


def as_plain_numbers(config: Any) -> dict[str, Any]:
    """What `from_pretrained` is to be told so that block FP8 is dequantised, on every machine."""
    quantization = getattr(config, "quantization_config", None) or {}
    if quantization.get("quant_method") != "fp8":
        return {}
    return {"quantization_config": transformers.FineGrainedFP8Config(dequantize=True)}


def read_config(path: str | os.PathLike[str]) -> Any:
    """The model's configuration. ConfigError where transformers does not know it."""
    try:
        return transformers.AutoConfig.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{path}: transformers {transformers.__version__} cannot read it: {text}") from error


def _all_but_experts(path: Path, files: contextlib.ExitStack) -> dict[str, torch.Tensor]:
    """Every other tensor, mapped, by name; each from the file that the index names."""
    index = TensorIndex.open(path)
    opened: dict[Path, Any] = {}
    found: dict[str, torch.Tensor] = {}
    for name in index:
        if ".experts." in name:
            continue
        file = index.file_of(name).path
        if file not in opened:
            opened[file] = files.enter_context(safe_open(file, framework="pt"))
        found[name] = opened[file].get_tensor(name)
    return found
