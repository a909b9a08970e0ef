#!/usr/bin/env python3
"""Peer of the launches benchmark: how many operators of PyTorch, eager, a layer takes forward and
backward. Counted are those that compute, as tests/worker/mac counts them; neither views nor
allocations. Prints one JSON line."""
import argparse
import collections
import json

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from decoder import SHAPES, Decoder

NO_LAUNCH = ("empty", "detach", "set_", "resize_", "_unsafe_view")


class Counter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.launches = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        returns = function._schema.returns
        alias = returns[0].alias_info if returns else None
        name = function._schema.name.split("::")[1]
        if not (alias is not None and not alias.is_write) and not name.startswith(NO_LAUNCH):
            self.launches[name] += 1
        return function(*args, **(kwargs or {}))


def launches_of(layers, options):
    shape = list(SHAPES[options.shape])
    shape[0] = layers
    SHAPES["counted"] = tuple(shape)
    model = Decoder("counted", options.time)
    if options.precision == "bf16":
        model = model.to(torch.bfloat16)
    ids = torch.zeros(options.batch, options.time, dtype=torch.long)
    for parameter in model.parameters():  # so that gradients are added, as in accumulation
        parameter.grad = torch.zeros_like(parameter)
    with Counter() as counter:
        model(ids, ids).backward()
    return counter.launches


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="17m")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--time", type=int, default=256)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--label", default="eager")
    options = parser.parse_args()
    layer = launches_of(3, options)
    layer.subtract(launches_of(2, options))
    layer = {name: count for name, count in sorted(layer.items()) if count}
    print(json.dumps({"bench": "launches", "who": "pytorch", "setting": options.label,
                      "precision": options.precision, "launches_of_a_layer": sum(layer.values()),
                      "operators": layer, "version": torch.__version__}))


if __name__ == "__main__":
    main()
