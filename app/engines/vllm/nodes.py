"""vLLM's arguments on one of several hosts that are one engine."""

from typing import Any

from app.engines.base import Node
from app.engines.interface import interface_environment
from app.pools.schema import Pool


def node_fields(pool: Pool, node: Node) -> dict[str, Any]:
    """Fields of AsyncEngineArgs, on this host."""
    if pool.data_parallel_size == 1:  # all hosts compute each rank together
        return {
            "nnodes": pool.nodes,
            "node_rank": node.rank,
            "master_addr": node.leader,
            "master_port": node.port,
            "distributed_executor_backend": "mp",
        }
    each = pool.data_parallel_size // pool.nodes
    fields = {
        "data_parallel_size_local": each,
        "data_parallel_address": node.leader,
        "data_parallel_rpc_port": node.port,
    }
    return fields | ({"data_parallel_start_rank": node.rank * each} if node.rank else {})


def node_environment(node: Node) -> dict[str, str]:
    return {"VLLM_HOST_IP": node.address} | interface_environment(node.address)
