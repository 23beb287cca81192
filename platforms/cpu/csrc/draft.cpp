// Runs rows of a draft tape: forward, then head rows in blocks; and keeps the hidden rows that draft tapes read.
#include <algorithm>
#include <cmath>
#include <cstring>
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

void Engine::swap_tape(StoredTape& other) {
  std::swap(ops_, other.ops);
  std::swap(values_, other.values);
  std::swap(parts_, other.parts);
  std::swap(reads_, other.reads);
  std::swap(arena_, other.arena);
  std::swap(shape_, other.shape);
}

const char* Engine::set_draft_tape(const LlmxTape& tape) {
  LlmxTape sized = tape;  // scratch is made anew for all
  sized.act_mult = std::max(tape.act_mult, shape_.act_mult);
  sized.act_width = std::max(tape.act_width, shape_.act_width);
  for (const StoredTape& other : drafts_) {
    sized.act_mult = std::max(sized.act_mult, other.shape.act_mult);
    sized.act_width = std::max(sized.act_width, other.shape.act_width);
  }
  drafts_.emplace_back();
  swap_tape(drafts_.back());
  const char* wrong = set_tape(sized);
  swap_tape(drafts_.back());
  return wrong;
}

const char* Engine::draft(const LlmxDraftArgs& rows) {
  if (rows.run < 0 || rows.run >= static_cast<int>(drafts_.size())) return "a draft tape that was not set is to be run";
  FloatMode mode;
  Pool::Turn turn(pool_);
  pool_.wake();
  StoredTape& tape = drafts_[static_cast<size_t>(rows.run)];
  swap_tape(tape);
  drafting_ = &rows;
  const char* wrong = draft_rows(rows);
  drafting_ = nullptr;
  swap_tape(tape);
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
      if (int64_t{rows.behind[t] + 1} * draft_width_ > static_cast<int64_t>(draft_hidden_.size())) return "a draft row reads a hidden row that was not kept";
      ids_[static_cast<size_t>(t)] = rows.tokens[t];
      positions_[static_cast<size_t>(t)] = rows.start[i] + j;
      token_fine_[static_cast<size_t>(t)] = rows.start[i] + j < fine_positions_;
    }
  }
  if (t != rows.t) return "the draft rows do not add up";
  for (int r = 0; r < rows.r; ++r) {
    if (rows.head[r] < 0 || rows.head[r] >= rows.t) return "a head row names a draft row that does not exist";
  }
  if (const char* wrong = run_all(args, 0, args.t, 0)) return wrong;
  for (int b = 0; b < rows.r; b += kHeadRows) {
    const int m = std::min(kHeadRows, rows.r - b);
    if (const char* wrong = run_all(args, 1, m, b)) return wrong;
  }
  return nullptr;
}

// ------------------------------------------------------------------------------------------------------------ hidden rows

float* Engine::kept_row(const LlmxStepArgs& args, int request, int64_t position) {
  const int64_t block = slots_.blocks(hidden_group_)[args.slot[request] * slots_.stride(hidden_group_) + position / kBlockTokens];
  uint8_t* at = pages(hidden_group_) + block * groups_[static_cast<size_t>(hidden_group_)].block_bytes + hidden_offset_;
  return reinterpret_cast<float*>(at) + position % kBlockTokens * hidden_width_;
}

void Engine::run_hidden(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows) {
  float* out = value(op.out[0]);
  const int32_t* behind = drafting_->behind;
  for (int64_t t = 0, i = 0, first = 0; t < rows; ++t) {
    while (t - first >= args.q[i]) first += args.q[i++];
    const float* from = behind[t] < 0 ? kept_row(args, static_cast<int>(i), args.start[i] + t - first) : draft_hidden_.data() + behind[t] * draft_width_;
    std::memcpy(out + t * op.width, from, static_cast<size_t>(op.width) * 4);
  }
}

void Engine::run_keep(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows, int64_t first_head) {
  const float* x = value(op.in[0]);
  const size_t bytes = static_cast<size_t>(op.width) * 4;
  if (drafting_) {
    draft_width_ = op.width;
    if (draft_hidden_.size() < static_cast<size_t>(drafting_->r) * op.width) draft_hidden_.resize(static_cast<size_t>(drafting_->r) * op.width);
    std::memcpy(draft_hidden_.data() + first_head * op.width, x, static_cast<size_t>(rows) * bytes);
    return;
  }
  if (!hidden_width_) return;
  for (int64_t t = 0, i = 0, first = 0; t < rows; ++t) {
    while (t - first >= args.q[i]) first += args.q[i++];
    std::memcpy(kept_row(args, static_cast<int>(i), args.start[i] + t - first), x + t * op.width, bytes);
  }
}

void Engine::run_guess(const LlmxOp& op, int64_t rows, int64_t first_head) {
  const float *x = value(op.in[0]), *ids = vector(op.w[0]);
  int32_t* next = drafting_->next + first_head * drafting_->guesses + op.i[0];
  pool_.over(rows, 1, [&](int64_t from, int64_t to, int) {
    for (int64_t r = from; r < to; ++r) {
      const int32_t best = most_likely(x + r * op.width, op.width);
      next[r * drafting_->guesses] = ids ? static_cast<int32_t>(ids[best]) : best;
    }
  });
}

}  // namespace llmx
