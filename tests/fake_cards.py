"""GPUs that this machine lacks: tensors that claim a device, and refuse to mix with those of
another.

All numbers are kept and computed by the processor. A claim belongs to a tensor's storage, so views
and parameters share it. What mixes claims, hands a claimed tensor to NumPy, or draws on a card by a
generator of the processor is refused.

Seen are the calls of torch from Python, and not what happens within one: kernels, precision,
memory, streams, the backward pass, compiled code. A tensor without dimensions on the processor may
join any card, which few calls refuse.
"""

import threading
from contextlib import contextmanager, nullcontext

import pytest
import torch

# an optimiser loads it, and it looks into functions that are replaced below
import torch._dynamo.variables
from torch import Tensor
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
_MOVERS = {Tensor.to, Tensor.cuda, Tensor.cpu}
_ALIASES = {torch.as_tensor, torch.asarray}  # which may share the storage of what they are given
_TO_NUMPY = {Tensor.numpy, Tensor.__array__}
_SETTERS = {Tensor.data.__set__, Tensor.grad.__set__}
_FREE = {
    Tensor.copy_,
    Tensor.__deepcopy__,
    torch._has_compatible_shallow_copy_type,
    *_SETTERS,
}  # to mix devices
_GETTERS = {
    Tensor.device.__get__: lambda device: device,
    Tensor.is_cuda.__get__: lambda device: device.type == "cuda",
    Tensor.is_cpu.__get__: lambda device: device.type == "cpu",
    Tensor.is_mps.__get__: lambda device: device.type == "mps",
}

REFUSALS = {
    "cuda": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "mps": lambda: RuntimeError("MPS backend out of memory (MPS allocated: 18.00 GB)."),
    "cpu": lambda: RuntimeError(
        "[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"
    ),
    "cublas": lambda: RuntimeError(
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    ),
    "cublas handle": lambda: RuntimeError(
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"
    ),
    "cudnn handle": lambda: RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
    "cudnn host": lambda: RuntimeError(
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"
    ),
    "cudnn get": lambda: RuntimeError(
        "GET was unable to find an engine to execute this computation"
    ),
    "cudnn find": lambda: RuntimeError(
        "FIND was unable to find an engine to execute this computation"
    ),
    "mps buffer": lambda: RuntimeError("Invalid buffer size: 19.45 GiB"),
}
"""How devices and their libraries refuse memory, each in its own words."""


def claim(tensor):
    """The device that a tensor claims to be on."""
    with torch._C.DisableTorchFunction():
        return getattr(tensor.untyped_storage(), "claim", tensor.device)


class Cards(TorchFunctionMode):
    """While it is entered, torch takes the names of cards."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in _GETTERS:
            return _GETTERS[func](claim(args[0]))
        if func in _MOVERS:
            return self._moved(args[0], *_target(func, args, kwargs))
        if func is Tensor.pin_memory:
            return args[0]
        if func is Tensor.grad.__get__:
            found = func(*args)
            return found if found is None else _marked(found, claim(args[0]))
        given = _tensors((args, kwargs))
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            given = self._indexed(*args)
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type != "meta":
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)
        device = _common(func, given) if wanted is None else _named(wanted)
        if device.type not in ("cpu", "meta"):
            self._check(func, device, kwargs)
        found = func(*args, **kwargs)
        if func in _ALIASES and device != CPU:
            found = found.clone()
        shared = {tensor.untyped_storage()._cdata for tensor in given}
        for tensor in _tensors(found):
            if tensor.untyped_storage()._cdata not in shared:
                _marked(tensor, device)
        return found

    def _moved(self, tensor, device, dtype, copy):
        source = claim(tensor)
        device = source if device is None else device
        if "meta" in (device.type, source.type):
            return tensor.to(device, dtype or tensor.dtype)
        found = tensor.to(CPU, dtype or tensor.dtype)
        if found.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
            return _marked(found, device)
        return _marked(found.clone(), device) if copy or source != device else found

    def _indexed(self, tensor, places, value=None):
        """What must be on one device: places may be the processor's, and a whole part takes any
        values.
        """
        many = [place for place in _tensors(places) if place.ndim and claim(place) != CPU]
        return [tensor, *many, *(_tensors(value) if many else [])]

    def _check(self, func, device, kwargs):
        if func in _TO_NUMPY:
            raise TypeError(f"can't convert {device} device type tensor to numpy.")
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != device.type:
            raise RuntimeError(
                f"Expected a '{device}' device type for generator but found '{generator.device}'"
            )


def _named(device):
    found = torch.device(device)
    return torch.device(found.type, 0) if found.type == "cuda" and found.index is None else found


def _target(func, args, kwargs):
    """Where a tensor is to go, as what, and whether as a copy at any rate."""
    if func is Tensor.cpu:
        return CPU, None, False
    if func is Tensor.cuda:
        return _named(torch.device("cuda", *args[1:2])), None, False
    if args[1:] and isinstance(args[1], Tensor):
        return claim(args[1]), args[1].dtype, False
    copy = kwargs.pop("copy", False)
    device, dtype, *_ = torch._C._nn._parse_to(*args[1:], **kwargs)
    return None if device is None else _named(device), dtype, copy


def _tensors(tree):
    """Of what a call of torch takes or returns; torch's own `tree_leaves` takes longer."""
    if isinstance(tree, Tensor):
        return [tree]
    if not isinstance(tree, (tuple, list, dict)):
        return []
    parts = tree.values() if isinstance(tree, dict) else tree
    return [tensor for part in parts for tensor in _tensors(part)]


def _common(func, given):
    """The one device of all tensors of a call, where a number on the processor may join any."""
    if func in _FREE:
        return claim(given[0])
    found = {claim(tensor) for tensor in given if tensor.ndim or claim(tensor) != CPU} or {CPU}
    if len(found) > 1:
        names = " and ".join(sorted(map(str, found)))
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found {names} in {func.__name__}."
        )
    return found.pop()


def _marked(tensor, device):
    if device.type == "mps" and tensor.dtype == torch.float64:
        raise TypeError(
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support "
            "float64."
        )
    if device.type not in ("cpu", "meta"):
        tensor.untyped_storage().claim = device
    return tensor


class _Stream:
    def synchronize(self):
        """Nothing runs beside."""


@contextmanager
def fake_cards(count=2):
    """`count` CUDA devices and an MPS device, in this thread and in all that start from now on."""
    cards, run = Cards(), threading.Thread.run

    def inside(thread):
        with cards:
            run(thread)

    with pytest.MonkeyPatch.context() as patch, cards:
        patch.setattr(threading.Thread, "run", inside)
        patch.setattr(torch.backends.mps, "is_available", lambda: True)
        values = {
            "is_available": True,
            "device_count": count,
            "is_bf16_supported": False,
            "current_stream": _Stream(),
        }
        for name, value in values.items():
            patch.setattr(torch.cuda, name, lambda *_, value=value, **__: value)
        patch.setattr(torch.cuda, "Stream", _Stream)
        for name in ("device", "stream"):
            patch.setattr(torch.cuda, name, nullcontext)
        yield cards
