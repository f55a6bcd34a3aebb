"""A GPU for machines without one: tensors on `fake:0`, whose numbers the CPU computes.

It refuses what a GPU refuses, an operation on tensors of both devices, and notes each time that a GPU would
keep the host waiting. It knows nothing of memory, speed or kernels.

Importing this gives the process another device, so tests import it in a process of their own.
"""

import inspect

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

import bapo_lightning

aten = torch.ops.aten
PACKAGE = bapo_lightning.__path__[0]
WAITING = (
    aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default, aten.masked_select.default,
)  # fmt: skip
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
JOINING = (aten.cat.default, aten.stack.default)  # take not even a number from the other device
ROUNDED = {  # by autocast
    **{name: getattr(torch, name) for name in ("mm", "bmm", "addmm", "baddbmm", "matmul")},
    **{name: getattr(torch._C._nn, name) for name in ("linear", "scaled_dot_product_attention")},
}
HOST_OPTIONS = ("pin_memory", "non_blocking")
# Do not ask the device, or give a tensor its size only after it was made there.
CONSTRUCTORS = (torch.tensor, torch.as_tensor, torch.asarray, torch.arange, torch.eye)


class MixedDevices(RuntimeError):
    """What a GPU would not do."""


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self):
        return False


_setup_privateuseone_for_python_backend("fake", backend_module=_Backend())
DEVICE = torch.device("fake:0")
waits: list[str] = []  # the package's function that waited, as `folder/file.py:function`, each time


class FakeTensor(Tensor):
    held: Tensor  # its numbers

    @staticmethod
    def __new__(cls, held):
        like = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, held.size(), **like, device=DEVICE)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, *args, **(kwargs or {}))

    def __reduce_ex__(self, protocol):
        return _again, (self.detach().held, self.requires_grad)

    def tolist(self):
        return self.cpu().tolist()


def _again(held, requires_grad):
    return FakeTensor(held).requires_grad_(requires_grad)


def compute(func, *args, **kwargs):
    """Does one of torch's operations, on the fake device wherever a tensor or `device` says so.

    Raises:
        MixedDevices: a GPU would not do it.
    """
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    own = {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, FakeTensor)}
    others = [tensor for tensor in tensors if not isinstance(tensor, FakeTensor)]
    if func is aten._fused_sdp_choice.default:
        return 0  # the one that is made of other operations
    if func is aten.is_pinned.default:
        return False
    if own and _is_refused(func, args, others):
        shapes = [list(each.shape) for each in tensors]
        raise MixedDevices(f"{func} takes tensors of both devices, of shapes {shapes}")
    given = kwargs.pop("device", None)
    if func is aten.copy_.default:
        is_here = isinstance(args[0], FakeTensor)
    else:
        is_here = bool(own) if given is None else torch.device(given).type == DEVICE.type
        kwargs = {name: value for name, value in kwargs.items() if name not in HOST_OPTIONS}
    if own and (func in WAITING or not is_here or _looks_at_index(func, args, others)):
        _note()
    held, options = tree_map(lambda leaf: leaf.held if isinstance(leaf, FakeTensor) else leaf, (args, kwargs))
    if given is not None:
        options["device"] = "cpu" if is_here else given
    result = func(*held, **options)
    if not is_here:
        return args[0] if func is aten.copy_.default else result
    return tree_map(lambda leaf: _wrapped(leaf, own, others), result)


def _wrapped(result, own, others):
    """Returns a result on the device: an argument itself where it was changed in place."""
    if not isinstance(result, Tensor):
        return result
    if any(result is other for other in others):  # a copy to the device that changed nothing else
        result = result.clone()
    if (known := own.get(id(result))) is None:
        return FakeTensor(result)
    assert known.shape == result.shape, "a wrapper keeps its size: this constructor belongs to CONSTRUCTORS"
    return known


def _is_refused(func, args, others):
    if func is aten.copy_.default or (func in INDEXING and isinstance(args[0], FakeTensor)):
        return False
    return any(tensor.dim() or func in JOINING for tensor in others)


def _looks_at_index(func, args, others):
    """Whether an index has to be counted or copied first: a mask, or one that is on the host."""
    if func not in INDEXING:
        return False
    indices = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, Tensor)]
    return bool(others) or any(index.dtype is torch.bool for index in indices)


def _note():
    frame = inspect.currentframe()
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    if frame is not None:
        waits.append(f"{frame.f_code.co_filename[len(PACKAGE) + 1 :]}:{frame.f_code.co_name}")


class _OnDevice(TorchFunctionMode):
    """Makes the tensors of `CONSTRUCTORS` on the host, and copies them."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        options = dict(kwargs or {})
        if func in CONSTRUCTORS and torch.device(options.get("device") or "cpu").type == DEVICE.type:
            del options["device"]
            return func(*args, **options).to(DEVICE)
        return func(*args, **options)


def in_use():
    """Returns the context in which `CONSTRUCTORS` can make tensors on the device."""
    return _OnDevice()


def _rounding(operation):
    """Returns autocast's form of an operation: floating-point factors in half precision."""

    def rounded(*args, **kwargs):
        dtype = torch.get_autocast_dtype(DEVICE.type)
        given, options = tree_map(
            lambda leaf: leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf,
            (args, kwargs),
        )
        with torch.autocast(DEVICE.type, enabled=False):
            return operation(*given, **options)

    return rounded


_fallback, _rounded = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
_fallback.fallback(compute, "PrivateUse1")
_fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
for _name, _operation in ROUNDED.items():
    _rounded.impl(_name, _rounding(_operation), "AutocastPrivateUse1")
torch.serialization.add_safe_globals([_again])
torch.__future__.set_swap_module_params_on_conversion(True)  # so that tied weights stay tied
torch.inference_mode = lambda mode=True: torch.no_grad()  # has no wrappers
