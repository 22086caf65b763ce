"""What changed in operators on pictures and in quantization, version by version; see `_opset_handlers`."""

from __future__ import annotations

import numpy as np

from graphopt import DType, Tensor, Value
from passes._opset_handlers import Respell
from passes._opset_spelling import Spelling

# --- pictures

_EMPTY = Tensor.of([], DType.FLOAT)


def resize_11_up(s: Spelling, respell: Respell) -> None:
    """Opset 10 knows one way of choosing pixels: from the corner, the nearest one rounded down when enlarging."""
    scales = s.constant(1)
    is_nearest = s.known("mode", "nearest") == "nearest"
    if is_nearest and (scales is None or float(scales.numpy().min(initial=1.0)) < 1.0):
        s.refuse("it may shrink by the nearest pixel, which opset 10 and the later ones choose differently")
    respell()
    s.attributes["coordinate_transformation_mode"] = "asymmetric"
    if is_nearest:
        s.attributes["nearest_mode"] = "floor"
    s.set_operand(1, _EMPTY)


def resize_11_down(s: Spelling, respell: Respell) -> None:
    """Opset 10 chooses pixels from the corner only, and takes factors, not sizes."""
    mode, scales = s.known("mode", "nearest"), s.constant(2)
    if s.operand(3) is not None or s.known("coordinate_transformation_mode", "half_pixel") != "asymmetric":
        s.refuse("it takes sizes or chooses pixels in a way that Resize of opset 10 does not know")
    if mode == "nearest":
        grows = scales is not None and float(scales.numpy().min(initial=1.0)) >= 1.0
        if s.known("nearest_mode", "round_prefer_floor") != "floor" or not grows:
            s.refuse("it chooses the nearest pixel in a way that Resize of opset 10 does not know")
    elif mode != "linear" or s.known("exclude_outside", 0):
        s.refuse(f"its mode '{mode}' is not known to Resize of opset 10")
    for name in ("coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "extrapolation_value"):
        s.attributes.pop(name, None)
    scale = s.operand(2)
    s.operands[1:] = []
    respell()
    s.set_operand(1, scale)


def resize_13_up(s: Spelling, respell: Respell) -> None:
    """What opset 11 leaves out by an empty tensor, opset 13 leaves out."""
    if s.known("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        s.refuse("its way of choosing pixels, tf_half_pixel_for_nn, is gone from opset 13")
    respell()
    for index in (1, 2):
        tensor = s.constant(index)
        if tensor is not None and tensor.size == 0:
            s.operands[index] = None


def resize_13_down(s: Spelling, respell: Respell) -> None:
    """Opset 11 wants empty tensors where opset 13 leaves out."""
    respell()
    for index in (1, 2):
        if s.operand(index) is None:
            s.set_operand(index, _EMPTY)


def resize_18_down(s: Spelling, respell: Respell) -> None:
    """Before opset 18 factors and sizes are given for every axis."""
    axes = s.take("axes")
    if axes is not None:
        rank, scales, sizes, roi = s.rank(), s.constant(2), s.integers(3), s.constant(1)
        if rank is None or (s.operand(1) is not None and (roi is None or roi.size)):
            s.refuse("it resizes some axes only, and its rank is unknown or it crops")
        places = [axis % rank for axis in axes]
        if s.operand(2) is not None and scales is not None and scales.size:
            factors = np.ones(rank, np.float32)
            factors[places] = scales.numpy()
            s.set_operand(2, Tensor.from_numpy(factors))
        elif s.operand(3) is not None and sizes is not None:
            full = [s.size(axis) for axis in range(rank)]
            for place, size in zip(places, sizes, strict=True):
                full[place] = size
            if None in full:
                s.refuse("it gives the sizes of some axes only, and those of the others are unknown")
            s.set_operand(3, Tensor.of(full, DType.INT64))
        else:
            s.refuse("it resizes some axes only, by factors or sizes that are computed")
    respell()


def resize_19_down(s: Spelling, respell: Respell) -> None:
    """Opset 19 knows one more way of choosing pixels."""
    if s.known("coordinate_transformation_mode") == "half_pixel_symmetric":
        s.refuse("its way of choosing pixels, half_pixel_symmetric, is not known before opset 19")
    respell()


def roi_align_16_up(s: Spelling, respell: Respell) -> None:
    """Before opset 16 whole numbers are the corners of pixels."""
    respell()
    s.attributes["coordinate_transformation_mode"] = "output_half_pixel"


def roi_align_16_down(s: Spelling, respell: Respell) -> None:
    """Before opset 16 whole numbers are the corners of pixels."""
    if s.take("coordinate_transformation_mode", "half_pixel") != "output_half_pixel":
        s.refuse("whole numbers are centres of pixels to it, and corners to RoiAlign before opset 16")
    respell()


_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest"}


def grid_sample_20_up(s: Spelling, respell: Respell) -> None:
    """The modes have other names."""
    s.attributes["mode"] = _GRID_MODES[s.known("mode", "bilinear")]
    respell()


def grid_sample_20_down(s: Spelling, respell: Respell) -> None:
    """The modes have other names, and there are two spatial axes."""
    if s.rank() != 4:
        s.refuse("it may not have two spatial axes, as GridSample before opset 20 has")
    s.attributes["mode"] = {new: old for old, new in _GRID_MODES.items()}[s.known("mode", "linear")]
    respell()


def pool_22(s: Spelling, respell: Respell) -> None:
    """From opset 22 a window that would begin in the padding at the end is not there."""
    if s.known("ceil_mode", 0) and s.known("auto_pad", "NOTSET") == "NOTSET":
        kernel = s.known("kernel_shape")
        count = len(kernel)
        strides, dilations = (s.known(name) or (1,) * count for name in ("strides", "dilations"))
        pads = s.known("pads") or (0,) * (2 * count)
        for axis in range(count):
            reach = dilations[axis] * (kernel[axis] - 1) + 1
            if strides[axis] + pads[axis + count] <= reach:
                continue
            size = s.size(axis + 2)
            if size is None:
                s.refuse("its last window may lie in the padding, which counts before opset 22 only")
            windows = -(-(size + pads[axis] + pads[axis + count] - reach) // strides[axis]) + 1
            if (windows - 1) * strides[axis] >= size + pads[axis]:
                s.refuse("its last window lies in the padding, which counts before opset 22 only")
    respell()


def same_padding_11(s: Spelling, respell: Respell) -> None:
    """Opset 11 swapped which side gets the odd pad."""
    if s.known("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        s.refuse("it pads by itself, and opset 11 changed which side gets the odd pad")
    respell()


def dft_20_up(s: Spelling, respell: Respell) -> None:
    """The axis becomes an operand, with another default."""
    axis = int(s.take("axis", 1))
    respell()
    s.set_operand(2, Tensor.of(axis, DType.INT64))


def dft_20_down(s: Spelling, respell: Respell) -> None:
    """The axis is an attribute, with another default."""
    axis, rank = -2, s.rank()
    if s.operand(2) is not None:
        given = s.integers(2)
        if given is None:
            s.refuse("its axis is computed, and an attribute before opset 20")
        axis = given[0]
    if rank is None:
        s.refuse("its rank is unknown, and its axis may count from the back")
    del s.operands[2:]
    respell()
    s.attributes["axis"] = axis % rank


# --- quantization

_NO_NEGATIVE_ZERO = (18, 20)  # float8e4m3fnuz and float8e5m2fnuz


def cast_24(s: Spelling, respell: Respell) -> None:
    """From opset 24 an infinity becomes the largest number in the float8 types without a negative zero."""
    to = s.known("to") or s.node.results[0].dtype or 0
    if int(to) in _NO_NEGATIVE_ZERO and s.known("saturate", 1):
        s.refuse("opset 24 changed what infinities become in float8 types without a negative zero")
    respell()


def per_tensor_13_down(s: Spelling, respell: Respell) -> None:
    """Before opset 13 there is one scale for the whole tensor."""
    if s.rank(1) != 0:
        s.refuse("it has a scale for each channel, or may, and one is all there is before opset 13")
    s.attributes.pop("axis", None)
    respell()


def quantize_21_down(s: Spelling, respell: Respell) -> None:
    """Before opset 21 the zero point alone says the type."""
    dtype = s.take("output_dtype", 0)
    respell()
    if not dtype or s.operand(2) is not None:
        return
    scale = s.operand(1)
    shape = scale.shape if isinstance(scale, (Value, Tensor)) else None
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        s.refuse("its type is said by an attribute, and the shape of the scale, which a zero point takes, is unknown")
    kind = DType(int(dtype))
    s.set_operand(2, Tensor.from_numpy(np.zeros(shape, kind.numpy), kind))


def dequantize_23_down(s: Spelling, respell: Respell) -> None:
    """Before opset 23 the result has the type of the scale."""
    if int(s.take("output_dtype", 0) or 0) not in (0, int(s.dtype(1) or 0)):
        s.refuse("its result has another type than its scale, which is so from opset 23 on only")
    respell()


def mod_28_down(s: Spelling, respell: Respell) -> None:
    """Before opset 28 only integers are divided towards minus infinity."""
    dtype = s.dtype()
    if not s.known("fmod", 0) and (dtype is None or dtype.is_float):
        s.refuse("it rounds the quotient of floats down, which Mod before opset 28 does not")
    respell()
