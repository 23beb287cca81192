// Runs rows of the draft tape: forward, head rows in blocks, and the most likely token of each.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tape.h"

namespace llmx {
namespace {

// NaN is never the largest; a row of nothing else gives 0.
int32_t most_likely(const float* row, int64_t n) {
  int32_t best = 0;
  float most = -INFINITY;
  for (int64_t i = 0; i < n; ++i) {
    if (row[i] > most) most = row[i], best = static_cast<int32_t>(i);
  }
  return best;
}

}  // namespace

void Engine::swap_tape() {
  std::swap(ops_, draft_.ops);
  std::swap(values_, draft_.values);
  std::swap(parts_, draft_.parts);
  std::swap(arena_, draft_.arena);
  std::swap(shape_, draft_.shape);
}

const char* Engine::set_draft_tape(const LlmxTape& tape) {
  LlmxTape sized = tape;  // scratch is made anew for both
  sized.act_mult = std::max(tape.act_mult, shape_.act_mult);
  sized.act_width = std::max(tape.act_width, shape_.act_width);
  swap_tape();
  const char* wrong = set_tape(sized);
  swap_tape();
  return wrong;
}

const char* Engine::draft(const LlmxDraftArgs& rows) {
  if (draft_.ops.empty()) return "no draft tape was set";
  FloatMode mode;
  pool_.wake();
  swap_tape();
  const char* wrong = draft_rows(rows);
  swap_tape();
  return wrong;
}

const char* Engine::draft_rows(const LlmxDraftArgs& rows) {
  if (rows.t > shape_.max_tokens || rows.n > shape_.max_requests) return "a run of the draft tape exceeds the limits of a step";
  LlmxStepArgs args{};
  args.n = rows.n, args.t = rows.t, args.r = rows.r;
  args.slot = rows.slot, args.q = rows.q, args.start = rows.start, args.tokens = rows.tokens, args.head = rows.head;
  lora_step_ = false;  // adapters belong to parts of the other tape
  int t = 0;
  for (int i = 0; i < rows.n; ++i) {
    if (rows.slot[i] < 0 || rows.slot[i] >= slots_.size() || !slots_.at(rows.slot[i]).used) return "a draft row names a slot that no request holds";
    for (int j = 0; j < rows.q[i]; ++j, ++t) {
      if (t >= rows.t || rows.tokens[t] < 0 || rows.tokens[t] >= shape_.vocab) return "a draft row has no token of the vocabulary";
      ids_[static_cast<size_t>(t)] = rows.tokens[t];
      positions_[static_cast<size_t>(t)] = rows.start[i] + j;
      token_fine_[static_cast<size_t>(t)] = rows.start[i] + j < fine_positions_;
    }
  }
  if (t != rows.t) return "the draft rows do not add up";
  for (int r = 0; r < rows.r; ++r) {
    if (rows.head[r] < 0 || rows.head[r] >= rows.t) return "a head row names a draft row that does not exist";
  }
  for (const LlmxOp& op : ops_) {
    if (op.rows == 0) run(op, args, args.t, 0);
  }
  for (int b = 0; b < rows.r; b += kHeadRows) {
    const int m = std::min(kHeadRows, rows.r - b);
    for (const LlmxOp& op : ops_) {
      if (op.rows == 1) run(op, args, m, b);
    }
    const float* logits = value(shape_.logits);
    pool_.over(m, 1, [&](int64_t from, int64_t to, int) {
      for (int64_t r = from; r < to; ++r) rows.next[b + r] = most_likely(logits + r * shape_.vocab, shape_.vocab);
    });
  }
  return nullptr;
}

}  // namespace llmx
