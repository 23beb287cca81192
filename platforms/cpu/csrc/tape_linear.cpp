// Products on a tape: their inputs, quantised once per op, and what is fused with them. A fusion runs the same functions on the
// same values in the same order as the ops alone; it only keeps them in cache. So the bits are equal.
#include <algorithm>

#include "tape.h"

namespace llmx {
namespace {

int index_of(ActType type) { return static_cast<int>(type); }
int64_t tiles_of(int64_t m) { return (m + kTileRows - 1) / kTileRows; }

constexpr float kOutlier = 2.0f;  // a block stands out whose largest value, squared, is this many times the mean over its row's blocks
constexpr int64_t kNearby = kMlpGroups;    // or over this many blocks, aligned, where the whole row is not at hand

// The norm before a product, as run_linear and run_mlp find it in a record.
struct PreNorm {
  bool on;
  NormParams params;
};

PreNorm pre_norm(const LlmxOp& op, const float* weight, const float* bias) {
  return {op.i[3] != 0, {static_cast<NormKind>(op.i[3] - 1), op.f[0], op.i[4] != 0, weight, bias}};
}

bool has_use(const std::vector<LoraUse>& uses, int begin, int end) {
  return std::any_of(uses.begin(), uses.end(), [&](const LoraUse& use) { return use.index >= begin && use.index < end; });
}

// Keeps those of rows [row, row + rows) that use an adapter: blocks of 32 from `from` to their places in `to` [*, ld].
void keep_rows(const std::vector<LoraUse>& uses, int64_t row, int64_t rows, const float* from, float* to, int64_t ld) {
  for (const LoraUse& use : uses) {
    for (const int32_t* r = std::lower_bound(use.rows, use.rows + use.n, row); r != use.rows + use.n && *r < row + rows; ++r) {
      std::copy_n(from + (*r - row) * kBlock, kBlock, to + *r * ld);
    }
  }
}

LlmxPart without_bias(LlmxPart part) {
  part.bias = -1;
  return part;
}

}  // namespace

LinearInput Engine::input_of(const LlmxPart* parts, int n, const float* x, int64_t m, int64_t k, const NormParams* norm, LowPlane low,
                             bool keep) {
  bool wanted[kActTypes] = {};
  for (int i = 0; i < n; ++i) wanted[index_of(weights_[parts[i].weight].act)] = true;
  LinearInput input{{}, m, k};
  for (int type = 0; type < kActTypes; ++type) input.acts[type] = acts_[type]->data();
  const bool plain = wanted[index_of(ActType::f32)];
  if (!norm) input.acts[index_of(ActType::f32)] = x;
  if (!norm && plain && !wanted[1] && !wanted[2] && !wanted[3]) return input;
  pool_.over(tiles_of(m), 16384 / (k * std::min<int64_t>(m, kTileRows)) + 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = t * kTileRows, rows = std::min<int64_t>(m - row, kTileRows);
      const float* from = x + row * k;
      if (norm) {
        float* to = plain || keep ? reinterpret_cast<float*>(acts_[index_of(ActType::f32)]->data()) + row * k : tile_scratch_[static_cast<size_t>(worker)].data();
        rowwise_.norm({*norm, from, nullptr, false, to, k, 1}, 0, rows);
        from = to;
      }
      for (const ActType type : {ActType::bf16, ActType::i8, ActType::i16}) {
        if (!wanted[index_of(type)]) continue;
        uint8_t* to = acts_[index_of(type)]->data() + t * act_tile_bytes(type, k);
        const bool chosen = type == ActType::i16 && (low == LowPlane::outliers || low == LowPlane::nearby);
        const uint32_t fine = chosen ? fine_mask(row, rows) : 0;
        if (fine) {
          round_outliers({from, k, kBlock}, rows, k / kBlock, low == LowPlane::outliers ? k / kBlock : kNearby, to, fine);
        } else if (low == LowPlane::none && type == ActType::i16) {
          linear_.quantize(type, from, k, rows, k, to, 0);
        } else {
          round_tile(type, from, k, row, rows, k, to, act_ld(type, k));
        }
      }
    }
  });
  return input;
}

uint32_t Engine::fine_mask(int64_t first, int64_t rows) const {
  if (!fine_rows_) return 0xffffu;
  uint32_t mask = 0;
  for (int64_t r = 0; r < rows; ++r) mask |= static_cast<uint32_t>(fine_rows_[(first + r) / fine_mult_]) << r;
  return mask;
}

bool Engine::any_fine(int64_t rows) const {
  for (int64_t row = 0; row < rows; row += kTileRows) {
    if (fine_mask(row, std::min<int64_t>(rows - row, kTileRows))) return true;
  }
  return false;
}

// One tile of rows, `first` of all rows onward (or some of its columns), in the form that weights want.
void Engine::round_tile(ActType type, const float* x, int64_t ldx, int64_t first, int64_t rows, int64_t columns, uint8_t* out, int64_t ld) {
  if (type == ActType::bf16) {
    linear_.round_bf16(x, ldx, columns, reinterpret_cast<uint16_t*>(out), ld, 0, rows);
  } else if (type == ActType::f32) {
    for (int64_t r = 0; r < rows; ++r) std::copy_n(x + r * ldx, columns, reinterpret_cast<float*>(out) + r * ld);
  } else {
    linear_.quantize(type, x, ldx, rows, columns, out, fine_mask(first, rows));
  }
}

// A tile of rows as int8, but int16 in the blocks that stand out among `among` of their row: most of the rounding error is theirs.
// The bits of `fine` say for which rows.
void Engine::round_outliers(const BlockView& x, int64_t rows, int64_t blocks, int64_t among, uint8_t* out, uint32_t fine) {
  const int64_t step = act_tile_bytes(ActType::i16, kBlock);
  std::vector<uint32_t> masks(static_cast<size_t>(blocks), 0);
  std::vector<float> largest(static_cast<size_t>(among));
  for (int64_t r = 0; r < rows; ++r) {
    if (!(fine >> r & 1)) continue;
    for (int64_t first = 0; first < blocks; first += among) {
      const int64_t end = std::min(first + among, blocks);
      linear_.largest(x.data + r * x.row + first * x.block, x.block, end - first, largest.data());
      float sum = 0.0f;
      for (int64_t b = 0; b < end - first; ++b) sum += largest[static_cast<size_t>(b)] * largest[static_cast<size_t>(b)];
      const auto count = static_cast<float>(end - first);
      for (int64_t b = first; b < end; ++b) {
        const float one = largest[static_cast<size_t>(b - first)];
        masks[static_cast<size_t>(b)] |= static_cast<uint32_t>(one * one * count > kOutlier * sum) << r;
      }
    }
  }
  for (int64_t b = 0; b < blocks; ++b) linear_.quantize(ActType::i16, x.data + b * x.block, x.row, rows, kBlock, out + b * step, masks[static_cast<size_t>(b)]);
}

// Which blocks of early rows get their second plane. The input of `down` is made some blocks at a time, and what is fused must not change
// the bits: so a product of one weight looks at blocks nearby. What attention gives has no need of it; logits keep it everywhere.
LowPlane Engine::low_plane(const LlmxOp& op, int n) const {
  if (fine_positions_ == INT32_MAX || op.rows != 0) return LowPlane::all;
  if (op.kind == LLMX_LINEAR && op.i[7]) return LowPlane::none;
  return n == 1 ? LowPlane::nearby : LowPlane::outliers;
}

// Each thread's part of a phase begins where the pool cuts it; which panels go together does not matter here.
void Engine::plan_reads() {
  const int threads = pool_.threads();
  auto at = [&](const LlmxPart* parts, int n, int thread) -> const uint8_t* {  // in the panels of all parts, one after the other
    int64_t panel = 0;
    for (int i = 0; i < n; ++i) panel += weights_[parts[i].weight].panels;
    panel = panel * thread / threads;
    for (; panel >= weights_[parts->weight].panels; ++parts) panel -= weights_[parts->weight].panels;
    return weights_[parts->weight].data + panel * weights_[parts->weight].panel_bytes;
  };
  auto bytes = [&](const LlmxPart& part) { return weights_[part.weight].panels * weights_[part.weight].panel_bytes / threads; };
  reads_.assign(2 * ops_.size(), nullptr);
  std::vector<size_t> phases;  // places in reads_, in the order of running
  std::vector<std::vector<Reads>> own;
  for (size_t i = 0; i < ops_.size(); ++i) {
    const LlmxOp& op = ops_[i];
    if (op.kind != LLMX_LINEAR && op.kind != LLMX_MLP) continue;
    const LlmxPart* parts = parts_.data() + op.i[0];
    std::vector<Reads> first, second;
    for (int thread = 0; thread < threads; ++thread) {
      if (op.kind == LLMX_LINEAR) {
        first.push_back({{at(parts, op.i[1], thread), nullptr}, bytes(parts[0])});
      } else {
        first.push_back({{at(parts, 1, thread), at(parts + 1, 1, thread)}, bytes(parts[0])});
        second.push_back({{at(parts + 2, 1, thread), nullptr}, bytes(parts[2])});
      }
    }
    phases.push_back(2 * i);
    own.push_back(std::move(first));
    if (second.empty()) continue;
    phases.push_back(2 * i + 1);
    own.push_back(std::move(second));
  }
  for (size_t p = 0; p < phases.size(); ++p) reads_[phases[p]] = pool_.keep(std::move(own[(p + 1) % phases.size()]));  // after the last: the next step
}

// Panels [begin, end) of one part for the rows of `tile` onward.
void Engine::gemm(const LlmxPart& part, const LinearInput& input, int64_t tile, int64_t rows, float* y, int64_t ldy, const float* residual,
                  int64_t begin, int64_t end) {
  const PackedWeight& weight = weights_[part.weight];
  const auto* act = static_cast<const uint8_t*>(input.acts[index_of(weight.act)]) + tile * act_tile_bytes(weight.act, input.k);
  linear_.gemm({&weight, act, act_ld(weight.act, input.k), rows, y, ldy, vector(part.bias), residual, ldy}, begin, end);
}

// uses: adapters of the op's parts, of which these are number `of` onward; their A x is there.
void Engine::linear(const LlmxPart* parts, int n, const LinearInput& input, float* y, int64_t ldy, const float* residual,
                    const std::vector<LoraUse>* uses, int of) {
  int64_t panels = 0, bytes = 0, unit = 2;
  for (int i = 0; i < n; ++i) {
    const PackedWeight& weight = weights_[parts[i].weight];
    panels += weight.panels;
    bytes += weight.panels * weight.panel_bytes;
    if (!is_quantised(weight.type) || weight.type == WeightType::q8_0) unit = 4;  // that many panels go together in their kernels
  }
  // A chunk is worth a few microseconds of memory or arithmetic.
  const int64_t grain = std::max<int64_t>(unit, panels * 24576 / std::max<int64_t>(1, bytes * std::min<int64_t>(input.m, 64)));
  pool_.over((panels + unit - 1) / unit, grain / unit, [&](int64_t begin, int64_t end, int) {
    int64_t first = 0;
    for (int i = 0; i < n; ++i) {
      const int64_t count = weights_[parts[i].weight].panels;
      const int64_t from = std::max(begin * unit, first) - first, to = std::min(end * unit, first + count) - first;
      first += count;
      const int64_t column = parts[i].column;
      const float* add = residual ? residual + column : nullptr;
      if (from >= to) continue;
      if (uses) {
        gemm(without_bias(parts[i]), input, 0, input.m, y + column, ldy, nullptr, from, to);
        lora_add(*uses, of + i, parts[i], 0, input.m, y + column, ldy, add, from, to);
      } else {
        gemm(parts[i], input, 0, input.m, y + column, ldy, add, from, to);
      }
    }
  });
}

void Engine::run_linear(const LlmxOp& op, int64_t rows) {
  const LlmxPart* parts = parts_.data() + op.i[0];
  const PreNorm norm = pre_norm(op, vector(op.w[0]), vector(op.w[1]));
  const bool adapted = lora_uses(parts, 0, op.i[1], &lora_uses_);
  reads_after(op, 0);
  const LinearInput input = input_of(parts, op.i[1], value(op.in[0]), rows, op.i[2], norm.on ? &norm.params : nullptr, low_plane(op, op.i[1]), adapted);
  if (adapted) lora_shrink(lora_uses_, static_cast<const float*>(input.acts[index_of(ActType::f32)]), op.i[2]);
  linear(parts, op.i[1], input, value(op.out[0]), op.width, value(op.in[1]), adapted ? &lora_uses_ : nullptr);
}

// gate and up run 32 columns at a time, their product goes straight into the form that `down` reads.
void Engine::run_mlp(const LlmxOp& op, int64_t m) {
  const LlmxPart* parts = parts_.data() + op.i[0];
  const PreNorm norm = pre_norm(op, vector(op.w[0]), vector(op.w[1]));
  reads_after(op, 0);
  const bool adapted = lora_uses(parts, 0, 3, &lora_uses_), first = adapted && has_use(lora_uses_, 0, 2), last = adapted && has_use(lora_uses_, 2, 3);
  const LinearInput input = input_of(parts, 2, value(op.in[0]), m, op.i[2], norm.on ? &norm.params : nullptr, low_plane(op, 2), first);
  std::vector<LoraUse> down;
  if (adapted) {  // those of gate and up come first
    const auto cut = std::find_if(lora_uses_.begin(), lora_uses_.end(), [](const LoraUse& use) { return use.index == 2; });
    down.assign(cut, lora_uses_.end());
    lora_uses_.erase(cut, lora_uses_.end());
    if (first) lora_shrink(lora_uses_, static_cast<const float*>(input.acts[index_of(ActType::f32)]), op.i[2]);
    if (last && lora_mid_.size() < static_cast<size_t>(m * op.i[6])) lora_mid_.resize(static_cast<size_t>(m * op.i[6]));
  }
  const auto act = static_cast<ActKind>(op.i[5]);
  const int64_t width = op.i[6], groups = width / kBlock;
  const ActType type = weights_[parts[2].weight].act;
  const int64_t step = act_tile_bytes(type, kBlock) / (type == ActType::bf16 || type == ActType::f32 ? kTileRows : 1);  // to the next 32 columns
  uint8_t* mid = mid_acts_[index_of(type)]->data();
  const int64_t bytes = 2 * weights_[parts[0].weight].panel_bytes * 2;
  const bool choose = type == ActType::i16 && low_plane(op, 1) == LowPlane::nearby && any_fine(m);
  const int64_t together = choose ? kNearby : 1;  // groups that one thread makes, because they are looked at together
  pool_.over((groups + together - 1) / together, 24576 / (together * bytes * std::min<int64_t>(m, 64)) + 1, [&](int64_t begin, int64_t end, int worker) {
    constexpr int64_t kRows = kMlpTiles * kTileRows;
    float* pair = tile_scratch_[static_cast<size_t>(worker)].data();  // [rows, gate 32 | up 32], then products, each [rows, 32]
    float* products = pair + kRows * 2 * kBlock;
    for (int64_t row = 0; row < m; row += kRows) {
      const int64_t rows = std::min(m - row, kRows);
      for (int64_t begin_group = begin * together; begin_group < std::min(end * together, groups); begin_group += together) {
        const int64_t count = std::min(together, groups - begin_group);
        for (int64_t g = begin_group; g < begin_group + count; ++g) {
          const int64_t column = g * kBlock, panel = 2 * g;
          for (int i = 0; i < 2; ++i) {
            float* y = pair + i * kBlock - column;
            gemm(first ? without_bias(parts[i]) : parts[i], input, row / kTileRows, rows, y, 2 * kBlock, nullptr, panel, panel + 2);
            if (first) lora_add(lora_uses_, i, parts[i], row, rows, y - row * 2 * kBlock, 2 * kBlock, nullptr, panel, panel + 2);
          }
          float* product = products + (g - begin_group) * rows * kBlock;
          rowwise_.act_mul(act, pair, product, kBlock, 0, rows);
          if (last) keep_rows(down, row, rows, product, lora_mid_.data() + column, width);
        }
        for (int64_t r = 0; r < rows; r += kTileRows) {
          const int64_t n = std::min<int64_t>(rows - r, kTileRows);
          const BlockView view = {products + r * kBlock, kBlock, rows * kBlock};
          uint8_t* to = mid + (row + r) / kTileRows * act_tile_bytes(type, width) + begin_group * step;
          const uint32_t fine = choose ? fine_mask(row + r, n) : 0;
          if (fine) {
            round_outliers(view, n, count, count, to, fine);
          } else {
            for (int64_t g = 0; g < count; ++g) round_tile(type, view.data + g * view.block, kBlock, row + r, n, kBlock, to + g * step, act_ld(type, width));
          }
        }
      }
    }
  });
  reads_after(op, 1);
  if (last) lora_shrink(down, lora_mid_.data(), width);
  linear(parts + 2, 1, {{mid, mid, mid, mid}, m, width}, value(op.out[0]), op.width, value(op.in[1]), last ? &down : nullptr, 2);
}

}  // namespace llmx
