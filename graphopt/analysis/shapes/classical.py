"""Operators of ai.onnx.ml whose results' types follow from their attributes."""

from __future__ import annotations

from graphopt.analysis.shapes.common import UNKNOWN, Fact, Facts, count_of, dtype_of, one, shape_of, tensor, transfer
from graphopt.ir import Dim, Node, Shape
from graphopt.tensors import DType, Tensor

_ML = "ai.onnx.ml"


@transfer("Scaler", "Normalizer", domain=_ML)
def to_float(node: Node) -> Facts:
    """The shape of the operand in float."""
    return one(DType.FLOAT, shape_of(node.operands[0]))


@transfer("Imputer", "Binarizer", domain=_ML)
def same(node: Node) -> Facts:
    """Like the operand."""
    value = node.operands[0]
    return (UNKNOWN if value is None else Fact(value.type),)


@transfer("LabelEncoder", domain=_ML)
def label_encoder(node: Node) -> Facts:
    """One label for each element, of the type of the values."""
    values = node.attributes.get("values_tensor")
    dtype: DType | None = None
    if isinstance(values, Tensor):
        dtype = values.dtype
    elif "values_strings" in node.attributes:
        dtype = DType.STRING
    elif "values_int64s" in node.attributes:
        dtype = DType.INT64
    elif "values_floats" in node.attributes:
        dtype = DType.FLOAT
    elif "classes_strings" in node.attributes:  # opset 1
        dtype = DType.INT64 if dtype_of(node.operands[0]) is DType.STRING else DType.STRING
    return one(dtype, shape_of(node.operands[0]))


@transfer("CategoryMapper", domain=_ML)
def category_mapper(node: Node) -> Facts:
    """Numbers for strings, or strings for numbers."""
    source = dtype_of(node.operands[0])
    target = None if source is None else DType.INT64 if source is DType.STRING else DType.STRING
    return one(target, shape_of(node.operands[0]))


@transfer("FeatureVectorizer", domain=_ML)
def feature_vectorizer(node: Node) -> Facts:
    """Rows of all operands side by side."""
    rows = shape_of(node.operands[0])
    return one(DType.FLOAT, (rows[0] if rows is not None and len(rows) == 2 else None, None))


@transfer("OneHotEncoder", domain=_ML)
def one_hot_encoder(node: Node) -> Facts:
    """A last axis with one place for each category."""
    dims = shape_of(node.operands[0])
    categories = node.attributes.get("cats_int64s", node.attributes.get("cats_strings"))
    count: Dim = len(categories) if isinstance(categories, tuple) else None
    return one(DType.FLOAT, None if dims is None else (*dims, count))


def _rows(shape: Shape | None) -> Dim:
    """The number of samples: the first dim of a matrix, 1 for a vector."""
    if shape is None or len(shape) > 2:
        return None
    return shape[0] if len(shape) == 2 else 1


def _label_dtype(node: Node, *names: str) -> DType:
    return DType.STRING if any(node.attributes.get(name) for name in names) else DType.INT64


@transfer("TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier", domain=_ML)
def classifier(node: Node) -> Facts:
    """A label and the scores for each sample."""
    rows = _rows(shape_of(node.operands[0]))
    labels = tensor(_label_dtype(node, "classlabels_strings"), (rows,))
    return (labels, tensor(DType.FLOAT, (rows, None)))


@transfer("TreeEnsembleRegressor", "LinearRegressor", "SVMRegressor", domain=_ML)
def regressor(node: Node) -> Facts:
    """The targets for each sample."""
    targets = node.param("n_targets" if node.op_type == "TreeEnsembleRegressor" else "targets")
    count = 1 if node.op_type == "SVMRegressor" else targets if isinstance(targets, int) else None
    return one(DType.FLOAT, (_rows(shape_of(node.operands[0])), count))


@transfer("ArrayFeatureExtractor", domain=_ML)
def array_feature_extractor(node: Node) -> Facts:
    """The columns that the second operand names."""
    dims, picked = shape_of(node.operands[0]), shape_of(node.operands[1])
    if dims is None or len(dims) < 2:
        return one(dtype_of(node.operands[0]), None if dims is None else (1, None))
    return one(dtype_of(node.operands[0]), (*dims[:-1], None if picked is None else count_of(picked)))
