"""A model's layers ahead of their use, on a CUDA device: views of its memory, and its stream as the fence."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from layercast import Checkpoint, CheckpointSource, Group
from layercast.checkpoint import write_demo_checkpoint
from layercast.devices import Cuda
from layercast.stream import LayerStream
from tests.support.fake_cuda import FakeCuda, ModelStream


def test_layers_are_right_while_the_models_stream_reads_them(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    write_demo_checkpoint(tmp_path / "model")
    source = CheckpointSource(Checkpoint.open(tmp_path / "model"))
    model = ModelStream(fake_cuda, 1)
    wrong: list[list[int]] = []
    kernels = []
    with Group("ahead", 0, 1, runtime_dir=tmp_path / "run") as group:
        stream = LayerStream(
            source,
            group,
            Cuda(1, driver=fake_cuda.path),
            depth=2,
            # Whatever the model has enqueued by now comes before the copies of later layers.
            fence=lambda: stream.transport.consumed(model.handle) or (lambda: None),
        )
        with stream:
            for layer in [*stream.layers, *stream.layers]:
                with stream.layer(layer) as weights:
                    assert weights.w13.__dlpack_device__() == (2, 1)
                    interface = weights.w13.__cuda_array_interface__
                    assert interface["data"][0] == weights.w13.address and interface["shape"] == weights.w13.shape
                    places = [(view.address, view.nbytes) for view in weights.values()]

                    def look(_: object, layer: int = layer, places: list[tuple[int, int]] = places) -> None:
                        # The fake device's memory is the host's: looked at when the stream comes to it.
                        views = [np.frombuffer(ctypes.string_at(*place), np.uint8) for place in places]
                        views = [view.reshape(source.experts(layer), -1) for view in views]
                        wrong.append(source.wrong_experts(layer, 0, 1, views))

                    kernels.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(look))
                    model.call(kernels[-1])
        model.close()
    assert wrong == [[]] * (2 * len(source.layers))
