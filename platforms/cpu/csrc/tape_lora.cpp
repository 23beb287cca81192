// Adapters on a tape: kept by slot, and found for the rows of each product and embedding.
#include <algorithm>
#include <cmath>
#include <cstring>

#define LLMX_LEVEL 0
#include "simd.h"
#include "tape.h"

namespace llmx {
namespace {

using LLMX_NS::bf16_to_float;
using LLMX_NS::f16_to_float;

float element(WeightType type, const void* data, int64_t i) {
  if (type == WeightType::f32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == WeightType::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

constexpr int32_t kEmbedding = 1, kWhole = 2;  // bits of LlmxLora.kind
constexpr int64_t kWholeRanks = 512;           // outputs of a whole part that a thread takes together

}  // namespace

// What LoRA adds: the matrices in the layouts of lora.h, in memory that goes with the adapter.
const char* Engine::set_lora(int slot, const LlmxLora* given, int n) {
  if (slot < 0 || slot >= 4096) return "LoRA slots are 0..4095";
  if (static_cast<size_t>(slot) >= adapters_.size()) adapters_.resize(static_cast<size_t>(slot) + 1);
  adapters_[static_cast<size_t>(slot)].reset();
  if (n == 0) return nullptr;
  auto adapter = std::make_unique<LoraAdapter>();
  adapter->parts.resize(parts_.size());
  for (int i = 0; i < n; ++i) {
    const LlmxLora& from = given[i];
    if (from.part < 0 || static_cast<size_t>(from.part) >= parts_.size() || (from.rank < 1 && !(from.kind & kWhole))) return "an adapter names a part that the tape does not have";
    for (const int32_t type : {from.a_type, from.kind & kWhole ? from.a_type : from.b_type}) {
      if (type != static_cast<int32_t>(WeightType::f32) && type != static_cast<int32_t>(WeightType::f16) && type != static_cast<int32_t>(WeightType::bf16)) return "adapters are f32, f16 or bf16";
    }
    pack_lora(from, adapter.get());
  }
  adapters_[static_cast<size_t>(slot)] = std::move(adapter);
  return nullptr;
}

void Engine::pack_lora(const LlmxLora& from, LoraAdapter* adapter) {
  const PackedWeight& weight = weights_[parts_[static_cast<size_t>(from.part)].weight];
  LoraPart& to = adapter->parts[static_cast<size_t>(from.part)];
  const bool table = from.kind & kEmbedding;
  to.rank = from.rank, to.scale = from.scale, to.k = table ? weight.rows : weight.cols, to.rows = table ? weight.cols : weight.rows;
  to.whole = from.kind & kWhole;
  if (to.whole) to.scale = 1.0f, to.rank = static_cast<int32_t>(weight.rows), to.k = weight.cols, to.rows = weight.rows;
  to.kept = to.whole && table ? 0 : to.rank;
  to.a_type = static_cast<WeightType>(from.a_type), to.b_type = static_cast<WeightType>(from.b_type);
  const int64_t width = lora_width(to.k), a_size = lora_bytes(to.a_type), b_size = lora_bytes(to.b_type);
  uint8_t* a = adapter->memory.take(static_cast<size_t>(to.rank * width * a_size));
  for (int64_t r = 0; r < to.rank; ++r) {
    std::memcpy(a + r * width * a_size, static_cast<const uint8_t*>(from.a) + r * to.k * a_size, static_cast<size_t>(to.k * a_size));
  }
  to.a = a;
  if (to.whole) return;
  const int64_t panels = (to.rows + kPanel - 1) / kPanel;
  uint8_t* b = adapter->memory.take(static_cast<size_t>(panels * from.rank * kPanel * b_size));
  for (int64_t row = 0; row < to.rows; ++row) {
    for (int64_t r = 0; r < from.rank; ++r) {
      const int64_t at = (row / kPanel * from.rank + r) * kPanel + row % kPanel;
      std::memcpy(b + at * b_size, static_cast<const uint8_t*>(from.b) + (row * from.rank + r) * b_size, static_cast<size_t>(b_size));
    }
  }
  to.b = b;
  if (from.magnitude) to.g = table ? column_lengths(from, to, weight, adapter) : lengths(from, to, weight, adapter);
}

// As `lengths`, of an embedding: a row of B belongs to a column of the table. Blocks of a fixed size are added up in order: no thread changes a bit.
const float* Engine::column_lengths(const LlmxLora& from, const LoraPart& part, const PackedWeight& weight, LoraAdapter* adapter) {
  constexpr int64_t kIds = 1024;
  auto* g = reinterpret_cast<float*>(adapter->memory.take(static_cast<size_t>(part.rows) * 4));
  std::vector<float> b(static_cast<size_t>(part.rows * part.rank));
  for (size_t i = 0; i < b.size(); ++i) b[i] = part.scale * element(part.b_type, from.b, static_cast<int64_t>(i));
  const int64_t blocks = (part.k + kIds - 1) / kIds;
  std::vector<double> sums(static_cast<size_t>(blocks * part.rows), 0.0);
  pool_.wake();
  pool_.over(blocks, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(part.rows));
    for (int64_t id = begin * kIds; id < std::min(end * kIds, part.k); ++id) {
      unpack_row(weight, id, row.data());
      double* sum = sums.data() + id / kIds * part.rows;
      for (int32_t r = 0; r < part.rank; ++r) {
        const float factor = element(part.a_type, from.a, r * part.k + id);
        for (int64_t n = 0; n < part.rows; ++n) row[static_cast<size_t>(n)] += factor * b[static_cast<size_t>(n * part.rank + r)];
      }
      for (int64_t n = 0; n < part.rows; ++n) sum[n] += static_cast<double>(row[static_cast<size_t>(n)]) * row[static_cast<size_t>(n)];
    }
  });
  for (int64_t n = 0; n < part.rows; ++n) {
    double sum = 0.0;
    for (int64_t block = 0; block < blocks; ++block) sum += sums[static_cast<size_t>(block * part.rows + n)];
    g[n] = sum > 0.0 ? static_cast<float>(from.magnitude[n] / std::sqrt(sum)) : 1.0f;
  }
  return g;
}

// g: the wanted length of each row of W + scale B A over the one that it has.
const float* Engine::lengths(const LlmxLora& from, const LoraPart& part, const PackedWeight& weight, LoraAdapter* adapter) {
  auto* g = reinterpret_cast<float*>(adapter->memory.take(static_cast<size_t>(part.rows) * 4));
  std::vector<float> a(static_cast<size_t>(part.rank * part.k)), b(static_cast<size_t>(part.rows * part.rank));
  for (size_t i = 0; i < a.size(); ++i) a[i] = element(part.a_type, from.a, static_cast<int64_t>(i));
  for (size_t i = 0; i < b.size(); ++i) b[i] = element(part.b_type, from.b, static_cast<int64_t>(i));
  pool_.wake();
  pool_.over(part.rows, 8, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(part.k));
    for (int64_t n = begin; n < end; ++n) {
      unpack_row(weight, n, row.data());
      for (int32_t r = 0; r < part.rank; ++r) {
        const float factor = part.scale * b[static_cast<size_t>(n * part.rank + r)];
        for (int64_t k = 0; k < part.k; ++k) row[static_cast<size_t>(k)] += factor * a[static_cast<size_t>(r * part.k + k)];
      }
      double sum = 0.0;
      for (const float value : row) sum += static_cast<double>(value) * value;
      g[n] = sum > 0.0 ? static_cast<float>(from.magnitude[n] / std::sqrt(sum)) : 1.0f;
    }
  });
  return g;
}

// Rows by adapter. adapter_of(row): its slot or -1.
template <class F>
void Engine::group_lora(int64_t rows, F adapter_of) {
  lora_groups_.clear();
  lora_rows_.clear();
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t adapter = adapter_of(row);
    if (adapter < 0) continue;
    if (std::none_of(lora_groups_.begin(), lora_groups_.end(), [&](const LoraGroup& group) { return group.adapter == adapter; })) lora_groups_.push_back({adapter, 0, 0});
    lora_rows_.push_back(static_cast<int32_t>(row));
  }
  if (lora_groups_.size() > 1) {
    std::stable_sort(lora_rows_.begin(), lora_rows_.end(), [&](int32_t x, int32_t y) { return adapter_of(x) < adapter_of(y); });
    std::sort(lora_groups_.begin(), lora_groups_.end(), [](const LoraGroup& x, const LoraGroup& y) { return x.adapter < y.adapter; });
  }
  size_t at = 0;
  for (LoraGroup& group : lora_groups_) {
    group.first = static_cast<int64_t>(at);
    while (at < lora_rows_.size() && adapter_of(lora_rows_[at]) == group.adapter) ++at;
    group.count = static_cast<int64_t>(at) - group.first;
  }
}

void Engine::group_rows(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows, int64_t first_head) {
  if (!lora_step_) return;
  const int32_t* of = token_lora_.data();
  const int64_t key = op.rows == 1 ? -1 - (first_head * 65536 + op.mult) : op.mult;
  if (key == lora_key_) return;  // the same rows as the product before
  lora_key_ = key;
  group_lora(rows * op.mult, [&](int64_t row) { return of[op.rows == 1 ? args.head[first_head + row / op.mult] : row / op.mult]; });
}

// The uses of a product's parts [first, end): whose rows, and room for their A x.
bool Engine::lora_uses(const LlmxPart* parts, int first, int end, std::vector<LoraUse>* uses) {
  uses->clear();
  if (!lora_step_) return false;
  size_t floats = 0;
  for (int i = first; i < end; ++i) {
    const auto at = static_cast<size_t>(parts + i - parts_.data());
    for (const LoraGroup& group : lora_groups_) {
      const LoraPart& part = adapters_[static_cast<size_t>(group.adapter)]->parts[at];
      if (!part.rank) continue;
      uses->push_back({&part, i, lora_rows_.data() + group.first, group.count, nullptr});
      floats += static_cast<size_t>(group.count * part.kept);
    }
  }
  if (lora_h_.size() < floats) lora_h_.resize(floats);
  floats = 0;
  for (LoraUse& use : *uses) {
    use.h = lora_h_.data() + floats;
    floats += static_cast<size_t>(use.n * use.part->kept);
  }
  return !uses->empty();
}

void Engine::lora_shrink(const std::vector<LoraUse>& uses, const float* x, int64_t ldx) {
  constexpr int64_t kRows = 8;  // of one adapter that a thread takes together
  int64_t blocks = 0, cost = 0;
  for (const LoraUse& use : uses) {
    blocks += use.part->whole ? (use.part->rank + kWholeRanks - 1) / kWholeRanks : (use.n + kRows - 1) / kRows;
    cost += use.n * use.part->rank * use.part->k / 4;
  }
  pool_.over(blocks, 16384 / std::max<int64_t>(1, cost / blocks) + 1, [&](int64_t begin, int64_t end, int) {
    int64_t first = 0;
    for (const LoraUse& use : uses) {
      const int64_t count = use.part->whole ? (use.part->rank + kWholeRanks - 1) / kWholeRanks : (use.n + kRows - 1) / kRows;
      const int64_t from = std::max(begin, first) - first, to = std::min(end, first + count) - first;
      first += count;
      if (from >= to) continue;
      if (!use.part->whole) {
        lora_.shrink(use, x, ldx, from * kRows, std::min(to * kRows, use.n), 0, use.part->rank);
        continue;
      }
      for (int64_t block = from; block < to; ++block) {  // its weights stay in cache while all rows go over them
        lora_.shrink(use, x, ldx, 0, use.n, block * kWholeRanks, std::min<int64_t>((block + 1) * kWholeRanks, use.part->rank));
      }
    }
  });
}

// Rows [row, row + rows) of panels [begin, end) of one part, which holds W x alone: what adapters add, then bias and residual. y: of row 0.
void Engine::lora_add(const std::vector<LoraUse>& uses, int index, const LlmxPart& part, int64_t row, int64_t rows, float* y, int64_t ldy,
                      const float* residual, int64_t begin, int64_t end) {
  for (const LoraUse& use : uses) {
    if (use.index != index) continue;
    const bool all = use.rows[0] >= row && use.rows[use.n - 1] < row + rows;
    const int64_t from = all ? 0 : std::lower_bound(use.rows, use.rows + use.n, row) - use.rows;
    const int64_t to = all ? use.n : std::lower_bound(use.rows, use.rows + use.n, row + rows) - use.rows;
    if (from < to && use.part->whole) {
      const int64_t column = begin * kPanel, count = std::min(end * kPanel, use.part->rows) - column;
      for (int64_t i = from; i < to; ++i) std::copy_n(use.h + i * use.part->rows + column, count, y + use.rows[i] * ldy + column);
    } else if (from < to) {
      lora_.expand(use, from, to, y, ldy, begin, end);
    }
  }
  const float* bias = vector(part.bias);
  if (!bias && !residual) return;
  const int64_t columns = std::min(end * kPanel, weights_[part.weight].rows);
  lora_.finish(y + row * ldy, ldy, rows, bias, residual ? residual + row * ldy : nullptr, ldy, begin * kPanel, columns);
}

// What adapters make of the rows of an embedding. y: [rows, op.width], which holds the table's rows times the scale.
void Engine::embed_lora(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows, const int32_t* index, float* y) {
  if (!op.i[2] || !lora_step_) return;
  group_rows(op, args, rows, 0);
  if (!lora_uses(parts_.data() + op.i[2] - 1, 0, 1, &lora_uses_)) return;
  const int64_t panels = (op.width + kPanel - 1) / kPanel;
  for (const LoraUse& use : lora_uses_) {
    const LoraPart& part = *use.part;
    const int64_t width = lora_width(part.k);
    pool_.over(use.n, 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t id = index[use.rows[i]];
        if (part.whole) {
          float* row = y + use.rows[i] * int64_t{op.width};
          for (int64_t k = 0; k < part.k; ++k) row[k] = op.f[0] * element(part.a_type, part.a, id * width + k);
        } else {
          for (int32_t r = 0; r < part.rank; ++r) use.h[i * part.rank + r] = op.f[0] * part.scale * element(part.a_type, part.a, r * width + id);
        }
      }
      if (!part.whole) lora_.expand(use, begin, end, y, op.width, 0, panels);
    });
  }
}

// Whose rows a step has; null, or what is wrong with it.
const char* Engine::begin_lora(const LlmxStepArgs& args) {
  lora_step_ = false;
  lora_key_ = 0;
  if (adapters_.empty()) return nullptr;
  int64_t t = 0;
  for (int i = 0; i < args.n; ++i) {
    const int32_t adapter = slots_.at(args.slot[i]).lora;
    if (adapter >= 0 && (static_cast<size_t>(adapter) >= adapters_.size() || !adapters_[static_cast<size_t>(adapter)])) return "a request uses a LoRA slot that holds no adapter";
    std::fill_n(token_lora_.begin() + t, args.q[i], adapter);
    t += args.q[i];
    lora_step_ |= adapter >= 0 && args.q[i] > 0;
  }
  return nullptr;
}

}  // namespace llmx
