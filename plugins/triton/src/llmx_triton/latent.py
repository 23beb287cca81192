"""mla: latent attention in its absorbed form. A page has one row [c_kv, k_pe] per token; q goes through the key half of kv_b first, so that all heads read
that row as their key and its c_kv as their value, and what comes out goes through the value half."""


import torch

from llmx.executor import Limits
from llmx.executor.torch.kernel import Call, Spec
from llmx.executor.torch.kernels.attention import rotate
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights
from llmx.program.positions import rope_table
from llmx.record import record
from llmx_triton.attention import paged_attention
from llmx_triton.kv_write import write_rows

__all__ = ["Latent"]


@record
class _Packed:
    """keys [H, nope, L] and values [H, V, L]: the halves of kv_b. tables: the cosines and sines of rope."""

    keys: torch.Tensor
    values: torch.Tensor
    tables: dict[str, torch.Tensor]


class Latent:
    """The op mla."""

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> _Packed:
        """kv_b cut into the halves of each head, float32."""
        assert not isinstance(spec, tuple)
        s, length = spec.attrs.spec, weights.max_model_len
        keys, values = weights.dense("kv_b.0").unflatten(0, (s.q_heads, -1)).split((s.qk_nope, s.v_head_dim), 1)
        return _Packed(keys, values, {"rope": weights.constant(("rope", s.rope, length), lambda: rope_table(s.rope, length))})

    def workspace(self, spec: Spec, limits: Limits) -> int:
        """None."""
        return 0

    def bind(self, spec: Spec, packed: _Packed, states: tuple[StatePages, ...]) -> Call:
        """The call with its pages."""
        assert not isinstance(spec, tuple)
        s, state = spec.attrs.spec, states[0]
        pages = state.tensors[0].unsqueeze(2)  # one kv head
        latents = pages[..., : s.kv_lora]

        def call(rows: Rows, q: torch.Tensor, c_kv: torch.Tensor, k_pe: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            layout = rows.layout
            turned = rotate(k_pe[:, None], positions, s.rope, packed.tables)[:, 0]
            write_rows(torch.cat([c_kv, turned], -1), state.tensors[0], layout.places[state.group])
            plain, pe = q.unflatten(-1, (s.q_heads, -1)).split((s.qk_nope, s.qk_rope), -1)
            absorbed = torch.einsum("thd,hdl->thl", plain, packed.keys)
            asked = torch.cat([absorbed, rotate(pe, positions, s.rope, packed.tables)], -1)
            found = paged_attention(asked, pages, latents, layout.tables[state.group], layout.starts, layout.lengths, None, s.scale, True, 0, 0, 0.0)
            return torch.einsum("thl,hvl->thv", found.unflatten(-1, (s.q_heads, -1)), packed.values).flatten(1)

        return call
