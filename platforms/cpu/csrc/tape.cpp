// Runs the ops of a tape. Each op kind has one place here; the arithmetic is in the kernel families.
#include "tape.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace llmx {

Engine::Engine(Isa isa, int threads)
    : isa_(isa),
      pool_(threads),
      linear_(linear_kernels(isa)),
      rowwise_(row_kernels(isa)),
      attention_(attn_kernels(isa)),
      sampler_(sample_kernels(isa)),
      lora_(lora_kernels(isa)),
      thread_scratch_(static_cast<size_t>(pool_.threads())),
      tile_scratch_(static_cast<size_t>(pool_.threads())) {}

// ------------------------------------------------------------------------------------------------------------ loading

int Engine::add_weight(WeightType from, WeightType to, bool int8, int64_t rows, int64_t cols, const uint8_t* data, int64_t row_bytes) {
  PackedWeight weight;
  weight.type = to;
  weight.act = act_type(to, int8);
  if (weight.act == ActType::bf16 && !has_pair_products(isa_)) weight.act = ActType::f32;  // no dot product of pairs: nothing is won by rounding
  weight.rows = rows;
  weight.cols = cols;
  weight.panels = (rows + kPanel - 1) / kPanel;
  weight.panel_bytes = panel_bytes(to, cols);
  uint8_t* target = weights_memory_.take(static_cast<size_t>(weight.panels * weight.panel_bytes));
  pool_.wake();
  pool_.over(weight.panels, 4, [&](int64_t begin, int64_t end, int) { pack_panels(from, to, rows, cols, data, row_bytes, target, begin, end); });
  weight.data = target;
  weights_.push_back(weight);
  return static_cast<int>(weights_.size()) - 1;
}

int Engine::add_vector(const float* data, int64_t n) {
  uint8_t* target = weights_memory_.take(static_cast<size_t>(n) * 4);
  std::memcpy(target, data, static_cast<size_t>(n) * 4);
  vectors_.push_back(reinterpret_cast<const float*>(target));
  return static_cast<int>(vectors_.size()) - 1;
}

const char* Engine::set_tape(const LlmxTape& tape) {
  shape_ = tape;
  ops_.assign(tape.ops, tape.ops + tape.n_ops);
  values_.assign(tape.values, tape.values + tape.n_values);
  parts_.assign(tape.parts, tape.parts + tape.n_parts);
  for (const LlmxPart& part : parts_) {
    const int weights = static_cast<int>(weights_.size()), vectors = static_cast<int>(vectors_.size());
    if (part.weight < 0 || part.weight >= weights || part.bias >= vectors) return "a part names a weight that was not added";
  }
  for (const LlmxOp& op : ops_) {
    for (int i = 0; i < 4; ++i) {
      if (op.in[i] >= tape.n_values || op.out[i] >= tape.n_values) return "an op names a value outside the table";
    }
  }
  std::vector<bool> attended(static_cast<size_t>(tape.n_values), false);
  for (LlmxOp& op : ops_) {
    if (op.kind == LLMX_ATTENTION && op.out[0] >= 0) attended[static_cast<size_t>(op.out[0])] = true;
    if (op.kind == LLMX_LINEAR) op.i[7] = op.in[0] >= 0 && attended[static_cast<size_t>(op.in[0])];
  }
  arena_ = std::make_unique<Pages>(static_cast<size_t>(tape.arena_floats) * 4);
  const int64_t rows = std::max<int64_t>(tape.max_tokens, kHeadRows) * std::max(1, tape.act_mult);
  for (const ActType type : {ActType::f32, ActType::bf16, ActType::i8, ActType::i16}) {
    const size_t bytes = static_cast<size_t>(act_bytes(type, rows, tape.act_width + kBlock));
    acts_[static_cast<int>(type)] = std::make_unique<Pages>(bytes);
    mid_acts_[static_cast<int>(type)] = std::make_unique<Pages>(bytes);
  }
  for (auto& scratch : tile_scratch_) scratch.resize(static_cast<size_t>(kTileRows * std::max<int64_t>(tape.act_width, kMlpTiles * (2 + kMlpGroups) * kBlock)));
  ids_.resize(tape.max_tokens);
  token_types_.assign(static_cast<size_t>(tape.max_tokens), 0);
  positions_.resize(tape.max_tokens);
  token_fine_.resize(tape.max_tokens);
  token_lora_.assign(static_cast<size_t>(tape.max_tokens), -1);
  adapters_.clear();
  head_fine_.resize(kHeadRows);
  plan_reads();
  return nullptr;
}

const char* Engine::allocate(const LlmxGroup* groups, int n_groups, const LlmxState* states, int n_states) {
  groups_.assign(groups, groups + n_groups);
  states_.assign(states, states + n_states);
  pages_.clear();
  std::vector<int> max_blocks;
  for (const LlmxGroup& group : groups_) {
    pages_.push_back(std::make_unique<Pages>(static_cast<size_t>(group.block_bytes * group.num_blocks)));
    max_blocks.push_back(group.max_blocks);
  }
  for (const LlmxState& state : states_) {
    if (state.group < 0 || state.group >= n_groups) return "a state names a group that does not exist";
    if (state.layer_offset + kv_layer_bytes(geometry(state)) > groups_[state.group].block_bytes) return "a layer does not fit into the blocks of its group";
  }
  slots_.configure(shape_.max_requests, n_groups, max_blocks.data());
  request_of_slot_.assign(shape_.max_requests, -1);
  return nullptr;
}

KvGeometry Engine::geometry(const LlmxState& state) const {
  return {static_cast<KvType>(state.type), state.kv_heads, state.head_dim, state.v_head_dim, groups_[state.group].block_bytes, state.layer_offset};
}

// ---------------------------------------------------------------------------------------------------------- other ops

void Engine::run_rowwise(const LlmxOp& op, int64_t rows) {
  const float *x = value(op.in[0]), *y = value(op.in[1]);
  float* out = value(op.out[0]);
  const int64_t width = op.width;
  switch (op.kind) {
    case LLMX_NORM: {
      const NormParams params{static_cast<NormKind>(op.i[0]), op.f[0], op.i[3] != 0, vector(op.w[0]), vector(op.w[1])};
      const NormArgs args{params, x, y, op.i[2] != 0, out, width, op.i[1]};
      return pool_.over_rows(rows, width, [&](int64_t begin, int64_t end) { rowwise_.norm(args, begin, end); });
    }
    case LLMX_ACT:
      return pool_.over_rows(rows, width * 4, [&](int64_t begin, int64_t end) {
        rowwise_.act(static_cast<ActKind>(op.i[0]), x + begin * width, out + begin * width, (end - begin) * width);
      });
    case LLMX_ACT_MUL:
      return pool_.over_rows(rows, width * 4, [&](int64_t begin, int64_t end) { rowwise_.act_mul(static_cast<ActKind>(op.i[0]), x, out, width, begin, end); });
    case LLMX_BINARY: {
      const auto kind = static_cast<BinaryKind>(op.i[0]);
      return pool_.over_rows(rows, width, [&](int64_t begin, int64_t end) {
        if (op.i[1] == 0) rowwise_.binary(kind, x + begin * width, y + begin * width, out + begin * width, (end - begin) * width);
        if (op.i[1] == 1) rowwise_.binary_row(kind, x, vector(op.w[0]), out, width, begin, end);
        if (op.i[1] == 2) rowwise_.binary_column(kind, x, y, out, width, begin, end);
      });
    }
    case LLMX_UNARY:
      return pool_.over_rows(rows, width * 2, [&](int64_t begin, int64_t end) {
        rowwise_.unary(static_cast<UnaryKind>(op.i[0]), op.f[0], x + begin * width, out + begin * width, (end - begin) * width);
      });
    case LLMX_SOFTMAX:
      return pool_.over_rows(rows, width * 4, [&](int64_t begin, int64_t end) { rowwise_.softmax(x, out, width, begin, end); });
    case LLMX_ROPE: {
      const RopeTable table{vector(op.w[0]), op.i[2], op.i[3] != 0};
      return pool_.over_rows(rows / op.mult, width * op.mult, [&](int64_t begin, int64_t end) {
        rowwise_.rope(table, positions_.data(), x, out, op.i[0], op.i[1], begin, end);
      });
    }
    case LLMX_POSITION_SCALE: {
      const float* scale = vector(op.w[0]);
      const int64_t span = width * op.mult;
      return pool_.over_rows(rows / op.mult, span, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) rowwise_.unary(UnaryKind::scale, scale[positions_[r]], x + r * span, out + r * span, span);
      });
    }
    case LLMX_SPLIT:
    case LLMX_CONCAT: {
      const bool split = op.kind == LLMX_SPLIT;
      const int32_t* pieces = split ? op.out : op.in;
      return pool_.over_rows(rows, width, [&](int64_t begin, int64_t end) {
        int64_t column = 0;
        for (int p = 0; p < 4 && pieces[p] >= 0; ++p) {
          const int64_t n = op.i[p];
          for (int64_t r = begin; r < end; ++r) {
            float* piece = value(pieces[p]) + r * n;
            if (split) {
              std::memcpy(piece, x + r * width + column, static_cast<size_t>(n) * 4);
            } else {
              std::memcpy(out + r * width + column, piece, static_cast<size_t>(n) * 4);
            }
          }
          column += n;
        }
      });
    }
    default:  // LLMX_COPY
      return pool_.over_rows(rows, width, [&](int64_t begin, int64_t end) {
        std::memcpy(out + begin * width, x + begin * width, static_cast<size_t>((end - begin) * width) * 4);
      });
  }
}

void Engine::run_collective(const LlmxOp& op, int64_t rows) {
  if (!communicator_ || communicator_->size() != op.i[1]) {
    failed_ = "the Program is one of several ranks' share, and the executor is not connected to as many";
    return;
  }
  const float* x = value(op.in[0]);
  const int64_t width = values_[op.in[0]].width;
  if (op.i[0] == 0) {
    failed_ = communicator_->all_reduce(x, value(op.out[0]), rows * width, &pool_);
  } else {
    failed_ = communicator_->all_gather(reinterpret_cast<const uint8_t*>(x), reinterpret_cast<uint8_t*>(value(op.out[0])), rows, width * 4, &pool_);
  }
}

// All ops over token rows (on_head 0), or over a block of head rows (1). Null, or why a collective could not be done.
const char* Engine::run_all(const LlmxStepArgs& args, int on_head, int64_t rows, int64_t first_head) {
  failed_ = nullptr;
  for (const LlmxOp& op : ops_) {
    if (op.rows != on_head) continue;
    run(op, args, rows, first_head);
    if (failed_) return failed_;
  }
  return nullptr;
}

void Engine::run_qkv(const LlmxOp& op, int64_t rows) {
  QkvArgs a{};
  a.x = value(op.in[0]);
  a.ldx = values_[op.in[0]].width;
  a.positions = positions_.data();
  a.q = value(op.out[0]);
  a.k = value(op.out[1]);
  a.v = value(op.out[2]);
  a.gate = value(op.out[3]);
  a.q_heads = op.i[0];
  a.kv_heads = op.i[1];
  a.head_dim = op.i[2];
  a.v_head_dim = op.i[3];
  a.clip = op.f[0];
  a.norm_span = op.i[4];
  a.norm_before_rope = op.i[5] != 0;
  a.v_norm = op.i[6] != 0;
  a.q_norm = {static_cast<NormKind>(op.i[7]), op.f[1], false, vector(op.w[0]), vector(op.w[4])};
  a.k_norm = {static_cast<NormKind>(op.i[7]), op.f[1], false, vector(op.w[1]), vector(op.w[5])};
  a.rope = {vector(op.w[2]), op.i[8], op.i[9] != 0};
  a.q_scale = vector(op.w[3]);
  pool_.over_rows(rows, a.ldx * 2, [&](int64_t begin, int64_t end) { rowwise_.qkv(a, begin, end); });
}

void Engine::run_kv_write(const LlmxOp& op, const LlmxStepArgs& args) {
  const LlmxState& state = states_[op.i[0]];
  const int64_t k = int64_t{state.kv_heads} * state.head_dim, v = int64_t{state.kv_heads} * state.v_head_dim;
  const KvWriteArgs write{geometry(state), pages(state.group), slots_.blocks(state.group), slots_.stride(state.group), args.n,
                          args.slot,       args.q,             args.start,                 value(op.in[0]),            value(op.in[1]),
                          k,               v};
  // Each pair of elements of K has a line of memory of its own, which takes longer to come than its few bytes to copy.
  pool_.over_rows(args.t, (k + v) * 16, [&](int64_t begin, int64_t end) { attention_.kv_write(write, begin, end); });
}

void Engine::run_attention(const LlmxOp& op, const LlmxStepArgs& args) {
  const LlmxState& state = states_[op.i[0]];
  AttnArgs a{};
  a.geo = geometry(state);
  a.pages = pages(state.group);
  a.table = slots_.blocks(state.group);
  a.stride = slots_.stride(state.group);
  a.n = args.n;
  a.slot = args.slot;
  a.q = args.q;
  a.start = args.start;
  a.query = value(op.in[0]);
  a.out = value(op.out[0]);
  a.q_heads = op.i[1];
  a.ld_query = int64_t{a.q_heads} * state.head_dim;
  a.ld_out = int64_t{a.q_heads} * state.v_head_dim;
  a.scale = op.f[0];
  a.soft_cap = op.f[1];
  a.window = op.i[2];
  a.bidirectional = op.i[3] != 0;
  a.sinks = vector(op.w[0]);
  a.alibi = vector(op.w[1]);
  const AttnPlan plan = attention_.plan(a, pool_.threads());
  if (items_.size() < static_cast<size_t>(plan.items_bytes)) items_.resize(static_cast<size_t>(plan.items_bytes));
  if (partial_.size() < static_cast<size_t>(plan.partial_bytes)) partial_.resize(static_cast<size_t>(plan.partial_bytes));
  for (auto& scratch : thread_scratch_) {
    if (scratch.size() < static_cast<size_t>(plan.thread_bytes)) scratch.resize(static_cast<size_t>(plan.thread_bytes));
  }
  attention_.prepare(a, plan, items_.data());
  pool_.over(plan.units, 1, [&](int64_t begin, int64_t end, int worker) {
    attention_.run(a, plan, items_.data(), begin, end, partial_.data(), thread_scratch_[static_cast<size_t>(worker)].data());
  });
  pool_.over(plan.merge_units, 4, [&](int64_t begin, int64_t end, int) { attention_.merge(a, plan, items_.data(), begin, end, partial_.data()); });
}

void Engine::run(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows, int64_t first_head) {
  const auto start = std::chrono::steady_clock::now();
  run_untimed(op, args, rows, first_head);
  op_ns_[op.kind] += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

void Engine::run_untimed(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows, int64_t first_head) {
  const int64_t all = rows * op.mult;
  switch (op.kind) {
    case LLMX_EMBED: {
      const PackedWeight& table = weights_[op.w[0]];
      const int32_t* index = op.i[0] == 0 ? ids_.data() : op.i[0] == 1 ? positions_.data() : token_types_.data();
      float* out = value(op.out[0]);
      pool_.over_rows(rows, op.width * 8, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) unpack_row(table, index[r] + op.i[1], out + r * op.width);
        if (op.f[0] != 1.0f) rowwise_.unary(UnaryKind::scale, op.f[0], out + begin * op.width, out + begin * op.width, (end - begin) * op.width);
      });
      return embed_lora(op, args, rows, index, out);
    }
    case LLMX_LINEAR:
    case LLMX_MLP:
      if (op.rows == 1) {
        for (int64_t r = 0; r < rows; ++r) head_fine_[static_cast<size_t>(r)] = token_fine_[static_cast<size_t>(args.head[first_head + r])];
      }
      group_rows(op, args, rows, first_head);
      set_fine_rows(op.rows == 1 ? head_fine_.data() : token_fine_.data(), op.mult);
      return op.kind == LLMX_LINEAR ? run_linear(op, all) : run_mlp(op, all);
    case LLMX_QKV:
      return run_qkv(op, rows);
    case LLMX_KV_WRITE:
      return run_kv_write(op, args);
    case LLMX_ATTENTION:
      return run_attention(op, args);
    case LLMX_COLLECTIVE:
      return run_collective(op, all);
    case LLMX_ROWS: {
      const float* x = value(op.in[0]);
      float* out = value(op.out[0]);
      for (int64_t r = 0; r < rows; ++r) std::memcpy(out + r * op.width, x + args.head[first_head + r] * int64_t{op.width}, static_cast<size_t>(op.width) * 4);
      return;
    }
    case LLMX_HIDDEN:
      return run_hidden(op, args, rows);
    case LLMX_KEEP:
      return run_keep(op, args, rows, first_head);
    case LLMX_GUESS:
      return run_guess(op, rows, first_head);
    default:
      return run_rowwise(op, all);
  }
}

}  // namespace llmx
