"""Single faults that a builder could have, put into a finished Program. Each must show in the logits.

A mutation gives back the changed Model, or None where the model has no such part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from llmx.program.attrs import QkvSpec, RopeSpec
from llmx.program.ops import Model, Op, Part, Transform

__all__ = ["MUTATIONS", "Mutation"]

Mutation = Callable[[Model], Model | None]
Edit = Callable[[Op], Op]


def _edited(model: Model, edit: Edit, *kinds: str) -> Model | None:
    main = model.programs["main"]
    ops = tuple(edit(op) if op.kind in kinds else op for op in main.ops)
    return None if ops == main.ops else replace(model, programs={**model.programs, "main": replace(main, ops=ops)})


def _attrs(kind: str, change: Callable[[Any], Any]) -> Mutation:
    """A mutation of the attributes of every op of a kind."""
    return lambda model: _edited(model, lambda op: replace(op, attrs=change(op.attrs)), kind)


def _qkv(change: Callable[[QkvSpec], QkvSpec]) -> Mutation:
    return _attrs("qkv_prep", lambda attrs: replace(attrs, spec=change(attrs.spec)))


def _rope(change: Callable[[RopeSpec], RopeSpec]) -> Mutation:
    return _qkv(lambda s: s if s.rope is None else replace(s, rope=change(s.rope)))


def _scores(change: Callable[[Any], Any]) -> Mutation:
    return _attrs("attention", lambda attrs: replace(attrs, spec=change(attrs.spec)))


def _window(by: int | None) -> Mutation:
    return _scores(lambda s: s if s.window is None else replace(s, window=None if by is None else s.window + by))


def _window_everywhere(model: Model) -> Model | None:
    """The full layers of a model that also has sliding ones slide too."""
    windows = {op.attrs.spec.window for op in model.programs["main"].ops if op.kind == "attention"} - {None}
    return _scores(lambda s: replace(s, window=s.window or min(windows)))(model) if windows else None


def _other_layers_rope(model: Model) -> Model | None:
    """Layers that turn by different bases, or not at all, change places."""
    ropes = dict.fromkeys(op.attrs.spec.rope for op in model.programs["main"].ops if op.kind == "qkv_prep")
    turned = dict(zip(ropes, [*list(ropes)[1:], *list(ropes)[:1]], strict=True))
    if len(ropes) < 2:
        return None
    positions = model.programs["main"].inputs["positions"]

    def edit(op: Op) -> Op:
        spec = replace(op.attrs.spec, rope=turned[op.attrs.spec.rope])
        return replace(op, attrs=replace(op.attrs, spec=spec), ins=(op.ins[0], positions))

    return _edited(model, edit, "qkv_prep")


def _qk_norm_off(model: Model) -> Model | None:
    def edit(op: Op) -> Op:
        spec = replace(op.attrs.spec, qk_norm="none")
        return replace(op, attrs=replace(op.attrs, spec=spec), weights={})

    return _edited(model, edit, "qkv_prep")


def _qk_norm_per_head(model: Model) -> Model | None:
    """A norm of the full width, taken head by head with the first head's weights."""

    def edit(op: Op) -> Op:
        s = op.attrs.spec
        if s.qk_norm != "full":
            return op
        cut = Transform("slice_rows", (0, s.head_dim))
        weights = {role: (replace(p, weight=replace(p.weight, shape=(s.head_dim,), transforms=(cut,))),) for role, (p,) in op.weights.items()}
        return replace(op, attrs=replace(op.attrs, spec=replace(s, qk_norm="head")), weights=weights)

    return _edited(model, edit, "qkv_prep")


def _roles_swapped(model: Model) -> Model | None:
    """Weights of the norms of q and k swapped, where they have one shape."""

    def edit(op: Op) -> Op:
        w = op.weights
        if "q_norm" not in w or w["q_norm"][0].weight.shape != w["k_norm"][0].weight.shape:
            return op
        return replace(op, weights={"q_norm": w["k_norm"], "k_norm": w["q_norm"]})

    return _edited(model, edit, "qkv_prep")


def _feeds(model: Model, kind: str) -> set[int]:
    """Ids of values that ops of a kind read first."""
    return {op.ins[0].id for op in model.programs["main"].ops if op.kind == kind and op.ins[0] is not None}


def _cut(p: Part, start: int, stop: int) -> Part:
    """Rows of a part, and of its bias."""
    cut = Transform("slice_rows", (start, stop))
    weight = replace(p.weight, shape=(stop - start, *p.weight.shape[1:]), transforms=(*p.weight.transforms, cut))
    bias = p.bias and replace(p.bias, shape=(stop - start,), transforms=(*p.bias.transforms, cut))
    return replace(p, weight=weight, bias=bias, rows=stop - start)


def _heads_rolled(index: int) -> Mutation:
    """Heads of q (0), k (1) or v (2) of the qkv product one place on."""

    def mutate(model: Model) -> Model | None:
        specs = {op.ins[0].id: op.attrs.spec for op in model.programs["main"].ops if op.kind == "qkv_prep" and op.ins[0] is not None}

        def edit(op: Op) -> Op:
            s = specs.get(op.outs[0].id)
            if s is None:
                return op
            parts, heads = op.weights["w"], s.kv_heads if index else s.q_heads
            p, size = parts[index], parts[index].rows // heads
            pieces = [_cut(p, (h + 1) % heads * size, ((h + 1) % heads + 1) * size) for h in range(heads)]
            return replace(op, weights={"w": (*parts[:index], *pieces, *parts[index + 1 :])})

        return _edited(model, edit, "linear")

    return mutate


def _gate_and_up_swapped(model: Model) -> Model | None:
    halves = _feeds(model, "act_mul")
    return _edited(model, lambda op: replace(op, weights={"w": op.weights["w"][::-1]}) if op.outs[0].id in halves else op, "linear")


def _biases_off(where: Callable[[str], bool]) -> Mutation:
    def edit(op: Op) -> Op:
        return replace(op, weights={"w": tuple(replace(p, bias=None) if where(p.target) else p for p in op.weights["w"])})

    return lambda model: _edited(model, edit, "linear")


def _norm_bias_off(model: Model) -> Model | None:
    return _edited(model, lambda op: replace(op, weights={"w": (replace(op.weights["w"][0], bias=None),)}), "norm")


def _eps(model: Model) -> Model | None:
    """Of all norms but those of q and k: a hundredth, or 1e-3 for models that write none."""
    return _attrs("norm", lambda a: replace(a, eps=a.eps / 100 if a.eps > 1e-4 else 1e-3))(model)


def _one_offset(model: Model) -> Model | None:
    """The 1 of norms 1 + weight taken away, or put where there is none."""
    return _attrs("norm", lambda a: replace(a, offset=1.0 - a.offset))(model)


def _passed_by(kind: str, which: Callable[[Model, Op], bool] = lambda model, op: True) -> Mutation:
    """Ops of a kind left out: their readers get what they read."""

    def mutate(model: Model) -> Model | None:
        main = model.programs["main"]
        gone = {op.outs[0].id: op.ins[0] for op in main.ops if op.kind == kind and which(model, op)}
        if not gone:
            return None
        kept = []
        for op in main.ops:
            if not op.outs or op.outs[0].id not in gone:
                kept.append(replace(op, ins=tuple(gone.get(v.id, v) if v is not None else None for v in op.ins)))
        return replace(model, programs={**model.programs, "main": replace(main, ops=tuple(kept))})

    return mutate


def _behind(model: Model, op: Op) -> bool:
    """An op whose result is added: one behind attention or an MLP."""
    return any(op.outs[0].id in {v.id for v in add.ins if v is not None} for add in model.programs["main"].ops if add.kind == "add")


def _head_of(model: Model) -> Model | None:
    """A tied head with its halves swapped; an own head replaced by the embedding where it fits."""
    main = model.programs["main"]
    table = next(op for op in main.ops if op.kind == "embed").weights["w"][0].weight

    def edit(op: Op) -> Op:
        (p,) = op.weights["w"] if len(op.weights["w"]) == 1 else (None,)
        if p is None or p.target != "lm_head" or table.shape != p.weight.shape:
            return op
        if p.weight.name != table.name:
            return replace(op, weights={"w": (replace(p, weight=table),)})
        half = p.rows // 2
        return replace(op, weights={"w": (_cut(p, half, p.rows), _cut(p, 0, half))})

    return _edited(model, edit, "linear")


_SIMILAR = {"silu": "quick_gelu", "gelu": "gelu_tanh", "gelu_tanh": "gelu", "relu": "relu2", "relu2": "relu"}


def _act(model: Model) -> Model | None:
    return _edited(model, lambda op: replace(op, attrs=replace(op.attrs, kind=_SIMILAR[op.attrs.kind])), "act", "act_mul")


def _partial_to_whole(model: Model) -> Model | None:
    return _qkv(lambda s: s if s.rope is None or s.rope.scaling == "longrope" else replace(s, rope=replace(s.rope, rotary_dim=s.head_dim)))(model)


def _plain_factor(r: RopeSpec) -> RopeSpec:
    """yarn and longrope without the factor of cosines and sines."""
    return r if r.scaling not in ("yarn", "longrope") else replace(r, params=tuple(sorted({**dict(r.params), "attention_factor": 1.0}.items())))


def _param(name: str, change: Callable[[Any], Any]) -> Mutation:
    """A mutation of one parameter of the rope scaling."""

    def edit(r: RopeSpec) -> RopeSpec:
        params: dict[str, Any] = dict(r.params)
        return r if name not in params else replace(r, params=tuple(sorted({**params, name: change(params[name])}.items())))

    return _rope(edit)


def _factors_swapped(r: RopeSpec) -> RopeSpec:
    p: dict[str, Any] = dict(r.params)
    return r if r.scaling != "longrope" else replace(r, params=tuple(sorted({**p, "short_factor": p["long_factor"], "long_factor": p["short_factor"]}.items())))


MUTATIONS: Mapping[str, Mutation] = {
    "rope base x 1.1": _rope(lambda r: replace(r, theta=r.theta * 1.1)),
    "rope scaling off": _rope(lambda r: replace(r, scaling="none", params=())),
    "rope scaling factor x 1.25": _param("factor", lambda v: v * 1.25),
    "trained length x 1.5": _param("original_max_position_embeddings", lambda v: v * 3 // 2),
    "low_freq_factor x 1.5": _param("low_freq_factor", lambda v: v * 1.5),
    "high_freq_factor x 1.5": _param("high_freq_factor", lambda v: v * 1.5),
    "beta_fast x 2": _param("beta_fast", lambda v: v * 2),
    "beta_slow / 2": _param("beta_slow", lambda v: v / 2),
    "rope amplitude 1": _rope(_plain_factor),
    "short and long factors swapped": _rope(_factors_swapped),
    "rope pairs and halves swapped": _rope(lambda r: replace(r, style="gptj" if r.style == "neox" else "neox")),
    "rope on the whole head": _partial_to_whole,
    "ropes of layers swapped": _other_layers_rope,
    "window + 1": _window(1),
    "window - 1": _window(-1),
    "window off": _window(None),
    "window in every layer": _window_everywhere,
    "scale of scores x 1.02": _scores(lambda s: replace(s, scale=s.scale * 1.02)),
    "scale of scores by head size": _scores(lambda s: replace(s, scale=s.head_dim**-0.5)),
    "cap of scores off": _scores(lambda s: replace(s, soft_cap=None)),
    "cap of logits off": _passed_by("softcap"),
    "q/k norm off": _qk_norm_off,
    "q/k norm behind rope": _qkv(lambda s: s if s.qk_norm == "none" else replace(s, qk_norm_before_rope=False)),
    "q/k norm per head": _qk_norm_per_head,
    "q/k norm weights swapped": _roles_swapped,
    "q/k norm eps / 100": _qkv(lambda s: s if s.qk_norm == "none" else replace(s, norm_eps=s.norm_eps / 100)),
    "q/k norm offset": _qkv(lambda s: s if s.qk_norm == "none" else replace(s, norm_offset=1.0 - s.norm_offset)),
    "Q heads rolled": _heads_rolled(0),
    "K heads rolled": _heads_rolled(1),
    "V heads rolled": _heads_rolled(2),
    "eps": _eps,
    "norm offset": _one_offset,
    "rms and layer norm swapped": _attrs("norm", lambda a: replace(a, kind="rms" if a.kind == "layer" else "layer")),
    "norms behind off": _passed_by("norm", _behind),
    "biases of norms off": _norm_bias_off,
    "biases of q, k, v off": _biases_off(lambda t: "q_proj" in t or "k_proj" in t or "v_proj" in t or "c_attn" in t),
    "bias of o off": _biases_off(lambda t: t.endswith(("o_proj", "out_proj", "attn.c_proj"))),
    "biases of the MLP off": _biases_off(lambda t: "mlp" in t or t.endswith(("fc1", "fc2"))),
    "bias of the head off": _biases_off(lambda t: t == "lm_head"),
    "gate and up swapped": _gate_and_up_swapped,
    "activation": _act,
    "scale of the embedding off": _attrs("embed", lambda a: replace(a, scale=1.0)),
    "scale of what layers add off": _passed_by("scale", _behind),
    "scale of logits off": _passed_by("scale", lambda model, op: not _behind(model, op)),
    "positions one row on": _attrs("pos_embed", lambda a: replace(a, offset=a.offset - 1 if a.offset else 1)),
    "tied head": _head_of,
}
