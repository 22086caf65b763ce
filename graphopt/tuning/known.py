"""Which settings there are: what is misspelt is refused before anything is run, not tried in vain."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from graphopt.errors import UsageError
from graphopt.recipes import MODEL, SESSION_ATTRIBUTES
from graphopt.runtime.option_names import mentions_here, option_names_here
from graphopt.runtime.remote import provider_here
from graphopt.runtime.session import CPU
from graphopt.runtime.worker import shared_worker
from graphopt.tuning.candidates import Change

# Session configuration entries, as the headers of ONNX Runtime name them.
_ENTRY_TEXT = """
ep.context_embed_mode ep.context_enable ep.context_file_path ep.context_model_external_initializers_file_name
ep.context_node_name_prefix ep.enable_weightless ep.nnapi.partitioning_stop_ops ep.share_ep_contexts
ep.stop_share_ep_contexts memory.enable_memory_arena_shrinkage mlas.disable_kleidiai
mlas.enable_gemm_fastmath_arm64_bfloat16 mlas.use_lut_gemm optimization.constant_folding_max_output_size_in_bytes
optimization.disable_specified_optimizers optimization.enable_cast_chain_elimination
optimization.enable_gelu_approximation optimization.minimal_build_optimizations optimization.memory_optimizer_config
optimization.enable_memory_probe_recompute_config
session.allow_released_opsets_only session.collect_node_memory_stats_to_file session.debug_layout_transformation
session.disable_aot_function_inlining session.disable_cpu_ep_fallback session.disable_double_qdq_remover
session.disable_model_compile session.disable_prepacking session.disable_qdq_constant_folding
session.disable_quant_qdq session.dynamic_block_base session.enable_dq_matmulnbits_fusion
session.enable_quant_qdq_cleanup session.fail_on_suboptimal_compiled_model session.force_spinning_stop
session.graph_optimizations_loop_level session.inter_op.allow_spinning session.intra_op.allow_spinning
session.intra_op.spin_backoff_max session.intra_op.spin_duration_us session.inter_op.spin_backoff_max
session.inter_op.spin_duration_us session.intra_op_thread_affinities session.layer_assignment_settings
session.load_model_format session.model_external_initializers_file_folder_path session.node_partition_config_file
session.optimized_model_external_initializers_file_name
session.optimized_model_external_initializers_min_size_in_bytes session.qdq_matmulnbits_accuracy_level
session.qdq_matmulnbits_block_size session.qdqisint8allowed session.record_ep_graph_assignment_info
session.resource_cuda_partitioning_settings session.save_external_prepacked_constant_initializers
session.save_model_format session.set_denormal_as_zero session.strict_shape_type_inference
session.use_device_allocator_for_initializers session.use_env_allocators session.use_memory_mapped_ort_model
session.use_ort_model_bytes_directly session.use_ort_model_bytes_for_initializers session.x64quantprecision
"""
_ENTRIES = tuple(_ENTRY_TEXT.split())
_NEAR = 0.55


def require_known(changes: Iterable[Change], provider: str) -> None:
    """Refuse settings that neither the runtime nor the provider has.

    Args:
        changes: What the user asks to have tried.
        provider: What it shall run on, as it was asked for.

    Raises:
        UsageError: A setting does not exist.
        ExecutionError: The provider does not start.
    """
    names = [name for change in changes for name in change if name != MODEL and name not in SESSION_ATTRIBUTES]
    for name in names:
        if "." in name and name not in _ENTRIES and not shared_worker().call(mentions_here, name):
            raise UsageError(f"--try names '{name}', which is no entry of a session; {_advice(name)}")
    names = [name for name in names if "." not in name]
    if not names:
        return
    runs = shared_worker().call(provider_here, provider)
    options = shared_worker().call(option_names_here, runs)
    if not options and runs != CPU:
        return  # it does not tell of its options and may have some
    for name in names:
        if name not in options:
            advice = _advice(name, options)
            raise UsageError(f"--try names '{name}', which is no setting of a session or of {runs}; {advice}")


def _advice(name: str, options: Sequence[str] = ()) -> str:
    near = difflib.get_close_matches(name, [*SESSION_ATTRIBUTES, *options, *_ENTRIES], 3, _NEAR)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"a session has {', '.join(SESSION_ATTRIBUTES)} and entries such as {_ENTRIES[0]}"
