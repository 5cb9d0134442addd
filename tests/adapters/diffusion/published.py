"""What the state dict of a published improved-diffusion checkpoint holds: each tensor's name and shape.

Written down from the architecture's description (Nichol & Dhariwal 2021, appendix A), apart from the network that is
to load it.
"""

from __future__ import annotations

Shapes = dict[str, tuple[int, ...]]


def shapes(
    channels: int, multipliers: tuple[int, ...], blocks: int, attention: tuple[int, ...], classes: int | None
) -> Shapes:
    """Of a network with learned variance; `attention` by level, 0 being the full resolution."""
    time = 4 * channels
    found = _linear("time_embed.0", channels, time) | _linear("time_embed.2", time, time)
    if classes is not None:
        found["label_emb.weight"] = (classes, time)
    found |= _conv("input_blocks.0.0", 3, channels)
    width, place, kept = channels, 1, [channels]
    for level, multiplier in enumerate(multipliers):
        if level:
            found |= _conv(f"input_blocks.{place}.0.op", width, width)
            place, kept = place + 1, [*kept, width]
        for _ in range(blocks):
            found |= _residual(f"input_blocks.{place}.0", width, multiplier * channels, time)
            width = multiplier * channels
            found |= _attention(f"input_blocks.{place}.1", width) if level in attention else {}
            place, kept = place + 1, [*kept, width]
    found |= _residual("middle_block.0", width, width, time) | _attention("middle_block.1", width)
    found |= _residual("middle_block.2", width, width, time)
    place = 0
    for level, multiplier in reversed(list(enumerate(multipliers))):
        for block in range(blocks + 1):
            name = f"output_blocks.{place}"
            found |= _residual(f"{name}.0", width + kept.pop(), multiplier * channels, time)
            width = multiplier * channels
            found |= _attention(f"{name}.1", width) if level in attention else {}
            if level and block == blocks:
                found |= _conv(f"{name}.{2 if level in attention else 1}.conv", width, width)
            place += 1
    return found | _norm("out.0", width) | _conv("out.2", width, 6)


def _residual(name: str, inputs: int, outputs: int, time: int) -> Shapes:
    found = _norm(f"{name}.in_layers.0", inputs) | _conv(f"{name}.in_layers.2", inputs, outputs)
    found |= _linear(f"{name}.emb_layers.1", time, 2 * outputs)
    found |= _norm(f"{name}.out_layers.0", outputs) | _conv(f"{name}.out_layers.3", outputs, outputs)
    return found if inputs == outputs else found | _conv(f"{name}.skip_connection", inputs, outputs, 1)


def _attention(name: str, width: int) -> Shapes:
    found = _norm(f"{name}.norm", width)
    for part, outputs in (("qkv", 3 * width), ("proj_out", width)):
        found |= {f"{name}.{part}.weight": (outputs, width, 1), f"{name}.{part}.bias": (outputs,)}
    return found


def _conv(name: str, inputs: int, outputs: int, side: int = 3) -> Shapes:
    return {f"{name}.weight": (outputs, inputs, side, side), f"{name}.bias": (outputs,)}


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
